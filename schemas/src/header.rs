//! Names of headers, in the log and in HTTP, in one place.

/// Log header: W3C trace context of the webhook's receipt.
pub const TRACEPARENT: &str = "traceparent";
/// Log header: W3C vendor trace state, never empty.
pub const TRACESTATE: &str = "tracestate";
/// Log header: media type of the value, [`CONTENT_TYPE_AVRO`].
pub const CONTENT_TYPE: &str = "content-type";
/// Value of [`CONTENT_TYPE`] on every record.
pub const CONTENT_TYPE_AVRO: &str = "application/avro";
/// Log header: source name, so that tools can filter without decoding.
pub const SOURCE: &str = "fencepost-source";
/// Log header: event type.
pub const EVENT_TYPE: &str = "fencepost-event-type";
/// Log header: destination name, on delay and dead-letter records.
pub const DESTINATION: &str = "fencepost-destination";
/// Log header: reason, on dead-letter records.
pub const REASON: &str = "fencepost-reason";

/// HTTP out: id of the webhook, the same for every attempt and repeat (Standard Webhooks).
pub const WEBHOOK_ID: &str = "webhook-id";
/// HTTP out: seconds since the Unix epoch at which the attempt was signed (Standard Webhooks).
pub const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
/// HTTP out: space-separated signatures (Standard Webhooks).
pub const WEBHOOK_SIGNATURE: &str = "webhook-signature";
/// HTTP out: number of the attempt, from 1.
pub const WEBHOOK_ATTEMPT: &str = "webhook-attempt";
/// HTTP out: event type, when the source's rule extracts one.
pub const WEBHOOK_EVENT_TYPE: &str = "webhook-event-type";
/// HTTP out: equal to [`WEBHOOK_ID`], for receivers that know this name.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
