//! Rows that have ended, and what opens them again.

use super::{
    Harness, LEASE_MS, RETENTION, START_MS, ask, completed, ended, failed, fresh_key, row, win,
};
use crate::{ClaimAsk, Reopen, Row, Status, Store};
use schemas::Reason;
use uuid::Uuid;

/// Later than the end of every lease that a case has begun at the start.
const LATER_MS: i64 = START_MS + 10 * LEASE_MS;

/// Repeats of an ended delivery are duplicates, and the answer says of what.
pub async fn ended_rows_answer_why(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let done = completed(&store, &fresh_key(), START_MS).await;
    let before = row(&store, &done.key, START_MS).await;
    for now_ms in [START_MS, LATER_MS] {
        let answer = store.claim(&ask(&done.key), now_ms).await;
        assert_eq!(answer, ended(Status::Completed, None));
    }
    assert_eq!(row(&store, &done.key, START_MS).await, before);

    let gone = failed(&store, &fresh_key(), Reason::Gone, START_MS).await;
    for now_ms in [START_MS, LATER_MS] {
        let answer = store.claim(&ask(&gone.key), now_ms).await;
        assert_eq!(answer, ended(Status::Failed, Some(Reason::Gone)));
    }
}

/// Each reason comes back as it was written.
pub async fn every_reason_is_kept(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    for reason in Reason::ALL {
        let held = failed(&store, &fresh_key(), reason, START_MS).await;
        assert_eq!(row(&store, &held.key, START_MS).await.reason, Some(reason));
        let answer = store.claim(&ask(&held.key), START_MS).await;
        assert_eq!(answer, ended(Status::Failed, Some(reason)));
    }
}

/// Each policy against each reason.
pub async fn reopening_follows_the_policy(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    for reopen in [Reopen::Exhausted, Reopen::AnyFailed, Reopen::Never] {
        for reason in Reason::ALL {
            let opens = match reopen {
                Reopen::Exhausted => matches!(
                    reason,
                    Reason::Exhausted | Reason::Expired | Reason::DestinationPaused
                ),
                Reopen::AnyFailed => true,
                Reopen::Never => false,
            };
            let held = failed(&store, &fresh_key(), reason, START_MS).await;
            let ask = ClaimAsk {
                reopen,
                received_at_ms: LATER_MS - 1,
                ..ask(&held.key)
            };
            if opens {
                let again = win(&store, &ask, LATER_MS).await;
                assert_eq!(
                    (again.row.attempts, again.row.generation),
                    (1, 1),
                    "{reason:?}"
                );
            } else {
                let answer = store.claim(&ask, LATER_MS).await;
                assert_eq!(answer, ended(Status::Failed, Some(reason)), "{reopen:?}");
            }
        }
        let done = completed(&store, &fresh_key(), START_MS).await;
        let ask = ClaimAsk {
            reopen,
            received_at_ms: LATER_MS - 1,
            ..ask(&done.key)
        };
        assert_eq!(
            store.claim(&ask, LATER_MS).await,
            ended(Status::Completed, None)
        );
    }
}

/// A repeat that was received before the failure, or at it, is an old one that was read again.
pub async fn only_a_later_webhook_reopens(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = failed(&store, &fresh_key(), Reason::Exhausted, START_MS + 50).await;
    let received = |received_at_ms| ClaimAsk {
        received_at_ms,
        ..ask(&held.key)
    };
    for received_at_ms in [START_MS, START_MS + 49, START_MS + 50] {
        let answer = store.claim(&received(received_at_ms), LATER_MS).await;
        assert_eq!(
            answer,
            ended(Status::Failed, Some(Reason::Exhausted)),
            "{received_at_ms}"
        );
    }
    win(&store, &received(START_MS + 51), LATER_MS).await;
}

/// A record that some attempt scheduled belongs to the life that ended.
pub async fn a_scheduled_record_never_reopens(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = failed(&store, &fresh_key(), Reason::Exhausted, START_MS).await;
    for fence in [held.row.claim_token, Uuid::new_v4()] {
        let ask = ClaimAsk {
            fence: Some(fence),
            reopen: Reopen::AnyFailed,
            received_at_ms: LATER_MS - 1,
            ..ask(&held.key)
        };
        let answer = store.claim(&ask, LATER_MS).await;
        assert_eq!(answer, ended(Status::Failed, Some(Reason::Exhausted)));
    }
}

/// A replay opens completed and failed rows, once per generation.
pub async fn a_replay_opens_a_higher_generation(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    for was_delivered in [true, false] {
        let key = fresh_key();
        let first = if was_delivered {
            completed(&store, &key, START_MS).await
        } else {
            failed(&store, &key, Reason::Rejected, START_MS).await
        };
        let replay = || ClaimAsk {
            generation: 3,
            attempt: 1,
            reopen: Reopen::Never,
            ..ask(&key)
        };
        let held = win(&store, &replay(), LATER_MS).await;
        assert_eq!(
            (held.row.generation, held.row.attempts, held.interrupted),
            (3, 1, None)
        );
        assert_ne!(held.row.claim_token, first.row.claim_token);
        assert!(store.complete(&held, LATER_MS + 1).await.is_ok());
        for generation in [0, 2, 3] {
            let ask = ClaimAsk {
                generation,
                ..replay()
            };
            let answer = store.claim(&ask, LATER_MS + 2).await;
            assert_eq!(answer, ended(Status::Completed, None), "{generation}");
        }
        win(
            &store,
            &ClaimAsk {
                generation: 4,
                ..replay()
            },
            LATER_MS + LEASE_MS,
        )
        .await;
    }
}

/// Nothing of the life that ended is left in the row.
pub async fn a_reopened_row_starts_afresh(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let held = failed(&store, &fresh_key(), Reason::Exhausted, START_MS).await;
    let ask = ClaimAsk {
        attempt: 7,
        received_at_ms: LATER_MS - 1,
        ..ask(&held.key)
    };
    let again = win(&store, &ask, LATER_MS).await;
    let expected = Row {
        status: Status::Processing,
        claim_token: ask.token,
        lease_until_ms: LATER_MS + LEASE_MS,
        attempts: 1,
        generation: 1,
        not_before_ms: None,
        reason: None,
        created_at_ms: LATER_MS,
        completed_at_ms: None,
        failed_at_ms: None,
    };
    assert_eq!((again.row, again.interrupted), (expected.clone(), None));
    assert_eq!(row(&store, &held.key, LATER_MS).await, expected);
}
