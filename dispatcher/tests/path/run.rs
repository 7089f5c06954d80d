//! `run()` over the memory log: members, watermarks, shutdown, bounds and defects.

mod bounds;
mod ending;
mod members;
pub(crate) mod running;
