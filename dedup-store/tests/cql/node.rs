//! What the tests stand on: the node, a keyspace of this run, asks with fresh keys.

use dedup_store::{
    Claim, ClaimAsk, Held, Reopen, Store, StoreError,
    config::CqlConfig,
    cql::{self, CqlStore},
};
use schemas::DeliveryKey;
use scylla::client::{session::Session, session_builder::SessionBuilder};
use std::{net::SocketAddr, path::Path, time::Duration};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// Longer than anything takes on a busy machine; a test that needs it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const LEASE_MS: i64 = 15_000;

static KEYSPACE: OnceCell<String> = OnceCell::const_new();

/// The node and this run's keyspace.
pub(crate) struct Node {
    pub(crate) addr: SocketAddr,
    pub(crate) keyspace: String,
}

// === impl Node ===

impl Node {
    /// None: no node is named, and none is required.
    pub(crate) async fn get() -> Option<Self> {
        let Some(addr) = variable("FENCEPOST_TEST_CQL") else {
            let required = variable("FENCEPOST_TEST_STACK").as_deref() == Some("required");
            assert!(!required, "FENCEPOST_TEST_CQL names no node");
            say_skipped();
            return None;
        };
        let addr = addr.parse().expect("FENCEPOST_TEST_CQL is ip:port");
        let keyspace = KEYSPACE.get_or_init(|| async {
            let keyspace = format!("t_{}", Uuid::new_v4().simple());
            let config = CqlConfig {
                keyspace: keyspace.clone(),
                ..config(addr)
            };
            let migrated = cql::migrate(&config, Path::new("."))
                .await
                .expect("migrate");
            assert_eq!(migrated.executed.len(), 3, "{migrated:?}");
            keyspace
        });
        Some(Self {
            addr,
            keyspace: keyspace.await.clone(),
        })
    }

    pub(crate) fn config(&self) -> CqlConfig {
        CqlConfig {
            keyspace: self.keyspace.clone(),
            ..config(self.addr)
        }
    }

    pub(crate) async fn store(&self) -> CqlStore {
        CqlStore::connect(&self.config(), Path::new("."))
            .await
            .expect("connect")
    }

    /// A session of the test's own, for what a store never does.
    pub(crate) async fn session(&self) -> Session {
        let session = SessionBuilder::new()
            .known_node_addr(self.addr)
            .build()
            .await
            .expect("session");
        session
            .use_keyspace(&self.keyspace, false)
            .await
            .expect("keyspace");
        session
    }
}

fn config(addr: SocketAddr) -> CqlConfig {
    CqlConfig {
        contact_points: vec![addr.to_string()],
        replication_factor: 1,
        request_timeout: Duration::from_secs(10),
        deadline: Duration::from_secs(40),
        ..CqlConfig::default()
    }
}

pub(crate) fn now_ms() -> i64 {
    runtime::Clock::system().now_ms()
}

pub(crate) fn ask() -> ClaimAsk {
    ClaimAsk {
        key: DeliveryKey {
            source: "github".to_owned(),
            delivery_id: Uuid::new_v4().to_string(),
            destination: "billing".to_owned(),
        },
        token: Uuid::new_v4(),
        lease_ms: LEASE_MS,
        skew_margin_ms: 1_000,
        attempt: 1,
        fence: None,
        generation: 0,
        received_at_ms: 0,
        reopen: Reopen::Exhausted,
    }
}

/// The same delivery, asked for by somebody else.
pub(crate) fn rival(ask: &ClaimAsk) -> ClaimAsk {
    ClaimAsk {
        token: Uuid::new_v4(),
        ..ask.clone()
    }
}

pub(crate) fn held(claim: Claim) -> Held {
    let Claim::Claimed(held) = claim else {
        panic!("not claimed: {claim:?}")
    };
    held
}

pub(crate) async fn claimed(store: &CqlStore, ask: &ClaimAsk, now_ms: i64) -> Held {
    held(store.claim(ask, now_ms).await.expect("claim"))
}

pub(crate) fn is_unavailable<T: std::fmt::Debug>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unavailable(_)))
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests take the node's address from the environment"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[expect(
    clippy::print_stdout,
    reason = "whoever runs the tests shall know what did not run"
)]
fn say_skipped() {
    println!("skipped: set FENCEPOST_TEST_CQL=ip:port (`tests/stack/stack up` starts a node)");
}
