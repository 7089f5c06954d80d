//! Every wait on the path: until due, for room, for somebody else's claim, for infrastructure to come back. All of them
//! end when the partition is owned no more.

use super::{Finished, Infra, Job, Path};
use crate::{limits::Entered, publish, send::Send};
use dedup_store::Store;
use event_log::{Appended, EventLog, ProduceError, Record};
use schemas::{DelayTier, Topic};
use std::{future::Future, time::Duration};
use tokio_util::sync::CancellationToken;

/// Looks at a busy claim after these pauses; together shorter than the smallest tier, where the record goes after them.
const PARK_PAUSES_MS: [u64; 6] = [50, 100, 250, 500, 1_000, 2_000];
/// While a transition is in flight, look again at least this often.
const IN_TRANSITION_PAUSE_MS: u64 = 250;
/// Pauses between tries of a failing port.
const INSIST_PAUSE_MIN: Duration = Duration::from_millis(100);
const INSIST_PAUSE_MAX: Duration = Duration::from_secs(5);

/// How often a busy claim was looked at.
#[derive(Debug, Default)]
pub(super) struct Parked {
    looks: usize,
}

/// Waits until the delivery is due. What is too long for memory goes into a further tier: `Some(Hopped)`. Never early.
pub(super) async fn until_due<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &mut Job,
) -> Result<Option<Finished>, Infra> {
    let remaining_ms = |job: &Job| job.delivery.due_at_ms.saturating_sub(path.clock.now_ms());
    if job.place.topic == Topic::Webhooks || remaining_ms(job) <= 0 {
        return Ok(None);
    }
    let hold = match DelayTier::for_remaining(remaining_ms(job)) {
        Some(_) => None,
        None => path.held.take(job.delivery.webhook.body.len()),
    };
    let Some(_memory) = hold else {
        publish_hop(path, job).await?;
        return Ok(Some(Finished::Hopped));
    };
    while let Ok(left_ms @ 1..) = u64::try_from(remaining_ms(job)) {
        pause(job, Duration::from_millis(left_ms)).await?;
    }
    Ok(None)
}

/// Waits a bounded time for room at the destination.
pub(super) async fn room<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
) -> Result<Option<Entered>, Infra> {
    tokio::select! {
        biased;
        room = path.rooms.enter(&job.delivery.destination, path.config.room_wait) => Ok(room),
        () = job.owned.cancelled() => Err(Infra::Abandoned),
    }
}

/// Puts the record into the smallest tier with the same fence and attempt: no claim was made.
pub(super) async fn defer<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &mut Job,
    cause: &'static str,
) -> Result<Finished, Infra> {
    job.delivery.deferred = job.delivery.deferred.saturating_add(1);
    publish_hop(path, job).await?;
    path.metrics.deferred(&job.delivery.destination, cause);
    Ok(Finished::Deferred)
}

/// Waits, unless ownership ends first.
pub(super) async fn pause(job: &Job, pause: Duration) -> Result<(), Infra> {
    tokio::select! {
        biased;
        () = job.owned.cancelled() => Err(Infra::Abandoned),
        () = tokio::time::sleep(pause) => Ok(()),
    }
}

/// Calls a port until it answers. What was to be written is kept and written again; ownership that ends is the only way
/// out.
pub(super) async fn insist<L, S, H, T, E, F>(
    path: &Path<L, S, H>,
    job: &Job,
    call: impl Fn() -> F,
) -> Result<T, Infra>
where
    F: Future<Output = Result<T, E>>,
    E: Into<Infra>,
{
    insist_owned(path, &job.owned, call).await
}

/// As [`insist`], for a record without a job.
pub(super) async fn insist_owned<L, S, H, T, E, F>(
    path: &Path<L, S, H>,
    owned: &CancellationToken,
    call: impl Fn() -> F,
) -> Result<T, Infra>
where
    F: Future<Output = Result<T, E>>,
    E: Into<Infra>,
{
    let mut pause = INSIST_PAUSE_MIN;
    loop {
        let error = match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => error.into(),
        };
        path.metrics.infrastructure_error(match &error {
            Infra::Store(_) => "store",
            Infra::Log(_) | Infra::Encode(_) | Infra::Abandoned => "log",
        });
        tracing::warn!(%error, "call failed, trying again");
        tokio::select! {
            biased;
            () = owned.cancelled() => return Err(Infra::Abandoned),
            () = tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))) => {}
        }
        pause = (pause * 2).min(INSIST_PAUSE_MAX);
    }
}

/// Appends a record, with a deadline.
pub(super) async fn produce<L: EventLog, S, H>(
    path: &Path<L, S, H>,
    record: Record,
) -> Result<Appended, ProduceError> {
    match tokio::time::timeout(path.config.produce_timeout, path.log.produce(record)).await {
        Ok(answer) => answer,
        Err(_elapsed) => Err(ProduceError::Unacknowledged("no answer in time".to_owned())),
    }
}

/// Publishes the delivery's next hop; answers with the tier's topic.
pub(super) async fn publish_hop<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
) -> Result<Topic, Infra> {
    let record = publish::hop(&path.codec, &job.delivery, &job.trace, path.clock.now_ms())
        .map_err(|error| Infra::Encode(error.to_string()))?;
    insist(path, job, || produce(path, record.clone())).await?;
    Ok(record.topic)
}

// === impl Parked ===

impl Parked {
    /// How long to wait before the next look at a busy claim; none when the record shall go to a tier.
    pub(super) fn next(
        &mut self,
        until_ms: i64,
        in_transition: bool,
        now_ms: i64,
    ) -> Option<Duration> {
        let pause_ms = *PARK_PAUSES_MS.get(self.looks)?;
        self.looks += 1;
        let lease_ms = u64::try_from(until_ms.saturating_sub(now_ms))
            .unwrap_or(0)
            .saturating_add(1);
        let pause_ms = pause_ms.min(lease_ms);
        let pause_ms = if in_transition {
            pause_ms.min(IN_TRANSITION_PAUSE_MS)
        } else {
            pause_ms
        };
        Some(Duration::from_millis(pause_ms))
    }

    /// How long to wait before the claim is looked at again after it was lost.
    pub(super) fn after_lost(&mut self) -> Duration {
        let pause_ms = PARK_PAUSES_MS
            .get(self.looks)
            .unwrap_or(&PARK_PAUSES_MS[PARK_PAUSES_MS.len() - 1]);
        self.looks += 1;
        Duration::from_millis(*pause_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_claim_is_looked_at_for_less_than_the_smallest_tier() {
        let mut parked = Parked::default();
        let mut total = Duration::ZERO;
        while let Some(pause) = parked.next(i64::MAX, false, 0) {
            total += pause;
        }
        assert!(total < DelayTier::SMALLEST.wait());
        assert_eq!(
            Parked::default().next(10, false, 0),
            Some(Duration::from_millis(11))
        );
        let mut late = Parked { looks: 5 };
        assert_eq!(
            late.next(i64::MAX, true, 0),
            Some(Duration::from_millis(250))
        );
    }
}
