//! A dead letter: a delivery that ended without success. The public contract for other teams.

use crate::{
    delivery::{AttemptSummary, DeliveryKey},
    webhook::Header,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A delivery that ended without success, with everything needed to understand and to replay it. Value of `<p>.dead-letters`.
///
/// # For consumers in other languages
///
/// - The value is one Avro record in a frame. First byte `00`: 4 bytes of schema registry id, big-endian, then the datum
///   (what Confluent's deserialisers expect). First bytes `C3 01`: Avro single-object encoding, 8 bytes of CRC-64-AVRO
///   fingerprint, little-endian, then the datum. Which of the two is the operator's choice; be ready for both, since it may
///   change in the life of a topic.
/// - The schema is `avro/dead_letter.avsc`; It holds all it
///   refers to. Later versions only add fields with defaults and enum symbols, so resolve the writer's schema to
///   your own copy; keep the former versions for as long as the topic keeps their records.
/// - `reason` and `outcome` are enums with a default: a symbol that your copy does not know becomes `other`, `unknown`.
///   Branch on `reason`, never on the text of `detail`.
/// - Publishing is at least once: drop repeats by `dead_letter_id`. A delivery that was replayed and failed again is
///   another letter, with a higher `generation` and another id.
/// - The record's key is the delivery id, so all letters of a webhook stand in one partition, in order.
///   The log headers of [`crate::header`] tell source, event type, destination and reason without decoding.
/// - `body` and header values are the bytes received: they need not be UTF-8. With reason `undecodable`, `body` is
///   the raw value of a log record, `origin` says which, and the fields about the webhook are empty.
/// - `attempts` counts this generation's attempts; `history` is bounded, so it may hold fewer.
/// - Times are milliseconds since the Unix epoch, UTC. Nothing in the record is a secret of ours, but the body is
///   whatever the sender sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// [`dead_letter_id`]: equal for the copies that at-least-once publishing may leave; consumers drop repeats by it.
    pub dead_letter_id: String,
    /// Configured name of the sender; empty when the record could not be decoded.
    pub source: String,
    /// The sender's id of the webhook; empty when the record could not be decoded.
    pub delivery_id: String,
    /// Configured name of the receiver; empty when the record could not be decoded.
    pub destination: String,
    /// Event type as extracted at receipt.
    pub event_type: String,
    /// Why it ended.
    pub reason: Reason,
    /// The cause in a sentence for people, at most 500 characters.
    pub detail: String,
    /// Attempts made in this generation.
    pub attempts: u32,
    /// Life of the delivery that ended here, from 0.
    pub generation: u32,
    /// HTTP status of the last attempt that got an answer.
    pub last_status: Option<u16>,
    /// When the webhook was received, milliseconds since the Unix epoch.
    #[serde(rename = "received_at")]
    pub received_at_ms: i64,
    /// When the delivery was given up, milliseconds since the Unix epoch.
    #[serde(rename = "failed_at")]
    pub failed_at_ms: i64,
    /// Attempts, oldest first: the first one and the last ones, at most [`crate::HISTORY_MAX`].
    pub history: Vec<AttemptSummary>,
    /// The webhook's content type.
    pub content_type: Option<String>,
    /// The webhook's headers that may be passed on.
    pub headers: Vec<Header>,
    /// The exact bytes received; with reason `undecodable` the raw value of the log record.
    #[serde(with = "crate::wire::bytes")]
    pub body: Bytes,
    /// The log record that was being worked on when the delivery ended.
    pub origin: Origin,
}

/// Place of a record in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Topic name.
    pub topic: String,
    /// Partition number.
    pub partition: u32,
    /// Offset within the partition.
    pub offset: i64,
}

/// Why a delivery ended without success. The string form is stable: consumers and the store branch on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The destination refused it for good (3xx, 4xx).
    Rejected,
    /// The destination answered 410.
    Gone,
    /// `attempts_max` attempts failed.
    Exhausted,
    /// Older than `max_age`.
    Expired,
    /// The destination's address may not be dialled.
    Blocked,
    /// The log record's bytes are no webhook or delivery.
    Undecodable,
    /// The destination is no longer configured.
    UnknownDestination,
    /// The destination was paused, and what is paused there is given up.
    DestinationPaused,
    /// A symbol that this version does not know.
    Other,
}

/// Id of the dead letter of one life of a delivery: 32 hex digits of SHA-256 over key and generation.
pub fn dead_letter_id(key: &DeliveryKey, generation: u32) -> String {
    let mut hash = Sha256::new();
    for part in [&key.source, &key.delivery_id, &key.destination] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(generation.to_be_bytes());
    let mut id = hex::encode(hash.finalize());
    id.truncate(32);
    id
}

// === impl Reason ===

impl Reason {
    /// Every reason that this version writes.
    pub const ALL: [Self; 8] = [
        Self::Rejected,
        Self::Gone,
        Self::Exhausted,
        Self::Expired,
        Self::Blocked,
        Self::Undecodable,
        Self::UnknownDestination,
        Self::DestinationPaused,
    ];

    /// Stable name, as on the wire, in the store, in logs and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Gone => "gone",
            Self::Exhausted => "exhausted",
            Self::Expired => "expired",
            Self::Blocked => "blocked",
            Self::Undecodable => "undecodable",
            Self::UnknownDestination => "unknown_destination",
            Self::DestinationPaused => "destination_paused",
            Self::Other => "other",
        }
    }

    /// Reverse of [`Self::as_str`]; a name that this version does not know is [`Self::Other`].
    pub fn parse(name: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|reason| reason.as_str() == name)
            .unwrap_or(Self::Other)
    }
}
