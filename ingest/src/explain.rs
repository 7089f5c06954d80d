//! Why a captured request passes or fails, step by step, for people. Takes the same steps as [`crate::verify`]; tells no secret
//! and nothing that could be used as one.

use crate::{
    extract::{delivery_id, event_type},
    request::Request,
    rule::{Algorithm, Rule, SignatureRule, TimestampRule},
    verify::{Reading, Refusal, Tried, Verified, in_time, signed_at_ms, tried, verify},
};
use runtime::Secret;
use std::borrow::Cow;

/// Of the signed bytes this many are shown from each end.
const SHOWN_BYTES: usize = 160;

/// How one step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// As it should be.
    Good,
    /// This is why the request is refused.
    Bad,
    /// Neither; worth knowing.
    Note,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// How it ended.
    pub mark: Mark,
    /// What was looked at, e.g. `signature`.
    pub what: &'static str,
    /// What was found.
    pub text: String,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// In the order in which they are taken.
    pub steps: Vec<Step>,
    /// As [`verify`] says it.
    pub result: Result<Verified, Refusal>,
}

/// Explains what [`verify`] says of the request, and what delivery id and event type it has. `rule` is the variant that the
/// request's headers choose.
pub fn explain(
    rule: &Rule,
    source: &str,
    secrets: &[Secret],
    request: &Request<'_>,
) -> Explanation {
    let result = verify(rule, secrets, request);
    let mut steps = Vec::new();
    match &rule.signature {
        Some(signature) => explain_signature(rule, signature, secrets, request, &mut steps),
        None => steps.push(step(
            if result.is_ok() {
                Mark::Good
            } else {
                Mark::Bad
            },
            "verifier",
            match &result {
                Ok(verified) => format!("the secret in slot {} fits", verified.slot),
                Err(refusal) => refusal.to_string(),
            },
        )),
    }
    for (what, found) in [
        ("delivery id", delivery_id(rule, source, request)),
        ("event type", event_type(rule, request)),
    ] {
        steps.push(match found {
            Ok(text) if text.is_empty() => step(Mark::Note, what, "none".to_owned()),
            Ok(text) => step(Mark::Good, what, text),
            Err(refusal) => step(Mark::Bad, what, refusal.to_string()),
        });
    }
    Explanation { steps, result }
}

fn explain_signature(
    rule: &Rule,
    signature: &SignatureRule,
    secrets: &[Secret],
    request: &Request<'_>,
    steps: &mut Vec<Step>,
) {
    let reading = match Reading::of(rule, signature, request) {
        Ok(reading) => reading,
        Err(refusal) => {
            let text = if refusal == Refusal::Unsigned {
                format!("there is no header {}", signature.header)
            } else {
                refusal.to_string()
            };
            steps.push(step(Mark::Bad, "headers", text));
            return;
        }
    };
    let (found, bad) = (
        reading.signatures.candidates.len(),
        reading.signatures.undecodable,
    );
    let mut text = format!("{found} in {}", signature.header);
    if bad > 0 {
        text.push_str(&format!(
            "; {bad} more not written as {}",
            encoding(signature)
        ));
    }
    if found == 0
        && let Some(field) = &signature.field
    {
        text.push_str(&format!("; looked for items named {field}"));
    } else if found == 0 && !signature.prefix.is_empty() {
        text.push_str(&format!("; looked for the prefix {}", signature.prefix));
    }
    let mark = if found > 0 { Mark::Good } else { Mark::Bad };
    steps.push(step(mark, "signatures", text));
    if rule.algorithm != Algorithm::Token {
        steps.push(step(
            Mark::Note,
            "signed bytes",
            shown(&reading.parts.concat()),
        ));
    }
    let outcomes = tried(rule, secrets, &reading, request.received_at_ms);
    let fits = outcomes.contains(&Tried::Fits);
    for (slot, outcome) in outcomes.iter().enumerate() {
        let (mark, text) = match outcome {
            Tried::Fits => (Mark::Good, "fits".to_owned()),
            Tried::Differs if fits => (Mark::Note, "does not fit".to_owned()),
            Tried::Differs => (Mark::Bad, "does not fit".to_owned()),
            Tried::Ended => (Mark::Bad, "fits, but its not_after has passed".to_owned()),
            Tried::NotAKey(error) => (Mark::Bad, error.to_string()),
        };
        steps.push(step(mark, "secret", format!("slot {slot} {text}")));
    }
    if secrets.is_empty() {
        steps.push(step(Mark::Bad, "secret", "there is none".to_owned()));
    }
    if !fits && let Some(hint) = hint(rule, signature, secrets, request) {
        steps.push(step(Mark::Note, "hint", hint.to_owned()));
    }
    if let Some(place) = &rule.timestamp {
        steps.push(explain_time(rule, place, reading.timestamp, request));
    }
}

fn explain_time(
    rule: &Rule,
    place: &TimestampRule,
    timestamp: Option<&str>,
    request: &Request<'_>,
) -> Step {
    let at_ms = match signed_at_ms(rule, place, timestamp, request) {
        Ok(at_ms) => at_ms,
        Err(refusal) => return step(Mark::Bad, "timestamp", refusal.to_string()),
    };
    let at = jiff::Timestamp::from_millisecond(at_ms)
        .map_or_else(|_| "out of range".to_owned(), |at| at.to_string());
    let age_s = request.received_at_ms.saturating_sub(at_ms) / 1_000;
    let text = format!(
        "{at}, {} s {} the receipt",
        age_s.unsigned_abs(),
        if age_s < 0 { "after" } else { "before" }
    );
    match in_time(at_ms, request.received_at_ms, rule.tolerance) {
        Ok(()) => step(Mark::Good, "timestamp", text),
        Err(refusal) => step(Mark::Bad, "timestamp", format!("{text}: {refusal}")),
    }
}

/// What often went wrong on the way to the file: the request would pass with another end of its body.
fn hint(
    rule: &Rule,
    signature: &SignatureRule,
    secrets: &[Secret],
    request: &Request<'_>,
) -> Option<&'static str> {
    let fits = |body: &[u8]| {
        let request = Request { body, ..*request };
        let reading = Reading::of(rule, signature, &request);
        reading.is_ok_and(|reading| {
            tried(rule, secrets, &reading, request.received_at_ms).contains(&Tried::Fits)
        })
    };
    let body = request.body;
    let shorter = body
        .strip_suffix(b"\n")
        .map(|rest| rest.strip_suffix(b"\r").unwrap_or(rest));
    if shorter.is_some_and(fits) {
        return Some(
            "it fits without the line end at the end of the body: was it added by an editor?",
        );
    }
    if fits(&[body, b"\n"].concat()) || fits(&[body, b"\r\n"].concat()) {
        return Some("it fits with a line end at the end of the body: was it lost in the capture?");
    }
    None
}

fn encoding(signature: &SignatureRule) -> &'static str {
    match signature.encoding {
        crate::rule::Encoding::Hex => "hexadecimal",
        crate::rule::Encoding::Base64 => "base64",
        crate::rule::Encoding::Plain => "plain text",
    }
}

/// Length and both ends, with what is not printable escaped.
fn shown(bytes: &[u8]) -> String {
    let text: Cow<'_, str> = match (bytes.get(..SHOWN_BYTES), bytes.len()) {
        (Some(start), length) if length > 2 * SHOWN_BYTES => {
            let end = bytes.get(length - SHOWN_BYTES..).unwrap_or_default();
            format!("{} … {}", start.escape_ascii(), end.escape_ascii()).into()
        }
        _ => bytes.escape_ascii().to_string().into(),
    };
    format!("{} bytes: {text}", bytes.len())
}

fn step(mark: Mark, what: &'static str, text: String) -> Step {
    Step { mark, what, text }
}
