//! Every write of the store, against the state machine of the design (invariants 1, 2, 4 and 9).

use super::{Claimed, Oracle};
use crate::{
    scene::START_MS,
    store::{Call, Issued, short},
};
use dedup_store::{ClaimAsk, Row, Status, claim::To};
use schemas::{DeliveryKey, OutcomeKind, Reason, Reopen, Topic};
use std::time::Duration;
use uuid::Uuid;

impl Oracle {
    /// A statement ran at `at_ms`, and the row was this before and that after it.
    pub(crate) fn wrote(
        &mut self,
        at_ms: i64,
        issued: &Issued,
        before: Option<&Row>,
        after: Option<&Row>,
    ) {
        let key = issued.call.key();
        if before == after {
            if let Call::Move { .. } = issued.call
                && before.is_some_and(|row| row.claim_token != issued.call.token())
            {
                self.tally.count("stale transitions");
            }
            return;
        }
        let Some(after) = after else {
            self.violated(2, format!("{key}: the row is gone"), Some(key));
            return;
        };
        self.rows.insert(key.clone(), after.clone());
        match &issued.call {
            Call::Claim(ask) => self.claimed(at_ms, issued, ask, before, after),
            Call::Renew { .. } => self.renewed(issued, before, after),
            Call::Move { to, .. } => self.moved(at_ms, issued, *to, before, after),
        }
    }

    fn claimed(
        &mut self,
        at_ms: i64,
        issued: &Issued,
        ask: &ClaimAsk,
        before: Option<&Row>,
        after: &Row,
    ) {
        let key = &ask.key;
        self.tally.count("claims");
        if after.claim_token != ask.token || after.status != Status::Processing {
            let what = format!("{key}: a claim made the row {after:?}");
            self.violated(2, what, Some(key));
        }
        if let Some(before) = before {
            match before.status {
                Status::Processing => self.takes_over(at_ms, key, before),
                Status::Waiting => self.goes_on(at_ms, ask, before),
                Status::Failed if self.reopens(ask, before.reason) => self.tally.count("reopened"),
                Status::Failed | Status::Completed => {
                    let what = format!("{key}: an ended delivery is claimed: {before:?}");
                    self.violated(9, what, Some(key));
                }
            }
            let again = after.generation == before.generation;
            let attempts = if again { before.attempts + 1 } else { 1 };
            if after.attempts != attempts || after.generation < before.generation {
                let what = format!("{key}: attempts are miscounted: {before:?} -> {after:?}");
                self.violated(4, what, Some(key));
            }
        }
        let claimed = Claimed {
            key: key.clone(),
            life: issued.life,
            number: self.trace.count(),
            at_ms,
            generation: after.generation,
            from: before.map(|row| row.status),
            lease_ends_ms: after.lease_until_ms - issued.skew_ms - START_MS,
            called_ms: at_ms,
            sent: false,
            answer: None,
        };
        self.claims.insert(ask.token, claimed);
    }

    fn reopens(&self, ask: &ClaimAsk, reason: Option<Reason>) -> bool {
        let policy = self.plan.policies.get(&ask.key.source);
        let used_up = matches!(reason, Some(Reason::Exhausted | Reason::Expired));
        ask.fence.is_none()
            && match policy.map_or(Reopen::Never, |policy| policy.reopen) {
                Reopen::Exhausted => used_up,
                Reopen::AnyFailed => true,
                Reopen::Never => false,
            }
    }

    /// Two live claims: the first one's lease is not over, whatever anybody's clock says.
    fn takes_over(&mut self, at_ms: i64, key: &DeliveryKey, before: &Row) {
        self.tally.count("takeovers");
        let owner = self.claims.get(&before.claim_token);
        let ends_ms = owner.map_or(i64::MIN, |owner| owner.lease_ends_ms);
        if at_ms <= ends_ms && !self.plan.jumps() {
            let what = format!(
                "{key}: claimed {} ms before the lease of {} is over",
                ends_ms - at_ms,
                short(before.claim_token)
            );
            self.violated(2, what, Some(key));
        }
    }

    fn goes_on(&mut self, at_ms: i64, ask: &ClaimAsk, before: &Row) {
        let key = &ask.key;
        if ask.fence != Some(before.claim_token) {
            let what = format!(
                "{key}: waits for {}, and is claimed with fence {:?}",
                short(before.claim_token),
                ask.fence.map(short)
            );
            self.violated(2, what, Some(key));
        }
        let margin_ms = millis(self.plan.config.skew_margin);
        let early_ms = before.not_before_ms.unwrap_or(0) - (START_MS + at_ms);
        if early_ms > margin_ms && !self.plan.jumps() {
            let what = format!("{key}: claimed {early_ms} ms before not_before");
            self.violated(4, what, Some(key));
        }
    }

    fn renewed(&mut self, issued: &Issued, before: Option<&Row>, after: &Row) {
        let key = issued.call.key();
        self.tally.count("renewals");
        let expected = before.map(|before| Row {
            lease_until_ms: after.lease_until_ms,
            ..before.clone()
        });
        let own = before.is_some_and(|before| {
            before.claim_token == issued.call.token()
                && before.status == Status::Processing
                && before.lease_until_ms < after.lease_until_ms
        });
        if !own || expected.as_ref() != Some(after) {
            let what = format!("{key}: a renewal made {before:?} into {after:?}");
            self.violated(2, what, Some(key));
        }
        if let Some(claimed) = self.claims.get_mut(&after.claim_token) {
            let ends_ms = after.lease_until_ms - issued.skew_ms - START_MS;
            claimed.lease_ends_ms = claimed.lease_ends_ms.max(ends_ms);
        }
    }

    fn moved(&mut self, at_ms: i64, issued: &Issued, to: To, before: Option<&Row>, after: &Row) {
        let (key, token) = (issued.call.key(), issued.call.token());
        let own = before.is_some_and(|before| {
            before.claim_token == token && before.status == Status::Processing
        });
        if !own || after.claim_token != token || after.status != to.status() {
            let what = format!("{key}: {} made {before:?} into {after:?}", short(token));
            self.violated(2, what, Some(key));
        }
        match to {
            To::Waiting { not_before_ms } => self.scheduled(key, token, not_before_ms),
            To::Completed { .. } => {
                self.tally.count("completed");
                self.ended_at_ms.insert(key.clone(), at_ms);
                if self.outcome(token) != Some(OutcomeKind::Delivered) {
                    let what = format!("{key}: completed, but nothing was delivered");
                    self.violated(1, what, Some(key));
                }
            }
            To::Failed { reason, .. } => {
                self.ended_at_ms.insert(key.clone(), at_ms);
                self.failed(key, token, reason, after);
            }
        }
    }

    /// Steps 3 and 4: the hop stands in the log before the row says so.
    fn scheduled(&mut self, key: &DeliveryKey, token: Uuid, not_before_ms: i64) {
        self.tally.count("retries");
        let carriers = self.carriers.get(key).into_iter().flatten();
        let mut hops = carriers.filter(|carrier| matches!(carrier.place.0, Topic::Delay(_)));
        if !hops.any(|hop| hop.fence == Some(token)) {
            let what = format!(
                "{key}: waits for a record of {} that is not in the log",
                short(token)
            );
            self.violated(1, what, Some(key));
        }
        let answer = self.claims.get(&token).and_then(|it| it.answer.as_ref());
        let Some(answer) = answer else {
            let what = format!("{key}: a retry without an attempt");
            self.violated(4, what, Some(key));
            return;
        };
        let wished = answer.outcome.retry_after.unwrap_or_default();
        let base = self.plan.destinations[&key.destination].retry.base;
        let wait = base.max(wished.min(self.plan.config.retry_after_max));
        if not_before_ms < answer.now_ms + millis(wait) {
            let what = format!("{key}: to be retried before {wait:?} have passed");
            self.violated(4, what, Some(key));
        }
    }

    fn failed(&mut self, key: &DeliveryKey, token: Uuid, reason: Reason, after: &Row) {
        self.tally.count("dead letters");
        let letters = self.letters.get(key);
        let letter = letters.and_then(|letters| letters.get(&after.generation));
        if letter != Some(&reason) {
            let what = format!("{key}: failed as {reason:?}, and the log has {letter:?}");
            self.violated(1, what, Some(key));
        }
        let outcome = self.outcome(token);
        let attempts_max = self.plan.destinations[&key.destination].retry.attempts_max;
        let right = match reason {
            Reason::Rejected => outcome == Some(OutcomeKind::Rejected),
            Reason::Gone => outcome == Some(OutcomeKind::Gone),
            Reason::Exhausted => after.attempts >= attempts_max,
            Reason::Expired => outcome != Some(OutcomeKind::Delivered),
            Reason::Blocked
            | Reason::DestinationPaused
            | Reason::Undecodable
            | Reason::UnknownDestination
            | Reason::Other => false,
        };
        if !right {
            let what = format!("{key}: given up as {reason:?} after {outcome:?}: {after:?}");
            self.violated(1, what, Some(key));
        }
    }

    /// What the attempt of a claim came to.
    pub(super) fn outcome(&self, token: Uuid) -> Option<OutcomeKind> {
        let answer = self.claims.get(&token)?.answer.as_ref()?;
        Some(answer.outcome.kind)
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).expect("short")
}
