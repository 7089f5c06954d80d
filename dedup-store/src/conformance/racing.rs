//! Many tasks at one row.

use super::{
    Harness, LEASE_MS, MARGIN_MS, RETENTION, START_MS, ask, ask_after, fresh_key, row, win, won,
};
use crate::{Claim, ClaimAsk, Held, Status, Store, StoreError, Transition};
use futures::future::join_all;
use std::future::Future;

const RACERS: usize = 50;

/// Fifty asks with fifty tokens: one claim, the others are told to look again.
pub async fn of_many_claims_one_wins(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let asks = (0..RACERS).map(|_| ask(&key));
    let winner = one_winner(&store, asks, START_MS).await;
    assert_eq!((winner.row.attempts, winner.interrupted), (1, None));
    assert_eq!(row(&store, &key, START_MS).await, winner.row);
}

/// Fifty takeovers of a lease that is over: one claim, one attempt more.
pub async fn of_many_takeovers_one_wins(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let key = fresh_key();
    let old = win(&store, &ask(&key), START_MS).await;
    let now_ms = START_MS + LEASE_MS + MARGIN_MS + 1;
    let winner = one_winner(&store, (0..RACERS).map(|_| ask(&key)), now_ms).await;
    assert_eq!(
        (winner.row.attempts, winner.interrupted),
        (2, Some(old.row.claim_token))
    );
    assert_eq!(row(&store, &key, now_ms).await, winner.row);
}

/// Fifty copies of the next hop's record, each with a token of its own.
pub async fn of_many_fenced_claims_one_wins(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let first = win(&store, &ask(&fresh_key()), START_MS).await;
    let due_ms = START_MS + 5_000;
    assert_eq!(
        store.schedule(&first, due_ms, START_MS).await,
        Ok(Transition::Applied)
    );
    let winner = one_winner(&store, (0..RACERS).map(|_| ask_after(&first)), due_ms).await;
    assert_eq!(winner.row.attempts, 2);
}

/// One ask issued many times at once: all of them see the one claim.
pub async fn copies_of_one_claim_all_win_once(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let ask = ask(&fresh_key());
    let answers = at_once(RACERS, |_| {
        let (store, ask) = (store.clone(), ask.clone());
        async move { store.claim(&ask, START_MS).await }
    });
    for answer in answers.await {
        let held = won(answer);
        assert_eq!((held.row.claim_token, held.row.attempts), (ask.token, 1));
    }
}

/// An owner that is late against those who take over: it completes, or they win, never both.
pub async fn complete_and_takeover_exclude_each_other(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    for _ in 0..10 {
        let key = fresh_key();
        let old = win(&store, &ask(&key), START_MS).await;
        let now_ms = START_MS + LEASE_MS + MARGIN_MS + 1;
        let complete = {
            let (store, old) = (store.clone(), old.clone());
            tokio::spawn(async move { store.complete(&old, now_ms).await })
        };
        let answers = at_once(8, |_| {
            let (store, ask) = (store.clone(), ask(&key));
            async move { store.claim(&ask, now_ms).await }
        });
        let answers = answers.await;
        let wins = claims(answers.iter().cloned());
        let row = row(&store, &key, now_ms).await;
        match complete.await {
            Ok(Ok(Transition::Applied)) => {
                assert_eq!(wins, []);
                assert_eq!(
                    (row.status, row.claim_token),
                    (Status::Completed, old.row.claim_token)
                );
            }
            Ok(Ok(Transition::LeaseLost)) => {
                assert_eq!(wins.len(), 1, "{answers:?}");
                assert_eq!(Some(row), wins.first().map(|held| held.row.clone()));
            }
            other => panic!("no answer: {other:?}"),
        }
    }
}

/// Whole lives side by side.
pub async fn different_keys_do_not_disturb_each_other(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let lives = at_once(2 * RACERS, |index| {
        let store = store.clone();
        async move {
            let key = fresh_key();
            let first = win(&store, &ask(&key), START_MS).await;
            let due_ms = START_MS + 5_000;
            assert_eq!(
                store.schedule(&first, due_ms, START_MS).await,
                Ok(Transition::Applied)
            );
            let second = win(&store, &ask_after(&first), due_ms).await;
            let done = if index.is_multiple_of(2) {
                store.complete(&second, due_ms + 1).await
            } else {
                store
                    .fail(&second, schemas::Reason::Exhausted, due_ms + 1)
                    .await
            };
            assert_eq!(done, Ok(Transition::Applied));
            (second, row(&store, &key, due_ms + 1).await)
        }
    });
    for (second, row) in lives.await {
        assert_eq!((row.attempts, row.claim_token), (2, second.row.claim_token));
        assert!(matches!(row.status, Status::Completed | Status::Failed));
    }
}

/// Issues all asks at once; exactly one wins, the others are busy.
async fn one_winner(store: &impl Store, asks: impl Iterator<Item = ClaimAsk>, now_ms: i64) -> Held {
    let mut asks: Vec<_> = asks.map(Some).collect();
    let answers = at_once(asks.len(), |index| {
        let (store, ask) = (store.clone(), asks.get_mut(index).and_then(Option::take));
        async move {
            let Some(ask) = ask else {
                panic!("no ask {index}")
            };
            store.claim(&ask, now_ms).await
        }
    });
    let answers = answers.await;
    let mut wins = claims(answers.iter().cloned());
    assert_eq!(wins.len(), 1, "{answers:?}");
    for answer in &answers {
        let busy = matches!(answer, Ok(Claim::Busy { .. } | Claim::Claimed(_)));
        assert!(busy, "{answer:?}");
    }
    wins.remove(0)
}

fn claims(answers: impl Iterator<Item = Result<Claim, StoreError>>) -> Vec<Held> {
    answers
        .filter_map(|answer| match answer {
            Ok(Claim::Claimed(held)) => Some(held),
            Ok(Claim::Busy { .. } | Claim::Superseded | Claim::Ended { .. }) => None,
            Err(error) => panic!("no answer: {error}"),
        })
        .collect()
}

/// Runs `count` tasks that start together.
pub(super) async fn at_once<T, F>(count: usize, mut task: impl FnMut(usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(count));
    let tasks = (0..count).map(|index| {
        let (start, task) = (start.clone(), task(index));
        tokio::spawn(async move {
            start.wait().await;
            task.await
        })
    });
    let ends = join_all(tasks.collect::<Vec<_>>()).await;
    ends.into_iter()
        .map(|end| match end {
            Ok(value) => value,
            Err(error) => panic!("a task ended: {error}"),
        })
        .collect()
}
