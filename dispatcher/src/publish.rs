//! What a dispatcher appends to the log: the next hop of a delivery, or its dead letter.

use crate::process::Place;
use bytes::Bytes;
use event_log::{Headers, Record};
use schemas::{
    AttemptSummary, Codec, DeadLetter, DelayTier, Delivery, EncodeError, Origin, Reason, Topic,
    TopicNames, dead_letter, header,
};

/// Characters kept of a dead letter's cause.
const DETAIL_CHARS_MAX: usize = 500;

/// How a delivery ended without success.
#[derive(Clone, Debug)]
pub struct Ending {
    pub reason: Reason,
    /// The cause in a sentence for people.
    pub detail: String,
    /// Attempts made in this generation.
    pub attempts: u32,
    /// Life of the delivery that ended.
    pub generation: u32,
    /// When, milliseconds since the Unix epoch.
    pub failed_at_ms: i64,
}

/// The record that carries `delivery` through a tier.
///
/// # Errors
/// When Avro refuses the value.
pub fn hop(
    codec: &Codec,
    delivery: &Delivery,
    trace: &Headers,
    tier: Topic,
) -> Result<Record, EncodeError> {
    Ok(Record {
        topic: tier,
        key: Bytes::copy_from_slice(delivery.webhook.delivery_id.as_bytes()),
        value: codec.encode_delivery(delivery)?,
        headers: headers(
            &delivery.webhook.source,
            &delivery.webhook.event_type,
            &[(header::DESTINATION, &delivery.destination)],
            trace,
        ),
    })
}

/// The topic of the largest tier that does not overshoot, or the smallest one.
pub fn tier(due_at_ms: i64, now_ms: i64) -> Topic {
    let remaining_ms = due_at_ms.saturating_sub(now_ms);
    Topic::Delay(DelayTier::for_remaining(remaining_ms).unwrap_or(DelayTier::SMALLEST))
}

/// The dead letter of a delivery.
///
/// # Errors
/// When Avro refuses the value.
pub fn dead_letter(
    codec: &Codec,
    names: &TopicNames,
    delivery: &Delivery,
    place: Place,
    ending: &Ending,
    trace: &Headers,
) -> Result<Record, EncodeError> {
    let webhook = &delivery.webhook;
    let letter = DeadLetter {
        dead_letter_id: dead_letter::dead_letter_id(&delivery.key(), ending.generation),
        source: webhook.source.clone(),
        delivery_id: webhook.delivery_id.clone(),
        destination: delivery.destination.clone(),
        event_type: webhook.event_type.clone(),
        reason: ending.reason,
        detail: ending.detail.chars().take(DETAIL_CHARS_MAX).collect(),
        attempts: ending.attempts,
        generation: ending.generation,
        last_status: last_status(&delivery.history),
        received_at_ms: webhook.received_at_ms,
        failed_at_ms: ending.failed_at_ms,
        history: delivery.history.clone(),
        content_type: webhook.content_type.clone(),
        headers: webhook.headers.clone(),
        body: webhook.body.clone(),
        origin: place.origin(names),
    };
    let key = Bytes::copy_from_slice(webhook.delivery_id.as_bytes());
    letter_record(codec, &letter, key, trace)
}

/// The dead letter of a log record that is no webhook and no delivery: its raw bytes, under its own key. Its id comes
/// from its place, so that it is the same however often the record is read.
///
/// # Errors
/// When Avro refuses the value.
pub fn undecodable(
    codec: &Codec,
    names: &TopicNames,
    record: &event_log::Received,
    cause: &str,
    failed_at_ms: i64,
) -> Result<Record, EncodeError> {
    let place = Place::of(record);
    let origin = place.origin(names);
    let id = schemas::DeliveryKey {
        source: origin.topic.clone(),
        delivery_id: origin.partition.to_string(),
        destination: origin.offset.to_string(),
    };
    let letter = DeadLetter {
        dead_letter_id: dead_letter::dead_letter_id(&id, 0),
        source: String::new(),
        delivery_id: String::new(),
        destination: String::new(),
        event_type: String::new(),
        reason: Reason::Undecodable,
        detail: cause.chars().take(DETAIL_CHARS_MAX).collect(),
        attempts: 0,
        generation: 0,
        last_status: None,
        received_at_ms: record.appended_at_ms,
        failed_at_ms,
        history: Vec::new(),
        content_type: None,
        headers: Vec::new(),
        body: record.value.clone(),
        origin,
    };
    letter_record(
        codec,
        &letter,
        record.key.clone(),
        &trace_of(&record.headers),
    )
}

/// The trace context among a record's headers: all that travels on from hop to hop.
pub fn trace_of(headers: &Headers) -> Headers {
    let traced = |name: &str| name == header::TRACEPARENT || name == header::TRACESTATE;
    headers
        .iter()
        .filter(|(name, _)| traced(name))
        .cloned()
        .collect()
}

fn letter_record(
    codec: &Codec,
    letter: &DeadLetter,
    key: Bytes,
    trace: &Headers,
) -> Result<Record, EncodeError> {
    let more = [
        (header::DESTINATION, letter.destination.as_str()),
        (header::REASON, letter.reason.as_str()),
    ];
    Ok(Record {
        topic: Topic::DeadLetters,
        key,
        value: codec.encode_dead_letter(letter)?,
        headers: headers(&letter.source, &letter.event_type, &more, trace),
    })
}

fn headers(source: &str, event_type: &str, more: &[(&str, &str)], trace: &Headers) -> Headers {
    let first = [
        (header::CONTENT_TYPE, header::CONTENT_TYPE_AVRO),
        (header::SOURCE, source),
        (header::EVENT_TYPE, event_type),
    ];
    let own = first
        .iter()
        .chain(more)
        .filter(|(_, value)| !value.is_empty());
    own.map(|(name, value)| ((*name).to_owned(), Bytes::copy_from_slice(value.as_bytes())))
        .chain(trace.iter().cloned())
        .collect()
}

fn last_status(history: &[AttemptSummary]) -> Option<u16> {
    history.iter().rev().find_map(|summary| summary.status)
}

// === impl Place ===

impl Place {
    fn origin(self, names: &TopicNames) -> Origin {
        Origin {
            topic: names.name(self.topic),
            partition: self.partition,
            offset: self.offset,
        }
    }
}
