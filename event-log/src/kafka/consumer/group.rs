//! The group's member: its thread.

use crate::{
    LogError, Watermark,
    kafka::{
        client::Clients,
        consumer::{
            BATCH_RECORDS_MAX, POLL_TIMEOUT, Shared,
            message::{commit, offsets, received},
            ownership::{GroupContext, commit_now, webhooks_list},
        },
        delay::Delay,
    },
};
use rdkafka::{
    Message,
    consumer::{BaseConsumer, CommitMode, Consumer as _},
};
use schemas::Topic;
use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    time::Duration,
};
use tokio::time::Instant;

const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Offsets of a group without members, as the delay group is, expire (by default after 7 days) counted from their
/// last commit.
const REFRESH_INTERVAL: Duration = Duration::from_hours(6);
/// How long a commit is tried for that the coordinator does not take, before the group is left without it.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for the clients that are replaced to commit and leave the group. They go on by themselves after it.
const RETIRE_PATIENCE: Duration = Duration::from_secs(5);

/// The group's consumer and its thread's state.
pub(super) struct Member {
    clients: Clients,
    group: BaseConsumer<GroupContext>,
    delay: Delay,
    shared: Arc<Shared>,
}

// === impl Member ===

impl Member {
    /// Builds the client and subscribes.
    pub(super) fn join(
        clients: &Clients,
        delay: Delay,
        shared: Arc<Shared>,
    ) -> Result<Self, LogError> {
        Ok(Self {
            clients: clients.clone(),
            group: subscribed(clients, &delay, &shared)?,
            delay,
            shared,
        })
    }

    /// Reads until the handle is closed or dropped, then commits and leaves the group.
    pub(super) fn run(mut self) {
        let mut commit_at = Instant::now() + COMMIT_INTERVAL;
        let mut refresh_at = Instant::now() + REFRESH_INTERVAL;
        while !self.shared.is_closing() {
            if self.read() > 0 {
                self.shared.wake();
            }
            self.pause_or_resume();
            if self.shared.replace.swap(false, Ordering::AcqRel)
                && let Err(error) = self.replace()
            {
                self.shared.fail(error);
            }
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
                Ok(()) => {
                    paused.extend(pause);
                    self.shared.pauses.fetch_add(1, Ordering::Relaxed);
                }
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

    /// Gives everything up as at a revocation, and goes on with new clients, under new epochs. Nobody knows what clients that
    /// read nothing any more still do: they are ended on a thread of their own, and waited for only so long.
    fn replace(&mut self) -> Result<(), LogError> {
        tracing::warn!("both consumers are being replaced");
        let owned: Vec<_> = self.shared.inbox().owned().collect();
        let last = self.group.context().give_up(&owned, false);
        let old_delay = self.delay.replace(&self.clients, &self.shared)?;
        let group = subscribed_later(&self.clients, &self.delay, &self.shared)?;
        let old_group = std::mem::replace(&mut self.group, group);
        let (ended, end) = mpsc::channel::<std::convert::Infallible>();
        let shared = Arc::clone(&self.shared);
        let retire = move || {
            old_group.context().left.store(true, Ordering::Relaxed);
            commit_now(&shared, &last, &old_group, &old_delay);
            drop(old_group);
            // The reader of the delay tiers lets go of it soon. The last owner closes it, which may take long.
            while Arc::strong_count(&old_delay) > 1 && !shared.is_closing() {
                std::thread::sleep(POLL_TIMEOUT);
            }
            drop(old_delay);
            drop(ended);
        };
        std::thread::Builder::new()
            .name("kafka-retire".into())
            .spawn(retire)
            .map_err(|error| LogError::Fatal(format!("no thread to end a consumer: {error}")))?;
        if end.recv_timeout(RETIRE_PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("the former consumer does not end");
        }
        subscribe(&self.group, &self.clients)
    }

    /// Commits first: while librdkafka closes, a commit can fail for want of a coordinator. Dropping blocks until the
    /// group was left or, without brokers, until the session is over; the handle does not wait that long.
    fn leave(self) {
        let Self {
            group,
            delay,
            shared,
            clients: _,
        } = self;
        let deadline = Instant::now() + LEAVE_PATIENCE;
        loop {
            let last = shared.inbox().last_commits();
            let committed = commit_now(&shared, &last, &group, delay.client_ref());
            if committed || Instant::now() >= deadline {
                break;
            }
            // In the middle of a rebalance the coordinator takes no commits; polling lets it end. What is read by that is not
            // handed out any more.
            drop(group.poll(POLL_TIMEOUT));
        }
        group.context().left.store(true, Ordering::Relaxed);
        drop(group);
        delay.stop();
    }
}

// === helpers ===

/// A client that has joined the group.
fn subscribed(
    clients: &Clients,
    delay: &Delay,
    shared: &Arc<Shared>,
) -> Result<BaseConsumer<GroupContext>, LogError> {
    let group = subscribed_later(clients, delay, shared)?;
    subscribe(&group, clients)?;
    Ok(group)
}

fn subscribed_later(
    clients: &Clients,
    delay: &Delay,
    shared: &Arc<Shared>,
) -> Result<BaseConsumer<GroupContext>, LogError> {
    let context = GroupContext::new(
        Arc::clone(shared),
        delay.client(),
        delay.commands(),
        clients.config().session_timeout(),
    );
    clients
        .group_consumer()?
        .create_with_context(context)
        .map_err(|error| LogError::Fatal(format!("no consumer: {error}")))
}

fn subscribe(group: &BaseConsumer<GroupContext>, clients: &Clients) -> Result<(), LogError> {
    let topic = clients.names().name(Topic::Webhooks);
    group
        .subscribe(&[&topic])
        .map_err(|error| LogError::Fatal(format!("can not subscribe to {topic}: {error}")))
}
