//! Which of a request's headers travel with the webhook.

use crate::rule::{Algorithm, Rule};
use http::{HeaderMap, HeaderName};
use schemas::Header;

/// Of this connection only (RFC 9110 section 7.6.1), or written anew for the next one.
const OF_THE_CONNECTION: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];

/// What lets somebody in.
const CREDENTIALS: [&str; 6] = [
    "authorization",
    "cookie",
    "cookie2",
    "set-cookie",
    "x-api-key",
    "x-auth",
];

/// Ends of names of headers that let somebody in, e.g. `x-gitlab-token`.
const CREDENTIAL_ENDS: [&str; 7] = [
    "-token",
    "-secret",
    "-password",
    "-api-key",
    "-apikey",
    "-authorization",
    "-cookie",
];

/// Kept by the webhook elsewhere, or replaced by our own: a stranger's trace is not ours to go on with.
const REPLACED: [&str; 4] = ["content-type", "traceparent", "tracestate", "baggage"];

/// The headers that may be passed on, in order, names in lower case. `rules` are the source's.
pub(crate) fn pass_on(headers: &HeaderMap, rules: &[Rule]) -> Vec<Header> {
    let of_the_connection = named_by_connection(headers);
    headers
        .iter()
        .filter(|(name, _)| may_pass(name.as_str()) && !of_the_connection.contains(name))
        .filter(|(name, _)| !rules.iter().any(|rule| is_token(name, rule)))
        .map(|(name, value)| Header {
            name: name.as_str().to_owned(),
            // A copy: a slice of the connection's read buffer would keep all of it alive.
            value: bytes::Bytes::copy_from_slice(value.as_bytes()),
        })
        .collect()
}

fn may_pass(name: &str) -> bool {
    // An idempotency token is an id.
    let credential = CREDENTIALS.contains(&name)
        || (CREDENTIAL_ENDS.iter().any(|end| name.ends_with(end))
            && !name.ends_with("-idempotency-token"));
    !credential && !OF_THE_CONNECTION.contains(&name) && !REPLACED.contains(&name)
}

/// Whether it is where the source's sender shows the secret itself, whatever that header is called.
fn is_token(name: &HeaderName, rule: &Rule) -> bool {
    let signature = rule.signature.as_ref();
    rule.algorithm == Algorithm::Token
        && signature.is_some_and(|signature| name.as_str().eq_ignore_ascii_case(&signature.header))
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::presets;
    use http::HeaderValue;

    #[test]
    fn credentials_and_the_connection_s_own_stay_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-github-event", "push"),
            ("authorization", "Basic eDp5"),
            ("cookie", "a=b"),
            ("x-gitlab-token", "t"),
            ("x-amz-security-token", "t"),
            ("proxy-authorization", "p"),
            ("i-twilio-idempotency-token", "id"),
            ("connection", "keep-alive, X-Once"),
            ("x-once", "1"),
            ("host", "h"),
            ("content-type", "application/json"),
            ("traceparent", "00-0-0-01"),
            ("x-hub-signature-256", "sha256=00"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers.append("x-many", HeaderValue::from_static("1"));
        headers.append("x-many", HeaderValue::from_bytes(b"\xff").unwrap());
        let kept: Vec<_> = pass_on(&headers, &[])
            .into_iter()
            .map(|header| (header.name, header.value))
            .collect();
        let expected: [(&str, &[u8]); 5] = [
            ("x-github-event", b"push"),
            ("i-twilio-idempotency-token", b"id"),
            ("x-hub-signature-256", b"sha256=00"),
            ("x-many", b"1"),
            ("x-many", b"\xff"),
        ];
        let kept: Vec<(&str, &[u8])> = kept
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_ref()))
            .collect();
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_token_stays_here_whatever_its_header_is_called() {
        let mut rule = presets().unwrap().remove("gitlab-token").unwrap().verify;
        rule.signature.as_mut().unwrap().header = "X-Hook-Key".to_owned();
        let mut headers = HeaderMap::new();
        headers.append("x-hook-key", HeaderValue::from_static("the secret"));
        headers.append("x-other", HeaderValue::from_static("1"));
        let names = |rules: &[Rule]| -> Vec<String> {
            let kept = pass_on(&headers, rules).into_iter();
            kept.map(|header| header.name).collect()
        };
        assert_eq!(names(std::slice::from_ref(&rule)), ["x-other"]);
        rule.algorithm = Algorithm::HmacSha256;
        assert_eq!(names(&[rule]), ["x-hook-key", "x-other"]);
    }
}
