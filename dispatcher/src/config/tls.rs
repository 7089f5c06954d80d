//! `destinations.<name>.tls`: whom we trust there, and who we are.

use runtime::{Problem, SecretRef};
use serde::Deserialize;
use std::path::PathBuf;

/// Certificates towards one receiver. PEM files, relative to the config file's directory, at most 64 KiB each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// Authorities that are trusted instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate and its intermediates, shown to a receiver that asks.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`.
    pub key: Option<SecretRef>,
}

// === impl TlsConfig ===

impl TlsConfig {
    /// Mistakes in this table, under the key path `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut lacks = |name: &str, message: &str| {
            problems.push(Problem::new(format!("{key}.{name}"), message));
        };
        match (&self.cert, &self.key) {
            (Some(_), None) => lacks("key", "is needed with `cert`"),
            (None, Some(_)) => lacks("cert", "is needed with `key`"),
            (None, None) if self.ca.is_none() => {
                problems.push(Problem::new(
                    key,
                    "says nothing: give `ca`, or `cert` and `key`",
                ));
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        problems
    }
}
