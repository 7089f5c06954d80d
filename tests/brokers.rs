//! What only a set of three brokers can get wrong: one is killed, most stand still, the group's coordinator goes, leaders
//! change under a consumer. The log is used as the processes use it, without them.
//!
//! Needs real nodes, see `harness::cluster`.

use bytes::Bytes;
use event_log::{
    Consumer as _, Event, EventLog as _, ProduceError, Record, Watermark,
    config::KafkaConfig,
    kafka::{KafkaConsumer, KafkaLog, topics::Topics},
};
use harness::{
    cluster::{Cluster, Node},
    now_ms, within,
};
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
};
use runtime::Clock;
use schemas::Topic;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinHandle;

const PARTITIONS: u32 = 6;
const DEADLINE: Duration = Duration::from_secs(120);

/// One set for all, one story after the other: each begins with three brokers in sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_go_lose_nothing_that_was_acknowledged() {
    let Some(cluster) = Cluster::start_kafka().await else {
        return;
    };
    let stand = Stand::new(&cluster).await;
    let load = Load::start(&stand.log);
    let reader = Reader::start(&stand.log).await;

    // A leader is killed while records are produced to it, and read from it.
    load.until_more(100).await;
    let victim = stand.leader(&format!("{}.webhooks", stand.config.topic_prefix), 0);
    cluster.kafka[victim].kill9().await;
    load.until_more(300).await;
    reader.has(&load.acknowledged()).await;
    back(&cluster.kafka[victim]).await;

    // The group's coordinator is killed: commits and ownership go on with another one.
    let coordinator = stand.coordinator();
    cluster.kafka[coordinator].kill9().await;
    load.until_more(300).await;
    load.pause().await;
    reader.has(&load.acknowledged()).await;
    stand.all_committed(&reader).await;
    back(&cluster.kafka[coordinator]).await;
    load.resume();

    // One of three left: whatever it has alone is not acknowledged.
    load.until_more(100).await;
    load.pause().await;
    for node in &cluster.kafka[1..] {
        node.pause();
    }
    let alone = ["a", "b", "c", "d"].map(record);
    let refused = alone.into_iter().map(|record| {
        let log = stand.log.clone();
        tokio::spawn(async move { log.produce(record).await })
    });
    for refused in refused.collect::<Vec<_>>() {
        let refused = refused.await.expect("no panic");
        let unacknowledged = matches!(refused, Err(ProduceError::Unacknowledged(_)));
        assert!(unacknowledged, "{refused:?}");
    }
    for node in &cluster.kafka[1..] {
        node.resume();
    }
    load.resume();
    load.until_more(100).await;
    load.pause().await;
    let acknowledged = load.acknowledged();
    reader.has(&acknowledged).await;
    stand.all_committed(&reader).await;

    // All stand still, and a process ends: it does not wait for them.
    for node in &cluster.kafka {
        node.pause();
    }
    let ends = async {
        reader.close(Duration::from_secs(2)).await;
        stand.log.flush(Duration::from_secs(1)).await;
        drop(load);
        drop(stand);
    };
    // librdkafka by itself waits for the end of the session, 15 s, and more.
    let ended = tokio::time::timeout(Duration::from_secs(10), ends).await;
    for node in &cluster.kafka {
        node.resume();
    }
    ended.expect("ended within its deadlines");
}

struct Stand {
    config: KafkaConfig,
    log: KafkaLog,
}

/// Produces all the time, twenty records at once, and knows what was acknowledged.
struct Load {
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    paused: Arc<AtomicBool>,
    running: Arc<AtomicU32>,
    tasks: Vec<JoinHandle<()>>,
}

/// Reads and commits all the time.
struct Reader {
    seen: Arc<Mutex<Seen>>,
    stop: tokio::sync::oneshot::Sender<Duration>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    keys: BTreeSet<String>,
    /// Watermarks as noted.
    ends: BTreeMap<u32, i64>,
}

// === impl Stand ===

impl Stand {
    async fn new(cluster: &Cluster) -> Self {
        let name = format!("brokers-{}", now_ms());
        let config = KafkaConfig {
            brokers: cluster.kafka_brokers(),
            group: format!("{name}.dispatcher"),
            topic_prefix: name,
            partitions: PARTITIONS,
            replication_factor: 3,
            record_bytes_max: 1024 * 1024,
            ..KafkaConfig::default()
        };
        assert_eq!(config.check("log"), []);
        let topics = Topics::connect(&config, Path::new(".")).expect("a client");
        topics.ensure(false).await.expect("topics");
        let log = KafkaLog::connect(&config, Path::new("."), Clock::system()).await;
        Self {
            config,
            log: log.expect("connected"),
        }
    }

    /// Which of the set leads this partition.
    #[expect(
        clippy::disallowed_methods,
        reason = "asks what the log does not need to know"
    )]
    fn leader(&self, topic: &str, partition: i32) -> usize {
        let client: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", self.config.brokers.join(","))
            .create()
            .expect("a client");
        let metadata = client.fetch_metadata(None, DEADLINE).expect("metadata");
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let partitions = found.expect("there").partitions();
        let count = i32::try_from(partitions.len()).expect("few");
        let partition = partition.rem_euclid(count);
        let of_number = |found: &&rdkafka::metadata::MetadataPartition| found.id() == partition;
        let leader = partitions.iter().find(of_number).expect("there").leader();
        usize::try_from(leader - 1).expect("numbered from 1")
    }

    /// Brokers find it by the hash that Java has of a string.
    fn coordinator(&self) -> usize {
        let hash = self.config.group.encode_utf16().fold(0_i32, |hash, unit| {
            hash.wrapping_mul(31).wrapping_add(i32::from(unit))
        });
        self.leader("__consumer_offsets", hash & i32::MAX)
    }

    /// What the reader has noted is what the group has, while nothing is produced.
    async fn all_committed(&self, reader: &Reader) {
        let topics = Topics::connect(&self.config, Path::new(".")).expect("a client");
        let mut last = String::new();
        let committed = within(DEADLINE, async || {
            let described = topics.describe().await.ok()?;
            let webhooks = described
                .into_iter()
                .find(|found| found.topic == Topic::Webhooks)?;
            let committed: BTreeMap<_, _> = webhooks
                .partitions
                .iter()
                .filter_map(|found| Some((found.partition, found.committed_offset?)))
                .collect();
            let ends = reader.seen.lock().expect("no panic").ends.clone();
            last = format!("{committed:?} of {ends:?}");
            (committed == ends).then_some(())
        });
        let committed = committed.await;
        assert!(committed.is_some(), "committed: {last}");
    }
}

// === impl Load ===

impl Load {
    fn start(log: &KafkaLog) -> Self {
        let acknowledged = Arc::default();
        let paused = Arc::new(AtomicBool::new(false));
        let running = Arc::new(AtomicU32::new(0));
        let tasks = (0..20).map(|task| {
            let (log, acknowledged) = (log.clone(), Arc::clone(&acknowledged));
            let (paused, running) = (Arc::clone(&paused), Arc::clone(&running));
            tokio::spawn(produce(log, task, acknowledged, paused, running))
        });
        let tasks = tasks.collect();
        Self {
            acknowledged,
            paused,
            running,
            tasks,
        }
    }

    fn acknowledged(&self) -> BTreeSet<String> {
        self.acknowledged.lock().expect("no panic").clone()
    }

    /// So many more are acknowledged.
    async fn until_more(&self, count: usize) {
        let from = self.acknowledged().len();
        let came = within(DEADLINE, async || {
            (self.acknowledged().len() >= from + count).then_some(())
        });
        let came = came.await;
        assert!(
            came.is_some(),
            "{} of {count} more",
            self.acknowledged().len() - from
        );
    }

    /// Nothing is on its way when this returns.
    async fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        let quiet = within(DEADLINE, async || {
            (self.running.load(Ordering::SeqCst) == 0).then_some(())
        });
        assert!(quiet.await.is_some(), "still producing");
    }

    fn resume(&self) {
        self.paused.store(false, Ordering::SeqCst);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn produce(
    log: KafkaLog,
    task: u32,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    paused: Arc<AtomicBool>,
    running: Arc<AtomicU32>,
) {
    for number in 0_u32.. {
        tokio::time::sleep(Duration::from_millis(20)).await;
        running.fetch_add(1, Ordering::SeqCst);
        if !paused.load(Ordering::SeqCst) {
            let key = format!("{task}-{number}");
            if log.produce(record(&key)).await.is_ok() {
                acknowledged.lock().expect("no panic").insert(key);
            }
        }
        running.fetch_sub(1, Ordering::SeqCst);
    }
}

// === impl Reader ===

impl Reader {
    async fn start(log: &KafkaLog) -> Self {
        let consumer = log.consumer().await.expect("a consumer");
        let seen = Arc::default();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(read(consumer, Arc::clone(&seen), stopped));
        Self { seen, stop, task }
    }

    /// Every one of `keys` has come.
    async fn has(&self, keys: &BTreeSet<String>) {
        let missing = || {
            let seen = self.seen.lock().expect("no panic");
            keys.difference(&seen.keys).count()
        };
        let all = within(DEADLINE, async || (missing() == 0).then_some(())).await;
        assert!(
            all.is_some(),
            "{} of {} acknowledged are missing",
            missing(),
            keys.len()
        );
    }

    async fn close(self, deadline: Duration) {
        self.stop.send(deadline).expect("reads");
        self.task.await.expect("no panic");
    }
}

async fn read(
    mut consumer: KafkaConsumer,
    seen: Arc<Mutex<Seen>>,
    mut stopped: tokio::sync::oneshot::Receiver<Duration>,
) {
    let mut ends = BTreeMap::new();
    let deadline = loop {
        let events = tokio::select! {
            deadline = &mut stopped => break deadline.expect("said"),
            events = consumer.next(500) => events,
        };
        // An outage is what is played here.
        let Ok(events) = events else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        for event in events {
            match event {
                Event::Assigned { partition, .. } => drop(ends.remove(&partition)),
                Event::Revoked(revoked) => {
                    let of = |(partition, _): &(u32, _)| ends.remove(partition);
                    let last = revoked.partitions.iter().filter_map(of).collect();
                    revoked.release.done(last);
                }
                Event::Record(record) => {
                    let watermark = Watermark {
                        topic: record.topic,
                        partition: record.partition,
                        epoch: record.epoch,
                        next_offset: record.offset + 1,
                    };
                    ends.insert(record.partition, watermark);
                    consumer.commit(vec![watermark]);
                    let key = String::from_utf8_lossy(&record.key).into_owned();
                    let mut seen = seen.lock().expect("no panic");
                    seen.ends.insert(record.partition, record.offset + 1);
                    // What was not committed comes again.
                    seen.keys.insert(key);
                }
            }
        }
    };
    consumer.close(ends.into_values().collect(), deadline).await;
}

// === helpers ===

fn record(key: &str) -> Record {
    Record {
        topic: Topic::Webhooks,
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::from_static(&[7; 300]),
        headers: Vec::new(),
    }
}

async fn back(node: &Node) {
    node.start().await;
    node.wait_ready().await;
}
