//! Sees from outside whether reading goes on: a thread with a client of its own.
//!
//! `stall` decides what a partition that stands still means, `levels` whether the topics have the same number of partitions.

mod levels;
mod stall;

pub(super) use stall::Patience;

use crate::{
    LogError,
    kafka::{
        client::{Clients, LogContext},
        consumer::{POLL_TIMEOUT, Shared, spawn},
    },
};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaResult,
};
use schemas::Topic;
use stall::{Key, Span, Stall, Stalls, Verdict};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::time::Instant;

/// Longest wait for an answer about one topic.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// How often what is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Between two looks at the partitions.
    pub(super) look: Duration,
    /// Between two looks at the topics.
    pub(super) levels: Duration,
    pub(super) patience: Patience,
}

pub(super) const PACE: Pace = Pace {
    look: Duration::from_secs(10),
    levels: Duration::from_secs(30),
    patience: Patience {
        suspect_ms: 15_000,
        warn_ms: 30_000,
        stall_ms: 60_000,
    },
};

/// The thread's state.
pub(super) struct Watch {
    client: BaseConsumer<LogContext>,
    shared: Arc<Shared>,
    pace: Pace,
    started: Instant,
    stalls: Stalls,
    pauses: u64,
    uneven: Option<String>,
}

// === impl Watch ===

impl Watch {
    /// Builds the client and starts the thread, which ends when the consumer is closing.
    pub(super) fn start(
        clients: &Clients,
        shared: &Arc<Shared>,
        pace: Pace,
    ) -> Result<(), LogError> {
        let group = &clients.config().group;
        let client = clients
            .observer(group)?
            .create_with_context(LogContext)
            .map_err(|error| LogError::Fatal(format!("no client: {error}")))?;
        let watch = Self {
            client,
            shared: Arc::clone(shared),
            pace,
            started: Instant::now(),
            stalls: Stalls::new(pace.patience),
            pauses: 0,
            uneven: None,
        };
        spawn("kafka-watch", shared, move || watch.run())?;
        Ok(())
    }

    fn run(mut self) {
        let mut look_at = self.started + self.pace.look;
        let mut levels_at = self.started + self.pace.levels;
        while !self.shared.is_closing() {
            thread::sleep(POLL_TIMEOUT);
            let now = Instant::now();
            if now >= look_at {
                self.look();
                look_at = Instant::now() + self.pace.look;
            }
            if now >= levels_at {
                self.level();
                levels_at = Instant::now() + self.pace.levels;
            }
        }
    }

    fn look(&mut self) {
        let pauses = self.shared.pauses();
        let paused = pauses != self.pauses;
        self.pauses = pauses;
        let readings = {
            let now_ms = self.shared.clock.now_ms();
            self.shared.inbox().readings(paused, now_ms)
        };
        let suspects = self.stalls.look(self.now_ms(), &readings);
        let spans = self.spans(&suspects);
        match self.stalls.decide(self.now_ms(), &suspects, &spans) {
            Verdict::Fine => {}
            Verdict::Warn(behind) => {
                for stall in behind {
                    tracing::warn!(
                        stall = self.text(stall),
                        "a partition lags and is not read, although its broker answers"
                    );
                }
            }
            Verdict::Replace(stalled) => {
                for stall in stalled {
                    tracing::error!(
                        stall = self.text(stall),
                        "reading of a partition stands still, the consumer is replaced"
                    );
                }
                self.shared.ask_for_replacement();
            }
            Verdict::GiveUp(stalled) => {
                let stalled: Vec<_> = stalled.into_iter().map(|stall| self.text(stall)).collect();
                let text = format!(
                    "reading stands still although the brokers answer, and a new consumer did not help: {}",
                    stalled.join(", ")
                );
                self.shared.fail(LogError::Fatal(text));
            }
        }
    }

    /// Asks the brokers where the suspects begin and end. What is not answered is missing.
    fn spans(&self, suspects: &[(Key, bool)]) -> BTreeMap<Key, Span> {
        let mut spans = BTreeMap::new();
        let topics: BTreeSet<_> = suspects.iter().map(|((topic, _), _)| *topic).collect();
        for topic in topics {
            if self.shared.is_closing() {
                break;
            }
            let of_topic = |&&((other, _), _): &&(Key, bool)| other == topic;
            let partitions = suspects.iter().filter(of_topic).map(|((_, at), _)| *at);
            let unknown = suspects
                .iter()
                .filter(of_topic)
                .filter(|(_, unknown)| *unknown);
            let asked = self
                .offsets(topic, partitions, Offset::End)
                .and_then(|ends| {
                    let unknown = unknown.map(|((_, at), _)| *at);
                    Ok((ends, self.offsets(topic, unknown, Offset::Beginning)?))
                });
            match asked {
                Ok((ends, begins)) => spans.extend(ends.into_iter().map(|(partition, end)| {
                    let begin = begins.get(&partition).copied();
                    ((topic, partition), Span { begin, end })
                })),
                Err(error) => {
                    tracing::debug!(%error, topic = topic.suffix(), "no answer about its ends")
                }
            }
        }
        spans
    }

    fn offsets(
        &self,
        topic: Topic,
        partitions: impl Iterator<Item = u32>,
        which: Offset,
    ) -> KafkaResult<BTreeMap<u32, i64>> {
        let name = self.shared.names.name(topic);
        let mut list = TopicPartitionList::new();
        for partition in partitions.filter_map(|partition| i32::try_from(partition).ok()) {
            list.add_partition_offset(&name, partition, which)?;
        }
        if list.count() == 0 {
            return Ok(BTreeMap::new());
        }
        let list = self.client.offsets_for_times(list, ANSWER_TIMEOUT)?;
        let elements = list.elements();
        let offsets = elements.iter().filter_map(|element| {
            let (Offset::Offset(offset), Ok(())) = (element.offset(), element.error()) else {
                return None;
            };
            Some((u32::try_from(element.partition()).ok()?, offset))
        });
        Ok(offsets.collect())
    }

    /// Tells when the numbers of partitions begin to differ, and when they are level again.
    fn level(&mut self) {
        let mut counts = BTreeMap::new();
        for topic in Topic::ALL {
            let name = self.shared.names.name(topic);
            let Ok(metadata) = self.client.fetch_metadata(Some(&name), ANSWER_TIMEOUT) else {
                return;
            };
            let described = metadata.topics().iter().find(|found| found.name() == name);
            let count = described.map_or(0, |described| described.partitions().len());
            if count == 0 {
                // Not answered for; readers tell of a topic that is gone.
                return;
            }
            counts.insert(topic, u32::try_from(count).unwrap_or(u32::MAX));
        }
        let uneven = levels::uneven(&counts, &self.shared.names);
        if uneven == self.uneven {
            return;
        }
        match &uneven {
            Some(uneven) => tracing::warn!(uneven, "topics differ in their partitions"),
            None => tracing::info!("all topics have the same number of partitions again"),
        }
        self.uneven = uneven;
    }

    fn text(&self, stall: Stall) -> String {
        let (topic, partition) = stall.key;
        let name = self.shared.names.name(topic);
        let next_offset = match stall.next_offset {
            Some(next_offset) => format!("at offset {next_offset}"),
            None => "at its beginning".to_owned(),
        };
        let (end_offset, for_s) = (stall.end_offset, stall.for_ms / 1_000);
        format!("{name}[{partition}] {next_offset} of {end_offset} for {for_s} s")
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
