//! What a receiver gets: headers, body, signatures.

use crate::receiver::{Receiver, destination, send, sender, webhook};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use dispatcher::{HttpSend, SigningConfig, SigningScheme};
use hmac::{Hmac, KeyInit, Mac};
use runtime::{Clock, SecretRef};
use schemas::{Header, OutcomeKind, Webhook};
use sha2::Sha256;
use std::{collections::BTreeMap, path::Path};

#[tokio::test]
async fn headers_pass_but_those_of_the_connection_and_of_trust() {
    let receiver = Receiver::willing().await;
    let dropped = [
        ("connection", "keep-alive, x-one"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic eDp5"),
        ("te", "trailers"),
        ("trailer", "x-sum"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("host", "evil.example"),
        ("content-length", "99999"),
        ("expect", "100-continue"),
        ("cookie", "a=b"),
        ("authorization", "Bearer secret"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("webhook-id", "forged"),
        ("webhook-signature", "v1,forged"),
        ("webhook-timestamp", "1"),
        ("webhook-attempt", "9"),
        ("idempotency-key", "forged"),
        ("content-type", "text/forged"),
        ("bad name", "x"),
        ("x-split", "a\r\nx-injected: 1"),
    ];
    let passed: [(&str, &[u8]); 5] = [
        ("user-agent", b"GitHub-Hookshot/044aadd"),
        ("x-github-event", b"push"),
        ("x-twice", b"one"),
        ("x-twice", b"two \xff\xfe"),
        ("accept", b"*/*"),
    ];
    let header = |name: &str, value: &[u8]| Header {
        name: name.to_owned(),
        value: Bytes::copy_from_slice(value),
    };
    let mut webhook = webhook(b"{}");
    webhook.headers = dropped
        .iter()
        .map(|(name, value)| header(name, value.as_bytes()))
        .chain(passed.iter().map(|(name, value)| header(name, value)))
        .collect();
    let outcome = send(&sender(destination(&receiver.url())), &webhook).await;
    assert_eq!(outcome.kind, OutcomeKind::Delivered, "{outcome:?}");

    let request = receiver.requests().remove(0);
    assert_eq!(request.line, "POST /hooks?a=b%20c HTTP/1.1");
    for (name, value) in dropped {
        assert!(!request.all(name).contains(&value.as_bytes()), "{name}");
    }
    assert!(request.all("x-injected").is_empty());
    for (name, value) in passed {
        assert!(request.all(name).contains(&value), "{name}");
    }
    assert_eq!(request.all("x-twice"), [b"one".as_slice(), b"two \xff\xfe"]);
    assert_eq!(request.one("user-agent"), "GitHub-Hookshot/044aadd");
    assert_eq!(
        request.one("content-type"),
        "application/json; charset=utf-8"
    );
    assert_eq!(request.one("host"), receiver.address.to_string());
    assert_eq!(request.one("webhook-id"), "github_d1");
    assert_eq!(request.one("idempotency-key"), "github_d1");
    assert_eq!(request.one("webhook-attempt"), "3");
    assert_eq!(request.one("webhook-event-type"), "push");
    assert!(
        request.all("webhook-signature").is_empty(),
        "unsigned by config"
    );
    assert!(
        request.all("accept-encoding").is_empty(),
        "nothing is inflated"
    );
}

#[tokio::test]
async fn the_body_is_exactly_the_bytes_received() {
    let large: Vec<u8> = (0..1 << 20)
        .map(|at: u32| at.to_le_bytes()[at as usize % 4])
        .collect();
    let bodies: [&[u8]; 4] = [
        b"",
        b"{\"a\":\r\n 1}  \n\n",
        b"\0\xff\xfe\x1b\r\n\r\n0\r\n\r\n",
        &large,
    ];
    let receiver = Receiver::willing().await;
    let sender = sender(destination(&receiver.url()));
    for body in bodies {
        let outcome = send(&sender, &webhook(body)).await;
        assert_eq!(outcome.kind, OutcomeKind::Delivered, "{outcome:?}");
        let request = receiver.requests().pop().unwrap();
        assert!(
            request.body == body,
            "{} bytes became {}",
            body.len(),
            request.body.len()
        );
        assert!(request.all("transfer-encoding").is_empty());
    }
    assert_eq!(receiver.connections(), 1, "the connection is used again");
}

#[tokio::test]
async fn a_webhook_without_type_or_event_says_nothing_of_them() {
    let receiver = Receiver::willing().await;
    let bare = Webhook {
        event_type: String::new(),
        content_type: None,
        ..webhook(b"x")
    };
    send(&sender(destination(&receiver.url())), &bare).await;
    let request = receiver.requests().remove(0);
    assert!(request.all("content-type").is_empty());
    assert!(request.all("webhook-event-type").is_empty());
    assert!(request.one("user-agent").starts_with("fencepost/"));
}

/// The receivers' own library accepts it with either key.
#[tokio::test]
async fn standard_webhooks_with_two_keys_in_rotation() {
    let keys = [
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    ];
    let receiver = Receiver::willing().await;
    let signed = signing_sender(&receiver, SigningScheme::StandardWebhooks, &keys);
    let outcome = send(&signed, &webhook(b"{\"test\": 1}")).await;
    assert_eq!(outcome.kind, OutcomeKind::Delivered, "{outcome:?}");
    let request = receiver.requests().remove(0);
    let mut headers = http::HeaderMap::new();
    for (name, value) in &request.headers {
        let name: http::HeaderName = name.parse().unwrap();
        headers.insert(name, http::HeaderValue::from_bytes(value).unwrap());
    }
    for key in keys {
        let verifier = standardwebhooks::Webhook::new(key).unwrap();
        verifier.verify(&request.body, &headers).unwrap();
        assert!(verifier.verify(b"{\"test\": 2}", &headers).is_err());
    }
    let other = standardwebhooks::Webhook::new("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
    assert!(other.verify(&request.body, &headers).is_err());
    assert_eq!(request.one("webhook-signature").split(' ').count(), 2);
}

/// As the documentation of the scheme tells it to a receiver, from the request alone.
#[tokio::test]
async fn the_framed_scheme_covers_types_too() {
    let keys = ["plain secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"];
    let receiver = Receiver::willing().await;
    let signed = signing_sender(&receiver, SigningScheme::Framed, &keys);
    send(&signed, &webhook(b"body \xff")).await;
    let request = receiver.requests().remove(0);
    let signatures: Vec<&str> = request.one("webhook-signature").split(' ').collect();
    let expected = |key: &[u8], event_type: &str| {
        let mut message = Vec::new();
        for field in [
            b"fencepost-framed-1".as_slice(),
            request.one("webhook-timestamp").as_bytes(),
            request.one("webhook-id").as_bytes(),
            event_type.as_bytes(),
            request.one("content-type").as_bytes(),
            &request.body,
        ] {
            message.extend_from_slice(&u64::try_from(field.len()).unwrap().to_be_bytes());
            message.extend_from_slice(field);
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        mac.update(&message);
        format!("f1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    };
    let second = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let event_type = request.one("webhook-event-type");
    assert_eq!(
        signatures,
        [
            expected(keys[0].as_bytes(), event_type),
            expected(&second, event_type)
        ]
    );
    assert!(!signatures.contains(&expected(&second, "pull").as_str()));
}

/// Secrets whose time is over sign nothing, and what must be signed is not sent unsigned.
#[tokio::test]
async fn nothing_is_sent_unsigned_where_a_signature_is_configured() {
    for scheme in [SigningScheme::StandardWebhooks, SigningScheme::Framed] {
        let receiver = Receiver::willing().await;
        let over = Some("2020-01-01T00:00:00Z");
        let sender = signing_sender_until(&receiver, scheme, &["one", "two"], over);
        let outcome = send(&sender, &webhook(b"{}")).await;
        assert_eq!(outcome.kind, OutcomeKind::Failed, "{outcome:?}");
        assert_eq!(outcome.status, None);
        assert_eq!((receiver.connections(), receiver.requests().len()), (0, 0));

        let good = Some("9000-01-01T00:00:00Z");
        let sender = signing_sender_until(&receiver, scheme, &["one"], good);
        let outcome = send(&sender, &webhook(b"{}")).await;
        assert_eq!(outcome.kind, OutcomeKind::Delivered, "{outcome:?}");
        assert!(
            !receiver
                .requests()
                .remove(0)
                .all("webhook-signature")
                .is_empty()
        );
    }
}

fn signing_sender(receiver: &Receiver, scheme: SigningScheme, keys: &[&str]) -> HttpSend {
    signing_sender_until(receiver, scheme, keys, None)
}

fn signing_sender_until(
    receiver: &Receiver,
    scheme: SigningScheme,
    keys: &[&str],
    not_after: Option<&str>,
) -> HttpSend {
    let files = tempfile::tempdir().unwrap();
    let mut secrets = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let file = format!("key-{at}");
        std::fs::write(files.path().join(&file), format!("{key}\n")).unwrap();
        secrets.push(SecretRef {
            env: None,
            file: Some(file.into()),
            not_after: not_after.map(|it| it.parse().unwrap()),
        });
    }
    let mut config = destination(&receiver.url());
    config.signing = Some(SigningConfig { scheme, secrets });
    let destinations = BTreeMap::from([("billing".to_owned(), config)]);
    let base: &Path = files.path();
    HttpSend::new(&destinations, base, Clock::system()).unwrap()
}
