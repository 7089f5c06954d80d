//! What a delivery in work is waiting for, for whoever watches it from outside.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

/// Shared by a job and its watcher. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Arc<AtomicU8>);

/// What there is to wait for, in the order of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum On {
    /// Its time.
    Due,
    /// Room at its destination.
    Room,
    /// The store's answer to a claim.
    Claim,
    /// The end of somebody else's claim.
    OtherClaim,
    /// The receiver.
    Receiver,
    /// The log and the store: the outcome is being written down.
    Settling,
}

// === impl Waiting ===

impl Waiting {
    /// From now on it waits for this.
    pub fn on(&self, on: On) {
        self.0.store(on as u8, Ordering::Relaxed);
    }

    /// For log lines.
    pub fn as_str(&self) -> &'static str {
        const ALL: [On; 6] = [
            On::Due,
            On::Room,
            On::Claim,
            On::OtherClaim,
            On::Receiver,
            On::Settling,
        ];
        let now = self.0.load(Ordering::Relaxed);
        let found = ALL.into_iter().find(|on| *on as u8 == now);
        found.map_or("", On::as_str)
    }
}

// === impl On ===

impl On {
    fn as_str(self) -> &'static str {
        match self {
            Self::Due => "its time",
            Self::Room => "room at its destination",
            Self::Claim => "the store",
            Self::OtherClaim => "another dispatcher's claim",
            Self::Receiver => "the receiver",
            Self::Settling => "the log or the store",
        }
    }
}
