//! Webhooks that the log does not take wait on the local disk, and go to the log when it is back.
//!
//! The spool is an embedded log of one partition in a directory of its own: it appends durably, shares the price of a sync,
//! has one owner and a committed watermark. Appending is producing there; [`Drain`] reads from there, produces to the log
//! and commits what was acknowledged. A crash in between produces again, which the claims absorb.

mod drain;
mod level;
mod metrics;

pub use drain::Drain;

use event_log::{
    Consumer, EventLog, LogError, ProduceError, Record,
    config::EmbeddedConfig,
    embedded::{EmbeddedConsumer, EmbeddedLog},
};
use level::{Count, Level};
use metrics::Metrics;
use runtime::{Clock, Problem};
use schemas::{DelayTier, Topic};
use serde::Deserialize;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Records that wait for the log.
const WAITING: Topic = Topic::Webhooks;
/// Records that the log refused as too large: they come up again after this tier's time, in case somebody has mended the
/// log's limit.
const ASIDE: Topic = Topic::Delay(DelayTier::H1);
/// Largest record, bytes: the largest body, and more for its headers than a request's head can have.
const RECORD_BYTES_MAX: usize = crate::config::BODY_BYTES_LIMIT + (1 << 20);
/// What may wait for the disk.
const QUEUE_RECORDS_MAX: usize = 10_000;
const QUEUE_BYTES_MAX: usize = 64 << 20;
/// Records of one step of the count at the start.
const PAGE_RECORDS: usize = 1_000;

/// `[ingest.spool]`: there is a spool when this table is there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpoolConfig {
    /// Directory of the spool; created when missing. Of one process alone, on a disk that outlives it.
    pub dir: PathBuf,
    /// Bytes of webhooks that may wait in it.
    pub bytes_max: u64,
}

/// The spool. Cheap to clone; the last handle that goes closes it.
#[derive(Clone, Debug)]
pub struct Spool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: EmbeddedLog,
    bytes_max: u64,
    level: Mutex<Level>,
    clock: Clock,
    metrics: Metrics,
}

/// Why a record is not in the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotSpooled {
    /// `bytes_max` is used up.
    Full,
    /// It could not be written.
    Failed(ProduceError),
}

// === impl SpoolConfig ===

impl Default for SpoolConfig {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("fencepost-data/spool"),
            bytes_max: 1 << 30,
        }
    }
}

impl SpoolConfig {
    /// What is wrong with it; `key` is where it stands, e.g. `ingest.spool`.
    pub(crate) fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.dir.as_os_str().is_empty() {
            problems.push(Problem::new(format!("{key}.dir"), "must name a directory"));
        }
        if self.bytes_max == 0 {
            let message = "must be at least 1; leave the table out to have no spool";
            problems.push(Problem::new(format!("{key}.bytes_max"), message));
        }
        problems
    }

    fn embedded(&self) -> EmbeddedConfig {
        EmbeddedConfig {
            dir: self.dir.clone(),
            partitions: 1,
            // What has gone to the log is deleted at once.
            retention: Duration::ZERO,
            record_bytes_max: RECORD_BYTES_MAX,
            queue_records_max: QUEUE_RECORDS_MAX,
            queue_bytes_max: QUEUE_BYTES_MAX,
            ..EmbeddedConfig::default()
        }
    }
}

// === impl Spool ===

impl Spool {
    /// Opens or creates the spool and counts what it holds from before. `clock` gives the ages. Telemetry must have been
    /// started before.
    ///
    /// # Errors
    /// [`LogError::Fatal`] when another process has the directory open or it can not be used.
    pub async fn open(config: &SpoolConfig, clock: Clock) -> Result<(Self, Drain), LogError> {
        let log = EmbeddedLog::open(&config.embedded(), clock.clone())?;
        let consumer = log.consumer().await?;
        let mut level = Level::default();
        (level.waiting, level.oldest_ms) = count(&log, &consumer, WAITING).await?;
        (level.aside, _) = count(&log, &consumer, ASIDE).await?;
        let Count { records, bytes } = level.waiting;
        if level.written(clock.now_ms()) {
            tracing::warn!(records, bytes, "the spool holds webhooks from before");
        }
        let shared = Arc::new(Shared {
            log,
            bytes_max: config.bytes_max,
            level: Mutex::new(level),
            clock,
            metrics: Metrics::new(),
        });
        metrics::observe(&Arc::downgrade(&shared));
        let spool = Self { shared };
        Ok((spool.clone(), Drain::new(spool, consumer)))
    }

    /// Whether webhooks can be taken, given what the log says of itself, and how.
    ///
    /// # Errors
    /// Why they can not: neither log nor spool takes them.
    pub fn readiness(&self, log: Result<(), LogError>) -> Result<String, String> {
        let waiting = self.shared.level().waiting.records;
        let spool = match self.shared.log.ready() {
            Err(error) => Err(format!("the spool can not be written: {error}")),
            Ok(()) if !self.has_room() => Err("the spool is full".to_owned()),
            Ok(()) => Ok(()),
        };
        match (log, spool) {
            (Ok(()), Ok(())) if waiting == 0 => Ok("ok".to_owned()),
            (Ok(()), Ok(())) => Ok(format!("ok, {waiting} webhooks wait in the spool")),
            (Ok(()), Err(why)) => Ok(format!("ok, but {why}")),
            (Err(error), Ok(())) => Ok(format!(
                "webhooks go to the spool, {waiting} wait in it: {error}"
            )),
            (Err(error), Err(why)) => Err(format!("{error}; {why}")),
        }
    }

    /// Whether anything still fits.
    pub(crate) fn has_room(&self) -> bool {
        self.shared.level().fits(0, self.shared.bytes_max)
    }

    /// Counts a webhook that was refused because the spool is full.
    pub(crate) fn refused_full(&self) {
        self.shared.metrics.full.add(1, &[]);
    }

    /// Appends a record; resolves when it is on the disk.
    ///
    /// # Errors
    /// Why it is not there.
    pub(crate) async fn append(&self, record: Record) -> Result<(), NotSpooled> {
        let bytes = bytes_of(&record.key, &record.value, &record.headers);
        let shared = Arc::clone(&self.shared);
        let now_ms = shared.clock.now_ms();
        if !shared.level().reserve(bytes, shared.bytes_max, now_ms) {
            self.refused_full();
            return Err(NotSpooled::Full);
        }
        // In a task of its own, so that what is written stays counted when the request is given up meanwhile.
        let write = async move {
            let written = shared.log.produce(record).await;
            shared.noted(bytes, written.is_ok());
            written
        };
        match tokio::spawn(write).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(NotSpooled::Failed(error)),
            Err(error) => Err(NotSpooled::Failed(ProduceError::Unacknowledged(
                error.to_string(),
            ))),
        }
    }
}

// === impl Shared ===

impl Shared {
    fn level(&self) -> MutexGuard<'_, Level> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reserved record was written, or not.
    fn noted(&self, bytes: u64, written: bool) {
        if !written {
            return self.level().not_written(bytes);
        }
        self.metrics.spooled.add(1, &[]);
        let now_ms = self.clock.now_ms();
        if self.level().written(now_ms) {
            tracing::warn!("webhooks go to the spool, the log does not take them");
        }
    }
}

// === helpers ===

/// Counts the records of `topic` that are not committed, and says when the first of them was appended.
async fn count(
    log: &EmbeddedLog,
    consumer: &EmbeddedConsumer,
    topic: Topic,
) -> Result<(Count, Option<i64>), LogError> {
    let positions = consumer.positions().into_iter();
    let mut offsets = positions.filter(|position| position.topic == topic);
    let mut next_offset = offsets.next().map_or(0, |position| position.next_offset);
    let (mut count, mut oldest_ms) = (Count::default(), None);
    loop {
        let page = log.read(topic, 0, next_offset, PAGE_RECORDS).await?;
        for record in &page.records {
            count.add(bytes_of(&record.key, &record.value, &record.headers));
            oldest_ms.get_or_insert(record.appended_at_ms);
        }
        next_offset = page.next_offset;
        if page.at_end {
            return Ok((count, oldest_ms));
        }
    }
}

fn bytes_of(key: &[u8], value: &[u8], headers: &event_log::Headers) -> u64 {
    let headers = headers.iter().map(|(name, value)| name.len() + value.len());
    u64::try_from(key.len() + value.len() + headers.sum::<usize>()).unwrap_or(u64::MAX)
}
