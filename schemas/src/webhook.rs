//! A webhook: one received and verified HTTP request.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One received, verified HTTP request. Value of `<p>.webhooks`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// Configured name of the sender, e.g. `github`.
    pub source: String,
    /// The sender's id of this delivery, 1 to 256 bytes, no control characters. Equal on repeats.
    pub delivery_id: String,
    /// Event type as the source's rule extracts it, e.g. `push` or `pull_request.opened`; empty when it has none.
    pub event_type: String,
    /// The request's `content-type`, when there was one.
    pub content_type: Option<String>,
    /// The request's headers that may be passed on (no hop-by-hop, cookies, authorization, tokens), in order.
    pub headers: Vec<Header>,
    /// The exact bytes received.
    #[serde(with = "crate::wire::bytes")]
    pub body: Bytes,
    /// When the request's head had arrived, milliseconds since the Unix epoch.
    #[serde(rename = "received_at")]
    pub received_at_ms: i64,
    /// 0 for the first life of the deliveries made of this webhook; a replay writes a higher one.
    pub generation: u32,
}

/// One header of the received request. Values are bytes: HTTP does not promise UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Lower-case name.
    pub name: String,
    /// Value as received.
    #[serde(with = "crate::wire::bytes")]
    pub value: Bytes,
}
