//! Faults by plan, and the judgement of a run with faults.
//!
//! [`plan`] says what is done when, from a seed; [`verdict`] judges what was recorded; both are plain functions over plain
//! values. Doing it is the test's part (`tests/chaos.rs`).

pub mod plan;
pub mod report;
pub mod verdict;
