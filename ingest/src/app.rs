//! Everything that a request meets: sources with their secrets, the log, the limits.

use crate::{
    RateLimit,
    body::Budget,
    certificates::Certificates,
    config::{IngestConfig, SourceConfig},
    metrics::Metrics,
    outage::Outage,
    rate::Bucket,
    rule::{Answer, Rule, presets},
    server::Tls,
    spool::Spool,
};
use http::{HeaderMap, header};
use ring::rand::{SecureRandom, SystemRandom};
use runtime::{Clock, Problem, Secret};
use schemas::{Codec, event_matches};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

/// Ingest, ready to serve: see [`crate::router`] and [`crate::serve`]. Cheap to clone.
#[derive(Debug)]
pub struct App<L> {
    inner: Arc<Inner<L>>,
}

#[derive(Debug)]
pub(crate) struct Inner<L> {
    pub(crate) config: IngestConfig,
    pub(crate) sources: BTreeMap<String, Arc<Source>>,
    /// Stands in for a source that there is not: it takes as long to refuse a request.
    pub(crate) decoy: Arc<Source>,
    pub(crate) log: L,
    pub(crate) codec: Codec,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) budget: Budget,
    /// There when a source needs them.
    pub(crate) certificates: Option<Arc<Certificates>>,
    pub(crate) outage: Outage,
    pub(crate) spool: OnceLock<Spool>,
    pub(crate) tls: Option<Arc<Tls>>,
}

/// A configured sender.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    /// The rule, and its forms under other header names. Never empty.
    pub(crate) rules: Vec<Rule>,
    pub(crate) secrets: Vec<Secret>,
    pub(crate) body_bytes_max: usize,
    pub(crate) deadline: Duration,
    pub(crate) rate: Option<Bucket>,
    /// In lower case; none: all.
    content_types: Option<Vec<String>>,
    pub(crate) answer: Option<Answer>,
    pub(crate) public_url: Option<String>,
    pub(crate) handshake_token: Option<Secret>,
    events: Option<Vec<String>>,
}

// === impl App ===

impl<L> App<L> {
    /// Checks the config and opens every secret and certificate; their relative paths start at `secrets_base`. Telemetry must have
    /// been started before, else the metrics count for nobody.
    ///
    /// # Errors
    /// Every mistake found, with its key path.
    pub fn new(
        config: IngestConfig,
        sources: BTreeMap<String, SourceConfig>,
        secrets_base: &Path,
        log: L,
        codec: Codec,
        clock: Clock,
    ) -> Result<Self, Vec<Problem>> {
        let mut problems = config.check("ingest");
        let tls = config.tls.as_ref();
        let tls = tls
            .map(|files| Tls::open(files, secrets_base, "ingest.tls"))
            .transpose()
            .unwrap_or_else(|found| {
                problems.extend(found);
                None
            });
        let mut opened = BTreeMap::new();
        for (name, source) in sources {
            let key = format!("sources.{name}");
            if source.body_bytes_max() > config.in_flight_bytes_max {
                let message =
                    "is more than ingest.in_flight_bytes_max: such a body could never be taken";
                problems.push(Problem::new(format!("{key}.body_bytes_max"), message));
            }
            match Source::open(&name, source, &key, secrets_base) {
                Ok(source) => drop(opened.insert(name, Arc::new(source))),
                Err(found) => problems.extend(found),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let needed = |source: &Arc<Source>| source.rules.iter().any(Rule::needs_certificate);
        let certificates = if opened.values().any(needed) {
            let made = Certificates::of_paypal().map_err(|error| {
                let message = format!("no client can be built to fetch certificates: {error}");
                vec![Problem::new("sources", message)]
            });
            Some(Arc::new(made?))
        } else {
            None
        };
        let budget = Budget::new(config.in_flight_bytes_max);
        let metrics = Metrics::new();
        let decoy = Source::decoy().map_err(|message| vec![Problem::new("sources", message)])?;
        let inner = Inner {
            config,
            sources: opened,
            decoy: Arc::new(decoy),
            log,
            codec,
            clock,
            metrics,
            budget,
            certificates,
            outage: Outage::default(),
            spool: OnceLock::new(),
            tls: tls.map(Arc::new),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// From now on, what the log does not take goes to `spool`. There can be one: a second one is not used.
    pub fn spool_to(&self, spool: Spool) {
        if self.inner.spool.set(spool).is_err() {
            tracing::warn!("there is a spool already");
        }
    }

    pub(crate) fn inner(&self) -> &Inner<L> {
        &self.inner
    }

    /// Takes certificates from elsewhere. Before the app is cloned.
    #[cfg(test)]
    pub(crate) fn with_certificates(mut self, certificates: Arc<Certificates>) -> Self {
        Arc::get_mut(&mut self.inner).unwrap().certificates = Some(certificates);
        self
    }
}

impl<L> Clone for App<L> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

// === impl Source ===

impl Source {
    pub(crate) fn open(
        name: &str,
        config: SourceConfig,
        at: &str,
        secrets_base: &Path,
    ) -> Result<Self, Vec<Problem>> {
        let mut problems = config.check(at);
        if !problems.is_empty() {
            return Err(problems);
        }
        let rule = config
            .rule()
            .map_err(|message| vec![Problem::new(at, message)])?;
        let mut secrets = Vec::new();
        for (slot, place) in config.secrets.iter().enumerate() {
            let at = format!("{at}.secrets.{slot}");
            match Secret::open(place, secrets_base) {
                Ok(secret) => {
                    if let Err(error) = rule.checks(&secret) {
                        problems.push(Problem::new(at, format!("the secret {error}")));
                    }
                    secrets.push(secret);
                }
                Err(error) => problems.push(Problem::new(at, error.to_string())),
            }
        }
        let mut handshake_token = None;
        if let Some(place) = &config.handshake_token {
            match Secret::open(place, secrets_base) {
                Ok(secret) => handshake_token = Some(secret),
                Err(error) => problems.push(Problem::new(
                    format!("{at}.handshake_token"),
                    error.to_string(),
                )),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            name: name.to_owned(),
            rules: rule.variants(),
            secrets,
            body_bytes_max: config.body_bytes_max(),
            content_types: config.content_types(),
            answer: config.answer(),
            deadline: config.deadline(),
            rate: config.rate_limit.map(RateLimit::bucket),
            public_url: config.public_url,
            handshake_token,
            events: config.events,
        })
    }

    /// A source whose secret nobody knows.
    fn decoy() -> Result<Self, String> {
        let mut presets = presets()?;
        let preset = presets.remove("github").ok_or("no preset github")?;
        let mut secret = vec![0; 32];
        let drawn = SystemRandom::new().fill(&mut secret);
        drawn.map_err(|_unspecified| "the system gives no random bytes".to_owned())?;
        Ok(Self {
            name: "unknown".to_owned(),
            rules: preset.verify.variants(),
            secrets: vec![Secret::from_bytes(secret)],
            body_bytes_max: 1 << 20,
            deadline: preset.deadline,
            content_types: None,
            answer: None,
            rate: None,
            public_url: None,
            handshake_token: None,
            events: None,
        })
    }

    /// The form of the rule whose signature header is there; the plain one when none is.
    pub(crate) fn rule_for(&self, headers: &HeaderMap) -> Option<&Rule> {
        rule_for(&self.rules, headers)
    }

    /// Whether some handshake comes as a GET request.
    pub(crate) fn greets(&self) -> bool {
        let mut handshakes = self.rules.iter().flat_map(|rule| &rule.handshake);
        handshakes.any(|handshake| handshake.query.is_some())
    }

    /// Whether a body of the headers' media type is taken.
    pub(crate) fn takes_type(&self, headers: &HeaderMap) -> bool {
        let Some(types) = &self.content_types else {
            return true;
        };
        let given = headers.get(header::CONTENT_TYPE);
        let essence = given
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.split(';').next());
        essence.is_some_and(|essence| types.contains(&essence.trim().to_ascii_lowercase()))
    }

    /// Whether webhooks of this type are taken.
    pub(crate) fn takes(&self, event_type: &str) -> bool {
        let matches = |pattern: &String| event_matches(pattern, event_type);
        self.events
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(matches))
    }
}

/// Of the forms of a rule the one whose signature header is there; the first when none is.
pub fn rule_for<'a>(rules: &'a [Rule], headers: &HeaderMap) -> Option<&'a Rule> {
    let named = |rule: &&Rule| {
        let signature = rule.signature.as_ref();
        signature.is_some_and(|signature| headers.contains_key(signature.header.as_str()))
    };
    rules.iter().find(named).or(rules.first())
}
