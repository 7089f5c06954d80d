//! Faults by plan, and the judgement of a run with faults.
//!
//! [`plan`] says what is done when, from a seed; [`verdict`] judges what was recorded; both are plain functions over plain
//! values. Doing it is the test's part (`tests/chaos.rs`).

pub mod plan;
pub mod report;
pub mod verdict;

use crate::stack::variable;

/// `CHAOS_SEED`, or `otherwise`.
pub fn seed(otherwise: u64) -> u64 {
    number("CHAOS_SEED").unwrap_or(otherwise)
}

/// `CHAOS_MINUTES`, or `otherwise`.
pub fn minutes(otherwise: u64) -> u64 {
    number("CHAOS_MINUTES").unwrap_or(otherwise)
}

/// # Panics
/// When it is set and no number: another run than the one that was asked for would tell nothing.
fn number(name: &str) -> Option<u64> {
    let text = variable(name)?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is no number")))
}
