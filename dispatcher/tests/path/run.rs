//! `run()` over the memory log: members, watermarks, shutdown, bounds and defects.

mod bounds;
mod members;
mod running;
