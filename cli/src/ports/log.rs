//! The log that the config names, behind one type.

use crate::failure::Failure;
use event_log::{
    Appended, Consumer, Event, EventLog, LogError, Page, Position, ProduceError, Record, Room,
    Watermark,
    config::{EmbeddedConfig, LogConfig, RegistryIdsConfig},
    embedded::{EmbeddedConsumer, EmbeddedLog},
};
#[cfg(feature = "kafka")]
use event_log::{
    config::KafkaConfig,
    kafka::{KafkaConsumer, KafkaLog},
};
use runtime::Clock;
use schemas::{Codec, Framing, Record as Schema, RegistryIds, Topic};
use std::{future::Future, path::Path, pin::Pin, time::Duration};
#[cfg(feature = "kafka")]
use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

/// Pause between two tries to connect to a Kafka that did not answer at the start. A try takes some seconds by itself.
#[cfg(feature = "kafka")]
const CONNECT_PAUSE: Duration = Duration::from_secs(2);

/// The log of this process.
#[derive(Clone, Debug)]
pub(crate) enum AnyLog {
    Embedded(EmbeddedLog),
    #[cfg(feature = "kafka")]
    Kafka(KafkaLog),
    #[cfg(feature = "kafka")]
    Late(LateKafka),
}

/// A Kafka that did not answer at the start; there once it has.
#[cfg(feature = "kafka")]
#[derive(Clone, Debug, Default)]
pub(crate) struct LateKafka(Arc<OnceLock<KafkaLog>>);

/// The work of connecting to a log that did not answer at the start. Ends when it has, or can not be used.
pub(crate) type Connecting = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// A consumer of it.
#[derive(Debug)]
pub(crate) enum AnyConsumer {
    Embedded(EmbeddedConsumer),
    #[cfg(feature = "kafka")]
    Kafka(Box<KafkaConsumer>),
}

/// Opens the log that `config` names.
///
/// # Errors
/// [`Failure::Unavailable`] when it can not be reached or is in use; [`Failure::Config`] when this binary lacks it.
#[cfg_attr(
    not(feature = "kafka"),
    expect(clippy::unused_async, reason = "only Kafka is awaited")
)]
pub(crate) async fn open(config: &LogConfig, base: &Path, clock: Clock) -> Result<AnyLog, Failure> {
    match config {
        LogConfig::Embedded(embedded) => EmbeddedLog::open(embedded, clock)
            .map(AnyLog::Embedded)
            .map_err(Failure::from),
        #[cfg(feature = "kafka")]
        LogConfig::Kafka(kafka) => KafkaLog::connect(kafka, base, clock)
            .await
            .map(AnyLog::Kafka)
            .map_err(Failure::from),
        #[cfg(not(feature = "kafka"))]
        LogConfig::Kafka(_) => {
            let _: &Path = base;
            Err(Failure::not_built("log.kind", "kafka"))
        }
    }
}

/// As [`open`], for a process that can do without for a while: when no broker answers, the log is there later.
///
/// # Errors
/// As [`open`], but for that.
pub(crate) async fn open_or_wait(
    config: &LogConfig,
    base: &Path,
    clock: Clock,
) -> Result<(AnyLog, Option<Connecting>), Failure> {
    #[cfg(feature = "kafka")]
    if let LogConfig::Kafka(kafka) = config {
        return match KafkaLog::connect(kafka, base, clock.clone()).await {
            Ok(log) => Ok((AnyLog::Kafka(log), None)),
            Err(LogError::Unavailable(error)) => {
                tracing::warn!(
                    error,
                    "the log does not answer yet, webhooks go to the spool"
                );
                let late = LateKafka::default();
                let connecting = late.clone().connect(kafka.clone(), base.to_owned(), clock);
                Ok((AnyLog::Late(late), Some(Box::pin(connecting))))
            }
            Err(error @ LogError::Fatal(_)) => Err(error.into()),
        };
    }
    Ok((open(config, base, clock).await?, None))
}

/// How records are framed; every framing is read, under the ids of today and of former times.
pub(crate) fn codec(config: &LogConfig) -> Codec {
    let (ids, former) = match config {
        LogConfig::Embedded(_) => (None, &[][..]),
        LogConfig::Kafka(kafka) => (kafka.registry_ids, kafka.former_registry_ids.as_slice()),
    };
    let framing = ids.map_or(Framing::SingleObject, |ids| {
        Framing::Confluent(registry_ids(ids))
    });
    former.iter().fold(Codec::new(framing), |codec, ids| {
        accept_former(codec, &registry_ids(*ids))
    })
}

/// Reads the schemas of today under the ids that they had in former times.
fn accept_former(codec: Codec, ids: &RegistryIds) -> Codec {
    Schema::ALL.into_iter().fold(codec, |codec, record| {
        let accepted = codec
            .clone()
            .accept(record, Some(ids.of(record)), record.text());
        // Only a schema that can not be parsed is refused, and this one is the one that everything is read with.
        accepted.unwrap_or_else(|error| {
            tracing::error!(%error, record = record.name(), "a former registry id is not known");
            codec
        })
    })
}

fn registry_ids(ids: RegistryIdsConfig) -> RegistryIds {
    RegistryIds {
        webhook: ids.webhook,
        delivery: ids.delivery,
        dead_letter: ids.dead_letter,
    }
}

/// Prefix of the topics' names.
pub(crate) fn topic_prefix(config: &LogConfig) -> &str {
    match config {
        LogConfig::Embedded(_) => "fencepost",
        LogConfig::Kafka(kafka) => &kafka.topic_prefix,
    }
}

/// Refuses to look into a directory that no process has made yet; opening would make it.
///
/// # Errors
/// [`Failure::Unavailable`].
pub(crate) fn must_exist(config: &EmbeddedConfig) -> Result<(), Failure> {
    if config.dir.is_dir() {
        return Ok(());
    }
    let dir = config.dir.display();
    Err(Failure::Unavailable(format!(
        "there is no embedded log in {dir} yet"
    )))
}

// === impl LateKafka ===

#[cfg(feature = "kafka")]
impl LateKafka {
    fn log(&self) -> Result<&KafkaLog, LogError> {
        let never = || LogError::Unavailable("no broker has answered since the start".to_owned());
        self.0.get().ok_or_else(never)
    }

    async fn connect(
        self,
        config: KafkaConfig,
        base: PathBuf,
        clock: Clock,
    ) -> Result<(), Failure> {
        loop {
            tokio::time::sleep(CONNECT_PAUSE).await;
            match KafkaLog::connect(&config, &base, clock.clone()).await {
                Ok(log) => {
                    tracing::info!("the log answers");
                    // Nobody else sets it.
                    drop(self.0.set(log));
                    return Ok(());
                }
                Err(LogError::Unavailable(error)) => {
                    tracing::debug!(error, "the log does not answer yet");
                }
                Err(error @ LogError::Fatal(_)) => return Err(error.into()),
            }
        }
    }
}

// === impl AnyLog ===

impl EventLog for AnyLog {
    type Consumer = AnyConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        match self {
            Self::Embedded(log) => log.produce(record).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.produce(record).await,
            #[cfg(feature = "kafka")]
            Self::Late(late) => match late.log() {
                Ok(log) => log.produce(record).await,
                Err(error) => Err(ProduceError::Unacknowledged(error.to_string())),
            },
        }
    }

    async fn consumer(&self) -> Result<AnyConsumer, LogError> {
        match self {
            Self::Embedded(log) => log.consumer().await.map(AnyConsumer::Embedded),
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.consumer().await.map(Box::new).map(AnyConsumer::Kafka),
            #[cfg(feature = "kafka")]
            Self::Late(late) => {
                let consumer = late.log()?.consumer().await?;
                Ok(AnyConsumer::Kafka(Box::new(consumer)))
            }
        }
    }

    fn partitions(&self) -> u32 {
        match self {
            Self::Embedded(log) => log.partitions(),
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.partitions(),
            #[cfg(feature = "kafka")]
            Self::Late(late) => late.log().map_or(0, EventLog::partitions),
        }
    }

    async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        match self {
            Self::Embedded(log) => log.read(topic, partition, from_offset, max).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.read(topic, partition, from_offset, max).await,
            #[cfg(feature = "kafka")]
            Self::Late(late) => late.log()?.read(topic, partition, from_offset, max).await,
        }
    }

    fn ready(&self) -> Result<(), LogError> {
        match self {
            Self::Embedded(log) => log.ready(),
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.ready(),
            #[cfg(feature = "kafka")]
            Self::Late(late) => late.log()?.ready(),
        }
    }

    async fn flush(&self, deadline: Duration) {
        match self {
            Self::Embedded(log) => log.flush(deadline).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.flush(deadline).await,
            #[cfg(feature = "kafka")]
            Self::Late(late) => {
                if let Ok(log) = late.log() {
                    log.flush(deadline).await;
                }
            }
        }
    }
}

// === impl AnyConsumer ===

impl Consumer for AnyConsumer {
    async fn next(&mut self, room: impl Into<Room> + Send) -> Result<Vec<Event>, LogError> {
        match self {
            Self::Embedded(consumer) => consumer.next(room).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(consumer) => consumer.next(room).await,
        }
    }

    fn commit(&self, watermarks: Vec<Watermark>) {
        match self {
            Self::Embedded(consumer) => consumer.commit(watermarks),
            #[cfg(feature = "kafka")]
            Self::Kafka(consumer) => consumer.commit(watermarks),
        }
    }

    fn positions(&self) -> Vec<Position> {
        match self {
            Self::Embedded(consumer) => consumer.positions(),
            #[cfg(feature = "kafka")]
            Self::Kafka(consumer) => consumer.positions(),
        }
    }

    async fn close(self, watermarks: Vec<Watermark>, deadline: Duration) {
        match self {
            Self::Embedded(consumer) => consumer.close(watermarks, deadline).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(consumer) => consumer.close(watermarks, deadline).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    #[cfg(not(feature = "kafka"))]
    use event_log::config::KafkaConfig;
    use schemas::{DeadLetter, Delivery, Origin, Reason, Webhook};

    fn ids(first: u32) -> RegistryIdsConfig {
        RegistryIdsConfig {
            webhook: first,
            delivery: first + 1,
            dead_letter: first + 2,
        }
    }

    fn codec_with(now: Option<RegistryIdsConfig>, former: &[RegistryIdsConfig]) -> Codec {
        codec(&LogConfig::Kafka(KafkaConfig {
            registry_ids: now,
            former_registry_ids: former.to_vec(),
            ..KafkaConfig::default()
        }))
    }

    fn webhook() -> Webhook {
        Webhook {
            source: "github".into(),
            delivery_id: "1".into(),
            event_type: "push".into(),
            content_type: None,
            headers: Vec::new(),
            body: Bytes::from_static(b"{}"),
            received_at_ms: 1,
            generation: 0,
        }
    }

    fn letter() -> DeadLetter {
        DeadLetter {
            dead_letter_id: "x".into(),
            source: "github".into(),
            delivery_id: "1".into(),
            destination: "billing".into(),
            event_type: "push".into(),
            reason: Reason::Gone,
            detail: String::new(),
            attempts: 1,
            generation: 0,
            last_status: Some(410),
            received_at_ms: 1,
            failed_at_ms: 2,
            history: Vec::new(),
            content_type: None,
            headers: Vec::new(),
            body: Bytes::new(),
            origin: Origin {
                topic: "t".into(),
                partition: 0,
                offset: 0,
            },
        }
    }

    #[test]
    fn records_with_former_ids_are_read() {
        let delivery = Delivery::first(webhook(), "billing");
        for former in [ids(1), ids(11)] {
            let writer = codec_with(Some(former), &[]);
            let webhook_bytes = writer.encode_webhook(&webhook()).expect("small");
            let delivery_bytes = writer.encode_delivery(&delivery).expect("small");
            let letter_bytes = writer.encode_dead_letter(&letter()).expect("small");
            // Changed, or taken out.
            for now in [Some(ids(21)), None] {
                let reader = codec_with(now, &[ids(1), ids(11)]);
                assert_eq!(reader.decode_webhook(&webhook_bytes), Ok(webhook()));
                assert_eq!(
                    reader.decode_delivery(&delivery_bytes),
                    Ok(delivery.clone())
                );
                assert_eq!(reader.decode_dead_letter(&letter_bytes), Ok(letter()));
                let forgetful = codec_with(now, &[]);
                assert!(forgetful.decode_webhook(&webhook_bytes).is_err());
            }
        }
    }
}
