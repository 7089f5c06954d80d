//! Signs a body as a sender would: the reverse of [`crate::verify`], for the demo, for tests and for trying a set-up.

use crate::{
    rule::{Encoding, IdPlace, Part, Rule},
    verify::{KeyError, key, mac},
};
use base64::{Engine, engine::general_purpose::STANDARD};

/// What a sender has in hand.
#[derive(Clone, Copy, Debug)]
pub struct Unsigned<'a> {
    /// Id of the delivery. Put where the rule says if that is a header; in the body it must be already.
    pub delivery_id: &'a str,
    /// Event type. Put where the rule says if that is a header; of a type that stands half in the body, the first half.
    pub event_type: &'a str,
    /// The exact bytes to be sent.
    pub body: &'a [u8],
    /// Time of signing, milliseconds since the Unix epoch.
    pub now_ms: i64,
}

/// A request that can not be signed by a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// No secret.
    #[error("there is no secret to sign with")]
    NoSecret,
    /// A secret is not what the rule wants.
    #[error("the secret {0}")]
    Key(#[from] KeyError),
    /// The rule signs something that only the sender knows.
    #[error("the rule signs {0}, for which there is no value")]
    Unknown(String),
}

/// Headers to send with the body, lower-case names: signature, and id, event type and timestamp where the rule has them
/// in headers. With several secrets and a header that takes several signatures, one of each.
///
/// # Errors
/// See [`SignError`].
pub fn sign(
    rule: &Rule,
    secrets: &[&[u8]],
    unsigned: &Unsigned<'_>,
) -> Result<Vec<(String, String)>, SignError> {
    let mut headers = Vec::new();
    if let Some(IdPlace::Header(name)) = rule.delivery_id.first() {
        headers.push((name.clone(), unsigned.delivery_id.to_owned()));
    }
    if let Some(place) = rule.event_type.first()
        && let Some(name) = &place.header
    {
        let halves = unsigned
            .event_type
            .split_once('.')
            .filter(|_| place.json.is_some());
        let first = halves.map_or(unsigned.event_type, |(first, _)| first);
        headers.push((name.clone(), first.to_owned()));
    }
    let mut items = Vec::new();
    let mut timestamp = None;
    if let Some(place) = &rule.timestamp {
        let text = (unsigned.now_ms / place.unit.ms()).to_string();
        if let Some(name) = &place.header {
            headers.push((name.clone(), text.clone()));
        } else if let Some(name) = &place.field {
            items.push(item(rule, name, &text));
        }
        timestamp = Some(text);
    }
    let parts = signed_parts(rule, &headers, timestamp.as_deref(), unsigned.body)?;
    let several = rule.signature.item_separator.is_some();
    for secret in secrets.iter().take(if several { secrets.len() } else { 1 }) {
        let made = mac(&key(&rule.secret, secret)?, &parts).ok_or(SignError::NoSecret)?;
        let text = match rule.signature.encoding {
            Encoding::Hex => hex::encode(made),
            Encoding::Base64 => STANDARD.encode(made),
        };
        let text = format!("{}{text}", rule.signature.prefix);
        items.push(match &rule.signature.field {
            Some(field) => item(rule, field, &text),
            None => text,
        });
    }
    if secrets.is_empty() {
        return Err(SignError::NoSecret);
    }
    let separator = rule.signature.item_separator.as_deref().unwrap_or_default();
    headers.push((rule.signature.header.clone(), items.join(separator)));
    Ok(headers)
}

fn signed_parts<'a>(
    rule: &'a Rule,
    headers: &'a [(String, String)],
    timestamp: Option<&'a str>,
    body: &'a [u8],
) -> Result<Vec<&'a [u8]>, SignError> {
    let part = |part: &'a Part| match part {
        Part::Literal(text) => Ok(text.as_bytes()),
        Part::Body => Ok(body),
        Part::Timestamp => timestamp
            .map(str::as_bytes)
            .ok_or_else(|| SignError::Unknown("a timestamp".to_owned())),
        Part::Header(name) => headers
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value.as_bytes())
            .ok_or_else(|| SignError::Unknown(format!("the header {name}"))),
        Part::Field(name) => Err(SignError::Unknown(format!("the field {name}"))),
    };
    rule.signed.iter().map(part).collect()
}

fn item(rule: &Rule, name: &str, value: &str) -> String {
    let separator = rule
        .signature
        .field_separator
        .as_deref()
        .unwrap_or_default();
    format!("{name}{separator}{value}")
}
