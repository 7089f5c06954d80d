//! Bounds that keep memory flat (invariant 7).

use crate::window::Load;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counted for a held delivery beside its body.
const HELD_OVERHEAD_BYTES: usize = 1_024;

/// Memory for deliveries that wait for their last seconds.
#[derive(Clone, Debug)]
pub struct HeldBudget {
    bytes: Arc<Semaphore>,
    count: Arc<AtomicUsize>,
    by_partition: Arc<Mutex<BTreeMap<u32, Load>>>,
}

/// Memory of one held delivery, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Holding {
    #[expect(dead_code, reason = "held for its drop")]
    bytes: OwnedSemaphorePermit,
    budget: HeldBudget,
    partition: u32,
    load: Load,
}

// === impl HeldBudget ===

impl HeldBudget {
    /// A budget of `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes_max.min(Semaphore::MAX_PERMITS))),
            count: Arc::default(),
            by_partition: Arc::default(),
        }
    }

    /// Takes memory for a body of `bytes`, until the answer is dropped; none when the budget is used up.
    pub fn take(&self, partition: u32, bytes: usize) -> Option<Holding> {
        let load = Load {
            deliveries: 1,
            bytes,
        };
        let bytes = u32::try_from(bytes.saturating_add(HELD_OVERHEAD_BYTES)).ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok()?;
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut by_partition = self.by_partition();
        let held = by_partition.entry(partition).or_default();
        held.deliveries += load.deliveries;
        held.bytes += load.bytes;
        Some(Holding {
            bytes,
            budget: self.clone(),
            partition,
            load,
        })
    }

    /// Deliveries of a partition that hold memory now, and the bytes of their bodies.
    pub fn of(&self, partition: u32) -> Load {
        let held = self.by_partition().get(&partition).copied();
        held.unwrap_or_default()
    }

    fn by_partition(&self) -> MutexGuard<'_, BTreeMap<u32, Load>> {
        self.by_partition
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Deliveries that hold memory now.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.budget.count.fetch_sub(1, Ordering::Relaxed);
        let mut by_partition = self.budget.by_partition();
        if let Some(held) = by_partition.get_mut(&self.partition) {
            *held = held.without(self.load);
            if held.deliveries == 0 {
                by_partition.remove(&self.partition);
            }
        }
    }
}
