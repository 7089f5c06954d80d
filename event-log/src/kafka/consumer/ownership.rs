//! What happens when partitions come and go: the callbacks of the group's consumer.

use crate::{
    LogError, Watermark,
    kafka::{
        client::{log_error, log_line},
        consumer::{
            Shared,
            message::{commit, offsets},
            patience::wait_for,
        },
        delay::{Command, DelayContext},
    },
};
use rdkafka::{
    ClientContext, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, RebalanceProtocol},
    error::KafkaError,
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

/// Longest wait for the answer to a revocation: the whole group waits with us.
const RELEASE_PATIENCE_MAX: Duration = Duration::from_secs(5);

/// Callbacks of the group's consumer. All run on the thread that polls.
pub(super) struct GroupContext {
    shared: Arc<Shared>,
    delay: Arc<BaseConsumer<DelayContext>>,
    commands: mpsc::Sender<Command>,
    patience: Duration,
    /// Partitions of the webhooks that are paused. Only the thread that polls looks here.
    paused: Mutex<BTreeSet<u32>>,
    /// Everything is committed, and the client is closing: commits would only fail.
    pub(super) left: AtomicBool,
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

    pub(super) fn paused(&self) -> MutexGuard<'_, BTreeSet<u32>> {
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
        // What a client does that has left, or was replaced, is no longer ours.
        if !self.left.load(Ordering::Relaxed) {
            let lost = group.assignment_lost();
            let last = self.give_up(&webhooks_partitions(&self.shared, list), lost);
            commit_now(&self.shared, &last, group, &self.delay);
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

impl GroupContext {
    /// Ends the ownership of `partitions`; returns what is to be committed for them.
    pub(super) fn give_up(&self, partitions: &[u32], lost: bool) -> Vec<Watermark> {
        let leaving = self.shared.inbox().begin_revoke(partitions, lost);
        let Some(leaving) = leaving else {
            return Vec::new();
        };
        tracing::info!(partitions = ?leaving.partitions, lost, "partitions revoked");
        let partitions = leaving.partitions.iter().map(|(partition, _)| *partition);
        drop(self.commands.send(Command::Unassign(partitions.collect())));
        self.shared.wake();
        if lost {
            return Vec::new();
        }
        // Whoever closes has noted its last watermarks before it said so, and answers no revocation any more. A close while
        // we wait drops the question, which ends the wait.
        let released = if self.shared.is_closing() {
            Vec::new()
        } else {
            wait_for(leaving.answer, self.patience).unwrap_or_default()
        };
        self.shared
            .inbox()
            .end_revoke(&leaving.partitions, &released)
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
        if kind == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS
            && !self.left.load(Ordering::Relaxed)
        {
            self.assign(group, list);
        } else {
            self.revoke(group, list);
        }
    }
}

// === helpers ===

/// Commits and waits for the answers; false: something was not taken.
pub(super) fn commit_now(
    shared: &Shared,
    watermarks: &[Watermark],
    group: &BaseConsumer<GroupContext>,
    delay: &BaseConsumer<DelayContext>,
) -> bool {
    let main = offsets(&shared.names, watermarks, false);
    let main = commit(group, main.as_ref(), CommitMode::Sync);
    let delayed = offsets(&shared.names, watermarks, true);
    let delayed = commit(delay, delayed.as_ref(), CommitMode::Sync);
    main && delayed
}

fn webhooks_partitions(shared: &Shared, list: &TopicPartitionList) -> Vec<u32> {
    let elements = list.elements();
    elements
        .iter()
        .filter(|element| shared.names.parse(element.topic()) == Some(Topic::Webhooks))
        .filter_map(|element| u32::try_from(element.partition()).ok())
        .collect()
}

pub(super) fn webhooks_list(shared: &Shared, partitions: &[u32]) -> TopicPartitionList {
    let name = shared.names.name(Topic::Webhooks);
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        if let Ok(partition) = i32::try_from(*partition) {
            list.add_partition(&name, partition);
        }
    }
    list
}
