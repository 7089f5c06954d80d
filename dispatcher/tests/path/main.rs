//! `process()` between a fake log, a fake store and a fake receiver. The numbers of invariants are those of the design.

mod driver;
#[path = "../fakes/fakes.rs"]
mod fakes;
mod steps;
