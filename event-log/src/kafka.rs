//! The log of production: Kafka, through librdkafka.
//!
//! - `client` builds every client;
//! - `producer` produces with bounds and replaces a producer that has become unusable;
//! - `consumer` is the group's member, `delay` follows it through the delay tiers, both fill `inbox`, `watch` sees whether they do;
//! - [`topics`] creates, checks and describes topics.

mod client;
mod consumer;
mod delay;
mod inbox;
mod producer;
mod reader;
pub mod topics;
mod watch;

pub use consumer::KafkaConsumer;

use crate::{Appended, EventLog, LogError, Page, ProduceError, Record, config::KafkaConfig};
use client::Clients;
use producer::Producer;
use runtime::Clock;
use schemas::Topic;
use std::{
    path::Path,
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

/// The log on Kafka. Cheap to clone.
#[derive(Clone)]
pub struct KafkaLog(Arc<Inner>);

struct Inner {
    clients: Clients,
    producer: Producer,
    partitions: u32,
    clock: Clock,
    /// Last epoch given out.
    epochs: Arc<AtomicU64>,
    /// Why reading has failed for good: what a consumer of this log calls fatal, or the end of one of its threads.
    unreadable: Arc<OnceLock<LogError>>,
}

// === impl KafkaLog ===

impl KafkaLog {
    /// Connects, checks the topics and starts the producer. Relative paths in `config` start at `secrets_base`.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when no broker answers; [`LogError::Fatal`] when a secret can not be read or the topics
    /// are not as they must be: then the message names `fencepost topics ensure`.
    pub async fn connect(
        config: &KafkaConfig,
        secrets_base: &Path,
        clock: Clock,
    ) -> Result<Self, LogError> {
        let clients = Clients::open(config, secrets_base)?;
        let partitions = topics::Topics::open(clients.clone())?.verify().await?;
        let producer = Producer::start(clients.clone())?;
        Ok(Self(Arc::new(Inner {
            clients,
            producer,
            partitions,
            clock,
            epochs: Arc::default(),
            unreadable: Arc::default(),
        })))
    }
}

impl std::fmt::Debug for KafkaLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaLog")
            .field("brokers", &self.0.clients.config().brokers)
            .field("partitions", &self.0.partitions)
            .finish_non_exhaustive()
    }
}

impl EventLog for KafkaLog {
    type Consumer = KafkaConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        self.0.producer.produce(record).await
    }

    async fn consumer(&self) -> Result<KafkaConsumer, LogError> {
        let inner = Arc::clone(&self.0);
        blocking(move || {
            let epochs = Arc::clone(&inner.epochs);
            let unreadable = Arc::clone(&inner.unreadable);
            KafkaConsumer::start(&inner.clients, inner.clock.clone(), epochs, unreadable)
        })
        .await
    }

    fn partitions(&self) -> u32 {
        self.0.partitions
    }

    async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        let inner = Arc::clone(&self.0);
        let now_ms = inner.clock.now_ms();
        blocking(move || {
            let range = reader::Range {
                topic,
                partition,
                from_offset,
                max,
            };
            reader::read(&inner.clients, range, now_ms)
        })
        .await
    }

    fn ready(&self) -> Result<(), LogError> {
        match self.0.unreadable.get() {
            Some(error) => Err(error.clone()),
            None => self.0.producer.ready(),
        }
    }

    async fn flush(&self, deadline: Duration) {
        let producer = self.0.producer.clone();
        let flushed = blocking(move || {
            producer.flush(deadline);
            Ok(())
        });
        if let Err(error) = flushed.await {
            tracing::warn!(%error, "flush failed");
        }
    }
}

// === helpers ===

/// Runs a call of librdkafka that blocks.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    tokio::task::spawn_blocking(call)
        .await
        .map_err(|error| LogError::Unavailable(format!("call of the client ended: {error}")))?
}
