//! The wire contract of Fencepost: what stands on which topic, under which key, in which bytes.
//!
//! | topic | key | value | headers |
//! | --- | --- | --- | --- |
//! | `<p>.webhooks` | delivery id | [`Webhook`] | [`header`] |
//! | `<p>.delay.<tier>` | delivery id | [`Delivery`] | [`header`] |
//! | `<p>.dead-letters` | delivery id | [`DeadLetter`] | [`header`] |
//!
//! Values are Avro records of the namespace `io.fencepost`, in one of two frames ([`Framing`]); [`Codec`] writes the one
//! that is configured and reads both. The `.avsc` files under `avro/` are the contract: [`Record::text`] and
//! [`Record::fingerprint`] hand them out. Field names differ from the structs'
//! in one way: times carry Avro's `timestamp-millis` there and `_ms` in the name here. How a schema may change is told
//! in [`avro`]. What foreign readers of the dead letters need is told at [`DeadLetter`].
//!
//! The serde form of the records is this wire form; it is no JSON interface.
//!
//! Two things are on no wire and stand here because several crates must understand them alike: event patterns
//! ([`event_matches`]) and [`Reopen`].
//!
//! This crate knows no client library: no Kafka, no HTTP, no registry. It reads no clock.
#![warn(missing_docs)]

pub mod avro;
pub mod codec;
pub mod dead_letter;
pub mod delivery;
pub mod event;
pub mod header;
pub mod topic;
pub mod webhook;
mod wire;

pub use avro::Record;
pub use codec::{
    Codec, DecodeError, EncodeError, Framing, RegistryIds, SchemaError, VALUE_BYTES_MAX,
};
pub use dead_letter::{DeadLetter, Origin, Reason};
pub use delivery::{AttemptSummary, Delivery, DeliveryKey, HISTORY_MAX, OutcomeKind, Reopen};
pub use event::event_matches;
pub use topic::{DelayTier, Topic, TopicNames, partition_for};
pub use webhook::{Header, Webhook};
