//! Whether a request was signed with one of a source's secrets: a plain function over the bytes received.
//!
//! Nothing is parsed but the signature header, nothing is re-written: text is compared with text only for names, a
//! signature is decoded and compared as bytes, in constant time, with what every secret makes of the signed parts. There
//! is no early exit, so neither the number of secrets nor the one that fits can be told from the time taken.
//!
//! In three steps that [`mod@crate::explain`] takes as well: [`Reading::of`] finds what the rule names, [`tried`] tries
//! the secrets, [`in_time`] looks at the clock.

pub(crate) mod adyen;
mod custom;
pub(crate) mod key;
pub(crate) mod mailgun;
pub(crate) mod paypal;
pub(crate) mod twilio;

pub use key::{KeyError, key};

use crate::{
    certificates::Certificate,
    extract::json_text,
    request::Request,
    rule::{
        CANDIDATES_MAX, Encoding, HEADER_BYTES_MAX, Part, Rule, SignatureRule, TimestampRule,
        Tolerance, Unit, Verifier,
    },
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::HeaderMap;
use runtime::Secret;
use std::{borrow::Cow, time::Duration};

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

/// What a rule finds in a request before any secret is tried.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    pub(crate) signatures: Signatures<'a>,
    /// The timestamp as written; none when the rule has none or it stands in the body.
    pub(crate) timestamp: Option<&'a str>,
    /// The signed bytes, in order.
    pub(crate) parts: Vec<Cow<'a, [u8]>>,
}

/// The signature header, taken apart.
#[derive(Debug)]
pub(crate) struct Signatures<'a> {
    /// Decoded signatures.
    pub(crate) candidates: Vec<Vec<u8>>,
    /// Signatures that are not written as the rule says.
    pub(crate) undecodable: usize,
    /// Other items, by name.
    fields: Vec<(&'a str, &'a str)>,
}

/// What became of one secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    Fits,
    Differs,
    /// It fits, but its `not_after` has passed.
    Ended,
    /// Its text is not, or no longer, a key.
    NotAKey(KeyError),
}

/// Checks the signature of a request.
///
/// # Errors
/// See [`Refusal`]. `Stale` and `Early` are only said of rightly signed requests.
pub fn verify(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> Result<Verified, Refusal> {
    verify_with(rule, secrets, request, None)
}

/// [`verify`], with the certificate from [`certificate_url`].
///
/// # Errors
/// As [`verify`]; `Missing` without the certificate that a verifier needs.
pub(crate) fn verify_with(
    rule: &Rule,
    secrets: &[Secret],
    request: &Request<'_>,
    certificate: Option<&Certificate>,
) -> Result<Verified, Refusal> {
    let tolerance = rule.tolerance;
    match rule.verifier {
        None => by_table(rule, secrets, request),
        Some(Verifier::Twilio) => twilio::verify(secrets, request),
        Some(Verifier::Mailgun) => mailgun::verify(secrets, request, tolerance),
        Some(Verifier::AdyenStandard) => adyen::verify(secrets, request),
        Some(Verifier::Paypal) => paypal::verify(secrets, request, tolerance, certificate),
    }
}

/// Where the certificate is that [`verify_with`] needs, if it needs one; only of a request that could be accepted with it.
pub(crate) fn certificate_url<'a>(rule: &Rule, request: &Request<'a>) -> Option<&'a str> {
    match rule.verifier {
        Some(Verifier::Paypal) => paypal::certificate_url(request).ok(),
        Some(Verifier::Twilio | Verifier::Mailgun | Verifier::AdyenStandard) | None => None,
    }
}

fn by_table(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> Result<Verified, Refusal> {
    let signature = rule.signature.as_ref().ok_or(Refusal::Unsigned)?;
    let reading = Reading::of(rule, signature, request)?;
    let tried = tried(rule, secrets, &reading, request.received_at_ms);
    let slot = tried.iter().position(|tried| *tried == Tried::Fits);
    let slot = slot.ok_or(Refusal::Mismatch)?;
    if let Some(place) = &rule.timestamp {
        let signed_at_ms = signed_at_ms(rule, place, reading.timestamp, request)?;
        in_time(signed_at_ms, request.received_at_ms, rule.tolerance)?;
    }
    Ok(Verified { slot })
}

/// What becomes of each secret, in order. Looks at all of them and at all signatures, whatever fits.
pub(crate) fn tried(
    rule: &Rule,
    secrets: &[Secret],
    reading: &Reading<'_>,
    now_ms: i64,
) -> Vec<Tried> {
    let try_one = |secret: &Secret| {
        let fits = secret.with(|text| {
            let key = key(rule.algorithm, &rule.secret, text)?;
            let candidates = &reading.signatures.candidates;
            Ok(key::fits(rule.algorithm, &key, &reading.parts, candidates))
        });
        match fits {
            Ok(true) if secret.usable_at(now_ms) => Tried::Fits,
            Ok(true) => Tried::Ended,
            Ok(false) => Tried::Differs,
            Err(error) => Tried::NotAKey(error),
        }
    };
    secrets.iter().map(try_one).collect()
}

/// When the request says that it was signed, milliseconds since the Unix epoch.
///
/// # Errors
/// `Missing` and `Malformed`.
pub(crate) fn signed_at_ms(
    rule: &Rule,
    place: &TimestampRule,
    timestamp: Option<&str>,
    request: &Request<'_>,
) -> Result<i64, Refusal> {
    let in_body;
    let text = match (timestamp, &place.json) {
        (Some(text), _) => text,
        (None, Some(path)) => {
            in_body =
                json_text(rule, request, path).ok_or_else(|| Refusal::Missing(path.clone()))?;
            in_body.as_str()
        }
        (None, None) => return Err(Refusal::Missing("the timestamp".to_owned())),
    };
    instant_ms(place.unit, text).ok_or_else(|| Refusal::Malformed("the timestamp".to_owned()))
}

/// Whether a request signed at `signed_at_ms` may be taken at `received_at_ms`.
///
/// # Errors
/// `Stale` and `Early`.
pub(crate) fn in_time(
    signed_at_ms: i64,
    received_at_ms: i64,
    tolerance: Tolerance,
) -> Result<(), Refusal> {
    let age_ms = received_at_ms.saturating_sub(signed_at_ms);
    if age_ms > whole_ms(tolerance.past) {
        Err(Refusal::Stale)
    } else if age_ms < -whole_ms(tolerance.future) {
        Err(Refusal::Early)
    } else {
        Ok(())
    }
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

/// A number in its only canonical form: digits, no sign, no leading zero.
pub(crate) fn canonical_number(text: &str) -> Option<i64> {
    let canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

// === impl Rule ===

impl Rule {
    /// Whether a secret's text is a key of this rule.
    ///
    /// # Errors
    /// See [`KeyError`].
    pub fn checks(&self, secret: &Secret) -> Result<(), KeyError> {
        secret.with(|text| key(self.algorithm, &self.secret, text).map(drop))
    }
}

// === impl Reading ===

impl<'a> Reading<'a> {
    /// Finds what `rule` names.
    ///
    /// # Errors
    /// `Unsigned`, `Repeated`, `Missing` and `Malformed`.
    pub(crate) fn of(
        rule: &'a Rule,
        signature: &'a SignatureRule,
        request: &Request<'a>,
    ) -> Result<Self, Refusal> {
        let header = single(request.headers, &signature.header)?.ok_or(Refusal::Unsigned)?;
        let signatures = Signatures::parse(signature, header)?;
        let timestamp = match &rule.timestamp {
            Some(place) if place.json.is_none() => {
                Some(timestamp(place, request.headers, &signatures)?)
            }
            Some(_) | None => None,
        };
        let parts = signed_parts(rule, request, &signatures, timestamp)?;
        Ok(Self {
            signatures,
            timestamp,
            parts,
        })
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
        let found = texts.len();
        let candidates: Vec<Vec<u8>> = texts
            .into_iter()
            .filter_map(|text| decode(rule.encoding, text))
            .collect();
        Ok(Self {
            undecodable: found - candidates.len(),
            candidates,
            fields,
        })
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
    match instant_ms(place.unit, text) {
        Some(_) => Ok(text),
        None => Err(Refusal::Malformed(name.clone())),
    }
}

fn instant_ms(unit: Unit, text: &str) -> Option<i64> {
    match unit {
        Unit::Seconds => canonical_number(text)?.checked_mul(1_000),
        Unit::Milliseconds => canonical_number(text),
        // What a calendar may add in brackets could be the beginning of the body that is signed behind it.
        Unit::Rfc3339 if text.contains('[') => None,
        Unit::Rfc3339 => {
            let instant: jiff::Timestamp = text.parse().ok()?;
            Some(instant.as_millisecond())
        }
    }
}

fn signed_parts<'a>(
    rule: &'a Rule,
    request: &Request<'a>,
    signatures: &Signatures<'a>,
    timestamp: Option<&'a str>,
) -> Result<Vec<Cow<'a, [u8]>>, Refusal> {
    let mut parts = Vec::with_capacity(rule.signed.len());
    for (at, part) in rule.signed.iter().enumerate() {
        let (name, value) = match part {
            Part::Literal(text) => {
                parts.push(Cow::Borrowed(text.as_bytes()));
                continue;
            }
            Part::Body => {
                parts.push(Cow::Borrowed(request.body));
                continue;
            }
            Part::Method => {
                parts.push(Cow::Borrowed(request.method.as_str().as_bytes()));
                continue;
            }
            Part::Url => {
                parts.push(Cow::Owned(url_of(request)?.into_bytes()));
                continue;
            }
            Part::UrlDecoded => {
                parts.push(Cow::Owned(decode_url(&url_of(request)?).into_bytes()));
                continue;
            }
            Part::Timestamp => ("the timestamp", timestamp),
            Part::Header(name) => (name.as_str(), single(request.headers, name)?),
            Part::Field(name) => (name.as_str(), signatures.field(name)?),
        };
        let value = value.ok_or_else(|| Refusal::Missing(name.to_owned()))?;
        // `id.time.body` with a dot in the id could be read in two ways, and so be signed once for both.
        if let Some(Part::Literal(separator)) = rule.signed.get(at + 1)
            && value.contains(separator.as_str())
        {
            return Err(Refusal::Malformed(name.to_owned()));
        }
        parts.push(Cow::Borrowed(value.as_bytes()));
    }
    Ok(parts)
}

/// The URL as the sender knows it: as configured, and the query that it was called with.
pub(crate) fn url_of(request: &Request<'_>) -> Result<String, Refusal> {
    let url = request
        .public_url
        .ok_or_else(|| Refusal::Missing("`public_url` of the source".to_owned()))?;
    Ok(match request.query {
        // Configured with its query: that is the URL whole.
        Some(query) if !url.contains('?') => format!("{url}?{query}"),
        Some(_) | None => url.to_owned(),
    })
}

/// HubSpot signs the URL with these decoded and all else as it is:
/// <https://developers.hubspot.com/docs/apps/legacy-apps/authentication/validating-requests>.
pub(crate) fn decode_url(url: &str) -> String {
    const DECODED: [(&str, &str); 12] = [
        ("%3A", ":"),
        ("%2F", "/"),
        ("%3F", "?"),
        ("%40", "@"),
        ("%21", "!"),
        ("%24", "$"),
        ("%27", "'"),
        ("%28", "("),
        ("%29", ")"),
        ("%2A", "*"),
        ("%2C", ","),
        ("%3B", ";"),
    ];
    let mut decoded = String::with_capacity(url.len());
    let mut rest = url;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        decoded.push_str(before);
        let known = DECODED.iter().find(|(code, _)| {
            escape
                .get(..3)
                .is_some_and(|given| given.eq_ignore_ascii_case(code))
        });
        let (text, length) = known.map_or(("%", 1), |(_, text)| (*text, 3));
        decoded.push_str(text);
        rest = escape.get(length..).unwrap_or_default();
    }
    decoded.push_str(rest);
    decoded
}

fn decode(encoding: Encoding, text: &str) -> Option<Vec<u8>> {
    match encoding {
        Encoding::Hex => hex::decode(text).ok(),
        Encoding::Base64 => STANDARD.decode(text).ok(),
        Encoding::Plain => Some(text.as_bytes().to_vec()),
    }
}

fn whole_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
