//! HTTP to log: receive, verify, publish.
//!
//! [`rule`] says how a sender signs; [`verify`], [`extract`] and [`mod@sign`] are plain functions over it. `receive` is the
//! path of one request, [`serve`] the server around it.

mod answer;
mod app;
mod body;
pub mod config;
pub mod extract;
mod metrics;
mod pass_on;
mod rate;
mod receive;
pub mod rule;
mod server;
pub mod sign;
pub mod verify;

pub use app::App;
pub use config::{IngestConfig, SourceConfig};
pub use rate::RateLimit;
pub use rule::Rule;
pub use server::{router, serve};
pub use sign::{SignError, Unsigned, sign};
