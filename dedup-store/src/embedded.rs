//! The store of a laptop: SQLite in one directory, durable, for one process. A tool may look at it beside that process
//! ([`peek`]) and say how destinations shall stand ([`beside`]).
//!
//! One thread owns the file. It takes every call that waits, decides them one after the other inside one transaction, and
//! answers after the commit: under load many calls share one flush to the disk, and no answer is given for something a
//! power cut could take back.

pub mod beside;
pub mod peek;
mod standings;
mod table;
mod writer;

use crate::{
    Claim, ClaimAsk, Held, Noted, Renewal, Row, Standing, Standings, Store, StoreError, Transition,
    claim::{self, Sees, Step, To},
    config::EmbeddedConfig,
};
use schemas::{DeliveryKey, Reason};
use std::{
    fs::{DirBuilder, File, TryLockError},
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};
use table::Table;
use tokio::sync::{Semaphore, mpsc, oneshot};
use writer::Job;

/// The claims' file in the directory.
const FILE: &str = "claims.db";
/// Locked while the directory is open; its content has no meaning.
const LOCK_FILE: &str = "claims.lock";

/// Claims in SQLite. Clones share the writer; when the last one goes, what is queued is written and the file is closed.
#[derive(Clone, Debug)]
pub struct EmbeddedStore {
    writer: Arc<Writer>,
    deadline: Duration,
}

#[derive(Debug)]
struct Writer {
    /// None only while dropping.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Held for as long as the file is open.
    _lock: File,
}

// === impl EmbeddedStore ===

impl EmbeddedStore {
    /// Opens the store of a directory, which is made when it is missing.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when another process has the directory open, or the file is not ours to read or write.
    pub fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let dir = config.dir.as_path();
        create_dir(dir).map_err(|error| refused(dir, &error))?;
        let lock = lock(dir)?;
        let table = Table::open(&dir.join(FILE), config.retention.to_retention())?;
        let (jobs, queue) = mpsc::channel(config.queue_max.clamp(1, Semaphore::MAX_PERMITS));
        let thread = std::thread::Builder::new()
            .name("dedup-store".to_owned())
            .spawn(move || writer::run(&table, queue))
            .map_err(|error| refused(dir, &error))?;
        let writer = Writer {
            jobs: Some(jobs),
            thread: Some(thread),
            _lock: lock,
        };
        Ok(Self {
            writer: Arc::new(writer),
            deadline: config.deadline,
        })
    }

    /// One compare-and-set, in the writer's next transaction.
    async fn apply<T: Send + 'static>(
        &self,
        key: &DeliveryKey,
        sees: Sees,
        now_ms: i64,
        decide: impl FnOnce(Option<&Row>) -> Step<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Job::new(key.clone(), sees, now_ms, decide, reply);
        self.within_deadline(job, answer).await
    }

    async fn within_deadline<T>(
        &self,
        job: Job,
        answer: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let call = async {
            let ended = || StoreError::Unavailable("the writer gave the call up".to_owned());
            let jobs = self.writer.jobs.as_ref().ok_or_else(ended)?;
            // A full queue makes the caller wait here, inside the same deadline.
            jobs.send(job).await.map_err(|_closed| ended())?;
            answer.await.map_err(|_closed| ended())?
        };
        match tokio::time::timeout(self.deadline, call).await {
            Ok(answer) => answer,
            Err(_elapsed) => {
                let within = self.deadline;
                Err(StoreError::Unavailable(format!(
                    "no answer from the disk within {within:?}"
                )))
            }
        }
    }

    async fn transition(&self, held: &Held, to: To, now_ms: i64) -> Result<Transition, StoreError> {
        let held = held.clone();
        let key = held.key.clone();
        self.apply(&key, Sees::Kept, now_ms, move |row| {
            claim::transition(row, &held, to)
        })
        .await
    }
}

impl Store for EmbeddedStore {
    async fn claim(&self, ask: &ClaimAsk, now_ms: i64) -> Result<Claim, StoreError> {
        let ask = ask.clone();
        let key = ask.key.clone();
        self.apply(&key, Sees::Live, now_ms, move |row| {
            claim::decide(row, &ask, now_ms)
        })
        .await
    }

    async fn renew(
        &self,
        held: &Held,
        lease_until_ms: i64,
        now_ms: i64,
    ) -> Result<Renewal, StoreError> {
        let held = held.clone();
        let key = held.key.clone();
        self.apply(&key, Sees::Kept, now_ms, move |row| {
            claim::renewal(row, &held, lease_until_ms)
        })
        .await
    }

    async fn schedule(
        &self,
        held: &Held,
        not_before_ms: i64,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        self.transition(held, To::Waiting { not_before_ms }, now_ms)
            .await
    }

    async fn complete(&self, held: &Held, now_ms: i64) -> Result<Transition, StoreError> {
        self.transition(held, To::Completed { at_ms: now_ms }, now_ms)
            .await
    }

    async fn fail(
        &self,
        held: &Held,
        reason: Reason,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        self.transition(
            held,
            To::Failed {
                at_ms: now_ms,
                reason,
            },
            now_ms,
        )
        .await
    }

    async fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, StoreError> {
        self.apply(key, Sees::Live, now_ms, |row| Step::Answer(row.cloned()))
            .await
    }

    async fn standings(&self) -> Result<Standings, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.within_deadline(Job::standings(reply), answer).await
    }

    async fn set_standing(&self, destination: &str, new: &Standing) -> Result<Noted, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = Job::set_standing(destination.to_owned(), new.clone(), reply);
        self.within_deadline(job, answer).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        self.within_deadline(Job::ready(reply), answer).await
    }
}

// === impl Writer ===

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the store's writer has panicked");
        }
    }
}

/// Who got which webhook is nobody else's business: a new directory is for this user only.
fn create_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let mut options = File::options();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(LOCK_FILE))
        .map_err(|error| refused(dir, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let dir = dir.display();
            Err(StoreError::Refused(format!(
                "another process has the directory {dir} open"
            )))
        }
        Err(TryLockError::Error(error)) => Err(refused(dir, &error)),
    }
}

fn refused(dir: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Refused(format!("{}: {error}", dir.display()))
}
