//! What the consumer's threads have read and the dispatcher has not taken yet: plain state, no client, no clock.
//!
//! The threads put in, [`super::KafkaConsumer::next`] takes out. Ownership lives here as well, so that a record, a
//! watermark and a revocation can never disagree about the epoch.

use crate::{Epoch, Event, LogError, Position, Received, Release, Revoked, Watermark};
use schemas::{DelayTier, Topic};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::oneshot;

/// How much may wait in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Webhooks: reading pauses at this many …
    pub(super) main_records: usize,
    /// … or at this many bytes, and goes on at a quarter of both.
    pub(super) main_bytes: usize,
    /// Records of one delay tier and partition: see [`pause_delay`].
    pub(super) delay_records: usize,
    /// Bytes of all delay tiers together; shared equally among what is owned.
    pub(super) delay_bytes: usize,
    /// Reading of a delay partition is resumed this long before its last held record is due.
    pub(super) lead_ms: i64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Inbox {
    limits: Limits,
    /// Last epoch given out in this process, shared by all consumers of a log.
    epochs: Arc<AtomicU64>,
    owned: BTreeMap<u32, Epoch>,
    /// Being given up: watermarks are still taken, records are not handed out any more.
    leaving: BTreeMap<u32, Epoch>,
    /// Ownership events that were not taken yet.
    events: VecDeque<Event>,
    main: Held,
    delayed: BTreeMap<(DelayTier, u32), Held>,
    marks: BTreeMap<(Topic, u32), Mark>,
    heard: BTreeMap<(Topic, u32), Heard>,
    /// Who goes first when the room is odd.
    main_first: bool,
    failed: Option<LogError>,
}

/// Records in the order in which they were read.
#[derive(Debug, Default)]
struct Held {
    records: VecDeque<Received>,
    bytes: usize,
}

/// Watermark of a topic and partition: what was noted, and what of it was given to the broker.
#[derive(Clone, Copy, Debug)]
struct Mark {
    epoch: Epoch,
    noted: i64,
    sent: Option<i64>,
}

/// How far a topic and partition was read, and where it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    next_offset: Option<i64>,
    end_offset: Option<i64>,
}

/// A revocation that waits for its answer.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) partitions: Vec<(u32, Epoch)>,
    pub(super) answer: oneshot::Receiver<Vec<Watermark>>,
}

// === impl Inbox: ownership ===

impl Inbox {
    pub(super) fn new(limits: Limits, epochs: Arc<AtomicU64>) -> Self {
        Self {
            limits,
            epochs,
            owned: BTreeMap::new(),
            leaving: BTreeMap::new(),
            events: VecDeque::new(),
            main: Held::default(),
            delayed: BTreeMap::new(),
            marks: BTreeMap::new(),
            heard: BTreeMap::new(),
            main_first: true,
            failed: None,
        }
    }

    /// Takes ownership, each partition under a new epoch.
    pub(super) fn assign(&mut self, partitions: &[u32]) -> Vec<(u32, Epoch)> {
        let mut assigned = Vec::with_capacity(partitions.len());
        for &partition in partitions {
            let epoch = Epoch(self.epochs.fetch_add(1, Ordering::Relaxed) + 1);
            self.forget(partition);
            self.owned.insert(partition, epoch);
            self.events.push_back(Event::Assigned { partition, epoch });
            assigned.push((partition, epoch));
        }
        assigned
    }

    /// Starts to give up what is owned of `partitions`: their records are gone at once. None when nothing was owned
    /// (cooperative lists may be empty). With `lost`, nothing is taken any more and nobody waits for the answer.
    pub(super) fn begin_revoke(&mut self, partitions: &[u32], lost: bool) -> Option<Leaving> {
        let mut ending = Vec::new();
        for &partition in partitions {
            let Some(epoch) = self.owned.remove(&partition) else {
                continue;
            };
            self.drop_records(partition);
            if lost {
                self.forget(partition);
            } else {
                self.leaving.insert(partition, epoch);
            }
            ending.push((partition, epoch));
        }
        if ending.is_empty() {
            return None;
        }
        let (release, answer) = Release::new();
        self.events.push_back(Event::Revoked(Revoked {
            partitions: ending.clone(),
            lost,
            release,
        }));
        Some(Leaving {
            partitions: ending,
            answer,
        })
    }

    /// Ends what [`Self::begin_revoke`] began; returns what is to be committed now.
    pub(super) fn end_revoke(
        &mut self,
        partitions: &[(u32, Epoch)],
        released: &[Watermark],
    ) -> Vec<Watermark> {
        self.note(released);
        let leaves = |partition| partitions.iter().any(|(leaving, _)| *leaving == partition);
        // What was sent without waiting may have failed: everything goes once more.
        let last = self.commits(|_, partition, _| leaves(partition));
        for (partition, _) in partitions {
            self.leaving.remove(partition);
            self.forget(*partition);
        }
        last
    }

    /// Owned partitions.
    pub(super) fn owned(&self) -> impl Iterator<Item = u32> {
        self.owned.keys().copied()
    }

    /// Epoch under which `partition` is owned.
    pub(super) fn epoch(&self, partition: u32) -> Option<Epoch> {
        self.owned.get(&partition).copied()
    }

    /// Stops handing out anything; drops revocations that nobody will answer.
    pub(super) fn shut(&mut self) {
        self.events.clear();
        self.main = Held::default();
        self.delayed.clear();
    }

    /// The first failure stays.
    pub(super) fn fail(&mut self, error: LogError) -> bool {
        let first = self.failed.is_none();
        self.failed.get_or_insert(error);
        first
    }

    fn forget(&mut self, partition: u32) {
        self.drop_records(partition);
        self.marks.retain(|(_, marked), _| *marked != partition);
        self.heard.retain(|(_, heard), _| *heard != partition);
    }

    fn drop_records(&mut self, partition: u32) {
        self.main.retain(|record| record.partition != partition);
        self.delayed.retain(|(_, held), _| *held != partition);
    }
}

// === impl Inbox: records ===

impl Inbox {
    /// Puts in a record that was read; dropped when its epoch has ended.
    pub(super) fn push(&mut self, record: Received) {
        if self.epoch(record.partition) != Some(record.epoch) {
            return;
        }
        let heard = self
            .heard
            .entry((record.topic, record.partition))
            .or_default();
        heard.next_offset = Some(record.offset.saturating_add(1));
        match record.topic {
            Topic::Delay(tier) => {
                let key = (tier, record.partition);
                self.delayed.entry(key).or_default().push(record);
            }
            Topic::Webhooks | Topic::DeadLetters => self.main.push(record),
        }
    }

    /// Takes all ownership events and at most `room` records, webhooks and due delay records by turns.
    ///
    /// # Errors
    /// A failure, once everything that came before it is taken. A passing one is reported once.
    pub(super) fn take(&mut self, room: usize, now_ms: i64) -> Result<Vec<Event>, LogError> {
        let mut events: Vec<Event> = self.events.drain(..).collect();
        if events.is_empty()
            && let Some(error) = self.failed.clone()
        {
            if matches!(error, LogError::Unavailable(_)) {
                self.failed = None;
            }
            return Err(error);
        }
        let due = self.due(room, now_ms);
        let (main, delayed) = share(room, self.main.records.len(), due.len(), self.main_first);
        if main + delayed == room {
            self.main_first = !self.main_first;
        }
        for key in due.into_iter().take(delayed) {
            if let Some(record) = self.delayed.get_mut(&key).and_then(Held::pop) {
                events.push(Event::Record(record));
            }
        }
        for _ in 0..main {
            events.extend(self.main.pop().map(Event::Record));
        }
        Ok(events)
    }

    /// When the next delay record is due; none when none is held.
    pub(super) fn next_due_ms(&self) -> Option<i64> {
        let heads = self
            .delayed
            .iter()
            .filter_map(|((tier, _), held)| held.head_due_ms(*tier));
        heads.min()
    }

    /// Tiers and partitions whose heads are due, the earliest first, one entry for each record; `max` at most.
    fn due(&self, max: usize, now_ms: i64) -> Vec<(DelayTier, u32)> {
        let mut heads = BinaryHeap::new();
        for (key, held) in &self.delayed {
            if let Some(due_ms) = held.head_due_ms(key.0)
                && due_ms <= now_ms
            {
                heads.push(Reverse((due_ms, *key, 0_usize)));
            }
        }
        let mut due = Vec::new();
        while due.len() < max
            && let Some(Reverse((_, key, at))) = heads.pop()
        {
            due.push(key);
            let next = self
                .delayed
                .get(&key)
                .and_then(|held| held.records.get(at + 1));
            if let Some(record) = next {
                let due_ms = due_ms(key.0, record.appended_at_ms);
                if due_ms <= now_ms {
                    heads.push(Reverse((due_ms, key, at + 1)));
                }
            }
        }
        due
    }

    /// Whether reading of the webhooks should pause, given whether it does.
    pub(super) fn pause_main(&self, paused: bool) -> bool {
        let limits = self.limits;
        if paused {
            self.main.records.len() > limits.main_records / 4
                || self.main.bytes > limits.main_bytes / 4
        } else {
            self.main.records.len() >= limits.main_records || self.main.bytes >= limits.main_bytes
        }
    }

    /// Whether reading of a delay partition should pause, given whether it does.
    pub(super) fn pause_delay(
        &self,
        tier: DelayTier,
        partition: u32,
        paused: bool,
        now_ms: i64,
    ) -> bool {
        let Some(held) = self.delayed.get(&(tier, partition)) else {
            return false;
        };
        let Some(last) = held.records.back() else {
            return false;
        };
        let soon = due_ms(tier, last.appended_at_ms) <= now_ms.saturating_add(self.limits.lead_ms);
        let share_bytes =
            self.limits.delay_bytes / (self.owned.len() * DelayTier::ALL.len()).max(1);
        pause_delay(
            paused,
            soon,
            Fill {
                held: held.records.len(),
                max: self.limits.delay_records,
            },
        ) || pause_delay(
            paused,
            soon,
            Fill {
                held: held.bytes,
                max: share_bytes,
            },
        )
    }
}

// === impl Inbox: watermarks and positions ===

impl Inbox {
    /// Takes a note; watermarks of an epoch that has ended are ignored. The last one counts.
    pub(super) fn note(&mut self, watermarks: &[Watermark]) {
        for watermark in watermarks {
            let partition = &watermark.partition;
            let current = self
                .owned
                .get(partition)
                .or_else(|| self.leaving.get(partition));
            if current != Some(&watermark.epoch) {
                continue;
            }
            let noted = watermark.next_offset;
            self.marks
                .entry((watermark.topic, watermark.partition))
                .and_modify(|mark| mark.noted = noted)
                .or_insert(Mark {
                    epoch: watermark.epoch,
                    noted,
                    sent: None,
                });
        }
    }

    /// What was noted and not given to the broker yet; counts as given from now on.
    pub(super) fn take_commits(&mut self) -> Vec<Watermark> {
        self.commits(|_, _, mark| mark.is_news())
    }

    /// Every watermark of the delay tiers, given before or not: offsets of a group without members expire unless they
    /// are committed again.
    pub(super) fn refresh_delay_commits(&mut self) -> Vec<Watermark> {
        self.commits(|topic, _, _| matches!(topic, Topic::Delay(_)))
    }

    /// Every watermark: what was sent without waiting may have failed.
    pub(super) fn last_commits(&mut self) -> Vec<Watermark> {
        self.commits(|_, _, _| true)
    }

    /// The broker did not take these: they are given again.
    pub(super) fn commit_failed(&mut self, topics: &[(Topic, u32)]) {
        for key in topics {
            if let Some(mark) = self.marks.get_mut(key) {
                mark.sent = None;
            }
        }
    }

    /// What the statistics say: `next_offset` counts until a record was read.
    pub(super) fn hear(
        &mut self,
        topic: Topic,
        partition: u32,
        next_offset: Option<i64>,
        end_offset: Option<i64>,
    ) {
        if !self.owned.contains_key(&partition) {
            return;
        }
        let heard = self.heard.entry((topic, partition)).or_default();
        heard.next_offset = heard.next_offset.or(next_offset);
        heard.end_offset = end_offset.or(heard.end_offset);
    }

    /// How far handing out has come, of what is known.
    pub(super) fn positions(&self) -> Vec<Position> {
        let mut main_heads = BTreeMap::new();
        for record in &self.main.records {
            main_heads.entry(record.partition).or_insert(record.offset);
        }
        let mut positions = Vec::with_capacity(self.heard.len());
        for (&(topic, partition), heard) in &self.heard {
            let head = match topic {
                Topic::Delay(tier) => {
                    let held = self.delayed.get(&(tier, partition));
                    held.and_then(|held| held.records.front())
                        .map(|record| record.offset)
                }
                Topic::Webhooks | Topic::DeadLetters => main_heads.get(&partition).copied(),
            };
            let Some(next_offset) = head.or(heard.next_offset) else {
                continue;
            };
            // What was read is there, whatever the last statistics said.
            let end_offset = heard.end_offset.max(heard.next_offset);
            positions.push(Position {
                topic,
                partition,
                next_offset,
                end_offset,
            });
        }
        positions
    }

    fn commits(&mut self, wanted: impl Fn(Topic, u32, &Mark) -> bool) -> Vec<Watermark> {
        let mut commits = Vec::new();
        for (&(topic, partition), mark) in &mut self.marks {
            if wanted(topic, partition, mark) {
                mark.sent = Some(mark.noted);
                commits.push(Watermark {
                    topic,
                    partition,
                    epoch: mark.epoch,
                    next_offset: mark.noted,
                });
            }
        }
        commits
    }
}

// === impl Mark ===

impl Mark {
    fn is_news(&self) -> bool {
        self.sent != Some(self.noted)
    }
}

// === impl Held ===

impl Held {
    fn push(&mut self, record: Received) {
        self.bytes += record_bytes(&record);
        self.records.push_back(record);
    }

    fn pop(&mut self) -> Option<Received> {
        let record = self.records.pop_front()?;
        self.bytes = self.bytes.saturating_sub(record_bytes(&record));
        Some(record)
    }

    fn retain(&mut self, keep: impl Fn(&Received) -> bool) {
        self.records.retain(keep);
        self.bytes = self.records.iter().map(record_bytes).sum();
    }

    fn head_due_ms(&self, tier: DelayTier) -> Option<i64> {
        let head = self.records.front()?;
        Some(due_ms(tier, head.appended_at_ms))
    }
}

// === decisions ===

/// When a record of `tier` may be handed out.
pub(super) fn due_ms(tier: DelayTier, appended_at_ms: i64) -> i64 {
    appended_at_ms.saturating_add(tier.wait_ms())
}

/// What is held of what may be.
#[derive(Clone, Copy, Debug)]
struct Fill {
    held: usize,
    max: usize,
}

/// Whether a delay partition should pause. While its last held record is far from due, half of the room is enough
/// (paused at a half, resumed at a quarter). Shortly before, the other half is filled, so that the client has its
/// records back from the broker in time: a resume costs it up to a second.
fn pause_delay(paused: bool, soon: bool, fill: Fill) -> bool {
    let Fill { held, max } = fill;
    match (soon, paused) {
        (true, false) => held >= max,
        (true, true) => held > max / 2,
        (false, false) => held >= max / 2,
        (false, true) => held > max / 4,
    }
}

/// Shares `room` between webhooks and due delay records: half each, and what one side leaves to the other.
fn share(room: usize, main: usize, due: usize, main_first: bool) -> (usize, usize) {
    let half = if main_first {
        room.div_ceil(2)
    } else {
        room / 2
    };
    let main_taken = main.min(half.max(room.saturating_sub(due)));
    (main_taken, due.min(room - main_taken))
}

fn record_bytes(record: &Received) -> usize {
    let headers = record.headers.iter();
    let headers_bytes: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
    record.key.len() + record.value.len() + headers_bytes
}

#[cfg(test)]
mod tests;
