//! The `[log]` section of the config: which log, and its limits.

use crate::DERIVED_BYTES_RESERVE;
use runtime::{Problem, SecretRef};
use serde::Deserialize;
use std::{path::PathBuf, time::Duration};

const MIB: usize = 1024 * 1024;
/// A record has headers and a frame around its body; less than this could not even hold those.
const RECORD_BYTES_MIN: usize = 4 * 1024;
/// SQLite's own limit for a value is 1,000,000,000 bytes, Kafka's is an `int`; both are far above this.
const RECORD_BYTES_LIMIT: usize = 512 * MIB;
const PARTITIONS_MAX: u32 = 1_024;
/// Every id that is not known is looked up in all of them.
const FORMER_IDS_MAX: usize = 16;
/// Records must outlive the longest delay tier (6 h) and an outage on top of it.
const RETENTION_MIN: Duration = Duration::from_hours(24);
/// Brokers refuse sessions outside `group.min/max.session.timeout.ms`, by default 6 s and 30 min.
const SESSION_TIMEOUT_MIN: Duration = Duration::from_secs(6);
const SESSION_TIMEOUT_MAX: Duration = Duration::from_mins(30);
const SESSION_TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);
/// `group.consumer.session.timeout.ms` of brokers whose operators left it alone.
const BROKER_SESSION_TIMEOUT_DEFAULT: Duration = Duration::from_secs(45);
/// Session of a static member: a restart has to fit into it, and nobody works on a dead member's partitions until it is over.
const STATIC_SESSION_TIMEOUT_MIN: Duration = Duration::from_secs(30);
const STATIC_SESSION_TIMEOUT_MAX: Duration = Duration::from_mins(5);

/// Which log is used, chosen by `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "there is one in a process")]
pub enum LogConfig {
    /// Files in one directory, one process.
    Embedded(EmbeddedConfig),
    /// Kafka, or what speaks its protocol.
    Kafka(KafkaConfig),
}

/// The embedded log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmbeddedConfig {
    /// Directory of the files; created when missing. One process at a time may have it open.
    pub dir: PathBuf,
    /// Partitions of each topic. Fixed when the directory is created.
    pub partitions: u32,
    /// Age at which finished records are deleted. Records that are not finished stay; finished ones of a delay tier go soon
    /// after they were due.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    /// Age at which dead letters are deleted.
    #[serde(with = "humantime_serde")]
    pub dead_letters_retention: Duration,
    /// Largest webhook: key, value and headers together. What is made of it may have [`crate::DERIVED_BYTES_RESERVE`] more.
    pub record_bytes_max: usize,
    /// Records that may wait for the disk; beyond it producing answers "busy".
    pub queue_records_max: usize,
    /// Bytes that may wait for the disk; beyond it producing answers "busy".
    pub queue_bytes_max: usize,
}

/// The log on Kafka.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaConfig {
    /// `host:port` of some brokers; the others are found through them.
    pub brokers: Vec<String>,
    /// Topics are named `<topic_prefix>.webhooks` and so on.
    pub topic_prefix: String,
    /// Consumer group of the dispatchers; the delay tiers commit under `<group>.delay`.
    pub group: String,
    /// Partitions of each topic when they are created; the same for all topics.
    pub partitions: u32,
    /// Replicas of each topic when they are created. From 3 on, two must have a record before it is acknowledged.
    pub replication_factor: u16,
    /// Retention of webhooks and delay tiers when they are created.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    /// Retention of the dead letters when their topic is created.
    #[serde(with = "humantime_serde")]
    pub dead_letters_retention: Duration,
    /// Largest webhook: key, value and headers together. What is made of it may have [`crate::DERIVED_BYTES_RESERVE`] more.
    /// Set on the topics and on every client.
    pub record_bytes_max: usize,
    /// Records that may wait for an acknowledgement; beyond it producing answers "busy".
    pub queue_records_max: usize,
    /// Bytes that may wait for an acknowledgement; beyond it producing answers "busy".
    pub queue_bytes_max: usize,
    /// How the group shares partitions.
    pub group_protocol: GroupProtocol,
    /// How long a silent member keeps its partitions; none: 15 s. With `group_protocol = "consumer"` that is the brokers'
    /// own setting, and this one is refused.
    #[serde(with = "humantime_serde")]
    pub session_timeout: Option<Duration>,
    /// Name of this member for ever (static membership): it has its partitions back after a restart, without a rebalance.
    /// None: every start is a new member. Each process needs one of its own.
    pub group_instance_id: Option<String>,
    /// Encryption and authentication; none: plain text.
    pub security: Option<KafkaSecurity>,
    /// Schema ids in a registry; none: records carry the schema's fingerprint.
    pub registry_ids: Option<RegistryIdsConfig>,
    /// Ids under which earlier records, written with the schemas of today, may still be in the topics: read, never
    /// written.
    pub former_registry_ids: Vec<RegistryIdsConfig>,
}

/// Rebalance protocol of the group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupProtocol {
    /// Understood by every broker; partitions move one by one (cooperative).
    #[default]
    Classic,
    /// KIP-848, brokers from 4.0 on.
    Consumer,
}

/// Encryption and authentication towards the brokers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaSecurity {
    /// Whether connections are encrypted.
    pub tls: bool,
    /// PEM file of the authorities that may sign the brokers' certificates; none: the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate.
    pub cert_file: Option<PathBuf>,
    /// PEM file of the client certificate's key.
    pub key_file: Option<PathBuf>,
    /// Password of an encrypted `key_file`.
    pub key_password: Option<SecretRef>,
    /// Name and password; none: no SASL.
    pub sasl: Option<KafkaSasl>,
}

/// Name and password towards the brokers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KafkaSasl {
    /// How the password is shown to the broker.
    pub mechanism: SaslMechanism,
    /// User name.
    pub username: String,
    /// Where the password stands.
    pub password: SecretRef,
}

/// SASL mechanisms that need no more than a name and a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum SaslMechanism {
    /// The password itself: only with TLS.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Salted challenge, SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Salted challenge, SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// Ids under which the registry knows the schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegistryIdsConfig {
    /// Id of `Webhook`.
    pub webhook: u32,
    /// Id of `Delivery`.
    pub delivery: u32,
    /// Id of `DeadLetter`.
    pub dead_letter: u32,
}

// === impl LogConfig ===

impl LogConfig {
    /// Every mistake, at key paths below `key` (usually `log`).
    pub fn check(&self, key: &str) -> Vec<Problem> {
        match self {
            Self::Embedded(embedded) => embedded.check(key),
            Self::Kafka(kafka) => kafka.check(key),
        }
    }

    /// Largest webhook that this log takes, bytes.
    pub fn record_bytes_max(&self) -> usize {
        match self {
            Self::Embedded(embedded) => embedded.record_bytes_max,
            Self::Kafka(kafka) => kafka.record_bytes_max,
        }
    }

    /// How long webhooks stay in this log.
    pub fn retention(&self) -> Duration {
        match self {
            Self::Embedded(embedded) => embedded.retention,
            Self::Kafka(kafka) => kafka.retention,
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self::Embedded(EmbeddedConfig::default())
    }
}

// === impl EmbeddedConfig ===

impl EmbeddedConfig {
    /// Every mistake, at key paths below `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.dir.as_os_str().is_empty() {
            problems.push(Problem::new(format!("{key}.dir"), "must name a directory"));
        }
        let limits = Limits {
            partitions: self.partitions,
            record_bytes_max: self.record_bytes_max,
            queue_records_max: self.queue_records_max,
            queue_bytes_max: self.queue_bytes_max,
            retention: self.retention,
            dead_letters_retention: self.dead_letters_retention,
        };
        limits.check(key, &mut problems);
        problems
    }
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("fencepost-data"),
            partitions: 4,
            retention: Duration::from_hours(7 * 24),
            dead_letters_retention: Duration::from_hours(30 * 24),
            record_bytes_max: 32 * MIB,
            queue_records_max: 10_000,
            queue_bytes_max: 64 * MIB,
        }
    }
}

// === impl KafkaConfig ===

impl KafkaConfig {
    /// Every mistake, at key paths below `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut problem = |name: &str, message: String| {
            problems.push(Problem::new(format!("{key}.{name}"), message));
        };
        if self.brokers.is_empty() {
            problem(
                "brokers",
                "must name at least one broker as \"host:port\"".into(),
            );
        }
        for broker in &self.brokers {
            if !is_host_and_port(broker) {
                problem(
                    "brokers",
                    format!("{broker:?} is not of the form \"host:port\""),
                );
            }
        }
        if !is_kafka_name(&self.topic_prefix) {
            let message = "must be 1 to 200 letters, digits, `.`, `_` or `-`".into();
            problem("topic_prefix", message);
        }
        if self.group.is_empty() || self.group.len() > 200 {
            problem("group", "must have 1 to 200 bytes".into());
        }
        if self.replication_factor == 0 {
            problem("replication_factor", "must be at least 1".into());
        }
        self.check_membership(&mut problem);
        if self.former_registry_ids.len() > FORMER_IDS_MAX {
            let message = format!("must have at most {FORMER_IDS_MAX} entries");
            problem("former_registry_ids", message);
        }
        let limits = Limits {
            partitions: self.partitions,
            record_bytes_max: self.record_bytes_max,
            queue_records_max: self.queue_records_max,
            queue_bytes_max: self.queue_bytes_max,
            retention: self.retention,
            dead_letters_retention: self.dead_letters_retention,
        };
        limits.check(key, &mut problems);
        if let Some(security) = &self.security {
            security.check(&format!("{key}.security"), &mut problems);
        }
        problems
    }
}

impl KafkaConfig {
    /// How long a silent member keeps its partitions, as far as it is known here.
    pub fn session_timeout(&self) -> Duration {
        match self.group_protocol {
            GroupProtocol::Classic => self.session_timeout.unwrap_or(SESSION_TIMEOUT_DEFAULT),
            GroupProtocol::Consumer => BROKER_SESSION_TIMEOUT_DEFAULT,
        }
    }

    fn check_membership(&self, problem: &mut impl FnMut(&str, String)) {
        let session = self.session_timeout();
        if self.group_protocol == GroupProtocol::Consumer && self.session_timeout.is_some() {
            let message = "means nothing with `group_protocol = \"consumer\"`, where the client refuses it: sessions are the \
                           brokers' there (`group.consumer.session.timeout.ms`)";
            problem("session_timeout", message.into());
        } else if !(SESSION_TIMEOUT_MIN..=SESSION_TIMEOUT_MAX).contains(&session) {
            problem("session_timeout", "must be between 6s and 30m".into());
        }
        let Some(instance) = &self.group_instance_id else {
            return;
        };
        if !is_kafka_name(instance) {
            let message = "must be 1 to 200 letters, digits, `.`, `_` or `-`".into();
            problem("group_instance_id", message);
        } else if let Some(what) = generated_name(instance) {
            let message = format!(
                "{instance:?} looks like {what}, which is another one after each restart: the partitions of the last one \
                 would have no owner until its session is over. Name a StatefulSet's pod or the machine, or leave it out"
            );
            problem("group_instance_id", message);
        }
        if self.group_protocol == GroupProtocol::Classic
            && !(STATIC_SESSION_TIMEOUT_MIN..=STATIC_SESSION_TIMEOUT_MAX).contains(&session)
        {
            let message = "must be between 30s and 5m with a `group_instance_id`: a restart has to fit into it, and nobody \
                           works on the partitions of a dead dispatcher until it is over";
            problem("session_timeout", message.into());
        }
    }
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            topic_prefix: "fencepost".into(),
            group: "fencepost-dispatcher".into(),
            partitions: 12,
            replication_factor: 3,
            retention: Duration::from_hours(7 * 24),
            dead_letters_retention: Duration::from_hours(30 * 24),
            record_bytes_max: 32 * MIB,
            queue_records_max: 10_000,
            queue_bytes_max: 64 * MIB,
            group_protocol: GroupProtocol::Classic,
            session_timeout: None,
            group_instance_id: None,
            security: None,
            registry_ids: None,
            former_registry_ids: Vec::new(),
        }
    }
}

// === impl KafkaSecurity ===

impl KafkaSecurity {
    fn check(&self, key: &str, problems: &mut Vec<Problem>) {
        let mut problem = |name: &str, message: &str| {
            problems.push(Problem::new(format!("{key}.{name}"), message));
        };
        if self.cert_file.is_some() != self.key_file.is_some() {
            problem(
                "cert_file",
                "needs `key_file` beside it, and the other way round",
            );
        }
        if self.key_password.is_some() && self.key_file.is_none() {
            problem("key_password", "means nothing without `key_file`");
        }
        if !self.tls && (self.ca_file.is_some() || self.cert_file.is_some()) {
            problem(
                "tls",
                "must be true for `ca_file`, `cert_file` and `key_file` to mean anything",
            );
        }
        let Some(sasl) = &self.sasl else { return };
        if sasl.username.is_empty() {
            problem("sasl.username", "must not be empty");
        }
        if sasl.mechanism == SaslMechanism::Plain && !self.tls {
            problem(
                "sasl.mechanism",
                "PLAIN shows the password to the network: set `tls = true`",
            );
        }
    }
}

// === helpers ===

/// What both kinds of log limit.
struct Limits {
    partitions: u32,
    record_bytes_max: usize,
    queue_records_max: usize,
    queue_bytes_max: usize,
    retention: Duration,
    dead_letters_retention: Duration,
}

impl Limits {
    fn check(&self, key: &str, problems: &mut Vec<Problem>) {
        let mut problem = |name: &str, message: String| {
            problems.push(Problem::new(format!("{key}.{name}"), message));
        };
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            problem(
                "partitions",
                format!("must be between 1 and {PARTITIONS_MAX}"),
            );
        }
        if !(RECORD_BYTES_MIN..=RECORD_BYTES_LIMIT).contains(&self.record_bytes_max) {
            let message = format!("must be between {RECORD_BYTES_MIN} and {RECORD_BYTES_LIMIT}");
            problem("record_bytes_max", message);
        }
        if self.queue_records_max == 0 {
            problem("queue_records_max", "must be at least 1".into());
        }
        let least = self.record_bytes_max.saturating_add(DERIVED_BYTES_RESERVE);
        if self.queue_bytes_max < least {
            let message = format!(
                "must hold a record of `record_bytes_max` and {DERIVED_BYTES_RESERVE} more for what is made of it, so \
                 at least {least}"
            );
            problem("queue_bytes_max", message);
        }
        if self.retention < RETENTION_MIN {
            let message = "must be at least 24h: records wait up to 6h in a delay tier".into();
            problem("retention", message);
        }
        if self.dead_letters_retention < RETENTION_MIN {
            problem("dead_letters_retention", "must be at least 24h".into());
        }
    }
}

fn is_host_and_port(broker: &str) -> bool {
    broker.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

/// The characters that Kafka takes in a topic name, with room for the suffix below its limit of 249.
fn is_kafka_name(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// What a machine has made up, if `name` looks like it: names that do not come again.
fn generated_name(name: &str) -> Option<&'static str> {
    /// The letters from which Kubernetes draws.
    const DRAWN: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let drawn = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len()) && part.bytes().all(|byte| DRAWN.contains(&byte))
    };
    let hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut parts = name.rsplit('-');
    let (last, before) = (parts.next().unwrap_or_default(), parts.next());
    if name.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && name.split('-').all(hex) {
        Some("a UUID")
    } else if [12, 32, 64].contains(&name.len()) && hex(name) {
        Some("the id of a container")
    } else if drawn(last, 5..=5) && before.is_some_and(|before| drawn(before, 8..=10)) {
        Some("the name of a Deployment's pod")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::value::{Error, MapDeserializer};

    fn parse(entries: &[(&'static str, &'static str)]) -> Result<LogConfig, Error> {
        let entries = entries.iter().copied();
        LogConfig::deserialize(MapDeserializer::<_, Error>::new(entries))
    }

    fn keys(problems: &[Problem]) -> Vec<&str> {
        problems
            .iter()
            .map(|problem| problem.key.as_str())
            .collect()
    }

    #[test]
    fn durations_and_defaults() {
        let config = parse(&[("kind", "embedded"), ("retention", "2d"), ("dir", "x")]);
        let expected = EmbeddedConfig {
            dir: "x".into(),
            retention: Duration::from_hours(48),
            ..EmbeddedConfig::default()
        };
        assert_eq!(config, Ok(LogConfig::Embedded(expected)));
        assert_eq!(LogConfig::default().check("log"), []);
    }

    #[test]
    fn unknown_keys_are_errors() {
        let error = parse(&[("kind", "embedded"), ("partition", "x")]).expect_err("unknown key");
        assert!(error.to_string().contains("partition"), "{error}");
        let error = parse(&[("kind", "rabbit")]).expect_err("unknown kind");
        assert!(error.to_string().contains("rabbit"), "{error}");
    }

    #[test]
    fn embedded_mistakes_name_their_keys() {
        let config = EmbeddedConfig {
            dir: PathBuf::new(),
            partitions: 0,
            retention: Duration::from_secs(1),
            dead_letters_retention: Duration::ZERO,
            record_bytes_max: 1,
            queue_records_max: 0,
            queue_bytes_max: 0,
        };
        let problems = config.check("log");
        assert_eq!(
            keys(&problems),
            [
                "log.dir",
                "log.partitions",
                "log.record_bytes_max",
                "log.queue_records_max",
                "log.queue_bytes_max",
                "log.retention",
                "log.dead_letters_retention",
            ]
        );
    }

    #[test]
    fn kafka_mistakes_name_their_keys() {
        let mut config = KafkaConfig {
            brokers: vec!["127.0.0.1:9092".into()],
            ..KafkaConfig::default()
        };
        assert_eq!(config.check("log"), []);
        let password = SecretRef {
            env: Some("P".into()),
            file: None,
            not_after: None,
        };
        let sasl = KafkaSasl {
            mechanism: SaslMechanism::Plain,
            username: String::new(),
            password,
        };
        config.brokers = vec![
            "localhost".into(),
            ":1".into(),
            "h:0".into(),
            "[::1]:9092".into(),
        ];
        config.topic_prefix = "a b".into();
        config.group = String::new();
        config.replication_factor = 0;
        config.session_timeout = Some(Duration::from_secs(5));
        config.group_instance_id = Some("a b".into());
        let ids = RegistryIdsConfig {
            webhook: 1,
            delivery: 2,
            dead_letter: 3,
        };
        config.former_registry_ids = vec![ids; FORMER_IDS_MAX + 1];
        config.queue_bytes_max = config.record_bytes_max + DERIVED_BYTES_RESERVE - 1;
        config.security = Some(KafkaSecurity {
            cert_file: Some("c".into()),
            key_password: Some(SecretRef {
                env: None,
                file: None,
                not_after: None,
            }),
            sasl: Some(sasl),
            ..KafkaSecurity::default()
        });
        assert_eq!(
            keys(&config.check("log")),
            [
                "log.brokers",
                "log.brokers",
                "log.brokers",
                "log.topic_prefix",
                "log.group",
                "log.replication_factor",
                "log.session_timeout",
                "log.group_instance_id",
                "log.session_timeout",
                "log.former_registry_ids",
                "log.queue_bytes_max",
                "log.security.cert_file",
                "log.security.key_password",
                "log.security.tls",
                "log.security.sasl.username",
                "log.security.sasl.mechanism",
            ]
        );
    }

    /// Protocol, session and instance id; what is wrong with them, key by key.
    #[test]
    fn membership_agrees_with_protocol_and_session() {
        use GroupProtocol::{Classic, Consumer};
        let (s15, s45) = (Some(15), Some(45));
        let none: &[&str] = &[];
        type Case = (
            GroupProtocol,
            Option<u64>,
            Option<&'static str>,
            &'static [&'static str],
        );
        let cases: [Case; 14] = [
            (Classic, None, None, none),
            (Consumer, None, None, none),
            (Consumer, s15, None, &["log.session_timeout"]),
            (Classic, s45, Some("dispatcher-0"), none),
            (Classic, s45, Some("machine-a.example"), none),
            (Consumer, None, Some("dispatcher-12"), none),
            (
                Consumer,
                s45,
                Some("dispatcher-12"),
                &["log.session_timeout"],
            ),
            (
                Classic,
                None,
                Some("dispatcher-0"),
                &["log.session_timeout"],
            ),
            (
                Classic,
                Some(301),
                Some("dispatcher-0"),
                &["log.session_timeout"],
            ),
            (Classic, s45, Some(""), &["log.group_instance_id"]),
            (
                Classic,
                s45,
                Some("fencepost-7c9d8bf6f5-x2x9z"),
                &["log.group_instance_id"],
            ),
            (
                Classic,
                s45,
                Some("3f2a9c01d4be"),
                &["log.group_instance_id"],
            ),
            (
                Consumer,
                None,
                Some("0b8f6a52-4f6e-4a57-9d5e-3b1f7c2d9e10"),
                &["log.group_instance_id"],
            ),
            // An ordinal, and no letters that Kubernetes draws.
            (Classic, s45, Some("fencepost-dispatcher-10"), none),
        ];
        for (protocol, session_s, instance, expected) in cases {
            let config = KafkaConfig {
                brokers: vec!["127.0.0.1:9092".into()],
                group_protocol: protocol,
                session_timeout: session_s.map(Duration::from_secs),
                group_instance_id: instance.map(str::to_owned),
                ..KafkaConfig::default()
            };
            let problems = config.check("log");
            assert_eq!(keys(&problems), expected, "{config:?}: {problems:?}");
        }
    }
}
