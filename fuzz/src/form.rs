//! Fields of a form are those that the URL standard says; JSON in a field is read like JSON in the body; what Twilio signs of a
//! form is what its documentation says.

use super::{KEY, NOW_MS, header_map, input::Input, json::well_formed, post, preset_rules};
use http::{HeaderMap, HeaderValue, Method, header};
use ingest::{
    Request, Unsigned,
    extract::{delivery_id, event_type},
    handshake,
    rule::{IdPlace, TypePlace},
    sign::make,
    verify::{Refusal, verify},
};
use runtime::Secret;
use std::collections::{BTreeMap, BTreeSet};

const FORM: &str = "application/x-www-form-urlencoded";

pub fn run(data: &[u8]) -> &'static str {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => field(&mut input),
        1 => json_in_a_field(&mut input),
        2 => subscription(&mut input),
        _ => twilio(&mut input),
    }
}

/// A delivery id in a field.
fn field(input: &mut Input<'_>) -> &'static str {
    let kind = input.pick(&[
        FORM,
        "Application/X-WWW-Form-Urlencoded; charset=utf-8",
        "application/json",
        "application/x-www-form-urlencoded2",
    ]);
    let is_form = kind.to_ascii_lowercase().split(';').next() == Some(FORM);
    let name = if input.yes() {
        "id".to_owned()
    } else {
        input.text()
    };
    let mut rule = preset_rules()["slack"].clone();
    rule.delivery_id = vec![IdPlace::Form(name.clone())];
    let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
    let body = input.rest();
    let found = delivery_id(&rule, "source", &post(&headers, body));

    let values: Vec<String> = pairs(body)
        .into_iter()
        .map(|(name, value)| (lossy(&name), lossy(&value)))
        .filter(|(given, _)| *given == name)
        .map(|(_, value)| value)
        .collect();
    match values.as_slice() {
        _ if !is_form => assert!(matches!(found, Err(Refusal::Missing(_))), "{found:?}"),
        [] => assert!(matches!(found, Err(Refusal::Missing(_))), "{found:?}"),
        [value] if !well_formed(value) || value.contains('\u{fffd}') => {
            assert!(matches!(found, Err(Refusal::Malformed(_))), "{found:?}");
        }
        [value] => {
            assert_eq!(found.as_ref(), Ok(value));
            return "field";
        }
        [..] => assert!(matches!(found, Err(Refusal::Repeated(_))), "{found:?}"),
    }
    "no field"
}

/// JSON as the whole body, and the same JSON in the field of a form.
fn json_in_a_field(input: &mut Input<'_>) -> &'static str {
    let mut rule = preset_rules()["github"].clone();
    rule.form_json = Some("payload".to_owned());
    rule.delivery_id = vec![IdPlace::Json(input.pick(&["id", "a.id", "0"]).to_owned())];
    rule.event_type = vec![TypePlace {
        header: None,
        form: None,
        json: Some("a".to_owned()),
        sub_json: Some("b".to_owned()),
    }];
    let before = input.bytes();
    let Ok(json) = std::str::from_utf8(input.rest()) else {
        return "no text";
    };
    // A form with this character is refused: it may stand for bytes that are not UTF-8.
    let repeated = pairs(before)
        .iter()
        .any(|(name, _)| lossy(name) == "payload");
    if json.contains('\u{fffd}') || repeated {
        return "no text";
    }
    let mut form = [before, b"&payload="].concat();
    for byte in json.bytes() {
        match byte {
            b' ' => form.push(b'+'),
            byte if byte.is_ascii_alphanumeric() => form.push(byte),
            byte => form.extend(format!("%{byte:02x}").bytes()),
        }
    }
    let [none, kind] = [
        HeaderMap::new(),
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(FORM))]),
    ];
    let [plain, formed] = [post(&none, json.as_bytes()), post(&kind, &form)];
    let found = delivery_id(&rule, "source", &formed);
    assert_eq!(found, delivery_id(&rule, "source", &plain));
    assert_eq!(event_type(&rule, &formed), event_type(&rule, &plain));
    if found.is_ok() {
        "JSON in a field"
    } else {
        "no JSON"
    }
}

/// Meta's subscription: a query that brings the token is answered with its challenge, and no other.
fn subscription(input: &mut Input<'_>) -> &'static str {
    let rule = &preset_rules()["meta"];
    let query = String::from_utf8_lossy(input.bytes()).into_owned();
    let headers = HeaderMap::new();
    let answered = |query: &str| {
        let request = Request {
            method: &Method::GET,
            headers: &headers,
            query: Some(query),
            public_url: None,
            body: b"",
            received_at_ms: NOW_MS,
        };
        handshake::unsigned(rule, Some(&Secret::from_bytes(KEY)), &request)
    };
    assert_eq!(
        answered(&query),
        None,
        "answered without the token: {query}"
    );
    let token = String::from_utf8_lossy(KEY);
    let query = format!("hub.mode=subscribe&hub.verify_token={token}&{query}");
    let given = pairs(query.as_bytes());
    let once = |name: &str| {
        let mut found = given.iter().filter(|(given, _)| lossy(given) == name);
        let first = found.next().map(|(_, value)| lossy(value));
        first.filter(|_| found.next().is_none())
    };
    let expected = once("hub.mode")
        .and(once("hub.verify_token"))
        .and_then(|_| once("hub.challenge"))
        .filter(|text| text.len() <= 1_024 && !text.chars().any(char::is_control));
    let body = answered(&query).map(|answered| answered.body);
    assert_eq!(body, expected, "{query}");
    if body.is_some() {
        "subscribed"
    } else {
        "not subscribed"
    }
}

/// Another form has the signature of the first exactly when its parameters, sorted, are the same text.
fn twilio(input: &mut Input<'_>) -> &'static str {
    let rule = &preset_rules()["twilio"];
    let form = input.bytes().to_vec();
    let unsigned = Unsigned {
        delivery_id: "1",
        event_type: "",
        public_url: Some("https://a.example/b"),
        body: &form,
        now_ms: NOW_MS,
    };
    let Ok(made) = make(rule, &[KEY], &unsigned) else {
        return "not to be signed";
    };
    let Some(headers) = header_map(&made.headers) else {
        return "not to be sent";
    };
    let check = |body: &[u8]| {
        let request = Request {
            query: made.query.as_deref(),
            public_url: unsigned.public_url,
            ..post(&headers, body)
        };
        verify(rule, &[Secret::from_bytes(KEY)], &request)
    };
    let found = check(&form);
    let refused = matches!(found, Err(Refusal::Malformed(_)));
    assert!(found.is_ok() || refused, "{found:?}");
    let mut other = form.clone();
    for _ in 0..=input.below(3) {
        let at = input.below(other.len().clamp(1, 256));
        match input.below(3) {
            0 if !other.is_empty() => other[at] ^= input.byte(),
            1 if !other.is_empty() => drop(other.remove(at)),
            _ => other.insert(at.min(other.len()), input.byte()),
        }
    }
    let same = match made.query {
        // The body is no form: its hash is signed.
        Some(_) => other == form,
        None => sorted(&other) == sorted(&form),
    };
    let found = check(&other);
    assert!(found.is_err() || same, "another form is accepted");
    assert!(
        found.is_ok() || refused || !same,
        "{found:?} of the same form"
    );
    match (same, other == form) {
        (true, false) => "the same form",
        (true, true) => "unchanged",
        (false, _) => "another form",
    }
}

/// <https://www.twilio.com/docs/usage/security#validating-requests>: names and values, sorted, without anything between.
fn sorted(form: &[u8]) -> Vec<u8> {
    let mut sorted: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (name, value) in pairs(form) {
        sorted.entry(name).or_default().insert(value);
    }
    let values = |(name, values): (Vec<u8>, BTreeSet<Vec<u8>>)| -> Vec<u8> {
        values
            .into_iter()
            .flat_map(|value| [name.clone(), value].concat())
            .collect()
    };
    sorted.into_iter().flat_map(values).collect()
}

/// <https://url.spec.whatwg.org/#urlencoded-parsing>, step by step.
fn pairs(form: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let decoded = |text: &[u8]| {
        let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (mut out, mut at) = (Vec::new(), 0);
        while at < text.len() {
            let (byte, length) = match (text[at], digit(at + 1), digit(at + 2)) {
                (b'%', Some(high), Some(low)) => ((high * 16 + low) as u8, 3),
                (b'+', ..) => (b' ', 1),
                (byte, ..) => (byte, 1),
            };
            out.push(byte);
            at += length;
        }
        out
    };
    form.split(|byte| *byte == b'&')
        .filter(|piece| !piece.is_empty())
        .map(|piece| match piece.iter().position(|byte| *byte == b'=') {
            Some(at) => (decoded(&piece[..at]), decoded(&piece[at + 1..])),
            None => (decoded(piece), Vec::new()),
        })
        .collect()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
