//! Records, offsets, commits and the faults that were asked for.

use super::group::Group;
use crate::{Appended, Epoch, Page, ProduceError, Received, Record, Watermark};
use schemas::Topic;
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// What happens to a produce.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// Not acknowledged, written or not.
    Unacknowledged { written: bool },
    /// Refused.
    Busy,
    /// Written later.
    Late(Duration),
}

/// Everything that the log knows.
#[derive(Debug)]
pub(super) struct State {
    slots: BTreeMap<(Topic, u32), Slot>,
    pub(super) group: Group,
    pub(super) troubles: VecDeque<Trouble>,
    pub(super) failing_reads: usize,
    pub(super) unavailable: Option<String>,
    pub(super) record_bytes_max: usize,
}

/// One topic and partition.
#[derive(Debug, Default)]
struct Slot {
    /// By offset; gaps are possible.
    records: BTreeMap<i64, Received>,
    end_offset: i64,
    appended_at_ms: i64,
    committed: i64,
}

/// What a consumer may look at.
#[derive(Debug)]
pub(super) enum Head<'a> {
    /// Nothing from there on.
    End,
    /// Not before this time.
    DueAt(i64),
    /// Can be handed out.
    Ready(&'a Received),
}

// === impl State ===

impl State {
    pub(super) fn new(partitions: u32, record_bytes_max: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            group: Group::new(partitions),
            troubles: VecDeque::new(),
            failing_reads: 0,
            unavailable: None,
            record_bytes_max,
        }
    }

    /// Whether a record is taken, and what trouble it meets.
    pub(super) fn accept(&mut self, record: &Record) -> Result<Option<Trouble>, ProduceError> {
        record.bytes_within(self.record_bytes_max)?;
        if let Some(reason) = &self.unavailable {
            return Err(ProduceError::Unacknowledged(reason.clone()));
        }
        Ok(self.troubles.pop_front())
    }

    pub(super) fn append(&mut self, record: Record, partition: u32, now_ms: i64) -> Appended {
        let Record {
            topic,
            key,
            value,
            headers,
        } = record;
        let slot = self.slots.entry((topic, partition)).or_default();
        let offset = slot.end_offset;
        // Never back within a partition, or a delay tier would not be first in, first out.
        slot.appended_at_ms = slot.appended_at_ms.max(now_ms);
        slot.end_offset += 1;
        let (epoch, appended_at_ms) = (Epoch(0), slot.appended_at_ms);
        let received = Received {
            topic,
            partition,
            offset,
            epoch,
            appended_at_ms,
            key,
            value,
            headers,
        };
        slot.records.insert(offset, received);
        Appended { partition, offset }
    }

    pub(super) fn skip(&mut self, topic: Topic, partition: u32, count: i64) {
        self.slots.entry((topic, partition)).or_default().end_offset += count.max(0);
    }

    pub(super) fn end_offset(&self, topic: Topic, partition: u32) -> i64 {
        self.slots
            .get(&(topic, partition))
            .map_or(0, |slot| slot.end_offset)
    }

    pub(super) fn committed(&self, topic: Topic, partition: u32) -> i64 {
        self.slots
            .get(&(topic, partition))
            .map_or(0, |slot| slot.committed)
    }

    /// Commits the watermarks of ownerships that have not ended.
    pub(super) fn commit(&mut self, watermarks: &[Watermark]) {
        for watermark in watermarks {
            if self.group.epoch(watermark.partition) == Some(watermark.epoch)
                && let Some(slot) = self.slots.get_mut(&(watermark.topic, watermark.partition))
            {
                slot.committed = watermark.next_offset.clamp(0, slot.end_offset);
            }
        }
    }

    /// The next record of a topic and partition from `offset` on.
    pub(super) fn head(&self, topic: Topic, partition: u32, offset: i64, now_ms: i64) -> Head<'_> {
        let slot = self.slots.get(&(topic, partition));
        let Some((_, record)) = slot.and_then(|slot| slot.records.range(offset..).next()) else {
            return Head::End;
        };
        let wait_ms = match topic {
            Topic::Delay(tier) => tier.wait_ms(),
            Topic::Webhooks | Topic::DeadLetters => return Head::Ready(record),
        };
        let due_at_ms = record.appended_at_ms.saturating_add(wait_ms);
        if due_at_ms > now_ms {
            Head::DueAt(due_at_ms)
        } else {
            Head::Ready(record)
        }
    }

    pub(super) fn page(&self, topic: Topic, partition: u32, from_offset: i64, max: usize) -> Page {
        let end_offset = self.end_offset(topic, partition);
        let from_offset = from_offset.clamp(0, end_offset);
        let Some(slot) = self.slots.get(&(topic, partition)) else {
            return Page {
                records: Vec::new(),
                next_offset: 0,
                at_end: true,
            };
        };
        let mut rest = slot.records.range(from_offset..);
        let records: Vec<_> = rest
            .by_ref()
            .take(max)
            .map(|(_, record)| record.clone())
            .collect();
        let at_end = rest.next().is_none();
        let last = records
            .last()
            .map_or(from_offset, |record| record.offset + 1);
        Page {
            records,
            next_offset: if at_end { end_offset } else { last },
            at_end,
        }
    }
}
