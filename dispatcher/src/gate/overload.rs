//! What a destination that is overloaded is owed: after a 429, or a 503 with Retry-After, it is left alone for as long as it asks;
//! and after those and after timeouts it gets half as many attempts at once, then one more for each full round of
//! successes (AIMD, as TCP does it since Jacobson's "Congestion Avoidance and Control").

/// How one destination is spared, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Attempts at once when all is well.
    pub(super) concurrency: usize,
    /// The pause after an overload for which the receiver names none; doubled while nothing succeeds.
    pub(super) penalty_ms: i64,
    pub(super) penalty_max_ms: i64,
    /// Longest Retry-After that is honoured.
    pub(super) retry_after_max_ms: i64,
}

/// The load of one destination.
#[derive(Clone, Debug)]
pub(super) struct Overload {
    settings: Settings,
    limit: usize,
    /// Successes since the limit changed.
    successes: usize,
    /// Goes up each time the limit is cut: attempts that began before say nothing about the new one.
    cuts: u64,
    /// Since when and for how long nothing is sent.
    closed: Option<(i64, i64)>,
    /// The next penalty.
    penalty_ms: i64,
}

/// What an attempt said about the destination's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Fine,
    /// It asks to be spared, perhaps for so many milliseconds.
    Throttled(Option<i64>),
    TimedOut,
    /// Nothing, such as a refused connection.
    None,
}

// === impl Overload ===

impl Overload {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            limit: settings.concurrency,
            successes: 0,
            cuts: 0,
            closed: None,
            penalty_ms: settings.penalty_ms,
        }
    }

    /// Attempts at once.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// For an attempt that begins now, to be handed back with its end.
    pub(super) fn cuts(&self) -> u64 {
        self.cuts
    }

    /// How long nothing is sent; none when it may be.
    pub(super) fn closed_ms(&mut self, now_ms: i64) -> Option<i64> {
        let (since_ms, for_ms) = self.closed.as_mut()?;
        // Set back, the clock must not make it longer.
        *since_ms = (*since_ms).min(now_ms);
        let left_ms = since_ms.saturating_add(*for_ms).saturating_sub(now_ms);
        if left_ms <= 0 {
            self.closed = None;
            return None;
        }
        Some(left_ms)
    }

    /// Whether it was told to be left alone, as far as anybody has looked.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// An attempt has ended; `cuts` as at its begin.
    pub(super) fn ended(&mut self, cuts: u64, sign: Sign, now_ms: i64) {
        match sign {
            Sign::None => {}
            Sign::Fine => {
                self.penalty_ms = self.settings.penalty_ms;
                self.successes += 1;
                if self.successes >= self.limit {
                    self.successes = 0;
                    self.limit = (self.limit + 1).min(self.settings.concurrency);
                }
            }
            Sign::TimedOut => self.cut(cuts),
            Sign::Throttled(wished_ms) => {
                let wait_ms = wished_ms.map_or(self.penalty_ms, |wished_ms| {
                    wished_ms
                        .max(self.settings.penalty_ms)
                        .min(self.settings.retry_after_max_ms)
                });
                // All that run at once hear the same: one penalty for them.
                if cuts == self.cuts {
                    self.penalty_ms = self
                        .penalty_ms
                        .saturating_mul(2)
                        .min(self.settings.penalty_max_ms);
                }
                self.cut(cuts);
                if wait_ms > self.closed_ms(now_ms).unwrap_or(0) {
                    self.closed = Some((now_ms, wait_ms));
                }
            }
        }
    }

    fn cut(&mut self, cuts: u64) {
        if cuts == self.cuts {
            self.cuts += 1;
            self.successes = 0;
            self.limit = (self.limit / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: Settings = Settings {
        concurrency: 16,
        penalty_ms: 1_000,
        penalty_max_ms: 30_000,
        retry_after_max_ms: 86_400_000,
    };

    #[test]
    fn timeouts_halve_the_limit_once_a_round_and_successes_bring_it_back() {
        let mut overload = Overload::new(SETTINGS);
        for (limit, cuts) in [(8, 0), (4, 1), (2, 2), (1, 3), (1, 4)] {
            for _ in 0..16 {
                overload.ended(cuts, Sign::TimedOut, 0);
            }
            assert_eq!(overload.limit(), limit);
        }
        assert_eq!(overload.closed_ms(0), None);
        let mut successes = 0;
        while overload.limit() < 16 {
            overload.ended(5, Sign::Fine, 0);
            successes += 1;
        }
        assert_eq!(successes, (1..16).sum::<i32>());
    }

    #[test]
    fn retry_after_closes_it_and_is_bounded() {
        let mut overload = Overload::new(SETTINGS);
        overload.ended(0, Sign::Throttled(Some(7_000)), 100);
        assert_eq!(overload.closed_ms(100), Some(7_000));
        assert_eq!(overload.limit(), 8);
        // A shorter one does not shorten it.
        overload.ended(0, Sign::Throttled(Some(2_000)), 200);
        assert_eq!(overload.closed_ms(200), Some(6_900));
        assert_eq!(overload.closed_ms(7_100), None);
        overload.ended(1, Sign::Throttled(Some(i64::MAX)), 8_000);
        assert_eq!(overload.closed_ms(8_000), Some(86_400_000));
        // Set back by a year: still no longer than that.
        assert_eq!(overload.closed_ms(-31_000_000_000), Some(86_400_000));
    }

    #[test]
    fn without_retry_after_the_penalty_doubles_until_something_succeeds() {
        let mut overload = Overload::new(SETTINGS);
        let mut now_ms = 0;
        let mut penalties = Vec::new();
        for cuts in 0..7 {
            overload.ended(cuts, Sign::Throttled(None), now_ms);
            let penalty_ms = overload.closed_ms(now_ms).unwrap();
            penalties.push(penalty_ms / 1_000);
            now_ms += penalty_ms;
        }
        assert_eq!(penalties, [1, 2, 4, 8, 16, 30, 30]);
        overload.ended(7, Sign::Fine, now_ms);
        overload.ended(7, Sign::Throttled(None), now_ms);
        assert_eq!(overload.closed_ms(now_ms), Some(1_000));
    }

    #[test]
    fn a_whole_round_that_is_throttled_counts_once() {
        let mut overload = Overload::new(SETTINGS);
        for _ in 0..16 {
            overload.ended(0, Sign::Throttled(None), 0);
        }
        assert_eq!(overload.limit(), 8);
        assert_eq!(overload.closed_ms(0), Some(2_000));
    }

    proptest! {
        #[test]
        fn the_limit_stays_between_one_and_the_concurrency(
            signs in proptest::collection::vec((0_u8..4, -1_000_000_i64..1_000_000, 0_u64..5), 0..300),
        ) {
            let mut overload = Overload::new(SETTINGS);
            for (sign, ms, behind) in signs {
                let sign = match sign {
                    0 => Sign::Fine,
                    1 => Sign::TimedOut,
                    2 => Sign::Throttled((ms > 0).then_some(ms)),
                    _ => Sign::None,
                };
                overload.ended(overload.cuts().saturating_sub(behind), sign, ms);
                prop_assert!((1..=16).contains(&overload.limit()));
                prop_assert!(overload.closed_ms(ms).is_none_or(|left_ms| left_ms <= 86_400_000));
            }
        }
    }
}
