//! The member of the dispatcher's group: two threads of its own read, the handle takes what they have put into the
//! [`Inbox`].
//!
//! librdkafka wants its poll call often: it serves the heartbeat's limit, rebalances and statistics. So a thread does
//! nothing but poll, whether the dispatcher takes records or not; when too much waits, it pauses partitions.
//! `group` has the thread of the group's member, `ownership` its callbacks, [`super::delay`] the thread of the delay tiers.

mod group;
mod message;
mod ownership;
mod patience;

pub(super) use message::received;

use crate::{
    Consumer, Event, LogError, Position, Room, Watermark,
    kafka::{
        client::Clients,
        delay::Delay,
        inbox::{Inbox, Limits, Told},
        watch::{self, Watch},
    },
};
use message::poll_error;
use rdkafka::{Statistics, error::KafkaError, statistics::Partition};
use runtime::Clock;
use schemas::TopicNames;
use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::sync::{Notify, oneshot};

const MIB: usize = 1024 * 1024;
const LIMITS: Limits = Limits {
    main_records: 2_000,
    main_bytes: 32 * MIB,
    delay_records: 2_000,
    delay_bytes: 64 * MIB,
    lead_ms: 2_000,
};
/// Longest wait of a poll: bounds how late a thread hears of a close or a new partition.
pub(super) const POLL_TIMEOUT: Duration = Duration::from_millis(50);
/// Records read between two looks at everything else.
pub(super) const BATCH_RECORDS_MAX: usize = 256;
/// Clocks can be stepped while we sleep: nobody waits longer than this for a due record without looking.
const DUE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Reads with ownership.
#[derive(Debug)]
pub struct KafkaConsumer {
    shared: Arc<Shared>,
    /// Ends when the threads have left the group.
    left: Option<oneshot::Receiver<Infallible>>,
}

/// What the handle and the threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) names: TopicNames,
    pub(super) clock: Clock,
    inbox: Mutex<Inbox>,
    wake: Notify,
    closing: AtomicBool,
    /// How often reading of the webhooks was paused.
    pauses: AtomicU64,
    /// Both clients are to be replaced.
    replace: AtomicBool,
    /// Set when reading has failed for good; readiness of the log asks it.
    unreadable: Arc<OnceLock<LogError>>,
}

// === impl KafkaConsumer ===

impl KafkaConsumer {
    /// Builds both clients and starts their threads. Blocks for some milliseconds.
    pub(super) fn start(
        clients: &Clients,
        clock: Clock,
        epochs: Arc<AtomicU64>,
        unreadable: Arc<OnceLock<LogError>>,
    ) -> Result<Self, LogError> {
        Self::start_with(clients, clock, epochs, unreadable, watch::PACE)
    }

    fn start_with(
        clients: &Clients,
        clock: Clock,
        epochs: Arc<AtomicU64>,
        unreadable: Arc<OnceLock<LogError>>,
        pace: watch::Pace,
    ) -> Result<Self, LogError> {
        let shared = Arc::new(Shared {
            names: clients.names().clone(),
            clock,
            inbox: Mutex::new(Inbox::new(LIMITS, epochs)),
            wake: Notify::new(),
            closing: AtomicBool::new(false),
            pauses: AtomicU64::new(0),
            replace: AtomicBool::new(false),
            unreadable,
        });
        let delay = Delay::start(clients, &shared)?;
        let started = join(clients, &shared, delay).and_then(|left| {
            Watch::start(clients, &shared, pace)?;
            Ok(left)
        });
        // Else the reader of the delay tiers would go on alone.
        let left = started.inspect_err(|_| shared.close())?;
        Ok(Self {
            shared,
            left: Some(left),
        })
    }
}

impl Consumer for KafkaConsumer {
    async fn next(&mut self, room: impl Into<Room> + Send) -> Result<Vec<Event>, LogError> {
        let room = room.into();
        loop {
            let now_ms = self.shared.clock.now_ms();
            let (events, next_due_ms) = {
                let mut inbox = self.shared.inbox();
                (inbox.take(&room, now_ms)?, inbox.next_due_ms(&room))
            };
            if !events.is_empty() {
                return Ok(events);
            }
            let wait = wait_for_due(next_due_ms, now_ms);
            // A permit stays when the wake comes before the wait, so none is lost.
            match wait {
                Some(wait) => {
                    drop(tokio::time::timeout(wait, self.shared.wake.notified()).await);
                }
                None => self.shared.wake.notified().await,
            }
        }
    }

    fn commit(&self, watermarks: Vec<Watermark>) {
        self.shared.inbox().note(&watermarks);
    }

    fn positions(&self) -> Vec<Position> {
        self.shared.inbox().positions()
    }

    async fn close(mut self, watermarks: Vec<Watermark>, deadline: Duration) {
        self.shared.inbox().note(&watermarks);
        self.shared.close();
        let Some(left) = self.left.take() else { return };
        if tokio::time::timeout(deadline, left).await.is_err() {
            // The thread goes on by itself; without brokers librdkafka leaves only when the session is over.
            tracing::warn!("consumer has not left its group within the deadline");
        }
    }
}

impl Drop for KafkaConsumer {
    fn drop(&mut self) {
        self.shared.close();
    }
}

// === impl Shared ===

impl Shared {
    /// Short critical sections only: the dispatcher's loop takes this lock.
    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// How often reading of the webhooks was paused.
    pub(super) fn pauses(&self) -> u64 {
        self.pauses.load(Ordering::Relaxed)
    }

    /// Asks for new clients in the place of those that read nothing any more.
    pub(super) fn ask_for_replacement(&self) {
        self.replace.store(true, Ordering::Release);
    }

    /// Makes `next` answer with this error from now on (a passing one once).
    pub(super) fn fail(&self, error: LogError) {
        let text = error.to_string();
        if matches!(error, LogError::Fatal(_)) {
            // The first reason stays.
            self.unreadable.get_or_init(|| error.clone());
        }
        if self.inbox().fail(error) {
            tracing::error!(error = text, "consumer failed");
        }
        self.wake();
    }

    /// What a poll that failed means.
    pub(super) fn poll_failed(&self, error: &KafkaError) {
        match poll_error(error) {
            Some(error) => self.fail(error),
            // The context's error callback has told already.
            None => tracing::debug!(%error, "reading was disturbed"),
        }
    }

    /// Takes end offsets, and where reading starts, from the client's statistics.
    pub(super) fn hear(&self, statistics: &Statistics) {
        for (name, told_topic) in &statistics.topics {
            let Some(topic) = self.names.parse(name) else {
                continue;
            };
            for (number, partition) in &told_topic.partitions {
                let Ok(number) = u32::try_from(*number) else {
                    continue;
                };
                let skip = self.inbox().hear(topic, number, told(partition));
                if let Some(skip) = skip {
                    tracing::error!(
                        topic = name,
                        partition = number,
                        committed_offset = skip.committed_offset,
                        begin_offset = skip.begin_offset,
                        "records were deleted before they had ended, reading goes on at the first one that is left"
                    );
                }
            }
        }
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.inbox().shut();
    }
}

// === helpers, also of the threads ===

/// Joins the group and starts the member's thread; the receiver ends when it has left.
fn join(
    clients: &Clients,
    shared: &Arc<Shared>,
    delay: Delay,
) -> Result<oneshot::Receiver<Infallible>, LogError> {
    let (leaving, left) = oneshot::channel();
    let member = group::Member::join(clients, delay, Arc::clone(shared))?;
    spawn("kafka-group", shared, move || {
        member.run();
        // Its end is the message.
        drop(leaving);
    })?;
    Ok(left)
}

/// Starts a thread whose unexpected end is a fatal failure.
pub(super) fn spawn(
    name: &str,
    shared: &Arc<Shared>,
    run: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, LogError> {
    let guard = EndGuard(Arc::clone(shared));
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _guard = guard;
            run();
        })
        .map_err(|error| LogError::Fatal(format!("no thread {name}: {error}")))
}

struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        if !self.0.is_closing() {
            self.0
                .fail(LogError::Fatal("a reading thread has ended".into()));
        }
    }
}

/// What the statistics say, without the numbers that stand for "not known".
fn told(partition: &Partition) -> Told {
    let known = |offset: i64| (offset >= 0).then_some(offset);
    Told {
        // Before the first record only the fetcher knows where it stands.
        next_offset: known(partition.app_offset)
            .or_else(|| known(partition.committed_offset))
            .or_else(|| known(partition.lo_offset)),
        begin_offset: known(partition.lo_offset),
        end_offset: known(partition.hi_offset),
        committed_offset: known(partition.committed_offset),
        drained_to: known(partition.next_offset).filter(|_| partition.fetchq_cnt == 0),
    }
}

/// How long `next` may sleep; none: until it is woken.
fn wait_for_due(next_due_ms: Option<i64>, now_ms: i64) -> Option<Duration> {
    let wait_ms = next_due_ms?.saturating_sub(now_ms);
    let wait = Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0));
    Some(wait.min(DUE_WAIT_MAX))
}

#[cfg(test)]
mod tests;
