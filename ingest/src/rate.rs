//! How many requests a source may send.
//!
//! The generic cell rate algorithm, by the `governor` crate: one number a source, no queue and no timer. A request that
//! comes too early is refused before its body is read and takes nothing from those behind it.

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::NoOpMiddleware,
    state::{InMemoryState, NotKeyed},
};
use runtime::Problem;
use serde::Deserialize;
use std::{
    fmt,
    num::{NonZeroU32, NonZeroU64},
};

/// Largest `per_second` and `burst`: far above what one process can take, and far below where nanoseconds lose meaning.
const RATE_MAX: u32 = 1_000_000;

/// `[sources.<name>] rate_limit`: requests that one process takes from a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table such as { per_second = 50, burst = 200 }"
)]
pub struct RateLimit {
    /// Requests a second, sustained.
    pub per_second: u32,
    /// Requests that may come at once after a silence; none: as many as in a second.
    #[serde(default)]
    pub burst: Option<u32>,
}

/// A rate limit in force.
pub(crate) struct Bucket<C: Clock = DefaultClock>(
    RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<C::Instant>>,
);

// === impl RateLimit ===

impl RateLimit {
    /// What is wrong with it; `key` is where it stands, e.g. `sources.github.rate_limit`.
    pub(crate) fn check(self, key: &str) -> Vec<Problem> {
        let fields = [("per_second", Some(self.per_second)), ("burst", self.burst)];
        let wrong = fields
            .into_iter()
            .filter(|(_, value)| value.is_some_and(|value| !(1..=RATE_MAX).contains(&value)));
        let problem = |(field, _)| {
            let message = format!("must be from 1 to {RATE_MAX} requests");
            Problem::new(format!("{key}.{field}"), message)
        };
        wrong.map(problem).collect()
    }

    /// A full bucket. A limit that [`Self::check`] refuses counts as the nearest one that it does not.
    pub(crate) fn bucket(self) -> Bucket {
        Bucket::new(self, DefaultClock::default())
    }
}

// === impl Bucket ===

impl<C: Clock> Bucket<C> {
    fn new(limit: RateLimit, clock: C) -> Self {
        let at_least_one = |value| NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::per_second(at_least_one(limit.per_second.min(RATE_MAX)));
        let burst = limit.burst.unwrap_or(limit.per_second).min(RATE_MAX);
        let quota = quota.allow_burst(at_least_one(burst));
        Self(RateLimiter::direct_with_clock(quota, clock))
    }

    /// Takes one request.
    ///
    /// # Errors
    /// The seconds after which one would be taken, when there is no room now.
    pub(crate) fn take(&self) -> Result<(), NonZeroU64> {
        let Err(early) = self.0.check() else {
            return Ok(());
        };
        let wait = early.wait_time_from(self.0.clock().now());
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Err(NonZeroU64::new(seconds).unwrap_or(NonZeroU64::MIN))
    }
}

impl<C: Clock> fmt::Debug for Bucket<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use governor::clock::FakeRelativeClock;
    use std::time::Duration;

    fn limit(per_second: u32, burst: Option<u32>) -> RateLimit {
        RateLimit { per_second, burst }
    }

    fn taken<C: Clock>(bucket: &Bucket<C>) -> usize {
        std::iter::repeat_with(|| bucket.take())
            .take_while(Result::is_ok)
            .count()
    }

    #[test]
    fn a_burst_at_once_and_then_so_many_a_second() {
        let clock = FakeRelativeClock::default();
        let bucket = Bucket::new(limit(4, Some(10)), clock.clone());
        assert_eq!(taken(&bucket), 10);
        clock.advance(Duration::from_millis(249));
        assert_eq!(taken(&bucket), 0);
        clock.advance(Duration::from_millis(1));
        assert_eq!(taken(&bucket), 1, "what was refused has cost nothing");
        clock.advance(Duration::from_secs(1));
        assert_eq!(taken(&bucket), 4);
        clock.advance(Duration::from_hours(1));
        assert_eq!(taken(&bucket), 10, "never more than a burst");
    }

    #[test]
    fn without_a_burst_a_second_of_requests_may_come_at_once() {
        let bucket = Bucket::new(limit(7, None), FakeRelativeClock::default());
        assert_eq!(taken(&bucket), 7);
    }

    #[test]
    fn the_wait_is_told_in_whole_seconds_and_at_least_one() {
        for (per_second, burst) in [(1, 1), (1_000, 1), (1, 3)] {
            let clock = FakeRelativeClock::default();
            let bucket = Bucket::new(limit(per_second, Some(burst)), clock.clone());
            assert_eq!(taken(&bucket), burst as usize);
            assert_eq!(bucket.take(), Err(NonZeroU64::MIN), "{per_second}");
            // Who waits as told is taken.
            clock.advance(Duration::from_secs(1));
            assert_eq!(bucket.take(), Ok(()), "{per_second}");
        }
    }

    #[test]
    fn zero_and_absurd_values_are_mistakes() {
        let keys = |limit: RateLimit| -> Vec<String> {
            let problems = limit.check("r").into_iter();
            problems.map(|problem| problem.key).collect()
        };
        assert_eq!(keys(limit(1, None)), [""; 0]);
        assert_eq!(keys(limit(RATE_MAX, Some(RATE_MAX))), [""; 0]);
        assert_eq!(keys(limit(0, None)), ["r.per_second"]);
        assert_eq!(
            keys(limit(RATE_MAX + 1, Some(0))),
            ["r.per_second", "r.burst"]
        );
        assert_eq!(keys(limit(1, Some(u32::MAX))), ["r.burst"]);
    }
}
