//! The embedded log: the common suite, and what only a directory on a disk can get wrong.

use bytes::Bytes;
use event_log::{
    Consumer as _, Event, EventLog as _, LogError, ProduceError, Received, Record, Room, Watermark,
    config::EmbeddedConfig,
    conformance::Harness,
    conformance_suite,
    embedded::{EmbeddedConsumer, EmbeddedLog, peek::Peek},
};
use futures::future::join_all;
use runtime::Clock;
use rusqlite::Connection;
use schemas::{DelayTier, Topic};
use std::{path::Path, sync::Mutex, time::Duration};
use tempfile::TempDir;
use tokio::time::{self, Instant};

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

const MINUTE_MS: i64 = 60_000;
const DAY_MS: i64 = 24 * 3_600 * 1_000;
const PATIENCE: Duration = Duration::from_secs(60);

fn record(topic: Topic, value: impl Into<Bytes>) -> Record {
    let headers = vec![("name".to_owned(), Bytes::from_static(b"value"))];
    Record {
        topic,
        key: Bytes::from_static(b"key"),
        value: value.into(),
        headers,
    }
}

async fn produce(log: &EmbeddedLog, topic: Topic, count: usize) -> u32 {
    let sent = (0..count).map(|n| log.produce(record(topic, n.to_string())));
    let appended = join_all(sent).await.pop().expect("at least one");
    appended.expect("acknowledged").partition
}

async fn receive(consumer: &mut EmbeddedConsumer, count: usize) -> Vec<Received> {
    let mut records = Vec::new();
    while records.len() < count {
        let events = time::timeout(PATIENCE, consumer.next(100))
            .await
            .expect("in time");
        for event in events.expect("events") {
            if let Event::Record(record) = event {
                records.push(record);
            }
        }
    }
    records
}

/// What was read of full partitions is kept only up to a bound, and read again when there is room.
#[tokio::test]
async fn large_records_of_full_partitions_are_read_again() {
    const EACH: usize = 14;
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let keys: Vec<_> = (0..)
        .map(|n| format!("key-{n}"))
        .scan([false; 2], |seen, key| {
            let partition = schemas::partition_for(key.as_bytes(), log.partitions());
            let new = seen
                .get_mut(partition as usize)
                .is_some_and(|seen| !std::mem::replace(seen, true));
            Some(new.then_some(key))
        })
        .flatten()
        .take(2)
        .collect();
    for key in &keys {
        for n in 0..EACH {
            let mut value = vec![7; 2 * MIB - 100];
            value[0] = u8::try_from(n).expect("few");
            let record = Record {
                key: key.clone().into(),
                headers: Vec::new(),
                ..record(Topic::Webhooks, value)
            };
            log.produce(record).await.expect("acknowledged");
        }
    }
    let mut consumer = log.consumer().await.expect("a consumer");
    let mut seen = Vec::new();
    // One of each partition, then none: the rest of what was read lies there, more than one answer of it.
    for (zero, one) in [(1, 0), (0, 1), (0, 0), (EACH, 0), (0, EACH), (EACH, EACH)] {
        let mut room = Room::new(100);
        room.limit(0, zero);
        room.limit(1, one);
        for _ in 0..4 {
            let next = time::timeout(Duration::from_millis(300), consumer.next(room.clone()));
            let Ok(events) = next.await else { continue };
            for event in events.expect("events") {
                if let Event::Record(record) = event {
                    assert!(room.take(record.partition), "no room for it");
                    seen.push((record.partition, record.value[0]));
                }
            }
        }
    }
    for partition in [0, 1] {
        let of = seen.iter().filter(|(of, _)| *of == partition);
        let values: Vec<_> = of.map(|(_, value)| usize::from(*value)).collect();
        assert_eq!(values, (0..EACH).collect::<Vec<_>>(), "{partition}");
    }
}

async fn offsets(log: &EmbeddedLog, topic: Topic, partition: u32) -> (Option<i64>, i64) {
    let page = log.read(topic, partition, 0, 1).await.expect("a page");
    let end = log
        .read(topic, partition, i64::MAX, 1)
        .await
        .expect("a page")
        .next_offset;
    (page.records.first().map(|record| record.offset), end)
}

/// Asks again and again until the answer is right; nothing here tells when it will be.
async fn eventually<T: PartialEq + std::fmt::Debug>(expected: T, ask: impl AsyncFn() -> T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = ask().await;
        if answer == expected {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{answer:?} instead of {expected:?}"
        );
        time::sleep(Duration::from_millis(10)).await;
    }
}

fn committed(dir: &Path) -> i64 {
    let conn = Connection::open(dir.join("log.sqlite")).expect("opens");
    conn.query_row("SELECT max(committed) FROM slot", (), |row| row.get(0))
        .expect("a number")
}

#[tokio::test]
async fn a_second_opener_is_refused_and_told_why() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let refused = EmbeddedLog::open(&harness.config(), Clock::system());
    let Err(LogError::Fatal(message)) = refused else {
        panic!("{refused:?}")
    };
    let dir = harness.config().dir;
    assert!(message.contains(&dir.display().to_string()), "{message}");
    assert!(
        message.contains("another process has this directory open"),
        "{message}"
    );
    drop(log);
    assert!(EmbeddedLog::open(&harness.config(), Clock::system()).is_ok());
}

#[tokio::test]
async fn a_look_sees_what_is_there_while_the_log_is_open_and_after() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let config = harness.config();
    let partition = produce(&log, Topic::DeadLetters, 5).await;
    let look = async || {
        let peek = Peek::open(&config).expect("opens");
        assert_eq!(peek.partitions(), config.partitions);
        let mut offsets = Vec::new();
        let mut from_offset = 0;
        loop {
            let page = peek
                .read(Topic::DeadLetters, partition, from_offset, 2)
                .await;
            let page = page.expect("a page");
            offsets.extend(page.records.iter().map(|record| record.offset));
            if page.at_end {
                let beyond = peek.read(Topic::DeadLetters, config.partitions, 0, 2).await;
                assert!(matches!(beyond, Err(LogError::Fatal(_))), "{beyond:?}");
                return offsets;
            }
            from_offset = page.next_offset;
        }
    };
    assert_eq!(look().await, [0, 1, 2, 3, 4]);
    produce(&log, Topic::DeadLetters, 1).await;
    assert_eq!(look().await, [0, 1, 2, 3, 4, 5]);
    drop(log);
    assert_eq!(look().await, [0, 1, 2, 3, 4, 5]);
    drop(harness.open());

    let other = EmbeddedConfig {
        partitions: config.partitions + 1,
        ..config.clone()
    };
    assert!(matches!(Peek::open(&other), Err(LogError::Fatal(_))));
    let nowhere = EmbeddedConfig {
        dir: config.dir.join("nowhere"),
        ..config.clone()
    };
    assert!(matches!(Peek::open(&nowhere), Err(LogError::Fatal(_))));
    assert!(!nowhere.dir.exists(), "looking makes nothing");
}

#[tokio::test]
async fn what_does_not_fit_the_directory_is_said() {
    let harness = Embedded::new();
    drop(harness.fresh().await);
    let mut config = harness.config();
    config.partitions = 8;
    let refused = EmbeddedLog::open(&config, Clock::system());
    let Err(LogError::Fatal(message)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        message.contains("4 partitions") && message.contains('8'),
        "{message}"
    );
    let conn = Connection::open(config.dir.join("log.sqlite")).expect("opens");
    conn.execute("UPDATE meta SET value = 99 WHERE name = 'format'", ())
        .expect("written");
    let refused = EmbeddedLog::open(&harness.config(), Clock::system());
    let Err(LogError::Fatal(message)) = refused else {
        panic!("{refused:?}")
    };
    assert!(message.contains("format 99"), "{message}");
    std::fs::write(config.dir.join("log.sqlite"), vec![b'x'; 8_192]).expect("written");
    let refused = EmbeddedLog::open(&harness.config(), Clock::system());
    assert!(matches!(refused, Err(LogError::Fatal(_))), "{refused:?}");
    config.dir = config.dir.join("log.sqlite");
    assert!(matches!(
        EmbeddedLog::open(&config, Clock::system()),
        Err(LogError::Fatal(_))
    ));
}

/// The files as they are at any moment are what a killed process leaves.
#[tokio::test]
async fn a_crash_loses_nothing_acknowledged() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let partition = produce(&log, Topic::Webhooks, 500).await;
    let mut consumer = log.consumer().await.expect("a consumer");
    let epoch = receive(&mut consumer, 500).await[0].epoch;
    let watermark = Watermark {
        topic: Topic::Webhooks,
        partition,
        epoch,
        next_offset: 123,
    };
    consumer.commit(vec![watermark]);
    let dir = harness.config().dir;
    eventually(123, async || committed(&dir)).await;
    let mut left = harness.config();
    left.dir = dir.join("left");
    std::fs::create_dir(&left.dir).expect("a directory");
    for name in ["log.sqlite", "log.sqlite-wal"] {
        std::fs::copy(dir.join(name), left.dir.join(name)).expect("copied");
    }
    let log = EmbeddedLog::open(&left, harness.clock.clone()).expect("opens");
    let mut consumer = log.consumer().await.expect("a consumer");
    let records = receive(&mut consumer, 377).await;
    assert_eq!(records[0].offset, 123);
    assert_eq!(
        log.produce(record(Topic::Webhooks, "x"))
            .await
            .expect("written")
            .offset,
        500
    );
}

/// Finished and old enough: gone. Not finished, not old enough: still there. Offsets go on all the same.
#[tokio::test]
async fn retention_takes_only_what_is_finished_and_old() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let tier = Topic::Delay(DelayTier::S5);
    let partition = produce(&log, Topic::Webhooks, 600).await;
    for topic in [tier, Topic::DeadLetters] {
        produce(&log, topic, 20).await;
    }
    harness.pass(5_000).await;
    let mut consumer = log.consumer().await.expect("a consumer");
    let epoch = receive(&mut consumer, 620).await[0].epoch;
    let watermark = |topic, next_offset| Watermark {
        topic,
        partition,
        epoch,
        next_offset,
    };
    consumer
        .close(
            vec![watermark(Topic::Webhooks, 550), watermark(tier, 20)],
            PATIENCE,
        )
        .await;
    harness.clock.advance(8 * DAY_MS);
    eventually((Some(550), 600), async || {
        offsets(&log, Topic::Webhooks, partition).await
    })
    .await;
    eventually((None, 20), async || offsets(&log, tier, partition).await).await;
    assert_eq!(
        offsets(&log, Topic::DeadLetters, partition).await,
        (Some(0), 20)
    );
    harness.clock.advance(23 * DAY_MS);
    eventually((None, 20), async || {
        offsets(&log, Topic::DeadLetters, partition).await
    })
    .await;
    let log = harness.reopen(log).await;
    let mut consumer = log.consumer().await.expect("a consumer");
    assert_eq!(receive(&mut consumer, 50).await[0].offset, 550);
    assert_eq!(
        log.produce(record(tier, "x"))
            .await
            .expect("written")
            .offset,
        20
    );
}

/// Finished records of a tier go ten minutes after they were due; others stay, and so do finished webhooks.
#[tokio::test]
async fn a_tier_keeps_what_is_finished_for_minutes_only() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let tier = Topic::Delay(DelayTier::S5);
    let partition = produce(&log, Topic::Webhooks, 20).await;
    produce(&log, tier, 300).await;
    harness.clock.advance(5 * MINUTE_MS);
    produce(&log, tier, 10).await;
    harness.clock.advance(5_000);
    finish(
        &log,
        &[(Topic::Webhooks, partition, 20), (tier, partition, 305)],
    )
    .await;
    harness.clock.advance(5 * MINUTE_MS + 1);
    eventually((Some(300), 310), async || {
        offsets(&log, tier, partition).await
    })
    .await;
    harness.clock.advance(5 * MINUTE_MS);
    eventually((Some(305), 310), async || {
        offsets(&log, tier, partition).await
    })
    .await;
    harness.clock.advance(DAY_MS);
    finish(&log, &[(tier, partition, 308)]).await;
    harness.clock.advance(MINUTE_MS);
    eventually((Some(308), 310), async || {
        offsets(&log, tier, partition).await
    })
    .await;
    assert_eq!(
        offsets(&log, Topic::Webhooks, partition).await,
        (Some(0), 20)
    );
}

/// Deferrals write what waits anew, again and again: the file must not grow with their number.
#[tokio::test]
async fn a_tier_that_is_written_anew_takes_no_more_room() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let tier = Topic::Delay(DelayTier::S30);
    let conn = Connection::open(harness.config().dir.join("log.sqlite")).expect("opens");
    let pages = || -> i64 {
        conn.query_row("PRAGMA page_count", (), |row| row.get(0))
            .expect("a number")
    };
    let mut first = 0;
    for round in 1..=5 {
        let sent = (0..100).map(|_| log.produce(record(tier, vec![b'x'; 10_000])));
        let appended = join_all(sent).await.pop().expect("at least one");
        let partition = appended.expect("acknowledged").partition;
        harness.clock.advance(30_000);
        finish(&log, &[(tier, partition, 100 * round)]).await;
        harness.clock.advance(10 * MINUTE_MS + 1);
        eventually((None, 100 * round), async || {
            offsets(&log, tier, partition).await
        })
        .await;
        if round == 1 {
            first = pages();
        }
    }
    assert!(first > 200, "{first}");
    assert!(pages() < first + 50, "{first} grew to {}", pages());
}

/// Commits watermarks under an ownership of its own.
async fn finish(log: &EmbeddedLog, finished: &[(Topic, u32, i64)]) {
    let mut consumer = log.consumer().await.expect("a consumer");
    let events = consumer.next(0).await.expect("assigned");
    let Some(Event::Assigned { epoch, .. }) = events.first() else {
        panic!("{events:?}")
    };
    let watermarks = finished
        .iter()
        .map(|(topic, partition, next_offset)| Watermark {
            topic: *topic,
            partition: *partition,
            epoch: *epoch,
            next_offset: *next_offset,
        });
    consumer.close(watermarks.collect(), PATIENCE).await;
}

/// A disk that can not be written: said to the producer and by ready, until it can again; nothing acknowledged is lost.
#[tokio::test]
async fn a_failing_disk_is_said_and_heals() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let partition = produce(&log, Topic::Webhooks, 1).await;
    // SQLite's lock stands in for the disk: as long as somebody else holds it, no transaction begins.
    let conn = Connection::open(harness.config().dir.join("log.sqlite")).expect("opens");
    conn.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let failed = log.produce(record(Topic::Webhooks, "x")).await;
    assert!(
        matches!(failed, Err(ProduceError::Unacknowledged(_))),
        "{failed:?}"
    );
    assert!(matches!(log.ready(), Err(LogError::Unavailable(_))));
    conn.execute_batch("ROLLBACK").expect("unlocked");
    eventually(Ok(()), async || log.ready()).await;
    let appended = log
        .produce(record(Topic::Webhooks, "y"))
        .await
        .expect("written");
    assert_eq!((appended.partition, appended.offset), (partition, 1));
}

#[tokio::test]
async fn a_clock_that_goes_back_does_not_reorder_a_tier() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let tier = Topic::Delay(DelayTier::S5);
    let partition = produce(&log, tier, 1).await;
    harness.clock.advance(-60_000);
    produce(&log, tier, 1).await;
    let log = harness.reopen(log).await;
    produce(&log, tier, 1).await;
    let page = log.read(tier, partition, 0, 10).await.expect("a page");
    let times: Vec<_> = page
        .records
        .iter()
        .map(|record| record.appended_at_ms)
        .collect();
    assert_eq!(times, [START_MS; 3]);
}

/// Under load many records share a transaction, and a watermark rides along: all of it in far fewer syncs than records.
#[tokio::test]
async fn records_share_transactions() {
    let harness = Embedded::new();
    let log = harness.fresh().await;
    let before = transactions(&harness.config().dir);
    produce(&log, Topic::Webhooks, 5_000).await;
    let used = transactions(&harness.config().dir) - before;
    assert!(
        (1..500).contains(&used),
        "{used} transactions for 5000 records"
    );
}

/// SQLite counts the transactions that change the file in the WAL; its frames that end one carry the size of the file.
fn transactions(dir: &Path) -> usize {
    let wal = std::fs::read(dir.join("log.sqlite-wal")).expect("a WAL");
    let frames = wal.get(32..).unwrap_or_default().chunks(24 + 4_096);
    frames
        .filter(|frame| frame.get(4..8).is_some_and(|size| size != [0; 4]))
        .count()
}
