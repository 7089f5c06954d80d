//! A broker with topics of one's own, and a member of the group that answers revocations.

use bytes::Bytes;
use event_log::{
    Consumer as _, Epoch, Event, EventLog as _, Received, Record, Watermark,
    config::KafkaConfig,
    kafka::{KafkaConsumer, KafkaLog, topics::Topics},
};
use futures::future::join_all;
use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewPartitions},
    client::DefaultClientContext,
};
use runtime::Clock;
use schemas::{Topic, TopicNames};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tokio::time::Instant;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const ROOM: usize = 100;
/// Set in the process that is to be killed: the topic prefix.
pub(crate) const CHILD: &str = "FENCEPOST_TEST_CHILD";

pub(crate) struct Stand {
    pub(crate) config: KafkaConfig,
    pub(crate) log: KafkaLog,
}

/// A consumer, what it owns and what it has given so far. Answers revocations.
pub(crate) struct Member {
    pub(crate) consumer: KafkaConsumer,
    pub(crate) room: usize,
    pub(crate) owned: BTreeMap<u32, Epoch>,
    pub(crate) records: Vec<Received>,
    pub(crate) at_release: BTreeMap<(Topic, u32), Watermark>,
}

impl Stand {
    pub(crate) async fn new(partitions: u32) -> Option<Self> {
        Self::with(partitions, |_| {}).await
    }

    pub(crate) async fn with(
        partitions: u32,
        change: impl FnOnce(&mut KafkaConfig),
    ) -> Option<Self> {
        let mut config = config(&brokers()?, &fresh_name(), partitions);
        change(&mut config);
        let topics = Topics::connect(&config, Path::new(".")).expect("a client");
        topics.ensure(false).await.expect("topics");
        Some(Self::on(config).await)
    }

    pub(crate) async fn on(config: KafkaConfig) -> Self {
        let log = KafkaLog::connect(&config, Path::new("."), Clock::system()).await;
        Self {
            config,
            log: log.expect("connected"),
        }
    }

    pub(crate) async fn member(&self) -> Member {
        Member::new(self.log.consumer().await.expect("a consumer"))
    }

    pub(crate) async fn produce(&self, topic: Topic, numbers: std::ops::Range<u32>) {
        let produced = numbers.map(|n| self.log.produce(record(topic, n)));
        for appended in join_all(produced).await {
            appended.expect("acknowledged");
        }
    }

    /// Adds partitions to one topic alone, which `Topics` never does.
    #[expect(
        clippy::disallowed_methods,
        reason = "a mistake that somebody makes with another tool"
    )]
    pub(crate) async fn grow(&self, topic: Topic, partitions: usize) {
        let name = TopicNames::new(self.config.topic_prefix.clone()).name(topic);
        let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
            .set("bootstrap.servers", self.config.brokers.join(","))
            .create()
            .expect("a client");
        let new = NewPartitions::new(&name, partitions);
        let grown = admin.create_partitions([&new], &AdminOptions::new()).await;
        assert_eq!(grown.expect("answered"), [Ok(name)]);
    }

    pub(crate) async fn until_committed(&self, topic: Topic, partition: u32, offset: i64) {
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
    pub(crate) fn new(consumer: KafkaConsumer) -> Self {
        Self {
            consumer,
            room: ROOM,
            owned: BTreeMap::new(),
            records: Vec::new(),
            at_release: BTreeMap::new(),
        }
    }

    /// Takes what there is within a moment. Checks that no delay record is early and each has its owner's epoch.
    pub(crate) async fn step(&mut self) {
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

    pub(crate) async fn take(&mut self, count: usize) -> Vec<Received> {
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

    pub(crate) fn finish(&self, record: &Received, next_offset: i64) {
        self.consumer.commit(vec![watermark(record, next_offset)]);
    }

    /// To be told only when the partition is taken away.
    pub(crate) fn release_with(&mut self, record: &Received, next_offset: i64) {
        let key = (record.topic, record.partition);
        self.at_release.insert(key, watermark(record, next_offset));
    }

    pub(crate) fn end_offsets(&self, topic: Topic) -> i64 {
        let positions = self.consumer.positions();
        let main = positions.iter().filter(|position| position.topic == topic);
        main.filter_map(|position| position.end_offset).sum()
    }

    pub(crate) async fn close(self) {
        let started = Instant::now();
        let last = self.at_release.into_values().collect();
        self.consumer.close(last, DEADLINE).await;
        assert!(started.elapsed() < DEADLINE, "did not leave its group");
    }
}

pub(crate) fn record(topic: Topic, n: u32) -> Record {
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

pub(crate) fn key(n: u32) -> Bytes {
    Bytes::from(format!("delivery-{n}"))
}

pub(crate) fn keys(records: &[Received]) -> BTreeSet<Bytes> {
    records.iter().map(|record| record.key.clone()).collect()
}

pub(crate) fn watermark(record: &Received, next_offset: i64) -> Watermark {
    Watermark {
        topic: record.topic,
        partition: record.partition,
        epoch: record.epoch,
        next_offset,
    }
}

pub(crate) fn config(brokers: &str, name: &str, partitions: u32) -> KafkaConfig {
    KafkaConfig {
        brokers: vec![brokers.into()],
        topic_prefix: name.into(),
        group: format!("{name}.dispatcher"),
        partitions,
        replication_factor: 1,
        session_timeout: Some(Duration::from_secs(6)),
        record_bytes_max: 1024 * 1024,
        ..KafkaConfig::default()
    }
}

pub(crate) fn brokers() -> Option<String> {
    if let Some(brokers) = std::env::var_os("FENCEPOST_TEST_KAFKA") {
        return Some(brokers.into_string().expect("UTF-8"));
    }
    let required =
        std::env::var_os("FENCEPOST_TEST_STACK").is_some_and(|value| value == "required");
    assert!(
        !required,
        "FENCEPOST_TEST_KAFKA is not set, but the stack is required"
    );
    say_how();
    None
}

pub(crate) fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(
        "test-{}-{}-{count}",
        Clock::system().now_ms(),
        std::process::id()
    )
}

#[expect(
    clippy::print_stdout,
    reason = "whoever runs the tests shall see that these did nothing"
)]
fn say_how() {
    println!("skipped: set FENCEPOST_TEST_KAFKA=host:port (tests/stack/stack starts a broker)");
}

pub(crate) fn child(config: &KafkaConfig) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_that_is_killed", "--nocapture"])
        .env(CHILD, &config.topic_prefix)
        .stdout(Stdio::null())
        .spawn()
        .expect("child")
}

/// Killed also when the test fails.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
