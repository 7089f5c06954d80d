//! When a producer that reports nothing fatal is given up all the same.
//!
//! After a broker had stood still for some seconds, an idempotent producer has been seen to let every record time out,
//! for ever, while other clients of the same broker worked. It says nothing that would tell this from an outage, so what
//! counts is what comes back: no acknowledgement for long, although records were there to be acknowledged. In an outage
//! the rule holds as well; a new producer costs little then.

/// Records that must have timed out: one alone may have been unlucky.
const TIMEOUTS_MIN: u32 = 3;

/// How long a producer is waited for, milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// A record that is not acknowledged after this time is given up.
    pub(super) message_timeout_ms: u64,
    /// A producer that acknowledges nothing for this time is given up. Also the least time between two replacements.
    pub(super) stuck_ms: u64,
}

/// What has come back from one producer. Times are milliseconds of a clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    last_ack_ms: Option<u64>,
    first_timeout_ms_since_ack: Option<u64>,
    timeouts_since_ack: u32,
    /// When this producer took the place of the one before it.
    last_replaced_ms: u64,
}

// === impl Progress ===

impl Progress {
    /// A producer that is new at `now_ms`.
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            last_ack_ms: None,
            first_timeout_ms_since_ack: None,
            timeouts_since_ack: 0,
            last_replaced_ms: now_ms,
        }
    }

    pub(super) fn acknowledged(&mut self, now_ms: u64) {
        self.last_ack_ms = Some(now_ms);
        self.first_timeout_ms_since_ack = None;
        self.timeouts_since_ack = 0;
    }

    pub(super) fn timed_out(&mut self, now_ms: u64) {
        self.first_timeout_ms_since_ack.get_or_insert(now_ms);
        self.timeouts_since_ack = self.timeouts_since_ack.saturating_add(1);
    }

    /// Records that have timed out since the last acknowledgement.
    pub(super) fn timeouts(&self) -> u32 {
        self.timeouts_since_ack
    }

    /// For how long records have waited in vain, milliseconds, when that is too long; none: the producer is not stuck.
    pub(super) fn stuck_for_ms(&self, patience: Patience, now_ms: u64) -> Option<u64> {
        let first_timeout_ms = self.first_timeout_ms_since_ack?;
        // What has timed out first was produced this long before. Silence counts from there: while nothing is produced,
        // nothing is acknowledged either.
        let produced_ms = first_timeout_ms.saturating_sub(patience.message_timeout_ms);
        let silent_since_ms = produced_ms
            .max(self.last_ack_ms.unwrap_or_default())
            .max(self.last_replaced_ms);
        let silent_ms = now_ms.saturating_sub(silent_since_ms);
        (self.timeouts_since_ack >= TIMEOUTS_MIN && silent_ms >= patience.stuck_ms)
            .then_some(silent_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        message_timeout_ms: 8_000,
        stuck_ms: 30_000,
    };

    fn progress(
        last_ack_ms: Option<u64>,
        first_timeout_ms: Option<u64>,
        timeouts: u32,
        last_replaced_ms: u64,
    ) -> Progress {
        Progress {
            last_ack_ms,
            first_timeout_ms_since_ack: first_timeout_ms,
            timeouts_since_ack: timeouts,
            last_replaced_ms,
        }
    }

    #[test]
    fn stuck_is_long_silence_although_records_wait() {
        let day = 86_400_000;
        for (what, progress, now_ms, stuck_for_ms) in [
            ("new", progress(None, None, 0, 0), day, None),
            ("idle", progress(Some(0), None, 0, 0), day, None),
            (
                "as long as it may",
                progress(Some(100_000), Some(108_000), 9, 0),
                129_999,
                None,
            ),
            (
                "silent since the acknowledgement",
                progress(Some(100_000), Some(108_000), 9, 0),
                130_000,
                Some(30_000),
            ),
            (
                "too few",
                progress(Some(100_000), Some(108_000), 2, 0),
                day,
                None,
            ),
            (
                "just enough",
                progress(Some(100_000), Some(108_000), 3, 0),
                130_000,
                Some(30_000),
            ),
            (
                "idle for a day, then an outage of seconds",
                progress(Some(0), Some(day + 8_000), 50, 0),
                day + 29_999,
                None,
            ),
            (
                "idle for a day, then silent",
                progress(Some(0), Some(day + 8_000), 50, 0),
                day + 30_000,
                Some(30_000),
            ),
            (
                "never acknowledged anything",
                progress(None, Some(8_000), 3, 0),
                30_000,
                Some(30_000),
            ),
            (
                "replaced not long ago",
                progress(None, Some(105_000), 50, 100_000),
                129_999,
                None,
            ),
            (
                "replaced long ago",
                progress(None, Some(105_000), 50, 100_000),
                130_000,
                Some(30_000),
            ),
            (
                "a clock that starts late",
                progress(None, Some(1), 3, 5),
                0,
                None,
            ),
        ] {
            let found = progress.stuck_for_ms(PATIENCE, now_ms);
            assert_eq!(found, stuck_for_ms, "{what}");
        }
    }

    #[test]
    fn an_acknowledgement_makes_good_what_was_before() {
        let mut progress = Progress::new(0);
        for now_ms in [8_000, 9_000, 30_000] {
            progress.timed_out(now_ms);
        }
        assert_eq!(progress.stuck_for_ms(PATIENCE, 30_000), Some(30_000));
        assert_eq!(progress.timeouts(), 3);
        progress.acknowledged(30_001);
        assert_eq!(progress.stuck_for_ms(PATIENCE, 100_000), None);
        for now_ms in [100_000, 100_001] {
            progress.timed_out(now_ms);
        }
        assert_eq!(progress.stuck_for_ms(PATIENCE, 150_000), None, "two");
        progress.timed_out(121_999);
        assert_eq!(progress.stuck_for_ms(PATIENCE, 121_999), None, "not long");
        assert_eq!(progress.stuck_for_ms(PATIENCE, 122_000), Some(30_000));
    }
}
