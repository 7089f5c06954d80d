//! How fast a destination takes deliveries, as far as we can tell: for how long somebody would wait, and for how long
//! whoever does not fit is put off.

/// Part of the newest attempt in the mean duration.
const NEWEST: f64 = 0.2;

/// The pace of one destination.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Mean duration of attempts; none before the first has ended.
    took_ms: Option<f64>,
    /// When an attempt ended or began last.
    moved_at_ms: i64,
    /// Until then, what was put off takes all the room there will be.
    booked_until_ms: f64,
}

// === impl Pace ===

impl Pace {
    /// An attempt begins.
    pub(super) fn began(&mut self, now_ms: i64) {
        self.moved_at_ms = now_ms;
    }

    /// An attempt has ended.
    pub(super) fn ended(&mut self, took_ms: i64, now_ms: i64) {
        let took_ms = float(took_ms.max(0));
        self.took_ms = Some(match self.took_ms {
            Some(mean_ms) => mean_ms + NEWEST * (took_ms - mean_ms),
            None => took_ms,
        });
        self.moved_at_ms = now_ms;
    }

    /// Milliseconds from one begin to the next, with `slots` at once that are all taken. Attempts that do not end say so
    /// before they end.
    pub(super) fn each_ms(&self, slots: usize, now_ms: i64) -> f64 {
        let stalled_ms = float(now_ms.saturating_sub(self.moved_at_ms).max(0));
        let slots = u32::try_from(slots.max(1)).map_or(f64::MAX, f64::from);
        self.took_ms.unwrap_or(0.0).max(stalled_ms) / slots
    }

    /// Books the next free time for one that is put off; how long until then, at most `max_ms`.
    pub(super) fn book(&mut self, each_ms: f64, max_ms: i64, now_ms: i64) -> i64 {
        let now = float(now_ms);
        let until = self.booked_until_ms.clamp(now, now + float(max_ms.max(0)));
        self.booked_until_ms = until + each_ms.max(0.0);
        millis(until - now)
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn float(ms: i64) -> f64 {
    ms as f64
}

/// Rounded down, at most what an i64 holds.
#[expect(clippy::cast_possible_truncation, reason = "saturates")]
pub(super) fn millis(ms: f64) -> i64 {
    ms as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_and_a_stall_shows_before_it_ends() {
        let mut pace = Pace::default();
        pace.began(0);
        assert_eq!(millis(pace.each_ms(4, 2_000)), 500);
        pace.ended(100, 2_000);
        assert_eq!(millis(pace.each_ms(4, 2_000)), 25);
        for _ in 0..30 {
            pace.ended(1_000, 2_000);
        }
        assert!((995..=1_000).contains(&millis(pace.each_ms(1, 2_000))));
        assert_eq!(millis(pace.each_ms(1, 9_000)), 7_000);
    }

    #[test]
    fn bookings_follow_each_other_and_time_works_them_off() {
        let mut pace = Pace::default();
        let waits = |pace: &mut Pace, now_ms| [0; 3].map(|_| pace.book(100.0, 10_000, now_ms));
        assert_eq!(waits(&mut pace, 1_000), [0, 100, 200]);
        assert_eq!(waits(&mut pace, 1_150), [150, 250, 350]);
        assert_eq!(waits(&mut pace, 60_000), [0, 100, 200]);
        for _ in 0..1_000 {
            pace.book(100.0, 10_000, 60_000);
        }
        assert_eq!(pace.book(100.0, 10_000, 60_000), 10_000);
        // Set back: as if it were full.
        assert_eq!(pace.book(100.0, 10_000, 0), 10_000);
    }
}
