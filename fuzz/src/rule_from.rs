//! Rules out of bytes: a preset, or one that is made up the way a config file would say it. Most of the latter pass `check`.

use super::{input::Input, preset_rules};
use ingest::Rule;
use serde_json::{Map, Value, json};

const HEADERS: [&str; 6] = [
    "x-signature",
    "x-time",
    "x-id",
    "x-type",
    "webhook-id",
    "X-Id",
];
const PATHS: [&str; 6] = ["id", "type", "event.id", "event.time", "0.id", "challenge"];
const NAMES: [&str; 6] = ["v1", "t", "id", "payload", "mode", "token"];

/// None when the text is no rule, which is then no matter of `check`.
pub fn rule_from(input: &mut Input<'_>) -> Option<Rule> {
    if input.below(4) == 0 {
        let rules: Vec<&Rule> = preset_rules().values().collect();
        return Some(input.pick(&rules).clone());
    }
    serde_json::from_value(text(input)).ok()
}

fn text(input: &mut Input<'_>) -> Value {
    let mut rule = Map::new();
    let mut put = |key: &str, value: Value| drop(rule.insert(key.to_owned(), value));
    let algorithm = input.pick(&[
        "hmac-sha256",
        "hmac-sha1",
        "hmac-sha512",
        "token",
        "ed25519",
        "ecdsa-p256-sha256",
    ]);
    let token = algorithm == "token";
    put("algorithm", json!(algorithm));
    let time = if token { None } else { time(input) };
    let items = input.yes() || matches!(time, Some(Time::Field));
    put("signature", signature(input, token, items));
    if !token || input.rarely() {
        put("signed", signed(input, time));
    }
    match time {
        Some(Time::Header) => put(
            "timestamp",
            json!({ "header": "x-time", "unit": unit(input) }),
        ),
        Some(Time::Field) => put("timestamp", json!({ "field": "t", "unit": unit(input) })),
        Some(Time::Json) => put(
            "timestamp",
            json!({ "json": path(input), "unit": unit(input) }),
        ),
        None => {}
    }
    if input.rarely() {
        put(
            "verifier",
            json!(input.pick(&["twilio", "mailgun", "adyen-standard", "paypal"])),
        );
    }
    put(
        "secret",
        json!({
            "encoding": input.pick(&["utf8", "base64", "hex"]),
            "strip_prefix": input.pick(&["", "whsec_", "w"]),
        }),
    );
    put(
        "delivery_id",
        (0..=input.below(3)).map(|_| id(input)).collect(),
    );
    put(
        "event_type",
        (0..input.below(3)).map(|_| kind(input)).collect(),
    );
    if input.yes() {
        put("form_json", json!(name(input)));
    }
    if input.yes() {
        let past = input.pick(&["0s", "1s", "1m", "5m", "1000000000000000years"]);
        put(
            "tolerance",
            json!({ "past": past, "future": input.pick(&["0s", "1s", "5m"]) }),
        );
    }
    if input.below(4) == 0 {
        put("alias", alias(input));
    }
    put(
        "handshake",
        (0..input.below(3)).map(|_| handshake(input)).collect(),
    );
    Value::Object(rule)
}

#[derive(Clone, Copy)]
enum Time {
    Header,
    Field,
    Json,
}

fn time(input: &mut Input<'_>) -> Option<Time> {
    [
        None,
        Some(Time::Header),
        Some(Time::Field),
        Some(Time::Json),
    ][input.below(4)]
}

fn signature(input: &mut Input<'_>, token: bool, items: bool) -> Value {
    let mut signature = Map::new();
    let mut put = |key: &str, value: String| drop(signature.insert(key.to_owned(), value.into()));
    put("header", header(input));
    let encoding = if token != input.rarely() {
        "plain"
    } else {
        input.pick(&["hex", "base64"])
    };
    put("encoding", encoding.to_owned());
    put("prefix", separator(input, &["", "sha256=", "v0="]));
    if items {
        put("item_separator", separator(input, &[",", " ", ";"]));
    }
    if items || input.rarely() {
        put("field", name(input));
        put("field_separator", separator(input, &["=", ",", ":"]));
    }
    Value::Object(signature)
}

fn signed(input: &mut Input<'_>, time: Option<Time>) -> Value {
    let mut parts = Vec::new();
    let others = |input: &mut Input<'_>, parts: &mut Vec<Value>| {
        for _ in 0..input.below(4) {
            parts.push(match input.below(8) {
                0..3 => json!({ "literal": separator(input, &[".", ":", "v0:"]) }),
                3 | 4 => json!({ "header": header(input) }),
                5 => json!(input.pick(&["url", "url-decoded", "method"])),
                6 => json!("method"),
                _ => json!({ "field": name(input) }),
            });
        }
    };
    others(input, &mut parts);
    let signs_time = matches!(time, Some(Time::Header | Time::Field)) != input.rarely();
    if signs_time {
        parts.push(json!("timestamp"));
    }
    others(input, &mut parts);
    if !input.rarely() {
        parts.push(json!("body"));
    }
    others(input, &mut parts);
    Value::Array(parts)
}

fn id(input: &mut Input<'_>) -> Value {
    match input.below(8) {
        0..3 => json!({ "header": header(input) }),
        3 | 4 => json!({ "json": path(input) }),
        5 => json!({ "json-joined": [path(input), path(input)] }),
        6 => json!({ "form": name(input) }),
        _ => json!({ "hash": true }),
    }
}

fn kind(input: &mut Input<'_>) -> Value {
    match input.below(4) {
        0 => json!({ "header": header(input) }),
        1 => json!({ "header": header(input), "json": path(input) }),
        2 => json!({ "json": path(input), "sub_json": path(input) }),
        _ => json!({ "form": name(input) }),
    }
}

fn handshake(input: &mut Input<'_>) -> Value {
    let reply = match input.below(5) {
        0 => json!("empty"),
        1 => json!({ "constant": "{\"type\":1}" }),
        2 => json!({ "echo-json": path(input) }),
        3 => json!({ "echo-query": name(input) }),
        _ => {
            json!({ "object": { "plain": { "json": path(input) }, "made": { "hmac-of-json": path(input) } } })
        }
    };
    let equals = input.pick(&["1", "url_verification", ""]);
    match input.below(4) {
        0 => json!({ "json": path(input), "equals": equals, "reply": reply }),
        1 => {
            json!({ "form": name(input), "equals": equals, "unsigned": input.yes(), "reply": reply })
        }
        2 => json!({ "json": path(input), "equals": equals, "unsigned": true, "reply": reply }),
        _ => {
            json!({ "query": name(input), "token_query": name(input), "equals": equals, "reply": reply })
        }
    }
}

fn alias(input: &mut Input<'_>) -> Value {
    let starts = ["x-", "webhook-", "svix-", "X-", "", "x-signature", " "];
    json!({ "from": input.pick(&starts), "to": input.pick(&starts) })
}

fn unit(input: &mut Input<'_>) -> &'static str {
    input.pick(&["s", "ms", "rfc3339"])
}

pub fn header(input: &mut Input<'_>) -> String {
    any_of(input, &HEADERS)
}

pub fn path(input: &mut Input<'_>) -> String {
    any_of(input, &PATHS)
}

pub fn name(input: &mut Input<'_>) -> String {
    any_of(input, &NAMES)
}

fn separator(input: &mut Input<'_>, usual: &[&'static str]) -> String {
    any_of(input, usual)
}

/// Seldom something else.
fn any_of(input: &mut Input<'_>, usual: &[&'static str]) -> String {
    if input.rarely() {
        input.text()
    } else {
        input.pick(usual).to_owned()
    }
}
