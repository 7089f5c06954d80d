//! The section `[destinations.<name>]`.

use super::{BreakerConfig, DURATION_MAX, RateConfig, RetryConfig};
use ipnet::IpNet;
use runtime::{Problem, SecretRef};
use serde::Deserialize;
use std::time::Duration;
use url::Url;

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
    /// Attempts a second from one process; as many as there are without.
    #[serde(default)]
    pub rate: Option<RateConfig>,
    /// When a destination that only fails, or that is overloaded, is left alone.
    #[serde(default)]
    pub breaker: BreakerConfig,
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
        if let Some(rate) = &self.rate {
            problems.extend(rate.check(&format!("{key}.rate")));
        }
        problems.extend(self.breaker.check(&format!("{key}.breaker"), self));
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

fn default_timeout() -> Duration {
    Duration::from_secs(10)
}

fn default_concurrency() -> usize {
    16
}

fn default_response_bytes_max() -> usize {
    64 << 10
}
