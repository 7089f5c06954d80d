//! The port to the claims: who may work on a delivery. Beside them stands which destinations are paused.
//!
//! # What every implementation promises
//!
//! - Each call is one atomic compare-and-set on one row, decided by the pure [`claim::decide`] and
//!   [`claim::transition`]. Of any number of racing claims exactly one gets [`Claim::Claimed`].
//! - An unknown outcome (timeout, dropped connection) is resolved inside the call by issuing the same statement with the
//!   same token again and recognising that token; the answer is never a guess. When that does not succeed within the
//!   store's deadline the call is [`StoreError::Unavailable`]: the write may or may not have happened, and calling again
//!   with the same arguments is safe and finds out.
//! - A stale token changes nothing: [`Transition::LeaseLost`].
//! - A row whose retention has passed is absent for claims and reads. Its owner still renews and moves it for as long as
//!   it is there and nobody else has claimed the delivery: what was done must not be forgotten because a clock jumped.
//! - How a destination stands is a row of its own, written by compare-and-set on its revision ([`standing::turn`]).
//! - `now_ms` comes from the caller; a store reads no clock to decide who may work.
//!
//! `cql` is the store of production (ScyllaDB, Cassandra), `embedded` the durable one of a laptop, `memory` the one of
//! simulations. `conformance` is the suite that all three pass.
#![warn(missing_docs)]

pub mod claim;
pub mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(feature = "cql")]
pub mod cql;
pub mod embedded;
pub mod memory;
pub mod standing;

pub use claim::{Claim, ClaimAsk, Held, Renewal, Retention, Row, Status, Transition};
pub use config::StoreConfig;
pub use schemas::Reopen;
pub use standing::{Noted, PauseCause, Paused, Standing, Standings};

use schemas::{DeliveryKey, Reason};
use std::future::Future;

/// The claims.
pub trait Store: Clone + Send + Sync + 'static {
    /// Asks for the right to make the next attempt of a delivery.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn claim(
        &self,
        ask: &ClaimAsk,
        now_ms: i64,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Moves the end of a held lease to `lease_until_ms`; never moves it back.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn renew(
        &self,
        held: &Held,
        lease_until_ms: i64,
        now_ms: i64,
    ) -> impl Future<Output = Result<Renewal, StoreError>> + Send;

    /// processing → waiting: the next hop is durable in the log, fenced by this claim's token.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn schedule(
        &self,
        held: &Held,
        not_before_ms: i64,
        now_ms: i64,
    ) -> impl Future<Output = Result<Transition, StoreError>> + Send;

    /// processing → completed.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn complete(
        &self,
        held: &Held,
        now_ms: i64,
    ) -> impl Future<Output = Result<Transition, StoreError>> + Send;

    /// processing → failed: the dead letter is durable in the log.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn fail(
        &self,
        held: &Held,
        reason: Reason,
        now_ms: i64,
    ) -> impl Future<Output = Result<Transition, StoreError>> + Send;

    /// The row of a delivery, as the last finished write left it; none when never seen or expired.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn get(
        &self,
        key: &DeliveryKey,
        now_ms: i64,
    ) -> impl Future<Output = Result<Option<Row>, StoreError>> + Send;

    /// How the destinations stand, as the last finished writes left it: those that something was noted of.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn standings(&self) -> impl Future<Output = Result<Standings, StoreError>> + Send;

    /// Notes how a destination stands, if it still stands as `new` [follows](Standing::follows). What was noted does not
    /// expire.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn set_standing(
        &self,
        destination: &str,
        new: &Standing,
    ) -> impl Future<Output = Result<Noted, StoreError>> + Send;

    /// Whether the store answers; the error says why not. Readiness asks it.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn ready(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// How busy the client of a store over the network is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Statements that were sent and not answered.
    pub in_flight: usize,
    /// Statements that wait because `in_flight_max` are in flight.
    pub waiting: usize,
    /// Statements that were sent again, since the start: not begun, or of unknown outcome.
    pub reissued: u64,
}

/// A store that does not answer as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No final answer within the store's deadline. Call again with the same arguments.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The store refuses the statement (rights, schema): calling again does not help until somebody mends it.
    #[error("store refuses: {0}")]
    Refused(String),
}
