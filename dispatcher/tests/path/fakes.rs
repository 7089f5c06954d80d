//! A fake at each port, and the world that they make up.

pub(crate) mod faults;
pub(crate) mod log;
pub(crate) mod send;
pub(crate) mod store;
pub(crate) mod world;
