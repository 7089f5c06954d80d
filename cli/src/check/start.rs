//! What a process would refuse at its start, asked of the code that starts it: secrets that can not be read or are no keys,
//! addresses that may not be dialled.

use crate::{config::Config, ports::log::codec};
use dedup_store::config::StoreConfig;
use dispatcher::{DestinationConfig, HttpSend};
use event_log::config::LogConfig;
use runtime::{Clock, Problem, Secret, SecretRef};
use rustix::fs::{Access, access};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// What ingest would refuse at its start: a secret that is no key under its source's rule.
pub(super) fn received(config: &Config, base: &Path) -> Vec<Problem> {
    let codec = codec(&config.log);
    let (ingest, sources) = (config.ingest.clone(), config.sources.clone());
    ingest::App::new(ingest, sources, base, (), codec, Clock::system())
        .map_or_else(|problems| problems, |_| Vec::new())
}

/// Whether the spool's directory, or the one in which it would be made, can be written.
pub(super) fn spool_dir(config: &Config) -> Vec<Problem> {
    let Some(spool) = &config.ingest.spool else {
        return Vec::new();
    };
    if spool.dir.as_os_str().is_empty() {
        return Vec::new();
    }
    // Each ancestor of a relative path that is not there ends in the empty path: here.
    let there = spool.dir.ancestors().find(|dir| dir.exists());
    let there = there.unwrap_or(Path::new("."));
    let problem = if there.is_dir() {
        let rights = Access::WRITE_OK | Access::EXEC_OK;
        access(there, rights)
            .err()
            .map(|error| format!("{} can not be written: {error}", there.display()))
    } else {
        Some(format!("{} is no directory", there.display()))
    };
    let problem = problem.map(|message| Problem::new("ingest.spool.dir", message));
    problem.into_iter().collect()
}

/// Whether both name one directory, whatever way they are written and whether it is there yet.
pub(super) fn is_same_dir(one: &Path, other: &Path) -> bool {
    let plain = |path: &Path| {
        path.canonicalize()
            .unwrap_or_else(|_| path.components().collect())
    };
    plain(one) == plain(other)
}

/// What the dispatcher would refuse at its start: a secret that is no key, an address that may not be dialled.
pub(super) fn sent(
    destinations: &BTreeMap<String, DestinationConfig>,
    base: &Path,
) -> Vec<Problem> {
    HttpSend::new(destinations, base, Clock::system())
        .map_or_else(|problems| problems, |_| Vec::new())
}

/// Checks that every secret and certificate can be read, and that each list has one that is good at `now_ms`.
pub(super) fn secrets(config: &Config, base: &Path, now_ms: i64) -> Vec<Problem> {
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
