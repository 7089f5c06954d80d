//! The only place that builds a Kafka client: every setting on which a promise rests stands here.
//!
//! - acknowledged means durable: `acks=all`, idempotence;
//! - foreign tools find the same partition: `murmur2_random`;
//! - nothing is skipped: `auto.offset.reset=earliest`, no automatic commit or store (librdkafka's own defaults would
//!   start at the end and commit what was never finished);
//! - an outage ends when the broker is back: reconnects are at most 500 ms apart;
//! - memory has limits: queues of the producer, prefetch of the consumers.

use crate::{
    LogError,
    config::{GroupProtocol, KafkaConfig, KafkaSecurity, SaslMechanism},
    topic_bytes_max,
};
use rdkafka::{
    ClientConfig, ClientContext, Statistics, config::RDKafkaLogLevel, error::KafkaError,
};
use runtime::{Secret, SecretRef};
use schemas::{Topic, TopicNames};
use std::{path::Path, time::Duration};

/// A record's frame in the batch that carries it: batch header, varints, header names' lengths.
pub(super) const FRAME_BYTES_MAX: usize = 16 * 1024;
/// How long the producer tries before it answers that a record was not acknowledged. Clearly less than the dispatcher waits
/// for that answer (10 s; librdkafka looks once a second): whoever goes first may have the record written twice.
pub(super) const MESSAGE_TIMEOUT_MS: u64 = 8_000;
const REQUEST_TIMEOUT_MS: u64 = 5_000;
const SOCKET_TIMEOUT_MS: u64 = 15_000;
const RECONNECT_BACKOFF_MS_MAX: u64 = 500;
/// Waits a little for company: acknowledged HTTP requests pay it once.
const LINGER_MS: u64 = 3;
const PREFETCH_RECORDS: usize = 2_000;
const PREFETCH_KBYTES: usize = 16 * 1024;
/// librdkafka's default of a second shows in every catch-up.
const FETCH_QUEUE_BACKOFF_MS: u64 = 20;
const STATISTICS_INTERVAL_MS: u64 = 1_000;
/// How late a client hears of partitions that were added, when nothing goes wrong with the old ones.
const METADATA_REFRESH_MS: u64 = 10_000;
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(120);

/// Builds every client of one cluster. Holds secrets, so it has no `Debug`.
#[derive(Clone)]
pub(super) struct Clients {
    config: KafkaConfig,
    names: TopicNames,
    /// Settings of every client but the secrets.
    common: Vec<(&'static str, String)>,
    /// Settings whose value is read when a client is built: a rotated file is seen by the next client.
    secrets: Vec<(&'static str, Secret)>,
    /// A member that does not poll for this long is thrown out of its group (classic: twice the session at least).
    pub(super) poll_interval_max: Duration,
}

/// Writes what librdkafka logs to `tracing`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogContext;

// === impl Clients ===

impl Clients {
    /// Opens the secrets that `config` names; relative paths start at `base`.
    pub(super) fn open(config: &KafkaConfig, base: &Path) -> Result<Self, LogError> {
        let mut common = vec![
            ("bootstrap.servers", config.brokers.join(",")),
            ("client.id", "fencepost".to_owned()),
            ("reconnect.backoff.ms", "50".to_owned()),
            (
                "reconnect.backoff.max.ms",
                RECONNECT_BACKOFF_MS_MAX.to_string(),
            ),
            ("socket.timeout.ms", SOCKET_TIMEOUT_MS.to_string()),
            ("socket.keepalive.enable", "true".to_owned()),
            (
                "topic.metadata.refresh.interval.ms",
                METADATA_REFRESH_MS.to_string(),
            ),
            ("allow.auto.create.topics", "false".to_owned()),
            (
                "message.max.bytes",
                largest_message_bytes(config.record_bytes_max).to_string(),
            ),
            ("statistics.interval.ms", STATISTICS_INTERVAL_MS.to_string()),
        ];
        let mut secrets = Vec::new();
        if let Some(security) = &config.security {
            common.extend(security_settings(security, base));
            for (key, place) in security_secrets(security) {
                let secret = Secret::open(place, base)
                    .map_err(|error| LogError::Fatal(format!("{key}: {error}")))?;
                secrets.push((key, secret));
            }
        }
        let names = TopicNames::new(config.topic_prefix.clone());
        Ok(Self {
            config: config.clone(),
            names,
            common,
            secrets,
            poll_interval_max: POLL_INTERVAL_MAX,
        })
    }

    pub(super) fn config(&self) -> &KafkaConfig {
        &self.config
    }

    pub(super) fn names(&self) -> &TopicNames {
        &self.names
    }

    /// Group under which the delay tiers are committed.
    pub(super) fn delay_group(&self) -> String {
        format!("{}.delay", self.config.group)
    }

    /// The producer; a record that is not acknowledged after `message_timeout_ms` is given up.
    pub(super) fn producer(&self, message_timeout_ms: u64) -> Result<ClientConfig, LogError> {
        let config = &self.config;
        // Room for the frames; our own bounds answer "busy" before librdkafka's do.
        let queue_kbytes = config.queue_bytes_max / 1024 + config.queue_records_max + 1024;
        let mut client = self.client()?;
        client
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random")
            .set("compression.type", "lz4")
            .set("linger.ms", LINGER_MS.to_string())
            .set("message.timeout.ms", message_timeout_ms.to_string())
            .set("request.timeout.ms", REQUEST_TIMEOUT_MS.to_string())
            .set(
                "queue.buffering.max.messages",
                (config.queue_records_max + 1_000).to_string(),
            )
            .set("queue.buffering.max.kbytes", queue_kbytes.to_string());
        Ok(client)
    }

    /// The member of the dispatcher's group.
    pub(super) fn group_consumer(&self) -> Result<ClientConfig, LogError> {
        let session_ms = self.config.session_timeout().as_millis();
        let poll_ms = self.poll_interval_max.as_millis();
        let mut client = self.reading_client(&self.config.group)?;
        if let Some(instance) = &self.config.group_instance_id {
            client.set("group.instance.id", instance);
        }
        match self.config.group_protocol {
            GroupProtocol::Classic => client
                .set("group.protocol", "classic")
                .set(
                    "max.poll.interval.ms",
                    poll_ms.max(session_ms.saturating_mul(2)).to_string(),
                )
                .set("partition.assignment.strategy", "cooperative-sticky")
                .set("session.timeout.ms", session_ms.to_string())
                .set(
                    "heartbeat.interval.ms",
                    (session_ms / 3).clamp(1, 3_000).to_string(),
                ),
            // Sessions and assignment are the brokers' there; naming them is an error.
            GroupProtocol::Consumer => client
                .set("group.protocol", "consumer")
                .set("max.poll.interval.ms", poll_ms.to_string()),
        };
        Ok(client)
    }

    /// Reads the delay tiers by manual assignment; its group only holds offsets.
    pub(super) fn delay_consumer(&self) -> Result<ClientConfig, LogError> {
        self.reading_client(&self.delay_group())
    }

    /// Reads for a tool: never commits, hears of the end of a partition.
    pub(super) fn reader(&self) -> Result<ClientConfig, LogError> {
        let mut client = self.reading_client(&format!("{}.read", self.config.group))?;
        client
            .set("enable.partition.eof", "true")
            .remove("statistics.interval.ms");
        Ok(client)
    }

    /// Sees the committed offsets of `group`, never joins it.
    pub(super) fn observer(&self, group: &str) -> Result<ClientConfig, LogError> {
        let mut client = self.reading_client(group)?;
        client.remove("statistics.interval.ms");
        Ok(client)
    }

    /// Creates and describes topics.
    pub(super) fn admin(&self) -> Result<ClientConfig, LogError> {
        let mut client = self.client()?;
        client.remove("statistics.interval.ms");
        Ok(client)
    }

    fn reading_client(&self, group: &str) -> Result<ClientConfig, LogError> {
        let mut client = self.client()?;
        client
            .set("group.id", group)
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("queued.min.messages", PREFETCH_RECORDS.to_string())
            .set("queued.max.messages.kbytes", PREFETCH_KBYTES.to_string())
            .set("fetch.queue.backoff.ms", FETCH_QUEUE_BACKOFF_MS.to_string())
            .set("fetch.error.backoff.ms", "100");
        let bytes_max = largest_message_bytes(self.config.record_bytes_max);
        if bytes_max > RECEIVE_BYTES_DEFAULT {
            // Above librdkafka's own limit of a response, which it would raise by itself up to here.
            client.set(
                "receive.message.max.bytes",
                (bytes_max + 1_000_000).to_string(),
            );
        }
        Ok(client)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one builder that the ban points to"
    )]
    fn client(&self) -> Result<ClientConfig, LogError> {
        let mut client = ClientConfig::new();
        for (key, value) in &self.common {
            client.set(*key, value.as_str());
        }
        for (key, secret) in &self.secrets {
            let value = secret
                .with(|value| String::from_utf8(value.to_vec()))
                .map_err(|_not_shown| LogError::Fatal(format!("{key}: is not UTF-8")))?;
            client.set(*key, value);
        }
        client.set_log_level(RDKafkaLogLevel::Info);
        Ok(client)
    }
}

// === impl LogContext ===

impl ClientContext for LogContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn stats(&self, _statistics: Statistics) {}

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl rdkafka::consumer::ConsumerContext for LogContext {}

// === helpers ===

/// librdkafka's default of `receive.message.max.bytes`, less its allowance for the protocol.
const RECEIVE_BYTES_DEFAULT: usize = 99_000_000;

/// Limit of a message on `topic` where webhooks have `record_bytes_max`.
pub(super) fn message_bytes_max(topic: Topic, record_bytes_max: usize) -> usize {
    topic_bytes_max(topic, record_bytes_max).saturating_add(FRAME_BYTES_MAX)
}

/// Limit of a message on clients, which serve every topic.
fn largest_message_bytes(record_bytes_max: usize) -> usize {
    message_bytes_max(Topic::DeadLetters, record_bytes_max)
}

pub(super) fn log_line(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => tracing::error!(facility, "kafka client: {message}"),
        RDKafkaLogLevel::Warning => tracing::warn!(facility, "kafka client: {message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            tracing::info!(facility, "kafka client: {message}");
        }
        RDKafkaLogLevel::Debug => tracing::debug!(facility, "kafka client: {message}"),
    }
}

/// An outage brings these by the dozen, and the client heals them itself: a warning, not an error.
pub(super) fn log_error(error: &KafkaError, reason: &str) {
    tracing::warn!(%error, "kafka client: {reason}");
}

fn security_settings(security: &KafkaSecurity, base: &Path) -> Vec<(&'static str, String)> {
    let protocol = match (security.tls, security.sasl.is_some()) {
        (false, false) => "plaintext",
        (true, false) => "ssl",
        (false, true) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    let mut settings = vec![("security.protocol", protocol.to_owned())];
    let files = [
        ("ssl.ca.location", &security.ca_file),
        ("ssl.certificate.location", &security.cert_file),
        ("ssl.key.location", &security.key_file),
    ];
    for (key, file) in files {
        if let Some(file) = file {
            settings.push((key, base.join(file).to_string_lossy().into_owned()));
        }
    }
    if security.tls {
        settings.push(("ssl.endpoint.identification.algorithm", "https".to_owned()));
        if security.ca_file.is_none() {
            // OpenSSL is linked in: its built-in path means nothing on this system.
            settings.push(("ssl.ca.location", "probe".to_owned()));
        }
    }
    if let Some(sasl) = &security.sasl {
        let mechanism = match sasl.mechanism {
            SaslMechanism::Plain => "PLAIN",
            SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
            SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
        };
        settings.push(("sasl.mechanisms", mechanism.to_owned()));
        settings.push(("sasl.username", sasl.username.clone()));
    }
    settings
}

fn security_secrets(security: &KafkaSecurity) -> impl Iterator<Item = (&'static str, &SecretRef)> {
    let key = security
        .key_password
        .as_ref()
        .map(|place| ("ssl.key.password", place));
    let sasl = security
        .sasl
        .as_ref()
        .map(|sasl| ("sasl.password", &sasl.password));
    key.into_iter().chain(sasl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KafkaSasl;

    fn config() -> KafkaConfig {
        KafkaConfig {
            brokers: vec!["a:1".into(), "b:2".into()],
            ..KafkaConfig::default()
        }
    }

    fn clients(config: &KafkaConfig) -> Clients {
        Clients::open(config, Path::new("/base")).expect("no secrets to open")
    }

    #[test]
    fn a_producer_acknowledges_only_what_is_durable() {
        let clients = clients(&config());
        let producer = clients.producer(MESSAGE_TIMEOUT_MS).expect("built");
        for (key, value) in [
            ("bootstrap.servers", "a:1,b:2"),
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("partitioner", "murmur2_random"),
            ("message.timeout.ms", "8000"),
            ("reconnect.backoff.max.ms", "500"),
            ("allow.auto.create.topics", "false"),
        ] {
            assert_eq!(producer.get(key), Some(value), "{key}");
        }
        producer
            .create_native_config()
            .expect("librdkafka takes it");
    }

    #[test]
    fn consumers_never_start_at_the_end_and_never_commit_by_themselves() {
        let clients = clients(&config());
        for client in [
            clients.group_consumer(),
            clients.delay_consumer(),
            clients.reader(),
            clients.observer("x"),
        ] {
            let client = client.expect("built");
            for (key, value) in [
                ("auto.offset.reset", "earliest"),
                ("enable.auto.commit", "false"),
                ("enable.auto.offset.store", "false"),
            ] {
                assert_eq!(client.get(key), Some(value), "{key}");
            }
            client.create_native_config().expect("librdkafka takes it");
        }
        let delay = clients.delay_consumer().expect("built");
        assert_eq!(delay.get("group.id"), Some("fencepost-dispatcher.delay"));
    }

    #[test]
    fn the_group_protocol_decides_who_owns_the_session() {
        let mut config = config();
        let classic = clients(&config).group_consumer().expect("built");
        assert_eq!(classic.get("session.timeout.ms"), Some("15000"));
        assert_eq!(
            classic.get("partition.assignment.strategy"),
            Some("cooperative-sticky")
        );
        assert_eq!(classic.get("group.instance.id"), None);
        config.group_protocol = GroupProtocol::Consumer;
        config.group_instance_id = Some("dispatcher-0".into());
        let delay = clients(&config).delay_consumer().expect("built");
        assert_eq!(delay.get("group.instance.id"), None, "is no member");
        let consumer = clients(&config).group_consumer().expect("built");
        assert_eq!(consumer.get("group.instance.id"), Some("dispatcher-0"));
        let made: rdkafka::error::KafkaResult<rdkafka::consumer::BaseConsumer> = consumer.create();
        made.expect("librdkafka takes it");
        for key in [
            "session.timeout.ms",
            "heartbeat.interval.ms",
            "partition.assignment.strategy",
        ] {
            assert_eq!(consumer.get(key), None, "{key}");
        }
    }

    #[test]
    fn encryption_and_names_are_passed_on() {
        let security = KafkaSecurity {
            tls: true,
            ca_file: Some("ca.pem".into()),
            sasl: Some(KafkaSasl {
                mechanism: SaslMechanism::ScramSha512,
                username: "u".into(),
                password: SecretRef {
                    env: Some("P".into()),
                    file: None,
                    not_after: None,
                },
            }),
            ..KafkaSecurity::default()
        };
        let settings = security_settings(&security, Path::new("/base"));
        assert!(settings.contains(&("security.protocol", "sasl_ssl".into())));
        assert!(settings.contains(&("ssl.ca.location", "/base/ca.pem".into())));
        assert!(settings.contains(&("sasl.mechanisms", "SCRAM-SHA-512".into())));
        assert_eq!(security_secrets(&security).count(), 1);
    }

    #[test]
    fn records_of_any_allowed_size_fit_the_clients() {
        for mib in [1, 32, 512] {
            let mut config = config();
            config.record_bytes_max = mib * 1024 * 1024;
            config.queue_bytes_max = config.record_bytes_max + crate::DERIVED_BYTES_RESERVE;
            let clients = clients(&config);
            for client in [
                clients.producer(MESSAGE_TIMEOUT_MS),
                clients.group_consumer(),
            ] {
                let client: rdkafka::error::KafkaResult<rdkafka::consumer::BaseConsumer> =
                    client.expect("built").create();
                client.expect("librdkafka takes the sizes");
            }
        }
    }
}
