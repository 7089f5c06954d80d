//! Bytes on the wire: Avro behind a frame that names the writer's schema.

use crate::{DeadLetter, Delivery, Webhook};
use bytes::Bytes;

/// How a value names its schema.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// Avro single-object encoding: `C3 01`, 8 bytes of CRC-64-AVRO fingerprint, then the datum. Needs no registry.
    #[default]
    SingleObject,
    /// Confluent wire format: `00`, 4 bytes of registry id (big-endian), then the datum.
    Confluent(RegistryIds),
}

/// Ids under which a schema registry knows our schemas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryIds {
    /// Id of `Webhook`.
    pub webhook: u32,
    /// Id of `Delivery`.
    pub delivery: u32,
    /// Id of `DeadLetter`.
    pub dead_letter: u32,
}

/// Encodes and decodes the three records. Writes one framing, reads both.
#[derive(Clone, Debug, Default)]
pub struct Codec {
    framing: Framing,
}

/// A record that can not be written.
#[derive(Debug, thiserror::Error)]
#[error("can not encode {record}: {cause}")]
pub struct EncodeError {
    /// Name of the Avro record.
    pub record: &'static str,
    /// What Avro says.
    pub cause: String,
}

/// Bytes that are not the record that was asked for.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// Shorter than any frame.
    #[error("value of {bytes} bytes is shorter than a frame")]
    Short {
        /// Length of the value.
        bytes: usize,
    },
    /// Neither Confluent framing nor single-object encoding.
    #[error("unknown frame: first byte {first:#04x}")]
    UnknownFrame {
        /// First byte of the value.
        first: u8,
    },
    /// A frame of another schema.
    #[error("unknown schema {schema} where {record} was expected")]
    UnknownSchema {
        /// Name of the expected Avro record.
        record: &'static str,
        /// Id or fingerprint that the frame names.
        schema: String,
    },
    /// The frame is right, the datum is not.
    #[error("broken {record}: {cause}")]
    Broken {
        /// Name of the expected Avro record.
        record: &'static str,
        /// What Avro says.
        cause: String,
    },
}

// === impl Codec ===

impl Codec {
    /// A codec that writes with `framing`.
    pub fn new(framing: Framing) -> Self {
        Self { framing }
    }
}
