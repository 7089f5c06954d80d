//! Plays the loop around `process()`, one record after the other, and the crashes in between.

use crate::fakes::{
    faults::{Mode, Step},
    world::{FakePath, START_MS, World, webhook},
};
use bytes::Bytes;
use dispatcher::process::{Finished, Infra, Job, Place, process};
use event_log::{EventLog, Received, Record};
use schemas::{DelayTier, Delivery, Topic};
use std::{collections::BTreeSet, sync::Arc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// More records than any of these histories needs.
const RECORDS_MAX: usize = 200;

/// In which order a dispatcher takes up the records that are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    OldestFirst,
    NewestFirst,
}

/// The records that are finished, as the watermarks would say.
#[derive(Debug)]
pub(crate) struct Driver<'a> {
    pub(crate) world: &'a World,
    pub(crate) path: FakePath,
    finished: BTreeSet<(Topic, i64)>,
    pub(crate) crashes: usize,
}

// === impl Driver ===

impl<'a> Driver<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self {
            world,
            path: world.path(),
            finished: BTreeSet::new(),
            crashes: 0,
        }
    }

    /// Works on unfinished records as they become due until there is none. After each of them, what is finished must
    /// have left something durable behind.
    pub(crate) async fn until_quiet(&mut self, order: Order) {
        for _ in 0..RECORDS_MAX {
            let Some(record) = self.next(order) else {
                return;
            };
            let due_ms = due_ms(&record);
            let now_ms = self.world.clock.now_ms();
            self.world.clock.advance((due_ms - now_ms).max(0));
            self.take(&record).await;
            self.check_obligation();
        }
        panic!("no end after {RECORDS_MAX} records");
    }

    /// Works on one record; it is finished when `process()` says so and the crash does not come before the mark.
    pub(crate) async fn take(&mut self, record: &Received) -> Option<Result<Finished, Infra>> {
        let faults = &self.world.faults;
        let mut job = job(self.world, record);
        let work = async {
            let result = process(&self.path, &mut job).await;
            if result.is_ok() {
                faults.around(Step::Finish, async {}).await.unwrap();
            }
            result
        };
        let result = tokio::select! {
            biased;
            () = faults.crashed() => None,
            result = work => Some(result),
        };
        match &result {
            None => {
                self.crashes += 1;
                self.path = self.world.path();
            }
            Some(Ok(_)) => {
                self.finished.insert((record.topic, record.offset));
            }
            Some(Err(_)) => {}
        }
        result
    }

    /// Every unfinished record in the webhooks topic and the delay tiers.
    pub(crate) fn unfinished(&self) -> Vec<Received> {
        let topics = DelayTier::ALL.map(Topic::Delay);
        [Topic::Webhooks]
            .into_iter()
            .chain(topics)
            .flat_map(|topic| self.world.log.inner.records(topic))
            .filter(|record| !self.finished.contains(&(record.topic, record.offset)))
            .collect()
    }

    fn next(&self, order: Order) -> Option<Received> {
        let now_ms = self.world.clock.now_ms();
        let mut records = self.unfinished();
        records.sort_by_key(|record| (due_ms(record).max(now_ms), record.appended_at_ms));
        let first_ms = due_ms(records.first()?).max(now_ms);
        records.retain(|record| due_ms(record).max(now_ms) == first_ms);
        match order {
            Order::OldestFirst => records.into_iter().next(),
            Order::NewestFirst => records.into_iter().last(),
        }
    }

    /// Invariant 1 at every moment: the delivery has ended, or an unfinished record stands for it.
    fn check_obligation(&self) {
        let rows = self.world.store.inner.rows();
        let ended = rows
            .iter()
            .any(|(_, row)| row.completed_at_ms.is_some() || row.failed_at_ms.is_some());
        assert!(ended || !self.unfinished().is_empty(), "lost: {rows:?}");
    }
}

/// When the log hands a record out.
pub(crate) fn due_ms(record: &Received) -> i64 {
    let wait = record.topic.delay().unwrap_or_default();
    record.appended_at_ms + i64::try_from(wait.as_millis()).unwrap()
}

/// The job of a record for `billing`.
pub(crate) fn job(world: &World, record: &Received) -> Job {
    let delivery = match record.topic {
        Topic::Delay(_) => world.codec.decode_delivery(&record.value).unwrap(),
        Topic::Webhooks | Topic::DeadLetters => {
            let webhook = world.codec.decode_webhook(&record.value).unwrap();
            Delivery::first(webhook, "billing")
        }
    };
    Job {
        delivery,
        place: Place::of(record),
        trace: Vec::new(),
        waiting: Default::default(),
        owned: CancellationToken::new(),
    }
}

/// Whether the process dies of it.
pub(crate) fn is_crash(mode: Mode) -> bool {
    matches!(mode, Mode::CrashBefore | Mode::CrashAfter)
}

/// Works on a record beside the test.
pub(crate) fn start(
    world: &World,
    path: &Arc<FakePath>,
    record: &Received,
) -> JoinHandle<Result<Finished, Infra>> {
    let (path, mut job) = (Arc::clone(path), job(world, record));
    tokio::spawn(async move { process(&path, &mut job).await })
}

/// Publishes one webhook and works on it.
pub(crate) async fn begin(world: &World) -> JoinHandle<Result<Finished, Infra>> {
    world.publish(&webhook("d1", START_MS)).await;
    let record = world.log.inner.records(Topic::Webhooks).remove(0);
    start(world, &Arc::new(world.path()), &record)
}

/// Appends a delivery to the smallest tier by hand and gives it back as the log hands it out.
pub(crate) async fn put(world: &World, delivery: &Delivery) -> Received {
    let topic = Topic::Delay(DelayTier::S5);
    let record = Record {
        topic,
        key: Bytes::copy_from_slice(delivery.webhook.delivery_id.as_bytes()),
        value: world.codec.encode_delivery(delivery).unwrap(),
        headers: Vec::new(),
    };
    world.log.inner.produce(record).await.unwrap();
    world.log.inner.records(topic).pop().unwrap()
}

/// Every delivery in the delay tiers, with its tier.
pub(crate) fn hops(world: &World) -> Vec<(DelayTier, Delivery)> {
    let of = |tier: DelayTier| {
        let records = world.log.inner.records(Topic::Delay(tier));
        records.into_iter().map(move |record| (tier, record.value))
    };
    DelayTier::ALL
        .into_iter()
        .flat_map(of)
        .map(|(tier, value)| (tier, world.codec.decode_delivery(&value).unwrap()))
        .collect()
}
