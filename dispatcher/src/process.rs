//! The path of one delivery, from a log record to an end.

mod lease;
mod replay;
mod settle;
mod wait;

use crate::{
    asking::Asking,
    config::{
        DestinationConfig, DispatcherConfig, RetryConfig, RouteConfig, SourcePolicy, WhilePaused,
    },
    decide::{self, Decision, Standing},
    gate::{Entered, Entry, Gates},
    limits::HeldBudget,
    metrics::Metrics,
    outcome::Outcome,
    pause::Pauses,
    publish::{self, Ending},
    send::{Attempt, Send},
    waiting::{On, Waiting},
};
use dedup_store::{Claim, ClaimAsk, Held, Reopen, Store, StoreError};
use event_log::{EventLog, Headers, ProduceError, Received};
use lease::Lease;
use runtime::{Clock, Dice};
use schemas::{AttemptSummary, Codec, Delivery, OutcomeKind, Reason, Topic, TopicNames};
use std::{collections::BTreeMap, ops::Deref, time::Duration};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info, info_span};
use uuid::Uuid;

/// Everything that a delivery meets on its path: the three ports, the config as values, and the bounds made of it.
#[derive(Debug)]
pub struct Path<L, S, H> {
    parts: Parts<L, S, H>,
    gates: Gates,
    pub(crate) pauses: Pauses,
    pub(crate) held: HeldBudget,
    pub(crate) asking: Asking,
    pub(crate) metrics: Metrics,
}

/// What a [`Path`] is made of.
#[derive(Debug)]
pub struct Parts<L, S, H> {
    pub log: L,
    pub store: S,
    pub send: H,
    pub codec: Codec,
    pub clock: Clock,
    /// Jitter and claim tokens.
    pub dice: Dice,
    pub names: TopicNames,
    pub config: DispatcherConfig,
    pub destinations: BTreeMap<String, DestinationConfig>,
    pub routes: Vec<RouteConfig>,
    /// Policy by source; sources that are not named have the default.
    pub sources: BTreeMap<String, SourcePolicy>,
    /// How long one call of the store may take, re-issues included.
    pub store_deadline: Duration,
}

/// A delivery in work, and the log record that it came from.
#[derive(Debug)]
pub struct Job {
    pub delivery: Delivery,
    pub place: Place,
    /// Trace context of the receipt.
    pub trace: Headers,
    /// Cancelled when the record's partition is owned no more, or the process shuts down: waiting ends, an attempt that
    /// runs goes on.
    pub owned: CancellationToken,
    /// What it waits for now.
    pub waiting: Waiting,
}

/// Where a record stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub topic: Topic,
    pub partition: u32,
    pub offset: i64,
}

/// Why a record is finished: whatever the delivery still needs is durable elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// The destination has it and the claim says so.
    Delivered,
    /// The next attempt stands in a delay tier and the claim says so.
    Retried,
    /// The dead letter is published and the claim says so.
    DeadLettered(Reason),
    /// Put into a delay tier again, unchanged but for the count.
    Deferred,
    /// Not due yet: in a further delay tier.
    Hopped,
    /// Ended before: a repeat.
    Duplicate,
    /// A later record of the delivery is in the log.
    Superseded,
    /// Its body came under another id within the source's replay window.
    Replayed,
}

/// Our own infrastructure failed: nothing is finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Infra {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Log(#[from] ProduceError),
    #[error("a record can not be encoded: {0}")]
    Encode(String),
    /// The partition is not ours any more, or the process ends: somebody reads the record again.
    #[error("ownership ended")]
    Abandoned,
}

/// A claim that is held, with what was decided before any attempt. Nothing can be sent without one.
#[derive(Debug)]
struct Claimed {
    held: Held,
    give_up: Option<Reason>,
}

/// What a claimed delivery came to, before it is settled.
#[derive(Debug)]
struct Attempted {
    decision: Decision,
    detail: String,
}

/// Takes one record of a delivery to its end. The order of effects is the safety argument:
///
/// 1. claim applied in the store,
/// 2. HTTP attempt,
/// 3. next hop or dead letter published, acknowledged by the log,
/// 4. store transition with the claim's token (complete | waiting | failed),
/// 5. the record's offset marked finished (by the caller, on `Ok`),
/// 6. the watermark committed later.
///
/// A crash between any two steps repeats work and loses nothing. A lost lease goes back to the claim: somebody else works
/// on the delivery, and our record stays unfinished until the store says how that came out.
///
/// # Errors
/// See [`Infra`]; the record is not finished then.
pub async fn process<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &mut Job,
) -> Result<Finished, Infra> {
    job.waiting.on(On::Due);
    if let Some(finished) = wait::until_due(path, job).await? {
        return Ok(finished);
    }
    job.waiting.on(On::Claim);
    if replay::is_replay(path, job).await? {
        path.metrics.claim("replayed");
        return Ok(Finished::Replayed);
    }
    let mut parked = wait::Parked::default();
    loop {
        let paused = wait::paused(path, job);
        if paused == Some(WhilePaused::Wait) {
            return wait::defer(path, job, wait::Cause::Paused).await;
        }
        job.waiting.on(On::Room);
        let room = match wait::room(path, job, paused).await? {
            Entry::Entered(room) => room,
            Entry::Refused(refused) => match wait::refused(path, job, refused).await? {
                Some(finished) => return Ok(finished),
                None => continue,
            },
        };
        // 1
        job.waiting.on(On::Claim);
        let claimed = match claim(path, job).await? {
            Claim::Claimed(held) => won(path, job, held, paused),
            Claim::Busy {
                until_ms,
                in_transition,
            } => {
                drop(room);
                job.waiting.on(On::OtherClaim);
                let again = parked.next(until_ms, in_transition, path.clock.now_ms());
                match again {
                    Some(pause) => wait::pause(job, pause).await?,
                    None => return wait::defer(path, job, wait::Cause::Busy).await,
                }
                continue;
            }
            Claim::Superseded => return Ok(Finished::Superseded),
            Claim::Ended { .. } => return Ok(Finished::Duplicate),
        };
        let lease = Lease::new(&claimed.held);
        let finished = lease::while_held(path, &lease, async {
            // 2
            job.waiting.on(On::Receiver);
            let Some(attempted) = attempt(path, job, &claimed, &lease, &room).await? else {
                return Ok(None);
            };
            drop(room);
            // 3 and 4
            job.waiting.on(On::Settling);
            settle::settle(path, job, &lease, &claimed.held, &attempted).await
        })
        .await;
        match finished {
            Some(result) => {
                if let Some(finished) = result? {
                    return Ok(finished);
                }
            }
            None => path.metrics.lease_lost(),
        }
        wait::pause(job, parked.after_lost()).await?;
    }
}

/// One log line for a record that was dropped, put off or dead-lettered; what was delivered or retried had its line with the
/// attempt. Whoever follows a delivery id shall see why nothing happened.
pub fn tell(job: &Job, result: &Result<Finished, Infra>) {
    let delivery = &job.delivery;
    let ended = match result {
        Ok(Finished::Duplicate) => "duplicate",
        Ok(Finished::Superseded) => "superseded",
        Ok(Finished::Replayed) => "replayed",
        Ok(Finished::Deferred) => "deferred",
        Ok(Finished::DeadLettered(_)) => "dead_lettered",
        Err(Infra::Abandoned) => "abandoned",
        Ok(Finished::Delivered | Finished::Retried | Finished::Hopped) | Err(_) => return,
    };
    info!(
        source = delivery.webhook.source,
        delivery_id = delivery.webhook.delivery_id,
        destination = delivery.destination,
        event_type = delivery.webhook.event_type,
        attempt = delivery.attempt,
        generation = delivery.generation,
        deferred = delivery.deferred,
        topic = job.place.topic.suffix(),
        partition = job.place.partition,
        offset = job.place.offset,
        ended,
        "record ended"
    );
}

/// Asks for the claim until the store has answered, always with the same token, so that an ask whose answer was lost is
/// recognised and not held against us.
async fn claim<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
) -> Result<Claim, Infra> {
    let delivery = &job.delivery;
    let ask = ClaimAsk {
        key: delivery.key(),
        token: fresh_token(path),
        lease_ms: millis(path.config.lease),
        skew_margin_ms: millis(path.config.skew_margin),
        attempt: delivery.attempt,
        fence: delivery.fence,
        generation: delivery.generation,
        received_at_ms: delivery.webhook.received_at_ms,
        reopen: path
            .sources
            .get(&delivery.webhook.source)
            .map_or_else(Reopen::default, |policy| policy.reopen),
    };
    let answer = wait::insist(path, job, || async {
        let turn = wait::turn(path, job).await?;
        let answer = path.store.claim(&ask, path.clock.now_ms()).await;
        turn.done(answer.is_ok());
        answer.map_err(Infra::from)
    })
    .await?;
    path.metrics.claim(match &answer {
        Claim::Claimed(Held {
            interrupted: Some(_),
            ..
        }) => "took_over",
        Claim::Claimed(_) => "claimed",
        Claim::Busy { .. } => "busy",
        Claim::Superseded => "superseded",
        Claim::Ended { .. } => "ended",
    });
    Ok(answer)
}

/// A token that nobody has used: version 7, so that those of one delivery sort by time.
fn fresh_token<L, S, H>(path: &Path<L, S, H>) -> Uuid {
    let now_ms = u64::try_from(path.clock.now_ms()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(now_ms, &path.dice.bytes()).into_uuid()
}

/// Writes down what the claim tells of an earlier attempt, and decides whether another one may be made.
fn won<L, S, H>(
    path: &Path<L, S, H>,
    job: &mut Job,
    held: Held,
    paused: Option<WhilePaused>,
) -> Claimed {
    if held.row.generation > job.delivery.generation {
        // Opened again: the earlier life's attempts belong to its own dead letter.
        job.delivery.history.clear();
        job.delivery.generation = held.row.generation;
    }
    let known = |token| {
        job.delivery
            .history
            .iter()
            .any(|summary| summary.token == token)
    };
    // Not when the attempt's real outcome came with the record: its dispatcher died between the hop and the transition.
    if let Some(token) = held.interrupted.filter(|token| !known(*token)) {
        job.delivery.push_history(AttemptSummary {
            attempt: held.row.attempts.saturating_sub(1),
            token,
            started_at_ms: 0,
            duration_ms: 0,
            outcome: OutcomeKind::Interrupted,
            status: None,
            detail: "the dispatcher ended in mid-attempt".to_owned(),
        });
    }
    let give_up = match path.destinations.get(&job.delivery.destination) {
        None => Some(Reason::UnknownDestination),
        Some(destination) => {
            let standing = standing(job, &held);
            decide::before_attempt(standing, &destination.retry, path.clock.now_ms())
                .or(paused.map(|_| Reason::DestinationPaused))
        }
    };
    Claimed { held, give_up }
}

/// Makes the attempt, unless the delivery is given up without, and decides what follows. None when the claim was lost
/// before the attempt began.
async fn attempt<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &mut Job,
    claimed: &Claimed,
    lease: &Lease<'_>,
    room: &Entered,
) -> Result<Option<Attempted>, Infra> {
    let held = &claimed.held;
    if let Some(reason) = claimed.give_up {
        let detail = format!("given up before attempt {}", held.row.attempts);
        return Ok(Some(Attempted {
            decision: Decision::DeadLetter { reason },
            detail,
        }));
    }
    if !lease.enough_left(path, job).await? {
        return Ok(None);
    }
    let started_at_ms = path.clock.now_ms();
    let span = info_span!(
        "attempt",
        otel.kind = "client",
        source = job.delivery.webhook.source,
        delivery_id = job.delivery.webhook.delivery_id,
        destination = job.delivery.destination,
        attempt = held.row.attempts,
        token = %held.row.claim_token,
    );
    runtime::trace::link(&span, &job.trace);
    let attempt = Attempt {
        destination: &job.delivery.destination,
        webhook: &job.delivery.webhook,
        attempt: held.row.attempts,
        token: held.row.claim_token,
    };
    let sending = path.send.send(attempt).instrument(span);
    let outcome = room.attempt(&path.clock, sending).await;
    let now_ms = path.clock.now_ms();
    let retry = path
        .destinations
        .get(&job.delivery.destination)
        .map(|found| &found.retry);
    let decision = decide::after_attempt(
        standing(job, held),
        &outcome,
        retry.unwrap_or(&RetryConfig::default()),
        path.config.retry_after_max,
        now_ms,
        path.dice.fraction(),
    );
    note(path, job, held, (started_at_ms, now_ms), &outcome, decision);
    Ok(Some(Attempted {
        decision,
        detail: outcome.detail,
    }))
}

/// The attempt's traces: history for the next hop or the dead letter, metrics, one log line.
fn note<L, S, H>(
    path: &Path<L, S, H>,
    job: &mut Job,
    held: &Held,
    (started_at_ms, ended_at_ms): (i64, i64),
    outcome: &Outcome,
    decision: Decision,
) {
    let duration_ms = ended_at_ms.saturating_sub(started_at_ms).max(0);
    let (decision, reason, not_before_ms) = match decision {
        Decision::Complete => ("complete", "", None),
        Decision::Retry { not_before_ms } => ("retry", outcome.kind.as_str(), Some(not_before_ms)),
        Decision::DeadLetter { reason } => ("dead_letter", reason.as_str(), None),
    };
    let delivery = &mut job.delivery;
    path.pauses.saw(&delivery.destination, outcome, ended_at_ms);
    path.metrics
        .attempt(&delivery.destination, outcome.kind, seconds(duration_ms));
    info!(
        source = delivery.webhook.source,
        delivery_id = delivery.webhook.delivery_id,
        destination = delivery.destination,
        event_type = delivery.webhook.event_type,
        attempt = held.row.attempts,
        generation = held.row.generation,
        token = %held.row.claim_token,
        claim = if held.interrupted.is_some() { "took_over" } else { "claimed" },
        outcome = outcome.kind.as_str(),
        status = outcome.status,
        detail = outcome.detail,
        decision,
        reason,
        not_before_ms,
        started_at_ms,
        ended_at_ms,
        duration_ms,
        "attempt ended"
    );
    delivery.push_history(AttemptSummary {
        attempt: held.row.attempts,
        token: held.row.claim_token,
        started_at_ms,
        duration_ms: u32::try_from(duration_ms).unwrap_or(u32::MAX),
        outcome: outcome.kind,
        status: outcome.status,
        detail: outcome.detail.clone(),
    });
}

/// Publishes the dead letter of a record that can not be decoded. There is no delivery, so there is no claim.
///
/// # Errors
/// See [`Infra`]; the record is not finished then.
pub async fn undecodable<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    record: &Received,
    cause: &str,
    owned: &CancellationToken,
) -> Result<Finished, Infra> {
    let now_ms = path.clock.now_ms();
    let letter = publish::undecodable(&path.codec, &path.names, record, cause, now_ms)
        .map_err(|error| Infra::Encode(error.to_string()))?;
    let place = Place::of(record);
    let whole = wait::Whole {
        owned: Some(owned),
        job: None,
        place,
    };
    wait::insist_on(path, whole, || wait::produce(path, letter.clone())).await?;
    path.metrics.dead_letter("", Reason::Undecodable);
    Ok(Finished::DeadLettered(Reason::Undecodable))
}

fn standing(job: &Job, held: &Held) -> Standing {
    Standing {
        attempt: held.row.attempts,
        received_at_ms: job.delivery.webhook.received_at_ms,
    }
}

fn ending(held: &Held, reason: Reason, detail: &str, failed_at_ms: i64, made: bool) -> Ending {
    // The claim counted an attempt that was then not made.
    let attempts = if made {
        held.row.attempts
    } else {
        held.row.attempts.saturating_sub(1)
    };
    Ending {
        reason,
        detail: detail.to_owned(),
        attempts,
        generation: held.row.generation,
        failed_at_ms,
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a metric; 2^53 ms are far away")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

// === impl Path ===

impl<L, S, H> Path<L, S, H> {
    /// A path over `parts`.
    pub fn new(parts: Parts<L, S, H>) -> Self {
        let metrics = Metrics::new();
        Self {
            gates: Gates::new(&parts.destinations, &parts.config, &metrics),
            pauses: Pauses::new(&parts.destinations),
            held: HeldBudget::new(parts.config.held_bytes_max),
            asking: Asking::new(parts.config.in_flight_max),
            metrics,
            parts,
        }
    }
}

impl<L, S, H> Deref for Path<L, S, H> {
    type Target = Parts<L, S, H>;

    fn deref(&self) -> &Self::Target {
        &self.parts
    }
}

// === impl Place ===

impl Place {
    /// Where `record` stands.
    pub fn of(record: &Received) -> Self {
        Self {
            topic: record.topic,
            partition: record.partition,
            offset: record.offset,
        }
    }
}
