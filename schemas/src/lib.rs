//! The wire contract of Fencepost: what stands on which topic, under which key, in which bytes.
//!
//! | topic | key | value | headers |
//! | --- | --- | --- | --- |
//! | `<p>.webhooks` | delivery id | [`Webhook`] | [`header`] |
//! | `<p>.delay.<tier>` | delivery id | [`Delivery`] | [`header`] |
//! | `<p>.dead-letters` | delivery id | [`DeadLetter`] | [`header`] |
//!
//! This crate knows no client library: no Kafka, no HTTP, no registry. It reads no clock.
#![warn(missing_docs)]

pub mod codec;
pub mod dead_letter;
pub mod delivery;
pub mod header;
pub mod topic;
pub mod webhook;

pub use codec::{Codec, DecodeError, EncodeError, Framing, RegistryIds};
pub use dead_letter::{DeadLetter, Origin, Reason};
pub use delivery::{AttemptSummary, Delivery, DeliveryKey, HISTORY_MAX, OutcomeKind};
pub use topic::{DelayTier, Topic, TopicNames, partition_for};
pub use webhook::{Header, Webhook};
