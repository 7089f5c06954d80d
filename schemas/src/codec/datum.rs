//! From the bytes of a value to the frame and from the datum to the struct.

use super::{DecodeError, short};
use crate::avro::{Contract, Record};
use apache_avro::{Schema, reader::datum::GenericDatumReader};
use serde::de::DeserializeOwned;
use std::io::{self, Read};

/// What a frame names the writer's schema by.
#[derive(Clone, Copy)]
pub(super) enum Name {
    Id(u32),
    Fingerprint(u64),
}

/// A reader that remembers whether it was asked for more than there was: the Avro crate takes the end of the input
/// for a null in some places.
struct Datum<'a> {
    rest: &'a [u8],
    ended_early: bool,
}

pub(super) fn split_frame(value: &[u8]) -> Result<(Name, &[u8]), DecodeError> {
    match value {
        [0x00, a, b, c, d, datum @ ..] => {
            Ok((Name::Id(u32::from_be_bytes([*a, *b, *c, *d])), datum))
        }
        [0xC3, 0x01, a, b, c, d, e, f, g, h, datum @ ..] => {
            let fingerprint = u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
            Ok((Name::Fingerprint(fingerprint), datum))
        }
        [] | [0x00, ..] | [0xC3] | [0xC3, 0x01, ..] => {
            Err(DecodeError::Short { bytes: value.len() })
        }
        [first, ..] => Err(DecodeError::UnknownFrame { first: *first }),
    }
}

/// Reads a datum of the current schema.
pub(super) fn read_current<T: DeserializeOwned>(
    record: Record,
    contract: &Contract,
    datum: &[u8],
) -> Result<T, DecodeError> {
    let mut datum = Datum {
        rest: datum,
        ended_early: false,
    };
    let value = contract
        .reader
        .read_deser(&mut datum)
        .map_err(|error| broken(record, short(&error)))?;
    datum.finish(record)?;
    Ok(value)
}

/// A datum of another known schema, written again in the current one. Rare: an upgrade's backlog.
pub(super) fn rewrite(
    record: Record,
    contract: &Contract,
    writer: &Schema,
    datum: &[u8],
) -> Result<Vec<u8>, DecodeError> {
    let mut datum = Datum {
        rest: datum,
        ended_early: false,
    };
    let resolved = GenericDatumReader::builder(writer)
        .reader_schema(contract.schema)
        .build()
        .and_then(|reader| reader.read_value(&mut datum));
    if datum.ended_early || resolved.is_ok() {
        datum.finish(record)?;
    }
    let mut rewritten = Vec::new();
    resolved
        .and_then(|value| contract.writer.write_value_ref(&mut rewritten, &value))
        // What Avro says of a value that does not resolve holds the value, and with it the payload: not for logs.
        .map_err(|_error| broken(record, "does not resolve to the current schema".to_owned()))?;
    Ok(rewritten)
}

pub(super) fn broken(record: Record, cause: String) -> DecodeError {
    DecodeError::Broken {
        record: record.name(),
        cause,
    }
}

// === impl Datum ===

impl Datum<'_> {
    /// Nothing may be missing at the end and nothing left over.
    fn finish(&self, record: Record) -> Result<(), DecodeError> {
        if self.ended_early {
            return Err(broken(record, "ends early".to_owned()));
        }
        match self.rest.len() {
            0 => Ok(()),
            left => Err(broken(record, format!("{left} bytes behind the datum"))),
        }
    }
}

impl Read for Datum<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ended_early |= self.rest.len() < buffer.len();
        self.rest.read(buffer)
    }
}
