//! Every attempt (invariants 2, 4, 5, 7 and 9).

use super::{Answered, Oracle};
use crate::{scene::Life, store::short};
use dedup_store::Status;
use dispatcher::{outcome::Outcome, send::Attempt};
use schemas::{DeliveryKey, OutcomeKind};
use uuid::Uuid;

/// Most deliveries that one record makes here.
const FAN_OUT: usize = 2;
/// Largest body here, bytes.
const BODY_BYTES: usize = 7_000;
/// What the dispatcher counts for a held delivery beside its body.
const HELD_BYTES: usize = 1_024;

impl Oracle {
    /// An attempt arrives.
    pub(crate) fn sent(&mut self, at_ms: i64, life: &Life, attempt: &Attempt<'_>) {
        let (webhook, token) = (attempt.webhook, attempt.token);
        let key = super::records::key(webhook, attempt.destination);
        self.tally.count("attempts");
        self.check_bytes(&webhook.source, &webhook.delivery_id, &webhook.body);
        let posted = (webhook.source.clone(), webhook.delivery_id.clone());
        let posted = self.posted.get(&posted);
        let event_type = posted.map(|posted| posted.event_type.as_str());
        if event_type.is_none_or(|event_type| event_type != webhook.event_type) {
            let what = format!("{key}: event type {}", webhook.event_type);
            self.violated(5, what, Some(&key));
        }
        if let Err((invariant, what)) = self.is_allowed(at_ms, life, attempt, &key) {
            let what = format!("{key}: attempt {}: {what}", short(token));
            self.violated(invariant, what, Some(&key));
        }
        if let Some(claimed) = self.claims.get_mut(&token) {
            claimed.sent = true;
        }
        self.sends.entry(key).or_default().push(token);
    }

    fn is_allowed(
        &mut self,
        at_ms: i64,
        life: &Life,
        attempt: &Attempt<'_>,
        key: &DeliveryKey,
    ) -> Result<(), (u8, &'static str)> {
        let claimed = self.claims.get(&attempt.token);
        let Some(claimed) = claimed.filter(|it| it.key == *key && it.life == life.number()) else {
            return Err((2, "without a claim"));
        };
        if claimed.sent {
            return Err((9, "sent again with the same claim"));
        }
        let Some(row) = self.rows.get(key) else {
            return Err((2, "there is no row"));
        };
        if self.plan.jumps() || self.has_frozen(claimed) {
            // Nobody can know then that a lease is over: a fence protects the state, not the receiver.
        } else if row.claim_token != attempt.token || row.status != Status::Processing {
            return Err((2, "the claim is somebody else's, or ended"));
        } else if claimed.lease_ends_ms <= at_ms {
            return Err((2, "its lease is over"));
        }
        let retry = &self.plan.destinations[&key.destination].retry;
        if attempt.attempt > retry.attempts_max {
            return Err((4, "more than attempts_max"));
        }
        let sends = self.sends.get(key).into_iter().flatten();
        let mut sends: Vec<_> = sends.filter_map(|token| self.claims.get(token)).collect();
        sends.retain(|earlier| earlier.generation == claimed.generation);
        if sends.len() + 1 > attempt.attempt as usize {
            return Err((4, "its number was had before"));
        }
        let from = claimed.from;
        if let Some(earlier) = sends.last() {
            let kind = earlier.answer.as_ref().map(|answer| answer.outcome.kind);
            let asked = matches!(kind, Some(OutcomeKind::Failed | OutcomeKind::Throttled));
            if !asked || from != Some(Status::Waiting) {
                if !self.excused(earlier) {
                    return Err((9, "sent again, and no fault explains it"));
                }
                self.tally.count("repeats that a fault explains");
            }
        }
        Ok(())
    }

    /// The receiver's answer has reached the dispatcher, whose clock shows `now_ms`.
    pub(crate) fn answered(&mut self, token: Uuid, outcome: &Outcome, now_ms: i64) {
        if let Some(claimed) = self.claims.get_mut(&token) {
            let outcome = outcome.clone();
            claimed.answer = Some(Answered { outcome, now_ms });
        }
    }

    /// An attempt has begun.
    pub(crate) fn running(&mut self, life: &Life, destination: &str, bytes: usize) {
        let load = self.load.entry(life.number()).or_default();
        load.attempts += 1;
        load.bytes += bytes;
        let at_destination = load
            .by_destination
            .entry(destination.to_owned())
            .or_default();
        *at_destination += 1;
        let config = &self.plan.config;
        // What was only held has memory of its own, also when it begins.
        let attempts_max = config
            .in_flight_max
            .saturating_add(FAN_OUT + config.held_bytes_max / HELD_BYTES);
        let bytes_max = config
            .in_flight_bytes_max
            .saturating_add(FAN_OUT * BODY_BYTES + config.held_bytes_max);
        let concurrency = self.plan.destinations[destination].concurrency;
        if *at_destination > concurrency || load.attempts > attempts_max || load.bytes > bytes_max {
            let what = format!("{}: too much at once: {load:?}", life.name());
            self.violated(7, what, None);
        }
    }

    /// An attempt has ended, or was given up.
    pub(crate) fn runs_no_more(&mut self, life: &Life, destination: &str, bytes: usize) {
        let load = self.load.entry(life.number()).or_default();
        load.attempts -= 1;
        load.bytes -= bytes;
        if let Some(count) = load.by_destination.get_mut(destination) {
            *count -= 1;
        }
    }
}
