//! What the consumer's threads have read and the dispatcher has not taken yet: plain state, no client, no clock.
//!
//! The threads put in, [`super::KafkaConsumer::next`] takes out. Ownership lives here as well, so that a record, a
//! watermark and a revocation can never disagree about the epoch.

mod records;
mod watermarks;

use crate::{Epoch, Event, LogError, Received, Release, Revoked, Watermark};
use schemas::{DelayTier, Topic};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::oneshot;

/// So many statistics, a second apart, may not show a commit yet before it is sent again.
const UNSEEN_MAX: u8 = 3;

/// How much may wait in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Webhooks: when this many are held, reading pauses of those partitions that have their share of it. The others go
    /// on up to theirs, so twice as many is the most …
    pub(super) main_records: usize,
    /// … and the same with this many bytes. A partition goes on at a quarter of its share, or when a quarter is held.
    pub(super) main_bytes: usize,
    /// Records of one delay tier and partition: see [`records`].
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
    main: BTreeMap<u32, Held>,
    /// Of all in `main`.
    main_held: Total,
    delayed: BTreeMap<(DelayTier, u32), Held>,
    marks: BTreeMap<(Topic, u32), Mark>,
    heard: BTreeMap<(Topic, u32), Heard>,
    /// Answers with records so far: decides who goes first.
    turn: usize,
    failed: Option<LogError>,
}

/// Records in the order in which they were read.
#[derive(Debug, Default)]
struct Held {
    records: VecDeque<Received>,
    bytes: usize,
}

/// Records and bytes of several [`Held`].
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    records: usize,
    bytes: usize,
}

/// Watermark of a topic and partition: what was noted, and what of it was given to the broker.
#[derive(Clone, Copy, Debug)]
struct Mark {
    epoch: Epoch,
    noted: i64,
    sent: Option<i64>,
    /// Statistics since it was sent that did not show it as committed.
    unseen: u8,
}

/// How far a topic and partition was read, and where it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    next_offset: Option<i64>,
    end_offset: Option<i64>,
    drained_to: Option<i64>,
    /// A commit that was found to lie before the first record, and was told.
    skip_told: Option<i64>,
}

/// What the client's statistics say of a topic and partition; none: it does not know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// Where reading starts or goes on.
    pub(super) next_offset: Option<i64>,
    pub(super) begin_offset: Option<i64>,
    pub(super) end_offset: Option<i64>,
    pub(super) committed_offset: Option<i64>,
    /// Next offset to be fetched; only when the client holds no record that it has not handed on.
    pub(super) drained_to: Option<i64>,
}

/// Records that were deleted before the group had finished them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Skip {
    pub(super) committed_offset: i64,
    pub(super) begin_offset: i64,
}

/// How reading of a topic and partition goes, for who watches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) epoch: Epoch,
    /// Next offset to be read; none: it is not known where reading starts.
    pub(super) next_offset: Option<i64>,
    /// Up to here the client has fetched and holds nothing back.
    pub(super) drained_to: Option<i64>,
    /// So much is held that reading may be paused.
    pub(super) full: bool,
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
            main: BTreeMap::new(),
            main_held: Total::default(),
            delayed: BTreeMap::new(),
            marks: BTreeMap::new(),
            heard: BTreeMap::new(),
            turn: 0,
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
        self.main.clear();
        self.main_held = Total::default();
        self.delayed.clear();
    }

    /// The first failure stays, but one that does not heal takes the place of a passing one. False: nothing new.
    pub(super) fn fail(&mut self, error: LogError) -> bool {
        let news = match (&self.failed, &error) {
            (None, _) | (Some(LogError::Unavailable(_)), LogError::Fatal(_)) => true,
            (Some(_), _) => false,
        };
        if news {
            self.failed = Some(error);
        }
        news
    }

    fn forget(&mut self, partition: u32) {
        self.drop_records(partition);
        self.marks.retain(|(_, marked), _| *marked != partition);
        self.heard.retain(|(_, heard), _| *heard != partition);
    }

    fn drop_records(&mut self, partition: u32) {
        if let Some(held) = self.main.remove(&partition) {
            self.main_held.records -= held.records.len();
            self.main_held.bytes -= held.bytes;
        }
        self.delayed.retain(|(_, held), _| *held != partition);
    }
}

// === impl Mark ===

impl Mark {
    fn is_news(&self) -> bool {
        self.sent != Some(self.noted)
    }

    /// What was sent and is not committed long after it counts as not sent.
    fn see(&mut self, committed_offset: Option<i64>) {
        if self.sent.is_none() || self.sent == committed_offset {
            self.unseen = 0;
            return;
        }
        self.unseen = self.unseen.saturating_add(1);
        if self.unseen >= UNSEEN_MAX {
            self.sent = None;
        }
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

    fn head_due_ms(&self, tier: DelayTier) -> Option<i64> {
        let head = self.records.front()?;
        Some(records::due_ms(tier, head.appended_at_ms))
    }
}

// === helpers ===

fn record_bytes(record: &Received) -> usize {
    let headers = record.headers.iter();
    let headers_bytes: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
    record.key.len() + record.value.len() + headers_bytes
}

#[cfg(test)]
mod tests;
