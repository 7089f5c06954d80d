//! What the suite needs of an implementation, and a member of the group that checks whatever it is told.

use crate::{Consumer, Epoch, Event, EventLog, LogError, Received, Record, Room, Watermark};
use bytes::Bytes;
use futures::future::join_all;
use schemas::Topic;
use std::{collections::BTreeMap, future::Future, time::Duration};
use tokio::time::{self, Instant};

/// Pause after [`LogError::Unavailable`].
const PAUSE: Duration = Duration::from_millis(100);

/// An implementation under test.
pub trait Harness: Send + Sync {
    /// The log.
    type Log: EventLog;

    /// A log with nothing in it and with at least two partitions. One is in use at a time.
    fn fresh(&self) -> impl Future<Output = Self::Log> + Send;

    /// The same log as after a restart of the process: everything that `log` holds in memory is gone.
    fn reopen(&self, log: Self::Log) -> impl Future<Output = Self::Log> + Send;

    /// What another process sees of the same log; none where only one process may.
    fn peer(&self, log: &Self::Log) -> impl Future<Output = Option<Self::Log>> + Send;

    /// The clock that append times and delays go by, milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;

    /// Lets `ms` pass on that clock; really waits where it can not be set.
    fn pass(&self, ms: u64) -> impl Future<Output = ()> + Send;

    /// Largest webhook that the log takes, bytes.
    fn record_bytes_max(&self) -> usize;

    /// Number and size of records that surely do not fit into the queue when they come at once; none when there is no queue.
    fn burst(&self) -> Option<(usize, usize)>;

    /// Longest wait for anything that must happen. Never waited in full unless the promise is broken.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }
}

/// A consumer that checks and keeps what it is told.
pub(super) struct Member<C> {
    consumer: C,
    patience: Duration,
    /// Owned now.
    pub(super) owned: BTreeMap<u32, Epoch>,
    /// Everything handed out, in order.
    pub(super) records: Vec<Received>,
}

// === impl Member ===

impl<C: Consumer> Member<C> {
    /// Joins the group.
    pub(super) async fn join<H: Harness>(harness: &H, log: &H::Log) -> Self
    where
        H::Log: EventLog<Consumer = C>,
    {
        let consumer = log.consumer().await.expect("a consumer");
        let (owned, records) = (BTreeMap::new(), Vec::new());
        Self {
            consumer,
            patience: harness.patience(),
            owned,
            records,
        }
    }

    /// Joins and waits until every partition is owned.
    pub(super) async fn join_alone<H: Harness>(harness: &H, log: &H::Log) -> Self
    where
        H::Log: EventLog<Consumer = C>,
    {
        let mut member = Self::join(harness, log).await;
        member.own_all(log.partitions()).await;
        member
    }

    async fn own_all(&mut self, partitions: u32) {
        let all = partitions as usize;
        self.until(0, "every partition to be assigned", |member| {
            member.owned.len() == all
        })
        .await;
    }

    /// One answer, or none within `wait`. Whatever is received up to a revocation counts as finished.
    pub(super) async fn step(&mut self, room: impl Into<Room>, wait: Duration) {
        let room = room.into();
        match time::timeout(wait, self.consumer.next(room.clone())).await {
            Ok(Ok(events)) => self.take(events, room),
            Ok(Err(LogError::Unavailable(_))) => time::sleep(PAUSE).await,
            Ok(Err(error @ LogError::Fatal(_))) => panic!("{error}"),
            Err(_elapsed) => {}
        }
    }

    /// Steps until `done`, or fails saying what it has waited for.
    pub(super) async fn until(
        &mut self,
        room: impl Into<Room>,
        what: &str,
        done: impl Fn(&Self) -> bool,
    ) {
        let room = room.into();
        let deadline = Instant::now() + self.patience;
        while !done(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "waited in vain for {what}; have {}",
                self.records.len()
            );
            self.step(room.clone(), left).await;
        }
    }

    /// Steps until `count` records have come.
    pub(super) async fn receive(&mut self, room: impl Into<Room>, count: usize) {
        let what = format!("{count} records");
        self.until(room, &what, |member| member.records.len() >= count)
            .await;
    }

    pub(super) fn take(&mut self, events: Vec<Event>, room: impl Into<Room>) {
        let mut room = room.into();
        for event in events {
            match event {
                Event::Assigned { partition, epoch } => {
                    let before = self.owned.insert(partition, epoch);
                    assert_eq!(before, None, "partition {partition} was owned already");
                }
                Event::Revoked(revoked) => {
                    let mut watermarks = Vec::new();
                    for (partition, epoch) in revoked.partitions {
                        watermarks.extend(self.watermarks_of(partition));
                        let before = self.owned.remove(&partition);
                        assert_eq!(
                            before,
                            Some(epoch),
                            "the revoked epoch is the one that ends"
                        );
                    }
                    revoked.release.done(watermarks);
                }
                Event::Record(record) => {
                    assert!(room.take(record.partition), "there was no room for it");
                    self.check(&record);
                    self.records.push(record);
                }
            }
        }
    }

    fn check(&self, record: &Received) {
        let owned = self.owned.get(&record.partition);
        assert_eq!(
            owned,
            Some(&record.epoch),
            "a record comes under the current ownership"
        );
        assert_ne!(
            record.topic,
            Topic::DeadLetters,
            "dead letters are not ours to read"
        );
        let last = self.records.iter().rev().find(|last| {
            (last.topic, last.partition, last.epoch)
                == (record.topic, record.partition, record.epoch)
        });
        if let Some(last) = last {
            assert!(
                last.offset < record.offset,
                "records come in the order of their offsets"
            );
            assert!(
                last.appended_at_ms <= record.appended_at_ms,
                "append times never go back"
            );
        }
    }

    /// Watermarks behind everything received of the current ownership.
    pub(super) fn watermarks(&self) -> Vec<Watermark> {
        self.owned
            .keys()
            .flat_map(|partition| self.watermarks_of(*partition))
            .collect()
    }

    fn watermarks_of(&self, partition: u32) -> Vec<Watermark> {
        let mut behind = BTreeMap::new();
        for record in &self.records {
            if self.owned.get(&partition) == Some(&record.epoch) && record.partition == partition {
                behind.insert(record.topic, (record.epoch, record.offset + 1));
            }
        }
        let behind = behind
            .into_iter()
            .map(|(topic, (epoch, next_offset))| Watermark {
                topic,
                partition,
                epoch,
                next_offset,
            });
        behind.collect()
    }

    pub(super) fn consumer(&mut self) -> &mut C {
        &mut self.consumer
    }

    pub(super) async fn close(self, watermarks: Vec<Watermark>) {
        self.consumer.close(watermarks, self.patience).await;
    }
}

/// A record with a small value that tells it from others.
pub(super) fn record(topic: Topic, key: &str, value: impl Into<Vec<u8>>) -> Record {
    let key = Bytes::copy_from_slice(key.as_bytes());
    Record {
        topic,
        key,
        value: Bytes::from(value.into()),
        headers: Vec::new(),
    }
}

/// Produces `count` records of one key one after the other, so that their order is known; gives their partition.
pub(super) async fn produce_in_order<L: EventLog>(
    log: &L,
    topic: Topic,
    key: &str,
    count: usize,
) -> u32 {
    let mut partition = 0;
    for n in 0..count {
        let appended = log.produce(record(topic, key, n.to_string())).await;
        partition = appended.expect("acknowledged").partition;
    }
    partition
}

/// Produces records at once.
pub(super) async fn produce_all<L: EventLog>(log: &L, records: Vec<Record>) {
    for acknowledged in join_all(records.into_iter().map(|record| log.produce(record))).await {
        acknowledged.expect("acknowledged");
    }
}

/// A key for each partition.
pub(super) fn key_of_each_partition(partitions: u32) -> Vec<String> {
    let key_of = |partition: u32| {
        let keys = (0..100_000_u32).map(|n| format!("key-{n}"));
        keys.into_iter()
            .find(|key| schemas::partition_for(key.as_bytes(), partitions) == partition)
            .expect("a key for every partition")
    };
    (0..partitions).map(key_of).collect()
}
