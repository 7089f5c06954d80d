//! A log that acknowledges nothing: not every request waits for it.

use crate::{GITHUB, app, fake_log::FakeLog, router::until, signed};
use axum::{Router, body::Body};
use http::{Request, StatusCode};
use ingest::{IngestConfig, router};
use std::time::Duration;
use tokio::time::timeout;
use tower::ServiceExt;

/// What must happen happens within this time, far below the deadline of the patient source.
const PATIENCE: Duration = Duration::from_secs(20);

async fn post(router: &Router, source: &str) -> StatusCode {
    let mut request = Request::post(format!("/hooks/{source}"));
    for (name, value) in signed(b"{}") {
        request = request.header(name, value);
    }
    let request = request.body(Body::from("{}")).unwrap();
    let answered = router.clone().oneshot(request);
    let answered = timeout(PATIENCE, answered).await;
    answered.expect("hangs").unwrap().status()
}

#[tokio::test]
async fn one_request_at_a_time_waits_for_a_log_that_acknowledges_nothing() {
    let named = |name: &str, deadline: &str| {
        GITHUB.replace("[github]", &format!("[{name}]")) + &format!("deadline = \"{deadline}\"\n")
    };
    let sources = named("hasty", "50ms") + &named("patient", "10m");
    let log = FakeLog::holding();
    let router = router(app(IngestConfig::default(), &sources, &log));
    let unavailable = StatusCode::SERVICE_UNAVAILABLE;
    assert_eq!(post(&router, "hasty").await, unavailable);
    let trying = {
        let router = router.clone();
        tokio::spawn(async move { post(&router, "patient").await })
    };
    until(|| log.asked().len() == 2).await;
    for _ in 0..10 {
        assert_eq!(post(&router, "patient").await, unavailable);
    }
    assert_eq!(log.asked().len(), 2, "turned away at once");

    log.release();
    assert_eq!(trying.await.unwrap(), StatusCode::ACCEPTED);
    assert_eq!(post(&router, "patient").await, StatusCode::ACCEPTED);
}
