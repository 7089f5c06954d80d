//! Transitions out of processing.

use super::{
    Harness, LEASE_MS, MARGIN_MS, RETENTION, START_MS, ask, ask_after, fresh_key, is_absent, row,
    win,
};
use crate::{Held, Renewal, Row, Status, Store, StoreError, Transition};
use schemas::Reason;

const APPLIED: Result<Transition, StoreError> = Ok(Transition::Applied);
const LOST: Result<Transition, StoreError> = Ok(Transition::LeaseLost);
const DUE_MS: i64 = START_MS + 5_000;

/// What each step does not write stays as it was.
pub async fn every_column_survives_every_step(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let first = win(&store, &ask(&key), START_MS).await;
    let lease_until_ms = START_MS + 2 * LEASE_MS;
    let renewed = Ok(Renewal::Renewed { lease_until_ms });
    assert_eq!(
        store.renew(&first, lease_until_ms, START_MS + 1).await,
        renewed
    );
    assert_eq!(store.schedule(&first, DUE_MS, START_MS + 2).await, APPLIED);
    let waiting = Row {
        status: Status::Waiting,
        lease_until_ms,
        not_before_ms: Some(DUE_MS),
        ..first.row.clone()
    };
    assert_eq!(row(&store, &key, START_MS + 2).await, waiting);

    // Past the end of the renewed lease, as it is without clocks that differ.
    let now_ms = lease_until_ms + 1;
    let second = win(&store, &ask_after(&first), now_ms).await;
    assert_eq!(
        (second.row.created_at_ms, second.row.attempts),
        (START_MS, 2)
    );
    assert_eq!(store.complete(&second, now_ms + 7).await, APPLIED);
    let completed = Row {
        status: Status::Completed,
        completed_at_ms: Some(now_ms + 7),
        ..second.row
    };
    assert_eq!(row(&store, &key, now_ms + 7).await, completed);

    let key = fresh_key();
    let held = win(&store, &ask(&key), START_MS).await;
    assert_eq!(
        store.fail(&held, Reason::Rejected, START_MS + 9).await,
        APPLIED
    );
    let failed = Row {
        status: Status::Failed,
        reason: Some(Reason::Rejected),
        failed_at_ms: Some(START_MS + 9),
        ..held.row
    };
    assert_eq!(row(&store, &key, START_MS + 9).await, failed);
}

/// A call whose answer was lost is made again: the first one counts, also for its times.
pub async fn transitions_are_idempotent_for_their_token(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    assert_eq!(store.complete(&held, START_MS + 1).await, APPLIED);
    assert_eq!(store.complete(&held, START_MS + 2).await, APPLIED);
    let done = row(&store, &held.key, START_MS + 2).await;
    assert_eq!(done.completed_at_ms, Some(START_MS + 1));

    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    assert_eq!(store.fail(&held, Reason::Gone, START_MS + 1).await, APPLIED);
    assert_eq!(
        store.fail(&held, Reason::Expired, START_MS + 2).await,
        APPLIED
    );
    let gone = row(&store, &held.key, START_MS + 2).await;
    assert_eq!(
        (gone.reason, gone.failed_at_ms),
        (Some(Reason::Gone), Some(START_MS + 1))
    );

    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    assert_eq!(store.schedule(&held, DUE_MS, START_MS + 1).await, APPLIED);
    assert_eq!(
        store.schedule(&held, DUE_MS + 9, START_MS + 2).await,
        APPLIED
    );
    let waiting = row(&store, &held.key, START_MS + 2).await;
    assert_eq!(waiting.not_before_ms, Some(DUE_MS));
}

/// Who lost the claim writes nothing, whatever state the row is in by then.
pub async fn a_stale_token_changes_nothing(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let over_ms = START_MS + LEASE_MS + MARGIN_MS + 1;
    let all_lost = async |old: &Held| {
        let before = row(&store, &old.key, over_ms).await;
        assert_eq!(store.complete(old, over_ms + 1).await, LOST);
        assert_eq!(store.fail(old, Reason::Exhausted, over_ms + 1).await, LOST);
        assert_eq!(
            store.schedule(old, over_ms + 5_000, over_ms + 1).await,
            LOST
        );
        assert_eq!(
            store.renew(old, over_ms + LEASE_MS, over_ms + 1).await,
            Ok(Renewal::Lost)
        );
        assert_eq!(row(&store, &old.key, over_ms).await, before);
    };
    for state in 0..4 {
        let key = fresh_key();
        let old = win(&store, &ask(&key), START_MS).await;
        let new = win(&store, &ask(&key), over_ms).await;
        match state {
            0 => {}
            1 => assert_eq!(
                store.schedule(&new, over_ms + 5_000, over_ms).await,
                APPLIED
            ),
            2 => assert_eq!(store.complete(&new, over_ms).await, APPLIED),
            _ => assert_eq!(store.fail(&new, Reason::Gone, over_ms).await, APPLIED),
        }
        all_lost(&old).await;
    }
}

/// One end per claim: what came first stays.
pub async fn a_second_end_changes_nothing(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let done = super::completed(&store, &fresh_key(), START_MS).await;
    let before = row(&store, &done.key, START_MS).await;
    assert_eq!(store.fail(&done, Reason::Gone, START_MS + 1).await, LOST);
    assert_eq!(store.schedule(&done, DUE_MS, START_MS + 1).await, LOST);
    assert_eq!(row(&store, &done.key, START_MS).await, before);

    let gone = super::failed(&store, &fresh_key(), Reason::Gone, START_MS).await;
    let before = row(&store, &gone.key, START_MS).await;
    assert_eq!(store.complete(&gone, START_MS + 1).await, LOST);
    assert_eq!(store.schedule(&gone, DUE_MS, START_MS + 1).await, LOST);
    assert_eq!(row(&store, &gone.key, START_MS).await, before);

    let waiting = win(&store, &ask(&fresh_key()), START_MS).await;
    assert_eq!(store.schedule(&waiting, DUE_MS, START_MS).await, APPLIED);
    let before = row(&store, &waiting.key, START_MS).await;
    assert_eq!(store.complete(&waiting, START_MS + 1).await, LOST);
    assert_eq!(store.fail(&waiting, Reason::Gone, START_MS + 1).await, LOST);
    assert_eq!(row(&store, &waiting.key, START_MS).await, before);
}

/// A transition never makes a row.
pub async fn a_transition_on_an_absent_row_is_lost(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    let absent = Held {
        key: fresh_key(),
        ..held
    };
    assert_eq!(store.complete(&absent, START_MS).await, LOST);
    assert_eq!(store.fail(&absent, Reason::Gone, START_MS).await, LOST);
    assert_eq!(store.schedule(&absent, DUE_MS, START_MS).await, LOST);
    assert!(is_absent(&store, &absent.key, START_MS).await);
}

/// Attempts grow by one per claim, over hops and takeovers alike.
pub async fn a_hop_chain_counts_its_attempts(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let mut now_ms = START_MS;
    let mut held = win(&store, &ask(&key), now_ms).await;
    for round in 1..=5_u32 {
        assert_eq!(held.row.attempts, 2 * round - 1);
        now_ms += LEASE_MS + MARGIN_MS + 1;
        held = win(&store, &ask(&key), now_ms).await;
        assert_eq!(held.row.attempts, 2 * round);
        assert_eq!(store.schedule(&held, now_ms + 5_000, now_ms).await, APPLIED);
        now_ms += LEASE_MS;
        held = win(&store, &ask_after(&held), now_ms).await;
    }
    assert_eq!((held.row.created_at_ms, held.row.generation), (START_MS, 0));
}
