//! The embedded log: the common suite, and what only a directory on a disk can get wrong.

use event_log::{
    config::EmbeddedConfig, conformance::Harness, conformance_suite, embedded::EmbeddedLog,
};
use runtime::Clock;
use std::sync::Mutex;
use tempfile::TempDir;

const MIB: usize = 1024 * 1024;
const START_MS: i64 = 1_800_000_000_000;

conformance_suite!(Embedded::new());

/// A directory and a clock that is set by hand.
struct Embedded {
    clock: Clock,
    config: Mutex<EmbeddedConfig>,
    dirs: Mutex<Vec<TempDir>>,
}

// === impl Embedded ===

impl Embedded {
    fn new() -> Self {
        let config = EmbeddedConfig {
            record_bytes_max: 2 * MIB,
            queue_bytes_max: 8 * MIB,
            ..EmbeddedConfig::default()
        };
        let dirs = Mutex::default();
        Self {
            clock: Clock::manual(START_MS),
            config: Mutex::new(config),
            dirs,
        }
    }

    fn config(&self) -> EmbeddedConfig {
        self.config.lock().expect("no panic before").clone()
    }

    fn open(&self) -> EmbeddedLog {
        EmbeddedLog::open(&self.config(), self.clock.clone()).expect("opens")
    }
}

impl Harness for Embedded {
    type Log = EmbeddedLog;

    async fn fresh(&self) -> EmbeddedLog {
        let dir = tempfile::tempdir().expect("a directory");
        self.config.lock().expect("no panic before").dir = dir.path().join("log");
        self.dirs.lock().expect("no panic before").push(dir);
        self.open()
    }

    async fn reopen(&self, log: EmbeddedLog) -> EmbeddedLog {
        drop(log);
        self.open()
    }

    async fn peer(&self, _log: &EmbeddedLog) -> Option<EmbeddedLog> {
        None
    }

    fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    async fn pass(&self, ms: u64) {
        self.clock.advance(i64::try_from(ms).expect("little"));
    }

    fn record_bytes_max(&self) -> usize {
        2 * MIB
    }

    fn burst(&self) -> Option<(usize, usize)> {
        Some((40, MIB))
    }
}
