//! A look into the directory of a log that another process may have open: for tools, read-only.
//!
//! Nothing is locked, written or deleted, and the process that has the directory open waits for nobody. SQLite itself keeps
//! its `-wal` and `-shm` files beside the database, and makes them when they are missing.

use super::{
    files::{self, SlotState},
    reader::{self, Ask, Request},
    row, spawn,
};
use crate::{Epoch, LogError, Page, config::EmbeddedConfig};
use schemas::Topic;
use std::{sync::mpsc, thread::JoinHandle};
use tokio::sync::oneshot;

/// Records that one page holds at most.
const PAGE_RECORDS_MAX: usize = 1_000;

/// What stands in the log, as of when it was opened: what is appended later is not seen.
#[derive(Debug)]
pub struct Peek {
    partitions: u32,
    /// In the order of [`row::all`].
    slots: Vec<SlotState>,
    /// None only while dropping.
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

// === impl Peek ===

impl Peek {
    /// Opens the directory of `config` for reading. Blocks for some milliseconds.
    ///
    /// # Errors
    /// [`LogError::Fatal`] when there is no log, or one of another format or number of partitions.
    pub fn open(config: &EmbeddedConfig) -> Result<Self, LogError> {
        let (conn, slots) = files::open_read_only(config)?;
        let (requests, receiver) = mpsc::channel();
        let thread = spawn("log-peek", move || reader::run(&conn, &receiver))?;
        Ok(Self {
            partitions: config.partitions,
            slots,
            requests: Some(requests),
            thread: Some(thread),
        })
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// As [`crate::EventLog::read`].
    ///
    /// # Errors
    /// [`LogError::Fatal`] when there is no such partition or the file is broken.
    pub async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        let slot = self
            .slots
            .get(row::index(topic, partition, self.partitions));
        let Some(slot) = slot.filter(|_| partition < self.partitions) else {
            let name = topic.suffix();
            return Err(LogError::Fatal(format!(
                "{name} has no partition {partition}"
            )));
        };
        let end_offset = slot.end_offset;
        let from_offset = from_offset.clamp(0, end_offset);
        let ended = || LogError::Fatal("the log's reader has ended".into());
        let (sender, answer) = oneshot::channel();
        let request = Request {
            asks: vec![Ask {
                topic,
                partition,
                from_offset,
                end_offset,
                appended_until_ms: i64::MAX,
                records_max: usize::MAX,
            }],
            main: 1,
            room: max.min(PAGE_RECORDS_MAX),
            turn: 0,
            epoch: Epoch(0),
            answer: sender,
        };
        let requests = self.requests.as_ref().ok_or_else(ended)?;
        requests.send(request).map_err(|_closed| ended())?;
        let answer = answer.await.map_err(|_closed| ended())??;
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
}

impl Drop for Peek {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread of the log has panicked");
        }
    }
}
