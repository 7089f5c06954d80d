//! `[store]`: which store keeps the claims, and its limits.

use crate::claim::Retention;
use runtime::{Problem, SecretRef};
use std::{path::PathBuf, time::Duration};

/// Longest retention that every store can keep (CQL's TTL ends at 20 years).
const RETENTION_MAX: Duration = Duration::from_secs(3_650 * 86_400);

/// Shortest retention of an open row: while it is there, its attempts are counted. Without it a delivery whose dispatcher
/// crashes starts again from its record's attempt, and may never come to an end.
const OPEN_MIN: Duration = Duration::from_secs(3_600);

/// Longest that one call, statement or connect may take. A lease has to outlast a call.
const WITHIN_MAX: Duration = Duration::from_secs(600);

/// Most calls that may wait for the embedded writer.
const QUEUE_MAX: usize = 1_000_000;

/// Most statements in flight: what one connection has stream ids for.
const IN_FLIGHT_MAX: usize = 32_768;

/// `[store]`, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[expect(
    clippy::large_enum_variant,
    reason = "one value a process, read at its start"
)]
pub enum StoreConfig {
    /// SQLite in a directory of this machine, for one process.
    Embedded(EmbeddedConfig),
    /// ScyllaDB or Cassandra.
    Cql(CqlConfig),
}

/// `kind = "embedded"`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedConfig {
    /// Directory of `claims.db`; made when it is missing.
    pub dir: PathBuf,
    /// Calls that may wait for the writer; further ones wait outside, up to `deadline`.
    pub queue_max: usize,
    /// A call without an answer ends as unavailable after this time.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// How long rows are kept.
    pub retention: RetentionConfig,
}

/// `kind = "cql"`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CqlConfig {
    /// `host:port` of some nodes; the others are found through them.
    pub contact_points: Vec<String>,
    /// Keyspace of the claims.
    pub keyspace: String,
    /// The data centre to talk to, and whose quorum decides with `serial = "local"`; none: any node.
    pub datacenter: Option<String>,
    /// Which server answers.
    pub flavor: Flavor,
    /// Replicas in the data centre, for `fencepost store migrate`.
    pub replication_factor: u8,
    /// Whose quorum decides a claim.
    pub serial: Serial,
    /// Connecting to a node.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// One statement; longer than the server's own write and contention timeouts together.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// One whole call with its re-issued statements.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// Statements that may be in flight at once from this process; others wait their turn. Enough for thousands of rounds a
    /// second at the tens of milliseconds that one takes; without a limit a server that gets slower gets slower still
    /// (scylladb commit 8e293cd5e8).
    pub in_flight_max: usize,
    /// User name.
    pub user: Option<String>,
    /// Password of `user`.
    pub password: Option<SecretRef>,
    /// TLS; none: plain text.
    pub tls: Option<TlsConfig>,
    /// How long rows are kept.
    pub retention: RetentionConfig,
}

/// Which server answers: the tables' options differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavor {
    /// Ask the server.
    #[default]
    Auto,
    /// ScyllaDB.
    Scylla,
    /// Apache Cassandra.
    Cassandra,
}

/// Whose quorum decides a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Serial {
    /// The local data centre's (`LOCAL_SERIAL`): every dispatcher of a source must run in the same one.
    #[default]
    Local,
    /// All data centres' (`SERIAL`).
    Global,
}

/// Files for TLS, PEM, relative to the config file's directory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificates that sign the servers' ones.
    pub ca: PathBuf,
    /// Our certificate chain, when the servers ask for one.
    #[serde(default)]
    pub cert: Option<PathBuf>,
    /// Key of `cert`.
    #[serde(default)]
    pub key: Option<PathBuf>,
}

/// How long rows are kept, by state: `open <= failed <= completed`, so that no older version of a row outlives a newer
/// one on any replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Processing and waiting: after the end of the lease or of the wait. At least an hour. A store that is away for longer
    /// forgets who was in mid-attempt: what those attempts delivered is delivered again.
    #[serde(with = "humantime_serde")]
    pub open: Duration,
    /// Failed.
    #[serde(with = "humantime_serde")]
    pub failed: Duration,
    /// Completed.
    #[serde(with = "humantime_serde")]
    pub completed: Duration,
}

// === impl StoreConfig ===

impl StoreConfig {
    /// Mistakes that no type can rule out; `key` is this table's path, e.g. `store`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        match self {
            Self::Embedded(config) => config.check(key),
            Self::Cql(config) => config.check(key),
        }
    }

    /// The longest that one call of the store may take, everything included. A lease has to leave room for it.
    pub fn deadline(&self) -> Duration {
        match self {
            Self::Embedded(config) => config.deadline,
            Self::Cql(config) => config.deadline,
        }
    }

    /// How long rows are kept.
    pub fn retention(&self) -> Retention {
        match self {
            Self::Embedded(config) => config.retention.to_retention(),
            Self::Cql(config) => config.retention.to_retention(),
        }
    }
}

// === impl EmbeddedConfig ===

impl Default for EmbeddedConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("fencepost-data"),
            queue_max: 1_024,
            deadline: Duration::from_secs(5),
            retention: RetentionConfig::default(),
        }
    }
}

impl EmbeddedConfig {
    /// See [`StoreConfig::check`].
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = self.retention.check(&format!("{key}.retention"));
        let mut wrong = |field: &str, message: &str| {
            problems.push(Problem::new(format!("{key}.{field}"), message));
        };
        if self.dir.as_os_str().is_empty() {
            wrong("dir", "is empty; name a directory");
        }
        if !(1..=QUEUE_MAX).contains(&self.queue_max) {
            wrong("queue_max", "must be 1 to 1000000");
        }
        if !is_bounded(self.deadline) {
            wrong("deadline", BOUNDS);
        }
        problems
    }
}

// === impl CqlConfig ===

impl Default for CqlConfig {
    fn default() -> Self {
        Self {
            contact_points: Vec::new(),
            keyspace: "fencepost".to_owned(),
            datacenter: None,
            flavor: Flavor::Auto,
            replication_factor: 3,
            serial: Serial::Local,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(6),
            deadline: Duration::from_secs(10),
            in_flight_max: 256,
            user: None,
            password: None,
            tls: None,
            retention: RetentionConfig::default(),
        }
    }
}

impl CqlConfig {
    /// See [`StoreConfig::check`].
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = self.retention.check(&format!("{key}.retention"));
        let mut wrong = |field: &str, message: &str| {
            problems.push(Problem::new(format!("{key}.{field}"), message));
        };
        if self.contact_points.is_empty() {
            wrong("contact_points", "is empty; name at least one `host:port`");
        }
        if self
            .contact_points
            .iter()
            .any(|point| point.trim().is_empty())
        {
            wrong("contact_points", "holds an empty entry");
        }
        if !is_keyspace(&self.keyspace) {
            wrong(
                "keyspace",
                "must be 1 to 48 lower-case letters, digits or `_`, and start with a letter",
            );
        }
        if self.replication_factor == 0 {
            wrong("replication_factor", "must be at least 1");
        }
        if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight_max) {
            wrong("in_flight_max", "must be 1 to 32768");
        }
        if !is_bounded(self.connect_timeout) {
            wrong("connect_timeout", BOUNDS);
        }
        if !is_bounded(self.request_timeout) {
            wrong("request_timeout", BOUNDS);
        }
        if !is_bounded(self.deadline) {
            wrong("deadline", BOUNDS);
        } else if self.deadline <= self.request_timeout {
            wrong(
                "deadline",
                "must be longer than request_timeout: an unknown outcome is resolved by asking again",
            );
        }
        match (&self.user, &self.password) {
            (Some(_), None) => wrong("password", "is missing; `user` needs one"),
            (None, Some(_)) => wrong("user", "is missing; `password` needs one"),
            (Some(_), Some(password)) if password.env.is_some() == password.file.is_some() => {
                wrong("password", "give exactly one of `env` and `file`");
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        if self
            .tls
            .as_ref()
            .is_some_and(|tls| tls.cert.is_some() != tls.key.is_some())
        {
            wrong("tls", "give `cert` and `key` together or neither");
        }
        problems
    }
}

// === impl RetentionConfig ===

impl Default for RetentionConfig {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 86_400);
        Self {
            open: days(7),
            failed: days(14),
            completed: days(30),
        }
    }
}

impl RetentionConfig {
    /// The same in milliseconds.
    pub fn to_retention(self) -> Retention {
        Retention {
            open_ms: millis(self.open),
            failed_ms: millis(self.failed),
            completed_ms: millis(self.completed),
        }
    }

    fn check(self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |field: &str, message: &str| {
            problems.push(Problem::new(format!("{key}.{field}"), message));
        };
        if self.open < OPEN_MIN {
            wrong(
                "open",
                "must be at least 1h: while an open row is kept, its attempts are counted across crashes",
            );
        }
        if self.failed < self.open {
            wrong(
                "failed",
                "must not be shorter than `open`: a later state is kept longer",
            );
        }
        if self.completed < self.failed {
            wrong(
                "completed",
                "must not be shorter than `failed`: a later state is kept longer",
            );
        }
        if self.completed > RETENTION_MAX {
            wrong("completed", "must not be longer than 3650 days");
        }
        problems
    }
}

const BOUNDS: &str = "must be longer than 0 and at most 10min";

fn is_bounded(duration: Duration) -> bool {
    !duration.is_zero() && duration <= WITHIN_MAX
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Unquoted in the DDL, so nothing but a plain name will do.
fn is_keyspace(name: &str) -> bool {
    name.len() <= 48
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{
        Deserialize,
        de::value::{Error, MapDeserializer},
    };

    #[test]
    fn each_mistake_of_cql_is_told_at_its_key() {
        let check = |key: &str, spoil: &dyn Fn(&mut CqlConfig)| {
            let contact_points = vec!["127.0.0.1:9042".to_owned()];
            let mut config = CqlConfig {
                contact_points,
                ..CqlConfig::default()
            };
            assert_eq!(keys_of(&StoreConfig::Cql(config.clone())), [""; 0]);
            spoil(&mut config);
            assert_eq!(keys_of(&StoreConfig::Cql(config)), [format!("store.{key}")]);
        };
        let secret = |env: bool, file: bool| SecretRef {
            env: env.then(|| "PASSWORD".to_owned()),
            file: file.then(|| PathBuf::from("password")),
            not_after: None,
        };
        let user = || Some("fencepost".to_owned());
        check("contact_points", &|config| config.contact_points.clear());
        check("contact_points", &|config| {
            config.contact_points.push(" ".to_owned())
        });
        for name in ["", "a-b", "A", "1a", "_a", &"a".repeat(49)] {
            check("keyspace", &|config| name.clone_into(&mut config.keyspace));
        }
        check("deadline", &|config| {
            config.deadline = config.request_timeout
        });
        check("request_timeout", &|config| {
            config.request_timeout = Duration::ZERO
        });
        check("connect_timeout", &|config| {
            config.connect_timeout = Duration::ZERO
        });
        check("deadline", &|config| config.deadline = Duration::MAX);
        check("connect_timeout", &|config| {
            config.connect_timeout = Duration::MAX
        });
        for count in [0, 32_769, usize::MAX] {
            check("in_flight_max", &|config| config.in_flight_max = count);
        }
        check("replication_factor", &|config| {
            config.replication_factor = 0
        });
        check("password", &|config| config.user = user());
        check("user", &|config| {
            config.password = Some(secret(true, false))
        });
        for (env, file) in [(true, true), (false, false)] {
            check("password", &|config| {
                config.user = user();
                config.password = Some(secret(env, file));
            });
        }
        check("tls", &|config| {
            let cert = Some(PathBuf::from("cert.pem"));
            config.tls = Some(TlsConfig {
                ca: PathBuf::from("ca.pem"),
                cert,
                key: None,
            });
        });
    }

    #[test]
    fn each_mistake_of_embedded_is_told_at_its_key() {
        let embedded = EmbeddedConfig::default();
        assert_eq!(StoreConfig::Embedded(embedded.clone()).check("store"), []);
        let wrong = EmbeddedConfig {
            dir: PathBuf::new(),
            queue_max: 0,
            deadline: Duration::ZERO,
            ..embedded
        };
        let keys = ["store.dir", "store.queue_max", "store.deadline"];
        assert_eq!(keys_of(&StoreConfig::Embedded(wrong)), keys);
        let absurd = EmbeddedConfig {
            queue_max: usize::MAX,
            deadline: Duration::MAX,
            ..EmbeddedConfig::default()
        };
        let keys = ["store.queue_max", "store.deadline"];
        assert_eq!(keys_of(&StoreConfig::Embedded(absurd)), keys);
    }

    /// Every value at its end: problems, and no panic on the way to them.
    #[test]
    fn absurd_times_are_problems() {
        let retention = RetentionConfig {
            open: Duration::MAX,
            failed: Duration::MAX,
            completed: Duration::MAX,
        };
        let config = StoreConfig::Cql(CqlConfig {
            contact_points: vec!["127.0.0.1:9042".to_owned()],
            connect_timeout: Duration::MAX,
            request_timeout: Duration::MAX,
            deadline: Duration::MAX,
            retention,
            ..CqlConfig::default()
        });
        let keys = [
            "store.retention.completed",
            "store.connect_timeout",
            "store.request_timeout",
            "store.deadline",
        ];
        assert_eq!(keys_of(&config), keys);
        assert_eq!(config.retention().completed_ms, i64::MAX);
    }

    #[test]
    fn a_later_state_is_kept_at_least_as_long() {
        let secs = Duration::from_secs;
        for (open, failed, completed, keys) in [
            (3_600, 3_600, 3_600, vec![]),
            (3_599, 3_600, 3_600, vec!["store.retention.open"]),
            (7_200, 3_600, 7_200, vec!["store.retention.failed"]),
            (3_600, 7_200, 3_600, vec!["store.retention.completed"]),
            (3_600, 3_600, u64::MAX, vec!["store.retention.completed"]),
        ] {
            let retention = RetentionConfig {
                open: secs(open),
                failed: secs(failed),
                completed: secs(completed),
            };
            let config = EmbeddedConfig {
                retention,
                ..EmbeddedConfig::default()
            };
            assert_eq!(keys_of(&StoreConfig::Embedded(config)), keys);
        }
    }

    #[test]
    fn the_table_is_read_by_its_kind_and_unknown_keys_are_errors() {
        let read = |pairs: &[(&'static str, &'static str)]| {
            StoreConfig::deserialize(MapDeserializer::<_, Error>::new(pairs.iter().copied()))
        };
        let config = read(&[("kind", "embedded"), ("dir", "data"), ("deadline", "3s")]);
        let expected = EmbeddedConfig {
            dir: PathBuf::from("data"),
            deadline: Duration::from_secs(3),
            ..EmbeddedConfig::default()
        };
        assert_eq!(config, Ok(StoreConfig::Embedded(expected)));
        let config = read(&[("kind", "cql"), ("flavor", "scylla"), ("serial", "global")]);
        let expected = CqlConfig {
            flavor: Flavor::Scylla,
            serial: Serial::Global,
            ..CqlConfig::default()
        };
        assert_eq!(config, Ok(StoreConfig::Cql(expected)));
        for wrong in [
            vec![("kind", "embedded"), ("keyspace", "a")],
            vec![("kind", "cql"), ("dir", "data")],
            vec![("kind", "redis")],
            vec![("dir", "data")],
        ] {
            assert!(read(&wrong).is_err(), "{wrong:?}");
        }
    }

    fn keys_of(config: &StoreConfig) -> Vec<String> {
        config
            .check("store")
            .into_iter()
            .map(|problem| problem.key)
            .collect()
    }
}
