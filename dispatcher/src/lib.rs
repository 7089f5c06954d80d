//! Log → HTTP: claim, attempt, retry through delay tiers, dead-letter.
pub mod config;
pub mod decide;
pub mod offsets;
pub mod outcome;
pub mod routes;
pub mod send;

pub use config::{DestinationConfig, DispatcherConfig, RetryConfig, RouteConfig, SigningConfig, SigningScheme};
