//! Signs a body as a sender would: the reverse of [`crate::verify`], for the demo, for tests and for trying a set-up.

use crate::{
    request::Request,
    rule::{
        Algorithm, Encoding, IdPlace, Part, Rule, SignatureRule, TimestampRule, Unit, Verifier,
    },
    verify::{
        KeyError, adyen, decode_url,
        key::{decoded, mac},
        mailgun, twilio, url_of,
    },
};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderMap, Method};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair},
};
use std::borrow::Cow;

/// What a sender has in hand.
#[derive(Clone, Copy, Debug)]
pub struct Unsigned<'a> {
    /// Id of the delivery. Put where the rule says if that is a header; in the body it must be already.
    pub delivery_id: &'a str,
    /// Event type. Put where the rule says if that is a header; of a type that stands half in the body, the first half.
    pub event_type: &'a str,
    /// The URL that it is sent to, where the rule signs that.
    pub public_url: Option<&'a str>,
    /// The exact bytes to be sent.
    pub body: &'a [u8],
    /// Time of signing, milliseconds since the Unix epoch.
    pub now_ms: i64,
}

/// A request as its sender makes it, signature included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Behind the `?` of the URL.
    pub query: Option<String>,
    /// Lower-case names.
    pub headers: Vec<(String, String)>,
    /// Body; some senders put the signature into it.
    pub body: Vec<u8>,
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
    #[error("can not be signed: {0}")]
    Unknown(String),
}

/// The request to send: [`sign`], and what a rule's `verifier` puts into query and body. With a verifier the first secret
/// signs. PayPal's requests can not be made: only PayPal has the key.
///
/// # Errors
/// See [`SignError`].
pub fn make(rule: &Rule, secrets: &[&[u8]], unsigned: &Unsigned<'_>) -> Result<Made, SignError> {
    let Some(verifier) = rule.verifier else {
        let url = unsigned.public_url.unwrap_or_default();
        return Ok(Made {
            query: twilio::split(url).1.map(str::to_owned),
            headers: sign(rule, secrets, unsigned)?,
            body: unsigned.body.to_vec(),
        });
    };
    let secret = secrets.first().ok_or(SignError::NoSecret)?;
    match verifier {
        Verifier::Twilio => {
            let start = unsigned.body.trim_ascii_start().first();
            twilio::sign(secret, unsigned, !matches!(start, Some(b'{' | b'[')))
        }
        Verifier::Mailgun => mailgun::sign(secret, unsigned),
        Verifier::AdyenStandard => adyen::sign(secret, unsigned),
        Verifier::Paypal => Err(SignError::Unknown("only PayPal has the key".to_owned())),
    }
}

/// Headers to send with the body, lower-case names: signature, and id, event type and timestamp where the rule has them
/// in headers. With several secrets and a header that takes several signatures, one of each. Where the source has a public
/// key, the secret is the private one: the 32 or 64 bytes of Ed25519, PKCS #8 for ECDSA, in the rule's encoding.
///
/// # Errors
/// See [`SignError`].
pub fn sign(
    rule: &Rule,
    secrets: &[&[u8]],
    unsigned: &Unsigned<'_>,
) -> Result<Vec<(String, String)>, SignError> {
    let Some(signature) = &rule.signature else {
        return Err(SignError::Unknown(
            "the scheme has a verifier of its own".to_owned(),
        ));
    };
    let mut headers = names(rule, unsigned);
    let mut items = Vec::new();
    let mut timestamp = None;
    if let Some(place) = &rule.timestamp {
        let text = written(place, unsigned.now_ms);
        if let Some(name) = &place.header {
            headers.push((name.clone(), text.clone()));
        } else if let Some(name) = &place.field {
            items.push(item(signature, name, &text));
        }
        timestamp = Some(text);
    }
    let parts = parts(rule, &headers, timestamp.as_deref(), unsigned)?;
    let several = signature.item_separator.is_some();
    for secret in secrets.iter().take(if several { secrets.len() } else { 1 }) {
        let made = made(rule, secret, &parts)?;
        let text = match signature.encoding {
            Encoding::Hex => hex::encode(made),
            Encoding::Base64 => STANDARD.encode(made),
            Encoding::Plain => String::from_utf8_lossy(&made).into_owned(),
        };
        let text = format!("{}{text}", signature.prefix);
        items.push(match &signature.field {
            Some(field) => item(signature, field, &text),
            None => text,
        });
    }
    if secrets.is_empty() {
        return Err(SignError::NoSecret);
    }
    let separator = signature.item_separator.as_deref().unwrap_or_default();
    headers.push((signature.header.clone(), items.join(separator)));
    Ok(headers)
}

/// The headers that say what is sent.
fn names(rule: &Rule, unsigned: &Unsigned<'_>) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    if let Some(IdPlace::Header(name)) = rule.delivery_id.first() {
        headers.push((name.clone(), unsigned.delivery_id.to_owned()));
    }
    // Ids stand twice where one of them is signed and the other is not.
    let of_time = |name: &String| {
        let place = rule.timestamp.as_ref();
        place.is_some_and(|place| place.header.as_ref() == Some(name))
    };
    for part in &rule.signed {
        if let Part::Header(name) = part
            && !of_time(name)
            && !headers.iter().any(|(given, _)| given == name)
        {
            headers.push((name.clone(), unsigned.delivery_id.to_owned()));
        }
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
    headers
}

fn parts<'a>(
    rule: &'a Rule,
    headers: &'a [(String, String)],
    timestamp: Option<&'a str>,
    unsigned: &Unsigned<'a>,
) -> Result<Vec<Cow<'a, [u8]>>, SignError> {
    let url = || {
        let none = HeaderMap::new();
        let request = Request {
            method: &Method::POST,
            headers: &none,
            query: None,
            public_url: unsigned.public_url,
            body: unsigned.body,
            received_at_ms: unsigned.now_ms,
        };
        url_of(&request).map_err(|refusal| SignError::Unknown(refusal.to_string()))
    };
    let part = |part: &'a Part| {
        let text = match part {
            Part::Literal(text) => text.as_str(),
            Part::Body => return Ok(Cow::Borrowed(unsigned.body)),
            Part::Method => "POST",
            Part::Url => return Ok(Cow::Owned(url()?.into_bytes())),
            Part::UrlDecoded => return Ok(Cow::Owned(decode_url(&url()?).into_bytes())),
            Part::Timestamp => {
                timestamp.ok_or_else(|| SignError::Unknown("there is no timestamp".to_owned()))?
            }
            Part::Header(name) => headers
                .iter()
                .find(|(given, _)| given == name)
                .map(|(_, value)| value.as_str())
                .ok_or_else(|| SignError::Unknown(format!("the header {name} has no value")))?,
            Part::Field(name) => {
                return Err(SignError::Unknown(format!("the field {name} has no value")));
            }
        };
        Ok(Cow::Borrowed(text.as_bytes()))
    };
    rule.signed.iter().map(part).collect()
}

fn made(rule: &Rule, secret: &[u8], parts: &[Cow<'_, [u8]>]) -> Result<Vec<u8>, SignError> {
    let secret = secret.strip_prefix(b"whsk_").unwrap_or(secret);
    let key = decoded(&rule.secret, secret)?;
    match rule.algorithm {
        Algorithm::HmacSha256 | Algorithm::HmacSha1 | Algorithm::HmacSha512 => {
            mac(rule.algorithm, &key, parts).ok_or(SignError::NoSecret)
        }
        Algorithm::Token => Ok(key.into_owned()),
        Algorithm::Ed25519 => {
            let kind = KeyError::Kind("an Ed25519 private key, which has 32 or 64 bytes");
            let seed = key.get(..32).filter(|_| [32, 64].contains(&key.len()));
            let pair =
                Ed25519KeyPair::from_seed_unchecked(seed.ok_or(kind)?).map_err(|_rejected| kind)?;
            Ok(pair.sign(&parts.concat()).as_ref().to_vec())
        }
        Algorithm::EcdsaP256Sha256 => {
            let kind = KeyError::Kind("a P-256 private key (PKCS #8)");
            let random = SystemRandom::new();
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &key, &random)
                .map_err(|_rejected| kind)?;
            let made = pair
                .sign(&random, &parts.concat())
                .map_err(|_rejected| kind)?;
            Ok(made.as_ref().to_vec())
        }
    }
}

fn written(place: &TimestampRule, now_ms: i64) -> String {
    match place.unit {
        Unit::Seconds => (now_ms / 1_000).to_string(),
        Unit::Milliseconds => now_ms.to_string(),
        Unit::Rfc3339 => jiff::Timestamp::from_millisecond(now_ms)
            .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
            .to_string(),
    }
}

fn item(rule: &SignatureRule, name: &str, value: &str) -> String {
    let separator = rule.field_separator.as_deref().unwrap_or_default();
    format!("{name}{separator}{value}")
}
