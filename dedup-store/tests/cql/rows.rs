//! Rows as the node keeps them: expiry, leftovers of an expiry, columns of other states, the schema.

use crate::node::{LEASE_MS, Node, PATIENCE, ask, claimed, now_ms, rival};
use dedup_store::{
    Claim, ClaimAsk, Renewal, Status, Store, StoreError, Transition,
    config::{CqlConfig, RetentionConfig},
    cql::{self, CqlStore},
};
use scylla::{client::session::Session, value::Row};
use std::{path::Path, time::Duration};
use tokio::time::timeout;

const WHERE: &str = "WHERE source = ? AND delivery_id = ? AND destination = ?";

fn brief() -> RetentionConfig {
    RetentionConfig {
        open: Duration::from_secs(1),
        failed: Duration::from_secs(2),
        completed: Duration::from_secs(2),
    }
}

async fn execute(session: &Session, statement: &str, ask: &ClaimAsk) {
    let key = (&ask.key.source, &ask.key.delivery_id, &ask.key.destination);
    session
        .query_unpaged(statement, key)
        .await
        .expect(statement);
}

async fn select(session: &Session, columns: &str, ask: &ClaimAsk) -> Option<Row> {
    let key = (&ask.key.source, &ask.key.delivery_id, &ask.key.destination);
    let statement = format!("SELECT {columns} FROM delivery {WHERE}");
    let result = session.query_unpaged(statement, key).await.expect("select");
    result
        .into_rows_result()
        .expect("rows")
        .maybe_first_row()
        .expect("row")
}

async fn until_null(session: &Session, column: &str, ask: &ClaimAsk) {
    let gone = async {
        while select(session, column, ask)
            .await
            .is_some_and(|row| row.columns[0].is_some())
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("the column expires");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_itself_drops_rows_whose_time_has_passed() {
    let Some(node) = Node::get().await else {
        return;
    };
    let config = CqlConfig {
        retention: brief(),
        ..node.config()
    };
    let store = CqlStore::connect(&config, Path::new(".")).await.unwrap();
    // For the store no time passes, so only the node's TTL can take the row away.
    let now = now_ms();
    let open = ClaimAsk {
        lease_ms: 500,
        ..ask()
    };
    claimed(&store, &open, now).await;
    let done = ClaimAsk {
        lease_ms: 500,
        ..ask()
    };
    let claim = claimed(&store, &done, now).await;
    assert_eq!(store.complete(&claim, now).await, Ok(Transition::Applied));
    for ask in [open, done] {
        let gone = async {
            while store.get(&ask.key, now).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, gone).await.expect("the row expires");
        // Nothing of it is left: no marker, no half a row.
        assert_eq!(select(&node.session().await, "status", &ask).await, None);
        let again = claimed(&store, &rival(&ask), now).await;
        assert_eq!((again.row.attempts, again.interrupted), (1, None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_columns_live_equally_long_and_longer_with_each_state() {
    let Some(node) = Node::get().await else {
        return;
    };
    let store = node.store().await;
    let session = node.session().await;
    let now = now_ms();
    let ask = ask();
    let ttls = async || {
        let columns = [
            "status",
            "claim_token",
            "lease_until",
            "attempts",
            "generation",
            "created_at",
        ];
        let columns = columns.map(|column| format!("TTL({column})")).join(", ");
        let row = select(&session, &columns, &ask).await.unwrap();
        let ttls = row
            .columns
            .iter()
            .map(|ttl| ttl.as_ref().and_then(|ttl| ttl.as_int()));
        let ttls = ttls.map(|ttl| ttl.expect("a TTL")).collect::<Vec<_>>();
        assert!(ttls.windows(2).all(|pair| pair[0] == pair[1]), "{ttls:?}");
        ttls[0]
    };
    let day = 86_400;
    let open = 7 * day;
    let claim = claimed(&store, &ask, now).await;
    let processing = ttls().await;
    assert!(
        (open - 60..=open + 15).contains(&processing),
        "{processing}"
    );
    store.renew(&claim, now + 100_000, now).await.unwrap();
    let renewed = ttls().await;
    assert!((open + 40..=open + 100).contains(&renewed), "{renewed}");
    // The claim that we hold does not know of the renewal: its lease must not come back.
    store.schedule(&claim, now + 1, now).await.unwrap();
    let waiting = ttls().await;
    assert!((open + 40..=open + 100).contains(&waiting), "{waiting}");
    let second = ClaimAsk {
        fence: Some(ask.token),
        ..rival(&ask)
    };
    let claim = claimed(&store, &second, now + 2).await;
    store.complete(&claim, now + 3).await.unwrap();
    let completed = ttls().await;
    assert!(
        (30 * day - 60..=30 * day + 120).contains(&completed),
        "{completed}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_an_earlier_state_stay_and_mean_nothing() {
    let Some(node) = Node::get().await else {
        return;
    };
    let store = node.store().await;
    let now = now_ms();
    let first = ask();
    let claim = claimed(&store, &first, now).await;
    store.schedule(&claim, now + 7, now).await.unwrap();
    let waiting = store.get(&first.key, now).await.unwrap().unwrap();
    assert_eq!(
        (waiting.status, waiting.not_before_ms),
        (Status::Waiting, Some(now + 7))
    );

    let second = ClaimAsk {
        fence: Some(first.token),
        ..rival(&first)
    };
    let claim = claimed(&store, &second, now + 8).await;
    assert_eq!(
        store.get(&first.key, now + 8).await.unwrap(),
        Some(claim.row.clone())
    );
    assert_eq!(claim.row.not_before_ms, None);
    let raw = select(&node.session().await, "not_before", &first)
        .await
        .unwrap();
    assert!(
        raw.columns[0].is_some(),
        "a null was written: a tombstone for every retry"
    );
    // And the old waiting record finds it superseded by nothing but the live claim.
    let late = store
        .claim(
            &ClaimAsk {
                fence: Some(first.token),
                ..rival(&first)
            },
            now + 9,
        )
        .await;
    assert!(
        matches!(
            late,
            Ok(Claim::Busy {
                in_transition: false,
                ..
            })
        ),
        "{late:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_expiry_left_of_a_row_can_be_claimed() {
    let Some(node) = Node::get().await else {
        return;
    };
    let store = node.store().await;
    let session = node.session().await;
    let now = now_ms();
    let all = "status = 1, claim_token = uuid(), lease_until = '2100-01-01', attempts = 4, generation = 0, created_at = 1";

    // The marker of an INSERT outlives the columns: an empty row.
    let zombie = ask();
    let insert =
        "INSERT INTO delivery (source, delivery_id, destination) VALUES (?, ?, ?) USING TTL 600";
    execute(&session, insert, &zombie).await;
    execute(
        &session,
        &format!("UPDATE delivery USING TTL 1 SET {all} {WHERE}"),
        &zombie,
    )
    .await;
    until_null(&session, "status", &zombie).await;
    assert!(
        select(&session, "status", &zombie).await.is_some(),
        "the marker is alive"
    );
    assert_eq!(store.get(&zombie.key, now).await, Ok(None));

    // Columns that outlive the status, and the other way round.
    let no_status = ask();
    execute(
        &session,
        &format!("UPDATE delivery USING TTL 600 SET {all} {WHERE}"),
        &no_status,
    )
    .await;
    execute(
        &session,
        &format!("UPDATE delivery USING TTL 1 SET status = 1 {WHERE}"),
        &no_status,
    )
    .await;
    let no_token = ask();
    execute(
        &session,
        &format!("UPDATE delivery USING TTL 600 SET {all} {WHERE}"),
        &no_token,
    )
    .await;
    let token = format!("UPDATE delivery USING TTL 1 SET claim_token = uuid() {WHERE}");
    execute(&session, &token, &no_token).await;
    let only_status = ask();
    let status = format!("UPDATE delivery USING TTL 600 SET status = 2 {WHERE}");
    execute(&session, &status, &only_status).await;
    until_null(&session, "status", &no_status).await;
    until_null(&session, "claim_token", &no_token).await;

    for ask in [zombie, no_status, no_token, only_status] {
        assert_eq!(store.get(&ask.key, now).await, Ok(None));
        let claim = claimed(&store, &ask, now).await;
        assert_eq!((claim.row.attempts, claim.interrupted), (1, None));
        assert_eq!(store.complete(&claim, now).await, Ok(Transition::Applied));
        assert_eq!(
            store.get(&ask.key, now).await.unwrap().unwrap().status,
            Status::Completed
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_marked_as_completed_is_completed() {
    let Some(node) = Node::get().await else {
        return;
    };
    let store = node.store().await;
    let session = node.session().await;
    let now = now_ms();
    let by_hand = ask();
    execute(
        &session,
        &format!("UPDATE delivery SET status = 3 {WHERE}"),
        &by_hand,
    )
    .await;
    let ended = store.claim(&by_hand, now).await.unwrap();
    assert_eq!(
        ended,
        Claim::Ended {
            status: Status::Completed,
            reason: None
        }
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_repeat_of_a_renewal_does_not_shorten_the_lease() {
    let Some(node) = Node::get().await else {
        return;
    };
    let store = node.store().await;
    let now = now_ms();
    let claim = claimed(&store, &ask(), now).await;
    let (early, late) = (now + 2 * LEASE_MS, now + 3 * LEASE_MS);
    assert_eq!(
        store.renew(&claim, late, now).await,
        Ok(Renewal::Renewed {
            lease_until_ms: late
        })
    );
    assert_eq!(
        store.renew(&claim, early, now).await,
        Ok(Renewal::Renewed {
            lease_until_ms: late
        })
    );
    assert_eq!(
        store
            .get(&claim.key, now)
            .await
            .unwrap()
            .unwrap()
            .lease_until_ms,
        late
    );
    assert_eq!(store.complete(&claim, now).await, Ok(Transition::Applied));
    assert_eq!(store.renew(&claim, late + 1, now).await, Ok(Renewal::Lost));
    assert_eq!(
        store.get(&claim.key, now).await.unwrap().unwrap().status,
        Status::Completed
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schema_is_made_once_and_checked_at_start() {
    let Some(node) = Node::get().await else {
        return;
    };
    let again = cql::migrate(&node.config(), Path::new(".")).await.unwrap();
    assert_eq!(again.executed, Vec::<String>::new());

    let missing = CqlConfig {
        keyspace: "nowhere".to_owned(),
        ..node.config()
    };
    let refused = |answer: Result<CqlStore, StoreError>| match answer {
        Err(StoreError::Refused(cause)) => cause,
        other => panic!("{other:?}"),
    };
    let cause = refused(CqlStore::connect(&missing, Path::new(".")).await);
    assert!(cause.contains("fencepost store migrate"), "{cause}");

    let elsewhere = CqlConfig {
        datacenter: Some("atlantis".to_owned()),
        ..node.config()
    };
    let cause = refused(CqlStore::connect(&elsewhere, Path::new(".")).await);
    assert!(cause.contains("atlantis"), "{cause}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_an_older_version_gets_its_missing_column() {
    let Some(node) = Node::get().await else {
        return;
    };
    let keyspace = format!("t_{}", uuid::Uuid::new_v4().simple());
    let config = CqlConfig {
        keyspace: keyspace.clone(),
        ..node.config()
    };
    cql::migrate(&config, Path::new(".")).await.unwrap();
    let session = node.session().await;
    let older = format!("ALTER TABLE {keyspace}.delivery DROP generation");
    session.query_unpaged(older, &[]).await.unwrap();
    let refused = CqlStore::connect(&config, Path::new(".")).await;
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "{refused:?}"
    );
    let migrated = cql::migrate(&config, Path::new(".")).await.unwrap();
    assert_eq!(migrated.executed.len(), 1, "{migrated:?}");
    // From before destinations could be paused.
    let older = format!("DROP TABLE {keyspace}.standing");
    session.query_unpaged(older, &[]).await.unwrap();
    let refused = CqlStore::connect(&config, Path::new(".")).await;
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "{refused:?}"
    );
    let migrated = cql::migrate(&config, Path::new(".")).await.unwrap();
    assert_eq!(migrated.executed.len(), 1, "{migrated:?}");
    assert!(CqlStore::connect(&config, Path::new(".")).await.is_ok());
    session
        .query_unpaged(format!("DROP KEYSPACE {keyspace}"), &[])
        .await
        .unwrap();
}
