//! Log → HTTP: claim, attempt, retry through delay tiers, dead-letter.
//!
//! Reading order: [`consume`] takes records from the log and spawns a job for each delivery; [`process`](mod@process) is the path of
//! one delivery and holds the order of effects; [`gate`] says whether the
//! destination may be tried now, [`mod@pause`] whether it is left alone until somebody resumes it; [`decide`] says what
//! follows from an outcome; [`send`] is the port to the
//! receivers; [`publish`] makes the records of the next hop and of the dead letter; [`partitions`] and [`offsets`] say
//! what may be committed, [`window`] how much of a partition may be in work, [`skew`] how far our clock is off.
//!
//! Not here: Kafka, SQL, CQL, which are behind the ports; the machine's clock, which is behind [`runtime::Clock`].

mod asking;
pub mod config;
pub mod consume;
pub mod decide;
pub mod gate;
pub mod limits;
pub mod metrics;
pub mod offsets;
pub mod outcome;
pub mod partitions;
pub mod pause;
pub mod process;
pub mod publish;
pub mod routes;
pub mod send;
pub mod skew;
pub mod waiting;
pub mod window;

pub use config::{
    BreakerConfig, DestinationConfig, DispatcherConfig, PauseConfig, RateConfig, RetryConfig,
    RouteConfig, SigningConfig, SigningScheme,
};
pub use consume::{RunError, Status, run};
pub use process::Path;
pub use send::http::HttpSend;
