//! The sections `[dispatcher]`, `[destinations.<name>]` and `[[routes]]`.

mod auth;
mod destination;
mod gate;
mod pause;
mod proxy;
mod retry;
mod tls;

pub use auth::{AuthConfig, BasicConfig, ClientAuth, HeaderText, OAuth2Config};
pub use destination::{DestinationConfig, SigningConfig, SigningScheme};
pub use gate::{BreakerConfig, RateConfig};
pub use pause::{PauseConfig, WhilePaused};
pub use proxy::ProxyConfig;
pub use retry::RetryConfig;
pub use tls::TlsConfig;

use runtime::Problem;
use schemas::Reopen;
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// Nothing in here makes sense beyond it, and no clock overflows below it.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A record in a window takes 16 bytes.
const WINDOW_MAX: usize = 10_000_000;

/// A crash strands what was in work for one lease.
const LEASE_MAX: Duration = Duration::from_secs(3_600);

/// `[dispatcher]`: how one dispatcher process works.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DispatcherConfig {
    /// How long a claim is good; renewed at a third of it while an attempt runs.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How far the clocks of dispatchers may differ: a lease counts as over only this long after its end.
    #[serde(with = "humantime_serde")]
    pub skew_margin: Duration,
    /// Records in work at once in this process.
    pub in_flight_max: usize,
    /// Body bytes of records in work at once in this process.
    pub in_flight_bytes_max: usize,
    /// The same two for one partition: beyond them, and beyond its equal share of the process's, no more of it is taken.
    /// None: half of the process's.
    pub partition_in_flight_max: Option<usize>,
    pub partition_in_flight_bytes_max: Option<usize>,
    /// Records of one topic and partition from the first unfinished one on. What is finished behind it is read again after
    /// a crash, and remembered until then.
    pub partition_window_max: usize,
    /// Body bytes of deliveries that wait in memory for the last seconds before they are due.
    pub held_bytes_max: usize,
    /// A delivery that waits longer than this for room at its destination is deferred to the smallest delay tier.
    #[serde(with = "humantime_serde")]
    pub room_wait: Duration,
    /// Longest Retry-After that is honoured.
    #[serde(with = "humantime_serde")]
    pub retry_after_max: Duration,
    /// One write to the log is given up (and tried again) after this.
    #[serde(with = "humantime_serde")]
    pub produce_timeout: Duration,
    /// At shutdown, attempts that run may take this long to end.
    #[serde(with = "humantime_serde")]
    pub shutdown_grace: Duration,
}

/// What the dispatcher has to know of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePolicy {
    /// What a repeated delivery id does to an ended delivery.
    pub reopen: Reopen,
    /// A body that came under another delivery id within this time is not delivered again. None: bodies are not compared.
    pub replay_window: Option<Duration>,
}

/// `[[routes]]`: source + event filter → destinations.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// A configured source.
    pub source: String,
    /// Event types: `name` or `name.*` for it and all below it, `*`; all when absent.
    #[serde(default)]
    pub events: Option<Vec<String>>,
    /// Configured destinations.
    pub to: Vec<String>,
}

/// Every mistake in the three sections, with its key path.
pub fn check(
    dispatcher: &DispatcherConfig,
    destinations: &BTreeMap<String, DestinationConfig>,
    routes: &[RouteConfig],
) -> Vec<Problem> {
    let mut problems = dispatcher.check("dispatcher");
    for (name, destination) in destinations {
        if !is_name(name) {
            problems.push(Problem::new(
                format!("destinations.{name}"),
                "a destination's name has 1 to 64 of a-z, 0-9, `-` and `_`, and begins with a letter or digit",
            ));
        }
        let key = format!("destinations.{name}");
        problems.extend(destination.check(&key));
        if destination.concurrency > dispatcher.in_flight_max {
            let message = format!(
                "must be at most dispatcher.in_flight_max = {}: more are never in work",
                dispatcher.in_flight_max
            );
            problems.push(Problem::new(format!("{key}.concurrency"), message));
        }
    }
    for (at, route) in routes.iter().enumerate() {
        if route.to.is_empty() {
            problems.push(Problem::new(
                format!("routes[{at}].to"),
                "names no destination",
            ));
        }
        for to in route.to.iter().filter(|to| !destinations.contains_key(*to)) {
            let message = format!("no [destinations.{to}] is configured");
            problems.push(Problem::new(format!("routes[{at}].to"), message));
        }
        for event in route
            .events
            .iter()
            .flatten()
            .filter(|event| event.is_empty())
        {
            let message = format!("event pattern {event:?} matches nothing");
            problems.push(Problem::new(format!("routes[{at}].events"), message));
        }
    }
    problems
}

/// Names stand in log lines, metrics, the store and the dead letters: the same rule as for sources.
fn is_name(name: &str) -> bool {
    let first = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
    };
    first && name.len() <= 64 && name.bytes().all(plain)
}

// === impl DispatcherConfig ===

impl Default for DispatcherConfig {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            skew_margin: Duration::from_millis(500),
            in_flight_max: 1_024,
            in_flight_bytes_max: 32 << 20,
            partition_in_flight_max: None,
            partition_in_flight_bytes_max: None,
            partition_window_max: 100_000,
            held_bytes_max: 16 << 20,
            room_wait: Duration::from_secs(1),
            retry_after_max: Duration::from_secs(24 * 3_600),
            produce_timeout: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(15),
        }
    }
}

impl DispatcherConfig {
    /// Mistakes in this section, under the key path `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut require = |good: bool, name: &str, message: &str| {
            if !good {
                problems.push(Problem::new(format!("{key}.{name}"), message));
            }
        };
        for (name, value) in [
            ("lease", self.lease),
            ("skew_margin", self.skew_margin),
            ("room_wait", self.room_wait),
            ("retry_after_max", self.retry_after_max),
            ("produce_timeout", self.produce_timeout),
            ("shutdown_grace", self.shutdown_grace),
        ] {
            require(value <= DURATION_MAX, name, "must be at most 365 days");
        }
        require(
            (Duration::from_secs(1)..=LEASE_MAX).contains(&self.lease),
            "lease",
            "must be between 1s and 1h: what a crash interrupts waits for its end",
        );
        require(
            self.skew_margin.saturating_mul(4) <= self.lease,
            "skew_margin",
            "must be at most a quarter of `lease`",
        );
        require(self.in_flight_max > 0, "in_flight_max", "must be above 0");
        require(
            self.in_flight_bytes_max > 0,
            "in_flight_bytes_max",
            "must be above 0",
        );
        require(
            self.partition_in_flight_max
                .is_none_or(|max| (1..=self.in_flight_max).contains(&max)),
            "partition_in_flight_max",
            "must be above 0 and at most `in_flight_max`",
        );
        require(
            self.partition_in_flight_bytes_max
                .is_none_or(|max| (1..=self.in_flight_bytes_max).contains(&max)),
            "partition_in_flight_bytes_max",
            "must be above 0 and at most `in_flight_bytes_max`",
        );
        require(
            (self.in_flight_max..=WINDOW_MAX).contains(&self.partition_window_max),
            "partition_window_max",
            "must be at least `in_flight_max`, which one partition may have in work alone, and at most 10000000",
        );
        require(
            self.room_wait <= self.lease,
            "room_wait",
            "must be at most `lease`: a waiting record holds its partition's watermark",
        );
        require(
            self.held_bytes_max < self.in_flight_bytes_max,
            "held_bytes_max",
            "must be below `in_flight_bytes_max`, which counts held bodies too",
        );
        require(
            !self.produce_timeout.is_zero(),
            "produce_timeout",
            "must be above 0s",
        );
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "0", "billing-2_eu", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-a", "_a", "A", "a.b", "a b", "é", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
