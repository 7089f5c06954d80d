//! The suite that every implementation passes, each promise on topics of its own.

use crate::stand::{Stand, brokers};
use event_log::{conformance::Harness, conformance_suite, kafka::KafkaLog};
use runtime::Clock;
use std::{path::Path, sync::Mutex, time::Duration};

const PARTITIONS: u32 = 3;
const RECORD_BYTES_MAX: usize = 2 * 1024 * 1024;
const QUEUE_RECORDS_MAX: usize = 400;

conformance_suite!(match Brokers::new() {
    Some(brokers) => brokers,
    None => return,
});

/// A broker, and the topics in use.
struct Brokers {
    clock: Clock,
    stand: Mutex<Option<Stand>>,
}

impl Brokers {
    fn new() -> Option<Self> {
        brokers()?;
        Some(Self {
            clock: Clock::system(),
            stand: Mutex::default(),
        })
    }

    async fn connect(&self) -> KafkaLog {
        let config = {
            let stand = self.stand.lock().expect("no panic before");
            stand.as_ref().expect("a fresh log").config.clone()
        };
        let log = KafkaLog::connect(&config, Path::new("."), self.clock.clone()).await;
        log.expect("connected")
    }
}

impl Harness for Brokers {
    type Log = KafkaLog;

    async fn fresh(&self) -> KafkaLog {
        let stand = Stand::with(PARTITIONS, |config| {
            config.record_bytes_max = RECORD_BYTES_MAX;
            config.queue_records_max = QUEUE_RECORDS_MAX;
        });
        let stand = stand.await.expect("a broker");
        let log = stand.log.clone();
        *self.stand.lock().expect("no panic before") = Some(stand);
        log
    }

    async fn reopen(&self, log: KafkaLog) -> KafkaLog {
        drop(log);
        self.connect().await
    }

    async fn peer(&self, _log: &KafkaLog) -> Option<KafkaLog> {
        Some(self.connect().await)
    }

    fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    async fn pass(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    fn record_bytes_max(&self) -> usize {
        RECORD_BYTES_MAX
    }

    fn burst(&self) -> Option<(usize, usize)> {
        Some((10 * QUEUE_RECORDS_MAX, 1_000))
    }
}
