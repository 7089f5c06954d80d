//! Why a captured request passes or fails, step by step, for people. Takes the same steps as [`crate::verify`]; tells no secret
//! and nothing that could be used as one.

mod hide;
mod hint;
mod place;
mod trial;

pub use hide::hide;
pub use trial::{Judged, Trial};

use crate::{
    certificates::Certificate,
    extract::{delivery_id, event_type},
    request::Request,
    rule::{Algorithm, Rule, SignatureRule, TimestampRule},
    verify::{Reading, Refusal, Tried, Verified, in_time, signed_at_ms, tried, verify_with},
};
use humantime_serde::re::humantime::format_duration;
use place::{id_place, time_place, type_place};
use runtime::Secret;

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
    /// As [`crate::verify::verify`] says it.
    pub result: Result<Verified, Refusal>,
    /// When the request says that it was signed, milliseconds since the Unix epoch, where that can be read.
    pub signed_at_ms: Option<i64>,
    /// The sender's id of the delivery, or why there is none.
    pub delivery_id: Result<String, Refusal>,
    /// The event type; empty when the sender has none.
    pub event_type: Result<String, Refusal>,
}

/// Explains what [`crate::verify::verify`] says of the request, and what delivery id and event type it has. `rule` is the variant that the
/// request's headers choose.
pub fn explain(
    rule: &Rule,
    source: &str,
    secrets: &[Secret],
    request: &Request<'_>,
) -> Explanation {
    explain_with(rule, source, secrets, request, None)
}

/// [`explain`], with the certificate that the rule's verifier needs.
fn explain_with(
    rule: &Rule,
    source: &str,
    secrets: &[Secret],
    request: &Request<'_>,
    certificate: Option<&Certificate>,
) -> Explanation {
    let result = verify_with(rule, secrets, request, certificate);
    let mut steps = Vec::new();
    let mut signed_at_ms = None;
    match &rule.signature {
        Some(signature) => {
            signed_at_ms = explain_signature(rule, signature, secrets, request, &mut steps);
        }
        None => steps.push(match &result {
            Ok(verified) => {
                let text = format!("the secret in slot {} fits", verified.slot);
                step(Mark::Good, "verifier", text)
            }
            Err(refusal) => step(Mark::Bad, "verifier", refusal.to_string()),
        }),
    }
    if !signed_rightly(&result) {
        let hints = hint::hints(rule, secrets, request);
        steps.extend(hints.into_iter().map(|text| step(Mark::Note, "hint", text)));
    }
    let delivery_id = delivery_id(rule, source, request);
    let event_type = event_type(rule, request);
    steps.push(named(
        "delivery id",
        &delivery_id,
        id_place(rule, source, request),
    ));
    steps.push(named("event type", &event_type, type_place(rule, request)));
    for step in &mut steps {
        step.text = hidden(rule, secrets, &step.text);
    }
    Explanation {
        steps,
        result,
        signed_at_ms,
        delivery_id,
        event_type,
    }
}

/// Whether a secret fits, at whatever time.
fn signed_rightly(result: &Result<Verified, Refusal>) -> bool {
    matches!(result, Ok(_) | Err(Refusal::Stale | Refusal::Early))
}

fn named(what: &'static str, found: &Result<String, Refusal>, place: Option<String>) -> Step {
    match found {
        Ok(text) if text.is_empty() => step(Mark::Note, what, "none".to_owned()),
        Ok(text) => {
            let place = place.map_or_else(String::new, |place| format!(" ({place})"));
            step(Mark::Good, what, format!("{text}{place}"))
        }
        Err(refusal) => step(Mark::Bad, what, refusal.to_string()),
    }
}

/// Pushes the steps of the signature; returns when the request says that it was signed.
fn explain_signature(
    rule: &Rule,
    signature: &SignatureRule,
    secrets: &[Secret],
    request: &Request<'_>,
    steps: &mut Vec<Step>,
) -> Option<i64> {
    let reading = match Reading::of(rule, signature, request) {
        Ok(reading) => reading,
        Err(refusal) => {
            let text = if refusal == Refusal::Unsigned {
                format!("there is no header {}", signature.header)
            } else {
                refusal.to_string()
            };
            steps.push(step(Mark::Bad, "headers", text));
            return None;
        }
    };
    steps.push(explain_header(signature, &reading));
    if rule.algorithm != Algorithm::Token {
        let signed = hide(rule, secrets, &reading.parts.concat());
        steps.push(step(Mark::Note, "signed bytes", shown(&signed)));
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
    let place = rule.timestamp.as_ref()?;
    let at_ms = signed_at_ms(rule, place, reading.timestamp, request);
    steps.push(explain_time(rule, place, &at_ms, request));
    at_ms.ok()
}

fn explain_header(signature: &SignatureRule, reading: &Reading<'_>) -> Step {
    let found = reading.signatures.candidates.len();
    let bad = reading.signatures.undecodable;
    let mut text = format!("{found} in {}", signature.header);
    if bad > 0 {
        text.push_str(&format!(
            "; {bad} more not written as {}",
            encoding(signature)
        ));
    } else if found == 0
        && let Some(field) = &signature.field
    {
        text.push_str(&format!("; looked for items named {field}"));
    } else if found == 0 && !signature.prefix.is_empty() {
        text.push_str(&format!("; looked for the prefix {}", signature.prefix));
    }
    let mark = if found > 0 { Mark::Good } else { Mark::Bad };
    step(mark, "signatures", text)
}

fn explain_time(
    rule: &Rule,
    place: &TimestampRule,
    at_ms: &Result<i64, Refusal>,
    request: &Request<'_>,
) -> Step {
    let at_ms = match at_ms {
        Ok(at_ms) => *at_ms,
        Err(refusal) => return step(Mark::Bad, "timestamp", refusal.to_string()),
    };
    let at = jiff::Timestamp::from_millisecond(at_ms)
        .map_or_else(|_| "out of range".to_owned(), |at| at.to_string());
    let age_s = request.received_at_ms.saturating_sub(at_ms) / 1_000;
    let (side, tolerance) = if age_s < 0 {
        ("after", rule.tolerance.future)
    } else {
        ("before", rule.tolerance.past)
    };
    let text = format!(
        "{at} ({}), {} s {side} the receipt; at most {} are taken",
        time_place(place),
        age_s.unsigned_abs(),
        format_duration(tolerance),
    );
    match in_time(at_ms, request.received_at_ms, rule.tolerance) {
        Ok(()) => step(Mark::Good, "timestamp", text),
        Err(refusal) => step(Mark::Bad, "timestamp", format!("{text}: {refusal}")),
    }
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
    let start = bytes.get(..SHOWN_BYTES).unwrap_or(bytes);
    if bytes.len() <= 2 * SHOWN_BYTES {
        return format!("{} bytes: {}", bytes.len(), printable(bytes));
    }
    let end = bytes.get(bytes.len() - SHOWN_BYTES..).unwrap_or_default();
    format!(
        "{} bytes: {} … {}",
        bytes.len(),
        printable(start),
        printable(end)
    )
}

/// ASCII as it is, everything else escaped. Quotes stay: the bytes are mostly JSON.
fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'"' | b'\'' => text.push(char::from(byte)),
            _ => text.extend(byte.escape_ascii().map(char::from)),
        }
    }
    text
}

fn hidden(rule: &Rule, secrets: &[Secret], text: &str) -> String {
    String::from_utf8_lossy(&hide(rule, secrets, text.as_bytes())).into_owned()
}

fn step(mark: Mark, what: &'static str, text: String) -> Step {
    Step { mark, what, text }
}
