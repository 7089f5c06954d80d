//! The section `[destinations.<name>]`.

use super::{
    AuthConfig, BreakerConfig, DURATION_MAX, HeaderText, PauseConfig, ProxyConfig, RateConfig,
    RetryConfig, TlsConfig, auth::check_headers,
};
use ipnet::IpNet;
use runtime::{Problem, SecretRef};
use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};
use url::{Host, Url};

/// Ports of public addresses that are dialled without being named.
const PORTS: [u16; 3] = [80, 443, 8443];

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
    /// When it is left alone until somebody resumes it.
    #[serde(default)]
    pub pause: PauseConfig,
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
    /// Ports that are dialled besides 80, 443 and 8443. Addresses in `allow_cidrs` are dialled at every port.
    #[serde(default)]
    pub ports: Vec<u16>,
    /// Authorities and our certificate; the system's authorities and none without.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
    /// Headers of every request, over those of the sender.
    #[serde(default)]
    pub headers: BTreeMap<String, HeaderText>,
    /// Credentials of every request.
    #[serde(default)]
    pub auth: Option<AuthConfig>,
    /// The way out; directly without.
    #[serde(default)]
    pub proxy: Option<ProxyConfig>,
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
    /// A destination at `url`, all else by default.
    pub fn to(url: Url) -> Self {
        Self {
            url,
            timeout: default_timeout(),
            concurrency: default_concurrency(),
            rate: None,
            breaker: BreakerConfig::default(),
            retry: RetryConfig::default(),
            pause: PauseConfig::default(),
            retry_statuses: Vec::new(),
            signing: None,
            allow_cidrs: Vec::new(),
            allow_http: false,
            ports: Vec::new(),
            tls: None,
            headers: BTreeMap::new(),
            auth: None,
            proxy: None,
            response_bytes_max: default_response_bytes_max(),
        }
    }

    /// Whether the port of `url` is one that is dialled at public addresses.
    pub fn is_public_port(&self, url: &Url) -> bool {
        let port = url.port_or_known_default().unwrap_or_default();
        PORTS.contains(&port) || self.ports.contains(&port)
    }

    /// Mistakes in this destination, under the key path `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = self.check_url(&self.url, &format!("{key}.url"));
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
        require(!self.ports.contains(&0), "ports", "0 is no port");
        if let Some(rate) = &self.rate {
            problems.extend(rate.check(&format!("{key}.rate")));
        }
        problems.extend(self.breaker.check(&format!("{key}.breaker"), self));
        problems.extend(self.retry.check(&format!("{key}.retry")));
        problems.extend(self.pause.check(&format!("{key}.pause"), self));
        problems.extend(self.check_identity(key));
        problems
    }

    /// Certificates, headers, credentials and the way out.
    fn check_identity(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Some(tls) = &self.tls {
            problems.extend(tls.check(&format!("{key}.tls")));
            if self.url.scheme() == "http" {
                let message = "is for https only, and `url` is plain http";
                problems.push(Problem::new(format!("{key}.tls"), message));
            }
        }
        let authorized = self.auth.is_some();
        problems.extend(check_headers(
            &self.headers,
            authorized,
            &format!("{key}.headers"),
        ));
        if let Some(auth) = &self.auth {
            problems.extend(auth.check(&format!("{key}.auth")));
            if let Some(oauth2) = &auth.oauth2 {
                let key = format!("{key}.auth.oauth2.token_url");
                problems.extend(self.check_url(&oauth2.token_url, &key));
            }
        }
        if let Some(proxy) = &self.proxy {
            problems.extend(proxy.check(&format!("{key}.proxy")));
        }
        problems
    }

    /// The URL of the destination or of its token endpoint.
    fn check_url(&self, url: &Url, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        match url.scheme() {
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
        if url.host().is_none() {
            problems.push(Problem::new(key, "has no host"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            problems.push(Problem::new(
                key,
                "user and password do not belong into the URL",
            ));
        }
        if url.fragment().is_some() {
            problems.push(Problem::new(key, "a fragment is never sent"));
        }
        // Without a proxy the address is judged with its port when it is known.
        let is_name = matches!(url.host(), Some(Host::Domain(_)));
        let unjudged = is_name && (self.allow_cidrs.is_empty() || self.proxy.is_some());
        if unjudged && !self.is_public_port(url) {
            let port = url.port_or_known_default().unwrap_or_default();
            let or_inside = if self.proxy.is_some() {
                ""
            } else {
                ", or its network in `allow_cidrs` if the address is not public"
            };
            let message =
                format!("port {port} is none of 80, 443 and 8443; name it in `ports`{or_inside}");
            problems.push(Problem::new(key, message));
        }
        if self.proxy.is_some() && url.scheme() == "http" {
            problems.push(Problem::new(
                key,
                "a proxy is only asked for https, by CONNECT",
            ));
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
