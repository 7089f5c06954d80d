//! Mistakes that show only when sections are seen together, and secrets that can not be read.

use crate::config::{Config, Loaded};
use dedup_store::config::StoreConfig;
use event_log::config::LogConfig;
use runtime::{Problem, Secret, SecretRef};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// What a record has besides the body, bytes: headers as ingest limits them, the history of attempts, framing.
const RECORD_OVERHEAD_BYTES: usize = 128 * 1024;

/// What a check found. Warnings do not keep a process from running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

/// Checks everything, reading secrets.
pub(crate) fn all(loaded: &Loaded, now_ms: i64) -> Findings {
    let mut findings = values(&loaded.config);
    for problem in secrets(&loaded.config, &loaded.base, now_ms) {
        // A place that is wrong in itself was named already.
        if !findings
            .problems
            .iter()
            .any(|named| named.key == problem.key)
        {
            findings.problems.push(problem);
        }
    }
    findings
}

/// Checks the values. Reads nothing.
pub(crate) fn values(config: &Config) -> Findings {
    let mut findings = Findings {
        problems: sections(config),
        warnings: Vec::new(),
    };
    let problems = &mut findings.problems;
    built(config, problems);
    lease(config, problems, &mut findings.warnings);
    retention(config, problems);
    bodies(config, problems);
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

/// Checks that every secret and certificate can be read, and that each list has one that is good at `now_ms`.
pub(crate) fn secrets(config: &Config, base: &Path, now_ms: i64) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, source) in &config.sources {
        let key = format!("sources.{name}.secrets");
        problems.extend(open_all(&source.secrets, &key, base, now_ms));
    }
    for (name, destination) in &config.destinations {
        if let Some(signing) = &destination.signing {
            let key = format!("destinations.{name}.signing.secrets");
            problems.extend(open_all(&signing.secrets, &key, base, now_ms));
        }
    }
    let (single, files) = connections(config);
    for (key, place) in single {
        if let Err(error) = Secret::open(place, base) {
            problems.push(Problem::new(key, error.to_string()));
        }
    }
    for (key, file) in files {
        let path = base.join(file);
        if let Err(error) = std::fs::File::open(&path) {
            let message = format!("can not read {}: {error}", path.display());
            problems.push(Problem::new(key, message));
        }
    }
    problems
}

/// Values of the config, each with its key.
type Keyed<'a, T> = Vec<(&'static str, &'a T)>;

/// Passwords and certificate files towards log and store.
fn connections(config: &Config) -> (Keyed<'_, SecretRef>, Keyed<'_, PathBuf>) {
    let mut single: Keyed<'_, SecretRef> = Vec::new();
    let mut files: Keyed<'_, PathBuf> = Vec::new();
    if let LogConfig::Kafka(kafka) = &config.log
        && let Some(security) = &kafka.security
    {
        single.extend(
            security
                .key_password
                .as_ref()
                .map(|s| ("log.security.key_password", s)),
        );
        single.extend(
            security
                .sasl
                .as_ref()
                .map(|sasl| ("log.security.sasl.password", &sasl.password)),
        );
        files.extend(
            security
                .ca_file
                .as_ref()
                .map(|f| ("log.security.ca_file", f)),
        );
        files.extend(
            security
                .cert_file
                .as_ref()
                .map(|f| ("log.security.cert_file", f)),
        );
        files.extend(
            security
                .key_file
                .as_ref()
                .map(|f| ("log.security.key_file", f)),
        );
    }
    if let StoreConfig::Cql(cql) = &config.store {
        single.extend(
            cql.password
                .as_ref()
                .map(|secret| ("store.password", secret)),
        );
        if let Some(tls) = &cql.tls {
            files.push(("store.tls.ca", &tls.ca));
            files.extend(tls.cert.as_ref().map(|file| ("store.tls.cert", file)));
            files.extend(tls.key.as_ref().map(|file| ("store.tls.key", file)));
        }
    }
    (single, files)
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
    problems.extend(config.telemetry.problems());
    for problem in &mut problems {
        // One notation of an element's number, whoever wrote the path.
        problem.key = problem.key.replace('[', ".").replace(']', "");
    }
    problems
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
        && lease > kafka.session_timeout.saturating_mul(2)
    {
        let message = format!(
            "{} is far above log.session_timeout = {}: after a crash, deliveries wait for the lease long after their \
             partition has a new owner",
            shown(lease),
            shown(kafka.session_timeout)
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
        let body = source.body_bytes_max;
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

fn open_all(places: &[SecretRef], key: &str, base: &Path, now_ms: i64) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut usable = places.is_empty();
    for (at, place) in places.iter().enumerate() {
        match Secret::open(place, base) {
            Ok(secret) => usable |= secret.usable_at(now_ms),
            Err(error) => {
                usable = true;
                problems.push(Problem::new(format!("{key}.{at}"), error.to_string()));
            }
        }
    }
    if !usable {
        problems.push(Problem::new(key, "`not_after` of every secret has passed"));
    }
    problems
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
    format!(
        "{file}: fine\n  log    {log}\n  store  {store}\n  {} sources, {} destinations, {} routes\n",
        config.sources.len(),
        config.destinations.len(),
        config.routes.len()
    )
}
