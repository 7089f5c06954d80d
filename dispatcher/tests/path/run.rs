//! `run()` over the memory log: members, watermarks, shutdown, bounds and defects.

mod bounds;
mod ending;
mod members;
mod reports;
pub(crate) mod running;
