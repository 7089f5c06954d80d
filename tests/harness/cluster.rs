//! A set of three brokers and three replicas on loopback, of one test's own: each node can be killed, paused and started again.
//!
//! The set is guarded by a shell that waits for the end of its input, which is this process's end too, however it comes:
//! the nodes never outlive the test.

use crate::{
    stack::{root, variable},
    within,
};
use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};
use tempfile::TempDir;

/// Six JVMs start in half a minute on two free cores.
const UP_DEADLINE_S: u64 = 300;
/// A node that is told to go, and a node that comes back: half a minute, and minutes when the machine is busy.
const NODE_DEADLINE: Duration = Duration::from_secs(300);
/// A node that has not gone so long after SIGTERM is killed: a broker waits long for a controller that it lacks.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// A file system in memory, on Linux, and what must be free there: a run's data and as much again.
const MEMORY: &str = "/dev/shm";
const MEMORY_MIN_KIB: u64 = 4 << 20;
/// Ends, with the nodes gone and the directory removed, when its input ends.
const GUARD: &str = r#"cat >/dev/null
"$1" kill
rm -rf "$2""#;

/// The set. Everything it started has ended when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    /// Three brokers, each of which is a controller too; empty when only Cassandra was asked for.
    pub kafka: Vec<Node>,
    /// Three replicas; empty when only Kafka was asked for.
    pub cassandra: Vec<Node>,
    guard: Child,
    /// The guard removes it.
    run: PathBuf,
}

/// One broker or one replica.
#[derive(Debug)]
pub struct Node {
    /// As the script calls it: `kafka-1`, `cassandra-3`.
    pub name: String,
    /// `host:port` for clients.
    pub address: String,
    run: PathBuf,
}

// === impl Cluster ===

impl Cluster {
    /// Three brokers and three replicas with replication factor 3, all ready. None when real nodes are not wanted
    /// (`make test-fast`); that is said on stdout, and the test passes.
    ///
    /// # Panics
    /// With the script's output, when the set does not start.
    pub async fn start() -> Option<Self> {
        Self::of(&["kafka", "cassandra"]).await
    }

    /// The brokers alone.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_kafka() -> Option<Self> {
        Self::of(&["kafka"]).await
    }

    /// The replicas alone.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_cassandra() -> Option<Self> {
        Self::of(&["cassandra"]).await
    }

    async fn of(kinds: &'static [&'static str]) -> Option<Self> {
        if variable("FENCEPOST_TEST_STACK").is_none() && variable("FENCEPOST_TEST_CQL").is_none() {
            say_skipped();
            return None;
        }
        let run = directory();
        let mut cluster = Self {
            kafka: Vec::new(),
            cassandra: Vec::new(),
            guard: guard(&run),
            run: run.clone(),
        };
        let mut up = script(&run, "up");
        up.args(kinds);
        run_to_end(up).await;
        for kind in kinds {
            let nodes = (1..=3).map(|number| Node::of(kind, number, &run)).collect();
            match *kind {
                "kafka" => cluster.kafka = nodes,
                _ => cluster.cassandra = nodes,
            }
        }
        Some(cluster)
    }

    /// `host:port` of the brokers.
    pub fn kafka_brokers(&self) -> Vec<String> {
        self.kafka.iter().map(|node| node.address.clone()).collect()
    }

    /// `host:port` of the replicas.
    pub fn contact_points(&self) -> Vec<String> {
        let nodes = self.cassandra.iter();
        nodes.map(|node| node.address.clone()).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in self.kafka.iter().chain(&self.cassandra) {
                node.show_complaints();
            }
        }
        drop(self.guard.stdin.take());
        // Nothing is left to be done about a failure here.
        drop(self.guard.wait());
        drop(std::fs::remove_dir_all(&self.run));
    }
}

// === impl Node ===

impl Node {
    fn of(kind: &str, number: u32, run: &Path) -> Self {
        let name = format!("{kind}-{number}");
        let port = read(&run.join(&name).join("port"));
        let host = match kind {
            "cassandra" => number,
            _ => 1,
        };
        Self {
            name,
            address: format!(
                "127.0.0.{host}:{}",
                port.expect("the script has written it")
            ),
            run: run.to_path_buf(),
        }
    }

    /// kill -9; gone when this returns. Gives the time, milliseconds since the Unix epoch.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn kill9(&self) -> i64 {
        // Earlier than the signal, as `Process::kill_9` has it.
        let at_ms = crate::now_ms();
        self.signal("-KILL");
        let gone = self.gone(NODE_DEADLINE).await;
        assert!(gone, "{} outlives kill -9", self.name);
        at_ms
    }

    /// Stops it in its tracks (SIGSTOP): connections stay open, nothing is answered.
    ///
    /// # Panics
    /// When it does not run.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Goes on after [`Self::pause`].
    ///
    /// # Panics
    /// When it does not run.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// From now on it can make no file longer than a block, as on a disk without room: what it writes fails. Until it is
    /// started again; it may end of its own accord.
    ///
    /// # Panics
    /// When the limit can not be set (`prlimit` is part of util-linux).
    pub fn fill_disk(&self) {
        let pid = self.pid().unwrap_or_default();
        let mut limit = Command::new("prlimit");
        limit.args(["--pid", &pid, "--fsize=4096:"]);
        let output = limit.output().expect("prlimit can be run");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", self.name);
    }

    /// SIGTERM; gone when this returns, by kill -9 when it has not ended of its own accord after half a minute.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn stop(&self) {
        self.signal("-TERM");
        // A paused process does not hear TERM.
        self.signal("-CONT");
        if !self.gone(STOP_DEADLINE).await {
            self.kill9().await;
        }
    }

    /// Starts it again with the data that it has, after [`Self::kill9`] or [`Self::stop`]. Does not wait for it.
    ///
    /// # Panics
    /// With the script's output, when it can not be started.
    pub async fn start(&self) {
        let mut start = script(&self.run, "start");
        start.arg(&self.name);
        run_to_end(start).await;
    }

    /// Waits until it serves clients. Its peers may need a second more to notice.
    ///
    /// # Panics
    /// With its log, when it ends or is not ready in time.
    pub async fn wait_ready(&self) {
        let mut wait = script(&self.run, "wait");
        wait.arg(&self.name);
        wait.env(
            "FENCEPOST_STACK_WAIT_S",
            NODE_DEADLINE.as_secs().to_string(),
        );
        run_to_end(wait).await;
    }

    /// Where its config, log and data are.
    fn dir(&self) -> PathBuf {
        self.run.join(&self.name)
    }

    /// Whether its process is there, paused or not.
    pub fn is_running(&self) -> bool {
        self.pid().is_some_and(|pid| kill("-0", &pid))
    }

    async fn gone(&self, deadline: Duration) -> bool {
        let gone = within(deadline, async || (!self.is_running()).then_some(()));
        gone.await.is_some()
    }

    fn pid(&self) -> Option<String> {
        read(&self.dir().join("pid"))
    }

    fn signal(&self, signal: &str) {
        let pid = self
            .pid()
            .unwrap_or_else(|| panic!("{} was never up", self.name));
        assert!(kill(signal, &pid), "{} (pid {pid}) does not run", self.name);
    }

    #[expect(
        clippy::print_stderr,
        reason = "the test runner shows it below the failure"
    )]
    fn show_complaints(&self) {
        let log = read(&self.dir().join("log")).unwrap_or_default();
        let loud = |line: &&str| line.contains("ERROR") || line.contains("WARN");
        let lines: Vec<_> = log.lines().filter(loud).collect();
        let last: Vec<_> = lines
            .iter()
            .rev()
            .take(5)
            .rev()
            .map(|line| line.chars().take(300).collect::<String>())
            .collect();
        eprintln!("--- last complaints of {}\n{}", self.name, last.join("\n"));
    }
}

/// In memory where there is room: each decision of the store waits for the disks of two replicas, which is a second and more
/// while a compiler writes to the same one, and then nothing is decided in time.
fn directory() -> PathBuf {
    let free = Command::new("df")
        .args(["--output=avail", "-k", MEMORY])
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok());
    let free_kib = free.and_then(|text| text.lines().last()?.trim().parse::<u64>().ok());
    let made = match free_kib {
        Some(kib) if kib >= MEMORY_MIN_KIB => tempfile::tempdir_in(MEMORY),
        _ => tempfile::tempdir(),
    };
    made.map(TempDir::keep).expect("a directory")
}

fn script(run: &Path, verb: &str) -> Command {
    let mut command = Command::new(root().join("tests/stack/stack"));
    command.arg(verb).stdin(Stdio::null());
    command
        .env("FENCEPOST_STACK_NODES", "3")
        .env("FENCEPOST_STACK_RUN", run)
        .env("FENCEPOST_STACK_WAIT_S", UP_DEADLINE_S.to_string());
    for fixed in ["KAFKA_PORT", "CQL_PORT", "HEAP"] {
        command.env_remove(format!("FENCEPOST_STACK_{fixed}"));
    }
    command
}

async fn run_to_end(mut command: Command) {
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    let Output { status, stderr, .. } = output.expect("no panic").expect("the script runs");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}

/// A process group of its own: Ctrl-C in the terminal ends the test, and that tells the guard.
fn guard(run: &Path) -> Child {
    let mut shell = Command::new("bash");
    shell.args(["-c", GUARD, "guard"]);
    shell.arg(root().join("tests/stack/stack")).arg(run);
    let settings = script(run, "kill");
    for (name, value) in settings.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("bash can be run")
}

fn kill(signal: &str, pid: &str) -> bool {
    let sent = Command::new("kill").args([signal, pid]).output();
    sent.expect("kill can be run").status.success()
}

/// A small file's text; none when it can not be read.
fn read(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

#[expect(
    clippy::print_stdout,
    reason = "whoever runs the tests shall know what did not run"
)]
fn say_skipped() {
    println!(
        "skipped: needs real nodes; FENCEPOST_TEST_STACK=required starts a set of three (so does `make test`)"
    );
}
