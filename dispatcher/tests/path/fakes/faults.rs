//! Faults at the n-th effect: every call of a port passes here.

use std::{
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::sync::Notify;

/// An effect, in the words of the order of effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Claim,
    Renew,
    Send,
    Hop,
    Letter,
    Transition,
    /// Between `process()` and the mark on the offset.
    Finish,
}

/// What happens to an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The process dies before it.
    CrashBefore,
    /// The process dies after it, before the answer is seen.
    CrashAfter,
    /// It does not happen, and the port says so.
    Fail,
    /// It happens, and the port says that nobody knows.
    LoseAnswer,
}

/// The port did not answer as it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faulted;

/// What fails at which effect; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    plan: Arc<Mutex<Plan>>,
    crashed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Plan {
    trace: Vec<Step>,
    at: Vec<(usize, Mode)>,
}

// === impl Faults ===

impl Faults {
    /// Numbers of effects, counted from 0, and what they meet.
    pub(crate) fn at(at: &[(usize, Mode)]) -> Self {
        let faults = Self::default();
        faults.lock().at = at.to_vec();
        faults
    }

    /// Every effect so far.
    pub(crate) fn trace(&self) -> Vec<Step> {
        self.lock().trace.clone()
    }

    /// Ends when the process has died; what it was doing must be dropped then.
    pub(crate) async fn crashed(&self) {
        self.crashed.notified().await;
    }

    /// Does `work` as the effect `step`, unless the plan has something else for it.
    pub(crate) async fn around<T>(
        &self,
        step: Step,
        work: impl Future<Output = T>,
    ) -> Result<T, Faulted> {
        match self.enter(step) {
            None => Ok(work.await),
            Some(Mode::CrashBefore) => self.crash().await,
            Some(Mode::CrashAfter) => {
                drop(work.await);
                self.crash().await
            }
            Some(Mode::Fail) => Err(Faulted),
            Some(Mode::LoseAnswer) => {
                drop(work.await);
                Err(Faulted)
            }
        }
    }

    fn enter(&self, step: Step) -> Option<Mode> {
        let mut plan = self.lock();
        let number = plan.trace.len();
        plan.trace.push(step);
        let here = plan.at.iter().find(|(at, _)| *at == number);
        here.map(|(_, mode)| *mode)
    }

    async fn crash<T>(&self) -> T {
        self.crashed.notify_one();
        pending().await
    }

    fn lock(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }
}
