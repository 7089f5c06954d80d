//! A signature header is read as its rule says: the right signature counts wherever it stands among others, and no other
//! spelling of it does.

use super::{KEY, NOW_MS, header_map, input::Input, post, preset_rules};
use http::{HeaderMap, HeaderName, HeaderValue};
use ingest::{
    Rule, Unsigned,
    explain::explain,
    rule::{Algorithm, CANDIDATES_MAX, Encoding, HEADER_BYTES_MAX, SecretEncoding, SignatureRule},
    sign,
    verify::{Refusal, verify},
};
use runtime::Secret;

const BODY: &[u8] = br#"{"id":"evt_1"}"#;

pub fn run(data: &[u8]) -> &'static str {
    let mut input = Input::new(data);
    let rules: Vec<&Rule> = preset_rules()
        .values()
        .filter(|rule| is_plain(rule))
        .collect();
    let rule = input.pick(&rules);
    let Some(signature) = &rule.signature else {
        return "no header";
    };
    let secret = secret(rule);
    let mut headers = signed(rule, secret);
    let right = last_item(&headers, signature);
    match input.below(4) {
        0 => {
            let Ok(value) = HeaderValue::from_bytes(input.rest()) else {
                return "no header";
            };
            insert(&mut headers, signature, value);
            assert_agreement(rule, secret, &headers);
            let found = verify(rule, &[Secret::from_bytes(secret)], &post(&headers, BODY));
            assert!(found.is_err(), "an input has guessed a signature");
            "stranger"
        }
        1 => alone(&mut input, rule, signature, &right, headers),
        _ => among_others(&mut input, rule, signature, &right, headers),
    }
}

/// A single item that is bent somewhere.
fn alone(
    input: &mut Input<'_>,
    rule: &Rule,
    signature: &SignatureRule,
    right: &str,
    mut headers: HeaderMap,
) -> &'static str {
    let mut bent = right.as_bytes().to_vec();
    let at = input.below(bent.len());
    match input.below(4) {
        0 => bent[at] ^= input.byte(),
        1 => drop(bent.remove(at)),
        2 => bent.insert(at, input.byte()),
        _ => bent.extend(input.bytes()),
    }
    let Ok(value) = HeaderValue::from_bytes(&bent) else {
        return "no header";
    };
    // Everything but the digits of a hexadecimal number has one spelling.
    let digits = right.len()
        - if signature.encoding == Encoding::Hex {
            64
        } else {
            0
        };
    let same = bent == right.as_bytes()
        || bent.len() == right.len()
            && bent[..digits] == right.as_bytes()[..digits]
            && bent[digits..].eq_ignore_ascii_case(&right.as_bytes()[digits..]);
    // A separator makes several items of it: `among_others` knows what they are.
    let separator = signature.item_separator.as_deref().unwrap_or_default();
    let several = !separator.is_empty() && String::from_utf8_lossy(&bent).contains(separator);
    let mut items = others(&headers, signature);
    items.push(bent.clone());
    let whole = items.join(separator.as_bytes());
    insert(
        &mut headers,
        signature,
        HeaderValue::from_bytes(&whole).unwrap_or(value),
    );
    let secret = secret(rule);
    assert_agreement(rule, secret, &headers);
    let found = verify(rule, &[Secret::from_bytes(secret)], &post(&headers, BODY));
    if several {
        return "several";
    }
    assert_eq!(found.is_ok(), same, "{} for {right}", bent.escape_ascii());
    if same { "same" } else { "bent" }
}

/// The right signature among items of which is known what they are.
fn among_others(
    input: &mut Input<'_>,
    rule: &Rule,
    signature: &SignatureRule,
    right: &str,
    mut headers: HeaderMap,
) -> &'static str {
    let Some(separator) = &signature.item_separator else {
        return "no items";
    };
    let field = signature.field.as_deref().unwrap_or_default();
    let between = signature.field_separator.as_deref().unwrap_or_default();
    let time = rule
        .timestamp
        .as_ref()
        .and_then(|place| place.field.as_deref());
    let mut items: Vec<String> = others(&headers, signature)
        .into_iter()
        .map(|item| String::from_utf8_lossy(&item).into_owned())
        .collect();
    let (mut candidates, mut times) = (1, 1);
    let others = input.below(24);
    for _ in 0..others {
        let kind = input.below(5);
        let text: String = input
            .text()
            .chars()
            .filter(|is| is.is_ascii_graphic() && !separator.contains(*is))
            .collect();
        let item = match kind {
            0 if !between.is_empty() => text.replace(between, ""),
            1 => format!("x{field}{between}{text}"),
            2 if time.is_some() && input.rarely() => {
                times += 1;
                format!("{}{between}{text}", time.unwrap_or_default())
            }
            _ => {
                candidates += 1;
                format!("{field}{between}{}{text}", signature.prefix)
            }
        };
        items.insert(input.below(items.len() + 1), item);
    }
    items.insert(input.below(items.len() + 1), right.to_owned());
    let whole = items.join(separator);
    let readable = whole.len() <= HEADER_BYTES_MAX && candidates <= CANDIDATES_MAX;
    let Ok(value) = HeaderValue::from_str(&whole) else {
        return "no header";
    };
    insert(&mut headers, signature, value);
    let secret = secret(rule);
    assert_agreement(rule, secret, &headers);
    let found = verify(rule, &[Secret::from_bytes(secret)], &post(&headers, BODY));
    match found {
        Ok(_) => assert!(readable && times == 1, "{whole}"),
        Err(Refusal::Malformed(_)) => assert!(!readable, "{whole}"),
        Err(Refusal::Repeated(_)) => assert!(times > 1, "{whole}"),
        Err(other) => panic!("{other} of {whole}"),
    }
    if readable && times == 1 {
        "among others"
    } else {
        "too many"
    }
}

/// What is explained is what was decided, whatever the header.
fn assert_agreement(rule: &Rule, secret: &str, headers: &HeaderMap) {
    let request = post(headers, BODY);
    let secrets = [Secret::from_bytes(secret)];
    let explanation = explain(rule, "source", &secrets, &request);
    assert_eq!(explanation.result, verify(rule, &secrets, &request));
    for step in &explanation.steps {
        assert!(
            !step.text.contains(secret),
            "{} tells the secret",
            step.what
        );
    }
}

/// Signed by a SHA-256 HMAC over the body, and times and ids in headers: what [`signed`] can make.
fn is_plain(rule: &Rule) -> bool {
    rule.signature.is_some()
        && rule.algorithm == Algorithm::HmacSha256
        && !rule.signs_url()
        && rule
            .timestamp
            .as_ref()
            .is_none_or(|place| place.json.is_none())
}

/// Readable as base64, as hexadecimal and as it is.
fn secret(rule: &Rule) -> &'static str {
    match rule.secret.encoding {
        SecretEncoding::Utf8 | SecretEncoding::Base64 => {
            std::str::from_utf8(KEY).unwrap_or_default()
        }
        SecretEncoding::Hex => "5f0c6b1e9a27d4833b58f1c07e62a9d4c1b7305e8f96a24d0be7318c5a9f42d6",
    }
}

fn signed(rule: &Rule, secret: &str) -> HeaderMap {
    let unsigned = Unsigned {
        delivery_id: "msg_1",
        event_type: "push",
        public_url: None,
        body: BODY,
        now_ms: NOW_MS,
    };
    let headers = sign(rule, &[secret.as_bytes()], &unsigned).expect("presets can be signed");
    header_map(&headers).expect("and sent")
}

fn items(headers: &HeaderMap, signature: &SignatureRule) -> Vec<String> {
    let value = headers[signature.header.as_str()]
        .to_str()
        .unwrap_or_default();
    match &signature.item_separator {
        Some(separator) => value.split(separator.as_str()).map(str::to_owned).collect(),
        None => vec![value.to_owned()],
    }
}

/// The signature: `sign` puts it last.
fn last_item(headers: &HeaderMap, signature: &SignatureRule) -> String {
    items(headers, signature).pop().unwrap_or_default()
}

fn others(headers: &HeaderMap, signature: &SignatureRule) -> Vec<Vec<u8>> {
    let mut items = items(headers, signature);
    items.pop();
    items.into_iter().map(String::into_bytes).collect()
}

fn insert(headers: &mut HeaderMap, signature: &SignatureRule, value: HeaderValue) {
    if let Ok(name) = HeaderName::from_bytes(signature.header.as_bytes()) {
        headers.insert(name, value);
    }
}
