//! The embedded store against the suite, and what only it promises.

use dedup_store::{
    Claim, ClaimAsk, Noted, PauseCause, Reopen, Retention, Standing, Store, StoreError, Transition,
    claim::KEPT_FOR_OWNER_MS,
    config::{EmbeddedConfig, RetentionConfig},
    conformance::{Harness, RETENTION, START_MS},
    embedded::{EmbeddedStore, beside::Beside, peek},
};
use futures::future::join_all;
use schemas::DeliveryKey;
use std::{path::Path, time::Duration};
use tempfile::TempDir;
use uuid::Uuid;

struct Embedded(TempDir);

impl Embedded {
    fn new() -> Self {
        Self(TempDir::new().expect("a directory for the test"))
    }
}

impl Harness for Embedded {
    type Store = EmbeddedStore;

    async fn open(&self, retention: Retention) -> EmbeddedStore {
        open(self.0.path(), retention)
    }

    async fn reopen(&self, store: EmbeddedStore, retention: Retention) -> Option<EmbeddedStore> {
        drop(store);
        Some(open(self.0.path(), retention))
    }

    async fn pass(&self, _: i64, _: i64) {}
}

dedup_store::conformance_tests!(Embedded::new());

#[tokio::test]
async fn a_second_opener_is_refused_until_the_first_has_gone() {
    let dir = TempDir::new().expect("a directory for the test");
    let first = open(dir.path(), RETENTION);
    let clone = first.clone();
    drop(first);
    match EmbeddedStore::open(&config(dir.path(), RETENTION)) {
        Err(StoreError::Refused(message)) => {
            assert!(
                message.contains("another process has the directory"),
                "{message}"
            );
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
    drop(clone);
    assert_eq!(open(dir.path(), RETENTION).ready().await, Ok(()));
}

/// What a crash leaves is the files as they stand after the last commit: nothing is closed, nothing checkpointed.
#[tokio::test]
async fn what_was_answered_survives_a_crash() {
    let dir = TempDir::new().expect("a directory for the test");
    let store = open(dir.path(), RETENTION);
    let asks: Vec<_> = (0..200).map(|_| ask()).collect();
    let held = join_all(asks.iter().map(|ask| store.claim(ask, START_MS))).await;

    let crashed = TempDir::new().expect("a directory for the test");
    for file in ["claims.db", "claims.db-wal"] {
        std::fs::copy(dir.path().join(file), crashed.path().join(file)).expect("a copy");
    }
    let after = open(crashed.path(), RETENTION);
    for (ask, held) in asks.iter().zip(held) {
        let Ok(Claim::Claimed(held)) = held else {
            panic!("not claimed: {held:?}")
        };
        assert_eq!(
            after.get(&ask.key, START_MS).await,
            Ok(Some(held.row.clone()))
        );
        assert_eq!(
            after.complete(&held, START_MS + 1).await,
            Ok(Transition::Applied)
        );
    }
}

#[tokio::test]
async fn a_torn_end_of_the_log_loses_only_what_was_not_answered() {
    let dir = TempDir::new().expect("a directory for the test");
    let store = open(dir.path(), RETENTION);
    let (first, second) = (ask(), ask());
    assert!(store.claim(&first, START_MS).await.is_ok());
    let wal = dir.path().join("claims.db-wal");
    let whole = std::fs::read(&wal).expect("the log").len();
    assert!(store.claim(&second, START_MS).await.is_ok());

    let crashed = TempDir::new().expect("a directory for the test");
    std::fs::copy(
        dir.path().join("claims.db"),
        crashed.path().join("claims.db"),
    )
    .expect("a copy");
    let mut bytes = std::fs::read(&wal).expect("the log");
    bytes.truncate(whole + 100);
    std::fs::write(crashed.path().join("claims.db-wal"), bytes).expect("a torn copy");
    let after = open(crashed.path(), RETENTION);
    assert!(matches!(after.get(&first.key, START_MS).await, Ok(Some(_))));
    assert_eq!(after.get(&second.key, START_MS).await, Ok(None));
}

/// More callers than the queue holds wait outside it and are all served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_makes_callers_wait() {
    let dir = TempDir::new().expect("a directory for the test");
    let config = EmbeddedConfig {
        queue_max: 1,
        ..config(dir.path(), RETENTION)
    };
    let store = EmbeddedStore::open(&config).expect("a store");
    let asks: Vec<_> = (0..300).map(|_| ask()).collect();
    for answer in join_all(asks.iter().map(|ask| store.claim(ask, START_MS))).await {
        assert!(matches!(answer, Ok(Claim::Claimed(_))), "{answer:?}");
    }
}

/// Somebody holds the file's write lock for longer than the deadline: the call ends, and calling again is safe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_at_its_deadline() {
    let dir = TempDir::new().expect("a directory for the test");
    let config = EmbeddedConfig {
        deadline: Duration::from_millis(200),
        ..config(dir.path(), RETENTION)
    };
    let store = EmbeddedStore::open(&config).expect("a store");
    let other = rusqlite::Connection::open(dir.path().join("claims.db")).expect("the file");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let ask = ask();
    match store.claim(&ask, START_MS).await {
        Err(StoreError::Unavailable(message)) => assert!(message.contains("within"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        store.ready().await,
        Err(StoreError::Unavailable(_))
    ));
    other
        .execute_batch("ROLLBACK")
        .expect("the lock given back");
    let held = loop {
        match store.claim(&ask, START_MS + 1).await {
            Ok(Claim::Claimed(held)) => break held,
            Err(StoreError::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((held.row.claim_token, held.row.attempts), (ask.token, 1));
}

#[tokio::test]
async fn expired_rows_leave_the_file() {
    let dir = TempDir::new().expect("a directory for the test");
    let short = Retention {
        open_ms: 1_000,
        failed_ms: 1_000,
        completed_ms: 1_000,
    };
    let store = open(dir.path(), short);
    for round in 0..20 {
        // Each round finds the rows of the one before expired, and kept for their owners no longer.
        let now_ms = START_MS + round * (KEPT_FOR_OWNER_MS + 60_000);
        let asks: Vec<_> = (0..100).map(|_| ask()).collect();
        for answer in join_all(asks.iter().map(|ask| store.claim(ask, now_ms))).await {
            assert!(answer.is_ok());
        }
    }
    assert!(rows(dir.path()) <= 300, "{}", rows(dir.path()));
}

/// A clock jumps ahead by more than rows are kept: what others write meanwhile must not take the row from under an attempt.
#[tokio::test]
async fn a_row_is_kept_for_its_owner_past_its_expiry() {
    let dir = TempDir::new().expect("a directory for the test");
    let store = open(dir.path(), RETENTION);
    let Ok(Claim::Claimed(held)) = store.claim(&ask(), START_MS).await else {
        panic!("not claimed")
    };
    let expiry_ms = held.row.lease_until_ms + RETENTION.open_ms;
    let late_ms = expiry_ms + KEPT_FOR_OWNER_MS - 1;
    for _ in 0..10 {
        assert!(store.claim(&ask(), late_ms).await.is_ok());
    }
    assert_eq!(
        store.complete(&held, late_ms).await,
        Ok(Transition::Applied)
    );
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_directory_is_for_its_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().expect("a directory for the test");
    let (outer, inner) = (dir.path().join("a"), dir.path().join("a/b"));
    let _store = open(&inner, RETENTION);
    for made in [outer, inner] {
        let mode = std::fs::metadata(&made).expect("made").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", made.display());
    }
}

#[tokio::test]
async fn a_row_that_can_not_be_understood_fails_only_its_own_calls() {
    let dir = TempDir::new().expect("a directory for the test");
    let store = open(dir.path(), RETENTION);
    let (broken, sound) = (ask(), ask());
    assert!(store.claim(&broken, START_MS).await.is_ok());
    let other = rusqlite::Connection::open(dir.path().join("claims.db")).expect("the file");
    other
        .execute("UPDATE claims SET status = 9", [])
        .expect("a broken row");
    let (broken, sound) = tokio::join!(
        store.claim(&broken, START_MS),
        store.claim(&sound, START_MS)
    );
    assert!(matches!(broken, Err(StoreError::Refused(_))), "{broken:?}");
    assert!(matches!(sound, Ok(Claim::Claimed(_))), "{sound:?}");
}

/// One write fails and takes its transaction along: whoever shared it is told, and nothing that was answered is missing.
#[tokio::test]
async fn what_is_rolled_back_was_never_answered() {
    let dir = TempDir::new().expect("a directory for the test");
    let store = open(dir.path(), RETENTION);
    let poison = ask();
    let other = rusqlite::Connection::open(dir.path().join("claims.db")).expect("the file");
    let trigger = format!(
        "CREATE TRIGGER poison BEFORE INSERT ON claims WHEN NEW.delivery_id = '{}'
         BEGIN SELECT RAISE(ABORT, 'poisoned'); END",
        poison.key.delivery_id
    );
    other.execute_batch(&trigger).expect("a trigger");
    let mut asks: Vec<_> = (0..100).map(|_| ask()).collect();
    asks.insert(50, poison.clone());
    let answers = join_all(asks.iter().map(|ask| store.claim(ask, START_MS))).await;
    assert!(answers.iter().any(Result::is_err));
    for (ask, answer) in asks.iter().zip(answers) {
        let row = store.get(&ask.key, START_MS).await.expect("a row or none");
        match answer {
            Ok(Claim::Claimed(held)) => assert_eq!(row, Some(held.row)),
            Err(StoreError::Unavailable(_)) => assert_eq!(row, None),
            other => panic!("{other:?}"),
        }
    }
    other
        .execute_batch("DROP TRIGGER poison")
        .expect("no trigger");
    assert!(matches!(
        store.claim(&poison, START_MS).await,
        Ok(Claim::Claimed(_))
    ));
}

#[tokio::test]
async fn a_file_of_a_later_version_or_of_somebody_else_is_refused() {
    let dir = TempDir::new().expect("a directory for the test");
    drop(open(dir.path(), RETENTION));
    let other = rusqlite::Connection::open(dir.path().join("claims.db")).expect("the file");
    other
        .execute_batch("PRAGMA user_version = 2")
        .expect("a later layout");
    drop(other);
    let answer = EmbeddedStore::open(&config(dir.path(), RETENTION));
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");

    let dir = TempDir::new().expect("a directory for the test");
    std::fs::write(dir.path().join("claims.db"), [7; 4_096]).expect("a file");
    let answer = EmbeddedStore::open(&config(dir.path(), RETENTION));
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
}

#[tokio::test]
async fn a_look_sees_what_was_answered_while_the_store_is_open_and_after() {
    let dir = TempDir::new().expect("a directory for the test");
    let config = config(dir.path(), RETENTION);
    let (known, unknown) = (ask(), ask());
    let missing = peek::get(&config, &known.key, START_MS);
    assert!(
        matches!(missing, Err(StoreError::Refused(_))),
        "{missing:?}"
    );
    assert_eq!(dir.path().read_dir().expect("a directory").count(), 0);

    let store = open(dir.path(), RETENTION);
    store.claim(&known, START_MS).await.expect("an answer");
    let row = store.get(&known.key, START_MS).await.expect("an answer");
    assert!(row.is_some());
    assert_eq!(peek::get(&config, &known.key, START_MS), Ok(row.clone()));
    assert_eq!(peek::get(&config, &unknown.key, START_MS), Ok(None));
    drop(store);
    assert_eq!(peek::get(&config, &known.key, START_MS), Ok(row));

    let file = rusqlite::Connection::open(dir.path().join("claims.db")).expect("the file");
    file.execute_batch("PRAGMA user_version = 2")
        .expect("a later layout");
    let later = peek::get(&config, &known.key, START_MS);
    assert!(matches!(later, Err(StoreError::Refused(_))), "{later:?}");
}

/// The operator's tool and the process that has the directory open take turns, in both directions.
#[tokio::test]
async fn a_tool_notes_standings_beside_the_open_store() {
    let dir = TempDir::new().expect("a directory for the test");
    let config = config(dir.path(), RETENTION);
    let missing = Beside::open(&config);
    assert!(
        matches!(missing, Err(StoreError::Refused(_))),
        "{missing:?}"
    );
    assert_eq!(dir.path().read_dir().expect("a directory").count(), 0);

    let store = open(dir.path(), RETENTION);
    let paused = Standing::default().pause(START_MS, PauseCause::Manual, "moving");
    let tool = Beside::open(&config).expect("beside");
    assert_eq!(tool.set_standing("billing", &paused), Ok(Noted::Written));
    let seen = store.standings().await.expect("an answer");
    assert_eq!(seen.get("billing"), Some(&paused));
    let resumed = paused.resume(START_MS + 1);
    assert_eq!(
        store.set_standing("billing", &resumed).await,
        Ok(Noted::Written)
    );
    assert_eq!(tool.set_standing("billing", &paused), Ok(Noted::Outdated));
    assert_eq!(
        tool.standings().expect("a look").get("billing"),
        Some(&resumed)
    );
    let look = peek::Peek::open(&config).expect("a look").standings();
    assert_eq!(look.expect("a look").get("billing"), Some(&resumed));
    // Under load, both get their turns.
    let asks: Vec<_> = (0..200).map(|_| ask()).collect();
    let claims = join_all(asks.iter().map(|ask| store.claim(ask, START_MS)));
    let notes = tokio::task::spawn_blocking(move || {
        let mut standing = resumed;
        for at in 0..20 {
            standing = standing.failing(Some(START_MS + at));
            assert_eq!(tool.set_standing("billing", &standing), Ok(Noted::Written));
        }
    });
    let (claims, notes) = tokio::join!(claims, notes);
    assert!(claims.iter().all(Result::is_ok));
    notes.expect("all written");
}

/// A file from before there were standings: a look finds none, opening it makes the table.
#[tokio::test]
async fn a_file_without_standings_gets_them() {
    let dir = TempDir::new().expect("a directory for the test");
    let config = config(dir.path(), RETENTION);
    drop(open(dir.path(), RETENTION));
    let file = rusqlite::Connection::open(dir.path().join("claims.db")).expect("the file");
    file.execute_batch("DROP TABLE standings").expect("older");
    let look = peek::Peek::open(&config).expect("a look");
    assert_eq!(look.standings(), Ok(std::collections::BTreeMap::new()));
    assert_eq!(look.get(&ask().key, START_MS), Ok(None));
    let first = Standing::default().failing(Some(START_MS));
    let tool = Beside::open(&config).expect("beside");
    assert_eq!(tool.set_standing("billing", &first), Ok(Noted::Written));
    let store = open(dir.path(), RETENTION);
    assert_eq!(store.standings().await.expect("an answer").len(), 1);
}

fn config(dir: &Path, retention: Retention) -> EmbeddedConfig {
    let ms = |ms: i64| Duration::from_millis(u64::try_from(ms).expect("a positive time"));
    EmbeddedConfig {
        dir: dir.to_owned(),
        deadline: Duration::from_secs(60),
        retention: RetentionConfig {
            open: ms(retention.open_ms),
            failed: ms(retention.failed_ms),
            completed: ms(retention.completed_ms),
        },
        ..EmbeddedConfig::default()
    }
}

fn open(dir: &Path, retention: Retention) -> EmbeddedStore {
    EmbeddedStore::open(&config(dir, retention)).expect("a store")
}

fn rows(dir: &Path) -> i64 {
    rusqlite::Connection::open(dir.join("claims.db"))
        .and_then(|file| file.query_row("SELECT count(*) FROM claims", [], |row| row.get(0)))
        .expect("a count")
}

fn ask() -> ClaimAsk {
    ClaimAsk {
        key: DeliveryKey {
            source: "github".to_owned(),
            delivery_id: Uuid::new_v4().to_string(),
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
