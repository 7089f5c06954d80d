//! Receivers that follow a script and remember everything.

use super::faults::{Faults, Step};
use bytes::Bytes;
use dispatcher::{
    outcome::{Outcome, of_status},
    send::{Attempt, Send},
};
use runtime::Clock;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Receivers; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct FakeSend {
    clock: Clock,
    faults: Faults,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Permits for answers, when [`FakeSend::hold`] was called.
    gate: Semaphore,
    running: AtomicUsize,
    running_max: AtomicUsize,
}

#[derive(Debug)]
struct State {
    sent: Vec<Sent>,
    /// Outcomes of the attempts in their order; the last one stays.
    script: Vec<Outcome>,
    takes: Duration,
    gated: bool,
    panics_at: Option<String>,
    /// Destinations that neither follow the script nor take as long as the others.
    own: BTreeMap<String, (Outcome, Duration)>,
    hangs_at: Option<String>,
}

/// A request that a receiver has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) delivery_id: String,
    pub(crate) destination: String,
    pub(crate) attempt: u32,
    pub(crate) token: Uuid,
    pub(crate) at_ms: i64,
    pub(crate) body: Bytes,
}

// === impl FakeSend ===

impl FakeSend {
    pub(crate) fn new(clock: Clock, faults: Faults) -> Self {
        let state = State {
            sent: Vec::new(),
            script: vec![status(204)],
            takes: Duration::ZERO,
            gated: false,
            panics_at: None,
            own: BTreeMap::new(),
            hangs_at: None,
        };
        let shared = Shared {
            state: Mutex::new(state),
            gate: Semaphore::new(0),
            running: AtomicUsize::new(0),
            running_max: AtomicUsize::new(0),
        };
        Self {
            clock,
            faults,
            shared: Arc::new(shared),
        }
    }

    /// Outcomes of the attempts in their order; the last one stays.
    pub(crate) fn script(&self, outcomes: impl Into<Vec<Outcome>>) {
        self.lock().script = outcomes.into();
    }

    /// Every attempt takes this long.
    pub(crate) fn takes(&self, duration: Duration) {
        self.lock().takes = duration;
    }

    /// From now on all attempts at this destination take so long and come to this.
    pub(crate) fn answers(&self, destination: &str, outcome: Outcome, takes: Duration) {
        let own = (outcome, takes);
        self.lock().own.insert(destination.to_owned(), own);
    }

    /// No attempt is answered until [`Self::answer`].
    pub(crate) fn hold(&self) {
        self.lock().gated = true;
    }

    /// No attempt of this delivery is answered until [`Self::answer`].
    pub(crate) fn hang_at(&self, delivery_id: &str) {
        self.lock().hangs_at = Some(delivery_id.to_owned());
    }

    /// Answers `count` attempts, waiting ones or future ones.
    pub(crate) fn answer(&self, count: usize) {
        self.shared.gate.add_permits(count);
    }

    /// Sending this delivery is a defect.
    pub(crate) fn panic_at(&self, delivery_id: &str) {
        self.lock().panics_at = Some(delivery_id.to_owned());
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.lock().sent.clone()
    }

    /// Attempts that run now.
    pub(crate) fn running(&self) -> usize {
        self.shared.running.load(Ordering::SeqCst)
    }

    /// The most attempts that ever ran at once.
    pub(crate) fn running_max(&self) -> usize {
        self.shared.running_max.load(Ordering::SeqCst)
    }

    async fn receive(&self, attempt: Attempt<'_>) -> Outcome {
        let running = Running::new(&self.shared);
        let (outcome, takes, gated) = {
            let mut state = self.lock();
            let number = state.sent.len();
            state.sent.push(Sent {
                delivery_id: attempt.webhook.delivery_id.clone(),
                destination: attempt.destination.to_owned(),
                attempt: attempt.attempt,
                token: attempt.token,
                at_ms: self.clock.now_ms(),
                body: attempt.webhook.body.clone(),
            });
            let at = number.min(state.script.len() - 1);
            let hangs = state.hangs_at.as_ref() == Some(&attempt.webhook.delivery_id);
            let gated = state.gated || hangs;
            match state.own.get(attempt.destination).cloned() {
                Some((outcome, takes)) => (outcome, takes, gated),
                None => (state.script[at].clone(), state.takes, gated),
            }
        };
        let bad = self.lock().panics_at.as_ref() == Some(&attempt.webhook.delivery_id);
        assert!(!bad, "a defect that the test asked for");
        if gated {
            self.shared.gate.acquire().await.unwrap().forget();
        }
        tokio::time::sleep(takes).await;
        drop(running);
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }
}

impl Send for FakeSend {
    async fn send(&self, attempt: Attempt<'_>) -> Outcome {
        let answer = self.faults.around(Step::Send, self.receive(attempt)).await;
        answer.unwrap_or_else(|_| status(500))
    }
}

/// Counts an attempt until it is dropped.
struct Running<'a>(&'a Shared);

impl<'a> Running<'a> {
    fn new(shared: &'a Shared) -> Self {
        let now = shared.running.fetch_add(1, Ordering::SeqCst) + 1;
        shared.running_max.fetch_max(now, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The outcome of an answer with this status.
pub(crate) fn status(status: u16) -> Outcome {
    of_status(status, None, &[], 0)
}
