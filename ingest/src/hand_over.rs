//! Hands a verified webhook to the log, or to the spool when the log does not take it.

use crate::{answer::Refused, app::Inner, spool::NotSpooled};
use event_log::{EventLog, LogError, ProduceError, Record};
use tokio::time::{Instant, timeout_at};

/// Where a webhook stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Log,
    Spool,
}

/// Whether a webhook that came now could be taken: asked before its body is read.
pub(crate) fn ready<L: EventLog>(inner: &Inner<L>) -> Result<(), Refused> {
    let Err(reason) = log_ready(inner) else {
        return Ok(());
    };
    match inner.spool.get() {
        None => Err(Refused::NotReady(reason)),
        Some(spool) if spool.has_room() => Ok(()),
        Some(spool) => {
            spool.refused_full();
            Err(Refused::SpoolFull)
        }
    }
}

/// The log comes first. With a spool it gets half of the time that is left; what it has not acknowledged then is spooled.
/// It may be in the log all the same: the claims absorb that.
pub(crate) async fn hand_over<L: EventLog>(
    inner: &Inner<L>,
    record: Record,
    deadline: Instant,
) -> Result<Place, Refused> {
    let Some(spool) = inner.spool.get() else {
        return produce(inner, record, deadline).await;
    };
    let now = Instant::now();
    let half = now + deadline.saturating_duration_since(now) / 2;
    let refused = match produce(inner, record.clone(), half).await {
        // It will never be taken: the sender may know.
        Err(refused @ Refused::NotProduced(ProduceError::TooLarge { .. })) => return Err(refused),
        Err(refused) => refused,
        taken => return taken,
    };
    tracing::debug!(cause = %refused, "to the spool");
    match timeout_at(deadline, spool.append(record)).await {
        Ok(Ok(())) => Ok(Place::Spool),
        Ok(Err(NotSpooled::Full)) => Err(Refused::SpoolFull),
        Ok(Err(NotSpooled::Failed(error))) => Err(Refused::NotSpooled(error)),
        Err(_) => Err(Refused::Late),
    }
}

async fn produce<L: EventLog>(
    inner: &Inner<L>,
    record: Record,
    deadline: Instant,
) -> Result<Place, Refused> {
    inner.log.ready().map_err(Refused::NotReady)?;
    let Some(attempt) = inner.outage.begin(Instant::now()) else {
        return Err(Refused::NotReady(silent()));
    };
    let producing = inner.metrics.producing();
    let produced = timeout_at(deadline, inner.log.produce(record)).await;
    drop(producing);
    match produced {
        Ok(Ok(_)) => {
            attempt.acknowledged(Instant::now());
            Ok(Place::Log)
        }
        Ok(Err(error)) => {
            if matches!(error, ProduceError::Unacknowledged(_)) {
                attempt.failed(Instant::now());
            }
            Err(Refused::NotProduced(error))
        }
        Err(_) => {
            attempt.failed(Instant::now());
            Err(Refused::Late)
        }
    }
}

fn log_ready<L: EventLog>(inner: &Inner<L>) -> Result<(), LogError> {
    inner.log.ready()?;
    if inner.outage.turns_away() {
        return Err(silent());
    }
    Ok(())
}

fn silent() -> LogError {
    LogError::Unavailable("it acknowledges nothing".to_owned())
}
