//! The memory store against the suite, and its faults.

use dedup_store::{
    Claim, ClaimAsk, Reopen, Retention, Store, StoreError, Transition,
    claim::KEPT_FOR_OWNER_MS,
    conformance::{Harness, RETENTION, START_MS},
    memory::MemoryStore,
};
use schemas::DeliveryKey;
use std::time::Duration;
use uuid::Uuid;

struct Memory;

impl Harness for Memory {
    type Store = MemoryStore;

    async fn open(&self, retention: Retention) -> MemoryStore {
        MemoryStore::new(retention)
    }

    async fn reopen(&self, _: MemoryStore, _: Retention) -> Option<MemoryStore> {
        None
    }

    async fn pass(&self, _: i64, _: i64) {}
}

dedup_store::conformance_tests!(Memory);

fn ask() -> ClaimAsk {
    ClaimAsk {
        key: DeliveryKey {
            source: "github".to_owned(),
            delivery_id: "1".to_owned(),
            destination: "billing".to_owned(),
        },
        token: Uuid::new_v4(),
        lease_ms: 15_000,
        skew_margin_ms: 500,
        attempt: 1,
        fence: None,
        generation: 0,
        received_at_ms: START_MS,
        reopen: Reopen::Exhausted,
    }
}

#[tokio::test]
async fn a_failing_store_does_nothing() {
    let store = MemoryStore::new(RETENTION);
    store.fail_next(2);
    assert!(matches!(
        store.ready().await,
        Err(StoreError::Unavailable(_))
    ));
    assert!(matches!(
        store.claim(&ask(), START_MS).await,
        Err(StoreError::Unavailable(_))
    ));
    assert!(matches!(
        store.get(&ask().key, START_MS).await,
        Err(StoreError::Unavailable(_))
    ));
    assert_eq!(store.get(&ask().key, START_MS).await, Ok(None));
    assert_eq!(store.ready().await, Ok(()));
    store.fail_next(u32::MAX);
    store.heal();
    assert_eq!(store.ready().await, Ok(()));
}

#[tokio::test]
async fn a_lost_answer_is_found_by_calling_again() {
    let store = MemoryStore::new(RETENTION);
    let ask = ask();
    store.lose_answers(1);
    assert!(matches!(
        store.claim(&ask, START_MS).await,
        Err(StoreError::Unavailable(_))
    ));
    assert_eq!(store.rows().len(), 1);
    let Ok(Claim::Claimed(held)) = store.claim(&ask, START_MS + 1).await else {
        panic!("not ours");
    };
    assert_eq!((held.row.attempts, held.row.created_at_ms), (1, START_MS));
    store.lose_answers(1);
    assert!(matches!(
        store.complete(&held, START_MS + 2).await,
        Err(StoreError::Unavailable(_))
    ));
    assert_eq!(
        store.complete(&held, START_MS + 3).await,
        Ok(Transition::Applied)
    );
}

#[tokio::test]
async fn a_delay_comes_before_the_work() {
    let store = MemoryStore::new(RETENTION);
    store.delay(Duration::from_secs(3_600));
    let ask = ask();
    let late = tokio::time::timeout(Duration::from_millis(5), store.claim(&ask, START_MS)).await;
    assert!(late.is_err());
    assert_eq!(store.rows(), []);
    store.delay(Duration::from_millis(1));
    assert!(store.claim(&ask, START_MS).await.is_ok());
}

#[tokio::test]
async fn expired_rows_do_not_pile_up() {
    let store = MemoryStore::new(Retention {
        open_ms: 1_000,
        failed_ms: 1_000,
        completed_ms: 1_000,
    });
    for round in 0..5_000 {
        let mut ask = ask();
        ask.key.delivery_id = round.to_string();
        ask.lease_ms = 10;
        let now_ms = START_MS + round * KEPT_FOR_OWNER_MS;
        assert!(store.claim(&ask, now_ms).await.is_ok());
    }
    assert!(store.rows().len() <= 1_100, "{}", store.rows().len());
}
