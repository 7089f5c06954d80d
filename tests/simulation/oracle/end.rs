//! What must be true when everything has come to rest (invariants 1, 3 and 8).

use super::{Entry, Oracle};
use crate::plan::Plan;
use dedup_store::{Row, Status};
use schemas::{DeliveryKey, OutcomeKind};
use std::collections::BTreeMap;

impl Oracle {
    /// What is not at rest yet; none: everything is.
    pub(crate) fn unsettled(&self) -> Option<(String, Option<DeliveryKey>)> {
        for key in self.obligations() {
            let row = self.rows.get(&key);
            let ended = |row: &Row| matches!(row.status, Status::Completed | Status::Failed);
            if !row.is_some_and(ended) {
                return Some((format!("{key} has not ended: {row:?}"), Some(key)));
            }
        }
        for (topic, partition, offset) in self.entries.keys() {
            let committed = self.committed.get(&(*topic, *partition));
            if committed.copied().unwrap_or(0) <= *offset {
                let place = (topic.suffix(), partition, offset);
                return Some((format!("{place:?} is not committed: {committed:?}"), None));
            }
        }
        None
    }

    /// Whatever is still open can come to its end.
    pub(crate) fn check_carried(&mut self) {
        let lost = self
            .obligations()
            .into_iter()
            .find(|key| !self.is_carried(key));
        if let Some(key) = lost {
            let row = self.rows.get(&key);
            let what = format!("{key}: acknowledged, and no record carries it; row {row:?}");
            self.violated(1, what, Some(&key));
        }
    }

    /// When a delivery came to its end, milliseconds from the start.
    pub(crate) fn ended_at_ms(&self, key: &DeliveryKey) -> Option<i64> {
        self.ended_at_ms.get(key).copied()
    }

    /// Everything has come to rest: nothing is lost, and nothing is there that nobody sent.
    pub(crate) fn judge(&mut self, rows: Vec<(DeliveryKey, Row)>) {
        if let Some((what, about)) = self.unsettled() {
            self.violated(1, what, about.as_ref());
        }
        let rows: BTreeMap<_, _> = rows.into_iter().collect();
        if rows != self.rows {
            self.violated(2, "the store has rows that nobody wrote".to_owned(), None);
        }
        for key in self.obligations() {
            let Some(row) = self.rows.get(&key).cloned() else {
                continue;
            };
            let generation = row.generation;
            let letter = self.letters.get(&key).and_then(|it| it.get(&generation));
            let good = match row.status {
                Status::Completed => self.outcome(row.claim_token) == Some(OutcomeKind::Delivered),
                Status::Failed => letter.is_some() && letter == row.reason.as_ref(),
                Status::Processing | Status::Waiting => false,
            };
            if !good {
                self.violated(1, format!("{key}: is lost, {row:?}"), Some(&key));
            }
        }
        let garbage = self.entries.iter();
        let garbage = garbage.filter(|(_, entry)| matches!(entry, Entry::Garbage));
        for (_, partition, offset) in garbage.map(|(place, _)| *place).collect::<Vec<_>>() {
            if !self.raw_letters.contains(&(partition, offset)) {
                let what = format!("garbage at {partition}:{offset} is no dead letter");
                self.violated(1, what, None);
            }
        }
    }

    /// Every delivery of everything that was acknowledged.
    fn obligations(&self) -> Vec<DeliveryKey> {
        let acknowledged = self.posted.iter().filter(|(_, posted)| posted.acknowledged);
        let keys = acknowledged.flat_map(|((source, delivery_id), posted)| {
            let to = Plan::destinations_of(source, &posted.event_type);
            to.iter().map(|to| DeliveryKey {
                source: source.clone(),
                delivery_id: delivery_id.clone(),
                destination: (*to).to_owned(),
            })
        });
        keys.collect()
    }
}
