//! The section `destinations.<name>.retry`.

use super::DURATION_MAX;
use runtime::Problem;
use schemas::DelayTier;
use serde::Deserialize;
use std::time::Duration;

/// `destinations.<name>.retry`: waits of `base * factor^(attempt-1)`, at most `cap`, plus up to `jitter` of it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryConfig {
    /// Wait after the first attempt.
    #[serde(with = "humantime_serde")]
    pub base: Duration,
    /// Growth from attempt to attempt.
    pub factor: f64,
    /// Longest wait before jitter.
    #[serde(with = "humantime_serde")]
    pub cap: Duration,
    /// Part of the wait that is added at random, 0 to 1.
    pub jitter: f64,
    /// Attempts before the delivery is dead-lettered.
    pub attempts_max: u32,
    /// Age, counted from the receipt, at which the delivery is dead-lettered.
    #[serde(with = "humantime_serde")]
    pub max_age: Duration,
}

// === impl RetryConfig ===

impl Default for RetryConfig {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(5),
            factor: 3.0,
            cap: Duration::from_secs(6 * 3_600),
            jitter: 0.2,
            attempts_max: 12,
            max_age: Duration::from_secs(3 * 24 * 3_600),
        }
    }
}

impl RetryConfig {
    /// Mistakes in this policy, under the key path `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut require = |good: bool, name: &str, message: &str| {
            if !good {
                problems.push(Problem::new(format!("{key}.{name}"), message));
            }
        };
        require(
            self.base >= DelayTier::SMALLEST.wait(),
            "base",
            "must be at least 5s, the smallest delay tier",
        );
        require(
            self.factor.is_finite() && self.factor >= 1.0,
            "factor",
            "must be a number of at least 1",
        );
        for (name, value) in [
            ("base", self.base),
            ("cap", self.cap),
            ("max_age", self.max_age),
        ] {
            require(value <= DURATION_MAX, name, "must be at most 365 days");
        }
        require(self.cap >= self.base, "cap", "must be at least `base`");
        require(
            (0.0..=1.0).contains(&self.jitter),
            "jitter",
            "must be between 0 and 1",
        );
        require(self.attempts_max > 0, "attempts_max", "must be above 0");
        require(
            self.max_age >= self.base,
            "max_age",
            "must be at least `base`",
        );
        problems
    }
}
