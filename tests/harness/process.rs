//! The real binary as a process: start, readiness, kill -9, SIGTERM, and its log on failure.

use crate::{http, stack::variable, until};
use std::{
    env::current_exe,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

/// A process has this long to become ready; a group of dispatchers may have to settle first.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// Lines of the log that are shown when a test fails.
const LOG_LINES_SHOWN: usize = 20;
/// Characters of such a line.
const LOG_LINE_CHARS_SHOWN: usize = 400;

/// Subcommands that run until they are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Standalone,
    Ingest,
    Dispatcher,
}

/// A running process. Killed when dropped.
#[derive(Debug)]
pub struct Process {
    role: Role,
    number: usize,
    child: Child,
    log: PathBuf,
    ingest_port: u16,
    admin_port: u16,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; none when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Starts a role. Its output goes to a file beside the config.
pub(crate) fn launch(
    role: Role,
    number: usize,
    config: &Path,
    (ingest_port, admin_port): (u16, u16),
) -> Process {
    let log = config.with_extension("log");
    let output = File::create(&log).expect("the log can be written");
    let errors = output.try_clone().expect("a second handle of the log");
    let child = command(&[role.name()], config)
        .stdout(output)
        .stderr(errors)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", binary().display()));
    Process {
        role,
        number,
        child,
        log,
        ingest_port,
        admin_port,
    }
}

/// Runs a command to its end.
pub(crate) async fn run(arguments: &[&str], config: &Path, deadline: Duration) -> Finished {
    let files = [config.with_extension("out"), config.with_extension("err")];
    let [stdout, stderr] = files
        .each_ref()
        .map(|path| File::create(path).expect("writable"));
    let mut child = command(arguments, config)
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", binary().display()));
    let status = ended(&mut child, deadline).await;
    if status.is_none() {
        end(&mut child);
    }
    let [stdout, stderr] = files.map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let Some(status) = status else {
        panic!("{arguments:?} did not end within {deadline:?}\n{stdout}{stderr}");
    };
    Finished {
        code: status.code(),
        stdout,
        stderr,
    }
}

/// Only what a process needs of our environment: a `FENCEPOST_…` variable of the developer's would be a setting.
fn command(arguments: &[&str], config: &Path) -> Command {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .arg("--config")
        .arg(config)
        .current_dir(config.parent().unwrap_or(config))
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", variable("PATH").unwrap_or_default())
        .env("RUST_BACKTRACE", "1")
        .env(
            "RUST_LOG",
            variable("FENCEPOST_TEST_LOG").unwrap_or_else(|| "info".into()),
        );
    command
}

/// `FENCEPOST_BIN`, or the binary that was built beside this test.
///
/// # Panics
/// When there is none.
pub fn binary() -> PathBuf {
    if let Some(path) = variable("FENCEPOST_BIN") {
        return PathBuf::from(path);
    }
    let test = current_exe().expect("a test has a path");
    // target/<profile>/deps/<test>-<hash>
    let found = test
        .ancestors()
        .skip(1)
        .take(3)
        .map(|dir| dir.join("fencepost"));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "no fencepost beside {}: build it with `cargo build --workspace --bins`, or name it in FENCEPOST_BIN",
            test.display()
        )
    })
}

// === impl Role ===

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Ingest => "ingest",
            Self::Dispatcher => "dispatcher",
        }
    }
}

// === impl Process ===

impl Process {
    /// Which process of its site it is; what stands for `{process}` in a destination's URL.
    pub fn number(&self) -> usize {
        self.number
    }

    /// URL of the source `github` at this process.
    pub fn hook_url(&self) -> String {
        format!("http://127.0.0.1:{}/hooks/github", self.ingest_port)
    }

    /// Port of its ingest.
    pub fn ingest_port(&self) -> u16 {
        self.ingest_port
    }

    /// Where it says whether it is ready.
    pub fn ready_url(&self) -> String {
        format!("http://127.0.0.1:{}/readyz", self.admin_port)
    }

    /// Waits for 200 on `/readyz`.
    ///
    /// # Panics
    /// With the log, when the process ends or is not ready in time.
    pub async fn wait_ready(&mut self) {
        let url = self.ready_url();
        let what = format!("{} is ready", self.role.name());
        until(READY_DEADLINE, &what, async || {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                panic!(
                    "{} ended with {status} instead of becoming ready",
                    self.role.name()
                );
            }
            let answer = http::client().get(&url).send().await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
    }

    /// Whether it says that it is ready.
    pub async fn is_ready(&self) -> bool {
        let answer = http::client().get(self.ready_url()).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// How it ended, if it has.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// One value of `/metrics`, summed over its labels; 0 when it is not there.
    pub async fn metric(&self, name: &str) -> f64 {
        let url = format!("http://127.0.0.1:{}/metrics", self.admin_port);
        let answer = http::client()
            .get(&url)
            .send()
            .await
            .expect("metrics are served");
        let text = answer.text().await.expect("metrics are text");
        text.lines()
            .filter(|line| line.split(['{', ' ']).next() == Some(name))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// Resident memory, KiB, as Linux counts it.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn resident_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.unwrap_or_else(|| panic!("{path} names no VmRSS"))
    }

    /// kill -9. Gives the time, milliseconds since the Unix epoch.
    pub fn kill_9(&mut self) -> i64 {
        // Earlier than the signal, so that nothing that arrives after it counts as before it.
        let at_ms = crate::now_ms();
        end(&mut self.child);
        at_ms
    }

    /// SIGSTOP: it stands still, its connections stay open.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT, after [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(
            sent.expect("kill can be run").success(),
            "{} can not be signalled",
            self.role.name()
        );
    }

    /// SIGTERM; gives the exit status.
    ///
    /// # Panics
    /// When it has not ended at `deadline`.
    pub async fn terminate(&mut self, deadline: Duration) -> ExitStatus {
        self.signal("-TERM");
        let status = ended(&mut self.child, deadline).await;
        status.unwrap_or_else(|| {
            panic!(
                "{} has not ended {deadline:?} after SIGTERM",
                self.role.name()
            )
        })
    }

    /// Waits for an end of its own accord.
    ///
    /// # Panics
    /// When it has not ended at `deadline`.
    pub async fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let status = ended(&mut self.child, deadline).await;
        status.unwrap_or_else(|| panic!("{} has not ended within {deadline:?}", self.role.name()))
    }

    /// All that it has written so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    #[expect(
        clippy::print_stderr,
        reason = "the test runner shows it below the failure"
    )]
    fn drop(&mut self) {
        end(&mut self.child);
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let (earlier, last) = lines.split_at(lines.len().saturating_sub(LOG_LINES_SHOWN));
            // Under load the cause scrolls away before the test notices.
            let loud = |line: &&&str| line.contains("WARN") || line.contains("ERROR");
            let shown: Vec<String> = earlier
                .iter()
                .filter(loud)
                .take(LOG_LINES_SHOWN)
                .chain(last)
                .map(|line| line.chars().take(LOG_LINE_CHARS_SHOWN).collect())
                .collect();
            let shown = shown.join("\n");
            eprintln!(
                "--- warnings and last lines of {} ({})\n{shown}",
                self.role.name(),
                self.log.display()
            );
        }
    }
}

// === impl Finished ===

impl Finished {
    /// Panics with the output unless it ended with 0.
    pub fn assert_success(&self) {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
    }
}

pub(crate) async fn ended(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let end = tokio::time::Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if tokio::time::Instant::now() >= end {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn end(child: &mut Child) {
    // It may have ended by itself.
    drop(child.kill());
    drop(child.wait());
}
