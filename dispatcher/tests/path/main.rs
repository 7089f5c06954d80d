//! The dispatcher between a fake log, a fake store and a fake receiver: `process()` in `steps`, `waits`, `leases`,
//! `renewals`, `replays`, `sizes` and `ends`, the destinations' gates in `gates`, the loop around it in `run`. The numbers of invariants are those of the design.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod driver;
mod ends;
mod fakes;
mod gates;
mod leases;
mod pauses;
mod renewals;
mod replays;
mod run;
mod sizes;
mod steps;
mod waits;
