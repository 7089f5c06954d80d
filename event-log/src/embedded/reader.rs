//! The thread that reads: batches for the consumer, pages for tools.

use super::row::{self, Slot};
use crate::{
    Epoch, LogError, Received,
    fair::{self, Streams},
};
use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, Row, Statement, params};
use schemas::Topic;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// Bytes in one answer at most (one record may be larger), whatever the room.
pub(super) const ANSWER_BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// A stretch of one topic and partition that may have something to give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) topic: Topic,
    pub(super) partition: u32,
    pub(super) from_offset: i64,
    /// Offset after the last record, as known when this was asked.
    pub(super) end_offset: i64,
    /// Only records that were appended at this time or before.
    pub(super) appended_until_ms: i64,
    /// Not more than these.
    pub(super) records_max: usize,
}

/// What the thread is asked for.
#[derive(Debug)]
pub(super) struct Request {
    /// Main streams first.
    pub(super) asks: Vec<Ask>,
    /// How many of `asks` are main streams.
    pub(super) main: usize,
    pub(super) room: usize,
    pub(super) turn: usize,
    pub(super) epoch: Epoch,
    pub(super) answer: oneshot::Sender<Result<Answer, LogError>>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) records: Vec<Received>,
    /// By place in `asks`: where the next read starts, and the append time of a record that stands there but is too young.
    pub(super) heads: Vec<Head>,
}

/// State of a stream after a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) next_offset: i64,
    pub(super) appended_at_ms: Option<i64>,
}

/// Answers until every sender is gone.
pub(super) fn run(conn: &Connection, requests: &mpsc::Receiver<Request>) {
    let statement = conn.prepare(
        "SELECT id, appended_at_ms, key, headers, value FROM record
         WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3",
    );
    let mut statement = match statement {
        Ok(statement) => statement,
        Err(error) => return tracing::error!(%error, "the log can not be read"),
    };
    while let Ok(request) = requests.recv() {
        let answer = read(&mut statement, &request);
        // Whoever has dropped the future asks again.
        drop(request.answer.send(answer));
    }
}

fn read(statement: &mut Statement<'_>, request: &Request) -> Result<Answer, LogError> {
    let heads = request.asks.iter();
    let heads = heads.map(|ask| Head {
        next_offset: ask.from_offset,
        appended_at_ms: None,
    });
    let mut answer = Answer {
        records: Vec::new(),
        heads: heads.collect(),
    };
    let mut bytes_left = ANSWER_BYTES_MAX;
    let streams = Streams {
        main: request.main,
        delay: request.asks.len() - request.main,
    };
    let mut left: Vec<_> = request.asks.iter().map(|ask| ask.records_max).collect();
    fair::fill(request.room, request.turn, streams, |stream, limit| {
        let (Some(ask), Some(head), Some(left)) = (
            request.asks.get(stream),
            answer.heads.get_mut(stream),
            left.get_mut(stream),
        ) else {
            return Ok(0);
        };
        let limit = limit.min(*left);
        if limit == 0 || bytes_left == 0 || head.appended_at_ms.is_some() {
            return Ok(0);
        }
        let mut reading = Reading {
            ask,
            head,
            epoch: request.epoch,
            bytes_left: &mut bytes_left,
        };
        let before = answer.records.len();
        reading.run(statement, limit, &mut answer.records)?;
        let taken = answer.records.len() - before;
        *left -= taken;
        Ok::<_, LogError>(taken)
    })?;
    Ok(answer)
}

struct Reading<'a> {
    ask: &'a Ask,
    head: &'a mut Head,
    epoch: Epoch,
    bytes_left: &'a mut usize,
}

// === impl Reading ===

impl Reading<'_> {
    /// Reads up to `limit` records.
    fn run(
        &mut self,
        statement: &mut Statement<'_>,
        limit: usize,
        records: &mut Vec<Received>,
    ) -> Result<(), LogError> {
        let slot = Slot::new(self.ask.topic, self.ask.partition);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![
            slot.id(self.head.next_offset),
            slot.id_end(),
            limit
        ])?;
        let mut found = 0;
        while let Some(row) = rows.next()? {
            let appended_at_ms = row.get(1)?;
            if appended_at_ms > self.ask.appended_until_ms {
                self.head.appended_at_ms = Some(appended_at_ms);
                return Ok(());
            }
            let offset = slot.offset(row.get(0)?);
            let record = self.record(row, offset, appended_at_ms)?;
            let bytes = record.key.len() + record.value.len();
            *self.bytes_left = self.bytes_left.saturating_sub(bytes);
            self.head.next_offset = offset + 1;
            records.push(record);
            found += 1;
            if *self.bytes_left == 0 {
                return Ok(());
            }
        }
        if found < limit {
            // What is missing up to the end has expired; it will not come.
            self.head.next_offset = self.head.next_offset.max(self.ask.end_offset);
        }
        Ok(())
    }

    fn record(
        &self,
        row: &Row<'_>,
        offset: i64,
        appended_at_ms: i64,
    ) -> Result<Received, LogError> {
        let blob = |column| {
            row.get_ref(column)?
                .as_blob()
                .map_err(rusqlite::Error::from)
        };
        let Some(headers) = row::decode_headers(blob(3)?) else {
            let (topic, partition) = (self.ask.topic.suffix(), self.ask.partition);
            let message = format!("{topic}/{partition}: the record at {offset} is broken");
            return Err(LogError::Fatal(message));
        };
        Ok(Received {
            topic: self.ask.topic,
            partition: self.ask.partition,
            offset,
            epoch: self.epoch,
            appended_at_ms,
            key: Bytes::copy_from_slice(blob(2)?),
            value: Bytes::copy_from_slice(blob(4)?),
            headers,
        })
    }
}

// === impl LogError ===

impl From<rusqlite::Error> for LogError {
    /// A broken file does not heal; whatever else goes wrong while reading may.
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Fatal(error.to_string())
            }
            _ => Self::Unavailable(error.to_string()),
        }
    }
}
