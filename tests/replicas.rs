//! One and two of three replicas away: claims go on without one, stop without two, and nothing that was answered is forgotten.
//!
//! Needs real nodes (`FENCEPOST_TEST_STACK=required`, as `make test` sets it): it starts three of its own.
//!
//! One test, because the set takes half a minute to start. Each step begins where the one before has left the set.

use dedup_store::{
    Claim, ClaimAsk, Held, Reopen, Row, Status, Store, StoreError, Transition,
    config::CqlConfig,
    cql::{self, CqlStore},
};
use harness::{cluster::Cluster, now_ms, stack::turn};
use schemas::DeliveryKey;
use std::{collections::BTreeSet, future::Future, path::Path, sync::Arc, time::Duration};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(6);
/// Deliveries that are completed on two replicas alone.
const DELIVERIES: usize = 40;
/// Racers at one row.
const RACERS: usize = 100;
/// Longer than anything takes on a busy machine; a test that needs it has failed.
const PATIENCE: Duration = Duration::from_secs(90);

/// Two processes' stores.
type Stores = [CqlStore; 2];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replicas_come_and_go_and_no_claim_is_lost_or_doubled() {
    let _turn = turn().await;
    let Some(cluster) = Cluster::start_cassandra().await else {
        return;
    };
    let [first, second, third] = &cluster.cassandra[..] else {
        panic!("three replicas");
    };
    let config = config(&cluster);
    let migrated = cql::migrate(&config, Path::new(".")).await;
    assert!(!migrated.expect("migrate").executed.is_empty());
    let stores = [connect(&config).await, connect(&config).await];

    // One hangs: it keeps its connections and answers nothing.
    third.pause();
    let completed = lives(&stores, DELIVERIES).await;
    let in_work = claim(&stores[0], &ask()).await;
    // A process that starts now is not stopped by a contact point that hangs.
    let mut hanging_first = config.clone();
    hanging_first.contact_points.reverse();
    let late = connect(&hanging_first).await;
    assert_eq!(late.ready().await, Ok(()));

    // Two are away, one of them for good. No quorum: every call ends by itself and says so.
    first.kill9().await;
    let asks = no_quorum(&stores, &in_work).await;

    // The one that was killed comes back and is half of the quorum that has seen the last writes.
    first.start().await;
    first.wait_ready().await;
    third.resume();
    // What was known before is written now, and what was asked for is found or made, once.
    let done = insist(|| stores[0].complete(&in_work, now_ms())).await;
    assert_eq!(done, Transition::Applied);
    for ask in &asks {
        let claim = insist(|| stores[1].claim(ask, now_ms())).await;
        let Claim::Claimed(held) = claim else {
            panic!("its own claim is not recognised: {claim:?}");
        };
        assert_eq!((held.row.attempts, held.row.claim_token), (1, ask.token));
    }

    // The third has not seen them and the second is gone: what the first has forgotten is forgotten.
    second.pause();
    remembered(&stores, &completed).await;
    let done = insist(|| stores[1].get(&in_work.key, now_ms())).await;
    assert_eq!(done.map(|row| row.status), Some(Status::Completed));

    // A hundred at one row, while the quorum goes and comes back.
    race(&stores, || third.pause(), || third.resume()).await;
    second.resume();
    // The statements that hung in the paused nodes are executed now, and change nothing.
    remembered(&stores, &completed).await;
    let fresh = lives(&stores, 1).await;
    remembered(&stores, &fresh).await;
}

/// Calls that end as unavailable, claims as well as the transition of an outcome that is known. Gives the asks.
async fn no_quorum(stores: &Stores, in_work: &Held) -> Vec<ClaimAsk> {
    let asks: Vec<_> = (0..8).map(|_| ask()).collect();
    let mut calls = JoinSet::new();
    for (number, ask) in asks.iter().enumerate() {
        let (store, ask) = (stores[number % 2].clone(), ask.clone());
        calls.spawn(async move {
            store
                .claim(&ask, now_ms())
                .await
                .map(|claim| format!("{claim:?}"))
        });
    }
    let (store, held) = (stores[0].clone(), in_work.clone());
    calls.spawn(async move {
        store
            .complete(&held, now_ms())
            .await
            .map(|done| format!("{done:?}"))
    });
    let answers = timeout(PATIENCE, calls.join_all()).await;
    for answer in answers.expect("each call has a deadline") {
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
    }
    let ready = stores[1].ready().await;
    assert!(
        matches!(ready, Err(StoreError::Unavailable(_))),
        "{ready:?}"
    );
    asks
}

/// [`RACERS`] ask for one delivery, each with a token of its own and until there is an answer: one wins.
async fn race(stores: &Stores, stop: impl FnOnce(), go_on: impl FnOnce()) {
    let first = ask();
    let start = Arc::new(tokio::sync::Barrier::new(RACERS + 1));
    let mut racers = JoinSet::new();
    for number in 0..RACERS {
        let (store, start) = (stores[number % 2].clone(), Arc::clone(&start));
        let ask = rival(&first);
        racers.spawn(async move {
            start.wait().await;
            insist(|| store.claim(&ask, now_ms())).await
        });
    }
    start.wait().await;
    stop();
    // Some are in doubt by then, some have not been sent.
    sleep(DEADLINE / 2).await;
    go_on();
    let mut winners = Vec::new();
    for answer in racers.join_all().await {
        match answer {
            Claim::Claimed(held) => winners.push(held),
            Claim::Busy { .. } => {}
            Claim::Superseded | Claim::Ended { .. } => panic!("neither won nor busy: {answer:?}"),
        }
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    let row = insist(|| stores[0].get(&first.key, now_ms())).await;
    assert_eq!(row.as_ref(), Some(&winners[0].row));
}

/// Takes deliveries from claim to completion, concurrently. Gives their rows.
async fn lives(stores: &Stores, count: usize) -> Vec<(DeliveryKey, Row)> {
    let mut lives = JoinSet::new();
    for number in 0..count {
        let store = stores[number % 2].clone();
        lives.spawn(async move {
            let held = claim(&store, &ask()).await;
            let done = insist(|| store.complete(&held, now_ms())).await;
            assert_eq!(done, Transition::Applied);
            let row = insist(|| store.get(&held.key, now_ms())).await;
            (held.key, row.expect("it was completed"))
        });
    }
    let lives = timeout(PATIENCE, lives.join_all()).await;
    lives.expect("one replica may be away")
}

/// Everything is as it was, and can not be had a second time.
async fn remembered(stores: &Stores, completed: &[(DeliveryKey, Row)]) {
    let mut looks = JoinSet::new();
    for (number, (key, row)) in completed.iter().cloned().enumerate() {
        let store = stores[number % 2].clone();
        looks.spawn(async move {
            let found = insist(|| store.get(&key, now_ms())).await;
            if found.as_ref() != Some(&row) {
                return Some(format!("{key}: {found:?}"));
            }
            let again = rival(&ClaimAsk {
                key: key.clone(),
                ..ask()
            });
            let claim = insist(|| store.claim(&again, now_ms())).await;
            (!matches!(claim, Claim::Ended { .. })).then(|| format!("{key}: {claim:?}"))
        });
    }
    let forgotten: BTreeSet<_> = looks.join_all().await.into_iter().flatten().collect();
    assert!(
        forgotten.is_empty(),
        "{} forgotten: {forgotten:?}",
        forgotten.len()
    );
}

async fn claim(store: &CqlStore, ask: &ClaimAsk) -> Held {
    match insist(|| store.claim(ask, now_ms())).await {
        Claim::Claimed(held) => held,
        other @ (Claim::Busy { .. } | Claim::Superseded | Claim::Ended { .. }) => {
            panic!("not claimed: {other:?}")
        }
    }
}

/// Calls with the same arguments until there is an answer, as the dispatcher does.
async fn insist<T, F: Future<Output = Result<T, StoreError>>>(call: impl Fn() -> F) -> T {
    let answered = timeout(PATIENCE, async {
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(StoreError::Unavailable(_)) => sleep(Duration::from_millis(100)).await,
                Err(refused @ StoreError::Refused(_)) => panic!("{refused}"),
            }
        }
    });
    answered.await.expect("a quorum is there")
}

async fn connect(config: &CqlConfig) -> CqlStore {
    CqlStore::connect(config, Path::new("."))
        .await
        .expect("connect")
}

fn config(cluster: &Cluster) -> CqlConfig {
    CqlConfig {
        contact_points: cluster.contact_points(),
        replication_factor: 3,
        // A contact point that hangs costs the driver five seconds twice: as the first it asks, and as a node like others.
        connect_timeout: Duration::from_secs(10),
        request_timeout: Duration::from_secs(4),
        deadline: DEADLINE,
        ..CqlConfig::default()
    }
}

fn ask() -> ClaimAsk {
    ClaimAsk {
        key: DeliveryKey {
            source: "github".to_owned(),
            delivery_id: Uuid::new_v4().to_string(),
            destination: "billing".to_owned(),
        },
        token: Uuid::new_v4(),
        // Longer than the test: no lease ends while nobody can renew it.
        lease_ms: 600_000,
        skew_margin_ms: 1_000,
        attempt: 1,
        fence: None,
        generation: 0,
        received_at_ms: 0,
        reopen: Reopen::Exhausted,
    }
}

/// The same delivery, asked for by somebody else.
fn rival(ask: &ClaimAsk) -> ClaimAsk {
    ClaimAsk {
        token: Uuid::new_v4(),
        ..ask.clone()
    }
}
