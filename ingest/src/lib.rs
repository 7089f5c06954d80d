//! HTTP to log: receive, verify, publish.

pub mod config;
pub mod rule;

pub use config::{IngestConfig, Reopen, SourceConfig, event_matches};
pub use rule::Rule;
