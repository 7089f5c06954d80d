//! The only place that reads a clock.
//!
//! Decisions take `now_ms` as an argument; shells hold a [`Clock`] and read it once per step. Tests set it by hand.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Wall clock, milliseconds since the Unix epoch. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    manual_ms: Option<Arc<AtomicI64>>,
}

// === impl Clock ===

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands at `now_ms` until [`Self::advance`] moves it; clones move together.
    pub fn manual(now_ms: i64) -> Self {
        Self {
            manual_ms: Some(Arc::new(AtomicI64::new(now_ms))),
        }
    }

    /// Now, milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        match &self.manual_ms {
            Some(manual_ms) => manual_ms.load(Ordering::SeqCst),
            None => system_ms(),
        }
    }

    /// Moves a manual clock by `ms` (negative: back); does nothing to the machine's clock.
    pub fn advance(&self, ms: i64) {
        if let Some(manual_ms) = &self.manual_ms {
            manual_ms.fetch_add(ms, Ordering::SeqCst);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the machine's clock"
)]
fn system_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    }
}

/// Milliseconds since this function was first called; never goes back.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the machine's clock"
)]
pub(crate) fn monotonic_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}
