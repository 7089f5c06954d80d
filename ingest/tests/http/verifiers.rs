//! Senders whose scheme is code, from end to end: as `make` makes their requests, so they are taken.

use crate::{NOW_MS, SECRET, fake_log::FakeLog, try_app};
use axum::body::Body;
use http::Request;
use ingest::{
    IngestConfig, Unsigned, router,
    rule::presets,
    sign::{Made, make},
};
use tower::ServiceExt;

const URL: &str = "https://hooks.example.com/hooks/s?tenant=7";
const FORM: &[u8] = b"SmsStatus=received&MessageSid=SM1&Body=It%27s+%F0%9F%8E%89";
const ADYEN: &[u8] = br#"{"live":"false","notificationItems":[{"NotificationRequestItem":{"pspReference":"P1","eventCode":"AUTHORISATION","success":"true","amount":{"value":100,"currency":"EUR"}}}]}"#;

fn made(preset: &str, secret: &str, body: &[u8]) -> Made {
    let rule = presets().unwrap().remove(preset).unwrap().verify;
    let unsigned = Unsigned {
        delivery_id: "token1",
        event_type: "",
        public_url: Some(URL),
        body,
        now_ms: NOW_MS,
    };
    make(&rule, &[secret.as_bytes()], &unsigned).unwrap()
}

/// Status, and key of the record if there is one.
async fn sent(preset: &str, made: &Made) -> (u16, Option<String>) {
    // Adyen's are hexadecimal.
    let secret = if preset == "adyen" { "h" } else { "s" };
    let sources = format!(
        "[s]\nscheme = \"{preset}\"\nsecrets = [{{ file = \"{secret}\" }}]\npublic_url = \"{URL}\"\n"
    );
    let log = FakeLog::new();
    let app = try_app(IngestConfig::default(), &sources, log.clone()).unwrap();
    let query = made.query.as_deref().unwrap_or_default();
    let mut request = Request::post(format!("/hooks/s?{query}"));
    for (name, value) in &made.headers {
        request = request.header(name, value);
    }
    let request = request.body(Body::from(made.body.clone())).unwrap();
    let response = router(app).oneshot(request).await.unwrap();
    let key = log
        .asked()
        .pop()
        .map(|record| String::from_utf8(record.key.to_vec()).unwrap());
    (response.status().as_u16(), key)
}

#[tokio::test]
async fn what_is_made_is_taken_and_what_is_signed_may_not_change() {
    let hex = hex::encode(SECRET);
    for (preset, secret, body, from, status, id) in [
        ("twilio", SECRET, FORM, "received", 204, "token1"),
        ("twilio", SECRET, b"{\"a\":1}", "1", 204, "token1"),
        (
            "mailgun",
            SECRET,
            b"{\"event-data\":{}}",
            "token1",
            200,
            "token1",
        ),
        ("adyen", &hex, ADYEN, "100", 200, "P1:AUTHORISATION:true"),
    ] {
        let mut made = made(preset, secret, body);
        assert_eq!(
            sent(preset, &made).await,
            (status, Some(id.to_owned())),
            "{preset}"
        );
        let text = String::from_utf8(made.body.clone()).unwrap();
        made.body = text.replacen(from, "2", 1).into_bytes();
        assert_eq!(sent(preset, &made).await, (401, None), "{preset}");
    }
}

#[tokio::test]
async fn without_a_token_of_twilios_the_id_is_of_what_is_signed() {
    let mut made = made("twilio", SECRET, FORM);
    made.headers
        .retain(|(name, _)| name != "i-twilio-idempotency-token");
    let (status, first) = sent("twilio", &made).await;
    assert_eq!(status, 204);
    made.body = b"Body=It's+%F0%9F%8E%89&SmsStatus=received&MessageSid=SM1".to_vec();
    assert_eq!(sent("twilio", &made).await, (204, first));
}

#[test]
fn paypals_can_not_be_made() {
    let rule = presets().unwrap().remove("paypal").unwrap().verify;
    let unsigned = Unsigned {
        delivery_id: "",
        event_type: "",
        public_url: None,
        body: b"{}",
        now_ms: NOW_MS,
    };
    assert!(make(&rule, &[SECRET.as_bytes()], &unsigned).is_err());
}
