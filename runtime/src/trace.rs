//! W3C trace context, out of a span into log headers and back.

use bytes::Bytes;
use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::{SpanContext, TraceContextExt},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The current span's context as headers: `traceparent`, and `tracestate` when there is one. Empty when nothing is traced.
pub fn current_headers() -> Vec<(String, Bytes)> {
    headers_of(&Span::current())
}

/// As [`current_headers`], of a given span.
pub fn headers_of(span: &Span) -> Vec<(String, Bytes)> {
    inject(&span.context())
}

/// Links `span` to the context that `headers` carry, if any: the way for work that somebody else caused earlier.
pub fn link(span: &Span, headers: &[(String, Bytes)]) {
    if let Some(remote) = remote(headers) {
        span.add_link(remote);
    }
}

/// Makes the context that `headers` carry, if any, the parent of `span`, which must not have been entered yet.
pub fn set_parent(span: &Span, headers: &[(String, Bytes)]) {
    if let Some(remote) = remote(headers) {
        // Refused when nothing is traced; then there is no parent to be had.
        drop(span.set_parent(Context::new().with_remote_span_context(remote)));
    }
}

/// The context that `headers` carry; none when there is none or it is malformed.
pub fn remote(headers: &[(String, Bytes)]) -> Option<SpanContext> {
    let context =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &Carried(headers));
    let remote = context.span().span_context().clone();
    remote.is_valid().then_some(remote)
}

fn inject(context: &Context) -> Vec<(String, Bytes)> {
    let mut headers = Headers(Vec::new());
    TraceContextPropagator::new().inject_context(context, &mut headers);
    headers.0
}

struct Headers(Vec<(String, Bytes)>);

struct Carried<'a>(&'a [(String, Bytes)]);

impl Injector for Headers {
    fn set(&mut self, key: &str, value: String) {
        // The propagator writes an empty tracestate when there is none.
        if !value.is_empty() {
            self.0.push((key.to_owned(), Bytes::from(value)));
        }
    }
}

impl Extractor for Carried<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let (_, value) = self
            .0
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(key))?;
        std::str::from_utf8(value).ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn header(name: &str, value: &'static str) -> (String, Bytes) {
        (name.to_owned(), Bytes::from_static(value.as_bytes()))
    }

    #[test]
    fn a_context_survives_the_log() {
        for headers in [
            vec![header("traceparent", PARENT)],
            vec![header("traceparent", PARENT), header("tracestate", "a=1")],
        ] {
            let remote = remote(&headers).unwrap();
            assert_eq!(
                inject(&Context::new().with_remote_span_context(remote)),
                headers
            );
        }
    }

    #[test]
    fn no_or_a_broken_context_is_none() {
        assert_eq!(remote(&[]), None);
        assert_eq!(remote(&[header("traceparent", "00-xyz-1-01")]), None);
        let not_text = ("traceparent".to_owned(), Bytes::from_static(&[0xff, 0xfe]));
        assert_eq!(remote(&[not_text]), None);
    }

    #[test]
    fn nothing_traced_gives_no_headers() {
        assert_eq!(current_headers(), []);
    }
}
