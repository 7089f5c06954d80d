//! Outgoing signatures: what a receiver checks to know that a request is ours and whole.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use schemas::Webhook;
use sha2::Sha256;
use std::fmt::Write;

/// Prefix of a Standard Webhooks secret; what follows is base64 of the key.
const SECRET_PREFIX: &[u8] = b"whsec_";
/// First framed field: keeps these signatures apart from any other use of the same key.
const FRAMED_LABEL: &[u8] = b"fencepost-framed-1";

/// A secret that can not be used as a key. Never holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The part after `whsec_` is no base64.
    #[error("starts with whsec_ but the rest is no base64")]
    Base64,
    /// No bytes.
    #[error("is empty")]
    Empty,
}

/// `webhook-id` of a webhook: `<source>_<delivery id>`, the same for every attempt and repeat. Bytes other than visible
/// ASCII, and `.` (the signature's separator) and `%`, are written as `%XX`, so that different ids stay different.
pub fn webhook_id(source: &str, delivery_id: &str) -> String {
    let mut id = String::with_capacity(source.len() + delivery_id.len() + 1);
    for (at, part) in [source, delivery_id].into_iter().enumerate() {
        if at > 0 {
            id.push('_');
        }
        for byte in part.bytes() {
            // `_` in a source's name would make the border between the two parts ambiguous.
            let border = at == 0 && byte == b'_';
            if byte.is_ascii_graphic() && byte != b'.' && byte != b'%' && !border {
                id.push(char::from(byte));
            } else if write!(id, "%{byte:02X}").is_err() {
                // Writing to a String does not fail.
                return id;
            }
        }
    }
    id
}

/// The key bytes of a secret: base64 after `whsec_`, else the bytes themselves.
///
/// # Errors
/// See [`KeyError`].
pub fn key_bytes(secret: &[u8]) -> Result<Vec<u8>, KeyError> {
    let key = match secret.strip_prefix(SECRET_PREFIX) {
        Some(encoded) => STANDARD.decode(encoded).or(Err(KeyError::Base64))?,
        None => secret.to_vec(),
    };
    if key.is_empty() {
        Err(KeyError::Empty)
    } else {
        Ok(key)
    }
}

/// One Standard Webhooks v1 signature (`v1,<base64>`) over `id.timestamp.body`.
/// <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>
pub fn standard_webhooks(key: &[u8], id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let timestamp = timestamp_s.to_string();
    let tag = tag(
        key,
        [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].into_iter(),
    );
    format!("v1,{tag}")
}

/// One framed signature (`f1,<base64>`): also covers event type and content type. Each field (label, timestamp, id,
/// event type, content type, body) is preceded by its length in bytes as 8 bytes, big-endian.
pub fn framed(key: &[u8], id: &str, timestamp_s: i64, webhook: &Webhook) -> String {
    let timestamp = timestamp_s.to_string();
    let fields: [&[u8]; 6] = [
        FRAMED_LABEL,
        timestamp.as_bytes(),
        id.as_bytes(),
        webhook.event_type.as_bytes(),
        webhook
            .content_type
            .as_deref()
            .unwrap_or_default()
            .as_bytes(),
        &webhook.body,
    ];
    let lengths = fields.map(|field| (field.len() as u64).to_be_bytes());
    let parts = lengths
        .iter()
        .zip(fields)
        .flat_map(|(length, field)| [length.as_slice(), field]);
    format!("f1,{}", tag(key, parts))
}

fn tag<'a>(key: &[u8], parts: impl Iterator<Item = &'a [u8]>) -> String {
    // HMAC takes keys of every length, so this never fails; an empty tag would verify nowhere.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return String::new();
    };
    for part in parts {
        mac.update(part);
    }
    STANDARD.encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn webhook(event_type: &str, body: &'static [u8]) -> Webhook {
        Webhook {
            source: "github".to_owned(),
            delivery_id: "1".to_owned(),
            event_type: event_type.to_owned(),
            content_type: Some("application/json".to_owned()),
            headers: Vec::new(),
            body: Bytes::from_static(body),
            received_at_ms: 0,
            generation: 0,
        }
    }

    /// The published vectors of the svix and standardwebhooks libraries.
    #[test]
    fn standard_webhooks_vectors() {
        for (secret, id, timestamp_s, body, signature) in [
            (
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                1_614_265_330,
                r#"{"test": 2432232314}"#,
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
            (
                "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
                "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
                1_649_367_553,
                r#"{"email":"test@example.com","username":"test_user"}"#,
                "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
            ),
        ] {
            let key = key_bytes(secret.as_bytes()).unwrap();
            assert_eq!(
                standard_webhooks(&key, id, timestamp_s, body.as_bytes()),
                signature
            );
        }
    }

    #[test]
    fn framed_fields_can_not_be_shifted() {
        let sign = |webhook: &Webhook| framed(b"key", "id", 7, webhook);
        let base = sign(&webhook("push", b"body"));
        assert!(base.starts_with("f1,"));
        assert_ne!(base, sign(&webhook("pus", b"hbody")));
        assert_ne!(base, sign(&webhook("pull", b"body")));
        let mut other = webhook("push", b"body");
        other.content_type = Some("text/plain".to_owned());
        assert_ne!(base, sign(&other));
        assert_ne!(base, framed(b"key", "id", 8, &webhook("push", b"body")));
    }

    #[test]
    fn keys() {
        assert_eq!(key_bytes(b"plain"), Ok(b"plain".to_vec()));
        assert_eq!(key_bytes(b"whsec_!!"), Err(KeyError::Base64));
        assert_eq!(key_bytes(b"whsec_"), Err(KeyError::Empty));
        assert_eq!(key_bytes(b""), Err(KeyError::Empty));
    }

    #[test]
    fn ids_are_readable() {
        let guid = "72d3162e-cc78-11e3-81ab-4c9367dc0958";
        assert_eq!(webhook_id("github", guid), format!("github_{guid}"));
        assert_eq!(webhook_id("a_b", "c.d%é"), "a%5Fb_c%2Ed%25%C3%A9");
    }

    proptest! {
        #[test]
        fn ids_are_unique_and_fit_a_header(
            a in ("[a-z_.-]{1,8}", "\\PC{1,12}"),
            b in ("[a-z_.-]{1,8}", "\\PC{1,12}"),
        ) {
            let (x, y) = (webhook_id(&a.0, &a.1), webhook_id(&b.0, &b.1));
            prop_assert!(x.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.'));
            prop_assert_eq!(a == b, x == y);
        }
    }
}
