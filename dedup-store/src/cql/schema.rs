//! Keyspace and tables: their DDL for each server, making them, checking them at start.

use super::{
    connect, standings,
    statement::{COLUMNS, KEY, TABLE, TTL_SECS_MAX},
};
use crate::{
    StoreError,
    config::{CqlConfig, Flavor},
};
use scylla::{client::session::Session, errors::ExecutionError};
use std::path::Path;

/// Grace before tombstones may go, seconds: far above the hint window, since nothing is ever deleted by hand.
const GC_GRACE_SECS: u32 = 86_400;

/// What [`migrate`] found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The server, e.g. `cassandra 5`.
    pub server: String,
    /// The statements that were executed; empty when everything was there.
    pub executed: Vec<String>,
}

/// A server, as far as its tables' options differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Scylla,
    Cassandra { major: u32 },
}

/// A column as the server describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    name: String,
    cql_type: String,
    kind: String,
}

/// Makes the keyspace and the tables when they are missing, and adds missing columns. Safe to repeat.
///
/// An existing keyspace is left as it is: replication over several data centres is the operator's.
///
/// # Errors
/// [`StoreError::Unavailable`] when no node answers; [`StoreError::Refused`] when rights are missing or the table is
/// another one.
pub async fn migrate(config: &CqlConfig, secrets_base: &Path) -> Result<Migrated, StoreError> {
    let session = connect::session(config, secrets_base).await?;
    let server = server(&session, config.flavor).await?;
    let datacenter = match &config.datacenter {
        Some(datacenter) => datacenter.clone(),
        None => local(&session, "data_center").await?,
    };
    let mut executed = Vec::new();
    if !keyspace_exists(&session, &config.keyspace).await? {
        executed.push(keyspace_ddl(config, &datacenter, server)?);
    }
    let found = columns(&session, &config.keyspace, TABLE).await?;
    if found.is_empty() {
        executed.push(table_ddl(config, server));
    } else {
        executed.extend(missing_ddl(config, &found));
    }
    if columns(&session, &config.keyspace, standings::TABLE)
        .await?
        .is_empty()
    {
        executed.push(standings::table_ddl(&config.keyspace));
    }
    for statement in &executed {
        tracing::info!(statement, "changing the store's schema");
        session
            .query_unpaged(statement.as_str(), &[])
            .await
            .map_err(|error| failed(&error))?;
    }
    verify(&session, &config.keyspace).await?;
    Ok(Migrated {
        server: server.to_string(),
        executed,
    })
}

/// Checks that the tables are there with all columns and types.
///
/// # Errors
/// [`StoreError::Refused`] says what is missing, and what to run.
pub(super) async fn verify(session: &Session, keyspace: &str) -> Result<(), StoreError> {
    let found = columns(session, keyspace, TABLE).await?;
    let beside = columns(session, keyspace, standings::TABLE).await?;
    let difference = difference(keyspace, &found).or_else(|| {
        let found = beside
            .iter()
            .map(|it| (it.name.as_str(), it.cql_type.as_str()));
        standings::difference(keyspace, &found.collect::<Vec<_>>())
    });
    match difference {
        Some(difference) => Err(StoreError::Refused(difference)),
        None => Ok(()),
    }
}

fn keyspace_ddl(
    config: &CqlConfig,
    datacenter: &str,
    server: Server,
) -> Result<String, StoreError> {
    if datacenter.is_empty() || datacenter.contains(['\'', '"', '\\']) {
        return Err(StoreError::Refused(format!(
            "{datacenter:?} is no name of a data centre"
        )));
    }
    // Conditional writes on tablets need releases with fixes that are still coming; it can not be changed later.
    let tablets = match server {
        Server::Scylla => " AND tablets = {'enabled': false}",
        Server::Cassandra { .. } => "",
    };
    Ok(format!(
        "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'NetworkTopologyStrategy', '{datacenter}': {}}}{tablets}",
        config.keyspace, config.replication_factor
    ))
}

fn table_ddl(config: &CqlConfig, server: Server) -> String {
    let key = KEY.map(|column| format!("{column} text, ")).concat();
    let columns = COLUMNS
        .map(|(column, cql_type)| format!("{column} {cql_type}, "))
        .concat();
    // States are kept for different times, so time windows do not fit.
    let options = match server {
        Server::Scylla => {
            "compaction = {'class': 'IncrementalCompactionStrategy'} AND tombstone_gc = {'mode': 'timeout'}"
        }
        Server::Cassandra { major: 5.. } => "compaction = {'class': 'UnifiedCompactionStrategy'}",
        Server::Cassandra { .. } => "compaction = {'class': 'LeveledCompactionStrategy'}",
    };
    // Every statement brings its own TTL; this one is the net under them.
    let ttl_secs = config.retention.completed.as_millis().div_ceil(1_000);
    let ttl_secs = i64::try_from(ttl_secs)
        .unwrap_or(TTL_SECS_MAX)
        .clamp(1, TTL_SECS_MAX);
    format!(
        "CREATE TABLE IF NOT EXISTS {}.{TABLE} ({key}{columns}PRIMARY KEY (({}))) WITH default_time_to_live = {ttl_secs} AND gc_grace_seconds = {GC_GRACE_SECS} AND {options}",
        config.keyspace,
        KEY.join(", ")
    )
}

fn missing_ddl(config: &CqlConfig, found: &[Column]) -> Vec<String> {
    COLUMNS
        .iter()
        .filter(|(name, _)| !found.iter().any(|column| column.name == *name))
        .map(|(name, cql_type)| {
            format!(
                "ALTER TABLE {}.{TABLE} ADD {name} {cql_type}",
                config.keyspace
            )
        })
        .collect()
}

/// What keeps us from working with the table; none: nothing.
fn difference(keyspace: &str, found: &[Column]) -> Option<String> {
    if found.is_empty() {
        return Some(format!(
            "table {keyspace}.{TABLE} does not exist; run `fencepost store migrate`"
        ));
    }
    let key = found.iter().filter(|column| column.kind == "partition_key");
    let mut key = key.map(|column| column.name.as_str()).collect::<Vec<_>>();
    key.sort_unstable();
    let mut key_expected = KEY;
    key_expected.sort_unstable();
    if key != key_expected || found.iter().any(|column| column.kind == "clustering") {
        return Some(format!(
            "the key of table {keyspace}.{TABLE} is not ({}): it is not a table of claims",
            KEY.join(", ")
        ));
    }
    let key = KEY.iter().map(|name| (*name, "text"));
    for (name, cql_type) in key.chain(COLUMNS) {
        match found.iter().find(|column| column.name == name) {
            None => {
                return Some(format!(
                    "column {name} of table {keyspace}.{TABLE} is missing; run `fencepost store migrate`"
                ));
            }
            Some(column) if column.cql_type != cql_type => {
                return Some(format!(
                    "column {name} of table {keyspace}.{TABLE} is {}, not {cql_type}: it is not the table that `fencepost store migrate` makes",
                    column.cql_type
                ));
            }
            Some(_) => {}
        }
    }
    None
}

async fn server(session: &Session, flavor: Flavor) -> Result<Server, StoreError> {
    let scylla = match flavor {
        Flavor::Scylla => true,
        Flavor::Cassandra => false,
        Flavor::Auto => {
            let system =
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system'";
            let tables = texts(session, system, &[]).await?;
            tables
                .iter()
                .flatten()
                .any(|table| table.contains("scylla"))
        }
    };
    if scylla {
        return Ok(Server::Scylla);
    }
    let release = local(session, "release_version").await?;
    let major = release
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    let major = major.ok_or_else(|| {
        StoreError::Refused(format!("can not read the server's release {release:?}"))
    })?;
    Ok(Server::Cassandra { major })
}

async fn local(session: &Session, column: &str) -> Result<String, StoreError> {
    let found = texts(session, &format!("SELECT {column} FROM system.local"), &[]).await?;
    found
        .into_iter()
        .flatten()
        .next()
        .ok_or_else(|| StoreError::Unavailable(format!("the node does not say its {column}")))
}

async fn keyspace_exists(session: &Session, keyspace: &str) -> Result<bool, StoreError> {
    let query = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    Ok(!texts(session, query, &[keyspace]).await?.is_empty())
}

async fn columns(
    session: &Session,
    keyspace: &str,
    table: &str,
) -> Result<Vec<Column>, StoreError> {
    let query = "SELECT column_name, type, kind FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?";
    let found = texts(session, query, &[keyspace, table]).await?;
    let columns = found.chunks_exact(3).filter_map(|column| match column {
        [Some(name), Some(cql_type), Some(kind)] => Some(Column {
            name: name.clone(),
            cql_type: cql_type.clone(),
            kind: kind.clone(),
        }),
        _ => None,
    });
    Ok(columns.collect())
}

/// All text columns of all rows of a query on the system tables, one after the other.
async fn texts(
    session: &Session,
    query: &str,
    values: &[&str],
) -> Result<Vec<Option<String>>, StoreError> {
    let result = session
        .query_unpaged(query, values)
        .await
        .map_err(|error| failed(&error))?;
    let unreadable = |error: &dyn std::fmt::Display| {
        StoreError::Unavailable(format!("can not read the system tables: {error}"))
    };
    let rows = result
        .into_rows_result()
        .map_err(|error| unreadable(&error))?;
    let mut texts = Vec::new();
    for row in rows
        .rows::<scylla::value::Row>()
        .map_err(|error| unreadable(&error))?
    {
        let row = row.map_err(|error| unreadable(&error))?;
        let columns = row.columns.into_iter();
        texts.extend(columns.map(|column| column.and_then(|value| value.as_text().cloned())));
    }
    Ok(texts)
}

fn failed(error: &ExecutionError) -> StoreError {
    match super::fault::of(error) {
        super::fault::Fault::Refused => StoreError::Refused(error.to_string()),
        super::fault::Fault::NotStarted | super::fault::Fault::Unknown => {
            StoreError::Unavailable(error.to_string())
        }
    }
}

// === impl Server ===

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scylla => f.write_str("scylla"),
            Self::Cassandra { major } => write!(f, "cassandra {major}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Column, Server, difference, keyspace_ddl, missing_ddl, table_ddl};
    use crate::{
        config::CqlConfig,
        cql::statement::{COLUMNS, KEY},
    };

    fn table() -> Vec<Column> {
        let column = |name: &str, cql_type: &str, kind: &str| Column {
            name: name.to_owned(),
            cql_type: cql_type.to_owned(),
            kind: kind.to_owned(),
        };
        let key = KEY.map(|name| column(name, "text", "partition_key"));
        let rest = COLUMNS.map(|(name, cql_type)| column(name, cql_type, "regular"));
        key.into_iter().chain(rest).collect()
    }

    #[test]
    fn scylla_ddl() {
        let config = CqlConfig::default();
        assert_eq!(
            keyspace_ddl(&config, "dc1", Server::Scylla).unwrap(),
            "CREATE KEYSPACE IF NOT EXISTS fencepost WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} AND tablets = {'enabled': false}"
        );
        assert_eq!(
            table_ddl(&config, Server::Scylla),
            "CREATE TABLE IF NOT EXISTS fencepost.delivery (source text, delivery_id text, destination text, status tinyint, claim_token uuid, lease_until timestamp, attempts int, generation int, not_before timestamp, reason text, created_at timestamp, completed_at timestamp, failed_at timestamp, PRIMARY KEY ((source, delivery_id, destination))) WITH default_time_to_live = 2592000 AND gc_grace_seconds = 86400 AND compaction = {'class': 'IncrementalCompactionStrategy'} AND tombstone_gc = {'mode': 'timeout'}"
        );
    }

    #[test]
    fn cassandra_ddl_names_nothing_that_only_scylla_knows() {
        let config = CqlConfig::default();
        let server = Server::Cassandra { major: 5 };
        let keyspace = keyspace_ddl(&config, "datacenter1", server).unwrap();
        assert!(keyspace.ends_with("'datacenter1': 3}"), "{keyspace}");
        let table = table_ddl(&config, server);
        assert!(
            table.ends_with("compaction = {'class': 'UnifiedCompactionStrategy'}"),
            "{table}"
        );
        let table = table_ddl(&config, Server::Cassandra { major: 4 });
        assert!(
            table.ends_with("compaction = {'class': 'LeveledCompactionStrategy'}"),
            "{table}"
        );
    }

    #[test]
    fn names_can_not_break_out() {
        let config = CqlConfig::default();
        for name in ["", "dc'1", "dc\"", "d\\c"] {
            assert!(
                keyspace_ddl(&config, name, Server::Scylla).is_err(),
                "{name:?}"
            );
        }
    }

    #[test]
    fn differences_are_named() {
        assert_eq!(difference("k", &table()), None);
        let none = difference("k", &[]).unwrap();
        assert_eq!(
            none,
            "table k.delivery does not exist; run `fencepost store migrate`"
        );

        let mut found = table();
        found.retain(|column| column.name != "generation");
        let missing = difference("k", &found).unwrap();
        assert!(
            missing.contains("generation") && missing.contains("store migrate"),
            "{missing}"
        );
        assert_eq!(
            missing_ddl(&CqlConfig::default(), &found),
            ["ALTER TABLE fencepost.delivery ADD generation int"]
        );

        let mut found = table();
        found[3].cql_type = "int".to_owned();
        assert!(
            difference("k", &found)
                .unwrap()
                .contains("status of table k.delivery is int")
        );

        let mut found = table();
        found[2].kind = "clustering".to_owned();
        assert!(
            difference("k", &found)
                .unwrap()
                .contains("key of table k.delivery")
        );
        // Another column is none of our business.
        let mut found = table();
        found.push(Column {
            name: "note".to_owned(),
            ..found[9].clone()
        });
        assert_eq!(difference("k", &found), None);
    }
}
