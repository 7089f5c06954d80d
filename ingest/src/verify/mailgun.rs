//! Mailgun: HMAC-SHA256 with the webhook signing key over a time and a token that stand in the JSON body.
//!
//! Facts: <https://documentation.mailgun.com/docs/mailgun/user-manual/webhooks/securing-webhooks>.
//!
//! **The body is not signed.** The signature says that Mailgun drew this token at this time, and nothing of the event
//! beside it: whoever has seen one request can put any event under its signature. What stands against that is the token,
//! which is good for one delivery because it is the delivery id ([`delivery_id`]): the store takes no second webhook
//! under it. An event's own `event-data.id` could be chosen freely, and must not be the id.
//!
//! A repeat after a failure has the first try's token and time, and the last comes after about eight hours, so the tolerance
//! for the past has to be longer than that.

use super::{Refusal, Verified, canonical_number, custom::slot_of, in_time, key::mac};
use crate::{
    Request,
    rule::{Algorithm, Tolerance},
    sign::{Made, SignError, Unsigned},
};
use runtime::Secret;
use serde::Deserialize;
use std::borrow::Cow;
use subtle::ConstantTimeEq;

/// Documented are 50 characters.
const TOKEN_BYTES_MAX: usize = 128;

/// As much of the body as is read before it is verified. A key that stands twice is an error.
#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    signature: Option<Signature<'a>>,
}

#[derive(Debug, Deserialize)]
struct Signature<'a> {
    #[serde(borrow)]
    timestamp: Cow<'a, str>,
    #[serde(borrow)]
    token: Cow<'a, str>,
    #[serde(borrow)]
    signature: Cow<'a, str>,
}

/// Checks time, token and signature in the body of a request of Mailgun's. **Says nothing about the rest of the body.**
///
/// # Errors
/// See [`Refusal`].
pub(crate) fn verify(
    secrets: &[Secret],
    request: &Request<'_>,
    tolerance: Tolerance,
) -> Result<Verified, Refusal> {
    let signed = Signature::of(request.body)?;
    let signed_at_ms = canonical_number(&signed.timestamp)
        .and_then(|seconds| seconds.checked_mul(1_000))
        .ok_or_else(|| Refusal::Malformed("`signature.timestamp`".to_owned()))?;
    let Ok(signature) = hex::decode(signed.signature.as_bytes()) else {
        return Err(Refusal::Mismatch);
    };
    // Digits that wander from the token to the time make it ten times as large: `in_time` refuses it.
    let parts = [signed.timestamp.as_bytes(), signed.token.as_bytes()];
    let slot = slot_of(secrets, request.received_at_ms, |key| {
        let made = mac(Algorithm::HmacSha256, key, &parts);
        made.is_some_and(|made| made.ct_eq(&signature).into())
    })?;
    in_time(signed_at_ms, request.received_at_ms, tolerance)?;
    Ok(Verified { slot })
}

/// The signed token: the only thing in the request that a replay can not change.
///
/// # Errors
/// `Unsigned` and `Malformed`.
pub(crate) fn delivery_id(request: &Request<'_>) -> Result<String, Refusal> {
    let signed = Signature::of(request.body)?;
    Ok(signed.token.into_owned())
}

/// Puts a signature into the body, a JSON object, as Mailgun would. The delivery id becomes the token.
///
/// # Errors
/// See [`SignError`].
pub(crate) fn sign(key: &[u8], unsigned: &Unsigned<'_>) -> Result<Made, SignError> {
    let event: Result<serde_json::Map<_, _>, _> = serde_json::from_slice(unsigned.body);
    let mut event: serde_json::Map<String, serde_json::Value> = match event {
        Ok(event) => event,
        Err(_) => return Err(SignError::Unknown("a JSON object".to_owned())),
    };
    let token = unsigned.delivery_id;
    let timestamp = (unsigned.now_ms / 1_000).to_string();
    let parts = [timestamp.as_bytes(), token.as_bytes()];
    let made = mac(Algorithm::HmacSha256, key, &parts).ok_or(SignError::NoSecret)?;
    let signature = serde_json::json!({
        "timestamp": timestamp,
        "token": token,
        "signature": hex::encode(made),
    });
    event.insert("signature".to_owned(), signature);
    Ok(Made {
        query: None,
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        body: serde_json::Value::Object(event).to_string().into_bytes(),
    })
}

// === impl Signature ===

impl<'a> Signature<'a> {
    fn of(body: &'a [u8]) -> Result<Self, Refusal> {
        let body: Body<'a> = match serde_json::from_slice(body) {
            Ok(body) => body,
            Err(_) => return Err(Refusal::Malformed("`signature` of the body".to_owned())),
        };
        let signature = body.signature.ok_or(Refusal::Unsigned)?;
        let token = &signature.token;
        let well_formed = (1..=TOKEN_BYTES_MAX).contains(&token.len())
            && token.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if well_formed {
            Ok(signature)
        } else {
            Err(Refusal::Malformed("`signature.token`".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests;
