//! The directory of an embedded log: its lock, its database, what is checked when it is opened.

use super::row::{self, Slot};
use crate::{LogError, config::EmbeddedConfig};
use rusqlite::{Connection, OpenFlags};
use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    path::{Path, PathBuf},
    time::Duration,
};

/// Layout of the tables; a log with another one is refused.
const FORMAT: i64 = 1;
const LOCK_FILE: &str = "log.lock";
const DATABASE_FILE: &str = "log.sqlite";
/// Writer and reader never wait for each other in WAL mode; a foreign tool that looks at the file may.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
    CREATE TABLE IF NOT EXISTS slot (
        slot INTEGER PRIMARY KEY,
        end_offset INTEGER NOT NULL,
        appended_at_ms INTEGER NOT NULL,
        committed INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS record (
        id INTEGER PRIMARY KEY,
        appended_at_ms INTEGER NOT NULL,
        key BLOB NOT NULL,
        headers BLOB NOT NULL,
        value BLOB NOT NULL
    ) STRICT;
    INSERT OR IGNORE INTO meta VALUES ('probe', 0);
";

/// What is kept of a topic and partition beside its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotState {
    /// Offset of the next record to be appended.
    pub(super) end_offset: i64,
    /// Append time of the last record.
    pub(super) appended_at_ms: i64,
    /// Everything below is finished.
    pub(super) committed: i64,
}

/// An opened directory.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) writer: Connection,
    pub(super) reader: Connection,
    /// In the order of [`row::all`].
    pub(super) slots: Vec<SlotState>,
    /// Held as long as the log is open.
    pub(super) lock: File,
}

// === impl Files ===

impl Files {
    /// Opens or creates the directory.
    pub(super) fn open(config: &EmbeddedConfig) -> Result<Self, LogError> {
        let dir = &config.dir;
        create_dir(dir).map_err(|error| unusable(dir, &error))?;
        let lock = lock(dir)?;
        let path = dir.join(DATABASE_FILE);
        let writer =
            open_writer(&path, config.partitions).map_err(|error| unusable(dir, &error))?;
        check_meta(&writer, dir, config.partitions)?;
        let slots =
            load_slots(&writer, config.partitions).map_err(|error| unusable(dir, &error))?;
        let reader = open_reader(&path).map_err(|error| unusable(dir, &error))?;
        Ok(Self {
            writer,
            reader,
            slots,
            lock,
        })
    }
}

/// Opens a directory that another process may have open, for reading only. Locks and makes nothing.
pub(super) fn open_read_only(
    config: &EmbeddedConfig,
) -> Result<(Connection, Vec<SlotState>), LogError> {
    let dir = &config.dir;
    let reader = open_reader(&dir.join(DATABASE_FILE)).map_err(|error| unusable(dir, &error))?;
    check_meta(&reader, dir, config.partitions)?;
    let slots = load_slots(&reader, config.partitions).map_err(|error| unusable(dir, &error))?;
    Ok((reader, slots))
}

/// Reads the state of every slot, in the order of [`row::all`].
pub(super) fn load_slots(conn: &Connection, partitions: u32) -> rusqlite::Result<Vec<SlotState>> {
    let mut statement =
        conn.prepare("SELECT slot, end_offset, appended_at_ms, committed FROM slot")?;
    let rows = statement.query_map((), |row| {
        let state = SlotState {
            end_offset: row.get(1)?,
            appended_at_ms: row.get(2)?,
            committed: row.get(3)?,
        };
        Ok((row.get::<_, i64>(0)?, state))
    })?;
    let known = rows.collect::<rusqlite::Result<BTreeMap<i64, SlotState>>>()?;
    let none = SlotState {
        end_offset: 0,
        appended_at_ms: i64::MIN,
        committed: 0,
    };
    let slots = row::all(partitions).map(|(topic, partition)| Slot::new(topic, partition));
    Ok(slots
        .map(|slot| known.get(&slot.number()).copied().unwrap_or(none))
        .collect())
}

/// Webhooks are nobody else's business: a new directory is for this user only.
fn create_dir(dir: &Path) -> std::io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

fn lock(dir: &Path) -> Result<File, LogError> {
    let path: PathBuf = dir.join(LOCK_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let file = file.map_err(|error| unusable(dir, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let dir = dir.display();
            Err(LogError::Fatal(format!(
                "{dir}: another process has this directory open; one log, one process"
            )))
        }
        Err(TryLockError::Error(error)) => Err(unusable(dir, &error)),
    }
}

fn open_writer(path: &Path, partitions: u32) -> rusqlite::Result<Connection> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    // WAL: the reader never waits for the writer. FULL: a commit is on the disk when it returns, power cut or not.
    conn.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "cache_size", -8_192)?;
    // Pages; larger than the default, since a page that changes often is then copied back once instead of many times.
    conn.pragma_update_and_check(None, "wal_autocheckpoint", 4_000, |_| Ok(()))?;
    conn.pragma_update_and_check(None, "journal_size_limit", 64 * 1_024 * 1_024, |_| Ok(()))?;
    conn.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA}"))?;
    for (name, value) in [("format", FORMAT), ("partitions", i64::from(partitions))] {
        conn.execute("INSERT OR IGNORE INTO meta VALUES (?1, ?2)", (name, value))?;
    }
    conn.execute_batch("COMMIT")?;
    Ok(conn)
}

fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.pragma_update(None, "cache_size", -8_192)?;
    Ok(conn)
}

fn check_meta(conn: &Connection, dir: &Path, partitions: u32) -> Result<(), LogError> {
    let value = |name: &str| {
        let sql = "SELECT value FROM meta WHERE name = ?1";
        conn.query_row(sql, [name], |row| row.get::<_, i64>(0))
            .map_err(|error| unusable(dir, &error))
    };
    let format = value("format")?;
    if format != FORMAT {
        let message = format!("has format {format}, this version knows format {FORMAT}");
        return Err(unusable(dir, &message));
    }
    let created_with = value("partitions")?;
    if created_with != i64::from(partitions) {
        let message = format!(
            "was created with {created_with} partitions, the config says {partitions}; their number is fixed"
        );
        return Err(unusable(dir, &message));
    }
    Ok(())
}

fn unusable(dir: &Path, cause: &dyn std::fmt::Display) -> LogError {
    LogError::Fatal(format!("{}: {cause}", dir.display()))
}
