//! How many attempts begin in a second: a token bucket, kept as one number (GCRA, ITU-T I.371: the time at which the bucket
//! would be full again). Our own, because the usual crates read the machine's clock.

use crate::config::RateConfig;

/// The bucket of one destination.
#[derive(Clone, Debug)]
pub(super) struct Rate {
    /// Microseconds that a token takes to grow again.
    interval_us: i64,
    /// Tokens in a full bucket.
    burst: i64,
    /// When the bucket is full again, microseconds since the Unix epoch.
    full_at_us: i64,
}

// === impl Rate ===

impl Rate {
    /// A full bucket.
    pub(super) fn new(config: &RateConfig) -> Self {
        Self {
            interval_us: interval_us(config.per_second),
            burst: i64::from(config.burst.max(1)),
            full_at_us: i64::MIN,
        }
    }

    /// Milliseconds until there is a token for somebody who has `ahead` others before him; 0: now.
    pub(super) fn wait_ms(&self, ahead: usize, now_ms: i64) -> i64 {
        let now_us = now_ms.saturating_mul(1_000);
        let ahead = i64::try_from(ahead).unwrap_or(i64::MAX);
        let needed = self.interval_us.saturating_mul(ahead.saturating_add(1));
        let wait_us = self
            .missing_us(now_us)
            .saturating_add(needed)
            .saturating_sub(self.full_us());
        // Rounded up: never early.
        wait_us.max(0).saturating_add(999) / 1_000
    }

    /// Takes a token. The caller has asked [`Self::wait_ms`].
    pub(super) fn take(&mut self, now_ms: i64) {
        let now_us = now_ms.saturating_mul(1_000);
        self.full_at_us = now_us
            .saturating_add(self.missing_us(now_us))
            .saturating_add(self.interval_us);
    }

    /// Puts a token back that was not used.
    pub(super) fn give_back(&mut self) {
        self.full_at_us = self.full_at_us.saturating_sub(self.interval_us);
    }

    /// Milliseconds that a token takes to grow again.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn interval_ms(&self) -> f64 {
        self.interval_us as f64 / 1_000.0
    }

    /// What the bucket lacks, as time. Never more than all of it, so that a clock that was set back costs one bucket only.
    fn missing_us(&self, now_us: i64) -> i64 {
        self.full_at_us
            .saturating_sub(now_us)
            .clamp(0, self.full_us())
    }

    fn full_us(&self) -> i64 {
        self.interval_us.saturating_mul(self.burst)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "clamped to what an i64 holds exactly"
)]
fn interval_us(per_second: f64) -> i64 {
    let us = (1e6 / per_second).round();
    if us.is_finite() {
        us.clamp(1.0, 1e15) as i64
    } else {
        1_000_000_000_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(per_second: f64, burst: u32) -> Rate {
        Rate::new(&RateConfig { per_second, burst })
    }

    #[test]
    fn a_full_bucket_then_one_after_the_other() {
        let mut rate = rate(2.0, 3);
        for _ in 0..3 {
            assert_eq!(rate.wait_ms(0, 1_000), 0);
            rate.take(1_000);
        }
        assert_eq!(rate.wait_ms(0, 1_000), 500);
        assert_eq!(rate.wait_ms(2, 1_000), 1_500);
        assert_eq!(rate.wait_ms(0, 1_499), 1);
        assert_eq!(rate.wait_ms(0, 1_500), 0);
        rate.take(1_500);
        assert_eq!(rate.wait_ms(0, 1_500), 500);
        rate.give_back();
        assert_eq!(rate.wait_ms(0, 1_500), 0);
    }

    #[test]
    fn a_clock_that_was_set_back_costs_one_bucket() {
        let mut rate = rate(1.0, 5);
        rate.take(1_000_000_000);
        assert_eq!(rate.wait_ms(0, 0), 1_000);
    }

    proptest! {
        /// In any stretch of time no more than burst + rate x time.
        #[test]
        fn never_more_than_burst_and_rate(
            per_second in 0.1_f64..500.0,
            burst in 1_u32..50,
            steps in proptest::collection::vec(0_i64..400, 1..300),
        ) {
            let mut rate = rate(per_second, burst);
            let mut now_ms = 1_800_000_000_000;
            let mut taken: Vec<i64> = Vec::new();
            for step in steps {
                now_ms += step;
                if rate.wait_ms(0, now_ms) == 0 {
                    rate.take(now_ms);
                    taken.push(now_ms);
                }
            }
            for (at, from) in taken.iter().enumerate() {
                for (more, to) in taken[at..].iter().enumerate() {
                    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                    let most = f64::from(burst) + per_second * (to - from) as f64 / 1_000.0;
                    prop_assert!(f64::from(u32::try_from(more + 1).unwrap()) <= most + 0.01);
                }
            }
        }

        /// Whoever waits as long as he is told finds a token, when those ahead of him took theirs as soon as they could.
        #[test]
        fn the_wait_is_exact(per_second in 0.1_f64..500.0, burst in 1_u32..50, taken in 0_u32..100, ahead in 0_usize..20) {
            let mut rate = rate(per_second, burst);
            let mut now_ms = 5_000_000;
            for _ in 0..taken {
                now_ms += rate.wait_ms(0, now_ms);
                rate.take(now_ms);
            }
            let told_ms = now_ms + rate.wait_ms(ahead, now_ms);
            for _ in 0..ahead {
                now_ms += rate.wait_ms(0, now_ms);
                rate.take(now_ms);
            }
            now_ms += rate.wait_ms(0, now_ms);
            // Each of them may wait for a millisecond to be full.
            let rounded_ms = i64::try_from(ahead).unwrap();
            prop_assert!((told_ms..=told_ms + rounded_ms).contains(&now_ms), "{told_ms} {now_ms}");
        }
    }
}
