//! PayPal's way through ingest, with a server that takes the place of PayPal's.

use super::*;
use crate::{IngestConfig, SourceConfig, certificates, verify::paypal::tests::made_headers};
use event_log::memory::MemoryLog;
use figment::providers::{Format, Toml};
use runtime::Clock;
use schemas::Codec;
use std::collections::BTreeMap;

const SOURCES: &str = "[paypal]\nscheme = \"paypal\"\nsecrets = [{ file = \"id\" }]\n";
const BODY: &[u8] = br#"{"id":"WH-1","event_type":"PAYMENT.SALE.COMPLETED"}"#;
/// 2027-01-15T08:00:00Z
const NOW_MS: i64 = 1_800_000_000_000;

fn app(log: &MemoryLog, server: &certificates::tests::Server) -> App<MemoryLog> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("id"), "9XL90610J3647323C").unwrap();
    let sources: BTreeMap<String, SourceConfig> = figment::Figment::from(Toml::string(SOURCES))
        .extract()
        .unwrap();
    let app = App::new(
        IngestConfig::default(),
        sources,
        directory.path(),
        log.clone(),
        Codec::default(),
        Clock::manual(NOW_MS),
    );
    app.unwrap()
        .with_certificates(Arc::clone(&server.certificates))
}

async fn status(app: &App<MemoryLog>, url: &str, bend: impl FnOnce(&mut Request<Body>)) -> u16 {
    let mut request = Request::post("/hooks/paypal");
    for (name, value) in made_headers("2027-01-15T08:00:00Z", "9XL90610J3647323C", url, BODY) {
        request = request.header(name, value);
    }
    let mut request = request.body(Body::from(BODY)).unwrap();
    bend(&mut request);
    let response = receive(app.clone(), "paypal".to_owned(), request).await;
    let retry = response.headers().contains_key("retry-after");
    assert_eq!(retry, response.status().as_u16() == 503);
    response.status().as_u16()
}

#[tokio::test]
async fn a_request_of_paypals_is_taken_with_the_certificate_that_it_names() {
    let server = certificates::tests::Server::start().await;
    let log = MemoryLog::new(1, Clock::manual(NOW_MS));
    let app = app(&log, &server);
    assert_eq!(status(&app, &server.url("CERT-good"), |_| {}).await, 200);
    let record = log.records(Topic::Webhooks).pop().unwrap();
    assert_eq!(&record.key[..], b"WH-1");
    assert_eq!(server.asked(), 1);

    // Whose certificate can not be had now comes again; whose names another place than PayPal's does not.
    assert_eq!(status(&app, &server.url("CERT-gone"), |_| {}).await, 503);
    assert_eq!(server.asked(), 2);
    assert_eq!(status(&app, "https://evil.example/x", |_| {}).await, 400);

    let other = |request: &mut Request<Body>| *request.body_mut() = Body::from("{}");
    assert_eq!(status(&app, &server.url("CERT-good"), other).await, 401);
    assert_eq!(server.asked(), 2);
    assert_eq!(log.records(Topic::Webhooks).len(), 1);
}

#[tokio::test]
async fn nothing_is_fetched_for_a_request_that_could_not_be_taken() {
    let server = certificates::tests::Server::start().await;
    let log = MemoryLog::new(1, Clock::manual(NOW_MS));
    let app = app(&log, &server);
    let url = server.url("CERT-good");
    for (name, expected) in [
        ("paypal-transmission-sig", 401),
        ("paypal-transmission-id", 400),
        ("paypal-transmission-time", 400),
        ("paypal-auth-algo", 400),
        ("paypal-cert-url", 400),
    ] {
        let without = |request: &mut Request<Body>| drop(request.headers_mut().remove(name));
        assert_eq!(status(&app, &url, without).await, expected, "{name}");
        let twice = |request: &mut Request<Body>| {
            let value = request.headers()[name].clone();
            request.headers_mut().append(name, value);
        };
        assert_eq!(status(&app, &url, twice).await, 400, "{name}");
    }
    assert_eq!(server.asked(), 0);
}
