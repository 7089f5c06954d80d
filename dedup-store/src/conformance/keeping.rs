//! How long rows are kept.

use super::{
    Harness, LEASE_MS, MARGIN_MS, RETENTION, START_MS, ask, ask_after, completed, ended, failed,
    fresh_key, is_absent, row, win,
};
use crate::{Claim, ClaimAsk, Renewal, Retention, Status, Store, Transition};
use schemas::Reason;

/// Short enough to wait for, with seconds between the steps for servers that count in seconds.
const SHORT: Retention = Retention {
    open_ms: 2_000,
    failed_ms: 10_000,
    completed_ms: 18_000,
};
/// Its end is close, so that what is seen is the retention.
const SHORT_LEASE_MS: i64 = 10;

/// An open row of [`START_MS`] that [`RETENTION`] keeps has expired by now, but not for long.
const EXPIRED_MS: i64 = START_MS + LEASE_MS + RETENTION.open_ms + 3_600_000;

/// What was answered is there after a restart.
pub async fn rows_survive_a_reopening_of_the_store(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let open = win(&store, &ask(&fresh_key()), START_MS).await;
    let waiting = win(&store, &ask(&fresh_key()), START_MS).await;
    let due_ms = START_MS + 5_000;
    assert_eq!(
        store.schedule(&waiting, due_ms, START_MS).await,
        Ok(Transition::Applied)
    );
    let done = completed(&store, &fresh_key(), START_MS).await;
    let gone = failed(&store, &fresh_key(), Reason::Gone, START_MS).await;
    let mut before = Vec::new();
    for held in [&open, &waiting, &done, &gone] {
        before.push(row(&store, &held.key, START_MS).await);
    }

    let Some(store) = harness.reopen(store, RETENTION).await else {
        return;
    };
    for (held, before) in [&open, &waiting, &done, &gone].into_iter().zip(before) {
        assert_eq!(row(&store, &held.key, START_MS).await, before);
    }
    assert_eq!(
        store.complete(&open, START_MS + 1).await,
        Ok(Transition::Applied)
    );
    win(&store, &ask_after(&waiting), due_ms + LEASE_MS).await;
    assert_eq!(
        store.claim(&ask(&done.key), START_MS).await,
        ended(Status::Completed, None)
    );
}

/// Open rows go first, then failed ones, then completed ones.
pub async fn rows_are_kept_by_their_state(harness: &impl Harness) {
    let store = harness.open(SHORT).await;
    let short = || ClaimAsk {
        lease_ms: SHORT_LEASE_MS,
        ..ask(&fresh_key())
    };
    let open = win(&store, &short(), START_MS).await;
    let waiting = win(&store, &short(), START_MS).await;
    let due_ms = START_MS + 100;
    assert_eq!(
        store.schedule(&waiting, due_ms, START_MS).await,
        Ok(Transition::Applied)
    );
    let gone = win(&store, &short(), START_MS).await;
    assert_eq!(
        store.fail(&gone, Reason::Gone, START_MS).await,
        Ok(Transition::Applied)
    );
    let done = win(&store, &short(), START_MS).await;
    assert_eq!(
        store.complete(&done, START_MS).await,
        Ok(Transition::Applied)
    );
    // A reopened delivery overwrites a row that may have been kept as long as a completed one.
    let replayed = win(
        &store,
        &ClaimAsk {
            generation: 1,
            ..short()
        },
        START_MS,
    )
    .await;

    let all = [&open, &waiting, &gone, &done, &replayed];
    let mut from_ms = START_MS;
    for (until_ms, kept) in [
        (START_MS, [true, true, true, true, true]),
        (START_MS + 5_000, [false, false, true, true, true]),
        (START_MS + 13_000, [false, false, false, true, true]),
        (START_MS + 22_000, [false; 5]),
    ] {
        harness.pass(from_ms, until_ms).await;
        for (index, (held, kept)) in all.into_iter().zip(kept).enumerate() {
            let absent = is_absent(&store, &held.key, until_ms).await;
            assert_eq!(absent, !kept, "row {index} {} ms on", until_ms - START_MS);
        }
        from_ms = until_ms;
    }
}

/// Claims start afresh on an expired row, and reads do not show it. From then on its last owner is a stranger.
pub async fn an_expired_row_is_absent_for_claims_and_reads(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let open = win(&store, &ask(&fresh_key()), START_MS).await;
    assert!(is_absent(&store, &open.key, EXPIRED_MS).await);
    let again = win(
        &store,
        &ClaimAsk {
            attempt: 3,
            ..ask(&open.key)
        },
        EXPIRED_MS,
    )
    .await;
    assert_eq!(
        (again.row.attempts, again.row.created_at_ms),
        (3, EXPIRED_MS)
    );
    assert_eq!(again.interrupted, None);

    let until_ms = EXPIRED_MS + 2 * LEASE_MS;
    assert_eq!(
        store.renew(&open, until_ms, EXPIRED_MS).await,
        Ok(Renewal::Lost)
    );
    let lost = Ok(Transition::LeaseLost);
    assert_eq!(store.complete(&open, EXPIRED_MS).await, lost);
    assert_eq!(store.fail(&open, Reason::Gone, EXPIRED_MS).await, lost);
    assert_eq!(store.schedule(&open, until_ms, EXPIRED_MS).await, lost);
    assert_eq!(row(&store, &open.key, EXPIRED_MS).await, again.row);
}

/// The attempt was made, and its outcome must not be forgotten because a clock jumped or the store was away: else the
/// delivery would count as never seen and be sent again.
pub async fn an_owner_ends_its_expired_row(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let applied = Ok(Transition::Applied);
    let done = win(&store, &ask(&fresh_key()), START_MS).await;
    let gone = win(&store, &ask(&fresh_key()), START_MS).await;
    // Twice: the first answer may be lost.
    for _ in 0..2 {
        assert_eq!(store.complete(&done, EXPIRED_MS).await, applied);
        assert_eq!(store.fail(&gone, Reason::Gone, EXPIRED_MS).await, applied);
    }
    assert_eq!(
        store.claim(&ask(&done.key), EXPIRED_MS).await,
        ended(Status::Completed, None)
    );
    assert_eq!(
        store.claim(&ask(&gone.key), EXPIRED_MS).await,
        ended(Status::Failed, Some(Reason::Gone))
    );
}

/// The same for an attempt that is to be repeated: only its own record wakes the row.
pub async fn an_owner_schedules_its_expired_row(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    let due_ms = EXPIRED_MS + 5_000;
    for _ in 0..2 {
        assert_eq!(
            store.schedule(&held, due_ms, EXPIRED_MS).await,
            Ok(Transition::Applied)
        );
    }
    assert_eq!(
        store.claim(&ask(&held.key), EXPIRED_MS).await,
        Ok(Claim::Superseded)
    );
    let next = win(&store, &ask_after(&held), due_ms).await;
    assert_eq!(
        (next.row.attempts, next.row.created_at_ms),
        (2, held.row.created_at_ms)
    );
}

/// A renewal brings an expired row back, whoever else has not claimed it.
pub async fn an_owner_renews_its_expired_row(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    let lease_until_ms = EXPIRED_MS + LEASE_MS;
    assert_eq!(
        store.renew(&held, lease_until_ms, EXPIRED_MS).await,
        Ok(Renewal::Renewed { lease_until_ms })
    );
    assert_eq!(
        store.claim(&ask(&held.key), EXPIRED_MS).await,
        Ok(Claim::Busy {
            until_ms: lease_until_ms + MARGIN_MS,
            in_transition: false
        })
    );
    assert_eq!(
        store.complete(&held, EXPIRED_MS).await,
        Ok(Transition::Applied)
    );
}

/// A renewal keeps the row as well as the lease.
pub async fn a_renewed_row_is_kept_longer(harness: &impl Harness) {
    let store = harness.open(SHORT).await;
    let short = ClaimAsk {
        lease_ms: SHORT_LEASE_MS,
        ..ask(&fresh_key())
    };
    let held = win(&store, &short, START_MS).await;
    let lease_until_ms = START_MS + LEASE_MS;
    let renewed = Ok(Renewal::Renewed { lease_until_ms });
    assert_eq!(store.renew(&held, lease_until_ms, START_MS).await, renewed);
    let now_ms = START_MS + 5_000;
    harness.pass(START_MS, now_ms).await;
    assert_eq!(
        row(&store, &held.key, now_ms).await.lease_until_ms,
        lease_until_ms
    );
    let answer = store.claim(&ask(&held.key), now_ms).await;
    let until_ms = lease_until_ms + MARGIN_MS;
    assert_eq!(
        answer,
        Ok(Claim::Busy {
            until_ms,
            in_transition: false
        })
    );
}
