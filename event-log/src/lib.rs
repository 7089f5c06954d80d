//! The port to the log: produce, consume with ownership, commit.
//!
//! # What every implementation promises
//!
//! - [`EventLog::produce`] resolves `Ok` only when the record is durable. An `Err` may still have been written
//!   (see [`ProduceError`]); producing again is always safe, since the claims absorb repeats.
//! - Records of one topic and key land in one partition, [`schemas::partition_for`].
//! - One assignment rules all: who owns partition `n` of the webhooks topic reads partition `n` of every delay tier.
//! - [`Consumer::next`] hands out a record of a delay tier only when its append time + the tier's wait has passed:
//!   never early. Within a topic and partition, records come in offset order; gaps in the offsets are normal.
//! - Every record carries the [`Epoch`] of the ownership under which it was read. A watermark of an old epoch is ignored.
//! - [`Consumer::commit`] only takes a note; what was noted last is made durable within about a second, and before
//!   ownership is given up (revocation, close) in any case. Losing a commit repeats work and loses nothing.
//! - After a restart, reading goes on at the committed watermark, or at the first record there is. Never at the end.
//!
//! `kafka` is the log of production, `embedded` the durable one of a laptop, `memory` the one of simulations.
//! `conformance` is the suite that all three pass.

pub mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
mod fair;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
mod room;

pub use config::LogConfig;
pub use room::Room;

use bytes::Bytes;
use schemas::Topic;
use std::{future::Future, time::Duration};
use tokio::sync::oneshot;

/// Bytes that a record of a delay tier or a dead letter may have beyond the largest webhook, `record_bytes_max`.
///
/// They are webhooks with something added: headers, the bounded history of attempts (a hop replaces it, so it does not
/// add up), at last a dead letter's texts around bytes that could not be read. All of that is bounded far below this.
/// A webhook that was taken in therefore fits through everything behind it.
pub const DERIVED_BYTES_RESERVE: usize = 64 * 1024;

/// Number of the current ownership of a partition; grows with every assignment in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Headers of a log record, in order.
pub type Headers = Vec<(String, Bytes)>;

/// A record to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub topic: Topic,
    /// Partition key: the delivery id.
    pub key: Bytes,
    pub value: Bytes,
    pub headers: Headers,
}

/// Where an acknowledged record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub partition: u32,
    pub offset: i64,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub topic: Topic,
    pub partition: u32,
    pub offset: i64,
    /// Ownership under which it was read.
    pub epoch: Epoch,
    /// The log's own append time, milliseconds since the Unix epoch.
    pub appended_at_ms: i64,
    pub key: Bytes,
    pub value: Bytes,
    pub headers: Headers,
}

/// What a consumer has to tell.
#[derive(Debug)]
pub enum Event {
    /// Partition `partition` of the webhooks topic and of every delay tier is ours from now on.
    Assigned { partition: u32, epoch: Epoch },
    /// These partitions go to somebody else. Stop handing out their records, answer [`Revoked::release`] soon.
    Revoked(Revoked),
    /// A record to be worked on.
    Record(Received),
}

/// Ownership that ends.
#[derive(Debug)]
pub struct Revoked {
    /// Partition and the epoch that ends.
    pub partitions: Vec<(u32, Epoch)>,
    /// True when the ownership is gone already (session expired): nothing can be committed any more.
    pub lost: bool,
    /// Answered with the last watermarks; the log waits for it a bounded time, then goes on without.
    pub release: Release,
}

/// The answer to a revocation. Dropping it answers with no watermarks.
#[derive(Debug)]
pub struct Release(oneshot::Sender<Vec<Watermark>>);

/// Everything below `next_offset` of this topic and partition is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    pub topic: Topic,
    pub partition: u32,
    pub epoch: Epoch,
    /// Offset of the first record that is not finished (or not read) yet.
    pub next_offset: i64,
}

/// How far reading has come in an owned topic and partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub topic: Topic,
    pub partition: u32,
    /// Offset of the next record to be handed out.
    pub next_offset: i64,
    /// Offset after the last record in the log, as last heard; none before the first answer.
    pub end_offset: Option<i64>,
}

/// A page of a topic, read without ownership.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub records: Vec<Received>,
    /// Where the next page starts.
    pub next_offset: i64,
    /// True when there was nothing more behind this page.
    pub at_end: bool,
}

/// The log.
pub trait EventLog: Clone + Send + Sync + 'static {
    /// Reads with ownership.
    type Consumer: Consumer;

    /// Appends a record; resolves when it is durable. The caller brings the deadline (dropping the future is allowed,
    /// the record may be written all the same).
    ///
    /// # Errors
    /// See [`ProduceError`].
    fn produce(
        &self,
        record: Record,
    ) -> impl Future<Output = Result<Appended, ProduceError>> + Send;

    /// Joins the dispatcher's group. One consumer a process.
    ///
    /// # Errors
    /// When the log can not be reached or another consumer exists where only one may.
    fn consumer(&self) -> impl Future<Output = Result<Self::Consumer, LogError>> + Send;

    /// Partitions of each topic.
    fn partitions(&self) -> u32;

    /// Reads up to `max` records of one partition from `from_offset` on (clamped to what there is), due or not, without
    /// ownership and without commits: for tools. The records carry epoch 0.
    ///
    /// # Errors
    /// When the log can not be reached.
    fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> impl Future<Output = Result<Page, LogError>> + Send;

    /// Whether records can be produced now; the error says why not. Cheap: readiness asks it.
    ///
    /// # Errors
    /// The reason for which producing would fail.
    fn ready(&self) -> Result<(), LogError>;

    /// Waits until everything produced is acknowledged or `deadline` has passed.
    fn flush(&self, deadline: Duration) -> impl Future<Output = ()> + Send;
}

/// A member of the dispatcher's group.
pub trait Consumer: Send + 'static {
    /// Waits for something to tell. Ownership events always come, records at most as many as there is `room` for, in total
    /// and of each partition. Main records and due delay records share the room fairly, and a partition that is full keeps
    /// nothing from the others. Cancel-safe: dropping the future loses no event.
    ///
    /// # Errors
    /// [`LogError::Unavailable`]: try again after a pause. [`LogError::Fatal`]: end the process.
    fn next(
        &mut self,
        room: impl Into<Room> + Send,
    ) -> impl Future<Output = Result<Vec<Event>, LogError>> + Send;

    /// Takes a note of watermarks to be committed; the last one of a topic and partition counts. Never blocks.
    fn commit(&self, watermarks: Vec<Watermark>);

    /// How far reading has come, for the lag figures.
    fn positions(&self) -> Vec<Position>;

    /// Commits `watermarks` and gives up ownership, within `deadline`.
    fn close(
        self,
        watermarks: Vec<Watermark>,
        deadline: Duration,
    ) -> impl Future<Output = ()> + Send;
}

/// A record that was not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProduceError {
    /// Larger than the log takes. Permanent for this record; nothing was written.
    #[error("record of {bytes} bytes is larger than the log takes")]
    TooLarge { bytes: usize },
    /// No room in the bounded queue; nothing was written. Try again later.
    #[error("the log's queue is full")]
    Busy,
    /// Not acknowledged; may have been written all the same.
    #[error("the log did not acknowledge: {0}")]
    Unacknowledged(String),
}

/// A log that does not answer as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Passing: try again after a pause.
    #[error("log unavailable: {0}")]
    Unavailable(String),
    /// Does not heal by itself: end the process with this message.
    #[error("log unusable: {0}")]
    Fatal(String),
}

// === impl Record ===

impl Record {
    /// Size: key, value and headers together, bytes.
    ///
    /// # Errors
    /// [`ProduceError::TooLarge`] when it is above what its topic takes where webhooks have `record_bytes_max`.
    pub(crate) fn bytes_within(&self, record_bytes_max: usize) -> Result<usize, ProduceError> {
        let headers = self.headers.iter();
        let headers_bytes: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        let bytes = self.key.len() + self.value.len() + headers_bytes;
        if bytes > topic_bytes_max(self.topic, record_bytes_max) {
            return Err(ProduceError::TooLarge { bytes });
        }
        Ok(bytes)
    }
}

/// Largest record of `topic` where webhooks have `record_bytes_max`.
pub(crate) fn topic_bytes_max(topic: Topic, record_bytes_max: usize) -> usize {
    match topic {
        Topic::Webhooks => record_bytes_max,
        Topic::Delay(_) | Topic::DeadLetters => {
            record_bytes_max.saturating_add(DERIVED_BYTES_RESERVE)
        }
    }
}

// === impl Release ===

impl Release {
    /// A release and the end that the log waits on.
    pub fn new() -> (Self, oneshot::Receiver<Vec<Watermark>>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    /// Gives the partitions back, with the last watermarks of the epochs that end.
    pub fn done(self, watermarks: Vec<Watermark>) {
        // Nobody waits any more when the log's patience has ended; the records are then read again.
        drop(self.0.send(watermarks));
    }
}
