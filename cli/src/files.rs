//! Whether a process may open as many files as its config can make it open.

use crate::config::Config;
use runtime::Problem;

/// Files beyond connections of senders and to receivers: log, store, admin port, libraries.
const RESERVE: u64 = 128;

/// Files that a process may need at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Connections of senders; 0 in a process that does not receive.
    pub connections: u64,
    /// Attempts at once; 0 in a process that does not deliver.
    pub attempts: u64,
}

// === impl Need ===

impl Need {
    /// Of a process that receives, delivers, or both.
    pub(crate) fn of(config: &Config, ingests: bool, dispatches: bool) -> Self {
        let attempts = config.destinations.values().fold(0, |sum: u64, to| {
            sum.saturating_add(u64::try_from(to.concurrency).unwrap_or(u64::MAX))
        });
        let connections = u64::try_from(config.ingest.connections_max).unwrap_or(u64::MAX);
        Self {
            connections: if ingests { connections } else { 0 },
            attempts: if dispatches { attempts } else { 0 },
        }
    }

    /// All together.
    pub(crate) fn files(self) -> u64 {
        self.connections
            .saturating_add(self.attempts)
            .saturating_add(RESERVE)
    }

    /// What is wrong when `limit` (none: unlimited) is too low: connections of senders would keep those to receivers from being opened, and
    /// that would count as the receivers' failures.
    pub(crate) fn problem(self, limit: Option<u64>) -> Option<Problem> {
        let needed = self.files();
        let limit = limit.filter(|limit| *limit < needed)?;
        let Self {
            connections,
            attempts,
        } = self;
        let (key, lower) = if connections > 0 {
            ("ingest.connections_max", "this")
        } else {
            ("destinations", "`concurrency`")
        };
        let message = format!(
            "a process may have {limit} files open here, and {connections} connections, {attempts} attempts at once and \
             {RESERVE} for all else need {needed}: raise the hard limit with `ulimit -n {needed}` or LimitNOFILE={needed}, \
             or lower {lower}"
        );
        Some(Problem::new(key, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_the_need_is_named_with_both() {
        let need = Need {
            connections: 1_024,
            attempts: 48,
        };
        assert_eq!(need.problem(Some(1_200)), None);
        assert_eq!(need.problem(None), None);
        let problem = need.problem(Some(1_199)).expect("one too few");
        assert_eq!(problem.key, "ingest.connections_max");
        for part in ["1199", "1200", "ulimit -n 1200", "LimitNOFILE=1200"] {
            assert!(problem.message.contains(part), "{problem}");
        }
    }

    #[test]
    fn a_process_that_does_not_receive_has_no_connections_to_lower() {
        let need = Need {
            connections: 0,
            attempts: 2_000,
        };
        let problem = need.problem(Some(1_024)).expect("too few");
        assert_eq!(problem.key, "destinations");
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        let need = Need {
            connections: u64::MAX,
            attempts: u64::MAX,
        };
        assert!(need.problem(Some(1_024)).is_some());
    }
}
