//! Every wait on the path: until due, for room, for somebody else's claim, for infrastructure to come back. All of them
//! end when the partition is owned no more.

use super::{Finished, Infra, Job, Path, Place};
use crate::{
    asking::Turn,
    config::{DestinationConfig, WhilePaused},
    decide::{self, Standing},
    gate::{self, Ask, Class, Entered, Entry, Refused},
    publish,
    send::Send,
    waiting::On,
};
use dedup_store::Store;
use event_log::{Appended, EventLog, ProduceError, Record};
use schemas::{DelayTier, Topic};
use std::{future::Future, time::Duration};
use tokio_util::sync::CancellationToken;

/// Looks at a busy claim after these pauses; together shorter than the smallest tier, where the record goes after them.
const PARK_PAUSES_MS: [u64; 6] = [50, 100, 250, 500, 1_000, 2_000];
/// While a transition is in flight, look again at least this often.
const IN_TRANSITION_PAUSE_MS: u64 = 250;
/// What is paused goes round this tier: each round writes the whole record again, and a resumed destination waits for the
/// end of one.
const PAUSED_TIER: DelayTier = DelayTier::M10;
/// Until the gate is asked again by one that found no room while the store was away.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// Pauses between tries of a failing port.
const INSIST_PAUSE_MIN: Duration = Duration::from_millis(100);
const INSIST_PAUSE_MAX: Duration = Duration::from_secs(5);

/// What an insisted call belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole<'a> {
    /// Ends the insisting; none: nothing but success does.
    pub(super) owned: Option<&'a CancellationToken>,
    /// For the log line.
    pub(super) job: Option<&'a Job>,
    pub(super) place: Place,
}

/// How often a busy claim was looked at.
#[derive(Debug, Default)]
pub(super) struct Parked {
    looks: usize,
}

/// Waits until the delivery is due. What is too long for memory goes into a further tier: `Some(Hopped)`. Never early,
/// and looked at again after each pause, since clocks can be set back.
pub(super) async fn until_due<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &mut Job,
) -> Result<Option<Finished>, Infra> {
    let mut memory = None;
    loop {
        let remaining_ms = job.delivery.due_at_ms.saturating_sub(path.clock.now_ms());
        if job.place.topic == Topic::Webhooks || remaining_ms <= 0 {
            return Ok(None);
        }
        if memory.is_none() {
            let bytes = job.delivery.webhook.body.len();
            memory = path.held.take(job.place.partition, bytes);
        }
        if memory.is_none() || DelayTier::for_remaining(remaining_ms).is_some() {
            let tier = publish::tier(job.delivery.due_at_ms, path.clock.now_ms());
            publish_hop(path, job, tier).await?;
            return Ok(Some(Finished::Hopped));
        }
        pause(job, Duration::from_millis(remaining_ms.unsigned_abs())).await?;
    }
}

/// What becomes of the delivery, when its destination is paused. One that will be given up for its age or its attempts ends
/// for that reason, paused or not.
pub(super) fn paused<L, S, H>(path: &Path<L, S, H>, job: &Job) -> Option<WhilePaused> {
    let paused = path.pauses.verdict(&job.delivery.destination)?;
    (!is_over(path, job)).then_some(paused)
}

/// Asks the destination's gate, and waits a bounded time there. A delivery that will be given up needs no room: it must not
/// go round for want of it.
pub(super) async fn room<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    paused: Option<WhilePaused>,
) -> Result<Entry, Infra> {
    if paused == Some(WhilePaused::DeadLetter) || is_over(path, job) {
        return Ok(Entry::Entered(Entered::none()));
    }
    let ask = Ask {
        destination: &job.delivery.destination,
        class: Class::of(job.place.topic),
        bytes: job.delivery.webhook.body.len(),
    };
    tokio::select! {
        biased;
        () = job.owned.cancelled() => Err(Infra::Abandoned),
        entry = path.gates.enter(ask, &path.clock) => Ok(entry),
    }
}

/// Whether the delivery will be given up for its age or its attempts.
fn is_over<L, S, H>(path: &Path<L, S, H>, job: &Job) -> bool {
    let destination = path.destinations.get(&job.delivery.destination);
    let standing = Standing {
        attempt: job.delivery.attempt,
        received_at_ms: job.delivery.webhook.received_at_ms,
    };
    let over = |found: &DestinationConfig| {
        decide::before_attempt(standing, &found.retry, path.clock.now_ms()).is_some()
    };
    destination.is_some_and(over)
}

/// Why a record is put off without an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its destination's gate did not let it in.
    Refused(Refused),
    /// Its destination is paused.
    Paused,
    /// Somebody else holds the claim.
    Busy,
}

/// The gate did not let it in: it is put off. None: the gate shall be asked again. For want of room nobody is put off
/// while the store is away: those who wait for the store have the room, and a round through a tier would only add writes.
pub(super) async fn refused<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &mut Job,
    refused: Refused,
) -> Result<Option<Finished>, Infra> {
    if refused.cause == gate::Cause::NoRoom && path.asking.is_store_away() {
        job.waiting.on(On::Claim);
        pause(job, STORE_PAUSE).await?;
        return Ok(None);
    }
    defer(path, job, Cause::Refused(refused)).await.map(Some)
}

/// Puts the record into a tier with the same fence and attempt: no claim was made.
pub(super) async fn defer<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &mut Job,
    cause: Cause,
) -> Result<Finished, Infra> {
    let jitter = path.dice.fraction();
    let tier = deferral_tier(cause, job.delivery.deferred, jitter);
    job.delivery.deferred = job.delivery.deferred.saturating_add(1);
    publish_hop(path, job, Topic::Delay(tier)).await?;
    let cause = match cause {
        Cause::Refused(refused) => refused.cause.as_str(),
        Cause::Paused => "paused",
        Cause::Busy => "busy",
    };
    path.metrics.deferred(&job.delivery.destination, cause);
    Ok(Finished::Deferred)
}

/// The tier of a deferral. A claim that is held by somebody else ends within a lease: always the smallest one. A gate says
/// when there is sense in coming back: the largest tier that is not longer. `jitter` (0 to 1) adds up to as much again, so
/// that those who came at once do not come back at once. Each deferral writes the whole record again; so while nothing
/// gets through, one that was put off often comes back more rarely.
fn deferral_tier(cause: Cause, deferred: u32, jitter: f64) -> DelayTier {
    let Refused { cause, wait_ms } = match cause {
        Cause::Busy => return DelayTier::S5,
        Cause::Paused => return PAUSED_TIER,
        Cause::Refused(refused) => refused,
    };
    let by_count = match deferred {
        0..=3 => DelayTier::S5,
        4..=9 => DelayTier::S30,
        _ => DelayTier::M2,
    };
    let (least, most) = match cause {
        gate::Cause::NoRoom | gate::Cause::Rate => (DelayTier::S5, DelayTier::M10),
        gate::Cause::Breaker => (by_count, DelayTier::M10),
        // The receiver itself has named the time.
        gate::Cause::Overload => (by_count, DelayTier::H1),
    };
    let wait = Duration::from_millis(wait_ms.unsigned_abs()).mul_f64(1.0 + jitter.clamp(0.0, 1.0));
    let wait_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
    DelayTier::for_remaining(wait_ms)
        .unwrap_or(DelayTier::S5)
        .clamp(least, most)
}

/// Waits for the turn to ask the store for a claim.
pub(super) async fn turn<L, S, H>(path: &Path<L, S, H>, job: &Job) -> Result<Turn, Infra> {
    tokio::select! {
        biased;
        () = job.owned.cancelled() => Err(Infra::Abandoned),
        turn = path.asking.turn() => Ok(turn),
    }
}

/// Waits, unless ownership ends first.
pub(super) async fn pause(job: &Job, pause: Duration) -> Result<(), Infra> {
    tokio::select! {
        biased;
        () = job.owned.cancelled() => Err(Infra::Abandoned),
        () = tokio::time::sleep(pause) => Ok(()),
    }
}

/// Calls a port until it answers, or ownership ends.
pub(super) async fn insist<L, S, H, T, E, F>(
    path: &Path<L, S, H>,
    job: &Job,
    call: impl Fn() -> F,
) -> Result<T, Infra>
where
    F: Future<Output = Result<T, E>>,
    E: Into<Infra>,
{
    let whole = Whole {
        owned: Some(&job.owned),
        job: Some(job),
        place: job.place,
    };
    insist_on(path, whole, call).await
}

/// Calls a port until it answers, whoever owns the partition: an outcome is known, so it is written again and never sent
/// again. A lost lease, or the end of the grace at shutdown, bounds it.
pub(super) async fn insist_known<L, S, H, T, E, F>(
    path: &Path<L, S, H>,
    job: &Job,
    call: impl Fn() -> F,
) -> Result<T, Infra>
where
    F: Future<Output = Result<T, E>>,
    E: Into<Infra>,
{
    let whole = Whole {
        owned: None,
        job: Some(job),
        place: job.place,
    };
    insist_on(path, whole, call).await
}

/// As [`insist`], for any record. What can not succeed, a record that is too large, is an error at once.
pub(super) async fn insist_on<L, S, H, T, E, F>(
    path: &Path<L, S, H>,
    whole: Whole<'_>,
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
        if matches!(
            error,
            Infra::Log(ProduceError::TooLarge { .. }) | Infra::Abandoned
        ) {
            return Err(error);
        }
        path.metrics.infrastructure_error(match &error {
            Infra::Store(_) => "store",
            Infra::Log(_) | Infra::Encode(_) | Infra::Abandoned => "log",
        });
        let delivery = whole.job.map(|job| job.delivery.key().to_string());
        tracing::warn!(
            %error,
            delivery,
            topic = whole.place.topic.suffix(),
            partition = whole.place.partition,
            offset = whole.place.offset,
            "call failed, trying again"
        );
        let pause_now = tokio::time::sleep(pause.mul_f64(0.75 + path.dice.fraction() / 2.0));
        match whole.owned {
            None => pause_now.await,
            Some(owned) => tokio::select! {
                biased;
                () = owned.cancelled() => return Err(Infra::Abandoned),
                () = pause_now => {}
            },
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

/// Puts the delivery, as it is, into a tier.
async fn publish_hop<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
    tier: Topic,
) -> Result<(), Infra> {
    let record = publish::hop(&path.codec, &job.delivery, &job.trace, tier)
        .map_err(|error| Infra::Encode(error.to_string()))?;
    insist(path, job, || produce(path, record.clone())).await?;
    Ok(())
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
    fn a_destination_that_stays_full_is_asked_more_rarely() {
        let tier = |deferred| deferral_tier(refused(gate::Cause::Breaker, 0), deferred, 0.5);
        assert_eq!([tier(0), tier(3)], [DelayTier::S5; 2]);
        assert_eq!([tier(4), tier(9)], [DelayTier::S30; 2]);
        assert_eq!([tier(10), tier(u32::MAX)], [DelayTier::M2; 2]);
        let no_room = refused(gate::Cause::NoRoom, 0);
        assert_eq!(deferral_tier(no_room, 100, 0.5), DelayTier::S5);
        assert_eq!(deferral_tier(Cause::Busy, 100, 0.5), DelayTier::S5);
    }

    #[test]
    fn a_deferral_takes_the_largest_tier_that_is_not_longer_than_the_gate_stays_closed() {
        let tier =
            |cause, seconds: i64, jitter| deferral_tier(refused(cause, seconds * 1_000), 0, jitter);
        let breaker = gate::Cause::Breaker;
        assert_eq!(tier(breaker, 2, 1.0), DelayTier::S5);
        assert_eq!(tier(breaker, 29, 0.0), DelayTier::S5);
        assert_eq!(tier(breaker, 29, 0.5), DelayTier::S30);
        assert_eq!(tier(breaker, 120, 0.0), DelayTier::M2);
        assert_eq!(tier(breaker, 1_000_000, 0.0), DelayTier::M10);
        assert_eq!(tier(gate::Cause::Overload, 3_599, 0.0), DelayTier::M10);
        assert_eq!(tier(gate::Cause::Overload, 1_000_000, 0.0), DelayTier::H1);
        assert_eq!(
            deferral_tier(refused(breaker, i64::MAX), 0, 1.0),
            DelayTier::M10
        );
    }

    fn refused(cause: gate::Cause, wait_ms: i64) -> Cause {
        Cause::Refused(Refused { cause, wait_ms })
    }

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
