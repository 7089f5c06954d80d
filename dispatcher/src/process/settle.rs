//! Steps 3 and 4: make what follows durable, then tell the store.

use super::{Attempted, Finished, Infra, Job, Path, ending, seconds, wait};
use crate::{decide::Decision, publish, send::Send};
use dedup_store::{Held, Store, Transition};
use event_log::EventLog;
use schemas::{Delivery, Reason};

/// Settles an attempt. None when the transition found a stale token: the caller looks at the claim again.
///
/// A failing log or store is insisted on: the outcome is known, so it is written again and never sent again.
pub(super) async fn settle<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    held: &Held,
    attempted: &Attempted,
) -> Result<Option<Finished>, Infra> {
    match attempted.decision {
        Decision::Complete => complete(path, job, held).await,
        Decision::Retry { not_before_ms } => retry(path, job, held, not_before_ms).await,
        Decision::DeadLetter { reason } => give_up(path, job, held, reason, attempted).await,
    }
}

async fn complete<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    held: &Held,
) -> Result<Option<Finished>, Infra> {
    let at_ms = path.clock.now_ms();
    let transition = wait::insist(path, job, || path.store.complete(held, at_ms)).await?;
    if transition == Transition::Applied {
        let age_ms = at_ms.saturating_sub(job.delivery.webhook.received_at_ms);
        path.metrics
            .delivered(&job.delivery.destination, seconds(age_ms.max(0)));
    }
    Ok(applied(path, transition, Finished::Delivered))
}

async fn retry<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    held: &Held,
    not_before_ms: i64,
) -> Result<Option<Finished>, Infra> {
    let next = Delivery {
        attempt: held.row.attempts.saturating_add(1),
        generation: held.row.generation,
        fence: Some(held.row.claim_token),
        due_at_ms: not_before_ms,
        deferred: 0,
        ..job.delivery.clone()
    };
    let record = publish::hop(&path.codec, &next, &job.trace, path.clock.now_ms())
        .map_err(|error| Infra::Encode(error.to_string()))?;
    wait::insist(path, job, || wait::produce(path, record.clone())).await?;
    let transition = wait::insist(path, job, || {
        path.store
            .schedule(held, not_before_ms, path.clock.now_ms())
    })
    .await?;
    path.metrics.retry(&job.delivery.destination, record.topic);
    Ok(applied(path, transition, Finished::Retried))
}

async fn give_up<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    held: &Held,
    reason: Reason,
    attempted: &Attempted,
) -> Result<Option<Finished>, Infra> {
    let failed_at_ms = path.clock.now_ms();
    let made = job
        .delivery
        .history
        .last()
        .is_some_and(|last| last.token == held.row.claim_token);
    let ending = ending(held, reason, &attempted.detail, failed_at_ms, made);
    let letter = publish::dead_letter(
        &path.codec,
        &path.names,
        &job.delivery,
        job.place,
        &ending,
        &job.trace,
    )
    .map_err(|error| Infra::Encode(error.to_string()))?;
    wait::insist(path, job, || wait::produce(path, letter.clone())).await?;
    let transition =
        wait::insist(path, job, || path.store.fail(held, reason, failed_at_ms)).await?;
    path.metrics.dead_letter(&job.delivery.destination, reason);
    Ok(applied(path, transition, Finished::DeadLettered(reason)))
}

fn applied<L, S, H>(
    path: &Path<L, S, H>,
    transition: Transition,
    finished: Finished,
) -> Option<Finished> {
    match transition {
        Transition::Applied => Some(finished),
        Transition::LeaseLost => {
            path.metrics.lease_lost();
            None
        }
    }
}
