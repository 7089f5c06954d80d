//! Bounds that keep one destination from harming the others, and memory flat (invariant 7).

use crate::config::DestinationConfig;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counted for a held delivery beside its body.
const HELD_OVERHEAD_BYTES: usize = 1_024;

/// Room at the destinations: how many attempts run at once.
#[derive(Debug)]
pub struct Rooms(BTreeMap<String, Arc<Semaphore>>);

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

// === impl Rooms ===

impl Rooms {
    /// One room a destination, as large as its `concurrency`.
    pub fn new(destinations: &BTreeMap<String, DestinationConfig>) -> Self {
        let room = |config: &DestinationConfig| {
            Arc::new(Semaphore::new(
                config.concurrency.min(Semaphore::MAX_PERMITS),
            ))
        };
        Self(
            destinations
                .iter()
                .map(|(name, config)| (name.clone(), room(config)))
                .collect(),
        )
    }

    /// Waits for room, first come first served; none when it takes longer than `wait`. A destination that is not
    /// configured has no limit, since nothing is sent to it.
    pub async fn enter(&self, destination: &str, wait: Duration) -> Option<Entered> {
        let Some(room) = self.0.get(destination) else {
            return Some(Entered(None));
        };
        let entered = tokio::time::timeout(wait, Arc::clone(room).acquire_owned()).await;
        // The semaphore is never closed.
        Some(Entered(Some(entered.ok()?.ok()?)))
    }
}

/// Room that is taken, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Entered(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

// === impl Entered ===

impl Entered {
    /// For what is not sent.
    pub fn none() -> Self {
        Self(None)
    }
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
