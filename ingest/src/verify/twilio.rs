//! Twilio: HMAC-SHA1 with the account's auth token over the URL and the parameters of a form, or over a URL whose query
//! holds a hash of the body.
//!
//! Facts: <https://www.twilio.com/docs/usage/security#validating-requests> and twilio-node `src/webhooks/webhooks.ts`.
//!
//! **What the signature does not say.** There is no time in it, so an old request is as good as a new one for ever; only
//! the delivery id stands against repeats, and `i-twilio-idempotency-token`, which the preset takes for it, is not signed. Names
//! and values of a form are joined without anything between them: `a=bc` and `ab=c` have the same signature, and so have
//! `?x` in the URL and a first parameter that begins with `?x`. Order and repetition of parameters are not signed at all.

use super::{Refusal, Verified, custom::slot_of, key::mac, single};
use crate::{
    Request,
    rule::Algorithm,
    sign::{Made, SignError, Unsigned},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use runtime::Secret;
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};
use subtle::ConstantTimeEq;

const SIGNATURE: &str = "x-twilio-signature";
/// Parameter of the query that holds the SHA-256 of a body that is no form, hexadecimal.
const BODY_HASH: &str = "bodySHA256";
/// Parameters of a form or a query; Twilio sends some dozens.
const PARAMETERS_MAX: usize = 1_000;

/// What was signed.
#[derive(Debug)]
struct Signed {
    /// The URL in every spelling that Twilio may have signed; at most six.
    urls: Vec<String>,
    /// Names and values of the form, sorted, each value once; empty for a body that is no form.
    parameters: Vec<u8>,
    /// What the query says to be the hash of a body that is no form.
    body_hash: Option<[u8; 32]>,
}

/// Checks a request of Twilio's. The time of signing is not known.
///
/// # Errors
/// See [`Refusal`].
pub(crate) fn verify(secrets: &[Secret], request: &Request<'_>) -> Result<Verified, Refusal> {
    let header = single(request.headers, SIGNATURE)?.ok_or(Refusal::Unsigned)?;
    let signed = Signed::of(request)?;
    let Ok(signature) = STANDARD.decode(header) else {
        return Err(Refusal::Mismatch);
    };
    let body_fits = signed.body_hash.is_none_or(|hash| {
        let body: [u8; 32] = Sha256::digest(request.body).into();
        body.ct_eq(&hash).into()
    });
    let slot = slot_of(secrets, request.received_at_ms, |token| {
        let fits = |found, url: &String| {
            let made = mac(
                Algorithm::HmacSha1,
                token,
                &[url.as_bytes(), signed.parameters.as_slice()],
            );
            made.is_some_and(|made| made.ct_eq(&signature).into()) | found
        };
        signed.urls.iter().fold(false, fits)
    })?;
    if body_fits {
        Ok(Verified { slot })
    } else {
        Err(Refusal::Mismatch)
    }
}

/// A hash of what is signed, for requests without `i-twilio-idempotency-token`: another order of parameters makes no other id.
///
/// # Errors
/// `Missing`, `Repeated` and `Malformed`.
pub(crate) fn delivery_id(request: &Request<'_>) -> Result<String, Refusal> {
    let signed = Signed::of(request)?;
    let query = request.query.unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update((query.len() as u64).to_be_bytes());
    hash.update(query);
    hash.update(&signed.parameters);
    Ok(format!("sha256-{}", hex::encode(hash.finalize())))
}

/// Signs a request as Twilio would: a form, or any other body, whose hash goes into the query.
///
/// # Errors
/// See [`SignError`].
pub(crate) fn sign(
    token: &[u8],
    unsigned: &Unsigned<'_>,
    is_form: bool,
) -> Result<Made, SignError> {
    let body = unsigned.body;
    let (base, query) = split(unsigned.public_url.unwrap_or_default());
    let parameters = if is_form {
        parameters(body)
    } else {
        Ok(Vec::new())
    };
    let parameters = parameters.map_err(|refusal| SignError::Unknown(refusal.to_string()))?;
    let hash = (!is_form).then(|| format!("{BODY_HASH}={}", hex::encode(Sha256::digest(body))));
    let query = match (query, hash) {
        (Some(query), Some(hash)) => Some(format!("{query}&{hash}")),
        (query, hash) => hash.or_else(|| query.map(str::to_owned)),
    };
    let [url, _] = with_and_without_port(base);
    let url = joined(&url, query.as_deref());
    let made = mac(
        Algorithm::HmacSha1,
        token,
        &[url.as_bytes(), parameters.as_slice()],
    )
    .ok_or(SignError::NoSecret)?;
    let kind = if is_form {
        "application/x-www-form-urlencoded"
    } else {
        "application/json"
    };
    let headers = [
        ("content-type", kind.to_owned()),
        (
            "i-twilio-idempotency-token",
            unsigned.delivery_id.to_owned(),
        ),
        (SIGNATURE, STANDARD.encode(made)),
    ];
    Ok(Made {
        query,
        headers: headers
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
        body: body.to_vec(),
    })
}

// === impl Signed ===

impl Signed {
    fn of(request: &Request<'_>) -> Result<Self, Refusal> {
        let url = request
            .public_url
            .ok_or_else(|| Refusal::Missing("`public_url` of the source".to_owned()))?;
        let urls = urls(split(url).0, request.query);
        if let Some(hash) = body_hash(request.query)? {
            return Ok(Self {
                urls,
                parameters: Vec::new(),
                body_hash: Some(hash),
            });
        }
        if !request.is_form() && !request.body.is_empty() {
            return Err(Refusal::Missing(format!("`{BODY_HASH}` in the query")));
        }
        let parameters = parameters(request.body)?;
        // Else the end of a signed URL could come as the first parameter of a form, and the hash in it be overlooked.
        if urls.iter().any(|url| ends_in_body_hash(url, &parameters)) {
            return Err(Refusal::Malformed("the form".to_owned()));
        }
        Ok(Self {
            urls,
            parameters,
            body_hash: None,
        })
    }
}

/// Without query and fragment, and the query.
pub(crate) fn split(url: &str) -> (&str, Option<&str>) {
    let url = url.split_once('#').map_or(url, |(url, _)| url);
    match url.split_once('?') {
        Some((base, query)) => (base, Some(query)),
        None => (url, None),
    }
}

fn joined(base: &str, query: Option<&str>) -> String {
    match query {
        Some(query) => format!("{base}?{query}"),
        None => base.to_owned(),
    }
}

/// Twilio signs the URL with its port or without, and has changed how it encodes the query; its libraries try them all.
fn urls(base: &str, query: Option<&str>) -> Vec<String> {
    let mut queries = vec![query.map(Cow::Borrowed)];
    if let Some(query) = query {
        for other in [query.replace('\'', "%27"), encoded_anew(query)] {
            if !queries.iter().flatten().any(|known| *known == other) {
                queries.push(Some(Cow::Owned(other)));
            }
        }
    }
    let mut urls = Vec::with_capacity(2 * queries.len());
    for base in with_and_without_port(base) {
        urls.extend(queries.iter().map(|query| joined(&base, query.as_deref())));
    }
    urls
}

/// The URL with its port or else the scheme's usual one, and the URL without any.
fn with_and_without_port(base: &str) -> [String; 2] {
    let (scheme, rest) = base.split_once("://").unwrap_or(("https", base));
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, path),
        None => (rest, ""),
    };
    let usual = if scheme == "http" { "80" } else { "443" };
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if is_port(port) => (host, port),
        _ => (authority, usual),
    };
    [
        format!("{scheme}://{host}/{path}"),
        format!("{scheme}://{host}:{port}/{path}"),
    ]
}

/// Every name and value decoded and encoded again as node's `querystring` does it.
fn encoded_anew(query: &str) -> String {
    let encode = |text: &[u8], out: &mut String| {
        for byte in text {
            if byte.is_ascii_alphanumeric() || b"-_.!~*'()".contains(byte) {
                out.push(char::from(*byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    };
    let mut out = String::with_capacity(query.len());
    for (name, value) in pairs(query.as_bytes()) {
        if !out.is_empty() {
            out.push('&');
        }
        encode(&name, &mut out);
        out.push('=');
        encode(&value, &mut out);
    }
    out
}

fn body_hash(query: Option<&str>) -> Result<Option<[u8; 32]>, Refusal> {
    let query = query.unwrap_or_default().as_bytes();
    let mut values = pairs(query).filter(|(name, _)| name == BODY_HASH.as_bytes());
    let Some((_, value)) = values.next() else {
        return Ok(None);
    };
    let place = || format!("`{BODY_HASH}` in the query");
    if values.next().is_some() {
        return Err(Refusal::Repeated(place()));
    }
    let mut hash = [0; 32];
    match hex::decode_to_slice(value, &mut hash) {
        Ok(()) => Ok(Some(hash)),
        Err(_) => Err(Refusal::Malformed(place())),
    }
}

/// Names and values of a form one after the other, sorted by name, then by value, each value of a name once.
fn parameters(form: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut sorted: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (at, (name, value)) in pairs(form).enumerate() {
        if at == PARAMETERS_MAX {
            return Err(Refusal::Malformed("the form".to_owned()));
        }
        sorted.entry(name).or_default().insert(value);
    }
    let mut joined = Vec::with_capacity(form.len());
    for (name, values) in sorted {
        for value in values {
            joined.extend_from_slice(&name);
            joined.extend(value);
        }
    }
    Ok(joined)
}

fn ends_in_body_hash(url: &str, parameters: &[u8]) -> bool {
    const HEX: usize = 64;
    let text = [url.as_bytes(), parameters].concat();
    let Some(at) = text.len().checked_sub(HEX) else {
        return false;
    };
    let (rest, hash) = text.split_at(at);
    hash.iter().all(u8::is_ascii_hexdigit)
        && rest
            .strip_suffix(b"=")
            .is_some_and(|rest| rest.ends_with(BODY_HASH.as_bytes()))
}

/// Names and values of a form or query, decoded byte by byte (<https://url.spec.whatwg.org/#urlencoded-parsing>): bytes that
/// are not UTF-8 stay what they are.
fn pairs(form: &[u8]) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
    let pieces = form.split(|byte| *byte == b'&');
    pieces.filter(|piece| !piece.is_empty()).map(|piece| {
        let mut halves = piece.splitn(2, |byte| *byte == b'=');
        let name = halves.next().unwrap_or_default();
        (decoded(name), decoded(halves.next().unwrap_or_default()))
    })
}

fn decoded(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    while let Some((first, rest)) = text.split_first() {
        let escaped = match (first, rest) {
            (b'%', [high, low, after @ ..]) => hex_digit(*high)
                .zip(hex_digit(*low))
                .map(|(high, low)| (high << 4 | low, after)),
            _ => None,
        };
        let (byte, after) = escaped.unwrap_or((if *first == b'+' { b' ' } else { *first }, rest));
        out.push(byte);
        text = after;
    }
    out
}

fn hex_digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests;
