//! PayPal: RSA-SHA256 over `transmission id|transmission time|webhook id|CRC-32 of the body`, with a certificate whose
//! address stands in the request.
//!
//! Facts: <https://developer.paypal.com/api/rest/webhooks/rest/#link-selfverificationmethod> and the `SSLUtil` of PayPal's
//! Java SDK. The webhook id from PayPal's dashboard takes the place of a secret: it says that the request was meant for this
//! webhook, while the certificate says that it is PayPal's.
//!
//! **The body is only bound by a CRC-32**, which is no protection: whoever has seen one request can make any other body with the
//! same checksum. It finds accidents; against forgers of bodies there is TLS, and the tolerance for what is old. A repeat
//! may have the first try's time, and the last comes after three days.

use super::{Refusal, Verified, custom::slot_of, in_time, single};
use crate::{Request, certificates::Certificate, rule::Tolerance};
use base64::{Engine, engine::general_purpose::STANDARD};
use runtime::Secret;
use std::str;

const ID: &str = "paypal-transmission-id";
const TIME: &str = "paypal-transmission-time";
const SIGNATURE: &str = "paypal-transmission-sig";
const ALGORITHM: &str = "paypal-auth-algo";
pub(crate) const CERTIFICATE_URL: &str = "paypal-cert-url";
/// The one algorithm that PayPal uses; it stands in the request, so it can not be the request's choice.
const RSA_SHA256: &str = "SHA256withRSA";
/// Of an RSA signature, bytes: keys of 2048 to 8192 bits.
const SIGNATURE_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;
/// PayPal's documented limits are 50 and 100.
const TEXT_BYTES_MAX: usize = 128;

/// What the headers say.
#[derive(Debug)]
struct Transmission<'a> {
    id: &'a str,
    time: &'a str,
    at_ms: i64,
    signature: Vec<u8>,
    certificate_url: &'a str,
}

/// Where the certificate is that [`verify`] needs: asked for before anything is fetched, so that only a request with all its
/// headers in order can cause a fetch.
///
/// # Errors
/// See [`Refusal`].
pub(crate) fn certificate_url<'a>(request: &Request<'a>) -> Result<&'a str, Refusal> {
    Ok(Transmission::of(request)?.certificate_url)
}

/// Checks a request of PayPal's with the certificate from its [`certificate_url`]; without one it is refused. Any certificate of PayPal's that is valid at
/// the time of receipt will do; that it is PayPal's is for [`crate::certificates`] to know.
///
/// # Errors
/// See [`Refusal`].
pub(crate) fn verify(
    webhook_ids: &[Secret],
    request: &Request<'_>,
    tolerance: Tolerance,
    certificate: Option<&Certificate>,
) -> Result<Verified, Refusal> {
    let now_ms = request.received_at_ms;
    let sent = Transmission::of(request)?;
    let certificate = certificate.ok_or_else(|| Refusal::Missing("the certificate".to_owned()))?;
    let checksum = crc32fast::hash(request.body);
    let slot = slot_of(webhook_ids, now_ms, |webhook_id| {
        let Some(webhook_id) = webhook_id_of(webhook_id) else {
            return false;
        };
        let signed = format!("{}|{}|{webhook_id}|{checksum}", sent.id, sent.time);
        certificate.signed(signed.as_bytes(), &sent.signature, now_ms)
    })?;
    in_time(sent.at_ms, now_ms, tolerance)?;
    Ok(Verified { slot })
}

// === impl Transmission ===

impl<'a> Transmission<'a> {
    fn of(request: &Request<'a>) -> Result<Self, Refusal> {
        let signature = single(request.headers, SIGNATURE)?.ok_or(Refusal::Unsigned)?;
        let text = |name: &str| {
            let text = single(request.headers, name)?;
            text.ok_or_else(|| Refusal::Missing(name.to_owned()))
        };
        let malformed = |name: &str| Refusal::Malformed(name.to_owned());
        let (id, time) = (text(ID)?, text(TIME)?);
        if !is_word(id) {
            return Err(malformed(ID));
        }
        let at_ms = Some(time).filter(|time| is_word(time)).and_then(instant_ms);
        let at_ms = at_ms.ok_or_else(|| malformed(TIME))?;
        if !text(ALGORITHM)?.eq_ignore_ascii_case(RSA_SHA256) {
            return Err(malformed(ALGORITHM));
        }
        let certificate_url = text(CERTIFICATE_URL)?;
        match STANDARD.decode(signature) {
            Ok(signature) if SIGNATURE_BYTES.contains(&signature.len()) => Ok(Self {
                id,
                time,
                at_ms,
                signature,
                certificate_url,
            }),
            _ => Err(malformed(SIGNATURE)),
        }
    }
}

/// Without `|`, or the signed text could be taken apart in two ways.
fn is_word(text: &str) -> bool {
    (1..=TEXT_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'|')
}

fn webhook_id_of(secret: &[u8]) -> Option<&str> {
    str::from_utf8(secret).ok().filter(|id| is_word(id))
}

/// Of a time such as `2016-09-21T22:00:46Z` (RFC 3339, always UTC).
fn instant_ms(time: &str) -> Option<i64> {
    let instant: jiff::Timestamp = time.strip_suffix('Z').and(time.parse().ok())?;
    Some(instant.as_millisecond())
}

#[cfg(test)]
pub(crate) mod tests;
