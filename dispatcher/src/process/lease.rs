//! Keeping a claim while work on it goes on.

use super::{Infra, Job, Path, millis, wait};
use crate::send::Send;
use dedup_store::{Held, Renewal, Store};
use event_log::EventLog;
use std::{
    future::Future,
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
    time::Duration,
};

/// Pause after a renewal without an answer: the lease must not lapse because nobody tried.
const RENEW_PAUSE: Duration = Duration::from_millis(500);

/// A claim that is held, and how long it is good.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    held: &'a Held,
    until_ms: AtomicI64,
    settling: AtomicBool,
}

/// Runs `work` and renews the lease at a third of its length. None when a renewal says that the claim is lost: `work` is
/// cancelled then. A renewal without an answer cancels nothing, since nobody else can claim either, and the token fences
/// what follows.
pub(super) async fn while_held<L: EventLog, S: Store, H: Send, T>(
    path: &Path<L, S, H>,
    lease: &Lease<'_>,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = lost(path, lease) => None,
    }
}

async fn lost<L: EventLog, S: Store, H: Send>(path: &Path<L, S, H>, lease: &Lease<'_>) {
    let length_ms = millis(path.config.lease);
    loop {
        let renew_at_ms = lease.until_ms().saturating_sub(length_ms - length_ms / 3);
        let wait_ms = renew_at_ms.saturating_sub(path.clock.now_ms());
        // A clock that was set back must not make us late.
        let wait_ms = u64::try_from(wait_ms.min(length_ms / 3)).unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        let now_ms = path.clock.now_ms();
        let until_ms = now_ms.saturating_add(length_ms);
        match path.store.renew(lease.held, until_ms, now_ms).await {
            Ok(Renewal::Renewed { lease_until_ms }) => lease.renewed(lease_until_ms),
            // The transition is fenced by the token and says itself how it came out; it may be what ended the claim.
            Ok(Renewal::Lost) if lease.settling.load(Ordering::Acquire) => {
                std::future::pending::<()>().await;
            }
            Ok(Renewal::Lost) => return,
            Err(error) => {
                path.metrics.infrastructure_error("store");
                tracing::warn!(%error, token = %lease.held.row.claim_token, "lease not renewed");
                tokio::time::sleep(RENEW_PAUSE).await;
            }
        }
    }
}

// === impl Lease ===

impl<'a> Lease<'a> {
    /// The lease of a claim as it was won.
    pub(super) fn new(held: &'a Held) -> Self {
        Self {
            held,
            until_ms: AtomicI64::new(held.row.lease_until_ms),
            settling: AtomicBool::new(false),
        }
    }

    /// Extends the lease until enough of it is left for the writes after an attempt. False when the claim is lost: the
    /// attempt must not start.
    pub(super) async fn enough_left<L: EventLog, S: Store, H: Send>(
        &self,
        path: &Path<L, S, H>,
        job: &Job,
    ) -> Result<bool, Infra> {
        let margin_ms = millis(path.config.skew_margin);
        let needed_ms = millis(path.store_deadline).saturating_add(margin_ms);
        while self.until_ms().saturating_sub(path.clock.now_ms()) < needed_ms {
            let renewal = wait::insist(path, job, || {
                let now_ms = path.clock.now_ms();
                let until_ms = now_ms.saturating_add(millis(path.config.lease));
                path.store.renew(self.held, until_ms, now_ms)
            });
            match renewal.await? {
                Renewal::Renewed { lease_until_ms } => self.renewed(lease_until_ms),
                Renewal::Lost => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The claim for its transition, with the lease as it stands now. From here on a renewal that answers "lost" cancels
    /// nothing.
    pub(super) fn settle(&self) -> Held {
        self.settling.store(true, Ordering::Release);
        let mut held = self.held.clone();
        held.row.lease_until_ms = self.until_ms();
        held
    }

    fn until_ms(&self) -> i64 {
        self.until_ms.load(Ordering::Acquire)
    }

    fn renewed(&self, lease_until_ms: i64) {
        self.until_ms.fetch_max(lease_until_ms, Ordering::AcqRel);
    }
}
