//! How destinations stand: one small partition, so that it can be read whole as it was decided last.
//!
//! Written rarely, by a condition on the revision alone. Unlike claims, rows stay: there is no TTL. No null is ever bound, as
//! with claims: a time that there is not is written as 0, a text as the empty one.

use super::{
    applied,
    issue::{Issuer, unreadable},
    statement::{Values, last_decided, timestamp},
};
use crate::{
    StoreError,
    standing::{self, Noted, PauseCause, Paused, STANDINGS_MAX, Standing, Standings, Turn},
};
use scylla::{
    client::session::Session,
    errors::PrepareError,
    response::query_result::QueryRowsResult,
    statement::{Consistency, SerialConsistency, prepared::PreparedStatement},
    value::{CqlTimestamp, CqlValue, MaybeUnset},
};
use tokio::time::Instant;

/// Name of the table.
pub(super) const TABLE: &str = "standing";

/// All in one partition.
const SCOPE: &str = "all";

/// Every column and its type. The first two are the key.
const COLUMNS: [(&str, &str); 8] = [
    ("scope", "text"),
    ("destination", "text"),
    ("revision", "bigint"),
    ("failing_since", "timestamp"),
    ("paused_at", "timestamp"),
    ("cause", "text"),
    ("note", "text"),
    ("resumed_at", "timestamp"),
];

/// The prepared statements.
#[derive(Debug)]
pub(super) struct Statements {
    all: PreparedStatement,
    /// Writes when there is no row.
    absent: PreparedStatement,
    /// Writes when the revision is as seen.
    follow: PreparedStatement,
}

type Line = (
    String,
    Option<i64>,
    Option<CqlTimestamp>,
    Option<CqlTimestamp>,
    Option<String>,
    Option<String>,
    Option<CqlTimestamp>,
);

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
            statement.set_use_cached_result_metadata(false);
            Ok::<_, PrepareError>(statement)
        };
        let absent = write("revision = null").await?;
        let follow = write("revision = ?").await?;
        let mut all = session.prepare(select(keyspace)).await?;
        all.set_consistency(last_decided(serial));
        Ok(Self {
            all,
            absent,
            follow,
        })
    }
}

/// Every one of them, as it was decided last.
///
/// # Errors
/// See [`StoreError`].
pub(super) async fn all(
    issuer: &Issuer,
    statements: &Statements,
    deadline: Instant,
) -> Result<Standings, StoreError> {
    let values = vec![text(SCOPE)];
    issuer
        .read_all(&statements.all, &values, deadline, read)
        .await
}

/// Compare and set.
///
/// # Errors
/// See [`StoreError`].
pub(super) async fn set(
    issuer: &Issuer,
    statements: &Statements,
    destination: &str,
    new: &Standing,
    deadline: Instant,
) -> Result<Noted, StoreError> {
    let mut values = values(destination, new);
    let statement = match new.follows() {
        0 => &statements.absent,
        seen => {
            values.push(MaybeUnset::Set(CqlValue::BigInt(seen)));
            &statements.follow
        }
    };
    let answer = issuer.write(statement, &values, deadline).await?;
    if applied(answer.applied)? {
        return Ok(Noted::Written);
    }
    // An earlier issue may have been applied and its answer lost; the answer shows the revision alone.
    let standings = all(issuer, statements, deadline).await?;
    Ok(match standing::turn(standings.get(destination), new) {
        Turn::Answer(noted) => noted,
        Turn::Write => Noted::Outdated,
    })
}

pub(super) fn table_ddl(keyspace: &str) -> String {
    let columns = COLUMNS
        .map(|(column, cql_type)| format!("{column} {cql_type}, "))
        .concat();
    format!(
        "CREATE TABLE IF NOT EXISTS {keyspace}.{TABLE} ({columns}PRIMARY KEY ((scope), destination))"
    )
}

/// What keeps us from working with the table that has the columns `found`; none: nothing.
pub(super) fn difference(keyspace: &str, found: &[(&str, &str)]) -> Option<String> {
    if found.is_empty() {
        return Some(format!(
            "table {keyspace}.{TABLE} does not exist; run `fencepost store migrate`"
        ));
    }
    let missing = COLUMNS.iter().find(|column| !found.contains(column))?;
    let (name, cql_type) = missing;
    Some(format!(
        "table {keyspace}.{TABLE} has no column {name} of type {cql_type}: it is not the table that `fencepost store \
         migrate` makes"
    ))
}

fn values(destination: &str, new: &Standing) -> Values {
    let paused = new.paused.as_ref();
    let time = |ms: Option<i64>| MaybeUnset::Set(timestamp(ms.unwrap_or(0)));
    vec![
        MaybeUnset::Set(CqlValue::BigInt(new.revision)),
        time(new.failing_since_ms),
        time(paused.map(|paused| paused.at_ms)),
        text(paused.map_or("", |paused| paused.cause.as_str())),
        text(paused.map_or("", |paused| &paused.note)),
        time(new.resumed_at_ms),
        text(SCOPE),
        text(destination),
    ]
}

fn update(keyspace: &str, condition: &str) -> String {
    let set = COLUMNS
        .iter()
        .skip(2)
        .map(|(column, _)| format!("{column} = ?"))
        .collect::<Vec<_>>()
        .join(", ");
    format!(
        "UPDATE {keyspace}.{TABLE} SET {set} WHERE scope = ? AND destination = ? IF {condition}"
    )
}

fn select(keyspace: &str) -> String {
    let columns = COLUMNS.map(|(column, _)| column);
    let columns = columns.get(1..).unwrap_or_default().join(", ");
    format!("SELECT {columns} FROM {keyspace}.{TABLE} WHERE scope = ? LIMIT {STANDINGS_MAX}")
}

fn read(rows: &QueryRowsResult) -> Result<Standings, StoreError> {
    let lines = rows.rows::<Line>().map_err(|error| unreadable(&error))?;
    let time = |at: Option<CqlTimestamp>| at.map(|at| at.0).filter(|ms| *ms != 0);
    let standings = lines.map(|line| {
        let (destination, revision, failing_since, paused_at, cause, note, resumed_at) =
            line.map_err(|error| unreadable(&error))?;
        let standing = Standing {
            revision: revision.unwrap_or(0),
            failing_since_ms: time(failing_since),
            paused: time(paused_at).map(|at_ms| Paused {
                at_ms,
                cause: PauseCause::parse(&cause.unwrap_or_default()),
                note: note.unwrap_or_default(),
            }),
            resumed_at_ms: time(resumed_at),
        };
        Ok((destination, standing))
    });
    standings.collect()
}

fn text(text: &str) -> MaybeUnset<CqlValue> {
    MaybeUnset::Set(CqlValue::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fit_the_statement_and_none_is_null() {
        let values = values("billing", &Standing::default().failing(None));
        let text = update("k", "revision = null");
        assert_eq!(values.len(), text.matches('?').count());
        assert!(
            values
                .iter()
                .all(|value| matches!(value, MaybeUnset::Set(_)))
        );
        assert_eq!(
            select("k"),
            "SELECT destination, revision, failing_since, paused_at, cause, note, resumed_at FROM k.standing \
             WHERE scope = ? LIMIT 10000"
        );
    }

    #[test]
    fn the_table_is_checked() {
        assert_eq!(
            table_ddl("k"),
            "CREATE TABLE IF NOT EXISTS k.standing (scope text, destination text, revision bigint, failing_since \
             timestamp, paused_at timestamp, cause text, note text, resumed_at timestamp, PRIMARY KEY ((scope), destination))"
        );
        assert_eq!(difference("k", &COLUMNS), None);
        let none = difference("k", &[]).unwrap();
        assert!(none.contains("fencepost store migrate"), "{none}");
        let other = difference("k", &COLUMNS[1..]).unwrap();
        assert!(other.contains("no column scope of type text"), "{other}");
    }
}
