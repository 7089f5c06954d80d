//! Keeping a claim while work on it goes on.

use super::{Infra, Job, Path, millis, wait};
use crate::send::Send;
use dedup_store::{Held, Renewal, Store};
use event_log::EventLog;
use std::future::Future;

/// Runs `work` and renews the lease at a third of its length. None when a renewal says that the claim is lost: `work` is
/// cancelled then. A renewal without an answer cancels nothing, since nobody else can claim either, and the token fences
/// what follows.
pub(super) async fn while_held<L: EventLog, S: Store, H: Send, T>(
    path: &Path<L, S, H>,
    held: &Held,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = lost(path, held) => None,
    }
}

/// Extends the lease when less is left of it than the writes after an attempt may need. False when the claim is lost:
/// the attempt must not start.
pub(super) async fn enough_left<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    held: &Held,
) -> Result<bool, Infra> {
    let now_ms = path.clock.now_ms();
    let needed_ms = millis(path.store_deadline).saturating_add(millis(path.config.skew_margin));
    if held.row.lease_until_ms.saturating_sub(now_ms) >= needed_ms {
        return Ok(true);
    }
    let renewal = wait::insist(path, job, || {
        let now_ms = path.clock.now_ms();
        path.store.renew(
            held,
            now_ms.saturating_add(millis(path.config.lease)),
            now_ms,
        )
    })
    .await?;
    Ok(matches!(renewal, Renewal::Renewed { .. }))
}

async fn lost<L: EventLog, S: Store, H: Send>(path: &Path<L, S, H>, held: &Held) {
    let pause = path.config.lease / 3;
    loop {
        tokio::time::sleep(pause).await;
        let now_ms = path.clock.now_ms();
        let until_ms = now_ms.saturating_add(millis(path.config.lease));
        match path.store.renew(held, until_ms, now_ms).await {
            Ok(Renewal::Renewed { .. }) => {}
            Ok(Renewal::Lost) => return,
            Err(error) => {
                path.metrics.infrastructure_error("store");
                tracing::warn!(%error, token = %held.row.claim_token, "lease not renewed");
            }
        }
    }
}
