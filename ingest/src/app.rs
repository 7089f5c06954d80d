//! Everything that a request meets: sources with their secrets, the log, the limits.

use crate::{
    RateLimit,
    body::Budget,
    config::{IngestConfig, SourceConfig},
    metrics::Metrics,
    rate::Bucket,
    rule::Rule,
    verify::key,
};
use http::HeaderMap;
use runtime::{Clock, Problem, Secret};
use schemas::{Codec, event_matches};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

/// Ingest, ready to serve: see [`crate::router`] and [`crate::serve`]. Cheap to clone.
#[derive(Debug)]
pub struct App<L> {
    inner: Arc<Inner<L>>,
}

#[derive(Debug)]
pub(crate) struct Inner<L> {
    pub(crate) config: IngestConfig,
    pub(crate) sources: BTreeMap<String, Arc<Source>>,
    pub(crate) log: L,
    pub(crate) codec: Codec,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) budget: Budget,
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
    events: Option<Vec<String>>,
}

// === impl App ===

impl<L> App<L> {
    /// Checks the config and opens every secret; relative paths of secrets start at `secrets_base`. Telemetry must have
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
        let mut opened = BTreeMap::new();
        for (name, source) in sources {
            let key = format!("sources.{name}");
            if source.body_bytes_max > config.in_flight_bytes_max {
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
        let budget = Budget::new(config.in_flight_bytes_max);
        let metrics = Metrics::new();
        let inner = Inner {
            config,
            sources: opened,
            log,
            codec,
            clock,
            metrics,
            budget,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    pub(crate) fn inner(&self) -> &Inner<L> {
        &self.inner
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
    fn open(
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
                    if let Err(error) = secret.with(|text| key(&rule.secret, text).map(drop)) {
                        problems.push(Problem::new(at, format!("the secret {error}")));
                    }
                    secrets.push(secret);
                }
                Err(error) => problems.push(Problem::new(at, error.to_string())),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            name: name.to_owned(),
            rules: rule.variants(),
            secrets,
            body_bytes_max: config.body_bytes_max,
            deadline: config.deadline(),
            rate: config.rate_limit.map(RateLimit::bucket),
            events: config.events,
        })
    }

    /// The form of the rule whose signature header is there; the plain one when none is.
    pub(crate) fn rule_for(&self, headers: &HeaderMap) -> Option<&Rule> {
        let named = |rule: &&Rule| headers.contains_key(rule.signature.header.as_str());
        self.rules.iter().find(named).or(self.rules.first())
    }

    /// Whether webhooks of this type are taken.
    pub(crate) fn takes(&self, event_type: &str) -> bool {
        let matches = |pattern: &String| event_matches(pattern, event_type);
        self.events
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(matches))
    }
}
