//! The suite that every store passes, with faults left to each store's own tests.
//!
//! [`conformance_tests!`](crate::conformance_tests) makes one test of each case. Every case works on keys of its own, so a
//! shared cluster will do, and brings its own time, so nothing waits, except where a server forgets rows by its own clock:
//! [`Harness::pass`] says how.

mod claiming;
mod ended;
mod keeping;
mod leases;
mod moving;
mod racing;
mod standing;

pub use claiming::*;
pub use ended::*;
pub use keeping::*;
pub use leases::*;
pub use moving::*;
pub use racing::*;
pub use standing::*;

use crate::{Claim, ClaimAsk, Held, Reopen, Retention, Row, Status, Store, StoreError, Transition};
use schemas::{DeliveryKey, Reason};
use std::future::Future;
use uuid::Uuid;

/// When every case begins, milliseconds since the Unix epoch. No clock is read.
pub const START_MS: i64 = 1_800_000_000_000;
/// Lease of the cases' claims, milliseconds.
pub const LEASE_MS: i64 = 15_000;
/// Skew margin of the cases' claims, milliseconds.
pub const MARGIN_MS: i64 = 500;
/// Long enough that nothing expires while a case runs that is not about expiry.
pub const RETENTION: Retention = Retention {
    open_ms: 86_400_000,
    failed_ms: 14 * 86_400_000,
    completed_ms: 30 * 86_400_000,
};

/// How the suite gets at a store.
pub trait Harness: Send + Sync {
    /// The store under test.
    type Store: Store;

    /// Opens a store that keeps rows as long as `retention` says. It may hold rows of other cases.
    fn open(&self, retention: Retention) -> impl Future<Output = Self::Store> + Send;

    /// Closes the store and opens it again over the same rows; none when it keeps rows only while it is open.
    fn reopen(
        &self,
        store: Self::Store,
        retention: Retention,
    ) -> impl Future<Output = Option<Self::Store>> + Send;

    /// Lets time go from `from_ms` to `until_ms`. A store that tells by `now_ms` what has expired does nothing here; one
    /// whose server tells it by its own clock waits that long.
    fn pass(&self, from_ms: i64, until_ms: i64) -> impl Future<Output = ()> + Send;
}

/// Makes one `#[tokio::test]` of each case. `$harness` is an expression that gives a [`Harness`], evaluated in each test.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_tests! { @each $harness;
            an_absent_row_is_claimed
            a_first_claim_takes_attempt_and_generation_of_the_record
            the_same_token_again_is_our_own_claim
            a_late_copy_of_a_claim_starts_nothing
            a_live_lease_is_busy
            a_busy_row_with_the_records_fence_is_in_transition
            a_waiting_row_is_claimed_with_its_fence
            a_waiting_row_supersedes_other_records
            awkward_keys_are_kept_apart
            a_row_that_was_never_written_is_absent
            every_column_survives_every_step
            the_lease_is_over_only_past_the_margin
            a_takeover_adds_an_attempt_and_names_the_interrupted
            a_renewed_lease_ends_later
            a_lease_is_never_moved_back
            a_renewal_is_lost_after_a_takeover
            a_renewal_is_lost_after_the_end
            an_overdue_lease_can_be_renewed_until_it_is_taken
            transitions_are_idempotent_for_their_token
            a_stale_token_changes_nothing
            a_second_end_changes_nothing
            a_transition_on_an_absent_row_is_lost
            a_hop_chain_counts_its_attempts
            ended_rows_answer_why
            every_reason_is_kept
            reopening_follows_the_policy
            only_a_later_webhook_reopens
            a_scheduled_record_never_reopens
            a_replay_opens_a_higher_generation
            a_reopened_row_starts_afresh
            rows_survive_a_reopening_of_the_store
            rows_are_kept_by_their_state
            an_expired_row_is_absent_for_claims_and_reads
            an_owner_ends_its_expired_row
            an_owner_schedules_its_expired_row
            an_owner_renews_its_expired_row
            a_renewed_row_is_kept_longer
            of_many_claims_one_wins
            of_many_takeovers_one_wins
            of_many_fenced_claims_one_wins
            copies_of_one_claim_all_win_once
            complete_and_takeover_exclude_each_other
            different_keys_do_not_disturb_each_other
            a_destination_that_nothing_was_noted_of_is_not_listed
            every_column_of_a_standing_is_kept
            a_standing_follows_the_revision_that_was_seen
            of_many_writers_of_a_standing_one_gets_its_way
            standings_survive_a_reopening_of_the_store
            the_store_is_ready
        }
    };
    (@each $harness:expr; $($case:ident)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::conformance::$case(&$harness).await;
            }
        )+
    };
}

/// A key that no other case and no other run uses.
pub(crate) fn fresh_key() -> DeliveryKey {
    DeliveryKey {
        source: "github".to_owned(),
        delivery_id: Uuid::new_v4().to_string(),
        destination: "billing".to_owned(),
    }
}

/// A first delivery's ask, with a fresh token.
pub(crate) fn ask(key: &DeliveryKey) -> ClaimAsk {
    ClaimAsk {
        key: key.clone(),
        token: Uuid::new_v4(),
        lease_ms: LEASE_MS,
        skew_margin_ms: MARGIN_MS,
        attempt: 1,
        fence: None,
        generation: 0,
        received_at_ms: START_MS - 100,
        reopen: Reopen::Exhausted,
    }
}

/// The ask of a record that the attempt `held` scheduled.
pub(crate) fn ask_after(held: &Held) -> ClaimAsk {
    ClaimAsk {
        attempt: held.row.attempts + 1,
        fence: Some(held.row.claim_token),
        generation: held.row.generation,
        ..ask(&held.key)
    }
}

/// Claims, and is certain to win.
pub(crate) async fn win(store: &impl Store, ask: &ClaimAsk, now_ms: i64) -> Held {
    won(store.claim(ask, now_ms).await)
}

/// The claim in an answer that must be one.
pub(crate) fn won(answer: Result<Claim, StoreError>) -> Held {
    match answer {
        Ok(Claim::Claimed(held)) => held,
        other => panic!("expected a claim, got {other:?}"),
    }
}

/// The row, which must be there.
pub(crate) async fn row(store: &impl Store, key: &DeliveryKey, now_ms: i64) -> Row {
    match store.get(key, now_ms).await {
        Ok(Some(row)) => row,
        other => panic!("expected a row of {key}, got {other:?}"),
    }
}

pub(crate) async fn is_absent(store: &impl Store, key: &DeliveryKey, now_ms: i64) -> bool {
    store.get(key, now_ms).await == Ok(None)
}

/// A delivery that ended without success at `now_ms`.
pub(crate) async fn failed(
    store: &impl Store,
    key: &DeliveryKey,
    reason: Reason,
    now_ms: i64,
) -> Held {
    let held = win(store, &ask(key), now_ms).await;
    assert_eq!(
        store.fail(&held, reason, now_ms).await,
        Ok(Transition::Applied)
    );
    held
}

/// A delivery that was delivered at `now_ms`.
pub(crate) async fn completed(store: &impl Store, key: &DeliveryKey, now_ms: i64) -> Held {
    let held = win(store, &ask(key), now_ms).await;
    assert_eq!(store.complete(&held, now_ms).await, Ok(Transition::Applied));
    held
}

pub(crate) fn ended(status: Status, reason: Option<Reason>) -> Result<Claim, StoreError> {
    Ok(Claim::Ended { status, reason })
}
