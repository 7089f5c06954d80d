//! How records stand in the table: ids and headers.

use crate::Headers;
use bytes::Bytes;
use schemas::{DelayTier, Topic};

/// Partitions that fit into an id; the config allows no more.
const PARTITIONS_MAX: i64 = 1_024;
/// Bits of an id that hold the offset; 8 topics x 1,024 partitions stand above them, and the sign stays 0.
const OFFSET_BITS: u32 = 48;

/// A topic and partition as one small number. Stored: never change the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Slot(i64);

// === impl Slot ===

impl Slot {
    pub(super) fn new(topic: Topic, partition: u32) -> Self {
        Self(topic_code(topic) * PARTITIONS_MAX + i64::from(partition) % PARTITIONS_MAX)
    }

    /// The number that stands in the table.
    pub(super) fn number(self) -> i64 {
        self.0
    }

    /// Place of this slot in the order of [`all`].
    pub(super) fn index(self, partitions: u32) -> usize {
        let (code, partition) = (self.0 / PARTITIONS_MAX, self.0 % PARTITIONS_MAX);
        usize::try_from(code * i64::from(partitions) + partition).unwrap_or(usize::MAX)
    }

    /// Row id of an offset. Ids of one slot are neighbours, in the order of their offsets.
    pub(super) fn id(self, offset: i64) -> i64 {
        (self.0 << OFFSET_BITS) + offset.clamp(0, (1 << OFFSET_BITS) - 1)
    }

    /// First id behind this slot.
    pub(super) fn id_end(self) -> i64 {
        (self.0 + 1) << OFFSET_BITS
    }

    /// Offset of a row id of this slot.
    pub(super) fn offset(self, id: i64) -> i64 {
        id - (self.0 << OFFSET_BITS)
    }
}

/// Every topic and partition, in the order of [`index`].
pub(super) fn all(partitions: u32) -> impl Iterator<Item = (Topic, u32)> {
    Topic::ALL
        .into_iter()
        .flat_map(move |topic| (0..partitions).map(move |p| (topic, p)))
}

/// Place of a topic and partition in the order of [`all`].
pub(super) fn index(topic: Topic, partition: u32, partitions: u32) -> usize {
    Slot::new(topic, partition).index(partitions)
}

/// Headers as one blob: for each name and value its length (u32, little endian) and its bytes.
pub(super) fn encode_headers(headers: &Headers) -> Vec<u8> {
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| 8 + name.len() + value.len())
        .sum();
    let mut blob = Vec::with_capacity(bytes);
    for (name, value) in headers {
        for part in [name.as_bytes(), value] {
            // Longer records than 4 GiB are refused long before.
            blob.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
            blob.extend(part);
        }
    }
    blob
}

/// Reverse of [`encode_headers`]; none when the blob is broken.
pub(super) fn decode_headers(blob: &[u8]) -> Option<Headers> {
    let mut headers = Headers::new();
    let mut rest = blob;
    while !rest.is_empty() {
        let name = take_part(&mut rest)?;
        let value = take_part(&mut rest)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        headers.push((name, Bytes::copy_from_slice(value)));
    }
    Some(headers)
}

fn take_part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (part, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    Some(part)
}

/// Stored: never change a number.
fn topic_code(topic: Topic) -> i64 {
    match topic {
        Topic::Webhooks => 0,
        Topic::Delay(DelayTier::S5) => 1,
        Topic::Delay(DelayTier::S30) => 2,
        Topic::Delay(DelayTier::M2) => 3,
        Topic::Delay(DelayTier::M10) => 4,
        Topic::Delay(DelayTier::H1) => 5,
        Topic::Delay(DelayTier::H6) => 6,
        Topic::DeadLetters => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_slots_do_not_meet() {
        let mut last_end = 0;
        for (at, (topic, partition)) in all(1_024).enumerate() {
            let slot = Slot::new(topic, partition);
            assert_eq!(index(topic, partition, 1_024), at);
            assert!(slot.id(0) >= last_end && slot.id(i64::MAX) < slot.id_end());
            assert_eq!(slot.offset(slot.id(77)), 77);
            last_end = slot.id_end();
        }
        assert!(last_end > 0, "the sign is never touched");
    }

    #[test]
    fn headers_go_both_ways() {
        let headers: Headers = vec![
            ("a".into(), Bytes::from_static(&[0, 255])),
            (String::new(), Bytes::new()),
            ("a".into(), Bytes::from_static(b"again")),
        ];
        let blob = encode_headers(&headers);
        assert_eq!(decode_headers(&blob), Some(headers));
        assert_eq!(decode_headers(&[]), Some(Headers::new()));
        for cut in 1..blob.len() {
            // A cut between two headers can not be seen; anywhere else it must be.
            let decoded = decode_headers(&blob[..cut]);
            assert!(decoded.is_none() || [11, 19].contains(&cut), "{cut}");
        }
        assert_eq!(decode_headers(&[255, 255, 255, 255, 1]), None);
    }
}
