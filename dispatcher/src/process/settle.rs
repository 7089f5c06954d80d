//! Steps 3 and 4: make what follows durable, then tell the store.

use super::{Attempted, Finished, Infra, Job, Path, ending, lease::Lease, seconds, wait};
use crate::{decide::Decision, publish, send::Send};
use dedup_store::{Held, Store, Transition};
use event_log::{EventLog, ProduceError, Record};
use schemas::{Delivery, Reason};

/// Settles an attempt. None when the transition found a stale token: the caller looks at the claim again.
///
/// A failing log or store is insisted on, even when the partition is somebody else's by now: the outcome is known, so it
/// is written again and never sent again.
pub(super) async fn settle<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    lease: &Lease<'_>,
    held: &Held,
    attempted: &Attempted,
) -> Result<Option<Finished>, Infra> {
    let now_ms = path.clock.now_ms();
    let (transition, finished) = match attempted.decision {
        Decision::Complete => {
            let held = lease.settle();
            let complete = || path.store.complete(&held, now_ms);
            (
                wait::insist_known(path, job, complete).await?,
                Finished::Delivered,
            )
        }
        Decision::Retry { not_before_ms } => {
            publish_hop(path, job, held, not_before_ms).await?;
            let held = lease.settle();
            let schedule = || path.store.schedule(&held, not_before_ms, now_ms);
            (
                wait::insist_known(path, job, schedule).await?,
                Finished::Retried,
            )
        }
        Decision::DeadLetter { reason } => {
            publish_letter(path, job, held, reason, &attempted.detail, now_ms).await?;
            let held = lease.settle();
            let fail = || path.store.fail(&held, reason, now_ms);
            (
                wait::insist_known(path, job, fail).await?,
                Finished::DeadLettered(reason),
            )
        }
    };
    Ok(match transition {
        Transition::Applied => {
            count(path, job, attempted.decision, now_ms);
            Some(finished)
        }
        Transition::LeaseLost => {
            path.metrics.lease_lost();
            None
        }
    })
}

fn count<L, S, H>(path: &Path<L, S, H>, job: &Job, decision: Decision, now_ms: i64) {
    let destination = &job.delivery.destination;
    match decision {
        Decision::Complete => {
            let age_ms = now_ms.saturating_sub(job.delivery.webhook.received_at_ms);
            path.metrics.delivered(destination, seconds(age_ms.max(0)));
        }
        Decision::Retry { not_before_ms } => {
            path.metrics
                .retry(destination, publish::tier(not_before_ms, now_ms));
        }
        Decision::DeadLetter { reason } => path.metrics.dead_letter(destination, reason),
    }
}

async fn publish_hop<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    held: &Held,
    not_before_ms: i64,
) -> Result<(), Infra> {
    let next = Delivery {
        attempt: held.row.attempts.saturating_add(1),
        generation: held.row.generation,
        fence: Some(held.row.claim_token),
        due_at_ms: not_before_ms,
        deferred: 0,
        ..job.delivery.clone()
    };
    let tier = publish::tier(not_before_ms, path.clock.now_ms());
    let record = publish::hop(&path.codec, &next, &job.trace, tier)
        .map_err(|error| Infra::Encode(error.to_string()))?;
    publish_known(path, job, &record).await
}

/// Publishes the dead letter. The log leaves room for what a letter says beyond its webhook; where its limit was lowered
/// since, the headers and all but the last attempt are left out rather than nothing being published.
async fn publish_letter<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    held: &Held,
    reason: Reason,
    detail: &str,
    failed_at_ms: i64,
) -> Result<(), Infra> {
    let made = job
        .delivery
        .history
        .last()
        .is_some_and(|last| last.token == held.row.claim_token);
    let ending = ending(held, reason, detail, failed_at_ms, made);
    let letter = |delivery: &Delivery| {
        publish::dead_letter(
            &path.codec,
            &path.names,
            delivery,
            job.place,
            &ending,
            &job.trace,
        )
        .map_err(|error| Infra::Encode(error.to_string()))
    };
    match publish_known(path, job, &letter(&job.delivery)?).await {
        Err(Infra::Log(ProduceError::TooLarge { .. })) => {
            let mut short = job.delivery.clone();
            short.webhook.headers.clear();
            let last = short.history.pop();
            short.history = last.into_iter().collect();
            publish_known(path, job, &letter(&short)?).await
        }
        published => published,
    }
}

async fn publish_known<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    record: &Record,
) -> Result<(), Infra> {
    wait::insist_known(path, job, || wait::produce(path, record.clone())).await?;
    Ok(())
}
