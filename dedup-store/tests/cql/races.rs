//! Many at one row: one wins.

use crate::node::{LEASE_MS, Node, ask, claimed, now_ms, rival};
use dedup_store::{Claim, ClaimAsk, Held, Renewal, Status, Store, Transition, cql::CqlStore};
use futures::future::join_all;
use schemas::Reason;

/// All ask at once, half of them through a second session.
async fn race(stores: &[CqlStore; 2], asks: Vec<ClaimAsk>, now: i64) -> Vec<Held> {
    let asks = asks.into_iter().enumerate().map(|(number, ask)| {
        let store = stores[number % 2].clone();
        tokio::spawn(async move { store.claim(&ask, now).await.expect("claim") })
    });
    let answers = join_all(asks.collect::<Vec<_>>()).await.into_iter();
    let won = answers.filter_map(|answer| match answer.expect("no panic") {
        Claim::Claimed(held) => Some(held),
        Claim::Busy {
            in_transition: false,
            ..
        } => None,
        lost @ (Claim::Busy { .. } | Claim::Superseded | Claim::Ended { .. }) => {
            panic!("neither won nor busy: {lost:?}")
        }
    });
    won.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forty_racers_one_winner() {
    let Some(node) = Node::get().await else {
        return;
    };
    let stores = [node.store().await, node.store().await];
    let now = now_ms();
    let ask = ask();
    let won = race(&stores, (0..40).map(|_| rival(&ask)).collect(), now).await;
    assert_eq!(won.len(), 1, "{won:?}");
    assert_eq!(
        stores[0].get(&ask.key, now).await.unwrap(),
        Some(won[0].row.clone())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_claim_is_taken_over_once() {
    let Some(node) = Node::get().await else {
        return;
    };
    let stores = [node.store().await, node.store().await];
    let now = now_ms();
    let first = ask();
    let dead = claimed(&stores[0], &first, now).await;
    let later = now + LEASE_MS + 2_000;
    let won = race(&stores, (0..12).map(|_| rival(&first)).collect(), later).await;
    assert_eq!(won.len(), 1, "{won:?}");
    assert_eq!(
        (won[0].interrupted, won[0].row.attempts),
        (Some(first.token), 2)
    );

    // The old owner wakes up and can do nothing.
    let store = &stores[1];
    assert_eq!(
        store.complete(&dead, later).await,
        Ok(Transition::LeaseLost)
    );
    assert_eq!(
        store.fail(&dead, Reason::Rejected, later).await,
        Ok(Transition::LeaseLost)
    );
    assert_eq!(
        store.schedule(&dead, later, later).await,
        Ok(Transition::LeaseLost)
    );
    assert_eq!(
        store.renew(&dead, later + LEASE_MS, later).await,
        Ok(Renewal::Lost)
    );
    assert_eq!(
        store.get(&first.key, later).await.unwrap(),
        Some(won[0].row.clone())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_races_the_owner_that_completes_or_renews() {
    let Some(node) = Node::get().await else {
        return;
    };
    let stores = [node.store().await, node.store().await];
    let now = now_ms();
    for round in 0..10 {
        let first = ask();
        let owner = claimed(&stores[0], &first, now).await;
        let later = now + LEASE_MS + 2_000;
        let second = rival(&first);
        if round % 2 == 0 {
            let takeover = stores[1].claim(&second, later);
            let (done, taken) = tokio::join!(stores[0].complete(&owner, later), takeover);
            let row = stores[0].get(&first.key, later).await.unwrap().unwrap();
            match done.unwrap() {
                Transition::Applied => {
                    assert!(matches!(taken.unwrap(), Claim::Ended { .. }));
                    assert_eq!(
                        (row.status, row.claim_token),
                        (Status::Completed, first.token)
                    );
                }
                Transition::LeaseLost => {
                    assert!(matches!(taken.unwrap(), Claim::Claimed(_)));
                    assert_eq!(
                        (row.status, row.claim_token),
                        (Status::Processing, second.token)
                    );
                }
            }
        } else {
            let until = later + LEASE_MS;
            let takeover = stores[1].claim(&second, later);
            let (renewed, taken) = tokio::join!(stores[0].renew(&owner, until, later), takeover);
            match renewed.unwrap() {
                Renewal::Renewed { .. } => assert!(matches!(taken.unwrap(), Claim::Busy { .. })),
                Renewal::Lost => assert!(matches!(taken.unwrap(), Claim::Claimed(_))),
            }
        }
    }
}
