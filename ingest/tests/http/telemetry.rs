//! What a request leaves behind in log lines, metrics and traces, and what it must not.

use crate::{GITHUB, SECRET, app, fake_log::FakeLog, signed};
use axum::body::Body;
use http::Request;
use ingest::{IngestConfig, router};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use runtime::{Telemetry, TelemetryConfig};
use std::{
    io,
    sync::{Arc, Mutex},
};
use tower::ServiceExt;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::{fmt::MakeWriter, layer::SubscriberExt};

const REMOTE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const BODY: &str = "{\"action\":\"in-the-body\",\"secret\":\"of-the-body\"}";

#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Collects what this thread logs, until the guard is dropped.
    pub(crate) fn collect(&self) -> DefaultGuard {
        let layer = tracing_subscriber::fmt::layer().json();
        let subscriber = tracing_subscriber::registry().with(layer.with_writer(self.clone()));
        tracing::subscriber::set_default(subscriber)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn request(path: &str, sent: &'static str) -> Request<Body> {
    let mut request = Request::post(path).header("traceparent", REMOTE);
    for (name, value) in signed(BODY.as_bytes()) {
        request = request.header(name, value);
    }
    request.body(Body::from(sent)).unwrap()
}

#[tokio::test]
async fn requests_are_counted_logged_and_traced_and_nothing_secret_is() {
    let telemetry = Telemetry::start(&TelemetryConfig::default(), "0").unwrap();
    let lines = Lines::default();
    let tracers = SdkTracerProvider::builder().build();
    let subscriber = tracing_subscriber::registry()
        .with(
            tracing_subscriber::fmt::layer()
                .json()
                .with_writer(lines.clone()),
        )
        .with(tracing_opentelemetry::layer().with_tracer(tracers.tracer("test")));
    let guard = tracing::subscriber::set_default(subscriber);

    let log = FakeLog::new();
    let router = router(app(IngestConfig::default(), GITHUB, &log));
    for (path, sent, expected) in [
        ("/hooks/github", BODY, 202),
        ("/hooks/github", "{\"forged\":1}", 401),
        ("/hooks/some-scan", BODY, 404),
    ] {
        let response = router.clone().oneshot(request(path, sent)).await.unwrap();
        assert_eq!(response.status().as_u16(), expected);
    }
    drop(guard);

    told_and_nothing_secret(&lines.text());
    begins_a_trace(&log);
    one_connection_refused().await;
    // Other tests of this process are counted too.
    let metrics = telemetry.metrics().render().unwrap();
    for start in [
        "fencepost_ingest_requests_total{outcome=\"accepted\",source=\"github\"",
        "fencepost_ingest_requests_total{outcome=\"bad_signature\",source=\"github\"",
        "fencepost_ingest_requests_total{outcome=\"unknown_source\",source=\"unknown\"",
        "fencepost_ingest_secret_match_total{slot=\"0\",source=\"github\"",
        "fencepost_ingest_ack_seconds_count{source=\"github\"",
        "fencepost_ingest_body_bytes_count{source=\"github\"",
        "fencepost_ingest_connections_refused_total{reason=\"proxy_protocol\"",
    ] {
        assert!(
            metrics.lines().any(|line| line.starts_with(start)),
            "{start} not in {metrics}"
        );
    }
    assert!(metrics.contains("fencepost_ingest_in_flight_bytes"));
    assert!(!metrics.contains("some-scan"));
}

async fn one_connection_refused() {
    let config = IngestConfig {
        proxy_protocol: true,
        trusted_proxies: vec!["10.0.0.0/8".parse().unwrap()],
        ..IngestConfig::default()
    };
    let running = crate::server::start(config, &FakeLog::new()).await;
    let mut stream = running.connect().await;
    assert_eq!(crate::server::rest(&mut stream).await, "");
    running.stop().await;
}

fn told_and_nothing_secret(text: &str) {
    let signature = signed(BODY.as_bytes()).pop().unwrap().1;
    for secret in [SECRET, &signature, "of-the-body", "forged"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let told: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let answered: Vec<_> = told
        .iter()
        .map(|line| &line["fields"])
        .filter(|fields| fields["message"] == "webhook answered")
        .collect();
    assert_eq!(answered.len(), 2);
    assert_eq!(answered[0]["source"], "github");
    assert_eq!(answered[0]["delivery_id"], "d-1");
    assert_eq!(answered[0]["event_type"], "push.in-the-body");
    assert_eq!(answered[0]["verification"], "ok");
    assert_eq!(answered[0]["outcome"], "accepted");
    assert!(answered[0]["duration_ms"].is_u64());
    assert_eq!(answered[1]["verification"], "mismatch");
    assert_eq!(answered[1]["outcome"], "bad_signature");
}

/// The sender's trace is not gone on with.
fn begins_a_trace(log: &FakeLog) {
    let [record] = log.asked().try_into().unwrap();
    let mut headers = record.headers.iter();
    let (_, context) = headers
        .find(|(name, _)| name == schemas::header::TRACEPARENT)
        .unwrap();
    let context = std::str::from_utf8(context).unwrap();
    assert!(
        context.starts_with("00-") && context.ends_with("-01"),
        "{context}"
    );
    assert!(
        !context.contains("0af7651916cd43dd8448eb211c80319c"),
        "{context}"
    );
}
