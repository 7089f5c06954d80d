//! Claims on rows in each state.

use super::{
    Harness, LEASE_MS, MARGIN_MS, RETENTION, START_MS, ask, ask_after, fresh_key, is_absent, row,
    win,
};
use crate::{Claim, ClaimAsk, Row, Status, Store, Transition};
use schemas::DeliveryKey;
use uuid::Uuid;

/// Nobody has seen the delivery: the ask wins.
pub async fn an_absent_row_is_claimed(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let ask = ask(&fresh_key());
    let held = win(&store, &ask, START_MS).await;
    let expected = Row {
        status: Status::Processing,
        claim_token: ask.token,
        lease_until_ms: START_MS + LEASE_MS,
        attempts: 1,
        generation: 0,
        not_before_ms: None,
        reason: None,
        created_at_ms: START_MS,
        completed_at_ms: None,
        failed_at_ms: None,
    };
    assert_eq!(held.row, expected);
    assert_eq!((held.key, held.interrupted), (ask.key.clone(), None));
    assert_eq!(row(&store, &ask.key, START_MS).await, expected);
}

/// A row that is gone does not make an old record start at attempt 1 again.
pub async fn a_first_claim_takes_attempt_and_generation_of_the_record(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let fence = Some(Uuid::new_v4());
    let held = win(
        &store,
        &ClaimAsk {
            attempt: 4,
            generation: 2,
            fence,
            ..ask(&key)
        },
        START_MS,
    )
    .await;
    assert_eq!((held.row.attempts, held.row.generation), (4, 2));
    let held = win(
        &store,
        &ClaimAsk {
            attempt: 0,
            ..ask(&fresh_key())
        },
        START_MS,
    )
    .await;
    assert_eq!(held.row.attempts, 1);
}

/// An ask whose answer was lost finds its own claim, at any time, unchanged.
pub async fn the_same_token_again_is_our_own_claim(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let ask = ask(&fresh_key());
    let first = win(&store, &ask, START_MS).await;
    for later_ms in [0, 1_000, LEASE_MS + MARGIN_MS + 1] {
        assert_eq!(win(&store, &ask, START_MS + later_ms).await.row, first.row);
    }
}

/// A copy of an ask that comes after its claim has ended wins nothing, whatever the clocks say.
pub async fn a_late_copy_of_a_claim_starts_nothing(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let copy = ClaimAsk {
        received_at_ms: START_MS + 60_000,
        ..ask(&key)
    };
    let held = win(&store, &copy, START_MS).await;
    let reason = schemas::Reason::Exhausted;
    assert_eq!(
        store.fail(&held, reason, START_MS + 1).await,
        Ok(Transition::Applied)
    );
    let answer = store.claim(&copy, START_MS + 2).await;
    assert_eq!(
        answer,
        Ok(Claim::Ended {
            status: Status::Failed,
            reason: Some(reason)
        })
    );

    let key = fresh_key();
    let copy = ask(&key);
    let held = win(&store, &copy, START_MS).await;
    assert_eq!(
        store.schedule(&held, START_MS + 5_000, START_MS).await,
        Ok(Transition::Applied)
    );
    assert_eq!(
        store.claim(&copy, START_MS + 6_000).await,
        Ok(Claim::Superseded)
    );
}

/// Somebody works on it.
pub async fn a_live_lease_is_busy(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let held = win(&store, &ask(&key), START_MS).await;
    let busy = Claim::Busy {
        until_ms: START_MS + LEASE_MS + MARGIN_MS,
        in_transition: false,
    };
    assert_eq!(
        store.claim(&ask(&key), START_MS + 1).await,
        Ok(busy.clone())
    );
    let other_fence = ClaimAsk {
        fence: Some(Uuid::new_v4()),
        ..ask(&key)
    };
    assert_eq!(
        store.claim(&other_fence, START_MS + 1).await,
        Ok(busy.clone())
    );
    let replay = ClaimAsk {
        generation: 1,
        ..ask(&key)
    };
    assert_eq!(store.claim(&replay, START_MS + 1).await, Ok(busy));
    assert_eq!(row(&store, &key, START_MS).await, held.row);
}

/// The record that the running attempt scheduled was read before the transition was written.
pub async fn a_busy_row_with_the_records_fence_is_in_transition(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    let answer = store.claim(&ask_after(&held), START_MS + 1).await;
    let until_ms = START_MS + LEASE_MS + MARGIN_MS;
    assert_eq!(
        answer,
        Ok(Claim::Busy {
            until_ms,
            in_transition: true
        })
    );
}

/// The next hop claims with the token of the attempt that scheduled it.
pub async fn a_waiting_row_is_claimed_with_its_fence(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let first = win(&store, &ask(&fresh_key()), START_MS).await;
    let due_ms = START_MS + 5_000;
    assert_eq!(
        store.schedule(&first, due_ms, START_MS).await,
        Ok(Transition::Applied)
    );
    let hop = ask_after(&first);
    let second = win(&store, &hop, due_ms).await;
    let expected = Row {
        claim_token: hop.token,
        lease_until_ms: due_ms + LEASE_MS,
        attempts: 2,
        not_before_ms: None,
        ..first.row
    };
    assert_eq!((second.row, second.interrupted), (expected.clone(), None));
    assert_eq!(row(&store, &hop.key, due_ms).await, expected);
}

/// A later record of this delivery is in the log: all others drop, whatever their generation or age.
pub async fn a_waiting_row_supersedes_other_records(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = win(&store, &ask(&fresh_key()), START_MS).await;
    let due_ms = START_MS + 5_000;
    assert_eq!(
        store.schedule(&held, due_ms, START_MS).await,
        Ok(Transition::Applied)
    );
    let before = row(&store, &held.key, START_MS).await;
    let first = ask(&held.key);
    for other in [
        first.clone(),
        ClaimAsk {
            fence: Some(Uuid::new_v4()),
            ..first.clone()
        },
        ClaimAsk {
            fence: Some(Uuid::new_v4()),
            attempt: 9,
            ..first.clone()
        },
        ClaimAsk {
            generation: 1,
            ..first
        },
    ] {
        for now_ms in [START_MS + 1, due_ms, due_ms + LEASE_MS + MARGIN_MS + 1] {
            assert_eq!(
                store.claim(&other, now_ms).await,
                Ok(Claim::Superseded),
                "{other:?}"
            );
        }
    }
    assert_eq!(row(&store, &held.key, START_MS).await, before);
}

/// Ids come from strangers: quotes, slashes, any alphabet, up to 256 bytes; and no part runs into the next.
pub async fn awkward_keys_are_kept_apart(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let run = Uuid::new_v4().to_string();
    let long = |fill: &str| {
        let mut id = run.clone();
        while id.len() + fill.len() <= 256 {
            id.push_str(fill);
        }
        id
    };
    let names = [
        ("a", format!("{run}/b"), "c"),
        ("a", run.clone(), "b/c"),
        ("A", run.clone(), "b/c"),
        ("a", format!("{run} "), "b/c"),
        ("a", format!("{run}'; DROP TABLE claims; --"), "c"),
        ("a", format!("{run}\"`\\%_?$1:x{{}}"), "c"),
        ("a", format!("{run}-Zürich-\u{65e5}\u{672c}-\u{1f980}"), "c"),
        // The same letter composed and decomposed: bytes decide.
        ("a", format!("{run}\u{e9}"), "c"),
        ("a", format!("{run}e\u{301}"), "c"),
        ("a", long("x"), "c"),
        ("a", long("\u{1f980}"), "c"),
    ];
    let mut claimed = Vec::new();
    for (source, delivery_id, destination) in names {
        let key = DeliveryKey {
            source: source.to_owned(),
            delivery_id,
            destination: destination.to_owned(),
        };
        claimed.push(win(&store, &ask(&key), START_MS).await);
    }
    for held in claimed {
        assert_eq!(
            row(&store, &held.key, START_MS).await,
            held.row,
            "{}",
            held.key
        );
        assert_eq!(
            store.complete(&held, START_MS + 1).await,
            Ok(Transition::Applied)
        );
    }
}

/// Reading makes nothing.
pub async fn a_row_that_was_never_written_is_absent(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    assert!(is_absent(&store, &key, START_MS).await);
    assert!(is_absent(&store, &key, START_MS).await);
    win(&store, &ask(&key), START_MS).await;
}

/// Readiness of a store that works.
pub async fn the_store_is_ready(harness: &impl Harness) {
    assert_eq!(harness.open(RETENTION).await.ready().await, Ok(()));
}
