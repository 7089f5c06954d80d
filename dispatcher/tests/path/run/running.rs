//! A dispatcher that runs beside the test.

use crate::fakes::{
    log::FakeLog,
    send::{FakeSend, Sent},
    store::FakeStore,
    world::{FakePath, START_MS, World, eventually, webhook},
};
use bytes::Bytes;
use dispatcher::{RunError, Status, run};
use schemas::{DelayTier, Topic};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) task: JoinHandle<Result<(), RunError>>,
    pub(crate) shutdown: CancellationToken,
}

// === impl Running ===

impl Running {
    pub(crate) fn start(world: &World) -> Self {
        let (path, shutdown): (Arc<FakePath>, _) =
            (Arc::new(world.path()), CancellationToken::new());
        let task = tokio::spawn(run::<FakeLog, FakeStore, FakeSend>(
            path,
            Status::default(),
            shutdown.clone(),
        ));
        Self { task, shutdown }
    }

    pub(crate) async fn stop(self) -> Result<(), RunError> {
        self.shutdown.cancel();
        self.task.await.unwrap()
    }

    /// Dies like a killed process: nothing is committed, nothing awaited.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Publishes webhooks `<prefix>0` to `<prefix><count - 1>`.
pub(crate) async fn publish(world: &World, prefix: &str, count: usize) {
    for at in 0..count {
        world
            .publish(&webhook(&format!("{prefix}{at}"), START_MS))
            .await;
    }
}

/// The watermark stands behind the last webhook of every partition.
pub(crate) fn all_committed(world: &World) -> bool {
    let mut ends: BTreeMap<u32, i64> = BTreeMap::new();
    for record in world.log.inner.records(Topic::Webhooks) {
        ends.insert(record.partition, record.offset + 1);
    }
    let committed = |partition| world.log.inner.committed(Topic::Webhooks, partition);
    ends.iter()
        .all(|(partition, end)| committed(*partition) == *end)
}

pub(crate) async fn until_committed(world: &World) {
    eventually("all is committed", || all_committed(world)).await;
}

/// How often each delivery was sent.
pub(crate) fn sends(sent: &[Sent]) -> BTreeMap<(String, String), usize> {
    let mut sends = BTreeMap::new();
    for it in sent {
        let key = (it.delivery_id.clone(), it.destination.clone());
        *sends.entry(key).or_default() += 1;
    }
    sends
}

/// 3: whatever lies below a watermark has ended in the store, or has a record in a tier that is not finished.
pub(crate) fn check_watermarks(world: &World) {
    let mut alive = BTreeSet::new();
    for tier in DelayTier::ALL.map(Topic::Delay) {
        for record in world.log.inner.records(tier) {
            if record.offset >= world.log.inner.committed(tier, record.partition) {
                alive.insert(record.key);
            }
        }
    }
    let mut ended = BTreeSet::new();
    for (key, row) in world.store.inner.rows() {
        if row.completed_at_ms.or(row.failed_at_ms).is_some() {
            ended.insert(Bytes::from(key.delivery_id));
        }
    }
    for record in world.log.inner.records(Topic::Webhooks) {
        let below = record.offset < world.log.inner.committed(Topic::Webhooks, record.partition);
        let lost = below && !alive.contains(&record.key) && !ended.contains(&record.key);
        assert!(!lost, "{} of partition {}", record.offset, record.partition);
    }
}
