//! The presets against published vectors, and everything that may be wrong with a signed request.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use http::{HeaderMap, HeaderName, HeaderValue};
use ingest::{
    Request, Rule, SourceConfig, Unsigned, extract,
    rule::{Algorithm, IdPlace, presets},
    sign,
    verify::{self, KeyError, Refusal, Verified, key},
};
use proptest::prelude::*;
use runtime::Secret;
use std::collections::BTreeMap;

const NOW_MS: i64 = 1_700_000_000_000;
const MALFORMED: &str = "malformed";

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    #[serde(rename = "origin")]
    _origin: String,
    /// None: `PADDLE`.
    preset: Option<String>,
    signed_at_s: Option<i64>,
    public_url: Option<String>,
    secret: String,
    body: String,
    headers: BTreeMap<String, String>,
}

/// A rule that is no preset, as a user would write it.
const PADDLE: &str = r#"
    secrets = [{ env = "X" }]
    [verify]
    signature = { header = "Paddle-Signature", item_separator = ";", field_separator = "=", field = "h1", encoding = "hex" }
    timestamp = { field = "ts" }
    signed = ["timestamp", { literal = ":" }, "body"]
    delivery_id = [{ json = "event_id" }]
"#;

#[test]
fn published_vectors_are_accepted_and_no_byte_may_change() {
    let vectors: Vec<Vector> = serde_json::from_str(include_str!("vectors.json")).unwrap();
    assert_eq!(vectors.len(), 14);
    for vector in vectors {
        let rule = match &vector.preset {
            Some(name) => preset(name),
            None => source(PADDLE).rule().unwrap(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &vector.headers {
            headers.insert(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        let now_ms = vector
            .signed_at_s
            .map_or(NOW_MS, |signed_at_s| signed_at_s * 1_000);
        let body = vector.body.as_bytes();
        let check = |secret: &str, body: &[u8]| {
            let request = Request {
                public_url: vector.public_url.as_deref(),
                ..request(&headers, body, now_ms)
            };
            verify::verify(&rule, &[secret_of(secret)], &request)
        };
        assert_eq!(
            check(&vector.secret, body),
            Ok(Verified { slot: 0 }),
            "{}",
            vector.name
        );
        for at in 0..body.len() {
            let mut changed = body.to_vec();
            changed[at] ^= 1;
            let found = check(&vector.secret, &changed);
            assert_eq!(found, Err(Refusal::Mismatch), "{} byte {at}", vector.name);
        }
        // Four characters are whole bytes of base64, too. (Not "AAAA": HMAC pads keys with zeros.)
        let other = format!("{}BBBB", vector.secret);
        assert_eq!(
            check(&other, body),
            Err(Refusal::Mismatch),
            "{}",
            vector.name
        );
    }
}

#[test]
fn what_is_signed_is_verified_whatever_the_bytes() {
    let bodies: [&[u8]; 6] = [
        b"",
        b"{}",
        b"\xff\xfe\x00 not text",
        "{\"a\":\"\u{1f600}\u{fe0f} \u{2028} \u{1b}[34m\"}".as_bytes(),
        b"{\"a\":\"\\u003c\"}\r\n",
        &[0; 100_000],
    ];
    for (name, rule) in all_presets() {
        for body in bodies {
            let headers = signed(&rule, &[SECRET], body);
            let found = verify(&rule, &[secret_of(SECRET)], &headers, body, NOW_MS);
            assert_eq!(found, Ok(Verified { slot: 0 }), "{name}");
        }
    }
}

#[test]
fn every_secret_is_tried_and_the_slot_is_told() {
    for (name, rule) in all_presets() {
        let headers = signed(&rule, &[SECRET], b"{}");
        let check = |secrets: &[Secret]| verify(&rule, secrets, &headers, b"{}", NOW_MS);
        let [right, wrong] = [secret_of(SECRET), secret_of(OTHER)];
        let second = check(&[wrong.clone(), right.clone()]);
        assert_eq!(second, Ok(Verified { slot: 1 }), "{name}");
        let both = check(&[right.clone(), right]);
        assert_eq!(both, Ok(Verified { slot: 0 }), "{name}");
        assert_eq!(check(&[wrong]), Err(Refusal::Mismatch), "{name}");
        assert_eq!(check(&[]), Err(Refusal::Mismatch), "{name}");
    }
}

#[test]
fn any_of_several_signatures_counts() {
    for name in ["standard-webhooks", "stripe"] {
        let rule = preset(name);
        let headers = signed(&rule, &[OTHER, SECRET], b"{}");
        let found = verify(&rule, &[secret_of(SECRET)], &headers, b"{}", NOW_MS);
        assert_eq!(found, Ok(Verified { slot: 0 }), "{name}");
    }
}

#[test]
fn an_empty_key_verifies_nothing() {
    for (name, rule) in all_presets() {
        assert_eq!(
            key(Algorithm::HmacSha256, &rule.secret, b"").err(),
            Some(KeyError::Empty),
            "{name}"
        );
    }
    // What anybody can make: HMAC-SHA256 of `{}` with an empty key.
    let forged = "sha256=22f8eea909400af98adf3681a9f31923ef6b7fcba4abb553d92823a3e9d5c25e";
    let headers = map(vec![("x-hub-signature-256".to_owned(), forged.to_owned())]);
    let found = verify(&preset("github"), &[secret_of("")], &headers, b"{}", NOW_MS);
    assert_eq!(found, Err(Refusal::Mismatch));
    let standard = preset("standard-webhooks");
    assert_eq!(
        key(Algorithm::HmacSha256, &standard.secret, b"whsec_").err(),
        Some(KeyError::Empty)
    );
    let found = key(
        Algorithm::HmacSha256,
        &standard.secret,
        b"whsec_not base64!",
    )
    .err();
    assert_eq!(found, Some(KeyError::Encoding("base64")));
}

#[test]
fn headers_that_are_missing_repeated_or_bent_are_refused() {
    for (name, rule) in all_presets() {
        let good = signed(&rule, &[SECRET], b"{}");
        let signature = header_of(&rule);
        let check = |headers: &HeaderMap| {
            word(&verify(&rule, &[secret_of(SECRET)], headers, b"{}", NOW_MS))
        };
        let with = |value: String| {
            let mut headers = good.clone();
            headers.insert(
                HeaderName::from_bytes(signature.as_bytes()).unwrap(),
                HeaderValue::from_str(&value).unwrap(),
            );
            check(&headers)
        };
        let text = good[signature].to_str().unwrap();

        let mut headers = good.clone();
        headers.remove(signature);
        assert_eq!(check(&headers), "unsigned", "{name}");
        headers.insert(
            HeaderName::from_bytes(signature.as_bytes()).unwrap(),
            HeaderValue::from_bytes(b"\xff").unwrap(),
        );
        assert_eq!(check(&headers), MALFORMED, "{name} not text");
        let mut headers = good.clone();
        let again = good[signature].clone();
        headers.append(HeaderName::from_bytes(signature.as_bytes()).unwrap(), again);
        assert_eq!(check(&headers), "repeated", "{name}");

        assert_eq!(
            with(text.chars().take(text.len() - 2).collect()),
            "mismatch",
            "{name} short"
        );
        // Standard Webhooks separates by spaces; Stripe's time stands where the space is.
        let (before, after, empty) = match name.as_str() {
            "standard-webhooks" => ("ok", "ok", "mismatch"),
            "stripe" => ("missing", "mismatch", "missing"),
            _ => ("mismatch", "mismatch", "mismatch"),
        };
        assert_eq!(with(format!(" {text}")), before, "{name} space before");
        assert_eq!(with(format!("{text} ")), after, "{name} space after");
        assert_eq!(with(String::new()), empty, "{name} empty");
        assert_eq!(with("x".repeat(5_000)), MALFORMED, "{name} long");
        let unnamed = text
            .replace("sha256=", "")
            .replace("v0=", "")
            .replace("v1", "v9");
        let expected = if name == "shopify" { "ok" } else { "mismatch" };
        assert_eq!(with(unnamed), expected, "{name} unnamed");

        for place in signed_headers(&rule) {
            let mut headers = good.clone();
            headers.remove(place.as_str());
            assert_eq!(check(&headers), "missing", "{name} {place}");
            let mut headers = good.clone();
            let again = good[place.as_str()].clone();
            headers.append(HeaderName::from_bytes(place.as_bytes()).unwrap(), again);
            assert_eq!(check(&headers), "repeated", "{name} {place}");
        }
    }
}

#[test]
fn hexadecimal_of_either_case_is_the_same_signature() {
    for (name, prefix) in [("github", "sha256="), ("slack", "v0=")] {
        let rule = preset(name);
        let mut headers = signed(&rule, &[SECRET], b"{}");
        let text = headers[header_of(&rule)].to_str().unwrap().to_owned();
        let digits = text.strip_prefix(prefix).unwrap().to_uppercase();
        let upper = HeaderValue::from_str(&format!("{prefix}{digits}")).unwrap();
        headers.insert(
            HeaderName::from_bytes(header_of(&rule).as_bytes()).unwrap(),
            upper,
        );
        let found = verify(&rule, &[secret_of(SECRET)], &headers, b"{}", NOW_MS);
        assert_eq!(found, Ok(Verified { slot: 0 }), "{name}");
    }
}

#[test]
fn the_time_of_signing_is_bounded_on_both_sides() {
    for name in ["standard-webhooks", "stripe", "slack"] {
        let mut rule = preset(name);
        rule.tolerance.past = std::time::Duration::from_secs(300);
        rule.tolerance.future = std::time::Duration::from_secs(60);
        let headers = signed(&rule, &[SECRET], b"{}");
        let at = |now_ms| {
            word(&verify(
                &rule,
                &[secret_of(SECRET)],
                &headers,
                b"{}",
                now_ms,
            ))
        };
        assert_eq!(at(NOW_MS + 300_000), "ok", "{name}");
        assert_eq!(at(NOW_MS + 300_001), "stale", "{name}");
        assert_eq!(at(NOW_MS - 60_000), "ok", "{name}");
        assert_eq!(at(NOW_MS - 60_001), "early", "{name}");
        assert_eq!(at(i64::MAX), "stale", "{name}");
        assert_eq!(at(i64::MIN), "early", "{name}");
        // A forger learns nothing about the clock.
        let forged = verify(&rule, &[secret_of(OTHER)], &headers, b"{}", i64::MAX);
        assert_eq!(forged, Err(Refusal::Mismatch), "{name}");
    }
}

#[test]
fn a_timestamp_has_one_spelling() {
    let rule = preset("slack");
    let good = signed(&rule, &[SECRET], b"{}");
    for bad in [
        "+1700000000",
        "01700000000",
        "1700000000.0",
        "-1",
        " 1700000000",
        "1e9",
        "",
        "99999999999999999999",
    ] {
        let mut headers = good.clone();
        headers.insert("x-slack-request-timestamp", HeaderValue::from_static(bad));
        let found = word(&verify(
            &rule,
            &[secret_of(SECRET)],
            &headers,
            b"{}",
            NOW_MS,
        ));
        assert_eq!(found, MALFORMED, "{bad:?}");
    }
    let rule = preset("stripe");
    let good = signed(&rule, &[SECRET], b"{}");
    let text = good["stripe-signature"].to_str().unwrap();
    for (bad, expected) in [
        (text.replace("t=", "t=0"), MALFORMED),
        (text.replace("t=", "t=1,t="), "repeated"),
        (text.replace("t=", "u="), "missing"),
    ] {
        let mut headers = good.clone();
        headers.insert("stripe-signature", HeaderValue::from_str(&bad).unwrap());
        let found = word(&verify(
            &rule,
            &[secret_of(SECRET)],
            &headers,
            b"{}",
            NOW_MS,
        ));
        assert_eq!(found, expected, "{bad}");
    }
}

#[test]
fn signatures_beyond_the_limit_are_refused() {
    let rule = preset("standard-webhooks");
    let mut headers = signed(&rule, &[SECRET], b"{}");
    let one = headers["webhook-signature"].to_str().unwrap().to_owned();
    for (count, expected) in [(16, "ok"), (17, MALFORMED)] {
        let many = vec![one.as_str(); count].join(" ");
        headers.insert("webhook-signature", HeaderValue::from_str(&many).unwrap());
        let found = word(&verify(
            &rule,
            &[secret_of(SECRET)],
            &headers,
            b"{}",
            NOW_MS,
        ));
        assert_eq!(found, expected, "{count}");
    }
    let other_kinds = format!("v1a,abc {one} junk");
    headers.insert(
        "webhook-signature",
        HeaderValue::from_str(&other_kinds).unwrap(),
    );
    let found = word(&verify(
        &rule,
        &[secret_of(SECRET)],
        &headers,
        b"{}",
        NOW_MS,
    ));
    assert_eq!(found, "ok");
}

/// `a` + `.` + `1700000000` and an id that holds the separator would sign the same bytes as another id and time.
#[test]
fn an_id_may_not_hold_the_separator() {
    let rule = preset("standard-webhooks");
    let unsigned = Unsigned {
        delivery_id: "a.b",
        event_type: "",
        public_url: None,
        body: b"{}",
        now_ms: NOW_MS,
    };
    let headers = map(sign(&rule, &[SECRET.as_bytes()], &unsigned).unwrap());
    let found = word(&verify(
        &rule,
        &[secret_of(SECRET)],
        &headers,
        b"{}",
        NOW_MS,
    ));
    assert_eq!(found, MALFORMED);
}

#[test]
fn both_families_of_names_are_read_but_never_mixed() {
    let rule = preset("standard-webhooks");
    let variants = rule.variants();
    let svix = &variants[1];
    assert_eq!(header_of(svix), "svix-signature");
    let headers = signed(svix, &[SECRET], b"{}");
    let found = verify(svix, &[secret_of(SECRET)], &headers, b"{}", NOW_MS);
    assert_eq!(found, Ok(Verified { slot: 0 }));
    assert_eq!(
        delivery_id(svix, "s", &headers, b"{}"),
        Ok("msg_1".to_owned())
    );
    let found = word(&verify(
        &rule,
        &[secret_of(SECRET)],
        &headers,
        b"{}",
        NOW_MS,
    ));
    assert_eq!(found, "unsigned");
}

/// Preset, headers, body, delivery id, event type.
type Found = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static str,
    &'static str,
);

const FOUND: [Found; 9] = [
    (
        "github",
        &[
            ("x-github-delivery", "d-1"),
            ("x-github-event", "pull_request"),
        ],
        r#"{"action":"opened","x":{"action":"no"}}"#,
        "d-1",
        "pull_request.opened",
    ),
    (
        "github",
        &[("x-github-delivery", "d"), ("x-github-event", "push")],
        "payload=%7B",
        "d",
        "push",
    ),
    (
        "github",
        &[("x-github-delivery", "d"), ("x-github-event", "push")],
        r#"{"action":null}"#,
        "d",
        "push",
    ),
    (
        "standard-webhooks",
        &[("webhook-id", "m")],
        r#"{"type":"user.created"}"#,
        "m",
        "user.created",
    ),
    ("standard-webhooks", &[("webhook-id", "m")], "", "m", ""),
    (
        "stripe",
        &[],
        r#"{"data":{"id":"no"},"id":"evt_1","type":"charge.failed"}"#,
        "evt_1",
        "charge.failed",
    ),
    (
        "shopify",
        &[
            ("x-shopify-webhook-id", "w"),
            ("x-shopify-topic", "orders/create"),
        ],
        "{}",
        "w",
        "orders/create",
    ),
    (
        "slack",
        &[],
        r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"app"}}"#,
        "Ev1",
        "app",
    ),
    (
        "slack",
        &[],
        r#"{"type":"other","event_id":17}"#,
        "17",
        "other",
    ),
];

#[test]
fn ids_and_types_are_found_where_the_presets_say() {
    for (name, headers, body, id, kind) in FOUND {
        let rule = preset(name);
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = map(headers.iter().map(owned).collect());
        let found = delivery_id(&rule, "s", &headers, body.as_bytes());
        assert_eq!(found.as_deref(), Ok(id), "{name} {body}");
        let found = event_type(&rule, &headers, body.as_bytes());
        assert_eq!(found.as_deref(), Ok(kind), "{name} {body}");
    }
}

#[test]
fn ids_that_are_missing_or_malformed_are_refused() {
    let json = preset("stripe");
    let none = HeaderMap::new();
    let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(257));
    for (body, expected) in [
        ("", "missing"),
        ("{", "missing"),
        (r#"{"id":"a"} trailing"#, "missing"),
        (r#"{"id":{"id":"a"}}"#, "missing"),
        (r#"{"id":null}"#, "missing"),
        (r#"{"id":1.5}"#, "missing"),
        (r#"{"id":true}"#, "missing"),
        (r#"[{"id":"a"}]"#, "missing"),
        (r#""id""#, "missing"),
        (r#"{"id":""}"#, MALFORMED),
        (r#"{"id":"a\nb"}"#, MALFORMED),
        (r#"{"id":"a\u0000"}"#, MALFORMED),
        (r#"{"id":"a\u0085"}"#, MALFORMED),
        (long.as_str(), MALFORMED),
        (r#"{"id":"first","id":"last"}"#, "last"),
        (r#"{"\u0069d":"escaped key"}"#, "escaped key"),
    ] {
        let found = match delivery_id(&json, "s", &none, body.as_bytes()) {
            Ok(id) => id,
            Err(refusal) => word(&Err(refusal)).to_owned(),
        };
        assert_eq!(found, expected, "{body}");
    }
    let deep = "[".repeat(100_000);
    assert!(delivery_id(&json, "s", &none, deep.as_bytes()).is_err());

    let github = preset("github");
    for (values, expected) in [
        (&[][..], "missing"),
        (&["a", "a"], "repeated"),
        (&["\t"], MALFORMED),
    ] {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-github-delivery", HeaderValue::from_static(value));
        }
        let found = delivery_id(&github, "s", &headers, b"").unwrap_err();
        assert_eq!(word(&Err(found)), expected, "{values:?}");
    }
}

#[test]
fn a_path_leads_through_arrays_and_the_hash_is_of_source_and_body_only() {
    let mut rule = preset("stripe");
    let none = HeaderMap::new();
    rule.delivery_id = vec![IdPlace::Json("a.1.id".to_owned()), IdPlace::Hash(true)];
    let found = delivery_id(&rule, "s", &none, br#"{"a":[{"id":"x"},{"id":"y"},{}]}"#);
    assert_eq!(found.as_deref(), Ok("y"));
    let hash = |source, body: &[u8]| delivery_id(&rule, source, &none, body).unwrap();
    assert_eq!(hash("s", b"{}"), hash("s", b"{}"));
    assert!(hash("s", b"{}").starts_with("sha256-"));
    assert_ne!(hash("s", b"{}"), hash("s", b"{ }"));
    assert_ne!(hash("s", b"t{}"), hash("st", b"{}"));
}

proptest! {
    #[test]
    fn nothing_a_stranger_sends_panics(
        name in prop::sample::select(vec!["github", "standard-webhooks", "stripe", "shopify", "slack"]),
        values in prop::collection::vec((0_usize..6, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        near in "(v1[,=]|t=|sha256=|v0=|[0-9a-fA-F,= +.]){0,12}",
        body in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            r#"[\[\]{}:,"a-z0-9\\u]{0,80}"#.prop_map(String::into_bytes),
        ],
        now_ms in any::<i64>(),
    ) {
        let rule = preset(name);
        let mut names = vec![header_of(&rule).to_owned()];
        names.extend(["webhook-id", "webhook-timestamp", "x-slack-request-timestamp", "x-github-delivery", "x-github-event"].map(str::to_owned));
        let mut headers = HeaderMap::new();
        for (at, value) in values {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(HeaderName::from_bytes(names[at].as_bytes()).unwrap(), value);
            }
        }
        headers.append(HeaderName::from_bytes(names[0].as_bytes()).unwrap(), HeaderValue::from_str(&near).unwrap());
        prop_assert!(verify(&rule, &[secret_of(SECRET)], &headers, &body, now_ms).is_err());
        if let Ok(id) = delivery_id(&rule, "s", &headers, &body) {
            prop_assert!((1..=256).contains(&id.len()) && !id.contains(char::is_control));
        }
        drop(event_type(&rule, &headers, &body));
    }

    #[test]
    fn the_id_in_json_is_the_one_that_a_full_parser_finds(
        id in "\\PC{1,20}", other in "\\PC{0,20}", number in any::<u64>(),
    ) {
        let rule = preset("stripe");
        let body = serde_json::json!({ "a": [other, { "id": number }], "id": id, "z": { "id": other } });
        let found = delivery_id(&rule, "s", &HeaderMap::new(), body.to_string().as_bytes());
        prop_assert_eq!(found, Ok(id));
    }
}

const SECRET: &str = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn preset(name: &str) -> Rule {
    presets().unwrap().remove(name).unwrap().verify
}

fn all_presets() -> Vec<(String, Rule)> {
    ["github", "shopify", "slack", "standard-webhooks", "stripe"]
        .map(|name| (name.to_owned(), preset(name)))
        .into()
}

fn header_of(rule: &Rule) -> &str {
    rule.signature.as_ref().unwrap().header.as_str()
}

fn request<'a>(headers: &'a HeaderMap, body: &'a [u8], received_at_ms: i64) -> Request<'a> {
    Request {
        method: &http::Method::POST,
        headers,
        query: None,
        public_url: None,
        body,
        received_at_ms,
    }
}

fn verify(
    rule: &Rule,
    secrets: &[Secret],
    headers: &HeaderMap,
    body: &[u8],
    now_ms: i64,
) -> Result<Verified, Refusal> {
    verify::verify(rule, secrets, &request(headers, body, now_ms))
}

fn delivery_id(
    rule: &Rule,
    source: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<String, Refusal> {
    extract::delivery_id(rule, source, &request(headers, body, NOW_MS))
}

fn event_type(rule: &Rule, headers: &HeaderMap, body: &[u8]) -> Result<String, Refusal> {
    extract::event_type(rule, &request(headers, body, NOW_MS))
}

fn source(toml: &str) -> SourceConfig {
    use figment::providers::{Format, Toml};
    figment::Figment::from(Toml::string(toml))
        .extract()
        .unwrap()
}

fn secret_of(text: &str) -> Secret {
    Secret::from_bytes(text.as_bytes())
}

fn signed(rule: &Rule, secrets: &[&str], body: &[u8]) -> HeaderMap {
    let secrets: Vec<&[u8]> = secrets.iter().map(|secret| secret.as_bytes()).collect();
    let unsigned = Unsigned {
        delivery_id: "msg_1",
        event_type: "push",
        public_url: None,
        body,
        now_ms: NOW_MS,
    };
    map(sign(rule, &secrets, &unsigned).unwrap())
}

fn map(headers: Vec<(String, String)>) -> HeaderMap {
    let pair = |(name, value): (String, String)| {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        (name, HeaderValue::from_str(&value).unwrap())
    };
    headers.into_iter().map(pair).collect()
}

/// Headers other than the signature without which the request can not be verified.
fn signed_headers(rule: &Rule) -> Vec<String> {
    let mut names: Vec<String> = rule
        .timestamp
        .iter()
        .filter_map(|place| place.header.clone())
        .collect();
    for part in &rule.signed {
        if let ingest::rule::Part::Header(name) = part {
            names.push(name.clone());
        }
    }
    names
}

fn word(found: &Result<Verified, Refusal>) -> &'static str {
    match found {
        Ok(_) => "ok",
        Err(Refusal::Unsigned) => "unsigned",
        Err(Refusal::Mismatch) => "mismatch",
        Err(Refusal::Stale) => "stale",
        Err(Refusal::Early) => "early",
        Err(Refusal::Repeated(_)) => "repeated",
        Err(Refusal::Missing(_)) => "missing",
        Err(Refusal::Malformed(_)) => MALFORMED,
    }
}
