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

use schemas::{DeliveryKey, Reason, Reopen};
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

/// How long after its expiry a row is still kept for its owner, milliseconds: a clock that jumps ahead, or a store that was
/// away, must not make an owner's late write fail, because the delivery would then be sent again.
pub const KEPT_FOR_OWNER_MS: i64 = 86_400_000;

/// Which rows count for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sees {
    /// Claims and reads: an expired row is absent.
    Live,
    /// Renewals and transitions: a row that is there counts. Only its owner's token changes it, and as long as that token
    /// stands, nobody else has claimed the delivery.
    Kept,
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

/// Decides a renewal: extends only a live-or-over lease of the same token, and only forwards. `row` is the one that is
/// there, expired or not (`None`: absent).
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

/// Decides a transition out of `processing`. Idempotent: a row that this token already moved there is Applied. `row` is the
/// one that is there, expired or not (`None`: absent).
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

/// The last expiry of rows that may be removed at `now_ms`.
pub(crate) fn purge_until_ms(now_ms: i64) -> i64 {
    now_ms.saturating_sub(KEPT_FOR_OWNER_MS)
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
        // What was paused was never tried: it failed for want of time too.
        Reopen::Exhausted => matches!(
            row.reason,
            Some(Reason::Exhausted | Reason::Expired | Reason::DestinationPaused)
        ),
        Reopen::AnyFailed => true,
        Reopen::Never => false,
    };
    policy && ask.fence.is_none() && row.failed_at_ms.is_some_and(|at| ask.received_at_ms > at)
}

// === impl Sees ===

impl Sees {
    /// A row counts when it expires later than this, milliseconds since the Unix epoch.
    pub(crate) fn expiry_above_ms(self, now_ms: i64) -> i64 {
        match self {
            Self::Live => now_ms,
            Self::Kept => i64::MIN,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use schemas::Reason;

    const NOW_MS: i64 = 1_800_000_000_000;
    const LEASE_MS: i64 = 15_000;
    const MARGIN_MS: i64 = 500;
    const DAY_MS: i64 = 86_400_000;
    const RETENTION: Retention = Retention {
        open_ms: DAY_MS,
        failed_ms: 14 * DAY_MS,
        completed_ms: 30 * DAY_MS,
    };
    const OLD: Uuid = Uuid::from_u128(1);
    const NEW: Uuid = Uuid::from_u128(2);

    #[test]
    fn a_lease_is_over_one_millisecond_after_the_margin() {
        let row = processing();
        let until_ms = NOW_MS + LEASE_MS + MARGIN_MS;
        for (now_ms, over) in [
            (NOW_MS + LEASE_MS, false),
            (NOW_MS + LEASE_MS + 1, false),
            (until_ms, false),
            (until_ms + 1, true),
        ] {
            match decide(Some(&row), &ask(), now_ms) {
                Step::Write {
                    row,
                    then: Claim::Claimed(held),
                } if over => {
                    assert_eq!((row.attempts, row.lease_until_ms), (4, now_ms + LEASE_MS));
                    assert_eq!(held.interrupted, Some(OLD));
                }
                Step::Answer(Claim::Busy {
                    until_ms: told_ms,
                    in_transition: false,
                }) if !over => {
                    assert_eq!(told_ms, until_ms);
                }
                step @ (Step::Write { .. } | Step::Answer(_)) => panic!("{now_ms}: {step:?}"),
            }
        }
    }

    #[test]
    fn only_the_fence_claims_a_waiting_row() {
        let row = after(
            &processing(),
            To::Waiting {
                not_before_ms: NOW_MS + 5_000,
            },
        );
        for (fence, wins) in [(None, false), (Some(NEW), false), (Some(OLD), true)] {
            let step = decide(Some(&row), &ClaimAsk { fence, ..ask() }, NOW_MS + LEASE_MS);
            match step {
                Step::Write { row, .. } if wins => {
                    assert_eq!((row.attempts, row.not_before_ms), (4, None));
                }
                Step::Answer(Claim::Superseded) if !wins => {}
                step @ (Step::Write { .. } | Step::Answer(_)) => panic!("{fence:?}: {step:?}"),
            }
        }
    }

    #[test]
    fn a_clock_that_is_behind_shortens_no_expiry() {
        let rows = [
            after(
                &processing(),
                To::Waiting {
                    not_before_ms: NOW_MS + 60_000,
                },
            ),
            after(
                &processing(),
                To::Completed {
                    at_ms: NOW_MS + 60_000,
                },
            ),
            after(
                &processing(),
                To::Failed {
                    at_ms: NOW_MS + 60_000,
                    reason: Reason::Exhausted,
                },
            ),
        ];
        for row in rows {
            let ask = ClaimAsk {
                fence: Some(OLD),
                generation: 3,
                ..ask()
            };
            let Step::Write { row: next, .. } = decide(Some(&row), &ask, NOW_MS + 5_000) else {
                panic!("no claim on {row:?}");
            };
            assert_eq!(next.lease_until_ms, NOW_MS + 60_000);
            for retention in [
                RETENTION,
                Retention {
                    open_ms: 30 * DAY_MS,
                    ..RETENTION
                },
            ] {
                let (was_ms, is_ms) = (
                    expires_at_ms(&row, &retention),
                    expires_at_ms(&next, &retention),
                );
                assert!(is_ms >= was_ms, "{row:?} -> {next:?}");
            }
        }
    }

    #[test]
    fn each_state_is_kept_as_long_as_its_retention_says() {
        let end_ms = NOW_MS + LEASE_MS;
        let row = processing();
        let at_ms = end_ms + 1_000;
        let reason = Reason::Gone;
        for (to, expected_ms) in [
            (None, end_ms + DAY_MS),
            (
                Some(To::Waiting {
                    not_before_ms: at_ms,
                }),
                at_ms + DAY_MS,
            ),
            // The wait ends before the lease did: the lease counts.
            (
                Some(To::Waiting {
                    not_before_ms: NOW_MS,
                }),
                end_ms + DAY_MS,
            ),
            (Some(To::Failed { at_ms, reason }), at_ms + 14 * DAY_MS),
            (
                Some(To::Failed {
                    at_ms: NOW_MS,
                    reason,
                }),
                end_ms + 14 * DAY_MS,
            ),
            (Some(To::Completed { at_ms }), at_ms + 30 * DAY_MS),
            (Some(To::Completed { at_ms: NOW_MS }), end_ms + 30 * DAY_MS),
        ] {
            let row = to.map_or_else(|| row.clone(), |to| after(&row, to));
            assert_eq!(expires_at_ms(&row, &RETENTION), expected_ms, "{row:?}");
            // A later life overwrites a row that was kept as long as a completed one.
            let again = Row {
                generation: 1,
                ..row
            };
            let kept_ms = expires_at_ms(&again, &RETENTION) - kept_from_ms(&again);
            assert_eq!(kept_ms, 30 * DAY_MS);
        }
        let far = Row {
            lease_until_ms: i64::MAX,
            ..row
        };
        assert_eq!(expires_at_ms(&far, &RETENTION), i64::MAX);
    }

    #[test]
    fn numbers_at_their_ends_do_not_overflow() {
        let row = Row {
            attempts: u32::MAX,
            generation: u32::MAX,
            failed_at_ms: Some(NOW_MS),
            reason: Some(Reason::Exhausted),
            ..processing()
        };
        let ask = ClaimAsk {
            received_at_ms: i64::MAX,
            lease_ms: i64::MAX,
            ..ask()
        };
        let Step::Write { row: next, .. } = decide(Some(&row), &ask, i64::MAX) else {
            panic!("no takeover");
        };
        assert_eq!((next.attempts, next.lease_until_ms), (u32::MAX, i64::MAX));
        let failed = Row {
            status: Status::Failed,
            ..row
        };
        let Step::Write { row: next, .. } = decide(Some(&failed), &ask, NOW_MS) else {
            panic!("no reopening");
        };
        assert_eq!((next.attempts, next.generation), (1, u32::MAX));
    }

    #[test]
    fn status_codes_go_both_ways() {
        for status in [
            Status::Processing,
            Status::Waiting,
            Status::Completed,
            Status::Failed,
        ] {
            assert_eq!(Status::from_code(status.code()), Some(status));
        }
        assert_eq!(Status::from_code(0), None);
        assert_eq!(Status::from_code(5), None);
    }

    /// A third attempt, held by `OLD`.
    fn processing() -> Row {
        Row {
            status: Status::Processing,
            claim_token: OLD,
            lease_until_ms: NOW_MS + LEASE_MS,
            attempts: 3,
            generation: 0,
            not_before_ms: None,
            reason: None,
            created_at_ms: NOW_MS - 60_000,
            completed_at_ms: None,
            failed_at_ms: None,
        }
    }

    fn ask() -> ClaimAsk {
        ClaimAsk {
            key: DeliveryKey {
                source: "github".to_owned(),
                delivery_id: "1".to_owned(),
                destination: "billing".to_owned(),
            },
            token: NEW,
            lease_ms: LEASE_MS,
            skew_margin_ms: MARGIN_MS,
            attempt: 1,
            fence: None,
            generation: 0,
            received_at_ms: NOW_MS - 60_100,
            reopen: Reopen::Exhausted,
        }
    }
}
