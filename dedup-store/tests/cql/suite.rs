//! The suite that every store passes.

use crate::node::Node;
use dedup_store::{
    Retention,
    config::{CqlConfig, RetentionConfig},
    conformance::Harness,
    cql::CqlStore,
};
use std::{path::Path, time::Duration};

impl Harness for Node {
    type Store = CqlStore;

    async fn open(&self, retention: Retention) -> CqlStore {
        let duration = |ms| Duration::from_millis(u64::try_from(ms).expect("not negative"));
        let retention = RetentionConfig {
            open: duration(retention.open_ms),
            failed: duration(retention.failed_ms),
            completed: duration(retention.completed_ms),
        };
        let config = CqlConfig {
            retention,
            ..self.config()
        };
        CqlStore::connect(&config, Path::new("."))
            .await
            .expect("connect")
    }

    async fn reopen(&self, store: CqlStore, retention: Retention) -> Option<CqlStore> {
        drop(store);
        Some(self.open(retention).await)
    }

    /// The store takes a row whose time has passed for absent, even while the server still shows it.
    async fn pass(&self, _from_ms: i64, _until_ms: i64) {}
}

dedup_store::conformance_tests!(match Node::get().await {
    Some(node) => node,
    None => return,
});
