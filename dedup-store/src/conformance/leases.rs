//! Leases: their edges, renewals, takeovers.

use super::{Harness, LEASE_MS, MARGIN_MS, RETENTION, START_MS, ask, fresh_key, row, win};
use crate::{Claim, ClaimAsk, Renewal, Row, Store, Transition};

/// At the end of the lease, and within the margin, it still lives; one millisecond later it is over.
pub async fn the_lease_is_over_only_past_the_margin(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let first = win(&store, &ask(&key), START_MS).await;
    let end_ms = first.row.lease_until_ms;
    let until_ms = end_ms + MARGIN_MS;
    for now_ms in [end_ms - 1, end_ms, end_ms + 1, until_ms - 1, until_ms] {
        let answer = store.claim(&ask(&key), now_ms).await;
        assert_eq!(
            answer,
            Ok(Claim::Busy {
                until_ms,
                in_transition: false
            }),
            "{now_ms}"
        );
    }
    win(&store, &ask(&key), until_ms + 1).await;

    let key = fresh_key();
    let no_margin = || ClaimAsk {
        skew_margin_ms: 0,
        ..ask(&key)
    };
    let first = win(&store, &no_margin(), START_MS).await;
    let until_ms = first.row.lease_until_ms;
    let answer = store.claim(&no_margin(), until_ms).await;
    assert_eq!(
        answer,
        Ok(Claim::Busy {
            until_ms,
            in_transition: false
        })
    );
    win(&store, &no_margin(), until_ms + 1).await;
}

/// The lost attempt counts, and its token is told so that its outcome can be recorded as interrupted.
pub async fn a_takeover_adds_an_attempt_and_names_the_interrupted(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let mut held = win(&store, &ask(&key), START_MS).await;
    let mut now_ms = START_MS;
    for attempts in 2..=4 {
        now_ms += LEASE_MS + MARGIN_MS + 1;
        // The record still says attempt 1: the row knows better.
        let ask = ask(&key);
        let taken = win(&store, &ask, now_ms).await;
        assert_eq!(taken.interrupted, Some(held.row.claim_token));
        let expected = Row {
            claim_token: ask.token,
            lease_until_ms: now_ms + LEASE_MS,
            attempts,
            ..held.row.clone()
        };
        assert_eq!(taken.row, expected);
        assert_eq!(row(&store, &key, now_ms).await, expected);
        held = taken;
    }
}

/// A renewed lease keeps others out until its new end.
pub async fn a_renewed_lease_ends_later(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let held = win(&store, &ask(&key), START_MS).await;
    let lease_until_ms = START_MS + 2 * LEASE_MS;
    let renewed = Ok(Renewal::Renewed { lease_until_ms });
    assert_eq!(
        store.renew(&held, lease_until_ms, START_MS + 5_000).await,
        renewed
    );
    assert_eq!(
        row(&store, &key, START_MS).await,
        Row {
            lease_until_ms,
            ..held.row.clone()
        }
    );
    let until_ms = lease_until_ms + MARGIN_MS;
    let busy = Ok(Claim::Busy {
        until_ms,
        in_transition: false,
    });
    assert_eq!(store.claim(&ask(&key), until_ms).await, busy);
    let taken = win(&store, &ask(&key), until_ms + 1).await;
    assert_eq!(taken.interrupted, Some(held.row.claim_token));
}

/// A late copy of an earlier renewal shortens nothing.
pub async fn a_lease_is_never_moved_back(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    let far_ms = START_MS + 3 * LEASE_MS;
    let renewed = Ok(Renewal::Renewed {
        lease_until_ms: far_ms,
    });
    assert_eq!(store.renew(&held, far_ms, START_MS + 1).await, renewed);
    for asked_ms in [far_ms, far_ms - 1, START_MS, 0] {
        assert_eq!(store.renew(&held, asked_ms, START_MS + 2).await, renewed);
        assert_eq!(
            row(&store, &held.key, START_MS).await.lease_until_ms,
            far_ms
        );
    }
}

/// The claim is somebody else's.
pub async fn a_renewal_is_lost_after_a_takeover(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let old = win(&store, &ask(&key), START_MS).await;
    let now_ms = START_MS + LEASE_MS + MARGIN_MS + 1;
    let taken = win(&store, &ask(&key), now_ms).await;
    assert_eq!(
        store.renew(&old, now_ms + 9 * LEASE_MS, now_ms).await,
        Ok(Renewal::Lost)
    );
    assert_eq!(row(&store, &key, now_ms).await, taken.row);
}

/// Nothing is left to renew.
pub async fn a_renewal_is_lost_after_the_end(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let far_ms = START_MS + 9 * LEASE_MS;
    let done = super::completed(&store, &fresh_key(), START_MS).await;
    let gone = super::failed(&store, &fresh_key(), schemas::Reason::Gone, START_MS).await;
    let waiting = win(&store, &ask(&fresh_key()), START_MS).await;
    assert_eq!(
        store.schedule(&waiting, START_MS + 5_000, START_MS).await,
        Ok(Transition::Applied)
    );
    let absent = crate::Held {
        key: fresh_key(),
        ..done.clone()
    };
    for held in [done, gone, waiting, absent] {
        let before = store.get(&held.key, START_MS).await;
        assert_eq!(
            store.renew(&held, far_ms, START_MS + 1).await,
            Ok(Renewal::Lost)
        );
        assert_eq!(store.get(&held.key, START_MS).await, before);
    }
}

/// Late is not lost: as long as nobody took the claim over, its owner goes on.
pub async fn an_overdue_lease_can_be_renewed_until_it_is_taken(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let held = win(&store, &ask(&key), START_MS).await;
    let now_ms = START_MS + 2 * LEASE_MS;
    let lease_until_ms = now_ms + LEASE_MS;
    let renewed = Ok(Renewal::Renewed { lease_until_ms });
    assert_eq!(store.renew(&held, lease_until_ms, now_ms).await, renewed);
    let until_ms = lease_until_ms + MARGIN_MS;
    let answer = store.claim(&ask(&key), now_ms).await;
    assert_eq!(
        answer,
        Ok(Claim::Busy {
            until_ms,
            in_transition: false
        })
    );
}
