//! What the tools look at. An embedded directory is read beside the process that has it open; anything else is opened as ever.

use super::{
    log::{self, AnyLog},
    store::{self, AnyStore},
};
use crate::failure::Failure;
use dedup_store::{Row, Standings, Store, config::StoreConfig, embedded};
use event_log::{EventLog, LogError, Page, config::LogConfig, embedded::peek::Peek};
use runtime::Clock;
use schemas::{DeliveryKey, Topic};
use std::path::Path;

/// A log that is only read.
#[derive(Debug)]
pub(crate) enum Shelf {
    Embedded(Peek),
    Shared(Box<AnyLog>),
}

/// A store that is only read.
#[derive(Debug)]
pub(crate) enum Rows {
    Embedded(embedded::peek::Peek),
    Shared(AnyStore),
}

/// Opens the log that `config` names, to read it.
///
/// # Errors
/// [`Failure::Unavailable`] when it can not be reached or is not there yet; [`Failure::Config`] when this binary lacks it.
pub(crate) async fn open_log(
    config: &LogConfig,
    base: &Path,
    clock: Clock,
) -> Result<Shelf, Failure> {
    match config {
        LogConfig::Embedded(embedded) => {
            log::must_exist(embedded)?;
            Ok(Shelf::Embedded(Peek::open(embedded)?))
        }
        LogConfig::Kafka(_) => {
            let log = log::open(config, base, clock).await?;
            Ok(Shelf::Shared(Box::new(log)))
        }
    }
}

/// Opens the store that `config` names, to read it.
///
/// # Errors
/// As [`open_log`].
pub(crate) async fn open_rows(config: &StoreConfig, base: &Path) -> Result<Rows, Failure> {
    match config {
        StoreConfig::Embedded(config) => {
            store::must_exist(config)?;
            Ok(Rows::Embedded(embedded::peek::Peek::open(config)?))
        }
        StoreConfig::Cql(_) => store::open(config, base).await.map(Rows::Shared),
    }
}

/// The row of a delivery in the store that `config` names; none when there is none.
///
/// # Errors
/// As [`open_log`].
pub(crate) async fn row(
    config: &StoreConfig,
    base: &Path,
    key: &DeliveryKey,
    now_ms: i64,
) -> Result<Option<Row>, Failure> {
    open_rows(config, base).await?.get(key, now_ms).await
}

// === impl Rows ===

impl Rows {
    /// The row of a delivery; none when there is none.
    ///
    /// # Errors
    /// [`Failure::Unavailable`].
    pub(crate) async fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, Failure> {
        match self {
            Self::Embedded(peek) => Ok(peek.get(key, now_ms)?),
            Self::Shared(store) => Ok(store.get(key, now_ms).await?),
        }
    }

    /// How the destinations stand.
    ///
    /// # Errors
    /// [`Failure::Unavailable`].
    pub(crate) async fn standings(&self) -> Result<Standings, Failure> {
        match self {
            Self::Embedded(peek) => Ok(peek.standings()?),
            Self::Shared(store) => Ok(store.standings().await?),
        }
    }
}

// === impl Shelf ===

impl Shelf {
    /// Number of partitions.
    pub(crate) fn partitions(&self) -> u32 {
        match self {
            Self::Embedded(peek) => peek.partitions(),
            Self::Shared(log) => log.partitions(),
        }
    }

    /// A page of a topic, as [`EventLog::read`].
    ///
    /// # Errors
    /// When the log can not be read.
    pub(crate) async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        match self {
            Self::Embedded(peek) => peek.read(topic, partition, from_offset, max).await,
            Self::Shared(log) => log.read(topic, partition, from_offset, max).await,
        }
    }
}
