//! The log and the store that the config names, each behind one type.

pub(crate) mod log;
pub(crate) mod peek;
pub(crate) mod standings;
pub(crate) mod store;
