//! HTTP to log: receive, verify, publish.
//!
//! [`rule`] says how a sender signs; [`verify`], [`extract`], [`handshake`], [`mod@sign`] and [`mod@explain`] are plain functions
//! over it. `receive` is the
//! path of one request, [`serve`] the server around it.

mod answer;
mod app;
mod body;
mod certificates;
pub mod config;
pub mod explain;
pub mod extract;
mod hand_over;
pub mod handshake;
mod metrics;
mod outage;
mod pass_on;
mod rate;
mod receive;
pub mod request;
pub mod rule;
mod server;
pub mod sign;
mod spool;
pub mod verify;

pub use app::{App, rule_for};
pub use config::{IngestConfig, SourceConfig, TlsConfig};
pub use rate::RateLimit;
pub use request::Request;
pub use rule::Rule;
pub use server::{router, serve};
pub use sign::{SignError, Unsigned, sign};
pub use spool::{Drain, Spool, SpoolConfig};
