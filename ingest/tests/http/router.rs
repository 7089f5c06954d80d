//! Every answer, without a port.

use crate::{GITHUB, NOW_MS, SECRET, app, fake_log::FakeLog, signed};
use axum::{body::Body, response::Response};
use bytes::Bytes;
use event_log::ProduceError;
use http::{Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use ingest::{IngestConfig, router};
use schemas::Topic;
use std::{convert::Infallible, time::Duration};
use tower::ServiceExt;

const BODY: &[u8] = b"{\"a\": \"\xf0\x9f\x98\x80\",\r\n \"not utf-8\": \"\xff\"}";

/// A request as GitHub sends it; `change` bends it.
fn request(body: &[u8], change: impl FnOnce(&mut Request<Body>)) -> Request<Body> {
    let mut request = Request::post("/hooks/github");
    for (name, value) in signed(body) {
        request = request.header(name, value);
    }
    let request = request.header("content-type", "application/json");
    let mut request = request.body(Body::from(body.to_vec())).unwrap();
    change(&mut request);
    request
}

async fn ask(log: &FakeLog, request: Request<Body>) -> Response {
    router(app(IngestConfig::default(), GITHUB, log))
        .oneshot(request)
        .await
        .unwrap()
}

/// Status and the last part of the problem's type; checks the form of the answer.
async fn problem(response: Response) -> (u16, String) {
    let status = response.status();
    let retry = response.headers().contains_key("retry-after");
    let later = [
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    assert_eq!(retry, later.contains(&status));
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&body).unwrap();
    assert!(!text.contains(SECRET));
    let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(json["status"], status.as_u16());
    assert!(!json["title"].as_str().unwrap().is_empty());
    assert!(!json["detail"].as_str().unwrap().is_empty());
    assert_eq!(json.as_object().unwrap().len(), 4);
    let kind = json["type"]
        .as_str()
        .unwrap()
        .strip_prefix("urn:fencepost:problem:")
        .unwrap();
    (status.as_u16(), kind.to_owned())
}

async fn refused(request: Request<Body>) -> (u16, String) {
    let log = FakeLog::new();
    let found = problem(ask(&log, request).await).await;
    assert_eq!(log.asked(), [], "{found:?} went to the log");
    found
}

fn is(status: u16, kind: &str) -> (u16, String) {
    (status, kind.to_owned())
}

#[tokio::test]
async fn what_is_accepted_stands_in_the_log_byte_for_byte() {
    let log = FakeLog::new();
    let request = request(BODY, |request| {
        let headers = request.headers_mut();
        headers.insert("authorization", "Basic eDp5".parse().unwrap());
        headers.insert(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
                .parse()
                .unwrap(),
        );
    });
    let response = ask(&log, request).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);

    let [record] = log.asked().try_into().unwrap();
    assert_eq!(record.topic, Topic::Webhooks);
    assert_eq!(record.key, "d-1");
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_ref()))
        .collect();
    let expected: [(&str, &[u8]); 3] = [
        ("content-type", b"application/avro"),
        ("fencepost-source", b"github"),
        ("fencepost-event-type", b"push"),
    ];
    assert_eq!(headers, expected);

    let webhook = schemas::Codec::default()
        .decode_webhook(&record.value)
        .unwrap();
    assert_eq!(webhook.body, BODY);
    assert_eq!(webhook.source, "github");
    assert_eq!(webhook.delivery_id, "d-1");
    assert_eq!(webhook.event_type, "push");
    assert_eq!(webhook.content_type.as_deref(), Some("application/json"));
    assert_eq!(webhook.received_at_ms, NOW_MS);
    assert_eq!(webhook.generation, 0);
    let names: Vec<_> = webhook
        .headers
        .iter()
        .map(|header| header.name.as_str())
        .collect();
    assert_eq!(
        names,
        ["x-github-delivery", "x-github-event", "x-hub-signature-256"]
    );
}

#[tokio::test]
async fn a_body_in_many_frames_is_the_same_body() {
    let log = FakeLog::new();
    let body: Vec<u8> = (0..=255).cycle().take(1_000).collect();
    for frame_bytes in [1, 7, 999, 1_000] {
        let frames: Vec<_> = body.chunks(frame_bytes).map(<[u8]>::to_vec).collect();
        let response = ask(
            &log,
            request(&body, |request| *request.body_mut() = stream(frames)),
        )
        .await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
    }
    for record in log.asked() {
        let webhook = schemas::Codec::default()
            .decode_webhook(&record.value)
            .unwrap();
        assert_eq!(webhook.body, body);
    }
}

#[tokio::test]
async fn what_is_not_signed_is_refused() {
    let unsigned = request(BODY, |request| {
        drop(request.headers_mut().remove("x-hub-signature-256"))
    });
    assert_eq!(refused(unsigned).await, is(401, "bad_signature"));
    let changed = request(BODY, |request| *request.body_mut() = Body::from("{}"));
    assert_eq!(refused(changed).await, is(401, "bad_signature"));
    let repeated = request(BODY, |request| {
        let signature = request.headers()["x-hub-signature-256"].clone();
        request
            .headers_mut()
            .append("x-hub-signature-256", signature);
    });
    assert_eq!(refused(repeated).await, is(400, "malformed"));
}

#[tokio::test]
async fn what_is_signed_too_long_ago_is_refused() {
    let sources = "[slack]\nscheme = \"slack\"\nsecrets = [{ file = \"s\" }]\ndelivery_id = [{ hash = true }]\n";
    for (age_ms, expected) in [(0, 200), (301_000, 401)] {
        let rule = ingest::rule::presets()
            .unwrap()
            .remove("slack")
            .unwrap()
            .verify;
        let now_ms = NOW_MS - age_ms;
        let unsigned = ingest::Unsigned {
            delivery_id: "",
            event_type: "",
            public_url: None,
            body: BODY,
            now_ms,
        };
        let mut request = Request::post("/hooks/slack");
        for (name, value) in ingest::sign(&rule, &[SECRET.as_bytes()], &unsigned).unwrap() {
            if name.starts_with("x-slack") {
                request = request.header(name, value);
            }
        }
        let log = FakeLog::new();
        let app = app(IngestConfig::default(), sources, &log);
        let response = router(app)
            .oneshot(request.body(Body::from(BODY)).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status().as_u16(), expected);
    }
}

#[tokio::test]
async fn a_secret_is_good_until_its_end() {
    // 1_700_000_000 is 2023-11-14T22:13:20Z.
    for (not_after, expected) in [("2023-11-14T22:13:20Z", 202), ("2023-11-14T22:13:19Z", 401)] {
        let secret = format!("{{ file = \"s\", not_after = \"{not_after}\" }}");
        let sources = GITHUB.replace("{ file = \"s\" }", &secret);
        let app = app(IngestConfig::default(), &sources, &FakeLog::new());
        let response = router(app).oneshot(request(BODY, |_| {})).await.unwrap();
        assert_eq!(response.status().as_u16(), expected);
    }
}

#[tokio::test]
async fn only_a_source_s_own_path_is_one() {
    for path in [
        "/hooks/gitlab",
        "/hooks/",
        "/hooks",
        "/",
        "/hooks/github/x",
        "/hooks/git%FFhub",
        "/hooks/GitHub",
    ] {
        let request = request(BODY, |request| *request.uri_mut() = path.parse().unwrap());
        assert_eq!(refused(request).await, is(404, "unknown_source"), "{path}");
    }
    let query = request(BODY, |request| {
        *request.uri_mut() = "/hooks/github?a=b".parse().unwrap()
    });
    assert_eq!(
        ask(&FakeLog::new(), query).await.status(),
        StatusCode::ACCEPTED
    );
}

#[tokio::test]
async fn an_id_must_be_there_once_and_readable() {
    let missing = request(BODY, |request| {
        drop(request.headers_mut().remove("x-github-delivery"))
    });
    assert_eq!(refused(missing).await, is(400, "malformed"));
    let long = "x".repeat(257);
    for id in ["", "\t", long.as_str()] {
        let bent = request(BODY, |request| {
            request
                .headers_mut()
                .insert("x-github-delivery", id.parse().unwrap());
        });
        assert_eq!(refused(bent).await, is(400, "malformed"), "{id:?}");
    }
    let twice = request(BODY, |request| {
        request
            .headers_mut()
            .append("x-github-delivery", "d-2".parse().unwrap());
    });
    assert_eq!(refused(twice).await, is(400, "malformed"));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_announced_or_not() {
    let body = vec![b'x'; 1_001];
    assert_eq!(refused(request(&body, |_| {})).await, is(413, "too_large"));
    let frames = vec![vec![b'x'; 1_000], vec![b'x'; 1]];
    let streamed = request(&body, |request| *request.body_mut() = stream(frames));
    assert_eq!(refused(streamed).await, is(413, "too_large"));
    let log = FakeLog::new();
    let limit = vec![b'x'; 1_000];
    assert_eq!(
        ask(&log, request(&limit, |_| {})).await.status(),
        StatusCode::ACCEPTED
    );
}

/// Large bodies are verified elsewhere; nothing else may differ.
#[tokio::test]
async fn a_large_body_is_verified_like_a_small_one() {
    let large = GITHUB.replace("1000", "5_000_000");
    let body: Vec<u8> = (0..=255).cycle().take(4_000_000).collect();
    for (forged, status) in [
        (false, StatusCode::ACCEPTED),
        (true, StatusCode::UNAUTHORIZED),
    ] {
        let log = FakeLog::new();
        let sent = request(&body, |request| {
            if forged {
                let mut body = body.clone();
                body[3_999_999] ^= 1;
                *request.body_mut() = Body::from(body);
            }
        });
        let response = router(app(IngestConfig::default(), &large, &log))
            .oneshot(sent)
            .await
            .unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(log.asked().len(), usize::from(!forged));
        for record in log.asked() {
            let webhook = schemas::Codec::default().decode_webhook(&record.value);
            assert_eq!(webhook.unwrap().body, body);
        }
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused() {
    let broken = request(BODY, |request| {
        let frames = [
            Ok(Frame::data(Bytes::from_static(BODY))),
            Err(std::io::Error::other("reset")),
        ];
        *request.body_mut() = Body::new(StreamBody::new(futures::stream::iter(frames)));
    });
    assert_eq!(refused(broken).await, is(400, "broken_body"));
}

#[tokio::test]
async fn nothing_is_decompressed() {
    for encoding in ["gzip", "zstd", "identity, gzip", ""] {
        let encoded = request(BODY, |request| {
            request
                .headers_mut()
                .insert("content-encoding", encoding.parse().unwrap());
        });
        assert_eq!(
            refused(encoded).await,
            is(415, "unsupported_encoding"),
            "{encoding}"
        );
    }
    let plain = request(BODY, |request| {
        request
            .headers_mut()
            .insert("content-encoding", "Identity".parse().unwrap());
    });
    assert_eq!(
        ask(&FakeLog::new(), plain).await.status(),
        StatusCode::ACCEPTED
    );
}

#[tokio::test]
async fn webhooks_are_posted() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let other = request(BODY, |request| {
            *request.method_mut() = method.parse().unwrap()
        });
        let response = ask(&FakeLog::new(), other).await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(response.headers()["allow"], "POST");
        if method != "HEAD" {
            assert_eq!(problem(response).await, is(405, "bad_method"));
        }
    }
}

#[tokio::test]
async fn a_log_that_does_not_take_it_is_never_answered_2xx() {
    for (log, expected) in [
        (FakeLog::failing(ProduceError::Busy), is(503, "unavailable")),
        (
            FakeLog::failing(ProduceError::Unacknowledged("isr".to_owned())),
            is(503, "unavailable"),
        ),
        (
            FakeLog::failing(ProduceError::TooLarge { bytes: 9 }),
            is(413, "too_large"),
        ),
        (FakeLog::not_ready(), is(503, "unavailable")),
    ] {
        assert_eq!(
            problem(ask(&log, request(BODY, |_| {})).await).await,
            expected,
            "{log:?}"
        );
    }
}

/// Refused before the body is read, and each source by itself.
#[tokio::test]
async fn requests_beyond_a_source_s_rate_are_told_when_to_come_again() {
    let other = GITHUB.replace("[github]", "[other]");
    let sources = format!("{GITHUB}rate_limit = {{ per_second = 1, burst = 3 }}\n{other}");
    let log = FakeLog::new();
    let router = router(app(IngestConfig::default(), &sources, &log));
    let ask = async |path: &str, body: Body| {
        let mut asked = request(BODY, |_| {});
        *asked.uri_mut() = path.parse().unwrap();
        *asked.body_mut() = body;
        router.clone().oneshot(asked).await.unwrap()
    };
    // One that is taken waits for its body, which never comes.
    let mut taken = 0;
    let response = loop {
        let never = StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, Infallible>>());
        let asked = ask("/hooks/github", Body::new(never));
        match tokio::time::timeout(Duration::from_millis(50), asked).await {
            Ok(response) => break response,
            Err(_) => taken += 1,
        }
        assert!(taken < 1_000, "there is no limit");
    };
    assert!(taken >= 3, "{taken}");
    assert_eq!(response.headers()["retry-after"], "1");
    assert_eq!(problem(response).await, is(429, "rate_limited"));
    let response = ask("/hooks/other", Body::from(BODY)).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_log_that_does_not_answer_is_given_up_at_the_source_s_deadline() {
    let log = FakeLog::holding();
    let sources = format!("{GITHUB}\ndeadline = \"50ms\"");
    let app = app(IngestConfig::default(), &sources, &log);
    let response = router(app).oneshot(request(BODY, |_| {})).await.unwrap();
    assert_eq!(problem(response).await, is(503, "unavailable"));
    assert_eq!((log.asked().len(), log.acknowledged()), (1, 0));
}

#[tokio::test]
async fn the_answer_waits_for_the_acknowledgement() {
    let log = FakeLog::holding();
    let app = app(IngestConfig::default(), GITHUB, &log);
    let answer = tokio::spawn(router(app).oneshot(request(BODY, |_| {})));
    until(|| log.asked().len() == 1).await;
    assert!(!answer.is_finished());
    log.release();
    assert_eq!(
        answer.await.unwrap().unwrap().status(),
        StatusCode::ACCEPTED
    );
    assert_eq!(log.acknowledged(), 1);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_given_up() {
    for (body_timeout_ms, deadline) in [(50, "5m"), (300_000, "50ms")] {
        let body_timeout = Duration::from_millis(body_timeout_ms);
        let config = IngestConfig {
            body_timeout,
            ..IngestConfig::default()
        };
        let sources = format!("{GITHUB}\ndeadline = \"{deadline}\"");
        let first = [Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"{")))];
        let slow = request(BODY, |request| {
            *request.body_mut() = Body::new(StreamBody::new(then_nothing(first)));
        });
        let answer = router(app(config, &sources, &FakeLog::new())).oneshot(slow);
        let response = tokio::time::timeout(Duration::from_secs(10), answer)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(problem(response).await, is(408, "slow_body"));
    }
}

#[tokio::test]
async fn bytes_in_flight_are_bounded_and_given_back() {
    let log = FakeLog::holding();
    let config = IngestConfig {
        in_flight_bytes_max: 1_000,
        ..IngestConfig::default()
    };
    let router = router(app(config, GITHUB, &log));
    let body = vec![b'x'; 600];
    let first = tokio::spawn(router.clone().oneshot(request(&body, |_| {})));
    until(|| log.asked().len() == 1).await;

    let announced = router
        .clone()
        .oneshot(request(&body, |_| {}))
        .await
        .unwrap();
    assert_eq!(problem(announced).await, is(503, "overloaded"));
    let frames = vec![body.clone()];
    let streamed = request(&body, |request| *request.body_mut() = stream(frames));
    let streamed = router.clone().oneshot(streamed).await.unwrap();
    assert_eq!(problem(streamed).await, is(503, "overloaded"));

    log.release();
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::ACCEPTED);
    let after = router.oneshot(request(&body, |_| {})).await.unwrap();
    assert_eq!(after.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn types_that_are_left_out_are_answered_and_go_no_further() {
    let sources = format!("{GITHUB}\nevents = [\"issues\", \"pull_request.opened\"]");
    for (event, action, expected) in [
        ("push", "", 200),
        ("issues", "opened", 202),
        ("issues", "", 202),
        ("pull_request", "opened", 202),
        ("pull_request", "closed", 200),
        ("issuesx", "", 200),
    ] {
        let log = FakeLog::new();
        let body = format!("{{\"action\":\"{action}\"}}");
        let body = if action.is_empty() { "{}" } else { &body };
        let request = request(body.as_bytes(), |request| {
            request
                .headers_mut()
                .insert("x-github-event", event.parse().unwrap());
        });
        let response = router(app(IngestConfig::default(), &sources, &log))
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(response.status().as_u16(), expected, "{event} {action}");
        assert_eq!(
            log.asked().len(),
            usize::from(expected == 202),
            "{event} {action}"
        );
    }
    // Whether a type is taken is nobody's business who can not sign.
    let forged = request(BODY, |request| *request.body_mut() = Body::from("{}"));
    let log = FakeLog::new();
    let response = router(app(IngestConfig::default(), &sources, &log))
        .oneshot(forged)
        .await
        .unwrap();
    assert_eq!(problem(response).await, is(401, "bad_signature"));
}

/// Polls until `done`, for 10 seconds at most.
pub(crate) async fn until(done: impl Fn() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting)
        .await
        .unwrap();
}

/// A body without an announced length.
fn stream(frames: Vec<Vec<u8>>) -> Body {
    let frames = frames
        .into_iter()
        .map(|data| Ok::<_, Infallible>(Frame::data(Bytes::from(data))));
    Body::new(StreamBody::new(futures::stream::iter(frames)))
}

/// These items, and then nothing for ever.
fn then_nothing<I: IntoIterator>(
    items: I,
) -> futures::stream::Chain<futures::stream::Iter<I::IntoIter>, futures::stream::Pending<I::Item>> {
    use futures::StreamExt;
    futures::stream::iter(items).chain(futures::stream::pending())
}
