//! What an attempt says beside the body.

use super::Attempt;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use schemas::header as names;

const USER_AGENT: &str = concat!("fencepost/", env!("CARGO_PKG_VERSION"));
/// Headers of the sender that are passed on; ingest takes fewer, a foreign record may have more than a map can hold.
const HEADERS_MAX: usize = 256;

/// The headers of an attempt: the sender's that may go on, then ours. `id` is the webhook's, `signature` made of it and
/// of `now_ms` in whole seconds.
pub(super) fn of(
    attempt: Attempt<'_>,
    id: &str,
    signature: Option<&str>,
    now_ms: i64,
) -> HeaderMap {
    let webhook = attempt.webhook;
    let mut headers = HeaderMap::with_capacity(webhook.headers.len().min(HEADERS_MAX) + 10);
    headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
    for passed in webhook.headers.iter().take(HEADERS_MAX) {
        let name = HeaderName::from_bytes(passed.name.as_bytes());
        let value = HeaderValue::from_maybe_shared(passed.value.clone());
        if let (Ok(name), Ok(value)) = (name, value)
            && passes(&name)
        {
            if name == header::USER_AGENT {
                headers.insert(name, value);
            } else {
                headers.append(name, value);
            }
        }
    }
    // The attempt's own span, so that a receiver's trace hangs below it. Empty when nothing is traced.
    for (name, value) in runtime::trace::current_headers() {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_maybe_shared(value)) {
            headers.insert(name, value);
        }
    }
    let timestamp_s = now_ms.div_euclid(1_000);
    let attempt = attempt.attempt.to_string();
    for (name, value) in [
        (
            header::CONTENT_TYPE.as_str(),
            webhook.content_type.as_deref(),
        ),
        (names::WEBHOOK_ID, Some(id)),
        (names::IDEMPOTENCY_KEY, Some(id)),
        (
            names::WEBHOOK_TIMESTAMP,
            Some(timestamp_s.to_string().as_str()),
        ),
        (names::WEBHOOK_SIGNATURE, signature),
        (names::WEBHOOK_ATTEMPT, Some(attempt.as_str())),
        (
            names::WEBHOOK_EVENT_TYPE,
            Some(webhook.event_type.as_str()).filter(|e| !e.is_empty()),
        ),
    ] {
        if let (Ok(name), Some(Ok(value))) = (
            HeaderName::from_bytes(name.as_bytes()),
            value.map(|value| HeaderValue::from_bytes(value.as_bytes())),
        ) {
            headers.insert(name, value);
        }
    }
    if webhook.body.is_empty() {
        // The client says nothing of an empty body's length; some servers answer 411 then.
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    headers
}

/// Whether a header of the received request goes on to the receiver: not those that belong to one connection, to the
/// sender's trust in us, or to our own signature.
fn passes(name: &HeaderName) -> bool {
    !matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "host"
            | "content-length"
            | "content-type"
            | "expect"
            | "cookie"
            | "set-cookie"
            | "authorization"
            | "traceparent"
            | "tracestate"
            | "baggage"
            | names::WEBHOOK_ID
            | names::WEBHOOK_TIMESTAMP
            | names::WEBHOOK_SIGNATURE
            | names::WEBHOOK_ATTEMPT
            | names::WEBHOOK_EVENT_TYPE
            | names::IDEMPOTENCY_KEY
    )
}
