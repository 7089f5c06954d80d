//! What a source may say of media types and of its answer, and what is said to those who ask for no source.

use crate::{GITHUB, NOW_MS, SECRET, app, fake_log::FakeLog, signed};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, request::Builder};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use ingest::{IngestConfig, Unsigned, router, rule::presets, sign};
use std::{convert::Infallible, time::Duration};
use tower::ServiceExt;

const BODY: &[u8] = b"{}";

/// A webhook as GitHub signs it.
fn github(path: &str) -> Builder {
    let headers = signed(BODY).into_iter();
    headers.fold(Request::post(path), |request, (name, value)| {
        request.header(name, value)
    })
}

async fn ask(sources: &str, log: &FakeLog, request: Request<Body>) -> Response {
    let router = router(app(IngestConfig::default(), sources, log));
    router.oneshot(request).await.unwrap()
}

async fn body_of(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn only_the_media_types_of_a_source_are_taken() {
    let only =
        format!("{GITHUB}content_types = [\"Application/JSON\", \"application/cloudevents+json\"]");
    for (kind, expected) in [
        (Some("application/json"), 202),
        (Some("application/json; charset=utf-8"), 202),
        (Some("APPLICATION/Json ;x=y"), 202),
        (Some("application/cloudevents+json"), 202),
        (Some("application/x-www-form-urlencoded"), 415),
        (Some("application/jsonp"), 415),
        (Some("text/plain, application/json"), 415),
        (Some(""), 415),
        (None, 415),
    ] {
        for (sources, expected) in [(only.as_str(), expected), (GITHUB, 202)] {
            let log = FakeLog::new();
            let mut request = github("/hooks/github");
            if let Some(kind) = kind {
                request = request.header("content-type", kind);
            }
            let request = request.body(Body::from(BODY)).unwrap();
            let response = ask(sources, &log, request).await;
            assert_eq!(response.status().as_u16(), expected, "{kind:?}");
            assert_eq!(log.asked().len(), usize::from(expected == 202), "{kind:?}");
            if expected == 415 {
                let body = body_of(response).await;
                assert!(
                    body.contains("urn:fencepost:problem:unsupported_media_type"),
                    "{body}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_source_is_answered_as_it_wants() {
    let answer = |text: &str| format!("{GITHUB}events = [\"push\"]\nanswer = {{ {text} }}");
    for (sources, status, kind, body) in [
        (
            answer("status = 200, body = \"[accepted]\""),
            200,
            Some("text/plain"),
            "[accepted]",
        ),
        (
            answer("status = 201, body = \"<ok/>\", content_type = \"text/xml\""),
            201,
            Some("text/xml"),
            "<ok/>",
        ),
        (answer("status = 204"), 204, Some("text/plain"), ""),
        (format!("{GITHUB}events = [\"push\"]"), 202, None, ""),
    ] {
        for event in ["push", "issues"] {
            let log = FakeLog::new();
            let mut request = github("/hooks/github").body(Body::from(BODY)).unwrap();
            let headers = request.headers_mut();
            headers.insert("x-github-event", event.parse().unwrap());
            let response = ask(&sources, &log, request).await;
            // One that goes no further is told so by nothing but the usual 200.
            let usual = if status == 202 && event == "issues" {
                200
            } else {
                status
            };
            assert_eq!(response.status().as_u16(), usual);
            let found = response.headers().get("content-type");
            assert_eq!(found.map(|value| value.to_str().unwrap()), kind);
            assert_eq!(body_of(response).await, body);
            assert_eq!(log.asked().len(), usize::from(event == "push"));
        }
        // What is refused is never answered so.
        let request = github("/hooks/github").body(Body::from("[]")).unwrap();
        let response = ask(&sources, &FakeLog::new(), request).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        let request = github("/hooks/github").body(Body::from(BODY)).unwrap();
        let response = ask(&sources, &FakeLog::not_ready(), request).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

fn shape(headers: &HeaderMap) -> Vec<(String, String)> {
    let pair = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        (name.to_string(), value.to_str().unwrap().to_owned())
    };
    headers.iter().map(pair).collect()
}

/// Whatever is sent, however it is signed: the same answer to the letter.
#[tokio::test]
async fn who_asks_for_no_source_learns_nothing_of_the_others() {
    let mut answers = Vec::new();
    let log = FakeLog::new();
    let router = router(app(IngestConfig::default(), GITHUB, &log));
    for (name, preset) in presets().unwrap() {
        let unsigned = Unsigned {
            delivery_id: "d",
            event_type: "e",
            public_url: Some("https://hooks.example.com/hooks/nobody"),
            body: BODY,
            now_ms: NOW_MS,
        };
        // Those that can not be signed here are sent unsigned.
        let headers = sign(&preset.verify, &[SECRET.as_bytes()], &unsigned).unwrap_or_default();
        for kind in ["application/json", "application/x-www-form-urlencoded"] {
            for body in [
                BODY,
                b"",
                b"ssl_check=1",
                br#"{"type":"url_verification","challenge":"c"}"#,
            ] {
                let mut request =
                    Request::post("/hooks/nobody?hub.mode=subscribe").header("content-type", kind);
                for (name, value) in &headers {
                    request = request.header(name, value);
                }
                let request = request.body(Body::from(body)).unwrap();
                let response = router.clone().oneshot(request).await.unwrap();
                assert_eq!(response.status(), StatusCode::NOT_FOUND, "{name}");
                answers.push((shape(response.headers()), body_of(response).await));
            }
        }
    }
    assert_eq!(log.asked(), []);
    assert!(answers.len() > 200);
    assert!(answers.iter().all(|answer| answer == &answers[0]));
}

/// As with a source that there is: method, size and coding are looked at, and the body is waited for.
#[tokio::test]
async fn a_request_to_no_source_is_treated_like_one_to_a_source() {
    let sources = GITHUB.replace("body_bytes_max = 1000", "");
    let [large, huge] = [1 << 20, 26_214_401].map(|bytes| vec![b'x'; bytes]);
    let post = || Request::post("/hooks/nobody");
    let cases = [
        (Request::get("/hooks/nobody").body(Body::empty()), 405),
        (Request::head("/hooks/nobody").body(Body::empty()), 405),
        (
            post()
                .header("content-encoding", "gzip")
                .body(Body::from(BODY)),
            415,
        ),
        (
            post()
                .header("transfer-encoding", "gzip, chunked")
                .body(Body::from(BODY)),
            400,
        ),
        (post().body(Body::from(large)), 404),
        (post().body(Body::from(huge)), 413),
    ];
    for (request, expected) in cases {
        let log = FakeLog::new();
        let response = ask(&sources, &log, request.unwrap()).await;
        assert_eq!(response.status().as_u16(), expected);
        assert_eq!(log.asked(), []);
    }
    let config = IngestConfig {
        body_timeout: Duration::from_millis(50),
        ..IngestConfig::default()
    };
    let never = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let request = post().body(Body::new(never)).unwrap();
    let router = router(app(config, &sources, &FakeLog::new()));
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
}
