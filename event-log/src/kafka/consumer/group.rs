//! The group's member: its thread, and what happens when partitions come and go.

use crate::{
    LogError, Watermark,
    kafka::{
        client::{log_error, log_line},
        consumer::{
            BATCH_RECORDS_MAX, POLL_TIMEOUT, Shared,
            message::{commit, offsets, received},
            patience::wait_for,
        },
        delay::{Command, Delay, DelayContext},
    },
};
use rdkafka::{
    ClientContext, Message, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::{KafkaError, KafkaResult},
    types::RDKafkaRespErr,
};
use schemas::Topic;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};
use tokio::time::Instant;

/// Longest wait for the answer to a revocation: the whole group waits with us.
const RELEASE_PATIENCE_MAX: Duration = Duration::from_secs(5);
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Offsets of a group without members, as the delay group is, expire (by default after 7 days) counted from their
/// last commit.
const REFRESH_INTERVAL: Duration = Duration::from_hours(6);

/// The group's consumer and its thread's state.
pub(super) struct Member {
    group: BaseConsumer<GroupContext>,
    delay: Delay,
    shared: Arc<Shared>,
}

/// Callbacks of the group's consumer. All run on the thread that polls.
pub(super) struct GroupContext {
    shared: Arc<Shared>,
    delay: Arc<BaseConsumer<DelayContext>>,
    commands: mpsc::Sender<Command>,
    patience: Duration,
    /// Partitions of the webhooks that are paused. Only the thread that polls looks here.
    paused: Mutex<BTreeSet<u32>>,
    /// Everything is committed, and the client is closing: commits would only fail.
    left: AtomicBool,
}

// === impl Member ===

impl Member {
    pub(super) fn new(
        group: BaseConsumer<GroupContext>,
        delay: Delay,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            group,
            delay,
            shared,
        }
    }

    /// Reads until the handle is closed or dropped, then commits and leaves the group.
    pub(super) fn run(self) {
        let mut commit_at = Instant::now() + COMMIT_INTERVAL;
        let mut refresh_at = Instant::now() + REFRESH_INTERVAL;
        while !self.shared.is_closing() {
            if self.read() > 0 {
                self.shared.wake();
            }
            self.pause_or_resume();
            let now = Instant::now();
            if now >= refresh_at {
                refresh_at = now + REFRESH_INTERVAL;
                let again = self.shared.inbox().refresh_delay_commits();
                self.commit_later(&again);
            }
            if now >= commit_at {
                commit_at = now + COMMIT_INTERVAL;
                let noted = self.shared.inbox().take_commits();
                self.commit_later(&noted);
            }
        }
        self.leave();
    }

    /// One batch into the inbox; waits for its first record.
    fn read(&self) -> usize {
        let mut count = 0;
        let mut timeout = POLL_TIMEOUT;
        while count < BATCH_RECORDS_MAX {
            let message = match self.group.poll(timeout) {
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    self.shared.poll_failed(&error);
                    break;
                }
                None => break,
            };
            timeout = Duration::ZERO;
            count += 1;
            let now_ms = self.shared.clock.now_ms();
            let mut inbox = self.shared.inbox();
            let partition = u32::try_from(message.partition()).ok();
            // This thread alone changes ownership, and not between the poll and here.
            let Some(epoch) = partition.and_then(|partition| inbox.epoch(partition)) else {
                continue;
            };
            if let Some(record) = received(&message, Topic::Webhooks, epoch, now_ms) {
                inbox.push(record);
            }
            if partition.is_some_and(|partition| inbox.pause_main(partition, false)) {
                break;
            }
        }
        count
    }

    fn pause_or_resume(&self) {
        let mut paused = self.group.context().paused();
        let (mut pause, mut resume) = (Vec::new(), Vec::new());
        {
            let inbox = self.shared.inbox();
            for partition in inbox.owned() {
                let is_paused = paused.contains(&partition);
                let should = inbox.pause_main(partition, is_paused);
                if should != is_paused {
                    let changed = if should { &mut pause } else { &mut resume };
                    changed.push(partition);
                }
            }
        }
        if !pause.is_empty() {
            match self.group.pause(&webhooks_list(&self.shared, &pause)) {
                Ok(()) => paused.extend(pause),
                Err(error) => tracing::warn!(%error, ?pause, "can not pause"),
            }
        }
        if !resume.is_empty() {
            match self.group.resume(&webhooks_list(&self.shared, &resume)) {
                Ok(()) => paused.retain(|partition| !resume.contains(partition)),
                Err(error) => tracing::warn!(%error, ?resume, "can not resume"),
            }
        }
    }

    /// One batch for each of the two groups, without waiting for the answers.
    fn commit_later(&self, watermarks: &[Watermark]) {
        let names = &self.shared.names;
        let main = offsets(names, watermarks, false);
        let delay = offsets(names, watermarks, true);
        let main = commit(&self.group, main.as_ref(), CommitMode::Async);
        let delay = commit(self.delay.client_ref(), delay.as_ref(), CommitMode::Async);
        let failed: Vec<_> = watermarks
            .iter()
            .filter(|watermark| match watermark.topic {
                Topic::Delay(_) => !delay,
                Topic::Webhooks | Topic::DeadLetters => !main,
            })
            .map(|watermark| (watermark.topic, watermark.partition))
            .collect();
        self.shared.inbox().commit_failed(&failed);
    }

    /// Commits first: while librdkafka closes, a commit can fail for want of a coordinator. Dropping blocks until the
    /// group was left or, without brokers, until the session is over; the handle does not wait that long.
    fn leave(self) {
        let Self {
            group,
            delay,
            shared,
        } = self;
        let last = shared.inbox().last_commits();
        commit_now(&shared, &last, &group, delay.client_ref());
        group.context().left.store(true, Ordering::Relaxed);
        drop(group);
        delay.stop();
    }
}

// === impl GroupContext ===

impl GroupContext {
    pub(super) fn new(
        shared: Arc<Shared>,
        delay: Arc<BaseConsumer<DelayContext>>,
        commands: mpsc::Sender<Command>,
        session_timeout: Duration,
    ) -> Self {
        let patience = RELEASE_PATIENCE_MAX.min(session_timeout / 2);
        Self {
            shared,
            delay,
            commands,
            patience,
            paused: Mutex::default(),
            left: AtomicBool::new(false),
        }
    }

    fn paused(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list may be empty and must be given to librdkafka all the same.
    fn assign(&self, group: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let result = match group.rebalance_protocol() {
            RebalanceProtocol::Cooperative => group.incremental_assign(list),
            RebalanceProtocol::Eager | RebalanceProtocol::None => group.assign(list),
        };
        if let Err(error) = result {
            let text = format!("can not take an assignment: {error}");
            return self.shared.fail(LogError::Fatal(text));
        }
        let assigned = {
            let mut inbox = self.shared.inbox();
            inbox.assign(&webhooks_partitions(&self.shared, list))
        };
        if assigned.is_empty() {
            return;
        }
        tracing::info!(partitions = ?assigned, "partitions assigned");
        // A pause outlives the partition that it was meant for: everything is resumed, the thread pauses again if needed.
        let owned: Vec<_> = self.shared.inbox().owned().collect();
        if let Err(error) = group.resume(&webhooks_list(&self.shared, &owned)) {
            tracing::warn!(%error, "can not resume");
        }
        self.paused().clear();
        drop(self.commands.send(Command::Assign(assigned)));
        self.shared.wake();
    }

    /// Lets go in this order: stop handing out, wait for the last watermarks, commit them, unassign.
    fn revoke(&self, group: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let lost = group.assignment_lost();
        let leaving = {
            let mut inbox = self.shared.inbox();
            inbox.begin_revoke(&webhooks_partitions(&self.shared, list), lost)
        };
        if let Some(leaving) = leaving {
            tracing::info!(partitions = ?leaving.partitions, lost, "partitions revoked");
            let partitions = leaving.partitions.iter().map(|(partition, _)| *partition);
            drop(self.commands.send(Command::Unassign(partitions.collect())));
            self.shared.wake();
            if !lost && !self.left.load(Ordering::Relaxed) {
                // Whoever closes has noted its last watermarks before it said so, and answers no revocation any more.
                // A close while we wait drops the question, which ends the wait.
                let released = if self.shared.is_closing() {
                    Vec::new()
                } else {
                    wait_for(leaving.answer, self.patience).unwrap_or_default()
                };
                let last = {
                    let mut inbox = self.shared.inbox();
                    inbox.end_revoke(&leaving.partitions, &released)
                };
                commit_now(&self.shared, &last, group, &self.delay);
            }
        }
        let result = match group.rebalance_protocol() {
            RebalanceProtocol::Cooperative => group.incremental_unassign(list),
            RebalanceProtocol::Eager | RebalanceProtocol::None => group.unassign(),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "can not give up an assignment");
        }
    }
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn stats(&self, statistics: Statistics) {
        self.shared.hear(&statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

impl ConsumerContext for GroupContext {
    /// Instead of the default, which hides the errors of (un)assigning.
    fn rebalance(
        &self,
        group: &BaseConsumer<Self>,
        kind: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        if kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.assign(group, list);
        } else {
            self.revoke(group, list);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        self.shared.committed(result, offsets);
    }
}

// === helpers ===

fn commit_now(
    shared: &Shared,
    watermarks: &[Watermark],
    group: &BaseConsumer<GroupContext>,
    delay: &BaseConsumer<DelayContext>,
) {
    let main = offsets(&shared.names, watermarks, false);
    commit(group, main.as_ref(), CommitMode::Sync);
    let delayed = offsets(&shared.names, watermarks, true);
    commit(delay, delayed.as_ref(), CommitMode::Sync);
}

fn webhooks_partitions(shared: &Shared, list: &TopicPartitionList) -> Vec<u32> {
    let elements = list.elements();
    elements
        .iter()
        .filter(|element| shared.names.parse(element.topic()) == Some(Topic::Webhooks))
        .filter_map(|element| u32::try_from(element.partition()).ok())
        .collect()
}

fn webhooks_list(shared: &Shared, partitions: &[u32]) -> TopicPartitionList {
    let name = shared.names.name(Topic::Webhooks);
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        if let Ok(partition) = i32::try_from(*partition) {
            list.add_partition(&name, partition);
        }
    }
    list
}
