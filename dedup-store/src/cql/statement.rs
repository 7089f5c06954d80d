//! The statements on the table of claims: their text, their values, and what they are prepared with.
//!
//! - UPDATE, never INSERT: an INSERT leaves a row marker with a TTL of its own, which keeps an empty row alive.
//! - Every write sets all columns of the row's state with one TTL; a column without a value is left unset, never null.
//! - Every column that is wanted back stands in the IF clause.
//! - The key is bound, so that the driver can route to a replica.

use super::{seen::Seen, standings};
use crate::claim::{self, Retention, Row};
use schemas::DeliveryKey;
use scylla::{
    client::session::Session,
    errors::PrepareError,
    statement::{Consistency, SerialConsistency, prepared::PreparedStatement},
    value::{CqlTimestamp, CqlValue, MaybeUnset},
};

/// Name of the table.
pub(super) const TABLE: &str = "delivery";

/// Columns outside the key, with their types, in the order of their bind markers.
pub(super) const COLUMNS: [(&str, &str); 10] = [
    ("status", "tinyint"),
    ("claim_token", "uuid"),
    ("lease_until", "timestamp"),
    ("attempts", "int"),
    ("generation", "int"),
    ("not_before", "timestamp"),
    ("reason", "text"),
    ("created_at", "timestamp"),
    ("completed_at", "timestamp"),
    ("failed_at", "timestamp"),
];

/// Columns of the partition key; all are text.
pub(super) const KEY: [&str; 3] = ["source", "delivery_id", "destination"];

/// The longest TTL that the servers take, seconds: 20 years.
pub(super) const TTL_SECS_MAX: i64 = 630_720_000;

/// Values in the order of the bind markers.
pub(super) type Values = Vec<MaybeUnset<CqlValue>>;

/// The prepared statements.
#[derive(Debug)]
pub(super) struct Statements {
    /// Writes when the row is absent, and shows the whole row when it is not.
    pub(super) absent: PreparedStatement,
    /// Writes when status, token and lease are as seen; index: [`shape`].
    swap: [PreparedStatement; SHAPES],
    /// Writes when the token is ours, the row is being processed and its lease is shorter.
    pub(super) renew: PreparedStatement,
    /// Reads the last decided row.
    pub(super) read: PreparedStatement,
    /// Asks whether a quorum answers.
    pub(super) probe: PreparedStatement,
    /// Those on the other table.
    pub(super) standings: standings::Statements,
}

// === impl Statements ===

impl Statements {
    /// Prepares all of them.
    ///
    /// # Errors
    /// The driver's: a missing table, no node.
    pub(super) async fn prepare(
        session: &Session,
        keyspace: &str,
        serial: SerialConsistency,
    ) -> Result<Self, PrepareError> {
        let write = async |condition: &str| {
            let mut statement = session.prepare(update(keyspace, condition)).await?;
            statement.set_consistency(Consistency::LocalQuorum);
            statement.set_serial_consistency(Some(serial));
            statement.set_is_idempotent(false);
            // The shape of the answer differs from execution to execution.
            statement.set_use_cached_result_metadata(false);
            Ok::<_, PrepareError>(statement)
        };
        let absent = write(&all_null()).await?;
        let mut swap = std::array::from_fn(|_| absent.clone());
        for (shape, statement) in swap.iter_mut().enumerate() {
            *statement = write(&as_seen(shape)).await?;
        }
        let renew = write("claim_token = ? AND status = ? AND lease_until < ?").await?;
        let select = select(keyspace);
        let mut read = session.prepare(select.as_str()).await?;
        read.set_consistency(last_decided(serial));
        let mut probe = session.prepare(select).await?;
        probe.set_consistency(Consistency::LocalQuorum);
        Ok(Self {
            absent,
            swap,
            renew,
            read,
            probe,
            standings: standings::Statements::prepare(session, keyspace, serial).await?,
        })
    }

    /// The compare-and-set on `seen`, and the values of its condition.
    pub(super) fn swap(&self, seen: &Seen) -> (&PreparedStatement, Values) {
        let values = [
            seen.status.map(CqlValue::TinyInt),
            seen.claim_token.map(CqlValue::Uuid),
            seen.lease_until_ms.map(timestamp),
        ];
        let values = values.into_iter().flatten().map(MaybeUnset::Set).collect();
        (&self.swap[shape(seen)], values)
    }
}

/// The consistency of a read that sees the last decided write.
pub(super) fn last_decided(serial: SerialConsistency) -> Consistency {
    match serial {
        SerialConsistency::Serial => Consistency::Serial,
        SerialConsistency::LocalSerial => Consistency::LocalSerial,
    }
}

/// The values of SET and WHERE; those of the condition follow.
pub(super) fn values(key: &DeliveryKey, row: &Row, ttl_secs: i32) -> Values {
    let shown = |column: Option<CqlValue>| match column {
        Some(value) => MaybeUnset::Set(value),
        None => MaybeUnset::Unset,
    };
    let int = |count: u32| CqlValue::Int(i32::try_from(count).unwrap_or(i32::MAX));
    let text = |text: &str| CqlValue::Text(text.to_owned());
    let mut values = vec![
        MaybeUnset::Set(CqlValue::Int(ttl_secs)),
        MaybeUnset::Set(CqlValue::TinyInt(row.status.code())),
        MaybeUnset::Set(CqlValue::Uuid(row.claim_token)),
        MaybeUnset::Set(timestamp(row.lease_until_ms)),
        MaybeUnset::Set(int(row.attempts)),
        MaybeUnset::Set(int(row.generation)),
        shown(row.not_before_ms.map(timestamp)),
        shown(row.reason.map(|reason| text(reason.as_str()))),
        MaybeUnset::Set(timestamp(row.created_at_ms)),
        shown(row.completed_at_ms.map(timestamp)),
        shown(row.failed_at_ms.map(timestamp)),
    ];
    values.extend(key_values(key));
    values
}

/// The values of [`Statements::read`] and [`Statements::probe`].
pub(super) fn key_values(key: &DeliveryKey) -> Values {
    let text = |text: &str| MaybeUnset::Set(CqlValue::Text(text.to_owned()));
    vec![
        text(&key.source),
        text(&key.delivery_id),
        text(&key.destination),
    ]
}

/// The condition's values of [`Statements::renew`].
pub(super) fn renewal_values(row: &Row) -> Values {
    vec![
        MaybeUnset::Set(CqlValue::Uuid(row.claim_token)),
        MaybeUnset::Set(CqlValue::TinyInt(row.status.code())),
        MaybeUnset::Set(timestamp(row.lease_until_ms)),
    ]
}

/// How long the server keeps a row that is written now, seconds: rounded up, at least one. A row that is written after its
/// own expiry, because its owner comes late, is kept as long as an open one.
pub(super) fn ttl_secs(row: &Row, retention: &Retention, now_ms: i64) -> i32 {
    let left_ms = claim::expires_at_ms(row, retention)
        .saturating_sub(now_ms)
        .max(retention.open_ms);
    let secs = left_ms.saturating_add(999) / 1_000;
    i32::try_from(secs.clamp(1, TTL_SECS_MAX)).unwrap_or(i32::MAX)
}

const SHAPES: usize = 8;

/// Which of status, token and lease the server showed. A comparison with null needs a text of its own.
fn shape(seen: &Seen) -> usize {
    usize::from(seen.status.is_some())
        | usize::from(seen.claim_token.is_some()) << 1
        | usize::from(seen.lease_until_ms.is_some()) << 2
}

fn as_seen(shape: usize) -> String {
    let terms = ["status", "claim_token", "lease_until"]
        .into_iter()
        .enumerate();
    let terms = terms.map(|(bit, column)| {
        let value = if shape >> bit & 1 == 1 { "?" } else { "null" };
        format!("{column} = {value}")
    });
    terms.collect::<Vec<_>>().join(" AND ")
}

fn all_null() -> String {
    COLUMNS
        .map(|(column, _)| format!("{column} = null"))
        .join(" AND ")
}

fn update(keyspace: &str, condition: &str) -> String {
    let set = COLUMNS
        .map(|(column, _)| format!("{column} = ?"))
        .join(", ");
    format!(
        "UPDATE {keyspace}.{TABLE} USING TTL ? SET {set} WHERE {} IF {condition}",
        key()
    )
}

fn select(keyspace: &str) -> String {
    let columns = COLUMNS.map(|(column, _)| column).join(", ");
    format!("SELECT {columns} FROM {keyspace}.{TABLE} WHERE {}", key())
}

fn key() -> String {
    KEY.map(|column| format!("{column} = ?")).join(" AND ")
}

pub(super) fn timestamp(ms: i64) -> CqlValue {
    CqlValue::Timestamp(CqlTimestamp(ms))
}

#[cfg(test)]
mod tests {
    use super::{TTL_SECS_MAX, all_null, as_seen, shape, ttl_secs, update, values};
    use crate::{
        claim::{Retention, Row, Status},
        cql::seen::Seen,
    };
    use schemas::DeliveryKey;
    use scylla::value::MaybeUnset;
    use uuid::Uuid;

    fn row() -> Row {
        Row {
            status: Status::Processing,
            claim_token: Uuid::from_u128(1),
            lease_until_ms: 15_000,
            attempts: 1,
            generation: 0,
            not_before_ms: None,
            reason: None,
            created_at_ms: 0,
            completed_at_ms: None,
            failed_at_ms: None,
        }
    }

    #[test]
    fn ttl_is_rounded_up_and_bounded() {
        let retention = Retention {
            open_ms: 1_000,
            failed_ms: 2_000,
            completed_ms: 3_000,
        };
        assert_eq!(ttl_secs(&row(), &retention, 0), 16);
        assert_eq!(ttl_secs(&row(), &retention, 1), 16);
        assert_eq!(ttl_secs(&row(), &retention, 1_000), 15);
        assert_eq!(ttl_secs(&row(), &retention, 90_000), 1);
        let day = Retention {
            open_ms: 86_400_000,
            ..retention
        };
        assert_eq!(ttl_secs(&row(), &day, 200_000_000), 86_400);
        let forever = Retention {
            open_ms: i64::MAX,
            ..retention
        };
        assert_eq!(i64::from(ttl_secs(&row(), &forever, 0)), TTL_SECS_MAX);
    }

    #[test]
    fn no_value_is_ever_null_and_none_is_missing() {
        let key = DeliveryKey {
            source: "s".to_owned(),
            delivery_id: "d".to_owned(),
            destination: "b".to_owned(),
        };
        let values = values(&key, &row(), 60);
        let text = update("k", "claim_token = null");
        assert_eq!(values.len(), text.matches('?').count());
        let unset = values
            .iter()
            .filter(|value| matches!(value, MaybeUnset::Unset))
            .count();
        assert_eq!(unset, 4);
        assert!(text.starts_with("UPDATE k.delivery USING TTL ? SET status = ?, claim_token = ?"));
    }

    #[test]
    fn conditions() {
        assert_eq!(
            as_seen(0),
            "status = null AND claim_token = null AND lease_until = null"
        );
        let seen = Seen::from(&row());
        assert_eq!(
            as_seen(shape(&seen)),
            "status = ? AND claim_token = ? AND lease_until = ?"
        );
        let mut half = seen;
        half.claim_token = None;
        assert_eq!(
            as_seen(shape(&half)),
            "status = ? AND claim_token = null AND lease_until = ?"
        );
        assert_eq!(all_null().matches(" = null").count(), 10);
    }
}
