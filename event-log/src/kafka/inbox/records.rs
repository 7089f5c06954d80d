//! Records into the inbox and out of it: what is due, who goes first, when reading pauses.

use super::{Held, Inbox};
use crate::{Event, LogError, Received};
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
            Topic::Webhooks | Topic::DeadLetters => self.main.push(record),
        }
    }

    /// Takes all ownership events and at most `room` records, webhooks and due delay records by turns.
    ///
    /// # Errors
    /// A failure, once everything that came before it is taken. A passing one is reported once.
    pub(in crate::kafka) fn take(
        &mut self,
        room: usize,
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
    pub(in crate::kafka) fn next_due_ms(&self) -> Option<i64> {
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
    pub(in crate::kafka) fn pause_main(&self, paused: bool) -> bool {
        let limits = self.limits;
        if paused {
            self.main.records.len() > limits.main_records / 4
                || self.main.bytes > limits.main_bytes / 4
        } else {
            self.main.records.len() >= limits.main_records || self.main.bytes >= limits.main_bytes
        }
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
