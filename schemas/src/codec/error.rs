//! What can be wrong with a value or a schema.

/// A writer's schema that can not be allowed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SchemaError {
    /// Not an Avro schema.
    #[error("not an Avro schema: {0}")]
    Invalid(String),
    /// Records of it can not be read as this version's record.
    #[error("not readable as {record}: {cause}")]
    Incompatible {
        /// Name of the Avro record.
        record: &'static str,
        /// What Avro says.
        cause: String,
    },
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
    /// Shorter than the frame that it begins.
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
