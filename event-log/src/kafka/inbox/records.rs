//! Records into the inbox and out of it: what is due, who goes first, when reading pauses.

use super::{Held, Inbox, record_bytes};
use crate::{Event, LogError, Received, Room, fair};
use schemas::{DelayTier, Topic};
use std::{cmp::Reverse, collections::BinaryHeap};

// === impl Inbox: records ===

impl Inbox {
    /// Puts in a record that was read; dropped when its epoch has ended.
    pub(in crate::kafka) fn push(&mut self, record: Received) {
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
            Topic::Webhooks | Topic::DeadLetters => {
                self.main_held.records += 1;
                self.main_held.bytes += record_bytes(&record);
                self.main.entry(record.partition).or_default().push(record);
            }
        }
    }

    /// Takes all ownership events and as many records as there is `room` for, webhooks and due delay records by turns.
    ///
    /// # Errors
    /// A failure, once everything that came before it is taken. A passing one is reported once.
    pub(in crate::kafka) fn take(
        &mut self,
        room: &Room,
        now_ms: i64,
    ) -> Result<Vec<Event>, LogError> {
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
        let ready = self.main.iter();
        let ready = ready.map(|(partition, held)| held.records.len().min(room.of(*partition)));
        let turn_even = self.turn.is_multiple_of(2);
        let (main, delayed) = share(room.records(), ready.sum(), due.len(), turn_even);
        let mut left = room.clone();
        let records = events.len();
        // A partition's webhooks and delay records share its room, so neither may always come first.
        if fair::main_first(self.turn) {
            self.take_main(main, &mut left, &mut events);
            self.take_due(&due, delayed, &mut left, &mut events);
        } else {
            self.take_due(&due, delayed, &mut left, &mut events);
            self.take_main(main, &mut left, &mut events);
        }
        if events.len() > records {
            self.turn = self.turn.wrapping_add(1);
        }
        Ok(events)
    }

    fn take_due(
        &mut self,
        due: &[(DelayTier, u32)],
        count: usize,
        left: &mut Room,
        events: &mut Vec<Event>,
    ) {
        for key in due.iter().take(count) {
            if left.take(key.1)
                && let Some(record) = self.delayed.get_mut(key).and_then(Held::pop)
            {
                events.push(Event::Record(record));
            }
        }
    }

    /// One webhook of each partition in turn.
    fn take_main(&mut self, count: usize, left: &mut Room, events: &mut Vec<Event>) {
        let mut partitions: Vec<u32> = self.main.keys().copied().collect();
        let first = self.turn / 2 % partitions.len().max(1);
        partitions.rotate_left(first);
        let mut wanted = count;
        while wanted > 0 && !partitions.is_empty() {
            partitions.retain(|partition| {
                if wanted == 0 || left.of(*partition) == 0 {
                    return false;
                }
                let held = self.main.get_mut(partition);
                let Some(record) = held.and_then(Held::pop) else {
                    return false;
                };
                wanted -= 1;
                left.take(*partition);
                self.main_held.records -= 1;
                self.main_held.bytes -= record_bytes(&record);
                events.push(Event::Record(record));
                true
            });
        }
    }

    /// When the next delay record is due for which there is room; none when none is held.
    pub(in crate::kafka) fn next_due_ms(&self, room: &Room) -> Option<i64> {
        let heads = self.delayed.iter().filter_map(|((tier, partition), held)| {
            held.head_due_ms(*tier).filter(|_| room.of(*partition) > 0)
        });
        heads.min()
    }

    /// Tiers and partitions whose heads are due and have room, the earliest first, one entry for each record.
    fn due(&self, room: &Room, now_ms: i64) -> Vec<(DelayTier, u32)> {
        let mut heads = BinaryHeap::new();
        for (key, held) in &self.delayed {
            if let Some(due_ms) = held.head_due_ms(key.0)
                && due_ms <= now_ms
            {
                heads.push(Reverse((due_ms, *key, 0_usize)));
            }
        }
        let mut left = room.clone();
        let mut due = Vec::new();
        while let Some(Reverse((_, key, at))) = heads.pop() {
            if !left.take(key.1) {
                continue;
            }
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

    /// Webhooks that are held.
    #[cfg(test)]
    pub(in crate::kafka) fn held_main(&self) -> usize {
        self.main_held.records
    }

    /// Whether reading of a partition's webhooks should pause, given whether it does. The whole must be too much, not
    /// only this partition: a busy one may use what idle ones do not, and one that is not taken from stops alone.
    pub(in crate::kafka) fn pause_main(&self, partition: u32, paused: bool) -> bool {
        let held = self.main.get(&partition);
        let (records, bytes) = held.map_or((0, 0), |held| (held.records.len(), held.bytes));
        let owned = self.owned.len().max(1);
        let pause = |held, total, max| pause_main(paused, owned, Fill { held, max }, total);
        pause(records, self.main_held.records, self.limits.main_records)
            || pause(bytes, self.main_held.bytes, self.limits.main_bytes)
    }

    /// Whether reading of a delay partition should pause, given whether it does.
    pub(in crate::kafka) fn pause_delay(
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

// === decisions ===

/// When a record of `tier` may be handed out.
pub(super) fn due_ms(tier: DelayTier, appended_at_ms: i64) -> i64 {
    appended_at_ms.saturating_add(tier.wait_ms())
}

/// What is held of what may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) held: usize,
    pub(super) max: usize,
}

/// Whether a delay partition should pause. While its last held record is far from due, half of the room is enough
/// (paused at a half, resumed at a quarter). Shortly before, the other half is filled, so that the client has its
/// records back from the broker in time: a resume costs it up to a second.
pub(super) fn pause_delay(paused: bool, soon: bool, fill: Fill) -> bool {
    let Fill { held, max } = fill;
    match (soon, paused) {
        (true, false) => held >= max,
        (true, true) => held > max / 2,
        (false, false) => held >= max / 2,
        (false, true) => held > max / 4,
    }
}

/// Whether one of `owned` partitions should pause: `fill` is what it holds and what all may hold, `total` what all do.
pub(super) fn pause_main(paused: bool, owned: usize, fill: Fill, total: usize) -> bool {
    let Fill { held, max } = fill;
    if paused {
        held > max / owned / 4 && total > max / 4
    } else {
        total >= max && held >= max / owned && held > 0
    }
}

/// Shares `room` between webhooks and due delay records: half each, and what one side leaves to the other.
pub(super) fn share(room: usize, main: usize, due: usize, main_first: bool) -> (usize, usize) {
    let half = if main_first {
        room.div_ceil(2)
    } else {
        room / 2
    };
    let main_taken = main.min(half.max(room.saturating_sub(due)));
    (main_taken, due.min(room - main_taken))
}
