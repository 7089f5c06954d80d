//! What the system tests are made of: the real binary as processes, receivers and a sender that know nothing of the product's
//! code, and an oracle that judges by what the receivers saw.
//!
//! | module | what |
//! | --- | --- |
//! | [`stack`] | where the real Kafka and Cassandra are, the cache, one heavy test at a time |
//! | [`cluster`] | three brokers and three replicas of one test's own, each to be killed, paused and started again |
//! | [`site`] | one test's own config: topics, keyspace, ports, secrets, destinations |
//! | [`process`] | start, readiness, kill -9, SIGTERM, logs |
//! | [`provider`] | a sender that tries again until it is answered 2xx |
//! | [`sender`] | signed webhooks, posted concurrently; remembers what was acknowledged |
//! | [`receiver`] | scripted HTTP receivers; remember every arrival |
//! | [`dead_letters`] | the dead-letter topic, read by a foreign client |
//! | [`oracle`] | acknowledged = obligation: lost, doubled, altered, foreign |
//! | [`chaos`], [`cql_proxy`] | faults by plan, and the judgement of a run with faults |
//! | [`peers`] | official libraries, which sign and verify |
//! | [`payload`] | bodies: generated ones and GitHub's own examples |

pub mod chaos;
pub mod cluster;
pub mod cql_proxy;
pub mod dead_letters;
pub mod http;
pub mod oracle;
pub mod payload;
pub mod peers;
pub mod process;
pub mod provider;
pub mod random;
pub mod receiver;
pub mod sender;
pub mod site;
pub mod stack;

use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause between two looks of [`until`].
const POLL: Duration = Duration::from_millis(100);

/// Looks again and again until `look` gives something; panics with `what` after `deadline`.
pub async fn until<T>(deadline: Duration, what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    let found = within(deadline, look).await;
    found.unwrap_or_else(|| panic!("not within {deadline:?}: {what}"))
}

/// Looks again and again until `look` gives something; none after `deadline`.
pub async fn within<T>(deadline: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    loop {
        let found = look().await;
        if found.is_some() || Instant::now() >= end {
            return found;
        }
        sleep(POLL).await;
    }
}

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> i64 {
    runtime::Clock::system().now_ms()
}
