//! A request as far as verification, extraction and handshakes look at it.

use http::{HeaderMap, Method, header};

/// Borrowed from the request that was received; nothing in it is decoded or trusted yet.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a Method,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// What stands behind the `?`, as received.
    pub query: Option<&'a str>,
    /// The URL that the sender was given, from the config. Never taken from headers: whoever sends them could choose what
    /// was signed.
    pub public_url: Option<&'a str>,
    /// The body, as received.
    pub body: &'a [u8],
    /// Arrival of the head, milliseconds since the Unix epoch.
    pub received_at_ms: i64,
}

// === impl Request ===

impl Request<'_> {
    /// Whether the body says of itself that it is a form.
    pub fn is_form(&self) -> bool {
        let kind = self.headers.get(header::CONTENT_TYPE);
        let essence = kind
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.split(';').next());
        essence.is_some_and(|essence| {
            essence
                .trim()
                .eq_ignore_ascii_case("application/x-www-form-urlencoded")
        })
    }
}
