//! How full the spool is, when it began to fill, when it is empty again.

/// What a record takes beside its bytes: its row, its share of a page. Counted, so that many small ones are bounded too.
const ROW_BYTES: u64 = 256;

/// What the spool holds. Counted once when it is opened, kept by arithmetic from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Level {
    /// Waiting for the log.
    pub(super) waiting: Count,
    /// Refused by the log as too large, and kept.
    pub(super) aside: Count,
    /// Append time of the record that waits longest, or a little before. Milliseconds since the Unix epoch.
    pub(super) oldest_ms: Option<i64>,
    /// Since when records have been waiting.
    began_ms: Option<i64>,
    /// How many have gone to the log since then.
    drained: u64,
}

/// Records and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// The last record that waited has gone to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) drained: u64,
    pub(super) lasted_ms: i64,
}

// === impl Level ===

impl Level {
    /// Whether a record of `bytes` still fits.
    pub(super) fn fits(&self, bytes: u64, bytes_max: u64) -> bool {
        let held = self.waiting.bytes.saturating_add(self.aside.bytes);
        held.saturating_add(bytes).saturating_add(ROW_BYTES) <= bytes_max
    }

    /// Counts a record before it is written: the drain may be faster than whoever wrote it. False: it does not fit.
    pub(super) fn reserve(&mut self, bytes: u64, bytes_max: u64, now_ms: i64) -> bool {
        let fits = self.fits(bytes, bytes_max);
        if fits {
            self.waiting.add(bytes);
            self.oldest_ms.get_or_insert(now_ms);
        }
        fits
    }

    /// A reserved record is on the disk. True: the first one, spooling has begun.
    pub(super) fn written(&mut self, now_ms: i64) -> bool {
        let began = self.began_ms.is_none() && self.waiting.records > 0;
        if began {
            self.began_ms = Some(now_ms);
            self.drained = 0;
        }
        began
    }

    /// A reserved record was not written.
    pub(super) fn not_written(&mut self, bytes: u64) {
        self.waiting.subtract(bytes);
        self.forget_oldest();
    }

    /// A record that waited is in the log.
    pub(super) fn drained(&mut self, bytes: u64, now_ms: i64) -> Option<Ended> {
        self.drained += 1;
        self.gone(bytes, now_ms)
    }

    /// A record that waited is kept aside.
    pub(super) fn set_aside(&mut self, bytes: u64, now_ms: i64) -> Option<Ended> {
        self.aside.add(bytes);
        self.gone(bytes, now_ms)
    }

    fn gone(&mut self, bytes: u64, now_ms: i64) -> Option<Ended> {
        self.waiting.subtract(bytes);
        self.forget_oldest();
        if self.waiting.records > 0 {
            return None;
        }
        let began_ms = self.began_ms.take()?;
        Some(Ended {
            drained: self.drained,
            lasted_ms: now_ms.saturating_sub(began_ms),
        })
    }

    fn forget_oldest(&mut self) {
        if self.waiting.records == 0 {
            self.oldest_ms = None;
        }
    }
}

// === impl Count ===

impl Count {
    pub(super) fn add(&mut self, bytes: u64) {
        self.records = self.records.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes.saturating_add(ROW_BYTES));
    }

    /// Never below zero: a record whose writing was answered with an error may be there all the same.
    pub(super) fn subtract(&mut self, bytes: u64) {
        self.records = self.records.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes.saturating_add(ROW_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_and_what_is_aside_share_the_room() {
        let mut level = Level::default();
        assert!(level.reserve(744, 2_000, 5) && level.reserve(744, 2_000, 6));
        assert!(!level.reserve(0, 2_000, 7), "full to the last byte");
        assert_eq!(level.oldest_ms, Some(5));
        level.set_aside(744, 8);
        assert!(!level.reserve(0, 2_000, 9));
        level.drained(744, 10);
        assert!(level.reserve(744, 2_000, 11));
        assert_eq!(level.oldest_ms, Some(11));
        level.not_written(744);
        assert_eq!(level.oldest_ms, None);
        assert_eq!(level.waiting, Count::default());
        assert_eq!(level.aside.records, 1);
    }

    #[test]
    fn spooling_begins_with_the_first_record_and_ends_with_the_last() {
        let mut level = Level::default();
        for _ in 0..2 {
            assert!(level.reserve(1, 9_999, 100));
            assert!(level.reserve(1, 9_999, 100));
            assert!(level.written(110));
            assert!(!level.written(120), "once");
            assert_eq!(level.drained(1, 130), None);
            let ended = Ended {
                drained: 2,
                lasted_ms: 90,
            };
            assert_eq!(level.drained(1, 200), Some(ended));
        }
        // Drained before whoever wrote it came to say so.
        assert!(level.reserve(1, 9_999, 300));
        assert_eq!(level.drained(1, 301), None);
        assert!(!level.written(302));
        // There although its writing was answered with an error.
        assert_eq!(level.drained(1, 303), None);
        assert_eq!(level.waiting, Count::default());
    }
}
