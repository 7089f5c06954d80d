//! A fake at each port, and the world that they make up.

pub mod faults;
pub mod log;
pub mod send;
pub mod store;
pub mod world;
