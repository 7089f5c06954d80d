//! The log in memory: the common suite, and the faults that simulations ask for.

use bytes::Bytes;
use event_log::{
    Consumer as _, Event, EventLog as _, LogError, ProduceError, Record, Watermark,
    conformance::Harness,
    conformance_suite,
    memory::{MemoryConsumer, MemoryLog},
};
use runtime::Clock;
use schemas::{DelayTier, Topic};
use std::time::Duration;
use tokio::time::{self, Instant};

const START_MS: i64 = 1_800_000_000_000;
const RECORD_BYTES_MAX: usize = 2 * 1024 * 1024;

conformance_suite!(Memory {
    clock: Clock::manual(START_MS),
    last: std::sync::Mutex::default()
});

/// A clock that is set by hand, and the log whose consumers are to look at it.
struct Memory {
    clock: Clock,
    last: std::sync::Mutex<Option<MemoryLog>>,
}

impl Harness for Memory {
    type Log = MemoryLog;

    async fn fresh(&self) -> MemoryLog {
        let log = MemoryLog::new(4, self.clock.clone());
        log.set_record_bytes_max(RECORD_BYTES_MAX);
        *self.last.lock().expect("no panic before") = Some(log.clone());
        log
    }

    async fn reopen(&self, log: MemoryLog) -> MemoryLog {
        log
    }

    async fn peer(&self, log: &MemoryLog) -> Option<MemoryLog> {
        Some(log.clone())
    }

    fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    async fn pass(&self, ms: u64) {
        self.clock.advance(i64::try_from(ms).expect("little"));
        if let Some(log) = &*self.last.lock().expect("no panic before") {
            log.wake();
        }
    }

    fn record_bytes_max(&self) -> usize {
        RECORD_BYTES_MAX
    }

    fn burst(&self) -> Option<(usize, usize)> {
        None
    }
}

fn record(topic: Topic, value: &'static str) -> Record {
    let (key, value) = (
        Bytes::from_static(b"key"),
        Bytes::from_static(value.as_bytes()),
    );
    Record {
        topic,
        key,
        value,
        headers: Vec::new(),
    }
}

fn log() -> (MemoryLog, Clock) {
    let clock = Clock::manual(START_MS);
    (MemoryLog::new(1, clock.clone()), clock)
}

async fn next_record(consumer: &mut MemoryConsumer) -> event_log::Received {
    loop {
        for event in consumer.next(1).await.expect("events") {
            if let Event::Record(record) = event {
                return record;
            }
        }
    }
}

#[tokio::test]
async fn produces_fail_as_asked() {
    let (log, _clock) = log();
    log.fail_produces(1, false);
    log.fail_produces(1, true);
    log.refuse_produces(1);
    let send = |value| log.produce(record(Topic::Webhooks, value));
    assert!(matches!(
        send("not written").await,
        Err(ProduceError::Unacknowledged(_))
    ));
    assert!(matches!(
        send("written").await,
        Err(ProduceError::Unacknowledged(_))
    ));
    assert_eq!(send("refused").await, Err(ProduceError::Busy));
    assert!(send("well").await.is_ok());
    log.set_unavailable(Some("gone"));
    assert!(matches!(
        send("gone").await,
        Err(ProduceError::Unacknowledged(_))
    ));
    assert!(log.ready().is_err());
    log.set_unavailable(None);
    assert_eq!(log.ready(), Ok(()));
    let values: Vec<_> = log
        .records(Topic::Webhooks)
        .into_iter()
        .map(|r| r.value)
        .collect();
    assert_eq!(values, ["written", "well"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_produce_resolves_late() {
    let (log, _clock) = log();
    log.delay_produces(1, Duration::from_secs(3));
    let started = Instant::now();
    assert!(log.produce(record(Topic::Webhooks, "late")).await.is_ok());
    assert_eq!(started.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_lost_partition_comes_back_under_a_new_epoch_and_commits_nothing_old() {
    let (log, _clock) = log();
    log.produce(record(Topic::Webhooks, "first"))
        .await
        .expect("acknowledged");
    log.skip_offsets(Topic::Webhooks, 0, 10);
    log.produce(record(Topic::Webhooks, "second"))
        .await
        .expect("acknowledged");
    let mut consumer = log.consumer().await.expect("a consumer");
    let first = next_record(&mut consumer).await;
    let second = next_record(&mut consumer).await;
    assert_eq!((first.offset, second.offset), (0, 11), "offsets have gaps");
    log.revoke(0, true);
    let mut events = consumer.next(10).await.expect("events").into_iter();
    let Some(Event::Revoked(revoked)) = events.next() else {
        panic!("revoked first")
    };
    assert!(revoked.lost);
    let watermark = |epoch| Watermark {
        topic: Topic::Webhooks,
        partition: 0,
        epoch,
        next_offset: 12,
    };
    revoked.release.done(vec![watermark(first.epoch)]);
    consumer.commit(vec![watermark(first.epoch)]);
    assert_eq!(log.committed(Topic::Webhooks, 0), 0);
    let again = next_record(&mut consumer).await;
    assert_eq!(again.value, "first");
    assert!(again.epoch > first.epoch);
    consumer.commit(vec![watermark(again.epoch)]);
    assert_eq!(log.committed(Topic::Webhooks, 0), 12);
}

#[tokio::test(start_paused = true)]
async fn a_revocation_that_nobody_answers_ends_all_the_same() {
    let (log, _clock) = log();
    let mut consumer = log.consumer().await.expect("a consumer");
    let assigned = consumer.next(0).await.expect("events");
    assert!(matches!(assigned.as_slice(), [Event::Assigned { .. }]));
    log.revoke(0, false);
    let kept = consumer.next(0).await.expect("events");
    assert!(matches!(kept.as_slice(), [Event::Revoked(_)]));
    let again = time::timeout(Duration::from_secs(60), consumer.next(0)).await;
    let again = again.expect("assigned again").expect("events");
    assert!(matches!(again.as_slice(), [Event::Assigned { .. }]));
}

#[tokio::test]
async fn a_crashed_consumer_leaves_its_partitions_to_the_others() {
    let log = MemoryLog::new(4, Clock::manual(START_MS));
    let mut one = log.consumer().await.expect("a consumer");
    assert_eq!(one.next(0).await.expect("events").len(), 4);
    drop(one);
    let mut two = log.consumer().await.expect("a consumer");
    assert_eq!(two.next(0).await.expect("events").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn paused_time_wakes_a_delay_tier() {
    let (log, clock) = log();
    log.produce(record(Topic::Delay(DelayTier::M10), "due"))
        .await
        .expect("acknowledged");
    let mut consumer = log.consumer().await.expect("a consumer");
    let waiting = tokio::spawn(async move { next_record(&mut consumer).await });
    // Both clocks of a simulation, step by step.
    while !waiting.is_finished() {
        time::sleep(Duration::from_millis(100)).await;
        clock.advance(100);
    }
    let record = waiting.await.expect("no panic");
    let waited_ms = clock.now_ms() - record.appended_at_ms;
    assert!((600_000..602_000).contains(&waited_ms), "{waited_ms}");
}

#[tokio::test]
async fn reads_fail_as_asked() {
    let (log, _clock) = log();
    let mut consumer = log.consumer().await.expect("a consumer");
    log.fail_reads(1);
    assert!(matches!(
        consumer.next(1).await,
        Err(LogError::Unavailable(_))
    ));
    assert!(consumer.next(1).await.is_ok());
}
