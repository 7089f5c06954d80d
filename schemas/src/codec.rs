//! Bytes on the wire: Avro behind a frame that names the writer's schema.
//!
//! Records of the current schema, nearly all, go straight between bytes and structs: the body is copied once in either
//! direction. Records of another known schema are resolved by Avro's rules first (fields by name, defaults for what is
//! missing, what is unknown dropped) and then take the same way.

mod datum;
mod error;

pub use error::{DecodeError, EncodeError, SchemaError};

use crate::{
    DeadLetter, Delivery, Header, Webhook,
    avro::{Contract, Record, fingerprint_of},
};
use apache_avro::{Schema, schema_compatibility::SchemaCompatibility};
use bytes::Bytes;
use datum::{Name, broken, read_current, rewrite, split_frame};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt::Display, sync::Arc};

/// Largest value that is written or read, bytes: far above what a log takes, and the bound of a decoder's allocation.
pub const VALUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Characters kept of what Avro says; it likes to print whole schemas.
const CAUSE_CHARS_MAX: usize = 200;

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
    accepted: Arc<Vec<Accepted>>,
}

/// A writer's schema that was allowed at run time.
#[derive(Clone, Debug)]
struct Accepted {
    record: Record,
    id: Option<u32>,
    fingerprint: u64,
    schema: Schema,
}

// === impl Codec ===

impl Codec {
    /// A codec that writes with `framing`.
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            accepted: Arc::default(),
        }
    }

    /// Allows one more writer's schema of `record`, e.g. the one that another team's producer or a former release has
    /// registered under `id`. It is known by its fingerprint too.
    ///
    /// # Errors
    /// See [`SchemaError`].
    pub fn accept(
        mut self,
        record: Record,
        id: Option<u32>,
        schema: &str,
    ) -> Result<Self, SchemaError> {
        let json = serde_json::from_str(schema).map_err(|e| SchemaError::Invalid(short(&e)))?;
        if !has_canonical_form(&json) {
            return Err(SchemaError::Invalid(
                "an attribute has a value of no use".to_owned(),
            ));
        }
        let schema =
            Schema::parse_str(schema).map_err(|error| SchemaError::Invalid(short(&error)))?;
        SchemaCompatibility::can_read(&schema, record.contract().schema).map_err(|error| {
            SchemaError::Incompatible {
                record: record.name(),
                cause: short(&error),
            }
        })?;
        let fingerprint =
            fingerprint_of(&schema).map_err(|error| SchemaError::Invalid(short(&error)))?;
        Arc::make_mut(&mut self.accepted).push(Accepted {
            record,
            id,
            fingerprint,
            schema,
        });
        Ok(self)
    }

    /// Bytes of a webhook.
    ///
    /// # Errors
    /// When it is larger than [`VALUE_BYTES_MAX`].
    pub fn encode_webhook(&self, webhook: &Webhook) -> Result<Bytes, EncodeError> {
        self.encode(
            Record::Webhook,
            webhook,
            payload_bytes(&webhook.headers, &webhook.body),
        )
    }

    /// The webhook in `value`.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode_webhook(&self, value: &[u8]) -> Result<Webhook, DecodeError> {
        self.decode(Record::Webhook, value)
    }

    /// Bytes of a delivery.
    ///
    /// # Errors
    /// When it is larger than [`VALUE_BYTES_MAX`].
    pub fn encode_delivery(&self, delivery: &Delivery) -> Result<Bytes, EncodeError> {
        let webhook = &delivery.webhook;
        self.encode(
            Record::Delivery,
            delivery,
            payload_bytes(&webhook.headers, &webhook.body),
        )
    }

    /// The delivery in `value`.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode_delivery(&self, value: &[u8]) -> Result<Delivery, DecodeError> {
        self.decode(Record::Delivery, value)
    }

    /// Bytes of a dead letter.
    ///
    /// # Errors
    /// When it is larger than [`VALUE_BYTES_MAX`].
    pub fn encode_dead_letter(&self, letter: &DeadLetter) -> Result<Bytes, EncodeError> {
        self.encode(
            Record::DeadLetter,
            letter,
            payload_bytes(&letter.headers, &letter.body),
        )
    }

    /// The dead letter in `value`.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode_dead_letter(&self, value: &[u8]) -> Result<DeadLetter, DecodeError> {
        self.decode(Record::DeadLetter, value)
    }

    fn encode<T: Serialize>(
        &self,
        record: Record,
        value: &T,
        payload_bytes: usize,
    ) -> Result<Bytes, EncodeError> {
        let fail = |cause| EncodeError {
            record: record.name(),
            cause,
        };
        let contract = record.contract();
        if payload_bytes > VALUE_BYTES_MAX {
            return Err(fail(too_large(payload_bytes)));
        }
        // Room for the payload and, as a rule, for all the rest: no growing, so one copy of the body.
        let mut bytes = Vec::with_capacity(payload_bytes + 1024);
        match &self.framing {
            Framing::SingleObject => {
                bytes.extend([0xC3, 0x01]);
                bytes.extend(contract.fingerprint.to_le_bytes());
            }
            Framing::Confluent(ids) => {
                bytes.push(0x00);
                bytes.extend(ids.of(record).to_be_bytes());
            }
        }
        contract
            .writer
            .write_ser(&mut bytes, value)
            .map_err(|error| fail(short(&error)))?;
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(fail(too_large(bytes.len())));
        }
        Ok(Bytes::from(bytes))
    }

    fn decode<T: DeserializeOwned>(&self, record: Record, value: &[u8]) -> Result<T, DecodeError> {
        let (name, datum) = split_frame(value)?;
        let contract = record.contract();
        if value.len() > VALUE_BYTES_MAX {
            return Err(broken(record, too_large(value.len())));
        }
        match self.known_schema(record, contract, name) {
            Some((fingerprint, _)) if fingerprint == contract.fingerprint => {
                read_current(record, contract, datum)
            }
            Some((_, writer)) => {
                read_current(record, contract, &rewrite(record, contract, writer, datum)?)
            }
            None => Err(DecodeError::UnknownSchema {
                record: record.name(),
                schema: match name {
                    Name::Id(id) => format!("id {id}"),
                    Name::Fingerprint(fingerprint) => format!("fingerprint {fingerprint:016x}"),
                },
            }),
        }
    }

    /// The writer's schema that a frame names, with its fingerprint; none when it is not one of `record`.
    fn known_schema<'a>(
        &'a self,
        record: Record,
        contract: &'a Contract,
        name: Name,
    ) -> Option<(u64, &'a Schema)> {
        let current = (contract.fingerprint, contract.schema);
        let committed = match (name, &self.framing) {
            (Name::Fingerprint(named), _) => std::iter::once(current)
                .chain(
                    contract
                        .others
                        .iter()
                        .map(|(fingerprint, schema)| (*fingerprint, schema)),
                )
                .find(|(fingerprint, _)| *fingerprint == named),
            (Name::Id(id), Framing::Confluent(ids)) if ids.of(record) == id => Some(current),
            (Name::Id(_), _) => None,
        };
        committed.or_else(|| {
            self.accepted
                .iter()
                .filter(|accepted| accepted.record == record)
                .find(|accepted| match name {
                    Name::Fingerprint(fingerprint) => accepted.fingerprint == fingerprint,
                    Name::Id(id) => accepted.id == Some(id),
                })
                .map(|accepted| (accepted.fingerprint, &accepted.schema))
        })
    }
}

// === impl RegistryIds ===

impl RegistryIds {
    /// Id of a record's schema.
    pub fn of(&self, record: Record) -> u32 {
        match record {
            Record::Webhook => self.webhook,
            Record::Delivery => self.delivery,
            Record::DeadLetter => self.dead_letter,
        }
    }
}

/// Whether the Avro crate can canonise a schema; it panics on what it does not expect under the names it keeps.
fn has_canonical_form(json: &serde_json::Value) -> bool {
    use serde_json::Value;
    match json {
        Value::String(_) => true,
        Value::Array(list) => list.iter().all(has_canonical_form),
        Value::Object(object) => object.iter().all(|(key, value)| match key.as_str() {
            "name" | "type" | "fields" | "symbols" | "items" | "values" => {
                has_canonical_form(value)
            }
            "size" | "precision" | "scale" => value.as_i64().is_some(),
            _ => true,
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn payload_bytes(headers: &[Header], body: &Bytes) -> usize {
    headers
        .iter()
        .map(|header| header.name.len() + header.value.len() + 10)
        .sum::<usize>()
        + body.len()
}

fn too_large(bytes: usize) -> String {
    format!("{bytes} bytes are more than {VALUE_BYTES_MAX}")
}

fn short(cause: &impl Display) -> String {
    cause.to_string().chars().take(CAUSE_CHARS_MAX).collect()
}
