//! The store that the config names, behind one type.

use crate::failure::Failure;
#[cfg(feature = "cql")]
use dedup_store::cql::CqlStore;
use dedup_store::{
    Claim, ClaimAsk, Held, Noted, Renewal, Row, Standing, Standings, Store, StoreError, Transition,
    config::{EmbeddedConfig, StoreConfig},
    embedded::EmbeddedStore,
};
use schemas::{DeliveryKey, Reason};
use std::path::Path;

/// The store of this process.
#[derive(Clone, Debug)]
pub(crate) enum AnyStore {
    Embedded(EmbeddedStore),
    #[cfg(feature = "cql")]
    Cql(CqlStore),
}

/// Opens the store that `config` names.
///
/// # Errors
/// [`Failure::Unavailable`] when it can not be reached, is in use or lacks its table; [`Failure::Config`] when this binary
/// lacks it.
#[cfg_attr(
    not(feature = "cql"),
    expect(clippy::unused_async, reason = "only CQL is awaited")
)]
pub(crate) async fn open(config: &StoreConfig, base: &Path) -> Result<AnyStore, Failure> {
    match config {
        StoreConfig::Embedded(embedded) => EmbeddedStore::open(embedded)
            .map(AnyStore::Embedded)
            .map_err(Failure::from),
        #[cfg(feature = "cql")]
        StoreConfig::Cql(cql) => CqlStore::connect(cql, base)
            .await
            .map(AnyStore::Cql)
            .map_err(Failure::from),
        #[cfg(not(feature = "cql"))]
        StoreConfig::Cql(_) => {
            let _: &Path = base;
            Err(Failure::not_built("store.kind", "cql"))
        }
    }
}

/// Refuses to look into a directory that no process has made yet; opening would make it.
///
/// # Errors
/// [`Failure::Unavailable`].
pub(crate) fn must_exist(config: &EmbeddedConfig) -> Result<(), Failure> {
    if config.dir.is_dir() {
        return Ok(());
    }
    let dir = config.dir.display();
    Err(Failure::Unavailable(format!(
        "there is no embedded store in {dir} yet"
    )))
}

// === impl AnyStore ===

impl AnyStore {
    /// Shows in the metrics how busy the client is; the embedded store has none.
    pub(crate) fn observe(&self) {
        match self {
            Self::Embedded(_) => {}
            #[cfg(feature = "cql")]
            Self::Cql(store) => {
                let store = store.clone();
                dispatcher::metrics::observe_store(move || store.load());
            }
        }
    }
}

impl Store for AnyStore {
    async fn claim(&self, ask: &ClaimAsk, now_ms: i64) -> Result<Claim, StoreError> {
        match self {
            Self::Embedded(store) => store.claim(ask, now_ms).await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.claim(ask, now_ms).await,
        }
    }

    async fn renew(
        &self,
        held: &Held,
        lease_until_ms: i64,
        now_ms: i64,
    ) -> Result<Renewal, StoreError> {
        match self {
            Self::Embedded(store) => store.renew(held, lease_until_ms, now_ms).await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.renew(held, lease_until_ms, now_ms).await,
        }
    }

    async fn schedule(
        &self,
        held: &Held,
        not_before_ms: i64,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        match self {
            Self::Embedded(store) => store.schedule(held, not_before_ms, now_ms).await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.schedule(held, not_before_ms, now_ms).await,
        }
    }

    async fn complete(&self, held: &Held, now_ms: i64) -> Result<Transition, StoreError> {
        match self {
            Self::Embedded(store) => store.complete(held, now_ms).await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.complete(held, now_ms).await,
        }
    }

    async fn fail(
        &self,
        held: &Held,
        reason: Reason,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        match self {
            Self::Embedded(store) => store.fail(held, reason, now_ms).await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.fail(held, reason, now_ms).await,
        }
    }

    async fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, StoreError> {
        match self {
            Self::Embedded(store) => store.get(key, now_ms).await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.get(key, now_ms).await,
        }
    }

    async fn standings(&self) -> Result<Standings, StoreError> {
        match self {
            Self::Embedded(store) => store.standings().await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.standings().await,
        }
    }

    async fn set_standing(&self, destination: &str, new: &Standing) -> Result<Noted, StoreError> {
        match self {
            Self::Embedded(store) => store.set_standing(destination, new).await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.set_standing(destination, new).await,
        }
    }

    async fn ready(&self) -> Result<(), StoreError> {
        match self {
            Self::Embedded(store) => store.ready().await,
            #[cfg(feature = "cql")]
            Self::Cql(store) => store.ready().await,
        }
    }
}
