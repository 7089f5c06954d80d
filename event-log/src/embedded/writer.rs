//! The one thread that writes: groups what waits into transactions, and deletes what has expired.

use super::{
    Shared,
    files::{self, SlotState},
    queue::{Batch, Job},
    row::{self, Slot},
};
use crate::{Appended, ProduceError};
use rusqlite::{Connection, Statement, params};
use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};
use tokio::sync::watch;

/// How long watermarks wait for records to ride along with.
const LINGER: Duration = Duration::from_millis(250);
/// How often an idle writer looks for expired records and, after a failure, whether writing works again.
const IDLE: Duration = Duration::from_secs(1);
/// Records deleted in one transaction, so that producers never wait long.
const RETENTION_STEP: i64 = 256;

/// What the thread owns.
pub(super) struct Writer<'a> {
    shared: &'a Shared,
    statements: Statements<'a>,
    conn: &'a Connection,
    /// In the order of [`row::all`]; what is on the disk.
    slots: Vec<SlotState>,
    /// Set after a failure, when it is not known what is on the disk.
    doubtful: bool,
    retention: Retention,
}

/// Where a record stands, or why it alone was not written.
type Placed = Result<Appended, ProduceError>;

struct Statements<'a> {
    begin: Statement<'a>,
    commit: Statement<'a>,
    insert: Statement<'a>,
    slot: Statement<'a>,
    probe: Statement<'a>,
    expired: Statement<'a>,
    delete: Statement<'a>,
}

/// Where the deletion of expired records stands.
#[derive(Debug, Default)]
struct Retention {
    last_ms: Option<i64>,
    /// Slots that are still to be looked at in this round.
    left: Vec<usize>,
}

/// Writes until the queue is closed and empty.
pub(super) fn run(
    shared: &Shared,
    conn: &Connection,
    slots: Vec<SlotState>,
    appended: &watch::Sender<u64>,
) {
    let statements = match Statements::prepare(conn) {
        Ok(statements) => statements,
        Err(error) => return shared.set_failure(Some(error.to_string())),
    };
    let retention = Retention::default();
    let mut writer = Writer {
        shared,
        statements,
        conn,
        slots,
        doubtful: false,
        retention,
    };
    loop {
        let busy = !writer.retention.left.is_empty();
        let idle = if busy { Duration::ZERO } else { IDLE };
        let batch = shared.queue.take(idle, LINGER);
        let last = batch.last;
        writer.write(batch, appended);
        if last {
            return;
        }
        writer.expire();
    }
}

// === impl Writer ===

impl Writer<'_> {
    /// Writes a batch in one transaction and answers everybody who waits for it.
    fn write(&mut self, batch: Batch, appended: &watch::Sender<u64>) {
        let Batch {
            jobs,
            watermarks,
            flushed,
            last: _,
        } = batch;
        let failed_before = self.shared.failed();
        let nothing = jobs.is_empty() && watermarks.is_empty();
        let result = if nothing && !failed_before {
            Ok(Vec::new())
        } else {
            self.transact(&jobs, &watermarks)
        };
        let bytes = jobs.iter().map(|job| job.bytes).sum();
        self.shared.queue.release(jobs.len(), bytes);
        match result {
            Ok(places) => {
                if failed_before {
                    tracing::info!("the log can be written again");
                    self.shared.set_failure(None);
                }
                if !places.is_empty() {
                    appended.send_modify(|version| *version = version.wrapping_add(1));
                }
                for (job, place) in jobs.into_iter().zip(places) {
                    // Whoever has dropped the future does not want to know.
                    drop(job.done.send(place));
                }
            }
            Err(error) => {
                let message = error.to_string();
                if !failed_before {
                    tracing::error!(error = %message, "the log can not be written");
                }
                self.shared.set_failure(Some(message.clone()));
                for job in jobs {
                    drop(
                        job.done
                            .send(Err(ProduceError::Unacknowledged(message.clone()))),
                    );
                }
                self.shared.queue.note_again(watermarks);
            }
        }
        for flushed in flushed {
            if flushed.send(()).is_err() {
                tracing::debug!("nobody waits for the flush any more");
            }
        }
    }

    /// One transaction; on an error nothing of it is taken for written. Gives an answer to each job, in their order.
    fn transact(
        &mut self,
        jobs: &[Job],
        watermarks: &BTreeMap<Slot, i64>,
    ) -> rusqlite::Result<Vec<Placed>> {
        if self.doubtful {
            self.slots = files::load_slots(self.conn, self.shared.partitions)?;
            self.doubtful = false;
        }
        let before = self.slots.clone();
        let result = self.try_transact(jobs, watermarks);
        if result.is_err() {
            self.slots = before;
            self.roll_back();
        } else {
            self.publish();
        }
        result
    }

    fn try_transact(
        &mut self,
        jobs: &[Job],
        watermarks: &BTreeMap<Slot, i64>,
    ) -> rusqlite::Result<Vec<Placed>> {
        self.statements.begin.execute(())?;
        let now_ms = self.shared.clock.now_ms();
        let partitions = self.shared.partitions;
        let mut touched = BTreeMap::new();
        // By construction one answer a job: nobody can be given the place of somebody else.
        let placed = jobs
            .iter()
            .map(|job| self.insert(job, now_ms, &mut touched));
        let places = placed.collect::<rusqlite::Result<Vec<Placed>>>()?;
        for (slot, next_offset) in watermarks {
            let index = slot.index(partitions);
            if let Some(state) = self.slots.get_mut(index) {
                state.committed = (*next_offset).clamp(0, state.end_offset);
                touched.insert(*slot, index);
            }
        }
        let idle = touched.is_empty();
        for (slot, index) in touched {
            let Some(state) = self.slots.get(index) else {
                continue;
            };
            self.statements.slot.execute(params![
                slot.number(),
                state.end_offset,
                state.appended_at_ms,
                state.committed,
            ])?;
        }
        if idle {
            self.statements.probe.execute(())?;
        }
        self.statements.commit.execute(())?;
        Ok(places)
    }

    /// Writes one record; an error inside is about this record alone.
    fn insert(
        &mut self,
        job: &Job,
        now_ms: i64,
        touched: &mut BTreeMap<Slot, usize>,
    ) -> rusqlite::Result<Placed> {
        let slot = Slot::new(job.record.topic, job.partition);
        let index = slot.index(self.shared.partitions);
        let Some(state) = self.slots.get_mut(index) else {
            let name = job.record.topic.suffix();
            let message = format!("{name} has no partition {}", job.partition);
            return Ok(Err(ProduceError::Unacknowledged(message)));
        };
        // Never back within a partition, or a delay tier would not be first in, first out.
        state.appended_at_ms = state.appended_at_ms.max(now_ms);
        let record = &job.record;
        self.statements.insert.execute(params![
            slot.id(state.end_offset),
            state.appended_at_ms,
            &record.key[..],
            row::encode_headers(&record.headers),
            &record.value[..],
        ])?;
        let offset = state.end_offset;
        state.end_offset += 1;
        touched.insert(slot, index);
        Ok(Ok(Appended {
            partition: job.partition,
            offset,
        }))
    }

    fn roll_back(&mut self) {
        // What has been written of it is unknown when even this fails, so the state is read again.
        self.doubtful = true;
        if !self.conn.is_autocommit()
            && let Err(error) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::warn!(%error, "the log's transaction could not be rolled back");
        }
    }

    /// Shows the consumer what is on the disk.
    fn publish(&self) {
        for (shared, state) in self.shared.slots.iter().zip(&self.slots) {
            shared.end_offset.store(state.end_offset, Ordering::Release);
            shared.committed.store(state.committed, Ordering::Release);
        }
    }

    /// One small step of the deletion of expired records.
    fn expire(&mut self) {
        let now_ms = self.shared.clock.now_ms();
        if self.retention.left.is_empty() {
            let last_ms = *self.retention.last_ms.get_or_insert(now_ms);
            if now_ms.abs_diff(last_ms) < self.shared.look_every_ms.unsigned_abs() {
                return;
            }
            self.retention.last_ms = Some(now_ms);
            self.retention.left = (0..self.slots.len()).collect();
        }
        if self.doubtful || self.shared.failed() {
            self.retention.left.clear();
            return;
        }
        while let Some(index) = self.retention.left.last().copied() {
            match self.expire_step(index, now_ms) {
                Ok(deleted) if deleted < RETENTION_STEP => {
                    self.retention.left.pop();
                    if deleted > 0 {
                        return;
                    }
                }
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%error, "expired records could not be deleted");
                    self.retention.left.clear();
                    self.roll_back();
                    return;
                }
            }
        }
    }

    /// Deletes up to [`RETENTION_STEP`] records of a slot; says how many.
    fn expire_step(&mut self, index: usize, now_ms: i64) -> rusqlite::Result<i64> {
        let Some((topic, partition)) = row::all(self.shared.partitions).nth(index) else {
            return Ok(0);
        };
        let Some(state) = self.slots.get(index) else {
            return Ok(0);
        };
        let slot = Slot::new(topic, partition);
        let (keep_ms, below) = self.shared.expiry(topic, state);
        let cutoff_ms = now_ms.saturating_sub(keep_ms);
        let range = params![slot.id(0), slot.id(below), RETENTION_STEP, cutoff_ms];
        let last = self
            .statements
            .expired
            .query_row(range, |row| row.get::<_, Option<i64>>(0))?;
        let Some(last) = last else { return Ok(0) };
        let deleted = self.statements.delete.execute([slot.id(0), last])?;
        Ok(i64::try_from(deleted).unwrap_or(i64::MAX))
    }
}

// === impl Statements ===

impl<'a> Statements<'a> {
    fn prepare(conn: &'a Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            begin: conn.prepare("BEGIN IMMEDIATE")?,
            commit: conn.prepare("COMMIT")?,
            insert: conn.prepare(
                "INSERT INTO record (id, appended_at_ms, key, headers, value) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?,
            slot: conn.prepare(
                "INSERT OR REPLACE INTO slot (slot, end_offset, appended_at_ms, committed) VALUES (?1, ?2, ?3, ?4)",
            )?,
            probe: conn.prepare("UPDATE meta SET value = value + 1 WHERE name = 'probe'")?,
            // Append times never go back within a slot: the last expired id of the next few says it all.
            expired: conn.prepare(
                "SELECT max(id) FROM (
                     SELECT id, appended_at_ms FROM record WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT ?3
                 ) WHERE appended_at_ms < ?4",
            )?,
            delete: conn.prepare("DELETE FROM record WHERE id >= ?1 AND id <= ?2")?,
        })
    }
}
