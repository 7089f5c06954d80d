//! The committed Avro schemas and their fingerprints.
//!
//! # Changing a schema
//!
//! A reader must know a writer's schema before the first record of it is written, and old records stay in the topics.
//! So a change takes two releases:
//!
//! 1. Commit the coming schema and add it to [`Record::other_texts`]. This release reads it and still writes the old one.
//! 2. Make it the `avro/<record>.avsc`, and move the one it replaces to [`Record::other_texts`], where it stays.
//!
//! Added fields need a default, removed fields need to have had one, and nothing is ever renamed or changed in type.
//! Then old readers read new records and the other way round. A new enum symbol needs nothing more: readers that do not
//! know it see the enum's default symbol.

use crate::codec::VALUE_BYTES_MAX;
use apache_avro::{
    Schema, rabin::Rabin, reader::datum::GenericDatumReader, util::max_allocation_bytes,
    writer::datum::GenericDatumWriter,
};
use std::sync::LazyLock;

/// An Avro record of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Record {
    /// [`crate::Webhook`].
    Webhook,
    /// [`crate::Delivery`].
    Delivery,
    /// [`crate::DeadLetter`].
    DeadLetter,
}

/// A record's schema, ready for use. Parsed once in the life of the process.
pub(crate) struct Contract {
    pub(crate) schema: &'static Schema,
    pub(crate) fingerprint: u64,
    pub(crate) reader: GenericDatumReader<'static>,
    pub(crate) writer: GenericDatumWriter<'static>,
    /// Schemas that are read besides `schema`.
    pub(crate) others: Vec<(u64, Schema)>,
}

static CONTRACTS: LazyLock<[Contract; 3]> = LazyLock::new(|| {
    // A process-wide setting of the Avro crate, taken once: no length in a datum makes it allocate more.
    max_allocation_bytes(VALUE_BYTES_MAX);
    Record::ALL.map(Contract::parse)
});

/// CRC-64-AVRO of the schema's parsing canonical form: documentation, defaults and logical types do not change it.
///
/// The Avro crate leaves `{"type":"long"}` where a logical type was; Java and Python write `"long"`, so their
/// fingerprints differ from its own. The canonical form of the canonical form is theirs.
pub(crate) fn fingerprint_of(schema: &Schema) -> Result<u64, Box<apache_avro::Error>> {
    let plain = Schema::parse_str(&schema.canonical_form()).map_err(Box::new)?;
    let mut little_endian = [0; 8];
    for (to, from) in little_endian
        .iter_mut()
        .zip(plain.fingerprint::<Rabin>().bytes)
    {
        *to = from;
    }
    Ok(u64::from_le_bytes(little_endian))
}

// === impl Record ===

impl Record {
    /// Every record.
    pub const ALL: [Self; 3] = [Self::Webhook, Self::Delivery, Self::DeadLetter];

    /// Name within the namespace `io.fencepost`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Webhook => "Webhook",
            Self::Delivery => "Delivery",
            Self::DeadLetter => "DeadLetter",
        }
    }

    /// Text of the committed `.avsc` file: what is written, and what everything read is resolved to.
    pub fn text(self) -> &'static str {
        match self {
            Self::Webhook => include_str!("../avro/webhook.avsc"),
            Self::Delivery => include_str!("../avro/delivery.avsc"),
            Self::DeadLetter => include_str!("../avro/dead_letter.avsc"),
        }
    }

    /// Texts of the other schemas that are read: those of earlier releases, and one that the next release will write.
    pub fn other_texts(self) -> &'static [&'static str] {
        match self {
            // There has been one version of each so far.
            Self::Webhook | Self::Delivery => &[],
            // Without the reason `destination_paused`.
            Self::DeadLetter => &[include_str!("../avro/former/dead_letter.1.avsc")],
        }
    }

    /// CRC-64-AVRO fingerprint of [`Self::text`]. Single-object encoding carries it little-endian.
    pub fn fingerprint(self) -> u64 {
        self.contract().fingerprint
    }

    pub(crate) fn contract(self) -> &'static Contract {
        let [webhook, delivery, dead_letter] = &*CONTRACTS;
        match self {
            Self::Webhook => webhook,
            Self::Delivery => delivery,
            Self::DeadLetter => dead_letter,
        }
    }
}

// === impl Contract ===

impl Contract {
    /// The texts are part of the binary, and a test parses each: the panics here can not depend on input.
    fn parse(record: Record) -> Self {
        let schema: &'static Schema = Box::leak(Box::new(parse_committed(record.text())));
        Self {
            schema,
            fingerprint: fingerprint_of(schema).expect("committed schema"),
            reader: GenericDatumReader::builder(schema)
                .build()
                .expect("committed schema"),
            writer: GenericDatumWriter::builder(schema)
                .build()
                .expect("committed schema"),
            others: record
                .other_texts()
                .iter()
                .map(|text| parse_committed(text))
                .map(|schema| (fingerprint_of(&schema).expect("committed schema"), schema))
                .collect(),
        }
    }
}

fn parse_committed(text: &str) -> Schema {
    Schema::parse_str(text).expect("committed schema")
}
