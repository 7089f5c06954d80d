//! The durable log of one process: SQLite in one directory.
//!
//! - One thread writes. While it waits for the disk, records queue up, and the next transaction takes them all: the
//!   price of a sync is shared by everybody who waits. The queue is bounded; beyond it producing answers
//!   [`ProduceError::Busy`] at once.
//! - One thread reads, over its own connection (WAL: neither waits for the other). The consumer asks it for as many
//!   records as it has room for; nothing that is not due is held in memory.
//! - Offsets are dense from 0. Append times come from the clock and never go back within a partition.
//! - What is finished and older than the retention is deleted in small steps; what is finished in a delay tier, soon after
//!   it was due. SQLite uses the room again.
//! - The directory is locked as long as the log is open.

mod consumer;
mod files;
pub mod peek;
mod queue;
mod reader;
mod row;
mod writer;

pub use consumer::EmbeddedConsumer;

use crate::{
    Appended, Epoch, EventLog, LogError, Page, ProduceError, Record, config::EmbeddedConfig,
};
use files::{Files, SlotState};
use queue::{Job, Queue};
use reader::{Ask, Request};
use runtime::Clock;
use schemas::{Topic, partition_for};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    time,
};

/// Records that one page of [`EventLog::read`] holds at most.
const PAGE_RECORDS_MAX: usize = 1_000;
/// Pause between two looks for expired records, milliseconds: as long as they are kept, within these.
const LOOK_EVERY_MS_MIN: i64 = 1_000;
const LOOK_EVERY_MS_MAX: i64 = 60_000;
/// How long a record of a delay tier that is finished stays after it was due, milliseconds. Nothing reads it again, and
/// while a receiver hangs, deferrals write every waiting record anew every few seconds.
const DELAY_KEPT_MS: i64 = 10 * 60 * 1_000;

/// The embedded log. Clones share it; the last one that goes (consumers count) writes what is queued, ends the threads
/// and unlocks the directory.
#[derive(Clone, Debug)]
pub struct EmbeddedLog {
    inner: Arc<Inner>,
}

/// Everything on the side of the callers.
#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    record_bytes_max: usize,
    requests: Option<mpsc::Sender<Request>>,
    appended: watch::Receiver<u64>,
    consumer_open: AtomicBool,
    epoch: AtomicU64,
    threads: Vec<JoinHandle<()>>,
}

/// What callers and threads share.
#[derive(Debug)]
struct Shared {
    queue: Queue,
    clock: Clock,
    partitions: u32,
    retention_ms: i64,
    /// Pause between two looks for expired records.
    look_every_ms: i64,
    dead_letters_retention_ms: i64,
    /// In the order of [`row::all`].
    slots: Vec<SlotShared>,
    /// Why the last transaction failed; none when it did not.
    failure: Mutex<Option<String>>,
    /// A thread has ended: nothing works any more until the log is opened again.
    ended: AtomicBool,
}

#[derive(Debug)]
struct SlotShared {
    end_offset: AtomicI64,
    committed: AtomicI64,
}

// === impl EmbeddedLog ===

impl EmbeddedLog {
    /// Opens the directory of `config`, or creates it. Blocks for some milliseconds; meant for start-up. `clock` gives
    /// append times and says what is due.
    ///
    /// # Errors
    /// [`LogError::Fatal`] when another process (or another log of this one) has the directory open, when it was created
    /// with another number of partitions, or when it can not be read.
    pub fn open(config: &EmbeddedConfig, clock: Clock) -> Result<Self, LogError> {
        let Files {
            writer,
            reader,
            slots,
            lock,
        } = Files::open(config)?;
        let shared = Arc::new(Shared::new(config, clock, &slots));
        let (appended_sender, appended) = watch::channel(0);
        let (requests, requests_receiver) = mpsc::channel();
        let for_writer = Arc::clone(&shared);
        let for_reader = Arc::clone(&shared);
        let threads = vec![
            spawn("log-writer", move || {
                // Also when the writer panics: nobody may wait for an answer that never comes.
                let ended = EndOnDrop(&for_writer, true);
                writer::run(&for_writer, &writer, slots, &appended_sender);
                drop(ended);
                drop(writer);
                drop(lock);
            })?,
            spawn("log-reader", move || {
                let ended = EndOnDrop(&for_reader, false);
                reader::run(&reader, &requests_receiver);
                drop(ended);
            })?,
        ];
        let inner = Inner {
            shared,
            record_bytes_max: config.record_bytes_max,
            requests: Some(requests),
            appended,
            consumer_open: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            threads,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

impl EventLog for EmbeddedLog {
    type Consumer = EmbeddedConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        let bytes = record.bytes_within(self.inner.record_bytes_max)?;
        let (done, answer) = oneshot::channel();
        let partition = partition_for(&record.key, self.inner.shared.partitions);
        self.inner.shared.queue.push(Job {
            record,
            partition,
            bytes,
            done,
        })?;
        answer.await.unwrap_or_else(|_closed| {
            Err(ProduceError::Unacknowledged(
                "the log's writer has ended".into(),
            ))
        })
    }

    async fn consumer(&self) -> Result<EmbeddedConsumer, LogError> {
        if self.inner.consumer_open.swap(true, Ordering::AcqRel) {
            let message = "another consumer of this log is open; it has one at a time";
            return Err(LogError::Unavailable(message.into()));
        }
        let epoch = self.inner.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        Ok(EmbeddedConsumer::new(Arc::clone(&self.inner), Epoch(epoch)))
    }

    fn partitions(&self) -> u32 {
        self.inner.shared.partitions
    }

    async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        let Some(slot) = self.inner.shared.slot(topic, partition) else {
            let name = topic.suffix();
            return Err(LogError::Fatal(format!(
                "{name} has no partition {partition}"
            )));
        };
        let end_offset = slot.end_offset.load(Ordering::Acquire);
        let from_offset = from_offset.clamp(0, end_offset);
        let ask = Ask {
            topic,
            partition,
            from_offset,
            end_offset,
            appended_until_ms: i64::MAX,
            records_max: usize::MAX,
        };
        let (sender, answer) = oneshot::channel();
        self.inner.request(Request {
            asks: vec![ask],
            main: 1,
            room: max.min(PAGE_RECORDS_MAX),
            turn: 0,
            epoch: Epoch(0),
            answer: sender,
        })?;
        let answer = answer.await.map_err(|_closed| reader_ended())??;
        let next_offset = answer
            .heads
            .first()
            .map_or(from_offset, |head| head.next_offset);
        Ok(Page {
            records: answer.records,
            next_offset,
            at_end: next_offset >= end_offset,
        })
    }

    fn ready(&self) -> Result<(), LogError> {
        let shared = &self.inner.shared;
        if shared.ended.load(Ordering::Acquire) {
            return Err(LogError::Fatal("a thread of the log has ended".into()));
        }
        let failure = shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map_or(Ok(()), |message| {
            Err(LogError::Unavailable(message.clone()))
        })
    }

    async fn flush(&self, deadline: Duration) {
        let flushed = self.inner.shared.queue.flush();
        if time::timeout(deadline, flushed).await.is_err() {
            tracing::warn!("the log was not flushed in time");
        }
    }
}

// === impl Inner ===

impl Inner {
    fn request(&self, request: Request) -> Result<(), LogError> {
        let sent = self
            .requests
            .as_ref()
            .map(|requests| requests.send(request));
        if matches!(sent, Some(Ok(()))) {
            Ok(())
        } else {
            Err(reader_ended())
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.requests = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the log has panicked");
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    fn new(config: &EmbeddedConfig, clock: Clock, slots: &[SlotState]) -> Self {
        let slots = slots.iter().map(|state| SlotShared {
            end_offset: AtomicI64::new(state.end_offset),
            committed: AtomicI64::new(state.committed),
        });
        Self {
            queue: Queue::new(config.queue_records_max, config.queue_bytes_max),
            clock,
            partitions: config.partitions,
            retention_ms: millis(config.retention),
            look_every_ms: millis(config.retention).clamp(LOOK_EVERY_MS_MIN, LOOK_EVERY_MS_MAX),
            dead_letters_retention_ms: millis(config.dead_letters_retention),
            slots: slots.collect(),
            failure: Mutex::new(None),
            ended: AtomicBool::new(false),
        }
    }

    fn slot(&self, topic: Topic, partition: u32) -> Option<&SlotShared> {
        let index = row::index(topic, partition, self.partitions);
        self.slots
            .get(index)
            .filter(|_| partition < self.partitions)
    }

    /// Age at which records of a topic go, milliseconds, and the offset from which on they stay whatever their age.
    fn expiry(&self, topic: Topic, state: &SlotState) -> (i64, i64) {
        match topic {
            Topic::Webhooks => (self.retention_ms, state.committed),
            Topic::Delay(tier) => (tier.wait_ms() + DELAY_KEPT_MS, state.committed),
            Topic::DeadLetters => (self.dead_letters_retention_ms, state.end_offset),
        }
    }

    fn failed(&self) -> bool {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some()
    }

    fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

// === helpers ===

/// Says that a thread has ended; with `true`, that it was the writer.
struct EndOnDrop<'a>(&'a Shared, bool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        if self.1 {
            self.0.queue.end();
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, LogError> {
    let thread = thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|error| LogError::Fatal(format!("can not start the thread {name}: {error}")))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn reader_ended() -> LogError {
    LogError::Fatal("the log's reader has ended".into())
}

#[cfg(test)]
mod tests;
