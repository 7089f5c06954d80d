//! The log that the config names, behind one type.

use crate::failure::Failure;
#[cfg(feature = "kafka")]
use event_log::kafka::{KafkaConsumer, KafkaLog};
use event_log::{
    Appended, Consumer, Event, EventLog, LogError, Page, Position, ProduceError, Record, Watermark,
    config::{EmbeddedConfig, LogConfig},
    embedded::{EmbeddedConsumer, EmbeddedLog},
};
use runtime::Clock;
use schemas::{Codec, Framing, Topic};
use std::{path::Path, time::Duration};

/// The log of this process.
#[derive(Clone, Debug)]
pub(crate) enum AnyLog {
    Embedded(EmbeddedLog),
    #[cfg(feature = "kafka")]
    Kafka(KafkaLog),
}

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

/// How records are framed; every framing is read.
pub(crate) fn codec(config: &LogConfig) -> Codec {
    let ids = match config {
        LogConfig::Embedded(_) => None,
        LogConfig::Kafka(kafka) => kafka.registry_ids,
    };
    Codec::new(ids.map_or(Framing::SingleObject, |ids| {
        Framing::Confluent(schemas::RegistryIds {
            webhook: ids.webhook,
            delivery: ids.delivery,
            dead_letter: ids.dead_letter,
        })
    }))
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

// === impl AnyLog ===

impl EventLog for AnyLog {
    type Consumer = AnyConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        match self {
            Self::Embedded(log) => log.produce(record).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.produce(record).await,
        }
    }

    async fn consumer(&self) -> Result<AnyConsumer, LogError> {
        match self {
            Self::Embedded(log) => log.consumer().await.map(AnyConsumer::Embedded),
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.consumer().await.map(Box::new).map(AnyConsumer::Kafka),
        }
    }

    fn partitions(&self) -> u32 {
        match self {
            Self::Embedded(log) => log.partitions(),
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.partitions(),
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
        }
    }

    fn ready(&self) -> Result<(), LogError> {
        match self {
            Self::Embedded(log) => log.ready(),
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.ready(),
        }
    }

    async fn flush(&self, deadline: Duration) {
        match self {
            Self::Embedded(log) => log.flush(deadline).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(log) => log.flush(deadline).await,
        }
    }
}

// === impl AnyConsumer ===

impl Consumer for AnyConsumer {
    async fn next(&mut self, room: usize) -> Result<Vec<Event>, LogError> {
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
