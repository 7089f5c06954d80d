//! A rule that `check` passes can be followed whatever the request: nothing panics, nothing unsigned is verified, what is
//! signed is, and not with a changed body.

use super::{
    KEY, NOW_MS, OTHER_KEY,
    input::Input,
    json::well_formed,
    keys::keys,
    rule_from::{header, name, path, rule_from},
    sender::sender,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ingest::{
    Request, Rule,
    explain::explain,
    extract::{delivery_id, event_type},
    handshake,
    rule::Reply,
    verify::{Verified, verify},
};
use runtime::Secret;

pub fn run(data: &[u8]) -> &'static str {
    let mut input = Input::new(data);
    let Some(rule) = rule_from(&mut input) else {
        return "no rule";
    };
    if !rule.check("verify").is_empty() {
        return "refused by check";
    }
    let mut deepest = "stranger";
    for rule in rule.variants() {
        stranger(&mut input, &rule);
        deepest = sender(&mut input, &rule);
    }
    deepest
}

/// A request of somebody who has no key.
fn stranger(input: &mut Input<'_>, rule: &Rule) {
    let mut headers = HeaderMap::new();
    if let Some(signature) = &rule.signature
        && !input.rarely()
    {
        append(&mut headers, &signature.header, input.bytes());
    }
    for _ in 0..input.below(6) {
        let value = match input.below(4) {
            0 => b"1700000000".as_slice(),
            1 => b"1700000000000",
            2 => b"application/x-www-form-urlencoded",
            _ => input.bytes(),
        };
        let name = if input.yes() {
            header(input)
        } else {
            "content-type".to_owned()
        };
        append(&mut headers, &name, value);
    }
    let query = query(input);
    let method = input.pick(&[&Method::POST, &Method::GET]);
    let body = body(input);
    let request = Request {
        method,
        headers: &headers,
        query: query.as_deref(),
        public_url: [
            None,
            Some("https://a.example/b"),
            Some("https://a.example/b?c=%3A%2"),
        ][input.below(3)],
        body: &body,
        received_at_ms: [NOW_MS, 0, i64::MAX, i64::MIN][input.below(4)],
    };
    let keys = keys(rule, KEY);
    let secrets = [
        Secret::from_bytes(keys.public),
        Secret::from_bytes(input.bytes()),
    ];
    let explanation = explain(rule, "source", &secrets[..1], &request);
    assert!(
        explanation.result.is_err(),
        "an input has guessed a signature"
    );
    // Two secrets, and one that may be anything: only the second may fit.
    let found = verify(rule, &secrets, &request);
    assert_ne!(found, Ok(Verified { slot: 0 }));

    if let Ok(id) = delivery_id(rule, "source", &request) {
        assert!(well_formed(&id), "{id:?}");
    }
    if let Ok(kind) = event_type(rule, &request) {
        assert!(kind.is_empty() || well_formed(&kind), "{kind:?}");
    }
    assert_answers(rule, &request);
}

/// A handshake tells a stranger nothing, and nobody much.
fn assert_answers(rule: &Rule, request: &Request<'_>) {
    let token = Secret::from_bytes(OTHER_KEY);
    if let Some(answered) = handshake::unsigned(rule, Some(&token), request) {
        let told = rule
            .handshake
            .iter()
            .any(|handshake| match &handshake.reply {
                Reply::Empty => answered.body.is_empty(),
                Reply::Constant(text) => answered.body == *text,
                Reply::EchoJson(_) | Reply::EchoQuery(_) | Reply::Object(_) => false,
            });
        assert!(told, "a stranger is answered {}", answered.body);
    }
    if let Ok(Some(answered)) = handshake::signed(rule, Some(&token), request) {
        // Two values of at most 1,024 bytes, each byte at most six as JSON, and their names.
        assert!(
            answered.body.len() <= 13_000,
            "{} bytes",
            answered.body.len()
        );
    }
}

fn query(input: &mut Input<'_>) -> Option<String> {
    match input.below(3) {
        0 => None,
        1 => Some(input.text()),
        _ => Some(format!(
            "{}=1&{}={}",
            name(input),
            name(input),
            input.text()
        )),
    }
}

/// A JSON object or a form with something at a path that rules name, or anything.
pub fn body(input: &mut Input<'_>) -> Vec<u8> {
    match input.below(4) {
        0 => input.bytes().to_vec(),
        1 => {
            let (key, value) = (
                path(input),
                input.pick(&["1", "\"url_verification\"", "1700000000"]),
            );
            match key.split_once('.') {
                Some((first, second)) => {
                    format!("{{\"{first}\":{{\"{second}\":{value}}},\"id\":7}}")
                }
                None => format!("{{\"{key}\":{value},\"type\":[]}}"),
            }
            .into_bytes()
        }
        2 => format!("{}=1&{}=%7B%22id%22%3A1%7D", name(input), name(input)).into_bytes(),
        _ => Vec::new(),
    }
}

pub fn append(headers: &mut HeaderMap, name: &str, value: &[u8]) {
    if let (Ok(name), Ok(value)) = (
        HeaderName::from_bytes(name.as_bytes()),
        HeaderValue::from_bytes(value),
    ) {
        headers.append(name, value);
    }
}
