//! How many files, connections among them, this process may have open at once.
//!
//! The soft limit that shells and service managers give is often 1,024 and meant for programs that use `select`; a process
//! may raise its own up to the hard limit. Past the limit, connections to receivers fail as if the receivers had failed.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Limits of open files. None: unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// The one in force.
    pub soft: Option<u64>,
    /// What the soft one can be raised to.
    pub hard: Option<u64>,
}

// === impl FileLimits ===

impl FileLimits {
    /// Those of this process.
    pub fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile);
        Self {
            soft: limit.current,
            hard: limit.maximum,
        }
    }

    /// Raises the soft limit of this process to the hard one, or to `needed` where the hard one is unlimited: some systems
    /// refuse an unlimited soft one.
    ///
    /// # Errors
    /// When the system refuses; the limits are as they were.
    pub fn raise(needed: u64) -> io::Result<()> {
        let limits = Self::of_process();
        let Some(current) = limits.raised_soft(needed) else {
            return Ok(());
        };
        let raised = Rlimit {
            current: Some(current),
            maximum: limits.hard,
        };
        Ok(setrlimit(Resource::Nofile, raised)?)
    }

    /// What the soft limit is to become; none when it can stay.
    fn raised_soft(self, needed: u64) -> Option<u64> {
        let soft = self.soft?;
        Some(self.hard.unwrap_or(needed)).filter(|raised| *raised > soft)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_goes_up_and_never_down() {
        for (soft, hard, raised) in [
            (Some(1_024), Some(4_096), Some(4_096)),
            (Some(4_096), Some(4_096), None),
            (Some(1_024), None, Some(2_000)),
            (Some(3_000), None, None),
            (None, None, None),
        ] {
            let limits = FileLimits { soft, hard };
            assert_eq!(limits.raised_soft(2_000), raised, "{limits:?}");
        }
    }
}
