//! The store of production: ScyllaDB or Cassandra, one row per delivery, one conditional statement per write. How the
//! destinations stand is a small table beside (`standings`).
//!
//! Every call is the same loop: decide on the row as it was last seen ([`claim`]), write the new row if the server still
//! sees the same, otherwise look again. The first round costs one statement: a claim starts from an absent row, a
//! transition from the row that the claim wrote.
//!
//! # Unknown outcomes
//!
//! The driver never repeats a statement. The module `issue` does, with the same token, until there is an answer or the call's
//! deadline has passed. An earlier issue may have been applied, so "not applied" is not "lost": the row that comes back
//! is compared with the one that was to be written. A write that arrives late, after its call gave up, is conditional on
//! what was seen and so changes nothing that somebody else wrote meanwhile.
//!
//! # Expiry
//!
//! The server drops rows by their TTL, in whole seconds by its own clock. So that the three stores agree to the
//! millisecond, a row whose time has passed at `now_ms` counts as absent for claims and reads although the server still
//! shows it. Renewals and transitions go by the token alone: the row that the server shows is their owner's or is not.

mod connect;
mod fault;
mod issue;
mod schema;
mod seen;
mod standings;
mod statement;
mod turns;

pub use schema::{Migrated, migrate};

use crate::{
    Load, Noted, Standing, Standings, Store, StoreError,
    claim::{self, Claim, ClaimAsk, Held, Renewal, Retention, Row, Status, Step, To, Transition},
    config::CqlConfig,
};
use issue::{Issuer, TooLate, pause};
use schemas::{DeliveryKey, Reason};
use scylla::{client::session::Session, statement::SerialConsistency};
use seen::Seen;
use statement::Statements;
use std::{path::Path, sync::Arc, time::Duration};
use tokio::{sync::Mutex, time::Instant};
use turns::Turns;

/// Rounds of a call that loses every race. Each lost round is a write of somebody else, so more is a storm.
const ROUNDS_MAX: u32 = 16;

/// An answer about readiness is good for this long.
const READY_FOR: Duration = Duration::from_secs(1);

/// The question about readiness is answered within this time.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Claims in a CQL store with lightweight transactions. Clones share one session.
#[derive(Clone, Debug)]
pub struct CqlStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    issuer: Issuer,
    statements: Statements,
    retention: Retention,
    deadline: Duration,
    ready: Mutex<Option<(Instant, Result<(), StoreError>)>>,
}

/// What became of a conditional write.
enum Swap {
    Written,
    /// The row is another one now; none when it is gone.
    Lost(Option<Seen>),
}

// === impl CqlStore ===

impl CqlStore {
    /// Connects, checks the table, prepares the statements. Relative paths of secrets and TLS files start at
    /// `secrets_base`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when connecting, or then checking and preparing, takes longer than the connect timeout
    /// and the deadline together;
    /// [`StoreError::Refused`] when the table is not as it must be (it names `fencepost store migrate`), or user, TLS
    /// files or data centre are wrong.
    pub async fn connect(config: &CqlConfig, secrets_base: &Path) -> Result<Self, StoreError> {
        let session = connect::session(config, secrets_base).await?;
        let deadline = connect::deadline(config);
        let serial = connect::serial(config.serial);
        let mut last = TooLate::of("preparing statements");
        // One node may hang while the others serve: what it did not answer is asked of the next.
        let start = async {
            for tries in 0.. {
                match prepare(&session, &config.keyspace, serial).await {
                    Err(StoreError::Unavailable(cause)) => last.note(&cause),
                    prepared => return prepared,
                }
                pause(tries).await;
            }
            Err(TooLate::of("preparing statements").unavailable())
        };
        let statements = match tokio::time::timeout_at(deadline, Box::pin(start)).await {
            Ok(statements) => statements?,
            Err(_elapsed) => return Err(last.unavailable()),
        };
        let turns = Turns::new(config.in_flight_max, config.deadline);
        let shared = Shared {
            issuer: Issuer::new(session, turns),
            statements,
            retention: config.retention.to_retention(),
            deadline: config.deadline,
            ready: Mutex::new(None),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// How busy it is, now.
    pub fn load(&self) -> Load {
        self.shared.issuer.load()
    }

    async fn transit(&self, held: &Held, to: To, now_ms: i64) -> Result<Transition, StoreError> {
        let shared = &self.shared;
        let deadline = connect::within(shared.deadline);
        // The row is as our claim wrote it, unless a renewal moved its lease, somebody took it over, or it is gone.
        let mut seen = Some(Seen::from(&held.row));
        for _ in 0..ROUNDS_MAX {
            let row = kept(seen.as_ref())?;
            match claim::transition(row.as_ref(), held, to) {
                Step::Answer(answer) => return Ok(answer),
                Step::Write { row, then } => {
                    match shared
                        .swap(&held.key, seen.as_ref(), &row, now_ms, deadline)
                        .await?
                    {
                        Swap::Written => return Ok(then),
                        Swap::Lost(now) => seen = now,
                    }
                }
            }
        }
        Err(stormy())
    }
}

impl Store for CqlStore {
    async fn claim(&self, ask: &ClaimAsk, now_ms: i64) -> Result<Claim, StoreError> {
        let shared = &self.shared;
        let deadline = connect::within(shared.deadline);
        let mut seen = None;
        for _ in 0..ROUNDS_MAX {
            let row = shared.live(seen.as_ref(), now_ms)?;
            let (row, then) = match claim::decide(row.as_ref(), ask, now_ms) {
                Step::Answer(answer) => return Ok(answer),
                Step::Write { row, then } => (row, then),
            };
            match shared
                .swap(&ask.key, seen.as_ref(), &row, now_ms, deadline)
                .await?
            {
                Swap::Written => return Ok(then),
                // An earlier issue was applied and its answer lost. `then` knows whose claim it took over; the row
                // no longer tells.
                Swap::Lost(now) if shared.live(now.as_ref(), now_ms)?.as_ref() == Some(&row) => {
                    return Ok(then);
                }
                Swap::Lost(now) => seen = now,
            }
        }
        Err(stormy())
    }

    async fn renew(
        &self,
        held: &Held,
        lease_until_ms: i64,
        now_ms: i64,
    ) -> Result<Renewal, StoreError> {
        let shared = &self.shared;
        let deadline = connect::within(shared.deadline);
        // One statement, whatever earlier renewals made of the lease; a late repeat of it can not move a later one back.
        let row = Row {
            lease_until_ms,
            ..held.row.clone()
        };
        let mut values = shared.values(&held.key, &row, now_ms);
        values.extend(statement::renewal_values(&row));
        let renew = &shared.statements.renew;
        let answer = shared.issuer.write(renew, &values, deadline).await?;
        if applied(answer.applied)? {
            return Ok(Renewal::Renewed { lease_until_ms });
        }
        for _ in 0..ROUNDS_MAX {
            let seen = shared.read(&held.key, deadline).await?;
            let row = kept(seen.as_ref())?;
            match claim::renewal(row.as_ref(), held, lease_until_ms) {
                Step::Answer(answer) => return Ok(answer),
                Step::Write { row, then } => {
                    let swap = shared.swap(&held.key, seen.as_ref(), &row, now_ms, deadline);
                    if matches!(swap.await?, Swap::Written) {
                        return Ok(then);
                    }
                }
            }
        }
        Err(stormy())
    }

    async fn schedule(
        &self,
        held: &Held,
        not_before_ms: i64,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        self.transit(held, To::Waiting { not_before_ms }, now_ms)
            .await
    }

    async fn complete(&self, held: &Held, now_ms: i64) -> Result<Transition, StoreError> {
        self.transit(held, To::Completed { at_ms: now_ms }, now_ms)
            .await
    }

    async fn fail(
        &self,
        held: &Held,
        reason: Reason,
        now_ms: i64,
    ) -> Result<Transition, StoreError> {
        self.transit(
            held,
            To::Failed {
                at_ms: now_ms,
                reason,
            },
            now_ms,
        )
        .await
    }

    async fn get(&self, key: &DeliveryKey, now_ms: i64) -> Result<Option<Row>, StoreError> {
        let deadline = connect::within(self.shared.deadline);
        let seen = self.shared.read(key, deadline).await?;
        self.shared.live(seen.as_ref(), now_ms)
    }

    async fn standings(&self) -> Result<Standings, StoreError> {
        let deadline = connect::within(self.shared.deadline);
        let (issuer, statements) = (&self.shared.issuer, &self.shared.statements.standings);
        standings::all(issuer, statements, deadline).await
    }

    async fn set_standing(&self, destination: &str, new: &Standing) -> Result<Noted, StoreError> {
        let deadline = connect::within(self.shared.deadline);
        let (issuer, statements) = (&self.shared.issuer, &self.shared.statements.standings);
        standings::set(issuer, statements, destination, new, deadline).await
    }

    async fn ready(&self) -> Result<(), StoreError> {
        let mut ready = self.shared.ready.lock().await;
        if let Some((asked_at, answer)) = &*ready
            && asked_at.elapsed() < READY_FOR
        {
            return answer.clone();
        }
        // A row that nobody has; what counts is that a quorum answers.
        let nobody = DeliveryKey {
            source: "-".to_owned(),
            delivery_id: "ready".to_owned(),
            destination: "-".to_owned(),
        };
        let values = statement::key_values(&nobody);
        let deadline = Instant::now() + self.shared.deadline.min(READY_WITHIN);
        let probe = &self.shared.statements.probe;
        let answer = self
            .shared
            .issuer
            .read(probe, &values, deadline)
            .await
            .map(drop);
        *ready = Some((Instant::now(), answer.clone()));
        answer
    }
}

// === impl Shared ===

impl Shared {
    /// Writes `row` if the server still sees `seen`.
    async fn swap(
        &self,
        key: &DeliveryKey,
        seen: Option<&Seen>,
        row: &Row,
        now_ms: i64,
        deadline: Instant,
    ) -> Result<Swap, StoreError> {
        let mut values = self.values(key, row, now_ms);
        let Some(seen) = seen else {
            let answer = self
                .issuer
                .write(&self.statements.absent, &values, deadline)
                .await?;
            return Ok(match applied(answer.applied)? {
                true => Swap::Written,
                false => Swap::Lost(Some(answer.seen)),
            });
        };
        let (statement, condition) = self.statements.swap(seen);
        values.extend(condition);
        let answer = self.issuer.write(statement, &values, deadline).await?;
        if applied(answer.applied)? {
            return Ok(Swap::Written);
        }
        // The answer shows the condition's columns alone; the decision needs all of them.
        Ok(Swap::Lost(self.read(key, deadline).await?))
    }

    /// The last decided row, as the server shows it.
    async fn read(&self, key: &DeliveryKey, deadline: Instant) -> Result<Option<Seen>, StoreError> {
        let values = statement::key_values(key);
        let answer = self
            .issuer
            .read(&self.statements.read, &values, deadline)
            .await?;
        Ok(Some(answer.seen).filter(|seen| *seen != Seen::default()))
    }

    /// The row that `seen` means for a claim or a read at `now_ms`.
    fn live(&self, seen: Option<&Seen>, now_ms: i64) -> Result<Option<Row>, StoreError> {
        Ok(kept(seen)?.filter(|row| {
            // An ended row that lost its time is the server's to forget.
            let dated = match row.status {
                Status::Processing | Status::Waiting => true,
                Status::Completed => row.completed_at_ms.is_some(),
                Status::Failed => row.failed_at_ms.is_some(),
            };
            !dated || claim::expires_at_ms(row, &self.retention) > now_ms
        }))
    }

    fn values(&self, key: &DeliveryKey, row: &Row, now_ms: i64) -> statement::Values {
        statement::values(key, row, statement::ttl_secs(row, &self.retention, now_ms))
    }
}

/// Checks the table and prepares the statements on it.
async fn prepare(
    session: &Session,
    keyspace: &str,
    serial: SerialConsistency,
) -> Result<Statements, StoreError> {
    schema::verify(session, keyspace).await?;
    let prepared = Statements::prepare(session, keyspace, serial).await;
    prepared.map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// The row that `seen` means for its owner, whose write its expiry does not stop.
fn kept(seen: Option<&Seen>) -> Result<Option<Row>, StoreError> {
    Ok(seen.map(Seen::row).transpose()?.flatten())
}

fn applied(applied: Option<bool>) -> Result<bool, StoreError> {
    applied.ok_or_else(|| {
        StoreError::Refused("the answer to a conditional write has no [applied]".to_owned())
    })
}

fn stormy() -> StoreError {
    StoreError::Unavailable(format!("lost {ROUNDS_MAX} races for one row"))
}
