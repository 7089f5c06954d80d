//! Requests by which senders try an endpoint out: answered as they want it, only after what protects them was checked, and never
//! in the log.

use crate::{NOW_MS, PRIVATE_KEY, SECRET, TOKEN, app, fake_log::FakeLog};
use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use ingest::{IngestConfig, Unsigned, router, rule::presets, sign};
use tower::ServiceExt;

const SOURCES: &str = r#"
    [slack]
    scheme = "slack"
    secrets = [{ file = "s" }]
    [zoom]
    scheme = "zoom"
    secrets = [{ file = "s" }]
    [discord]
    scheme = "discord"
    secrets = [{ file = "public" }]
    [discord-events]
    scheme = "discord-events"
    secrets = [{ file = "public" }]
    [meta]
    scheme = "meta"
    secrets = [{ file = "s" }]
    handshake_token = { file = "token" }
    [tokenless]
    scheme = "meta"
    secrets = [{ file = "s" }]
    [github]
    scheme = "github"
    secrets = [{ file = "s" }]
"#;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// What was answered, and how many records it made.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    status: u16,
    content_type: String,
    body: String,
    records: usize,
}

fn plain(body: &str) -> Seen {
    Seen {
        status: 200,
        content_type: "text/plain".to_owned(),
        body: body.to_owned(),
        records: 0,
    }
}

fn json(body: &str) -> Seen {
    Seen {
        content_type: JSON.to_owned(),
        ..plain(body)
    }
}

async fn ask(request: Request<Body>) -> Seen {
    let log = FakeLog::new();
    let router = router(app(IngestConfig::default(), SOURCES, &log));
    let response = router.oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(!body.contains(SECRET) && !body.contains(TOKEN));
    if status == 200 {
        assert_eq!(headers["x-content-type-options"], "nosniff");
    }
    Seen {
        status,
        content_type: headers["content-type"].to_str().unwrap().to_owned(),
        body,
        records: log.asked().len(),
    }
}

/// Refused with this status, and nothing in the log.
async fn refused(request: Request<Body>, status: u16) {
    let seen = ask(request).await;
    assert_eq!((seen.status, seen.records), (status, 0), "{seen:?}");
    assert_eq!(seen.content_type, "application/problem+json");
}

/// Signed by the preset `source` with `secret`, at `now_ms`.
fn signed(source: &str, kind: &str, body: &str, secret: &str, now_ms: i64) -> Request<Body> {
    let rule = presets().unwrap().remove(source).unwrap().verify;
    let unsigned = Unsigned {
        delivery_id: "",
        event_type: "",
        public_url: None,
        body: body.as_bytes(),
        now_ms,
    };
    let mut request = Request::post(format!("/hooks/{source}")).header("content-type", kind);
    for (name, value) in sign(&rule, &[secret.as_bytes()], &unsigned).unwrap() {
        request = request.header(name, value);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

fn unsigned(source: &str, kind: &str, body: &str) -> Request<Body> {
    Request::post(format!("/hooks/{source}"))
        .header("content-type", kind)
        .body(Body::from(body.to_owned()))
        .unwrap()
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn slack_gets_its_challenge_back_when_it_signed_it() {
    let body = r#"{"token":"Jhj5","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}"#;
    let good = signed("slack", JSON, body, SECRET, NOW_MS);
    let challenge = "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P";
    assert_eq!(ask(good).await, plain(challenge));
    refused(unsigned("slack", JSON, body), 401).await;
    refused(signed("slack", JSON, body, "another", NOW_MS), 401).await;
    refused(signed("slack", JSON, body, SECRET, NOW_MS - 300_001), 401).await;
    let mut changed = signed("slack", JSON, body, SECRET, NOW_MS);
    *changed.body_mut() = Body::from(body.replace("3eZ", "<b>"));
    refused(changed, 401).await;
}

/// No webhook either, although it is signed.
#[tokio::test]
async fn a_challenge_that_can_not_be_sent_back_is_refused() {
    let long = "x".repeat(1_025);
    for challenge in [long.as_str(), r"a\nb", r"a\u0000"] {
        let body = format!(r#"{{"type":"url_verification","challenge":"{challenge}"}}"#);
        refused(signed("slack", JSON, &body, SECRET, NOW_MS), 400).await;
    }
    let none = r#"{"type":"url_verification","challenge":{}}"#;
    refused(signed("slack", JSON, none, SECRET, NOW_MS), 400).await;
    let longest = "x".repeat(1_024);
    let body = format!(r#"{{"type":"url_verification","challenge":"{longest}"}}"#);
    let seen = ask(signed("slack", JSON, &body, SECRET, NOW_MS)).await;
    assert_eq!(seen, plain(&longest));
    for body in [
        r#"{"event":"endpoint.url_validation"}"#,
        r#"{"event":"endpoint.url_validation","payload":{"plainToken":"a\tb"}}"#,
    ] {
        refused(signed("zoom", JSON, body, SECRET, NOW_MS), 400).await;
    }
}

#[tokio::test]
async fn slack_s_certificate_check_is_answered_with_nothing() {
    let body = "ssl_check=1&token=Jhj5";
    assert_eq!(ask(unsigned("slack", FORM, body)).await, plain(""));
    let good = signed("slack", FORM, body, SECRET, NOW_MS);
    assert_eq!(ask(good).await, plain(""));
    for (kind, body) in [
        (JSON, body),
        (FORM, "ssl_check=0"),
        (FORM, "ssl_check=1&ssl_check=1"),
        (FORM, "SSL_CHECK=1"),
    ] {
        refused(unsigned("slack", kind, body), 401).await;
    }
    refused(unsigned("github", FORM, body), 401).await;
}

/// The HMAC is one of Python's.
#[tokio::test]
async fn zoom_gets_its_token_back_with_its_hmac() {
    let body = r#"{"payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event_ts":1654503849680,"event":"endpoint.url_validation"}"#;
    let good = signed("zoom", JSON, body, SECRET, NOW_MS);
    let expected =
        r#"{"encryptedToken":"HMAC","plainToken":"qgg8vlvZRS6UYooatFL8Aw"}"#.replace("HMAC", ZOOM);
    assert_eq!(ask(good).await, json(&expected));
    // What anybody could have made into a signature of the secret's.
    refused(unsigned("zoom", JSON, body), 401).await;
    refused(signed("zoom", JSON, body, "another", NOW_MS), 401).await;
}

const ZOOM: &str = "ba26f391cf644be1a05562332b96b35ea26196b5bc15b3b3e315a60ab9c1ee18";

#[tokio::test]
async fn discord_s_ping_is_answered_and_its_forgeries_are_refused() {
    let ping = r#"{"application_id":"1","id":"2","token":"t","type":1,"version":1}"#;
    let good = signed("discord", JSON, ping, PRIVATE_KEY, NOW_MS);
    assert_eq!(ask(good).await, json(r#"{"type":1}"#));
    refused(unsigned("discord", JSON, ping), 401).await;
    let other = PRIVATE_KEY.replace("00", "01");
    refused(signed("discord", JSON, ping, &other, NOW_MS), 401).await;
    let mut other_time = signed("discord", JSON, ping, PRIVATE_KEY, NOW_MS);
    let headers = other_time.headers_mut();
    headers.insert("x-signature-timestamp", "1700000001".parse().unwrap());
    refused(other_time, 401).await;

    let command = r#"{"id":"846484923478900736","type":2,"data":{"name":"cardsearch"}}"#;
    let rule_of = signed("discord", JSON, command, PRIVATE_KEY, NOW_MS);
    let log = FakeLog::new();
    let router = router(app(IngestConfig::default(), SOURCES, &log));
    let response = router.oneshot(rule_of).await.unwrap();
    assert_eq!((response.status().as_u16(), log.asked().len()), (202, 1));
}

/// An empty 204, with a content type: Discord looks for both.
#[tokio::test]
async fn discord_s_ping_for_events_is_answered_with_204() {
    let expected = |records| Seen {
        status: 204,
        records,
        ..plain("")
    };
    let ping = r#"{"version":1,"application_id":"1234560123453231555","type":0}"#;
    let good = signed("discord-events", JSON, ping, PRIVATE_KEY, NOW_MS);
    assert_eq!(ask(good).await, expected(0));
    refused(unsigned("discord-events", JSON, ping), 401).await;
    let event = r#"{"version":1,"type":1,"event":{"type":"ENTITLEMENT_CREATE"}}"#;
    let event = signed("discord-events", JSON, event, PRIVATE_KEY, NOW_MS);
    assert_eq!(ask(event).await, expected(1));
}

#[tokio::test]
async fn meta_gets_its_challenge_back_when_it_shows_the_token() {
    let query = "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=the-verify-token";
    let good = format!("/hooks/meta?{query}");
    assert_eq!(ask(get(&good)).await, plain("1158201444"));
    let escaped = good.replace("hub.", "hub%2E").replace("-", "%2D");
    assert_eq!(ask(get(&escaped)).await, plain("1158201444"));
    let long = "9".repeat(1_025);
    for (part, other) in [
        ("the-verify-token", "another"),
        ("the-verify-token", "the-verify-toke"),
        ("the-verify-token", ""),
        ("&hub.verify_token=the-verify-token", ""),
        ("hub.mode", "hub.verify_token=the-verify-token&hub.mode"),
        ("hub.challenge=1158201444&", ""),
        ("subscribe", "unsubscribe"),
        ("hub.mode=subscribe&", ""),
        ("1158201444", "1%0a2"),
        ("1158201444", "1%00"),
        ("1158201444", long.as_str()),
    ] {
        assert!(good.contains(part));
        refused(get(&good.replace(part, other)), 401).await;
    }
    refused(get("/hooks/meta"), 401).await;
    // Nobody can show a token that is not configured, not even an empty one.
    refused(get(&format!("/hooks/tokenless?{query}")), 401).await;
    let empty = query.replace("the-verify-token", "");
    refused(get(&format!("/hooks/tokenless?{empty}")), 401).await;
}

#[tokio::test]
async fn a_handshake_s_query_is_one_of_a_get_alone() {
    let query = "hub.mode=subscribe&hub.challenge=1&hub.verify_token=the-verify-token";
    let mut post = unsigned("meta", JSON, "{}");
    *post.uri_mut() = format!("/hooks/meta?{query}").parse().unwrap();
    refused(post, 401).await;
    for path in ["github", "slack", "zoom", "discord", "nobody"] {
        refused(get(&format!("/hooks/{path}?{query}")), 405).await;
    }
    for method in ["HEAD", "PUT", "DELETE"] {
        let mut other = get(&format!("/hooks/meta?{query}"));
        *other.method_mut() = method.parse().unwrap();
        let seen = ask(other).await;
        assert_eq!((seen.status, seen.records), (405, 0), "{method}");
    }
}
