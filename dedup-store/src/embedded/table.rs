//! The tables in SQLite: rows in, rows out. Decides nothing.

use super::standings;
use crate::{
    Noted, Retention, Row, Standing, Standings, Status, StoreError,
    claim::{self, Sees},
};
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Statement, Transaction,
    TransactionBehavior, params,
};
use schemas::{DeliveryKey, Reason};
use std::{path::Path, time::Duration};
use uuid::Uuid;

/// Layout of the file; a file with a higher number was written by a later version.
const LAYOUT: i64 = 1;

/// How long a transaction waits for a foreign tool that holds the file's write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a tool waits for the file's owner, whose transactions are short.
const BESIDE_TIMEOUT: Duration = Duration::from_secs(5);

const SETTINGS: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA journal_size_limit = 67108864;
    PRAGMA temp_store = MEMORY;";

const CREATE: &str = "
    BEGIN IMMEDIATE;
    CREATE TABLE IF NOT EXISTS claims (
        source TEXT NOT NULL,
        delivery_id TEXT NOT NULL,
        destination TEXT NOT NULL,
        status INTEGER NOT NULL,
        claim_token BLOB NOT NULL,
        lease_until INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        not_before INTEGER,
        reason TEXT,
        created_at INTEGER NOT NULL,
        completed_at INTEGER,
        failed_at INTEGER,
        expires_at_ms INTEGER NOT NULL,
        PRIMARY KEY (source, delivery_id, destination)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS claims_by_expiry ON claims (expires_at_ms);
    CREATE TABLE IF NOT EXISTS standings (
        destination TEXT NOT NULL PRIMARY KEY,
        revision INTEGER NOT NULL,
        failing_since INTEGER,
        paused_at INTEGER,
        cause TEXT,
        note TEXT,
        resumed_at INTEGER
    ) STRICT, WITHOUT ROWID;
    PRAGMA user_version = 1;
    COMMIT;";

const FIND: &str = "
    SELECT status, claim_token, lease_until, attempts, generation, not_before, reason, created_at,
           completed_at, failed_at
    FROM claims
    WHERE source = ?1 AND delivery_id = ?2 AND destination = ?3 AND expires_at_ms > ?4";

const PUT: &str = "
    REPLACE INTO claims (source, delivery_id, destination, status, claim_token, lease_until, attempts,
                         generation, not_before, reason, created_at, completed_at, failed_at, expires_at_ms)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";

const PURGE: &str = "
    DELETE FROM claims WHERE (source, delivery_id, destination) IN (
        SELECT source, delivery_id, destination FROM claims
        WHERE expires_at_ms <= ?1 ORDER BY expires_at_ms LIMIT ?2)";

/// The open file.
#[derive(Debug)]
pub(super) struct Table {
    connection: Connection,
    retention: Retention,
}

/// Prepared once, for as long as the table is open.
#[derive(Debug)]
pub(super) struct Statements<'a> {
    find: Statement<'a>,
    put: Statement<'a>,
    purge: Statement<'a>,
    connection: &'a Connection,
    retention: Retention,
}

/// Columns as they stand in the file.
struct Columns {
    status: i8,
    claim_token: Vec<u8>,
    reason: Option<String>,
    rest: Row,
}

// === impl Table ===

impl Table {
    pub(super) fn open(path: &Path, retention: Retention) -> Result<Self, StoreError> {
        let connection = Connection::open(path).map_err(|error| classify(&error))?;
        connection
            .busy_timeout(BUSY_TIMEOUT)
            .map_err(|error| classify(&error))?;
        connection
            .execute_batch(SETTINGS)
            .map_err(|error| classify(&error))?;
        check_layout(&connection, path)?;
        connection
            .execute_batch(CREATE)
            .map_err(|error| classify(&error))?;
        Ok(Self {
            connection,
            retention,
        })
    }

    /// A file that another process may have open, for reading only. Locks and makes nothing.
    pub(super) fn open_read_only(path: &Path, retention: Retention) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path, flags).map_err(|error| classify(&error))?;
        connection
            .busy_timeout(BUSY_TIMEOUT)
            .map_err(|error| classify(&error))?;
        check_layout(&connection, path)?;
        Ok(Self {
            connection,
            retention,
        })
    }

    /// A file that another process may have open, for reading and writing. Makes nothing: there must be one.
    pub(super) fn open_beside(path: &Path, retention: Retention) -> Result<Self, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(path, flags).map_err(|error| classify(&error))?;
        connection
            .busy_timeout(BESIDE_TIMEOUT)
            .map_err(|error| classify(&error))?;
        check_layout(&connection, path)?;
        // As durable as the owner's writes, and with what a file of a former version lacks.
        connection
            .execute_batch(SETTINGS)
            .and_then(|()| connection.execute_batch(CREATE))
            .map_err(|error| classify(&error))?;
        Ok(Self {
            connection,
            retention,
        })
    }

    /// How the destinations stand; a file of a former version knows of none.
    pub(super) fn standings(&self) -> rusqlite::Result<Standings> {
        match self.connection.table_exists(None, "standings")? {
            true => standings::all(&self.connection),
            false => Ok(Standings::new()),
        }
    }

    /// Notes how a destination stands, if it stands as `new` follows. Only inside a transaction.
    pub(super) fn set_standing(
        &self,
        destination: &str,
        new: &Standing,
    ) -> rusqlite::Result<Noted> {
        standings::set(&self.connection, destination, new)
    }

    pub(super) fn statements(&self) -> rusqlite::Result<Statements<'_>> {
        Ok(Statements {
            find: self.connection.prepare(FIND)?,
            put: self.connection.prepare(PUT)?,
            purge: self.connection.prepare(PURGE)?,
            connection: &self.connection,
            retention: self.retention,
        })
    }

    /// Rolled back unless committed. Takes the write lock at once, so that a tool that holds it is noticed here.
    pub(super) fn begin(&self) -> rusqlite::Result<Transaction<'_>> {
        Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)
    }
}

// === impl Statements ===

impl Statements<'_> {
    /// The row of a delivery, if it counts. The inner error concerns this row alone.
    pub(super) fn find(
        &mut self,
        key: &DeliveryKey,
        sees: Sees,
        now_ms: i64,
    ) -> rusqlite::Result<Result<Option<Row>, StoreError>> {
        let above_ms = sees.expiry_above_ms(now_ms);
        let counts = params![key.source, key.delivery_id, key.destination, above_ms];
        let columns = self.find.query_row(counts, Columns::read).optional()?;
        Ok(columns.map(|columns| columns.into_row(key)).transpose())
    }

    pub(super) fn put(&mut self, key: &DeliveryKey, row: &Row) -> rusqlite::Result<()> {
        self.put.execute(params![
            key.source,
            key.delivery_id,
            key.destination,
            row.status.code(),
            row.claim_token.as_bytes(),
            row.lease_until_ms,
            row.attempts,
            row.generation,
            row.not_before_ms,
            row.reason.map(Reason::as_str),
            row.created_at_ms,
            row.completed_at_ms,
            row.failed_at_ms,
            claim::expires_at_ms(row, &self.retention),
        ])?;
        Ok(())
    }

    /// How the destinations stand.
    pub(super) fn standings(&self) -> rusqlite::Result<Standings> {
        standings::all(self.connection)
    }

    /// Notes how a destination stands, if it stands as `new` follows.
    pub(super) fn set_standing(
        &self,
        destination: &str,
        new: &Standing,
    ) -> rusqlite::Result<Noted> {
        standings::set(self.connection, destination, new)
    }

    /// Deletes up to `rows_max` rows that have expired and are not kept for their owner any more.
    pub(super) fn purge(&mut self, now_ms: i64, rows_max: usize) -> rusqlite::Result<usize> {
        let rows_max = i64::try_from(rows_max).unwrap_or(i64::MAX);
        self.purge
            .execute(params![claim::purge_until_ms(now_ms), rows_max])
    }
}

// === impl Columns ===

impl Columns {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            status: row.get(0)?,
            claim_token: row.get(1)?,
            reason: row.get(6)?,
            rest: Row {
                status: Status::Processing,
                claim_token: Uuid::nil(),
                lease_until_ms: row.get(2)?,
                attempts: row.get(3)?,
                generation: row.get(4)?,
                not_before_ms: row.get(5)?,
                reason: None,
                created_at_ms: row.get(7)?,
                completed_at_ms: row.get(8)?,
                failed_at_ms: row.get(9)?,
            },
        })
    }

    fn into_row(self, key: &DeliveryKey) -> Result<Row, StoreError> {
        let status = Status::from_code(self.status);
        let token = Uuid::from_slice(&self.claim_token).ok();
        let (Some(status), Some(claim_token)) = (status, token) else {
            return Err(StoreError::Refused(format!(
                "the row of {key} can not be understood"
            )));
        };
        let reason = self.reason.as_deref().map(Reason::parse);
        Ok(Row {
            status,
            claim_token,
            reason,
            ..self.rest
        })
    }
}

fn check_layout(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let layout: i64 = connection
        .query_row("PRAGMA user_version", [], |row| row.get(0))
        .map_err(|error| classify(&error))?;
    if layout > LAYOUT {
        let path = path.display();
        return Err(StoreError::Refused(format!(
            "{path} was written by a later version (layout {layout}, known up to {LAYOUT})"
        )));
    }
    Ok(())
}

/// What an error of SQLite means for the caller.
pub(super) fn classify(error: &rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::CannotOpen,
        ) => StoreError::Refused(error.to_string()),
        _ => StoreError::Unavailable(error.to_string()),
    }
}
