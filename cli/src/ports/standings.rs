//! Where it is noted how destinations stand. An embedded store is written beside the process that has its directory open.

use super::store::{self, AnyStore};
use crate::failure::Failure;
use dedup_store::{
    Noted, Standing, Standings, Store, config::StoreConfig, embedded::beside::Beside,
};
use std::path::Path;

/// The store that the config names, for standings alone.
#[derive(Debug)]
pub(crate) enum Book {
    Embedded(Beside),
    Shared(AnyStore),
}

/// Opens it.
///
/// # Errors
/// [`Failure::Unavailable`] when it can not be reached or is not there yet; [`Failure::Config`] when this binary lacks it.
pub(crate) async fn open(config: &StoreConfig, base: &Path) -> Result<Book, Failure> {
    match config {
        StoreConfig::Embedded(config) => {
            store::must_exist(config)?;
            Ok(Book::Embedded(Beside::open(config)?))
        }
        StoreConfig::Cql(_) => store::open(config, base).await.map(Book::Shared),
    }
}

// === impl Book ===

impl Book {
    /// How the destinations stand.
    ///
    /// # Errors
    /// [`Failure::Unavailable`].
    pub(crate) async fn standings(&self) -> Result<Standings, Failure> {
        match self {
            Self::Embedded(beside) => Ok(beside.standings()?),
            Self::Shared(store) => Ok(store.standings().await?),
        }
    }

    /// Notes how a destination stands, if it stands as `new` follows.
    ///
    /// # Errors
    /// [`Failure::Unavailable`].
    pub(crate) async fn set(&self, destination: &str, new: &Standing) -> Result<Noted, Failure> {
        match self {
            Self::Embedded(beside) => Ok(beside.set_standing(destination, new)?),
            Self::Shared(store) => Ok(store.set_standing(destination, new).await?),
        }
    }
}
