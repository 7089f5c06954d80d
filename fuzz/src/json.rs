//! The value at a dotted path is the one that a full parser finds.

use super::{input::Input, post, preset_rules};
use http::HeaderMap;
use ingest::{
    extract::{NAME_BYTES_MAX, delivery_id},
    rule::IdPlace,
    verify::Refusal,
};
use serde_json::Value;

pub fn run(data: &[u8]) -> &'static str {
    let mut input = Input::new(data);
    let written;
    let (path, json) = if input.yes() {
        // Short keys from a small set meet each other: repeated, nested and numbered.
        let path = (0..input.below(4)).fold(key(&mut input).to_owned(), |path, _| {
            format!("{path}.{}", key(&mut input))
        });
        let mut text = String::new();
        write(&mut input, 0, &mut text);
        written = text;
        (path, written.as_bytes())
    } else {
        (input.text(), input.rest())
    };
    let mut rule = preset_rules()["github"].clone();
    rule.delivery_id = vec![IdPlace::Json(path.clone())];
    let headers = HeaderMap::new();
    let found = delivery_id(&rule, "source", &post(&headers, json));

    let whole: Result<Value, _> = serde_json::from_slice(json);
    let Ok(whole) = whole else {
        // What is not even skipped without an error has no values. (Skipping allows what building does not: numbers out
        // of range, texts that are not UTF-8.)
        if serde_json::from_slice::<serde::de::IgnoredAny>(json).is_err() {
            assert!(matches!(found, Err(Refusal::Missing(_))), "{found:?}");
        }
        return "not JSON";
    };
    let expected = path
        .split('.')
        .try_fold(&whole, |value, key| match value {
            Value::Object(object) => object.get(key),
            Value::Array(array) => array.get(key.parse::<usize>().ok()?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        })
        .and_then(|value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) if !number.is_f64() => Some(number.to_string()),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        });
    match expected {
        None => {
            assert!(matches!(found, Err(Refusal::Missing(_))), "{found:?}");
            "nothing there"
        }
        Some(text) if well_formed(&text) => {
            assert_eq!(found, Ok(text), "at {path}");
            "found"
        }
        Some(_) => {
            assert!(matches!(found, Err(Refusal::Malformed(_))), "{found:?}");
            "no name"
        }
    }
}

/// What a delivery id may be.
pub fn well_formed(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn key(input: &mut Input<'_>) -> &'static str {
    input.pick(&["a", "b", "0", "1", "id", "é", ""])
}

/// JSON, mostly valid.
fn write(input: &mut Input<'_>, depth: usize, out: &mut String) {
    match input.below(if depth < 6 { 12 } else { 6 }) {
        0 => out.push_str(input.pick(&["null", "true", "false", "-0", "1e999", "0.5", "1E2"])),
        1 => out.push_str(&format!("{}", i64::from(input.byte()) - 100)),
        2 => out.push_str(input.pick(&[
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775808",
            "01",
            "-",
        ])),
        3 => out.push_str(input.pick(&[
            r#""\u00e9""#,
            r#""\ud83d\ude00""#,
            r#""\ud800""#,
            r#""\u0000""#,
            r#""\n""#,
            "\"\"",
        ])),
        4 | 5 => out.push_str(&Value::String(input.text()).to_string()),
        6..9 => {
            out.push('[');
            for at in 0..input.below(4) {
                out.push_str(if at > 0 { "," } else { "" });
                write(input, depth + 1, out);
            }
            out.push(']');
        }
        _ => {
            out.push_str("{ ");
            for at in 0..input.below(5) {
                out.push_str(if at > 0 { " ,\n" } else { "" });
                let spelled = if input.rarely() {
                    r"\u0061"
                } else {
                    key(input)
                };
                out.push_str(&format!("\"{spelled}\" :\t"));
                write(input, depth + 1, out);
            }
            out.push('}');
        }
    }
}
