//! `[ingest]` and `[sources.<name>]`: what a user may set, and what is wrong with it.

use crate::{
    RateLimit, SpoolConfig,
    rule::{self, Answer, IdPlace, Rule, Tolerance, TypePlace},
};
use ipnet::IpNet;
use runtime::{Problem, SecretRef};
use schemas::Reopen;
use serde::Deserialize;
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// Largest `body_bytes_max`: the largest body that any known sender sends (GitHub).
pub const BODY_BYTES_LIMIT: usize = 25 << 20;
/// Secrets that a source may have at once; a rotation needs two.
pub const SECRETS_MAX: usize = 8;
/// Longest source name, bytes. It is part of keys, paths and metric labels.
pub const SOURCE_NAME_BYTES_MAX: usize = 64;

/// `[ingest]`: the HTTP server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IngestConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// What stands before `/<source>` in the path.
    pub path_prefix: String,
    /// A request's head must be complete within this time from its first byte, the first of a connection from the accept on.
    /// Also: what comes before it (PROXY header, TLS handshake); how long an HTTP/2 client may leave a ping unanswered.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// A connection without a request under way is closed after this time. Longer than the time after which a balancer in
    /// front closes its idle connections (often 60 s), else it may send a request into one that is just being closed.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// A request's body must be complete within this time (and within the source's deadline).
    #[serde(with = "humantime_serde")]
    pub body_timeout: Duration,
    /// After a grace of `body_grace`, a body must have arrived with at least this many bytes a second on average.
    pub body_bytes_per_second_min: u64,
    /// See `body_bytes_per_second_min`.
    #[serde(with = "humantime_serde")]
    pub body_grace: Duration,
    /// A client must have taken an answer within this time, whole; else its connection is cut off. Keep it well below
    /// `drain`: at the end such a client is waited for as well.
    #[serde(with = "humantime_serde")]
    pub write_timeout: Duration,
    /// Connections served at once. For a further one, the connection that has waited longest for a request (a second at least)
    /// is closed; while there is none, new ones wait, and those whose last request was not signed end with their next answer.
    pub connections_max: usize,
    /// Connections of one client address at once, an IPv6 /64 counting as one; further ones are closed at once. None: no such
    /// limit, since behind a balancer that does not use the PROXY protocol all clients have its address. Addresses in
    /// `trusted_proxies` are not limited, unless they name the client by the PROXY protocol: then that one counts.
    pub connections_per_address_max: Option<usize>,
    /// Requests on one connection; the last is answered with `connection: close` or followed by a GOAWAY.
    pub requests_per_connection_max: usize,
    /// A connection older than this is closed at its next answer, so that clients spread over processes that were added.
    #[serde(with = "humantime_serde")]
    pub connection_age_max: Duration,
    /// Every connection begins with a PROXY protocol header, version 1 or 2, and comes from `trusted_proxies`; all others
    /// are closed. The client's address is taken from it, and `X-Forwarded-For` is not looked at.
    pub proxy_protocol: bool,
    /// Networks of the proxies in front. Without the PROXY protocol, the client of a request from one of them is the
    /// right-most address in `X-Forwarded-For` that is not one of them.
    pub trusted_proxies: Vec<IpNet>,
    /// TLS at this port; none: plain HTTP.
    pub tls: Option<TlsConfig>,
    /// Bytes of bodies held at once; a request beyond them is answered 503. Heads may have half as many, in their own right.
    pub in_flight_bytes_max: usize,
    /// Requests under way may take this long after the shutdown began.
    #[serde(with = "humantime_serde")]
    pub drain: Duration,
    /// Where webhooks wait that the log does not take. None: they are refused.
    pub spool: Option<SpoolConfig>,
}

/// `[ingest.tls]`: files in PEM, relative to the config file; read again when they change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate, and those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// `[sources.<name>]`: one sender.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// Name of a preset. Exactly one of this and `verify`.
    #[serde(default)]
    pub scheme: Option<String>,
    /// A rule of its own.
    #[serde(default)]
    pub verify: Option<Rule>,
    /// Secrets that a signature may be made with, the current one first.
    #[serde(default)]
    pub secrets: Vec<SecretRef>,
    /// Largest body, bytes; default as the preset says, else 1 MiB.
    #[serde(default)]
    pub body_bytes_max: Option<usize>,
    /// The sender is answered within this time from the arrival of the head; default as the preset says, else 5 s.
    #[serde(default, with = "humantime_serde")]
    pub deadline: Option<Duration>,
    /// Media types to take, without parameters, e.g. `application/json`; others are answered 415. None: all.
    #[serde(default)]
    pub content_types: Option<Vec<String>>,
    /// What a taken webhook is answered with; default as the preset says, else 202 without a body.
    #[serde(default)]
    pub answer: Option<Answer>,
    /// The URL that the sender was given, for the schemes that sign it. Behind a balancer it is another than the one that
    /// ingest sees.
    #[serde(default)]
    pub public_url: Option<String>,
    /// The token that the sender shows when it tries the endpoint out (Meta's `hub.verify_token`).
    #[serde(default)]
    pub handshake_token: Option<SecretRef>,
    /// Event types to take, see [`schemas::event_matches`]; others are answered 2xx and go no further. None: all.
    #[serde(default)]
    pub events: Option<Vec<String>>,
    /// Instead of the rule's places of the delivery id.
    #[serde(default)]
    pub delivery_id: Option<Vec<IdPlace>>,
    /// Instead of the rule's places of the event type.
    #[serde(default)]
    pub event_type: Option<Vec<TypePlace>>,
    /// Instead of the rule's tolerance.
    #[serde(default)]
    pub tolerance: Option<Tolerance>,
    /// Requests taken, signed or not; further ones are answered 429. None: all.
    #[serde(default)]
    pub rate_limit: Option<RateLimit>,
    /// A body that came under another delivery id within this time is not delivered again: for senders that do not sign their
    /// ids. None: bodies are not compared. Used by the dispatcher.
    #[serde(default, with = "humantime_serde")]
    pub replay_window: Option<Duration>,
    /// What a repeated delivery id does to an ended delivery. Used by the dispatcher.
    #[serde(default)]
    pub reopen: Reopen,
}

// === impl IngestConfig ===

impl Default for IngestConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            path_prefix: "/hooks".to_owned(),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            body_bytes_per_second_min: 1_024,
            body_grace: Duration::from_secs(5),
            write_timeout: Duration::from_secs(10),
            connections_max: 1_024,
            connections_per_address_max: None,
            requests_per_connection_max: 10_000,
            connection_age_max: Duration::from_secs(600),
            proxy_protocol: false,
            trusted_proxies: Vec::new(),
            tls: None,
            in_flight_bytes_max: 64 << 20,
            drain: Duration::from_secs(20),
            spool: None,
        }
    }
}

impl IngestConfig {
    /// What is wrong with it; `key` is where it stands, e.g. `ingest`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let prefix = self.path_prefix.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        let empty_segment = prefix.split('/').skip(1).any(str::is_empty);
        if !prefix.starts_with('/') || !prefix.chars().all(plain) || empty_segment {
            let message = "must be a path such as /hooks, without a slash at the end";
            problems.push(Problem::new(format!("{key}.path_prefix"), message));
        }
        for (field, duration) in [
            ("header_timeout", self.header_timeout),
            ("idle_timeout", self.idle_timeout),
            ("body_timeout", self.body_timeout),
            ("body_grace", self.body_grace),
            ("write_timeout", self.write_timeout),
            ("drain", self.drain),
        ] {
            if !is_short(duration) {
                problems.push(Problem::new(format!("{key}.{field}"), SHORT));
            }
        }
        for (field, value) in [
            ("connections_max", self.connections_max),
            (
                "connections_per_address_max",
                self.connections_per_address_max.unwrap_or(1),
            ),
            (
                "requests_per_connection_max",
                self.requests_per_connection_max,
            ),
            ("in_flight_bytes_max", self.in_flight_bytes_max),
        ] {
            // The permits of a semaphore end below this.
            if value == 0 || value > usize::MAX >> 4 {
                problems.push(Problem::new(format!("{key}.{field}"), "must be at least 1"));
            }
        }
        if let Some(spool) = &self.spool {
            problems.extend(spool.check(&format!("{key}.spool")));
        }
        if self.body_bytes_per_second_min == 0 {
            let key = format!("{key}.body_bytes_per_second_min");
            problems.push(Problem::new(key, "must be at least 1"));
        }
        let day = Duration::from_secs(86_400);
        if self.connection_age_max.is_zero() || self.connection_age_max > day {
            let key = format!("{key}.connection_age_max");
            problems.push(Problem::new(key, "must be above zero and at most a day"));
        }
        if self.proxy_protocol && self.trusted_proxies.is_empty() {
            let message = "name the networks of the proxies: anybody could write a PROXY header";
            problems.push(Problem::new(format!("{key}.trusted_proxies"), message));
        }
        problems
    }
}

// === impl SourceConfig ===

impl SourceConfig {
    /// What is wrong with it; `key` is where it stands, e.g. `sources.github`. Reads no secret.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |field: &str, message: String| {
            problems.push(Problem::new(format!("{key}.{field}"), message));
        };
        // All behind the section's name: a quoted key may have dots of its own.
        let name = key.split_once('.').map_or(key, |(_, name)| name);
        if !is_name(name) {
            let message = format!(
                "a source's name is 1 to {SOURCE_NAME_BYTES_MAX} of a-z, 0-9, '-' and '_', a letter or digit first: it \
                 stands in the URL and in `webhook-id`"
            );
            return vec![Problem::new(key, message)];
        }
        self.check_secrets(&mut wrong);
        if let Some(bytes) = self.body_bytes_max
            && (bytes == 0 || bytes > BODY_BYTES_LIMIT)
        {
            wrong(
                "body_bytes_max",
                format!("must be from 1 to {BODY_BYTES_LIMIT} bytes (25 MiB)"),
            );
        }
        if self.deadline.is_some_and(|deadline| !is_short(deadline)) {
            wrong("deadline", SHORT.to_owned());
        }
        self.check_answering(&mut wrong);
        match self.rule() {
            Ok(rule) => {
                if rule.signs_url() && self.public_url.is_none() {
                    wrong(
                        "public_url",
                        "is missing: this sender signs the URL that it was given".to_owned(),
                    );
                }
                let verify = if self.verify.is_some() {
                    format!("{key}.verify")
                } else {
                    key.to_owned()
                };
                problems.extend(rule.check(&verify));
            }
            Err(message) => wrong("scheme", message),
        }
        if let Some(rate_limit) = self.rate_limit {
            problems.extend(rate_limit.check(&format!("{key}.rate_limit")));
        }
        problems
    }

    fn check_secrets(&self, wrong: &mut impl FnMut(&str, String)) {
        if self.secrets.is_empty() || self.secrets.len() > SECRETS_MAX {
            wrong(
                "secrets",
                format!("give 1 to {SECRETS_MAX} secrets: {UNVERIFIED}"),
            );
        }
        for (at, secret) in self.secrets.iter().enumerate() {
            if secret.env.is_some() == secret.file.is_some() {
                wrong(
                    &format!("secrets.{at}"),
                    "give exactly one of `env` and `file`".to_owned(),
                );
            }
        }
        if let Some(token) = &self.handshake_token
            && token.env.is_some() == token.file.is_some()
        {
            wrong(
                "handshake_token",
                "give exactly one of `env` and `file`".to_owned(),
            );
        }
    }

    fn check_answering(&self, wrong: &mut impl FnMut(&str, String)) {
        if let Some(types) = &self.content_types {
            let is_essence = |text: &String| {
                let plain = |c: char| c.is_ascii_alphanumeric() || "!#$&-^_.+/".contains(c);
                text.matches('/').count() == 1 && text.chars().all(plain)
            };
            if types.is_empty() || !types.iter().all(is_essence) {
                let message =
                    "is a list of media types such as application/json, without parameters";
                wrong("content_types", message.to_owned());
            }
        }
        if let Some(events) = &self.events {
            if events.is_empty() {
                wrong(
                    "events",
                    "an empty list takes nothing: leave it out to take all".to_owned(),
                );
            }
            for pattern in events.iter().filter(|pattern| !is_pattern(pattern)) {
                let message = format!("{pattern:?} is neither a type, nor type.*, nor *");
                wrong("events", message);
            }
        }
        if let Some(answer) = &self.answer {
            if !(200..300).contains(&answer.status) {
                let message = "must be from 200 to 299: a webhook that was taken is answered so";
                wrong("answer.status", message.to_owned());
            }
            if answer.status == 204 && !answer.body.is_empty() {
                let message = "must be empty: an answer with the status 204 has no body";
                wrong("answer.body", message.to_owned());
            }
            if http::HeaderValue::from_str(&answer.content_type).is_err() {
                wrong("answer.content_type", "is not a media type".to_owned());
            }
            if answer.body.len() > ANSWER_BYTES_MAX {
                let message = format!("is longer than {ANSWER_BYTES_MAX} bytes");
                wrong("answer.body", message);
            }
        }
        if let Some(window) = self.replay_window
            && !(REPLAY_WINDOW_MIN..=REPLAY_WINDOW_MAX).contains(&window)
        {
            wrong(
                "replay_window",
                "must be from 1 minute to 30 days".to_owned(),
            );
        }
        if let Some(url) = &self.public_url {
            let absolute = url.starts_with("https://") || url.starts_with("http://");
            if !absolute || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
                let message = "is the URL that the sender was given, such as https://hooks.example.com/hooks/square";
                wrong("public_url", message.to_owned());
            }
        }
    }

    /// The rule in force: of the preset or the table, with this source's own places and tolerance.
    ///
    /// # Errors
    /// What is wrong, when there is no such preset or not exactly one rule.
    pub fn rule(&self) -> Result<Rule, String> {
        let mut rule = match (&self.scheme, &self.verify) {
            (Some(name), None) => preset(name)?.verify,
            (None, Some(rule)) => rule.clone(),
            (Some(_), Some(_)) => return Err("give `scheme` or `verify`, not both".to_owned()),
            (None, None) => return Err(format!("give `scheme` or `verify`: {UNVERIFIED}")),
        };
        if let Some(places) = &self.delivery_id {
            rule.delivery_id.clone_from(places);
        }
        if let Some(places) = &self.event_type {
            rule.event_type.clone_from(places);
        }
        if let Some(tolerance) = self.tolerance {
            rule.tolerance = tolerance;
        }
        Ok(rule)
    }

    /// The deadline in force.
    pub fn deadline(&self) -> Duration {
        self.deadline
            .or_else(|| Some(self.preset()?.deadline))
            .unwrap_or(Duration::from_secs(5))
    }

    /// The largest body in force, bytes.
    pub fn body_bytes_max(&self) -> usize {
        self.body_bytes_max
            .or_else(|| self.preset()?.body_bytes_max)
            .unwrap_or(1 << 20)
    }

    /// The media types in force, in lower case; none: all.
    pub fn content_types(&self) -> Option<Vec<String>> {
        let types = self.content_types.clone();
        let types = types.or_else(|| self.preset()?.content_types)?;
        Some(types.iter().map(|text| text.to_ascii_lowercase()).collect())
    }

    /// The answer in force; none: 202 without a body.
    pub fn answer(&self) -> Option<Answer> {
        self.answer.clone().or_else(|| self.preset()?.answer)
    }

    fn preset(&self) -> Option<rule::Preset> {
        preset(self.scheme.as_deref()?).ok()
    }
}

/// A replay takes longer than this to be made, and a window costs a row in the store for each body.
const REPLAY_WINDOW_MIN: Duration = Duration::from_secs(60);
const REPLAY_WINDOW_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);
/// Longest body of an answer, bytes.
const ANSWER_BYTES_MAX: usize = 4_096;
const SHORT: &str = "must be above zero and at most 10 minutes";
const UNVERIFIED: &str = "a source that is not verified takes anything from anybody";

fn preset(name: &str) -> Result<rule::Preset, String> {
    let mut presets = rule::presets()?;
    presets.remove(name).ok_or_else(|| {
        let known: Vec<String> = presets.into_keys().collect();
        format!("no preset {name:?}; there are {}", known.join(", "))
    })
}

fn is_short(duration: Duration) -> bool {
    !duration.is_zero() && duration <= Duration::from_secs(600)
}

fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= SOURCE_NAME_BYTES_MAX
        && name.bytes().next().is_some_and(plain)
        && name
            .bytes()
            .all(|byte| plain(byte) || byte == b'-' || byte == b'_')
}

fn is_pattern(pattern: &str) -> bool {
    let stem = pattern.strip_suffix(".*").unwrap_or(pattern);
    pattern == "*" || (!stem.is_empty() && !stem.contains('*') && !stem.contains(char::is_control))
}
