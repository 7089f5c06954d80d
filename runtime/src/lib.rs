//! What every process boots with: config loading, secrets, telemetry, admin server, shutdown, clock.

pub mod clock;
pub mod config;
pub mod secret;

pub use clock::Clock;
pub use config::Problem;
pub use secret::{Secret, SecretError, SecretRef};
