use super::*;
use crate::verify::paypal::tests::made_headers;
use figment::providers::{Format, Toml};
use http::Request as HttpRequest;

const WEBHOOK_ID: &str = "9XL90610J3647323C";
const URL: &str = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42";
const BODY: &[u8] = br#"{"id":"WH-1","event_type":"PAYMENT.SALE.COMPLETED"}"#;
/// 2027-01-15T08:00:00Z
const NOW_MS: i64 = 1_800_000_000_000;

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/certificates/", $name))
    };
}

fn trial(text: &str, secret: &str) -> Trial {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("secret"), secret).unwrap();
    let config = figment::Figment::from(Toml::string(text))
        .extract()
        .unwrap();
    Trial::open("it", config, dir.path()).unwrap()
}

fn paypal() -> Trial {
    trial(
        "scheme = \"paypal\"\nsecrets = [{ file = \"secret\" }]",
        WEBHOOK_ID,
    )
}

fn sent(url: &str, body: &[u8]) -> Parts {
    let mut request = HttpRequest::post("/");
    for (name, value) in made_headers("2027-01-15T08:00:00Z", WEBHOOK_ID, url, body) {
        request = request.header(name, value);
    }
    request.body(()).unwrap().into_parts().0
}

#[test]
fn paypals_certificate_comes_from_a_file() {
    let mut trial = paypal();
    let judged = trial.judge(&sent(URL, BODY), BODY, NOW_MS);
    assert!(!judged.taken && judged.lacks_certificate, "{judged:?}");

    assert!(trial.give_certificate(b"nothing").is_err());
    assert!(trial.give_certificate(pem!("other.pem")).is_err());
    trial.give_certificate(pem!("paypal.pem")).unwrap();
    let judged = trial.judge(&sent(URL, BODY), BODY, NOW_MS);
    assert!(judged.taken && !judged.lacks_certificate, "{judged:?}");
    assert_eq!((judged.status, judged.slot), (200, Some(0)));

    let judged = trial.judge(&sent(URL, b"{}"), BODY, NOW_MS);
    assert_eq!((judged.status, judged.outcome), (401, "bad_signature"));
    let judged = trial.judge(&sent("https://evil.example/x", BODY), BODY, NOW_MS);
    assert_eq!((judged.status, judged.outcome), (400, "malformed"));
}

#[test]
fn a_handshake_is_no_webhook() {
    let trial = trial(
        "scheme = \"meta\"\nsecrets = [{ file = \"secret\" }]\nhandshake_token = { file = \"secret\" }",
        "the-verify-token",
    );
    let judge = |query: &str| {
        let request = HttpRequest::get(format!("/?{query}")).body(()).unwrap();
        trial.judge(&request.into_parts().0, b"", NOW_MS)
    };
    let judged = judge("hub.mode=subscribe&hub.verify_token=the-verify-token&hub.challenge=1");
    assert_eq!((judged.status, judged.outcome), (200, "handshake"));
    assert_eq!(judged.webhook, None);
    let judged = judge("hub.mode=subscribe&hub.verify_token=another&hub.challenge=1");
    assert_eq!((judged.taken, judged.status), (false, 401));
    assert_eq!(trial.hide("a the-verify-token"), "a [secret]");
}
