//! Destinations that are left alone: after days of nothing but failures, after a 410, or because somebody asked for it.
//!
//! How a destination stands is noted in the store, beside the claims, so that it holds for all dispatchers and outlives
//! them. Each dispatcher looks every few seconds, and writes back what its own attempts have shown. Nothing here resumes
//! a destination; that is `fencepost destinations resume`. While the store is away, what was known last holds.

mod decide;

use crate::{
    config::{DestinationConfig, PauseConfig, WhilePaused},
    metrics::Metrics,
    outcome::Outcome,
    process::Path,
    send::Send,
};
use decide::Seen;
use dedup_store::{Noted, Standing, Store, StoreError};
use event_log::EventLog;
use schemas::OutcomeKind;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;

/// How long it takes at most until a pause or its end is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The same after a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Which destinations are paused, as far as this process knows, and what it has seen of each.
#[derive(Debug)]
pub struct Pauses {
    destinations: BTreeMap<String, Destination>,
    /// There is something that should not wait for the next look.
    urgent: Notify,
}

#[derive(Debug)]
struct Destination {
    config: PauseConfig,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: Standing,
    seen: Seen,
}

/// Looks again and again.
pub(crate) async fn watch<L: EventLog, S: Store, H: Send>(path: &Path<L, S, H>) -> Infallible {
    loop {
        let wait = match look(path).await {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                path.metrics.infrastructure_error("store");
                tracing::warn!(%error, "can not see which destinations are paused, what was known last holds");
                LOOK_AGAIN
            }
        };
        tokio::select! {
            biased;
            () = path.pauses.urgent.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// One look: takes in how the destinations stand, and notes what this process has to add.
///
/// # Errors
/// When the store does not answer. What could not be noted is tried again with the next look.
pub async fn look<L: EventLog, S: Store, H: Send>(path: &Path<L, S, H>) -> Result<(), StoreError> {
    let mut standings = path.store.standings().await?;
    for (name, destination) in &path.pauses.destinations {
        let row = standings.remove(name).unwrap_or_default();
        let next = destination.learn(name, row, path.clock.now_ms(), &path.metrics);
        let Some(next) = next else { continue };
        match path.store.set_standing(name, &next).await? {
            Noted::Written => {
                destination.learn(name, next, path.clock.now_ms(), &path.metrics);
            }
            // Somebody else was quicker; the next look shows what he wrote.
            Noted::Outdated => {}
        }
    }
    Ok(())
}

// === impl Pauses ===

impl Pauses {
    pub(crate) fn new(destinations: &BTreeMap<String, DestinationConfig>) -> Self {
        let destination = |(name, config): (&String, &DestinationConfig)| {
            let destination = Destination {
                config: config.pause.clone(),
                state: Mutex::default(),
            };
            (name.clone(), destination)
        };
        Self {
            destinations: destinations.iter().map(destination).collect(),
            urgent: Notify::new(),
        }
    }

    /// What becomes of a delivery, when its destination is paused.
    pub(crate) fn verdict(&self, destination: &str) -> Option<WhilePaused> {
        let found = self.destinations.get(destination)?;
        let paused = found.lock().known.paused.is_some();
        paused.then_some(found.config.deliveries)
    }

    /// An attempt has ended.
    pub(crate) fn saw(&self, destination: &str, outcome: &Outcome, at_ms: i64) {
        let Some(found) = self.destinations.get(destination) else {
            return;
        };
        let mut state = found.lock();
        let known = state.seen.is_gone() || state.known.paused.is_some();
        state.seen.add(outcome.kind, &outcome.detail, at_ms);
        if outcome.kind == OutcomeKind::Gone && !known {
            self.urgent.notify_one();
        }
    }
}

// === impl Destination ===

impl Destination {
    /// Takes in how it stands, tells when that is news, and says what shall be noted next.
    fn learn(&self, name: &str, row: Standing, now_ms: i64, metrics: &Metrics) -> Option<Standing> {
        let mut state = self.lock();
        if row.revision < state.known.revision {
            // Nothing takes a write back. A store that lost its rows must not resume anybody.
            tracing::warn!(
                destination = name,
                "the store has forgotten how a destination stands, what was known last holds"
            );
            return None;
        }
        let State { known, seen } = &mut *state;
        seen.hear(known, &row);
        tell(name, known, &row, metrics);
        *known = row;
        decide::next(&state.known, &state.seen, &self.config, now_ms)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(destination: &str, before: &Standing, now: &Standing, metrics: &Metrics) {
    if before.paused == now.paused {
        return;
    }
    if let Some(paused) = &before.paused {
        metrics.paused(destination, paused.cause.as_str(), false);
    }
    match &now.paused {
        Some(paused) => {
            let cause = paused.cause.as_str();
            metrics.paused(destination, cause, true);
            let (note, failing_since_ms) = (&paused.note, now.failing_since_ms);
            tracing::warn!(
                destination,
                cause,
                note,
                failing_since_ms,
                "destination paused"
            );
        }
        None => {
            let cause = before.paused.as_ref().map(|paused| paused.cause.as_str());
            tracing::info!(destination, cause, "destination resumed");
        }
    }
}
