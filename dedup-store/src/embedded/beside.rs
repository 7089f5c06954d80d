//! How destinations stand, for a tool beside the process that has the directory open.
//!
//! That process owns the claims and goes on owning them: nothing here touches one. A standing is one short transaction
//! under SQLite's own lock on the file, which both sides wait for. A tool that is stopped in the middle of it holds the
//! owner up; its calls fail as those of a store that is away do, and are made again.

use super::{
    FILE,
    table::{self, Table},
};
use crate::{Noted, Standing, Standings, StoreError, config::EmbeddedConfig};

/// The file, open for standings alone.
#[derive(Debug)]
pub struct Beside {
    table: Table,
}

// === impl Beside ===

impl Beside {
    /// Opens it. Blocks for some milliseconds.
    ///
    /// # Errors
    /// [`StoreError::Refused`] when there is no store in the directory, or one of a later version.
    pub fn open(config: &EmbeddedConfig) -> Result<Self, StoreError> {
        let path = config.dir.join(FILE);
        let table = Table::open_beside(&path, config.retention.to_retention())?;
        Ok(Self { table })
    }

    /// As [`crate::Store::standings`]. Blocks for a moment.
    ///
    /// # Errors
    /// When the file can not be read.
    pub fn standings(&self) -> Result<Standings, StoreError> {
        let standings = self.table.standings();
        standings.map_err(|error| table::classify(&error))
    }

    /// As [`crate::Store::set_standing`]. Blocks until it is on the disk.
    ///
    /// # Errors
    /// When the file can not be written, or its owner keeps it locked.
    pub fn set_standing(&self, destination: &str, new: &Standing) -> Result<Noted, StoreError> {
        let set = || {
            let transaction = self.table.begin()?;
            let noted = self.table.set_standing(destination, new)?;
            transaction.commit()?;
            Ok(noted)
        };
        set().map_err(|error: rusqlite::Error| table::classify(&error))
    }
}
