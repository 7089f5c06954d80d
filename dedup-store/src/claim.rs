//! The state machine of a claim's row, in plain functions. Every implementation of the port decides with these.
//!
//! ```text
//!            claim                     complete
//!  (absent) ───────▶ processing ─────────────────▶ completed
//!                    │   ▲   ▲ ╲ fail
//!           schedule │   │   │  ╲────────────────▶ failed
//!                    ▼   │   │ lease over:            │ reopen: generation + 1
//!                  waiting   └ taken over             │
//!                    claim with the fence             └──▶ processing
//! ```

use schemas::{DeliveryKey, Reason};
use uuid::Uuid;

/// One row: what the store knows of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where the delivery stands.
    pub status: Status,
    /// Token of the latest claim; fences every later write.
    pub claim_token: Uuid,
    /// End of the lease, milliseconds since the Unix epoch. Kept, without meaning, in the later states.
    pub lease_until_ms: i64,
    /// Attempts begun in this generation, from 1.
    pub attempts: u32,
    /// Life of the delivery, from 0.
    pub generation: u32,
    /// `waiting`: no attempt before this, milliseconds since the Unix epoch.
    pub not_before_ms: Option<i64>,
    /// `failed`: why.
    pub reason: Option<Reason>,
    /// First claim of this generation, milliseconds since the Unix epoch.
    pub created_at_ms: i64,
    /// `completed`: when, milliseconds since the Unix epoch.
    pub completed_at_ms: Option<i64>,
    /// `failed`: when, milliseconds since the Unix epoch.
    pub failed_at_ms: Option<i64>,
}

/// Where a delivery stands. A row that is not there was never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Somebody works on it, or died at it.
    Processing,
    /// Its next record is durable in a delay tier.
    Waiting,
    /// Delivered.
    Completed,
    /// Dead-lettered.
    Failed,
}

/// What a dispatcher asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimAsk {
    /// The delivery.
    pub key: DeliveryKey,
    /// A fresh UUID for this claim; the same one when an unanswered ask is repeated.
    pub token: Uuid,
    /// How long the claim shall be good, milliseconds.
    pub lease_ms: i64,
    /// How far clocks may differ: a lease counts as over only this long after its end, milliseconds.
    pub skew_margin_ms: i64,
    /// The attempt that the log record asks for, from 1.
    pub attempt: u32,
    /// The log record's fence.
    pub fence: Option<Uuid>,
    /// The log record's generation.
    pub generation: u32,
    /// The webhook's receipt, milliseconds since the Unix epoch.
    pub received_at_ms: i64,
    /// The source's reopen policy.
    pub reopen: Reopen,
}

/// Which ended deliveries a later repeat of the webhook opens again (GitHub's "Redeliver" sends the same id).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reopen {
    /// Those that failed because their attempts or their age were used up.
    #[default]
    Exhausted,
    /// All that failed.
    AnyFailed,
    /// None.
    Never,
}

/// The answer to a [`ClaimAsk`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Ours: make the attempt.
    Claimed(Held),
    /// Somebody works on it until about `until_ms`: look again, never drop.
    Busy {
        /// When the lease (with the skew margin) is over, milliseconds since the Unix epoch.
        until_ms: i64,
        /// The row's token is our record's fence: its transition is in flight, look again within a second.
        in_transition: bool,
    },
    /// A later record of this delivery is durable in the log: drop ours.
    Superseded,
    /// Completed or failed: drop as a duplicate.
    Ended {
        /// [`Status::Completed`] or [`Status::Failed`].
        status: Status,
        /// Why it failed.
        reason: Option<Reason>,
    },
}

/// A claim that is ours: what later writes need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The delivery.
    pub key: DeliveryKey,
    /// The row as our claim wrote it.
    pub row: Row,
    /// Token of the claim that was taken over because its lease was over: that attempt's outcome is Interrupted.
    pub interrupted: Option<Uuid>,
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease ends at this time (at least the one asked for), milliseconds since the Unix epoch.
    Renewed {
        /// New end of the lease.
        lease_until_ms: i64,
    },
    /// The claim is somebody else's, or ended: cancel the attempt.
    Lost,
}

/// The answer to a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Written, now or by an earlier call with the same token.
    Applied,
    /// The token is stale: nothing was changed.
    LeaseLost,
}

/// A transition out of `processing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// See [`Status::Waiting`].
    Waiting {
        /// No attempt before this, milliseconds since the Unix epoch.
        not_before_ms: i64,
    },
    /// See [`Status::Completed`].
    Completed {
        /// When, milliseconds since the Unix epoch.
        at_ms: i64,
    },
    /// See [`Status::Failed`].
    Failed {
        /// When, milliseconds since the Unix epoch.
        at_ms: i64,
        /// Why.
        reason: Reason,
    },
}

/// How long rows are kept, milliseconds. `open <= failed <= completed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// processing and waiting: counted from the end of the lease or of the wait.
    pub open_ms: i64,
    /// failed.
    pub failed_ms: i64,
    /// completed.
    pub completed_ms: i64,
}

/// What a compare-and-set on a row that looks like this has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Write `row` if the seen row is still the same, then answer.
    Write {
        /// The new row, all columns.
        row: Row,
        /// The answer once it is written.
        then: T,
    },
    /// Write nothing, answer.
    Answer(T),
}

/// Decides a claim on the row as it stands (`None`: absent or expired).
pub fn decide(row: Option<&Row>, ask: &ClaimAsk, now_ms: i64) -> Step<Claim> {
    let first = Begin {
        attempts: ask.attempt.max(1),
        generation: ask.generation,
        created_at_ms: now_ms,
        interrupted: None,
    };
    let Some(row) = row else {
        return take(None, ask, now_ms, first);
    };
    if row.claim_token == ask.token {
        return Step::Answer(own(row, ask));
    }
    let next = Begin {
        attempts: row.attempts.saturating_add(1),
        generation: row.generation,
        created_at_ms: row.created_at_ms,
        interrupted: None,
    };
    match row.status {
        Status::Processing => {
            let until_ms = row.lease_until_ms.saturating_add(ask.skew_margin_ms);
            if now_ms <= until_ms {
                let in_transition = ask.fence == Some(row.claim_token);
                return Step::Answer(Claim::Busy {
                    until_ms,
                    in_transition,
                });
            }
            let interrupted = Some(row.claim_token);
            take(
                Some(row),
                ask,
                now_ms,
                Begin {
                    interrupted,
                    ..next
                },
            )
        }
        Status::Waiting if ask.fence == Some(row.claim_token) => take(Some(row), ask, now_ms, next),
        Status::Waiting => Step::Answer(Claim::Superseded),
        Status::Completed | Status::Failed if ask.generation > row.generation => {
            take(Some(row), ask, now_ms, first)
        }
        Status::Failed if reopens(row, ask) => {
            let generation = row.generation.saturating_add(1);
            take(
                Some(row),
                ask,
                now_ms,
                Begin {
                    attempts: 1,
                    generation,
                    ..first
                },
            )
        }
        status @ (Status::Completed | Status::Failed) => Step::Answer(Claim::Ended {
            status,
            reason: row.reason,
        }),
    }
}

/// Decides a renewal: extends only a live-or-over lease of the same token, and only forwards.
pub fn renewal(row: Option<&Row>, held: &Held, lease_until_ms: i64) -> Step<Renewal> {
    match row {
        Some(row)
            if row.claim_token == held.row.claim_token && row.status == Status::Processing =>
        {
            if row.lease_until_ms >= lease_until_ms {
                return Step::Answer(Renewal::Renewed {
                    lease_until_ms: row.lease_until_ms,
                });
            }
            Step::Write {
                row: Row {
                    lease_until_ms,
                    ..row.clone()
                },
                then: Renewal::Renewed { lease_until_ms },
            }
        }
        Some(_) | None => Step::Answer(Renewal::Lost),
    }
}

/// Decides a transition out of `processing`. Idempotent: a row that this token already moved there is Applied.
pub fn transition(row: Option<&Row>, held: &Held, to: To) -> Step<Transition> {
    match row {
        Some(row) if row.claim_token == held.row.claim_token => {
            if row.status == Status::Processing {
                Step::Write {
                    row: after(row, to),
                    then: Transition::Applied,
                }
            } else if row.status == to.status() {
                Step::Answer(Transition::Applied)
            } else {
                Step::Answer(Transition::LeaseLost)
            }
        }
        Some(_) | None => Step::Answer(Transition::LeaseLost),
    }
}

/// The row after a transition of its own claim.
pub fn after(row: &Row, to: To) -> Row {
    let mut row = Row {
        status: to.status(),
        ..row.clone()
    };
    match to {
        To::Waiting { not_before_ms } => row.not_before_ms = Some(not_before_ms),
        To::Completed { at_ms } => row.completed_at_ms = Some(at_ms),
        To::Failed { at_ms, reason } => {
            row.failed_at_ms = Some(at_ms);
            row.reason = Some(reason);
        }
    }
    row
}

/// When a row may go, milliseconds since the Unix epoch. Derived from the row alone, and never earlier for a later
/// state than for an earlier one, so that no older version of a row can outlive a newer one on any replica.
pub fn expires_at_ms(row: &Row, retention: &Retention) -> i64 {
    // A reopened row overwrites one that may have been kept as long as a completed one.
    let floor_ms = if row.generation > 0 {
        retention.completed_ms
    } else {
        0
    };
    let keep_ms = match row.status {
        Status::Processing | Status::Waiting => retention.open_ms,
        Status::Failed => retention.failed_ms,
        Status::Completed => retention.completed_ms,
    };
    kept_from_ms(row).saturating_add(keep_ms.max(floor_ms))
}

/// What a new claim does not take from its ask.
#[derive(Clone, Copy)]
struct Begin {
    attempts: u32,
    generation: u32,
    created_at_ms: i64,
    interrupted: Option<Uuid>,
}

fn take(seen: Option<&Row>, ask: &ClaimAsk, now_ms: i64, begin: Begin) -> Step<Claim> {
    // With clocks that agree the lease always ends later than what the seen row was kept from. With a clock that is behind
    // it might not, and the older version of the row would then outlive this one.
    let lease_until_ms = now_ms
        .saturating_add(ask.lease_ms)
        .max(seen.map_or(i64::MIN, kept_from_ms));
    let row = Row {
        status: Status::Processing,
        claim_token: ask.token,
        lease_until_ms,
        attempts: begin.attempts,
        generation: begin.generation,
        not_before_ms: None,
        reason: None,
        created_at_ms: begin.created_at_ms,
        completed_at_ms: None,
        failed_at_ms: None,
    };
    let held = Held {
        key: ask.key.clone(),
        row: row.clone(),
        interrupted: begin.interrupted,
    };
    Step::Write {
        row,
        then: Claim::Claimed(held),
    }
}

/// The row holds the ask's own token: an earlier issue of the ask was applied and its answer lost, or this is a late copy
/// of it, which starts nothing once the claim has gone on.
fn own(row: &Row, ask: &ClaimAsk) -> Claim {
    match row.status {
        Status::Processing => Claim::Claimed(Held {
            key: ask.key.clone(),
            row: row.clone(),
            interrupted: None,
        }),
        Status::Waiting => Claim::Superseded,
        status @ (Status::Completed | Status::Failed) => Claim::Ended {
            status,
            reason: row.reason,
        },
    }
}

/// From when on the row's retention counts, milliseconds since the Unix epoch. Never moves back over a row's life.
fn kept_from_ms(row: &Row) -> i64 {
    let state_ms = match row.status {
        Status::Processing => None,
        Status::Waiting => row.not_before_ms,
        Status::Failed => row.failed_at_ms,
        Status::Completed => row.completed_at_ms,
    };
    state_ms.map_or(row.lease_until_ms, |state_ms| {
        state_ms.max(row.lease_until_ms)
    })
}

/// Only a first delivery opens again: a record that some attempt scheduled belongs to the life that ended.
fn reopens(row: &Row, ask: &ClaimAsk) -> bool {
    let policy = match ask.reopen {
        Reopen::Exhausted => matches!(row.reason, Some(Reason::Exhausted | Reason::Expired)),
        Reopen::AnyFailed => true,
        Reopen::Never => false,
    };
    policy && ask.fence.is_none() && row.failed_at_ms.is_some_and(|at| ask.received_at_ms > at)
}

// === impl To ===

impl To {
    /// The status that this transition leads to.
    pub fn status(self) -> Status {
        match self {
            Self::Waiting { .. } => Status::Waiting,
            Self::Completed { .. } => Status::Completed,
            Self::Failed { .. } => Status::Failed,
        }
    }
}

// === impl Status ===

impl Status {
    /// Stable name, in logs and tools.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Waiting => "waiting",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    /// Number in the store's `status` column (`tinyint`).
    pub fn code(self) -> i8 {
        match self {
            Self::Processing => 1,
            Self::Waiting => 2,
            Self::Completed => 3,
            Self::Failed => 4,
        }
    }

    /// Reverse of [`Self::code`].
    pub fn from_code(code: i8) -> Option<Self> {
        match code {
            1 => Some(Self::Processing),
            2 => Some(Self::Waiting),
            3 => Some(Self::Completed),
            4 => Some(Self::Failed),
            _ => None,
        }
    }
}
