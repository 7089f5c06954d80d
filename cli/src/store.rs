//! `fencepost store migrate | get`.

use crate::{
    args::GetArgs,
    config::Loaded,
    failure::Failure,
    output::{plain, time},
    ports,
};
use dedup_store::{Row, config::StoreConfig};
use schemas::DeliveryKey;
use serde_json::json;
use std::path::Path;

/// Makes what is missing; says what was done.
///
/// # Errors
/// When the store can not be reached, or refuses.
#[cfg_attr(
    not(feature = "cql"),
    expect(clippy::unused_async, reason = "only CQL is awaited")
)]
pub(crate) async fn migrate(config: &StoreConfig, base: &Path) -> Result<String, Failure> {
    match config {
        StoreConfig::Embedded(embedded) => Ok(format!(
            "nothing to do: the embedded store makes its file in {} by itself\n",
            embedded.dir.display()
        )),
        #[cfg(feature = "cql")]
        StoreConfig::Cql(cql) => {
            let migrated = dedup_store::cql::migrate(cql, base).await?;
            let mut text = format!("{}, keyspace {}\n", migrated.server, cql.keyspace);
            for statement in &migrated.executed {
                text += &format!("{statement}\n");
            }
            if migrated.executed.is_empty() {
                text.push_str("nothing to do\n");
            }
            Ok(text)
        }
        #[cfg(not(feature = "cql"))]
        StoreConfig::Cql(_) => {
            let _: &Path = base;
            Err(Failure::not_built("store.kind", "cql"))
        }
    }
}

/// The row of a delivery as text; none when there is no row.
///
/// # Errors
/// When the store can not be reached.
pub(crate) async fn get(
    args: &GetArgs,
    loaded: &Loaded,
    now_ms: i64,
) -> Result<Option<String>, Failure> {
    let key = DeliveryKey {
        source: args.source.clone(),
        delivery_id: args.delivery_id.clone(),
        destination: args.destination.clone(),
    };
    let row = ports::peek::row(&loaded.config.store, &loaded.base, &key, now_ms).await?;
    Ok(row.map(|row| {
        if args.json {
            row_json(&key, &row)
        } else {
            row_text(&key, &row)
        }
    }))
}

fn row_json(key: &DeliveryKey, row: &Row) -> String {
    let row = json!({
        "source": key.source,
        "delivery_id": key.delivery_id,
        "destination": key.destination,
        "status": row.status.as_str(),
        "claim_token": row.claim_token.to_string(),
        "lease_until": time(row.lease_until_ms),
        "attempts": row.attempts,
        "generation": row.generation,
        "not_before": row.not_before_ms.map(time),
        "reason": row.reason.map(|reason| reason.as_str()),
        "created_at": time(row.created_at_ms),
        "completed_at": row.completed_at_ms.map(time),
        "failed_at": row.failed_at_ms.map(time),
    });
    format!("{row}\n")
}

fn row_text(key: &DeliveryKey, row: &Row) -> String {
    let optional = |ms: Option<i64>| ms.map_or_else(|| "-".to_owned(), time);
    [
        ("delivery", plain(&key.to_string())),
        ("status", row.status.as_str().to_owned()),
        ("attempts", row.attempts.to_string()),
        ("generation", row.generation.to_string()),
        (
            "reason",
            row.reason.map_or("-", |reason| reason.as_str()).to_owned(),
        ),
        ("created_at", time(row.created_at_ms)),
        ("lease_until", time(row.lease_until_ms)),
        ("not_before", optional(row.not_before_ms)),
        ("completed_at", optional(row.completed_at_ms)),
        ("failed_at", optional(row.failed_at_ms)),
        ("claim_token", row.claim_token.to_string()),
    ]
    .iter()
    .fold(String::new(), |mut text, (name, value)| {
        text += &format!("{name:<13} {value}\n");
        text
    })
}
