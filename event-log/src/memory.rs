//! The log of simulations and tests: everything in memory, several consumers, faults on demand.
//!
//! All consumers of one [`MemoryLog`] and its clones are members of one group and share the partitions, with real
//! revocations, as members of a Kafka group do. A consumer that is dropped has crashed: its partitions go to the others
//! at once and nothing of it is committed any more. Commits count from the moment in which they are noted.
//!
//! What is due goes by the given clock, waking up by tokio's. With a clock that is set by hand, call
//! [`MemoryLog::wake`] after setting it. Nothing runs in the background but the wait for a revocation's answer, and nothing is random, so a simulation on one
//! thread with tokio's time paused is repeatable.

mod consumer;
mod group;
mod state;

pub use consumer::MemoryConsumer;

use crate::{Appended, EventLog, LogError, Page, ProduceError, Received, Record};
use runtime::Clock;
use schemas::{Topic, partition_for};
use state::{State, Trouble};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time};

/// Default of [`MemoryLog::set_record_bytes_max`].
const RECORD_BYTES_MAX: usize = 32 * 1_024 * 1_024;

/// The log in memory. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryLog {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    clock: Clock,
    partitions: u32,
    /// Something may have come for a consumer.
    changed: Notify,
}

// === impl MemoryLog ===

impl MemoryLog {
    /// An empty log with `partitions` partitions in each topic, at least one.
    pub fn new(partitions: u32, clock: Clock) -> Self {
        let partitions = partitions.max(1);
        let state = Mutex::new(State::new(partitions, RECORD_BYTES_MAX));
        Self {
            shared: Arc::new(Shared {
                state,
                clock,
                partitions,
                changed: Notify::new(),
            }),
        }
    }

    /// Makes consumers look at the clock again.
    pub fn wake(&self) {
        self.shared.changed.notify_waiters();
    }

    /// Largest webhook taken from now on, bytes; the other topics take [`crate::DERIVED_BYTES_RESERVE`] more.
    pub fn set_record_bytes_max(&self, bytes: usize) {
        self.shared.lock().record_bytes_max = bytes;
    }

    /// The next `count` produces end with [`ProduceError::Unacknowledged`]; with `written` the record is there all the
    /// same. Troubles of several calls come one after the other.
    pub fn fail_produces(&self, count: usize, written: bool) {
        self.shared
            .lock()
            .troubles
            .extend(vec![Trouble::Unacknowledged { written }; count]);
    }

    /// The next `count` produces end with [`ProduceError::Busy`].
    pub fn refuse_produces(&self, count: usize) {
        self.shared
            .lock()
            .troubles
            .extend(vec![Trouble::Busy; count]);
    }

    /// The next `count` produces are written and acknowledged only after `delay` (of tokio's time).
    pub fn delay_produces(&self, count: usize, delay: Duration) {
        self.shared
            .lock()
            .troubles
            .extend(vec![Trouble::Late(delay); count]);
    }

    /// The next `count` calls of next end with [`LogError::Unavailable`].
    pub fn fail_reads(&self, count: usize) {
        self.shared.lock().failing_reads += count;
        self.wake();
    }

    /// What [`EventLog::ready`] says from now on, and produce with it; none: all is well.
    pub fn set_unavailable(&self, reason: Option<&str>) {
        self.shared.lock().unavailable = reason.map(Into::into);
    }

    /// Leaves out the next `count` offsets, as transaction markers and compaction do on Kafka.
    pub fn skip_offsets(&self, topic: Topic, partition: u32, count: i64) {
        self.shared.lock().skip(topic, partition, count);
    }

    /// Takes a partition from its owner. With `lost` as after an expired session: it is gone already when the owner
    /// hears of it. It goes to the member that owns least, which may be the same one, under a new epoch.
    pub fn revoke(&self, partition: u32, lost: bool) {
        self.shared.lock().group.revoke(partition, lost);
        self.shared.rebalance();
    }

    /// The committed watermark of a topic and partition; 0 before the first.
    pub fn committed(&self, topic: Topic, partition: u32) -> i64 {
        self.shared.lock().committed(topic, partition)
    }

    /// Everything in a topic, partition by partition, for the oracle of a simulation. The records carry epoch 0.
    pub fn records(&self, topic: Topic) -> Vec<Received> {
        let state = self.shared.lock();
        (0..self.shared.partitions)
            .flat_map(|p| state.page(topic, p, 0, usize::MAX).records)
            .collect()
    }
}

impl EventLog for MemoryLog {
    type Consumer = MemoryConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        let partition = partition_for(&record.key, self.shared.partitions);
        let trouble = self.shared.lock().accept(&record)?;
        match trouble {
            None => {}
            Some(Trouble::Busy) => return Err(ProduceError::Busy),
            Some(Trouble::Unacknowledged { written }) => {
                if written {
                    self.shared.append(record, partition);
                }
                return Err(ProduceError::Unacknowledged("a fault was asked for".into()));
            }
            Some(Trouble::Late(delay)) => time::sleep(delay).await,
        }
        Ok(self.shared.append(record, partition))
    }

    async fn consumer(&self) -> Result<MemoryConsumer, LogError> {
        let member = self.shared.lock().group.join();
        self.shared.rebalance();
        Ok(MemoryConsumer::new(Arc::clone(&self.shared), member))
    }

    fn partitions(&self) -> u32 {
        self.shared.partitions
    }

    async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        if partition >= self.shared.partitions {
            let name = topic.suffix();
            return Err(LogError::Fatal(format!(
                "{name} has no partition {partition}"
            )));
        }
        Ok(self.shared.lock().page(topic, partition, from_offset, max))
    }

    fn ready(&self) -> Result<(), LogError> {
        let unavailable = self.shared.lock().unavailable.clone();
        unavailable.map_or(Ok(()), |reason| Err(LogError::Unavailable(reason)))
    }

    async fn flush(&self, _deadline: Duration) {}
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, record: Record, partition: u32) -> Appended {
        let appended = self.lock().append(record, partition, self.clock.now_ms());
        self.changed.notify_waiters();
        appended
    }

    /// Shares the partitions anew after the members or their partitions have changed, and tells everybody.
    fn rebalance(&self) {
        self.lock().group.rebalance();
        self.changed.notify_waiters();
    }
}
