//! A look into the file of a store that another process may have open: for tools, read-only.
//!
//! Nothing is locked, written or deleted, and the process that has the directory open waits for nobody. SQLite itself keeps
//! its `-wal` and `-shm` files beside the file, and makes them when they are missing.

use super::{
    FILE,
    table::{self, Table},
};
use crate::{Row, Standings, StoreError, claim::Sees, config::EmbeddedConfig};
use schemas::DeliveryKey;

/// The file, open for any number of looks.
#[derive(Debug)]
pub struct Peek {
    table: Table,
}

/// The row of a delivery, as [`crate::Store::get`] gives it. Blocks for some milliseconds.
///
/// # Errors
/// As [`Peek::open`].
pub fn get(
    config: &EmbeddedConfig,
    key: &DeliveryKey,
    now_ms: i64,
) -> Result<Option<Row>, StoreError> {
    Peek::open(config)?.get(key, now_ms)
}

// === impl Peek ===

impl Peek {
    /// Opens it.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when there is no store in the directory, or one of a later version.
    pub fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let path = config.dir.join(FILE);
        let table = Table::open_read_only(&path, config.retention.to_retention())?;
        Ok(Self { table })
    }

    /// The row of a delivery as it stands now. Blocks for a moment.
    ///
    /// # Errors
    /// When the file can not be read.
    pub fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, StoreError> {
        let mut statements = self
            .table
            .statements()
            .map_err(|error| table::classify(&error))?;
        statements
            .find(key, Sees::Live, now_ms)
            .map_err(|error| table::classify(&error))?
    }

    /// How the destinations stand now, as [`crate::Store::standings`]. Blocks for a moment.
    ///
    /// # Errors
    /// When the file can not be read.
    pub fn standings(&self) -> Result<Standings, StoreError> {
        let standings = self.table.standings();
        standings.map_err(|error| table::classify(&error))
    }
}
