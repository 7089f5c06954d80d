//! The real Kafka and Cassandra, which `tests/stack/stack up` starts and the environment names.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

/// Addresses of the running stack.
#[derive(Clone, Debug)]
pub struct Stack {
    /// `host:port` of the broker.
    pub kafka: String,
    /// `host:port` of Cassandra.
    pub cql: String,
}

/// A broker of one test's own, that it may stop as it likes. Ends when dropped.
#[derive(Debug)]
pub struct OwnKafka {
    run: TempDir,
}

/// Two system tests at once would measure each other.
static TURN: Mutex<()> = Mutex::const_new(());

/// The stack; none when there is none and none is required. Then the test says so and ends.
///
/// # Panics
/// When `FENCEPOST_TEST_STACK=required` and the addresses are missing.
pub fn stack() -> Option<Stack> {
    match (
        variable("FENCEPOST_TEST_KAFKA"),
        variable("FENCEPOST_TEST_CQL"),
    ) {
        (Some(kafka), Some(cql)) => Some(Stack { kafka, cql }),
        _ => {
            let required = variable("FENCEPOST_TEST_STACK").as_deref() == Some("required");
            assert!(
                !required,
                "FENCEPOST_TEST_KAFKA and FENCEPOST_TEST_CQL are not set"
            );
            None
        }
    }
}

/// Waits until no other heavy test of this binary runs.
pub async fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().await
}

/// Where `tests/setup data` has put what it fetched.
pub fn cache() -> PathBuf {
    let root = root();
    variable("FENCEPOST_CACHE").map_or_else(|| root.join(".cache"), |dir| root.join(dir))
}

/// Root of the project.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

// === impl OwnKafka ===

impl OwnKafka {
    /// A running broker.
    ///
    /// # Panics
    /// With the script's output, when it does not start.
    pub async fn start() -> Self {
        let kafka = Self {
            run: tempfile::tempdir().expect("a directory"),
        };
        let mut command = kafka.script("up");
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let Output { status, stderr, .. } = output.expect("no panic").expect("the script runs");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        kafka
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.file("port"))
    }

    /// Stops it in its tracks: connections stay open, nothing is answered.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.file("pid")])
            .status();
        assert!(
            status.expect("kill can be run").success(),
            "kill {signal} of the broker failed"
        );
    }

    fn file(&self, name: &str) -> String {
        let path = self.run.path().join("kafka").join(name);
        let text = std::fs::read_to_string(&path).expect("the script has written it");
        text.trim().to_owned()
    }

    fn script(&self, verb: &str) -> Command {
        let mut command = Command::new(root().join("tests/stack/stack"));
        command
            .args([verb, "kafka"])
            .env("FENCEPOST_STACK_RUN", self.run.path());
        command
            .env_remove("FENCEPOST_STACK_KAFKA_PORT")
            .stdin(Stdio::null());
        command
    }
}

impl Drop for OwnKafka {
    fn drop(&mut self) {
        // A paused process does not hear TERM. It is gone when it never started.
        let pid = std::fs::read_to_string(self.run.path().join("kafka/pid"));
        if let Ok(pid) = pid {
            drop(Command::new("kill").args(["-CONT", pid.trim()]).output());
        }
        // Nothing is left to be done about a failure here.
        drop(self.script("down").output());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where the harness reads its environment"
)]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
