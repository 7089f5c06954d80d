//! HTTP to log: receive, verify, publish.

pub mod config;
pub mod extract;
pub mod rule;
pub mod sign;
pub mod verify;

pub use config::{IngestConfig, Reopen, SourceConfig, event_matches};
pub use rule::Rule;
pub use sign::{SignError, Unsigned, sign};
