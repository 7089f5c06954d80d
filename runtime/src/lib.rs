//! What every process boots with: config loading, secrets, telemetry, admin server, shutdown, clock, dice, open
//! files, the start of every HTTP client.

pub mod addresses;
pub mod admin;
pub mod clock;
pub mod config;
pub mod dice;
pub mod files;
pub mod secret;
pub mod shutdown;
pub mod telemetry;
pub mod trace;

pub use admin::{Admin, AdminConfig, Readiness};
pub use clock::Clock;
pub use config::Problem;
pub use dice::Dice;
pub use files::FileLimits;
pub use secret::{Secret, SecretError, SecretRef};
pub use shutdown::Shutdown;
pub use telemetry::{Metrics, Telemetry, TelemetryConfig};
