//! The only place that reads a clock.
//!
//! Decisions take `now_ms` as an argument; shells hold a [`Clock`] and read it once per step. Tests set it by hand, or let it
//! go with tokio's time, which they can pause.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant as TokioInstant;

/// Wall clock, milliseconds since the Unix epoch. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    kind: Kind,
}

#[derive(Clone, Debug, Default)]
enum Kind {
    #[default]
    System,
    Manual {
        now_ms: Arc<AtomicI64>,
    },
    Going {
        since: TokioInstant,
        /// What it showed then, and jumps added.
        from_ms: Arc<AtomicI64>,
    },
}

// === impl Clock ===

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// A clock that stands at `now_ms` until [`Self::advance`] moves it; clones move together.
    pub fn manual(now_ms: i64) -> Self {
        let now_ms = Arc::new(AtomicI64::new(now_ms));
        Self {
            kind: Kind::Manual { now_ms },
        }
    }

    /// A clock that shows `now_ms` now and goes on with tokio's time, which tests can pause; [`Self::advance`] makes it
    /// jump. Clones jump together. Two such clocks are two machines' clocks, with a skew.
    pub fn going(now_ms: i64) -> Self {
        let from_ms = Arc::new(AtomicI64::new(now_ms));
        let since = TokioInstant::now();
        Self {
            kind: Kind::Going { since, from_ms },
        }
    }

    /// Now, milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        match &self.kind {
            Kind::System => system_ms(),
            Kind::Manual { now_ms } => now_ms.load(Ordering::SeqCst),
            Kind::Going { since, from_ms } => {
                let went_ms = i64::try_from(since.elapsed().as_millis()).unwrap_or(i64::MAX);
                from_ms.load(Ordering::SeqCst).saturating_add(went_ms)
            }
        }
    }

    /// Moves a manual or a going clock by `ms` (negative: back); does nothing to the machine's clock.
    pub fn advance(&self, ms: i64) {
        match &self.kind {
            Kind::System => {}
            Kind::Manual { now_ms: at_ms } | Kind::Going { from_ms: at_ms, .. } => {
                at_ms.fetch_add(ms, Ordering::SeqCst);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_going_clock_follows_tokio_and_jumps() {
        let (one, two) = (Clock::going(1_000), Clock::going(900));
        let same = one.clone();
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!((one.now_ms(), two.now_ms()), (1_250, 1_150));
        one.advance(-500);
        assert_eq!(
            (one.now_ms(), same.now_ms(), two.now_ms()),
            (750, 750, 1_150)
        );
    }
}
