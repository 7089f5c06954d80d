//! What waits for the writer, bounded in records and bytes.

use super::row::Slot;
use crate::{Appended, ProduceError, Record};
use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::oneshot;

/// Records in one transaction at most, so that the first of them does not wait for a flood behind it.
const BATCH_RECORDS_MAX: usize = 4_096;
/// Bytes in one transaction at most (one record may be larger).
const BATCH_BYTES_MAX: usize = 8 * 1_024 * 1_024;

/// A record to be written, and who waits for it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) record: Record,
    pub(super) partition: u32,
    pub(super) bytes: usize,
    pub(super) done: oneshot::Sender<Result<Appended, ProduceError>>,
}

/// One transaction's worth of work.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    /// Slot -> committed offset.
    pub(super) watermarks: BTreeMap<Slot, i64>,
    /// Told when this batch, and with it everything before it, is on the disk (or has failed).
    pub(super) flushed: Vec<oneshot::Sender<()>>,
    /// Nothing will come any more.
    pub(super) last: bool,
}

/// The queue between many producers and one writer.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    records_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Queued or being written.
    records: usize,
    bytes: usize,
    watermarks: BTreeMap<Slot, i64>,
    flushes: Vec<oneshot::Sender<()>>,
    closed: bool,
    /// The writer is gone.
    ended: bool,
}

// === impl Queue ===

impl Queue {
    pub(super) fn new(records_max: usize, bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            records_max: records_max.max(1),
            bytes_max,
        }
    }

    /// Takes a record, or says at once that there is no room.
    pub(super) fn push(&self, job: Job) -> Result<(), ProduceError> {
        let mut state = self.lock();
        if state.ended {
            return Err(ProduceError::Unacknowledged(
                "the log's writer has ended".into(),
            ));
        }
        if state.records >= self.records_max || state.bytes + job.bytes > self.bytes_max {
            return Err(ProduceError::Busy);
        }
        state.records += 1;
        state.bytes += job.bytes;
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Takes a note of watermarks; they ride along with the next batch, or go alone after a pause.
    pub(super) fn note(&self, watermarks: impl IntoIterator<Item = (Slot, i64)>) {
        let mut state = self.lock();
        let first = state.watermarks.is_empty();
        state.watermarks.extend(watermarks);
        if first && !state.watermarks.is_empty() {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Takes back watermarks that could not be written; those noted since then count more.
    pub(super) fn note_again(&self, watermarks: BTreeMap<Slot, i64>) {
        let mut state = self.lock();
        for (slot, next_offset) in watermarks {
            state.watermarks.entry(slot).or_insert(next_offset);
        }
    }

    /// Resolves when everything taken so far is on the disk or has failed.
    pub(super) fn flush(&self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        if !state.ended {
            state.flushes.push(sender);
        }
        drop(state);
        self.changed.notify_one();
        receiver
    }

    /// Makes the writer end after what is queued.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Answers everybody who waits, by dropping what they wait on, and takes nothing any more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        state.jobs.clear();
        state.flushes.clear();
    }

    /// Waits for work. Returns an empty batch after `idle`, and watermarks that are alone after `linger`.
    pub(super) fn take(&self, idle: Duration, linger: Duration) -> Batch {
        let mut state = self.lock();
        loop {
            let urgent = !state.jobs.is_empty() || !state.flushes.is_empty() || state.closed;
            if urgent {
                return state.take_batch();
            }
            let lingering = !state.watermarks.is_empty();
            let timeout = if lingering { linger.min(idle) } else { idle };
            let waited = self.changed.wait_timeout(state, timeout);
            let (woken, result) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if result.timed_out() {
                return state.take_batch();
            }
        }
    }

    /// Gives back the room of records that are written or have failed.
    pub(super) fn release(&self, records: usize, bytes: usize) {
        let mut state = self.lock();
        state.records = state.records.saturating_sub(records);
        state.bytes = state.bytes.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn take_batch(&mut self) -> Batch {
        let mut jobs = Vec::with_capacity(self.jobs.len().min(BATCH_RECORDS_MAX));
        let mut bytes = 0;
        while jobs.len() < BATCH_RECORDS_MAX
            && let Some(job) = self.jobs.pop_front_if(|job| {
                bytes += job.bytes;
                bytes <= BATCH_BYTES_MAX || bytes == job.bytes
            })
        {
            jobs.push(job);
        }
        let emptied = self.jobs.is_empty();
        Batch {
            jobs,
            watermarks: mem::take(&mut self.watermarks),
            flushed: if emptied {
                mem::take(&mut self.flushes)
            } else {
                Vec::new()
            },
            last: emptied && self.closed,
        }
    }
}
