//! Whether the log acknowledges, as the requests of this process see it.
//!
//! A log may call itself ready and acknowledge nothing: a broker that stands still keeps its connections. Each request would
//! then wait for its source's deadline, and senders would run into their own. So when a record was not acknowledged in
//! its time, nor any other since it was handed over, that is an outage. While it lasts, one request at a time tries the log
//! and all others are turned away at once. The first acknowledgement ends it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// What requests have seen of the log.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last_acknowledged: Option<Instant>,
    /// When the outage was noticed; none: there is none.
    since: Option<Instant>,
    /// In an outage: somebody is trying.
    tried: bool,
}

/// A record on its way to the log. Dropped without a word it says nothing about the log.
#[derive(Debug)]
pub(crate) struct Try<'a> {
    outage: &'a Outage,
    began: Instant,
    /// The one that is let through in an outage.
    only: bool,
}

// === impl Outage ===

impl Outage {
    /// Whether a record would be turned away.
    pub(crate) fn turns_away(&self) -> bool {
        let state = self.lock();
        state.since.is_some() && state.tried
    }

    /// Begins to try; none when the log is away and somebody else tries.
    pub(crate) fn begin(&self, now: Instant) -> Option<Try<'_>> {
        let mut state = self.lock();
        let only = state.since.is_some();
        if only && state.tried {
            return None;
        }
        state.tried = only;
        Some(Try {
            outage: self,
            began: now,
            only,
        })
    }

    /// The log has acknowledged something.
    pub(crate) fn acknowledged(&self, now: Instant) {
        let mut state = self.lock();
        state.last_acknowledged = Some(now);
        let ended = state.since.take();
        drop(state);
        if let Some(since) = ended {
            let seconds = now.saturating_duration_since(since).as_secs();
            tracing::info!(seconds, "the log acknowledges again");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Try ===

impl Try<'_> {
    /// It was acknowledged.
    pub(crate) fn acknowledged(self, now: Instant) {
        self.outage.acknowledged(now);
    }

    /// It was not acknowledged, or not in its time.
    pub(crate) fn failed(self, now: Instant) {
        let mut state = self.outage.lock();
        let silent = state.last_acknowledged.is_none_or(|at| at < self.began);
        let news = silent && state.since.is_none();
        if news {
            state.since = Some(now);
        }
        drop(state);
        if news {
            tracing::warn!("the log acknowledges nothing, one request at a time tries it");
        }
    }
}

impl Drop for Try<'_> {
    fn drop(&mut self) {
        if self.only {
            self.outage.lock().tried = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn begin(outage: &Outage, now: Instant) -> Try<'_> {
        outage.begin(now).expect("is let through")
    }

    #[test]
    fn one_at_a_time_tries_a_log_that_acknowledges_nothing() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let outage = Outage::default();
        let (first, second) = (begin(&outage, at(0)), begin(&outage, at(1)));
        assert!(!outage.turns_away());
        first.failed(at(8));
        assert!(!outage.turns_away(), "the next one may try");
        let third = begin(&outage, at(8));
        assert!(outage.turns_away() && outage.begin(at(8)).is_none());
        // One from before the outage has no say in who tries.
        second.failed(at(9));
        assert!(outage.turns_away());
        // A client that goes away.
        drop(third);
        let fourth = begin(&outage, at(10));
        fourth.failed(at(18));
        let fifth = begin(&outage, at(18));
        fifth.acknowledged(at(19));
        assert!(!outage.turns_away());
        let _several = [begin(&outage, at(19)), begin(&outage, at(19))];
        assert!(!outage.turns_away());
    }

    #[test]
    fn a_slow_record_among_others_is_no_outage() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let outage = Outage::default();
        let slow = begin(&outage, at(0));
        begin(&outage, at(1)).acknowledged(at(2));
        slow.failed(at(8));
        let next = begin(&outage, at(8));
        assert!(!outage.turns_away() && outage.begin(at(8)).is_some());
        next.failed(at(16));
        let _only = begin(&outage, at(16));
        assert!(outage.turns_away(), "nothing came since");
    }
}
