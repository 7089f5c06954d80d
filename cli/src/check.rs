//! Mistakes that show only when sections are seen together, and what a process would refuse at its start.

mod start;

use crate::{
    config::{Config, Loaded},
    reconcile,
};
use dedup_store::config::StoreConfig;
use event_log::config::LogConfig;
use runtime::Problem;
use std::time::Duration;

/// What a record has besides the body, bytes: headers as ingest limits them, the history of attempts, framing.
const RECORD_OVERHEAD_BYTES: usize = 128 * 1024;

/// What a check found. Warnings do not keep a process from running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

// === impl Findings ===

impl Findings {
    /// Adds what is not named yet: a place that is wrong in itself is found again by whoever uses it.
    fn add(&mut self, problems: Vec<Problem>) {
        for problem in problems.into_iter().map(in_one_notation) {
            if !self.problems.iter().any(|named| named.key == problem.key) {
                self.problems.push(problem);
            }
        }
    }
}

/// Checks everything, reading secrets.
pub(crate) fn all(loaded: &Loaded, now_ms: i64) -> Findings {
    let Loaded { config, base, .. } = loaded;
    let mut findings = related(config);
    findings.add(start::secrets(config, base, now_ms));
    findings.add(start::received(config, base));
    findings.add(start::spool_dir(config));
    findings.add(start::sent(&config.destinations, base));
    findings
}

/// Checks the values. Reads no secrets and no certificates.
pub(crate) fn values(loaded: &Loaded) -> Findings {
    let mut findings = related(&loaded.config);
    let mut destinations = loaded.config.destinations.clone();
    for destination in destinations.values_mut() {
        destination.signing = None;
        destination.tls = None;
        destination.headers.clear();
        destination.auth = None;
        destination.proxy = None;
    }
    findings.add(start::sent(&destinations, &loaded.base));
    findings
}

/// What each section says of itself, and the sections against each other.
fn related(config: &Config) -> Findings {
    let mut findings = Findings {
        problems: sections(config),
        warnings: Vec::new(),
    };
    let problems = &mut findings.problems;
    built(config, problems);
    lease(config, problems, &mut findings.warnings);
    retention(config, problems);
    bodies(config, problems);
    spool(config, problems);
    routes(config, problems, &mut findings.warnings);
    if config.admin.listen == config.ingest.listen && config.admin.listen.port() != 0 {
        problems.push(Problem::new(
            "admin.listen",
            "is the address of ingest.listen too",
        ));
    }
    findings
}

/// What this binary was built without can not be used, however right its config is.
fn built(config: &Config, problems: &mut Vec<Problem>) {
    let mut lacks = |used: bool, built: bool, key: &str, feature: &str| {
        if used && !built {
            let message = format!("this binary was built without the feature `{feature}`");
            problems.push(Problem::new(key, message));
        }
    };
    let kafka = matches!(config.log, LogConfig::Kafka(_));
    lacks(kafka, cfg!(feature = "kafka"), "log.kind", "kafka");
    let cql = matches!(config.store, StoreConfig::Cql(_));
    lacks(cql, cfg!(feature = "cql"), "store.kind", "cql");
}

/// What each section says of itself.
fn sections(config: &Config) -> Vec<Problem> {
    let mut problems = config.log.check("log");
    problems.extend(config.store.check("store"));
    problems.extend(config.ingest.check("ingest"));
    for (name, source) in &config.sources {
        problems.extend(source.check(&format!("sources.{name}")));
    }
    problems.extend(dispatcher::config::check(
        &config.dispatcher,
        &config.destinations,
        &config.routes,
    ));
    problems.extend(reconcile::config::check(&config.reconcile, &config.sources));
    problems.extend(config.telemetry.problems());
    problems.into_iter().map(in_one_notation).collect()
}

/// One notation of an element's number, whoever wrote the path.
fn in_one_notation(problem: Problem) -> Problem {
    let key = problem.key.replace('[', ".").replace(']', "");
    Problem { key, ..problem }
}

/// A renewal begins at a third of the lease and may take as long as the store lets a call take. It has to end before somebody
/// else may take over, and so has the transition after an attempt.
fn lease(config: &Config, problems: &mut Vec<Problem>, warnings: &mut Vec<Problem>) {
    let lease = config.dispatcher.lease;
    let deadline = config.store.deadline();
    let margin = config.dispatcher.skew_margin;
    let needed = deadline
        .saturating_add(deadline / 2)
        .max(deadline.saturating_add(margin));
    if lease < needed {
        let message = format!(
            "{} is too short: a third of it and one call of the store (store.deadline = {}) must fit into it, \
             so at least {}",
            shown(lease),
            shown(deadline),
            shown(needed)
        );
        problems.push(Problem::new("dispatcher.lease", message));
    }
    if let LogConfig::Kafka(kafka) = &config.log
        && lease > kafka.session_timeout().saturating_mul(2)
    {
        let message = format!(
            "{} is far above log.session_timeout = {}: after a crash, deliveries wait for the lease long after their \
             partition has a new owner",
            shown(lease),
            shown(kafka.session_timeout())
        );
        warnings.push(Problem::new("dispatcher.lease", message));
    }
}

/// A row that is gone while its webhook can still be read again would let it be delivered again.
fn retention(config: &Config, problems: &mut Vec<Problem>) {
    let longest = config
        .destinations
        .iter()
        .map(|(name, destination)| (destination.retry.max_age, name))
        .max();
    let (max_age, of) = longest.map_or((Duration::ZERO, String::new()), |(max_age, name)| {
        let of = format!(" + destinations.{name}.retry.max_age = {}", shown(max_age));
        (max_age, of)
    });
    let log = config.log.retention();
    let needed_ms = log.saturating_add(max_age).as_millis();
    let kept = config.store.retention();
    if u128::try_from(kept.failed_ms).unwrap_or(0) < needed_ms {
        let message = format!(
            "must be at least log.retention = {}{of}: a webhook that is read again after its row has gone is delivered again",
            shown(log),
        );
        problems.push(Problem::new("store.retention.failed", message));
    }
}

/// What is taken in must fit through everything behind it.
fn bodies(config: &Config, problems: &mut Vec<Problem>) {
    for (name, source) in &config.sources {
        let key = format!("sources.{name}.body_bytes_max");
        let body = source.body_bytes_max();
        let record = config.log.record_bytes_max();
        if body.saturating_add(RECORD_OVERHEAD_BYTES) > record {
            let message = format!(
                "{body} bytes and up to {RECORD_OVERHEAD_BYTES} of headers and history do not fit into \
                 log.record_bytes_max = {record}"
            );
            problems.push(Problem::new(&key, message));
        }
        for (limit, value) in [
            (
                "ingest.in_flight_bytes_max",
                config.ingest.in_flight_bytes_max,
            ),
            (
                "dispatcher.in_flight_bytes_max",
                config.dispatcher.in_flight_bytes_max,
            ),
        ] {
            if body > value {
                let message = format!("{body} bytes never fit into {limit} = {value}");
                problems.push(Problem::new(&key, message));
            }
        }
    }
}

/// The largest webhook must fit, and the spool's files are no log's files.
fn spool(config: &Config, problems: &mut Vec<Problem>) {
    let Some(spool) = &config.ingest.spool else {
        return;
    };
    let largest = config
        .sources
        .iter()
        .max_by_key(|(_, source)| source.body_bytes_max());
    if let Some((name, source)) = largest {
        let body = source.body_bytes_max();
        let needed = body.saturating_add(RECORD_OVERHEAD_BYTES);
        if u64::try_from(needed).is_ok_and(|needed| spool.bytes_max < needed) {
            let message = format!(
                "{} can not hold one webhook of sources.{name}.body_bytes_max = {body} and up to {RECORD_OVERHEAD_BYTES} of \
                 headers: at least {needed}",
                spool.bytes_max
            );
            problems.push(Problem::new("ingest.spool.bytes_max", message));
        }
    }
    if let LogConfig::Embedded(log) = &config.log
        && start::is_same_dir(&log.dir, &spool.dir)
    {
        let message = "is the directory of the log: give the spool one of its own, on another disk";
        problems.push(Problem::new("ingest.spool.dir", message));
    }
}

fn routes(config: &Config, problems: &mut Vec<Problem>, warnings: &mut Vec<Problem>) {
    for (at, route) in config.routes.iter().enumerate() {
        if !config.sources.contains_key(&route.source) {
            let message = format!("no [sources.{}] is configured", route.source);
            problems.push(Problem::new(format!("routes.{at}.source"), message));
        }
    }
    for name in config.destinations.keys() {
        if !config.routes.iter().any(|route| route.to.contains(name)) {
            let message = "no route leads here";
            warnings.push(Problem::new(format!("destinations.{name}"), message));
        }
    }
    for name in config.sources.keys() {
        if !config.routes.iter().any(|route| route.source == *name) {
            let message = "no route begins here: its webhooks are kept in the log and go nowhere";
            warnings.push(Problem::new(format!("sources.{name}"), message));
        }
    }
    if config.sources.is_empty() {
        warnings.push(Problem::new(
            "sources",
            "none is configured: nothing can be received",
        ));
    }
}

fn shown(duration: Duration) -> String {
    humantime_serde::re::humantime::format_duration(duration).to_string()
}

/// A few lines on what is configured.
pub(crate) fn summary(loaded: &Loaded) -> String {
    let config = &loaded.config;
    let file = loaded.file.as_ref().map_or_else(
        || "no config file, defaults".to_owned(),
        |path| path.display().to_string(),
    );
    let log = match &config.log {
        LogConfig::Embedded(log) => format!("embedded in {}", log.dir.display()),
        LogConfig::Kafka(log) => format!("kafka at {}", log.brokers.join(", ")),
    };
    let store = match &config.store {
        StoreConfig::Embedded(store) => format!("embedded in {}", store.dir.display()),
        StoreConfig::Cql(store) => format!("cql at {}", store.contact_points.join(", ")),
    };
    let spool = config
        .ingest
        .spool
        .as_ref()
        .map_or_else(String::new, |spool| {
            format!(
                "  spool  up to {} bytes in {}\n",
                spool.bytes_max,
                spool.dir.display()
            )
        });
    format!(
        "{file}: fine\n  log    {log}\n  store  {store}\n{spool}  {} sources, {} destinations, {} routes\n",
        config.sources.len(),
        config.destinations.len(),
        config.routes.len()
    )
}
