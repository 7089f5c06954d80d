//! `destinations.<name>.rate` and `destinations.<name>.breaker`.

use super::{DURATION_MAX, DestinationConfig};
use runtime::Problem;
use serde::Deserialize;
use std::time::Duration;

/// More attempts a second can not be told apart by a clock that counts microseconds.
const PER_SECOND_MAX: f64 = 1e6;
/// The window, unless a destination's timeout needs a longer one.
const WINDOW: Duration = Duration::from_secs(60);
/// The attempts, unless a destination makes fewer of them.
const ATTEMPTS_MIN: u32 = 20;

/// `destinations.<name>.rate`: a token bucket.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// Attempts that may begin in a second, from one process.
    pub per_second: f64,
    /// Attempts that may begin at once after a pause.
    #[serde(default = "default_burst")]
    pub burst: u32,
}

/// `destinations.<name>.breaker`: when a destination is left alone.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BreakerConfig {
    /// Off: a destination that fails or is overloaded is tried as often as any other.
    pub enabled: bool,
    /// Attempts of this time count for `failure_rate`. Without: 60 s, or twice the destination's timeout if that is longer.
    #[serde(with = "humantime_serde")]
    pub window: Option<Duration>,
    /// It opens when this part of the attempts in the window failed, above 0, at most 1.
    pub failure_rate: f64,
    /// Fewer attempts in the window say nothing about `failure_rate`. Without: 20, or fewer if the destination's attempts all
    /// ran into its timeout and no more of them fitted into the window.
    pub attempts_min: Option<u32>,
    /// It opens when so many attempts in a row failed, none of them longer than a window after the one before.
    pub consecutive_failures: u32,
    /// For how long it opens first; doubled each time that a probe fails.
    #[serde(with = "humantime_serde")]
    pub open: Duration,
    /// For how long it opens at most.
    #[serde(with = "humantime_serde")]
    pub open_max: Duration,
    /// For how long nothing is sent after a 429 without Retry-After; doubled up to `open_max` while nothing succeeds.
    #[serde(with = "humantime_serde")]
    pub penalty: Duration,
}

// === impl RateConfig ===

impl RateConfig {
    /// Mistakes in this rate, under the key path `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        // From 0.001 on: a slower one would be a pause, not a rate.
        if !(0.001..=PER_SECOND_MAX).contains(&self.per_second) {
            let message = "must be a number between 0.001 and 1000000";
            problems.push(Problem::new(format!("{key}.per_second"), message));
        }
        if self.burst < 1 {
            let message = "must be at least 1: nothing would ever be sent";
            problems.push(Problem::new(format!("{key}.burst"), message));
        }
        problems
    }

    /// Attempts that may begin within `window`.
    fn most_in(&self, window: Duration) -> f64 {
        self.per_second * window.as_secs_f64() + f64::from(self.burst)
    }
}

fn default_burst() -> u32 {
    1
}

// === impl BreakerConfig ===

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            window: None,
            failure_rate: 0.5,
            attempts_min: None,
            consecutive_failures: 10,
            open: Duration::from_secs(5),
            open_max: Duration::from_secs(15),
            penalty: Duration::from_secs(1),
        }
    }
}

impl BreakerConfig {
    /// The window for a destination with this timeout.
    pub fn window(&self, timeout: Duration) -> Duration {
        self.window
            .unwrap_or_else(|| WINDOW.max(timeout.saturating_mul(2)))
    }

    /// The attempts for a destination with these limits.
    pub fn attempts_min(&self, concurrency: usize, timeout: Duration) -> u32 {
        let most = most_hanging(concurrency, timeout, self.window(timeout));
        self.attempts_min
            .unwrap_or_else(|| ATTEMPTS_MIN.min(most).max(1))
    }

    /// Mistakes in this breaker, under the key path `key`, and contradictions to the rest of its destination.
    pub fn check(&self, key: &str, destination: &DestinationConfig) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut require = |good: bool, name: &str, message: &str| {
            if !good {
                problems.push(Problem::new(format!("{key}.{name}"), message));
            }
        };
        let (timeout, window) = (destination.timeout, self.window(destination.timeout));
        require(
            self.failure_rate > 0.0 && self.failure_rate <= 1.0,
            "failure_rate",
            "must be above 0 and at most 1",
        );
        for (name, count) in [
            ("attempts_min", self.attempts_min.unwrap_or(1)),
            ("consecutive_failures", self.consecutive_failures),
        ] {
            require(count > 0, name, "must be above 0");
        }
        for (name, value) in [
            ("window", window),
            ("open", self.open),
            ("open_max", self.open_max),
            ("penalty", self.penalty),
        ] {
            require(!value.is_zero(), name, "must be above 0s");
            require(value <= DURATION_MAX, name, "must be at most 365 days");
        }
        require(
            self.open_max >= self.open,
            "open_max",
            "must be at least `open`",
        );
        require(
            self.open_max >= self.penalty,
            "penalty",
            "must be at most `open_max`",
        );
        require(
            self.open_max < destination.retry.max_age,
            "open_max",
            "must be below `retry.max_age`: deliveries would end while nothing is tried",
        );
        require(
            window >= timeout,
            "window",
            "must be at least `timeout`: an attempt that hangs would be forgotten before it ends",
        );
        let Some(attempts_min) = self.attempts_min.filter(|_| window >= timeout) else {
            return problems;
        };
        let most = most_hanging(destination.concurrency, timeout, window);
        if attempts_min > most {
            let message = format!(
                "at most {most} attempts that hang fit into the window (concurrency x window / timeout): `failure_rate` would \
                 never count"
            );
            problems.push(Problem::new(format!("{key}.attempts_min"), message));
        } else if let Some(rate) = &destination.rate
            && f64::from(attempts_min) > rate.most_in(window)
        {
            let message = "no so many attempts begin within the window at this `rate`: `failure_rate` would never count";
            problems.push(Problem::new(format!("{key}.attempts_min"), message));
        }
        problems
    }
}

/// Attempts that end within `window` when each of them hangs until `timeout`.
fn most_hanging(concurrency: usize, timeout: Duration, window: Duration) -> u32 {
    let rounds = window.as_millis() / timeout.as_millis().max(1);
    let most = rounds.saturating_mul(concurrency as u128);
    u32::try_from(most).unwrap_or(u32::MAX)
}
