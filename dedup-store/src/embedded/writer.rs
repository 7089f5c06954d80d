//! The thread that owns the file: many jobs, one transaction, answers after the commit.

use super::table::{Statements, Table, classify};
use crate::{
    Noted, Row, Standing, Standings, StoreError,
    claim::{Sees, Step},
};
use schemas::DeliveryKey;
use tokio::sync::{mpsc, oneshot};

/// Jobs that share one transaction at most.
const JOBS_MAX: usize = 512;
/// Expired rows deleted per transaction, beside twice the number of its jobs: purging outruns writing, in small steps.
const PURGE_BASE: usize = 16;

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// One call.
pub(super) struct Job {
    now_ms: Option<i64>,
    work: Box<dyn FnOnce(&mut Statements<'_>) -> Done + Send>,
}

/// A job that was carried out inside a transaction whose end is not known yet.
struct Done {
    /// Ends the whole transaction.
    error: Option<rusqlite::Error>,
    say: Say,
}

/// Answers the caller: with the decision once it is committed, with the error when it can not be.
type Say = Box<dyn FnOnce(Option<&StoreError>)>;

// === impl Job ===

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("now_ms", &self.now_ms)
            .finish_non_exhaustive()
    }
}

impl Job {
    /// A compare-and-set on the row of `key`.
    pub(super) fn new<T: Send + 'static>(
        key: DeliveryKey,
        sees: Sees,
        now_ms: i64,
        decide: impl FnOnce(Option<&Row>) -> Step<T> + Send + 'static,
        reply: Reply<T>,
    ) -> Self {
        let work = move |statements: &mut Statements<'_>| {
            if reply.is_closed() {
                // The caller's deadline has passed: it may have been told so, but nothing was promised.
                return Done {
                    error: None,
                    say: Box::new(|_| ()),
                };
            }
            done(
                compare_and_set(statements, &key, sees, now_ms, decide),
                reply,
            )
        };
        Self {
            now_ms: Some(now_ms),
            work: Box::new(work),
        }
    }

    /// Reads how the destinations stand.
    pub(super) fn standings(reply: Reply<Standings>) -> Self {
        Self {
            now_ms: None,
            work: Box::new(|statements| done(statements.standings().map(Ok), reply)),
        }
    }

    /// A compare-and-set on how a destination stands.
    pub(super) fn set_standing(destination: String, new: Standing, reply: Reply<Noted>) -> Self {
        let work = move |statements: &mut Statements<'_>| {
            done(statements.set_standing(&destination, &new).map(Ok), reply)
        };
        Self {
            now_ms: None,
            work: Box::new(work),
        }
    }

    /// Only shows that the thread and its file still work.
    pub(super) fn ready(reply: Reply<()>) -> Self {
        let work = |_: &mut Statements<'_>| Done {
            error: None,
            say: say(reply, Ok(())),
        };
        Self {
            now_ms: None,
            work: Box::new(work),
        }
    }
}

/// Works until every sender is gone and the queue is empty.
pub(super) fn run(table: &Table, mut queue: mpsc::Receiver<Job>) {
    let mut statements = match table.statements() {
        Ok(statements) => statements,
        Err(error) => {
            tracing::error!(%error, "the store's statements can not be prepared");
            return;
        }
    };
    let mut jobs = Vec::with_capacity(JOBS_MAX);
    while queue.blocking_recv_many(&mut jobs, JOBS_MAX) > 0 {
        let mut says = Vec::with_capacity(jobs.len());
        let end = transact(table, &mut statements, jobs.drain(..), &mut says);
        let failed = end.err().map(|error| {
            tracing::warn!(%error, calls = says.len(), "the store's transaction was rolled back");
            classify(&error)
        });
        for say in says {
            say(failed.as_ref());
        }
    }
}

/// One transaction over all jobs. After an error the jobs that are left are dropped, which their callers notice.
fn transact(
    table: &Table,
    statements: &mut Statements<'_>,
    jobs: impl ExactSizeIterator<Item = Job>,
    says: &mut Vec<Say>,
) -> rusqlite::Result<()> {
    let purge_max = PURGE_BASE + 2 * jobs.len();
    let transaction = table.begin()?;
    let mut now_ms = None;
    for job in jobs {
        now_ms = now_ms.max(job.now_ms);
        let done = (job.work)(statements);
        says.push(done.say);
        if let Some(error) = done.error {
            return Err(error);
        }
    }
    if let Some(now_ms) = now_ms {
        statements.purge(now_ms, purge_max)?;
    }
    transaction.commit()
}

/// The outer error ends the transaction; the inner one is this row's alone.
fn compare_and_set<T>(
    statements: &mut Statements<'_>,
    key: &DeliveryKey,
    sees: Sees,
    now_ms: i64,
    decide: impl FnOnce(Option<&Row>) -> Step<T>,
) -> rusqlite::Result<Result<T, StoreError>> {
    let row = match statements.find(key, sees, now_ms)? {
        Ok(row) => row,
        Err(error) => return Ok(Err(error)),
    };
    Ok(Ok(match decide(row.as_ref()) {
        Step::Write { row, then } => {
            statements.put(key, &row)?;
            then
        }
        Step::Answer(answer) => answer,
    }))
}

/// The outer error ends the transaction.
fn done<T: 'static>(answer: rusqlite::Result<Result<T, StoreError>>, reply: Reply<T>) -> Done {
    match answer {
        Ok(answer) => Done {
            error: None,
            say: say(reply, answer),
        },
        Err(error) => {
            let answer = Err(classify(&error));
            Done {
                error: Some(error),
                say: say(reply, answer),
            }
        }
    }
}

fn say<T: 'static>(reply: Reply<T>, answer: Result<T, StoreError>) -> Say {
    Box::new(move |failed| {
        let answer = match failed {
            Some(error) => Err(error.clone()),
            None => answer,
        };
        // Nobody listens any more when the caller's deadline has passed.
        drop(reply.send(answer));
    })
}
