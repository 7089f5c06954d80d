//! The bounds of what waits for an acknowledgement.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// What waits for an acknowledgement, and its bounds.
pub(super) struct Load {
    records_max: usize,
    bytes_max: usize,
    records: AtomicUsize,
    bytes: AtomicUsize,
}

/// A share of the load, given back when the record is acknowledged or given up. It travels with the record through
/// librdkafka: a caller that stops waiting frees nothing that is still queued.
pub(super) struct Permit {
    load: Arc<Load>,
    bytes: usize,
}

// === impl Load ===

impl Load {
    pub(super) fn new(records_max: usize, bytes_max: usize) -> Self {
        Self {
            records_max,
            bytes_max,
            records: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Records that wait now.
    #[cfg(test)]
    pub(super) fn records(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// Takes a share, or none when a bound is reached. A single record always fits (the config check sees to it).
    pub(super) fn acquire(self: &Arc<Self>, bytes: usize) -> Option<Permit> {
        let records = self.records.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let permit = Permit {
            load: Arc::clone(self),
            bytes,
        };
        (records <= self.records_max && total <= self.bytes_max).then_some(permit)
    }
}

// === impl Permit ===

impl Permit {
    /// Size of the record.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.load.records.fetch_sub(1, Ordering::Relaxed);
        self.load.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
