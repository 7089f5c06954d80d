//! The sections `[dispatcher]`, `[destinations.<name>]` and `[[routes]]`.

use ipnet::IpNet;
use runtime::{Problem, SecretRef};
use schemas::{DelayTier, Reopen};
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};
use url::Url;

/// Nothing in here makes sense beyond it, and no clock overflows below it.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

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

/// `[destinations.<name>]`: an HTTP endpoint with its limits, retry policy and signing secrets.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestinationConfig {
    /// Where to POST. https unless `allow_http`.
    pub url: Url,
    /// One deadline over DNS, connect, TLS, headers and body of an attempt.
    #[serde(with = "humantime_serde", default = "default_timeout")]
    pub timeout: Duration,
    /// Attempts at once from one process.
    #[serde(default = "default_concurrency")]
    pub concurrency: usize,
    /// When and how often to try again.
    #[serde(default)]
    pub retry: RetryConfig,
    /// Statuses to retry although they count as permanent, e.g. `[404]`.
    #[serde(default)]
    pub retry_statuses: Vec<u16>,
    /// How the request is signed; unsigned without.
    #[serde(default)]
    pub signing: Option<SigningConfig>,
    /// Networks that may be dialled although they are not public.
    #[serde(default)]
    pub allow_cidrs: Vec<IpNet>,
    /// Plain http is allowed.
    #[serde(default)]
    pub allow_http: bool,
    /// Bytes of a response that are read; the rest is cut off with the connection.
    #[serde(default = "default_response_bytes_max")]
    pub response_bytes_max: usize,
}

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

/// `destinations.<name>.signing`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigningConfig {
    /// What the signature covers.
    #[serde(default)]
    pub scheme: SigningScheme,
    /// Every secret signs, so that receivers can rotate.
    pub secrets: Vec<SecretRef>,
}

/// What an outgoing signature covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SigningScheme {
    /// Standard Webhooks v1: `id.timestamp.body`.
    #[default]
    StandardWebhooks,
    /// Length-framed timestamp, id, event type, content type and body.
    Framed,
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
        problems.extend(destination.check(&format!("destinations.{name}")));
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

// === impl DestinationConfig ===

impl DestinationConfig {
    /// Mistakes in this destination, under the key path `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = self.check_url(&format!("{key}.url"));
        let mut require = |good: bool, name: &str, message: &str| {
            if !good {
                problems.push(Problem::new(format!("{key}.{name}"), message));
            }
        };
        require(!self.timeout.is_zero(), "timeout", "must be above 0s");
        require(
            self.timeout <= DURATION_MAX,
            "timeout",
            "must be at most 365 days",
        );
        require(self.concurrency > 0, "concurrency", "must be above 0");
        for status in &self.retry_statuses {
            let good = (300..500).contains(status);
            require(
                good,
                "retry_statuses",
                "only 3xx and 4xx statuses can be named",
            );
        }
        if let Some(signing) = &self.signing {
            require(
                !signing.secrets.is_empty(),
                "signing.secrets",
                "names no secret",
            );
        }
        problems.extend(self.retry.check(&format!("{key}.retry")));
        problems
    }

    fn check_url(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        match self.url.scheme() {
            "https" => {}
            "http" if self.allow_http => {}
            "http" => problems.push(Problem::new(
                key,
                "plain http is refused; use https, or set `allow_http = true` for this destination",
            )),
            other => {
                problems.push(Problem::new(
                    key,
                    format!("scheme {other:?} can not be delivered to"),
                ));
            }
        }
        if self.url.host().is_none() {
            problems.push(Problem::new(key, "has no host"));
        }
        if !self.url.username().is_empty() || self.url.password().is_some() {
            problems.push(Problem::new(
                key,
                "user and password do not belong into the URL",
            ));
        }
        if self.url.fragment().is_some() {
            problems.push(Problem::new(key, "a fragment is never sent"));
        }
        problems
    }
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

fn default_timeout() -> Duration {
    Duration::from_secs(10)
}

fn default_concurrency() -> usize {
    16
}

fn default_response_bytes_max() -> usize {
    64 << 10
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
