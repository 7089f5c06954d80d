//! The reader of the delay tiers: follows what the group's member owns, by manual assignment.
//!
//! Records are read ahead and held in memory until they are due. Pausing a partition for each record that is not due
//! would cost up to a second at every resume; holding costs memory, which is bounded (see [`super::inbox`]).

use crate::{
    Epoch, LogError,
    kafka::{
        client::{Clients, log_error, log_line},
        consumer::{BATCH_RECORDS_MAX, POLL_TIMEOUT, Shared, received, spawn},
    },
};
use rdkafka::{
    ClientContext, Message, Statistics, TopicPartitionList,
    config::RDKafkaLogLevel,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use schemas::{DelayTier, Topic};
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

/// The client and its thread.
pub(super) struct Delay {
    client: Arc<BaseConsumer<DelayContext>>,
    commands: mpsc::Sender<Command>,
    thread: JoinHandle<()>,
}

/// What the group's member tells.
pub(super) enum Command {
    /// Read the tiers of these partitions.
    Assign(Vec<(u32, Epoch)>),
    /// Read them no longer.
    Unassign(Vec<u32>),
    /// Read with this client from now on; nothing is assigned.
    Replace(Arc<BaseConsumer<DelayContext>>),
}

/// Callbacks of the client.
pub(super) struct DelayContext {
    shared: Arc<Shared>,
}

/// The thread's state. It alone assigns, polls and unassigns, so that a record can never carry the epoch of a later
/// assignment than the one under which it was read.
struct Reader {
    client: Arc<BaseConsumer<DelayContext>>,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    reading: BTreeMap<(DelayTier, u32), Reading>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    epoch: Epoch,
    paused: bool,
}

// === impl Delay ===

impl Delay {
    pub(super) fn start(clients: &Clients, shared: &Arc<Shared>) -> Result<Self, LogError> {
        let client = build(clients, shared)?;
        let (sender, commands) = mpsc::channel();
        let reader = Reader {
            client: Arc::clone(&client),
            shared: Arc::clone(shared),
            commands,
            reading: BTreeMap::new(),
        };
        let thread = spawn("kafka-delay", shared, move || reader.run())?;
        Ok(Self {
            client,
            commands: sender,
            thread,
        })
    }

    /// Goes on with a new client once nothing is assigned any more; returns the former one, which the thread still has for a
    /// while.
    pub(super) fn replace(
        &mut self,
        clients: &Clients,
        shared: &Arc<Shared>,
    ) -> Result<Arc<BaseConsumer<DelayContext>>, LogError> {
        let client = build(clients, shared)?;
        drop(self.commands.send(Command::Replace(Arc::clone(&client))));
        Ok(std::mem::replace(&mut self.client, client))
    }

    pub(super) fn commands(&self) -> mpsc::Sender<Command> {
        self.commands.clone()
    }

    pub(super) fn client(&self) -> Arc<BaseConsumer<DelayContext>> {
        Arc::clone(&self.client)
    }

    pub(super) fn client_ref(&self) -> &BaseConsumer<DelayContext> {
        &self.client
    }

    /// Waits for the thread, which ends when the consumer is closing, then closes the client.
    pub(super) fn stop(self) {
        if self.thread.join().is_err() {
            tracing::error!("the reader of the delay tiers had failed");
        }
    }
}

// === impl Reader ===

impl Reader {
    fn run(mut self) {
        while !self.shared.is_closing() {
            self.follow();
            if self.read() > 0 {
                self.shared.wake();
            }
            self.pause_or_resume();
        }
    }

    fn follow(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            let result = match command {
                Command::Assign(partitions) => self.assign(&partitions),
                Command::Unassign(partitions) => self.unassign(&partitions),
                Command::Replace(client) => {
                    self.client = client;
                    self.reading.clear();
                    Ok(())
                }
            };
            if let Err(error) = result {
                let text = format!("can not follow the assignment in the delay tiers: {error}");
                self.shared.fail(LogError::Fatal(text));
            }
        }
    }

    fn assign(&mut self, partitions: &[(u32, Epoch)]) -> KafkaResult<()> {
        let mut keys = Vec::with_capacity(partitions.len() * DelayTier::ALL.len());
        for &(partition, epoch) in partitions {
            for tier in DelayTier::ALL {
                let reading = Reading {
                    epoch,
                    paused: false,
                };
                self.reading.insert((tier, partition), reading);
                keys.push((tier, partition));
            }
        }
        let list = self.list(&keys);
        self.client.incremental_assign(&list)?;
        // A pause outlives the assignment for which it was meant.
        self.client.resume(&list)
    }

    fn unassign(&mut self, partitions: &[u32]) -> KafkaResult<()> {
        let mut keys = Vec::with_capacity(partitions.len() * DelayTier::ALL.len());
        for &partition in partitions {
            for tier in DelayTier::ALL {
                if self.reading.remove(&(tier, partition)).is_some() {
                    keys.push((tier, partition));
                }
            }
        }
        if keys.is_empty() {
            return Ok(());
        }
        self.client.incremental_unassign(&self.list(&keys))
    }

    /// One batch into the inbox; waits for its first record.
    fn read(&self) -> usize {
        let mut count = 0;
        let mut timeout = POLL_TIMEOUT;
        while count < BATCH_RECORDS_MAX {
            let message = match self.client.poll(timeout) {
                Some(Ok(message)) => message,
                // While partitions are added, those of a tier may come later than the webhooks'. The client waits for them, and
                // who watches the numbers tells which.
                Some(Err(error))
                    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownPartition) =>
                {
                    tracing::debug!(%error, "a partition of a delay tier is not there yet");
                    break;
                }
                Some(Err(error)) => {
                    self.shared.poll_failed(&error);
                    break;
                }
                None => break,
            };
            timeout = Duration::ZERO;
            count += 1;
            let Some(Topic::Delay(tier)) = self.shared.names.parse(message.topic()) else {
                continue;
            };
            let partition = u32::try_from(message.partition()).ok();
            let reading = partition.and_then(|partition| self.reading.get(&(tier, partition)));
            let Some(reading) = reading else { continue };
            let now_ms = self.shared.clock.now_ms();
            let record = received(&message, Topic::Delay(tier), reading.epoch, now_ms);
            if let Some(record) = record {
                self.shared.inbox().push(record);
            }
        }
        count
    }

    fn pause_or_resume(&mut self) {
        let now_ms = self.shared.clock.now_ms();
        let mut pause = Vec::new();
        let mut resume = Vec::new();
        {
            let inbox = self.shared.inbox();
            for (&(tier, partition), reading) in &mut self.reading {
                let paused = inbox.pause_delay(tier, partition, reading.paused, now_ms);
                if paused != reading.paused {
                    let changed = if paused { &mut pause } else { &mut resume };
                    changed.push((tier, partition));
                    reading.paused = paused;
                }
            }
        }
        let mut result = Ok(());
        if !pause.is_empty() {
            result = self.client.pause(&self.list(&pause));
        }
        if !resume.is_empty() {
            result = result.and(self.client.resume(&self.list(&resume)));
        }
        if let Err(error) = result {
            tracing::warn!(%error, "can not pause or resume a delay tier");
        }
    }

    fn list(&self, keys: &[(DelayTier, u32)]) -> TopicPartitionList {
        let mut list = TopicPartitionList::with_capacity(keys.len());
        for &(tier, partition) in keys {
            if let Ok(partition) = i32::try_from(partition) {
                list.add_partition(&self.shared.names.name(Topic::Delay(tier)), partition);
            }
        }
        list
    }
}

// === impl DelayContext ===

impl ClientContext for DelayContext {
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

impl ConsumerContext for DelayContext {}

// === helpers ===

fn build(
    clients: &Clients,
    shared: &Arc<Shared>,
) -> Result<Arc<BaseConsumer<DelayContext>>, LogError> {
    let context = DelayContext {
        shared: Arc::clone(shared),
    };
    let client = clients
        .delay_consumer()?
        .create_with_context(context)
        .map_err(|error| LogError::Fatal(format!("no consumer of the delay tiers: {error}")))?;
    Ok(Arc::new(client))
}
