//! The Kafka log on a real broker: what only brokers, groups and killed processes can get wrong.
//!
//! `FENCEPOST_TEST_KAFKA=host:port` names a broker; every test has its own topics and group there. Without it the tests
//! say so and pass, unless `FENCEPOST_TEST_STACK=required`.
#![cfg(feature = "kafka")]

use bytes::Bytes;
use event_log::{
    Consumer as _, Epoch, Event, EventLog as _, LogError, ProduceError, Received, Record,
    Watermark,
    config::{GroupProtocol, KafkaConfig},
    kafka::{KafkaConsumer, KafkaLog, topics::Topics},
};
use futures::future::join_all;
use runtime::Clock;
use schemas::{DelayTier, Topic, partition_for};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(60);
const ROOM: usize = 100;
const S5: Topic = Topic::Delay(DelayTier::S5);
/// Set in the process that is to be killed: the topic prefix.
const CHILD: &str = "FENCEPOST_TEST_CHILD";

// === records ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_come_back_as_they_were_from_the_partition_of_their_key() {
    let Some(stand) = Stand::new(4).await else {
        return;
    };
    let mut by_partition: BTreeMap<u32, Vec<(i64, Record)>> = BTreeMap::new();
    let records: Vec<_> = (0..200).map(|n| record(Topic::Webhooks, n)).collect();
    let produced = join_all(
        records
            .iter()
            .map(|record| stand.log.produce(record.clone())),
    )
    .await;
    for (record, appended) in records.into_iter().zip(produced) {
        let appended = appended.expect("acknowledged");
        assert_eq!(appended.partition, partition_for(&record.key, 4));
        let partition = by_partition.entry(appended.partition).or_default();
        partition.push((appended.offset, record));
    }
    for (partition, mut records) in by_partition {
        records.sort_by_key(|(offset, _)| *offset);
        let mut read = Vec::new();
        let mut from = -5;
        loop {
            let page = stand.log.read(Topic::Webhooks, partition, from, 20).await;
            let page = page.expect("a page");
            assert!(page.records.len() <= 20);
            read.extend(page.records);
            from = page.next_offset;
            if page.at_end {
                break;
            }
        }
        assert_eq!(read.len(), records.len());
        for (read, (offset, record)) in read.iter().zip(&records) {
            assert_eq!((read.offset, read.epoch), (*offset, Epoch(0)));
            assert_eq!((&read.key, &read.value), (&record.key, &record.value));
            assert_eq!(read.headers, record.headers);
        }
        let end = stand
            .log
            .read(Topic::Webhooks, partition, i64::MAX, 20)
            .await;
        let end = end.expect("a page");
        assert!(end.at_end && end.records.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_record_fits_and_a_larger_one_is_refused() {
    let Some(stand) = Stand::with(1, |config| config.record_bytes_max = 8 * 1024 * 1024).await
    else {
        return;
    };
    let mut large = record(Topic::Webhooks, 0);
    // Does not compress.
    let mut state = 1_u32;
    let noise = (0..8 * 1024 * 1024 - 100).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    });
    large.value = noise.collect::<Vec<_>>().into();
    stand
        .log
        .produce(large.clone())
        .await
        .expect("acknowledged");
    let mut member = stand.member().await;
    let received = member.take(1).await;
    assert!(received[0].value == large.value);
    large.value = vec![0; 8 * 1024 * 1024].into();
    let refused = stand.log.produce(large).await;
    assert!(matches!(refused, Err(ProduceError::TooLarge { .. })));
    member.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delay_records_come_when_due_and_go_on_behind_their_commit() {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    let mut member = stand.member().await;
    stand.produce(S5, 0..40).await;
    stand.produce(Topic::Webhooks, 0..5).await;
    let received = member.take(45).await;
    let last_main = received
        .iter()
        .rposition(|record| record.topic == Topic::Webhooks);
    assert_eq!(last_main, Some(4), "webhooks do not wait for delay records");
    // `take` looks at the clock for each record: see there.
    for partition in 0..2 {
        let offsets: Vec<_> = received
            .iter()
            .filter(|record| record.topic == S5 && record.partition == partition)
            .map(|record| record.offset)
            .collect();
        assert!(offsets.is_sorted());
    }
    for record in &received {
        member.finish(record, record.offset + 1);
    }
    stand.produce(S5, 40..43).await;
    member.close().await;
    let mut member = stand.member().await;
    let rest = member.take(3).await;
    assert_eq!(keys(&rest), (40..43).map(key).collect());
    member.close().await;
}

// === ownership ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classic_members_hand_partitions_over_at_their_watermarks() {
    hand_over(GroupProtocol::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_protocol_members_hand_partitions_over_at_their_watermarks() {
    hand_over(GroupProtocol::Consumer).await;
}

/// What the first member finished in its last moment, told only in answer to the revocation, does not come again.
async fn hand_over(protocol: GroupProtocol) {
    let Some(stand) = Stand::with(4, |config| config.group_protocol = protocol).await else {
        return;
    };
    let mut first = stand.member().await;
    stand.produce(Topic::Webhooks, 0..100).await;
    let received = first.take(100).await;
    for record in &received {
        first.release_with(record, record.offset + 1);
    }
    let mut second = stand.member().await;
    let deadline = Instant::now() + DEADLINE;
    while second.owned.is_empty() || first.owned.len() == 4 {
        assert!(Instant::now() < deadline, "no hand-over: {:?}", first.owned);
        first.step().await;
        second.step().await;
    }
    stand.produce(Topic::Webhooks, 100..200).await;
    while first.records.len() + second.records.len() < 100 {
        assert!(Instant::now() < deadline, "records missing");
        first.step().await;
        second.step().await;
    }
    assert!(!first.records.is_empty() && !second.records.is_empty());
    let all: Vec<_> = first
        .records
        .drain(..)
        .chain(second.records.drain(..))
        .collect();
    assert_eq!(keys(&all), (100..200).map(key).collect());
    assert_eq!(all.len(), 100, "something came twice");
    second.close().await;
    while first.owned.len() < 4 {
        assert!(Instant::now() < deadline, "partitions did not come back");
        first.step().await;
    }
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_does_not_outlive_the_partition_it_was_meant_for() {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    // More than the inbox takes: the first member pauses, as nobody takes from it.
    stand.produce(Topic::Webhooks, 0..6_000).await;
    let mut first = stand.member().await;
    first.room = 0;
    let deadline = Instant::now() + DEADLINE;
    while first.positions_end() < 6_000 {
        assert!(Instant::now() < deadline, "no end offsets");
        first.step().await;
    }
    let mut second = stand.member().await;
    second.room = 0;
    while first.owned.len() != 1 || second.owned.len() != 1 {
        assert!(Instant::now() < deadline, "no hand-over");
        first.step().await;
        second.step().await;
    }
    second.close().await;
    first.room = 500;
    let all = first.take(6_000).await;
    assert_eq!(keys(&all).len(), 6_000);
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watermark_of_an_old_epoch_changes_nothing() {
    let Some(stand) = Stand::new(1).await else {
        return;
    };
    stand.produce(Topic::Webhooks, 0..10).await;
    let mut member = stand.member().await;
    let received = member.take(10).await;
    let last = &received[9];
    member.consumer.commit(vec![Watermark {
        epoch: Epoch(last.epoch.0 + 1),
        ..watermark(last, 10)
    }]);
    member.finish(&received[2], 3);
    stand.until_committed(Topic::Webhooks, 0, 3).await;
    member.close().await;
    let mut member = stand.member().await;
    assert_eq!(member.take(7).await[0].offset, 3);
    member.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_dropped_leaves_its_group() {
    let Some(stand) =
        Stand::with(1, |config| config.session_timeout = Duration::from_secs(60)).await
    else {
        return;
    };
    stand.produce(Topic::Webhooks, 0..3).await;
    let mut member = stand.member().await;
    let received = member.take(3).await;
    member.finish(&received[1], 2);
    drop(member);
    // Long before the session of the first is over.
    let mut member = stand.member().await;
    assert_eq!(member.take(1).await[0].offset, 2);
    member.close().await;
}

// === a killed process ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_another_goes_on_at_the_commit() {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    stand.produce(Topic::Webhooks, 0..50).await;
    let mut child = Killed(child(&stand.config));
    for partition in 0..2 {
        stand.until_committed(Topic::Webhooks, partition, 5).await;
    }
    child.0.kill().expect("killed");
    child.0.wait().expect("dead");
    let started = Instant::now();
    let mut member = stand.member().await;
    let rest = member.take(40).await;
    assert!(
        rest.iter().all(|record| record.offset >= 5),
        "read again from before the commit"
    );
    println!("taken over {:?} after the kill", started.elapsed());
    member.close().await;
}

/// Not a test of its own: the process that the test above kills. Commits 5 of each partition, then holds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(prefix) = std::env::var_os(CHILD) else {
        return;
    };
    let Some(brokers) = brokers() else { return };
    let config = config(&brokers, prefix.to_str().expect("UTF-8"), 2);
    let log = KafkaLog::connect(&config, Path::new("."), Clock::system()).await;
    let consumer = log.expect("connected").consumer().await;
    let mut member = Member::new(consumer.expect("a consumer"));
    for record in member.take(50).await {
        if record.offset == 4 {
            member.finish(&record, 5);
        }
    }
    // Ends by itself should the parent fail to kill it.
    tokio::time::sleep(DEADLINE).await;
}

fn child(config: &KafkaConfig) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_that_is_killed", "--nocapture"])
        .env(CHILD, &config.topic_prefix)
        .stdout(Stdio::null())
        .spawn()
        .expect("child")
}

/// Killed also when the test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

// === topics ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_made_once_checked_and_described() {
    let Some(brokers) = brokers() else { return };
    let mut config = config(&brokers, &fresh_name(), 2);
    let refused = KafkaLog::connect(&config, Path::new("."), Clock::system()).await;
    let Err(LogError::Fatal(text)) = refused else {
        panic!("connected without topics")
    };
    assert!(text.contains("fencepost topics ensure"), "{text}");
    let topics = Topics::connect(&config, Path::new(".")).expect("a client");
    let made = topics.ensure(false).await.expect("made");
    assert_eq!((made.created.len(), made.deviations), (8, vec![]));
    let again = topics.ensure(false).await.expect("unchanged");
    assert_eq!(again, event_log::kafka::topics::Ensured::default());
    let stand = Stand::on(config.clone()).await;
    stand.produce(Topic::Webhooks, 0..10).await;
    let described = topics.describe().await.expect("described");
    assert_eq!(
        described
            .iter()
            .map(|topic| topic.topic)
            .collect::<Vec<_>>(),
        Topic::ALL
    );
    let lag: i64 = described[0]
        .partitions
        .iter()
        .map(|partition| partition.lag())
        .sum();
    assert_eq!(
        (lag, described[0].partitions[0].committed_offset),
        (10, None)
    );
    assert_eq!(
        described[1].settings["message.timestamp.type"],
        "LogAppendTime"
    );
    config.partitions = 3;
    config.retention = Duration::from_secs(200_000);
    let topics = Topics::connect(&config, Path::new(".")).expect("a client");
    let differs = topics.ensure(false).await.expect("checked");
    assert!(differs.created.is_empty() && differs.grown.is_empty());
    let text = format!("{:?}", differs.deviations);
    assert!(
        text.contains("has 2 partitions, 3 are configured"),
        "{text}"
    );
    assert!(text.contains("retention.ms is 604800000"), "{text}");
    let grown = topics.ensure(true).await.expect("grown");
    assert_eq!(grown.grown.len(), 8);
    assert_eq!(topics.verify().await, Ok(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_broker_is_told_in_time() {
    let mut config = config("127.0.0.1:1", "nobody", 1);
    config.brokers = vec!["127.0.0.1:1".into()];
    let refused = KafkaLog::connect(&config, Path::new("."), Clock::system());
    let refused = tokio::time::timeout(DEADLINE, refused)
        .await
        .expect("in time");
    assert!(
        matches!(refused, Err(LogError::Unavailable(_))),
        "{refused:?}"
    );
}

// === helpers ===

struct Stand {
    config: KafkaConfig,
    log: KafkaLog,
}

/// A consumer, what it owns and what it has given so far. Answers revocations.
struct Member {
    consumer: KafkaConsumer,
    room: usize,
    owned: BTreeMap<u32, Epoch>,
    records: Vec<Received>,
    at_release: BTreeMap<(Topic, u32), Watermark>,
}

impl Stand {
    async fn new(partitions: u32) -> Option<Self> {
        Self::with(partitions, |_| {}).await
    }

    async fn with(partitions: u32, change: impl FnOnce(&mut KafkaConfig)) -> Option<Self> {
        let mut config = config(&brokers()?, &fresh_name(), partitions);
        change(&mut config);
        let topics = Topics::connect(&config, Path::new(".")).expect("a client");
        topics.ensure(false).await.expect("topics");
        Some(Self::on(config).await)
    }

    async fn on(config: KafkaConfig) -> Self {
        let log = KafkaLog::connect(&config, Path::new("."), Clock::system()).await;
        Self {
            config,
            log: log.expect("connected"),
        }
    }

    async fn member(&self) -> Member {
        Member::new(self.log.consumer().await.expect("a consumer"))
    }

    async fn produce(&self, topic: Topic, numbers: std::ops::Range<u32>) {
        let produced = numbers.map(|n| self.log.produce(record(topic, n)));
        for appended in join_all(produced).await {
            appended.expect("acknowledged");
        }
    }

    async fn until_committed(&self, topic: Topic, partition: u32, offset: i64) {
        let topics = Topics::connect(&self.config, Path::new(".")).expect("a client");
        let deadline = Instant::now() + DEADLINE;
        loop {
            let described = topics.describe().await.expect("described");
            let found = described.iter().find(|found| found.topic == topic);
            let committed = found.and_then(|found| {
                found.partitions[usize::try_from(partition).expect("small")].committed_offset
            });
            if committed == Some(offset) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "committed is {committed:?}, not {offset}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Member {
    fn new(consumer: KafkaConsumer) -> Self {
        Self {
            consumer,
            room: ROOM,
            owned: BTreeMap::new(),
            records: Vec::new(),
            at_release: BTreeMap::new(),
        }
    }

    /// Takes what there is within a moment. Checks that no delay record is early and each has its owner's epoch.
    async fn step(&mut self) {
        let next = self.consumer.next(self.room);
        let Ok(events) = tokio::time::timeout(Duration::from_millis(50), next).await else {
            return;
        };
        for event in events.expect("events") {
            match event {
                Event::Assigned { partition, epoch } => {
                    assert!(
                        self.owned
                            .insert(partition, epoch)
                            .is_none_or(|old| old < epoch)
                    );
                }
                Event::Revoked(revoked) => {
                    let mut last = Vec::new();
                    for (partition, epoch) in revoked.partitions {
                        assert_eq!(self.owned.remove(&partition), Some(epoch));
                        let of = |key: &(Topic, u32)| key.1 == partition;
                        last.extend(
                            self.at_release
                                .iter()
                                .filter(|(key, _)| of(key))
                                .map(|(_, mark)| *mark),
                        );
                    }
                    revoked.release.done(last);
                }
                Event::Record(record) => {
                    assert_eq!(self.owned.get(&record.partition), Some(&record.epoch));
                    if let Some(wait) = record.topic.delay() {
                        let now_ms = Clock::system().now_ms();
                        let wait_ms = i64::try_from(wait.as_millis()).expect("small");
                        assert!(record.appended_at_ms + wait_ms <= now_ms, "early");
                    }
                    self.records.push(record);
                }
            }
        }
    }

    async fn take(&mut self, count: usize) -> Vec<Received> {
        let deadline = Instant::now() + DEADLINE;
        while self.records.len() < count {
            let got = self.records.len();
            assert!(
                Instant::now() < deadline,
                "{got} records instead of {count}"
            );
            self.step().await;
        }
        self.records.drain(..).collect()
    }

    fn finish(&self, record: &Received, next_offset: i64) {
        self.consumer.commit(vec![watermark(record, next_offset)]);
    }

    /// To be told only when the partition is taken away.
    fn release_with(&mut self, record: &Received, next_offset: i64) {
        let key = (record.topic, record.partition);
        self.at_release.insert(key, watermark(record, next_offset));
    }

    fn positions_end(&self) -> i64 {
        let positions = self.consumer.positions();
        let main = positions
            .iter()
            .filter(|position| position.topic == Topic::Webhooks);
        main.filter_map(|position| position.end_offset).sum()
    }

    async fn close(self) {
        let started = Instant::now();
        let last = self.at_release.into_values().collect();
        self.consumer.close(last, DEADLINE).await;
        assert!(started.elapsed() < DEADLINE, "did not leave its group");
    }
}

fn record(topic: Topic, n: u32) -> Record {
    Record {
        topic,
        key: key(n),
        value: Bytes::from(vec![u8::try_from(n % 251).expect("small"); 200]),
        headers: vec![
            ("a".into(), Bytes::from_static(b"\x00\xff")),
            ("a".into(), Bytes::new()),
        ],
    }
}

fn key(n: u32) -> Bytes {
    Bytes::from(format!("delivery-{n}"))
}

fn keys(records: &[Received]) -> BTreeSet<Bytes> {
    records.iter().map(|record| record.key.clone()).collect()
}

fn watermark(record: &Received, next_offset: i64) -> Watermark {
    Watermark {
        topic: record.topic,
        partition: record.partition,
        epoch: record.epoch,
        next_offset,
    }
}

fn config(brokers: &str, name: &str, partitions: u32) -> KafkaConfig {
    KafkaConfig {
        brokers: vec![brokers.into()],
        topic_prefix: name.into(),
        group: format!("{name}.dispatcher"),
        partitions,
        replication_factor: 1,
        session_timeout: Duration::from_secs(6),
        record_bytes_max: 1024 * 1024,
        ..KafkaConfig::default()
    }
}

fn brokers() -> Option<String> {
    if let Some(brokers) = std::env::var_os("FENCEPOST_TEST_KAFKA") {
        return Some(brokers.into_string().expect("UTF-8"));
    }
    let required =
        std::env::var_os("FENCEPOST_TEST_STACK").is_some_and(|value| value == "required");
    assert!(
        !required,
        "FENCEPOST_TEST_KAFKA is not set, but the stack is required"
    );
    println!("skipped: set FENCEPOST_TEST_KAFKA=host:port (tests/stack/stack starts a broker)");
    None
}

fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(
        "test-{}-{}-{count}",
        Clock::system().now_ms(),
        std::process::id()
    )
}
