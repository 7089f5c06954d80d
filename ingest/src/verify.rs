//! Whether a request was signed with one of a source's secrets: a plain function over the bytes received.
//!
//! Nothing is parsed but the signature header, nothing is re-written: text is compared with text only for names, a
//! signature is decoded and compared as bytes, in constant time, with what every secret makes of the signed parts. There
//! is no early exit, so neither the number of secrets nor the one that fits can be told from the time taken.

use crate::rule::{
    CANDIDATES_MAX, Encoding, HEADER_BYTES_MAX, Part, Rule, SecretEncoding, SecretRule,
    SignatureRule, TimestampRule,
};
use base64::{
    Engine,
    alphabet::STANDARD as ALPHABET,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use runtime::Secret;
use sha2::Sha256;
use std::{borrow::Cow, time::Duration};
use subtle::{Choice, ConstantTimeEq};

/// A request that the holder of a secret has signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Which of the source's secrets it was, from 0: shows when an old one is no longer in use.
    pub slot: usize,
}

/// Why a request is not taken. The text names places, never values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No signature header.
    #[error("there is no signature")]
    Unsigned,
    /// No signature fits any secret.
    #[error("no signature fits")]
    Mismatch,
    /// Signed rightly, but too long ago.
    #[error("signed too long ago")]
    Stale,
    /// Signed rightly, but with a clock that is too far ahead.
    #[error("signed too far in the future")]
    Early,
    /// Something that is needed stands twice; picking one would let the sender and us disagree.
    #[error("{0} is there more than once")]
    Repeated(String),
    /// Something that is needed is not there.
    #[error("{0} is missing")]
    Missing(String),
    /// Something that is needed can not be read.
    #[error("{0} can not be read")]
    Malformed(String),
}

/// A secret whose text is not a key in the rule's encoding. Holds nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not the encoding that the rule names.
    #[error("is not {0}")]
    Encoding(&'static str),
    /// Nothing is left to sign with.
    #[error("is empty")]
    Empty,
}

/// The signature header, taken apart.
struct Signatures<'a> {
    /// Decoded signatures.
    candidates: Vec<Vec<u8>>,
    /// Other items, by name.
    fields: Vec<(&'a str, &'a str)>,
}

/// Checks the signature of a request received at `received_at_ms` (milliseconds since the Unix epoch).
///
/// # Errors
/// See [`Refusal`]. `Stale` and `Early` are only said of rightly signed requests.
pub fn verify(
    rule: &Rule,
    secrets: &[Secret],
    headers: &HeaderMap,
    body: &[u8],
    received_at_ms: i64,
) -> Result<Verified, Refusal> {
    let header = single(headers, &rule.signature.header)?.ok_or(Refusal::Unsigned)?;
    let signatures = Signatures::parse(&rule.signature, header)?;
    let timestamp = match &rule.timestamp {
        Some(place) => Some(timestamp(place, headers, &signatures)?),
        None => None,
    };
    let parts = signed_parts(rule, headers, &signatures, timestamp, body)?;
    let slot = matching_slot(
        &rule.secret,
        secrets,
        &signatures.candidates,
        &parts,
        received_at_ms,
    )
    .ok_or(Refusal::Mismatch)?;
    if let (Some(place), Some(text)) = (&rule.timestamp, timestamp) {
        let signed_at_ms = canonical_number(text)
            .and_then(|number| number.checked_mul(place.unit.ms()))
            .ok_or_else(|| Refusal::Malformed("the timestamp".to_owned()))?;
        let age_ms = received_at_ms.saturating_sub(signed_at_ms);
        if age_ms > whole_ms(rule.tolerance.past) {
            return Err(Refusal::Stale);
        }
        if age_ms < -whole_ms(rule.tolerance.future) {
            return Err(Refusal::Early);
        }
    }
    Ok(Verified { slot })
}

/// The key that a secret's text stands for.
///
/// # Errors
/// See [`KeyError`]. An empty key is refused: anybody can sign with it.
pub fn key<'a>(rule: &SecretRule, secret: &'a [u8]) -> Result<Cow<'a, [u8]>, KeyError> {
    let text = secret
        .strip_prefix(rule.strip_prefix.as_bytes())
        .unwrap_or(secret);
    let key = match rule.encoding {
        SecretEncoding::Utf8 => Cow::Borrowed(text),
        SecretEncoding::Base64 => match LENIENT_BASE64.decode(text) {
            Ok(key) => Cow::Owned(key),
            Err(_) => return Err(KeyError::Encoding("base64")),
        },
        SecretEncoding::Hex => match hex::decode(text) {
            Ok(key) => Cow::Owned(key),
            Err(_) => return Err(KeyError::Encoding("hexadecimal")),
        },
    };
    if key.is_empty() {
        Err(KeyError::Empty)
    } else {
        Ok(key)
    }
}

/// HMAC-SHA256 over `parts`, one after the other; none without a key.
pub(crate) fn mac(key: &[u8], parts: &[&[u8]]) -> Option<[u8; 32]> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key)
        .ok()
        .filter(|_| !key.is_empty())?;
    for part in parts {
        mac.update(part);
    }
    Some(mac.finalize().into_bytes().into())
}

/// The text of a header that may stand at most once.
pub(crate) fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Refusal::Repeated(name.to_owned()));
    }
    match value.to_str() {
        Ok(text) if text.len() <= HEADER_BYTES_MAX => Ok(Some(text)),
        _ => Err(Refusal::Malformed(name.to_owned())),
    }
}

// === impl Signatures ===

impl<'a> Signatures<'a> {
    fn parse(rule: &SignatureRule, header: &'a str) -> Result<Self, Refusal> {
        let items: Vec<&str> = match &rule.item_separator {
            Some(separator) => header.split(separator.as_str()).collect(),
            None => vec![header],
        };
        let mut texts = Vec::new();
        let mut fields = Vec::new();
        for item in items {
            let text = match (&rule.field, &rule.field_separator) {
                (Some(field), Some(separator)) => match item.split_once(separator.as_str()) {
                    Some((name, text)) if name == field => text,
                    Some(other) => {
                        fields.push(other);
                        continue;
                    }
                    None => continue,
                },
                _ => item,
            };
            texts.extend(text.strip_prefix(rule.prefix.as_str()));
        }
        if texts.len() > CANDIDATES_MAX {
            return Err(Refusal::Malformed(rule.header.clone()));
        }
        let candidates = texts
            .into_iter()
            .filter_map(|text| decode(rule.encoding, text))
            .collect();
        Ok(Self { candidates, fields })
    }

    /// The value of an item that may stand at most once.
    fn field(&self, name: &str) -> Result<Option<&'a str>, Refusal> {
        let mut values = self.fields.iter().filter(|(field, _)| *field == name);
        let first = values.next().map(|(_, value)| *value);
        match values.next() {
            Some(_) => Err(Refusal::Repeated(format!("`{name}` of the signature"))),
            None => Ok(first),
        }
    }
}

/// Accepts a missing padding: secrets are copied by hand.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The timestamp as written, known to be canonical: what other readers would take for the same number
/// (`+1`, `01`, `1.0`) is another text and so another signed content.
fn timestamp<'a>(
    place: &TimestampRule,
    headers: &'a HeaderMap,
    signatures: &Signatures<'a>,
) -> Result<&'a str, Refusal> {
    let (name, text) = match (&place.header, &place.field) {
        (Some(name), _) => (name, single(headers, name)?),
        (None, Some(name)) => (name, signatures.field(name)?),
        (None, None) => return Err(Refusal::Missing("the timestamp".to_owned())),
    };
    let text = text.ok_or_else(|| Refusal::Missing(name.clone()))?;
    match canonical_number(text) {
        Some(_) => Ok(text),
        None => Err(Refusal::Malformed(name.clone())),
    }
}

fn signed_parts<'a>(
    rule: &'a Rule,
    headers: &'a HeaderMap,
    signatures: &Signatures<'a>,
    timestamp: Option<&'a str>,
    body: &'a [u8],
) -> Result<Vec<&'a [u8]>, Refusal> {
    let mut parts = Vec::with_capacity(rule.signed.len());
    for (at, part) in rule.signed.iter().enumerate() {
        let (name, value) = match part {
            Part::Literal(text) => {
                parts.push(text.as_bytes());
                continue;
            }
            Part::Body => {
                parts.push(body);
                continue;
            }
            Part::Timestamp => ("the timestamp", timestamp),
            Part::Header(name) => (name.as_str(), single(headers, name)?),
            Part::Field(name) => (name.as_str(), signatures.field(name)?),
        };
        let value = value.ok_or_else(|| Refusal::Missing(name.to_owned()))?;
        // `id.time.body` with a dot in the id could be read in two ways, and so be signed once for both.
        if let Some(Part::Literal(separator)) = rule.signed.get(at + 1)
            && value.contains(separator.as_str())
        {
            return Err(Refusal::Malformed(name.to_owned()));
        }
        parts.push(value.as_bytes());
    }
    Ok(parts)
}

/// The first secret that made one of the candidates. Looks at all of both, whatever fits.
fn matching_slot(
    rule: &SecretRule,
    secrets: &[Secret],
    candidates: &[Vec<u8>],
    parts: &[&[u8]],
    now_ms: i64,
) -> Option<usize> {
    let mut slot = None;
    for (at, secret) in secrets.iter().enumerate() {
        let made = secret.with(|text| key(rule, text).ok().and_then(|key| mac(&key, parts)));
        let Some(made) = made else { continue };
        let mut fits = Choice::from(0);
        for candidate in candidates {
            fits |= made.as_slice().ct_eq(candidate.as_slice());
        }
        let fits = bool::from(fits) && secret.usable_at(now_ms);
        slot = slot.or_else(|| fits.then_some(at));
    }
    slot
}

fn decode(encoding: Encoding, text: &str) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Hex => hex::decode(text).ok(),
        Encoding::Base64 => STANDARD.decode(text).ok(),
    }
}

/// A number in its only canonical form: digits, no sign, no leading zero.
fn canonical_number(text: &str) -> Option<i64> {
    let canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
