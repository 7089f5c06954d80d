//! Whether the process can do its work now: named checks, each with a deadline.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::task::JoinSet;

/// The checks of a process, and whether it drains. Clones share one state.
#[derive(Clone, Default)]
pub struct Readiness {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    draining: AtomicBool,
    checks: RwLock<Vec<Check>>,
}

#[derive(Clone)]
struct Check {
    name: &'static str,
    deadline: Duration,
    run: Arc<dyn Fn() -> Answer + Send + Sync>,
}

type Answer = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// What the checks said.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Report {
    draining: bool,
    /// Name and what it says, when it fails why; in the order in which the checks were added.
    checks: Vec<(&'static str, Result<String, String>)>,
}

// === impl Readiness ===

impl Readiness {
    /// Ready as long as nothing says otherwise.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check: `run` answers within `deadline` or counts as failed. The error says why, to people.
    pub fn check<F, A>(&self, name: &'static str, deadline: Duration, run: F)
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.check_telling(name, deadline, move || {
            let answer = run();
            async { answer.await.map(|()| "ok".to_owned()) }
        });
    }

    /// As [`Self::check`], for a check that has something to tell also when the process is ready.
    pub fn check_telling<F, A>(&self, name: &'static str, deadline: Duration, run: F)
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<String, String>> + Send + 'static,
    {
        let run = Arc::new(move || -> Answer { Box::pin(run()) });
        let mut checks = self
            .shared
            .checks
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        checks.push(Check {
            name,
            deadline,
            run,
        });
    }

    /// Not ready from now on: the process is about to stop, new work shall go elsewhere.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
    }

    /// As [`Self::drain`], and forgets the checks with all that they hold.
    pub fn close(&self) {
        self.drain();
        let mut checks = self
            .shared
            .checks
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        checks.clear();
    }

    /// Runs every check, all at the same time.
    pub(super) async fn report(&self) -> Report {
        let checks = self
            .shared
            .checks
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut running = JoinSet::new();
        for (place, check) in checks.iter().cloned().enumerate() {
            running.spawn(async move {
                let answer = tokio::time::timeout(check.deadline, (check.run)()).await;
                let late = || format!("no answer within {} ms", check.deadline.as_millis());
                (place, answer.unwrap_or_else(|_elapsed| Err(late())))
            });
        }
        // A check that panics leaves its answer as it stands here.
        let mut report: Vec<_> = checks
            .iter()
            .map(|check| (check.name, Err("the check itself failed".to_owned())))
            .collect();
        while let Some(done) = running.join_next().await {
            if let Ok((place, answer)) = done
                && let Some(entry) = report.get_mut(place)
            {
                entry.1 = answer;
            }
        }
        Report {
            draining: self.shared.draining.load(Ordering::Acquire),
            checks: report,
        }
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self
            .shared
            .checks
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Readiness")
            .field("draining", &self.shared.draining)
            .field(
                "checks",
                &checks.iter().map(|check| check.name).collect::<Vec<_>>(),
            )
            .finish()
    }
}

// === impl Report ===

impl Report {
    pub(super) fn ready(&self) -> bool {
        !self.draining && self.checks.iter().all(|(_, answer)| answer.is_ok())
    }

    /// `{"ready":false,"draining":false,"checks":{"log":"ok","store":"no answer within 500 ms"}}`
    pub(super) fn to_json(&self) -> String {
        let checks: serde_json::Map<_, _> = self
            .checks
            .iter()
            .map(|(name, answer)| {
                let (Ok(text) | Err(text)) = answer;
                ((*name).to_owned(), text.as_str().into())
            })
            .collect();
        let report = serde_json::json!({
            "ready": self.ready(),
            "draining": self.draining,
            "checks": checks,
        });
        format!("{report}\n")
    }
}
