//! Bounds that keep memory flat (invariant 7).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counted for a held delivery beside its body.
const HELD_OVERHEAD_BYTES: usize = 1_024;

/// Memory for deliveries that wait for their last seconds.
#[derive(Clone, Debug)]
pub struct HeldBudget {
    bytes: Arc<Semaphore>,
    count: Arc<AtomicUsize>,
}

/// Memory of one held delivery, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Holding {
    #[expect(dead_code, reason = "held for its drop")]
    bytes: OwnedSemaphorePermit,
    count: Arc<AtomicUsize>,
}

// === impl HeldBudget ===

impl HeldBudget {
    /// A budget of `bytes_max`.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(bytes_max.min(Semaphore::MAX_PERMITS))),
            count: Arc::default(),
        }
    }

    /// Takes memory for a body of `bytes`, until the answer is dropped; none when the budget is used up.
    pub fn take(&self, bytes: usize) -> Option<Holding> {
        let bytes = u32::try_from(bytes.saturating_add(HELD_OVERHEAD_BYTES)).ok()?;
        let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(bytes).ok()?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Some(Holding {
            bytes,
            count: Arc::clone(&self.count),
        })
    }

    /// Deliveries that hold memory now.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
