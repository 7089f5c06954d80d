//! Static headers and credentials; tokens that are fetched.

use crate::{
    receiver::{Answer, Receiver, destination, send, sender_in, text, webhook},
    tls::file,
};
use bytes::Bytes;
use dispatcher::{
    DestinationConfig, HttpSend,
    config::{AuthConfig, BasicConfig, ClientAuth, HeaderText, OAuth2Config},
};
use schemas::{Header, OutcomeKind};
use std::time::Duration;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const NO: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";

fn json(status: &str, body: &str) -> Answer {
    let length = body.len();
    text(&format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
}

fn token(token: &str, expires_in_s: u32) -> Answer {
    let body = format!(
        r#"{{"access_token":"{token}","token_type":"Bearer","expires_in":{expires_in_s}}}"#
    );
    json("200 OK", &body)
}

fn oauth2(receiver: &Receiver, tokens: &Receiver) -> DestinationConfig {
    let mut config = destination(&receiver.url());
    config.auth = Some(AuthConfig {
        oauth2: Some(OAuth2Config {
            token_url: format!("http://{}/token?x=1", tokens.address)
                .parse()
                .unwrap(),
            client_id: "me:too".to_owned(),
            client_secret: file("secret"),
            client_auth: ClientAuth::Basic,
            scope: Some("a b".to_owned()),
            audience: None,
            tls: None,
        }),
        ..AuthConfig::default()
    });
    config
}

#[expect(clippy::unwrap_in_result, reason = "the error is the config's")]
fn with_secret(config: DestinationConfig) -> Result<HttpSend, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("secret"), "hunter2\n").unwrap();
    std::fs::write(dir.path().join("lines"), "hunter2\nhunter3\n").unwrap();
    sender_in(dir.path(), config)
}

async fn kind(sender: &HttpSend) -> OutcomeKind {
    send(sender, &webhook(b"{}")).await.kind
}

#[tokio::test]
async fn static_headers_and_credentials_are_sent() {
    let receiver = Receiver::start([text(OK)]).await;
    let basic = BasicConfig {
        user: "me".to_owned(),
        password: file("secret"),
    };
    for (auth, value) in [
        (
            AuthConfig {
                bearer: Some(file("secret")),
                ..AuthConfig::default()
            },
            "Bearer hunter2",
        ),
        // printf me:hunter2 | base64
        (
            AuthConfig {
                basic: Some(basic),
                ..AuthConfig::default()
            },
            "Basic bWU6aHVudGVyMg==",
        ),
    ] {
        let mut config = destination(&receiver.url());
        config.auth = Some(auth);
        config.headers = [
            ("X-Api-Key".to_owned(), HeaderText::Secret(file("secret"))),
            (
                "x-static".to_owned(),
                HeaderText::Text("of the config".to_owned()),
            ),
        ]
        .into();
        let mut webhook = webhook(b"{}");
        for name in ["x-static", "x-api-key", "authorization"] {
            webhook.headers.push(Header {
                name: name.to_owned(),
                value: Bytes::from_static(b"of the sender"),
            });
        }
        let sender = with_secret(config).unwrap();
        assert!(!format!("{sender:?}").contains("hunter2"));
        assert_eq!(send(&sender, &webhook).await.kind, OutcomeKind::Delivered);
        let request = receiver.requests().pop().unwrap();
        assert_eq!(request.one("authorization"), value);
        assert_eq!(request.one("x-api-key"), "hunter2");
        assert_eq!(request.one("x-static"), "of the config");
    }
}

#[tokio::test]
async fn secrets_that_can_not_be_sent_are_explained() {
    let receiver = Receiver::start([text(OK)]).await;
    for (secret, message) in [("lines", "character"), ("absent", "can not read")] {
        let mut config = destination(&receiver.url());
        config.headers = [("x-key".to_owned(), HeaderText::Secret(file(secret)))].into();
        let problem = with_secret(config).unwrap_err();
        assert!(
            problem.contains("destinations.billing.headers.x-key"),
            "{problem}"
        );
        assert!(
            problem.contains(message) && !problem.contains("hunter"),
            "{problem}"
        );
        let mut config = destination(&receiver.url());
        config.auth = Some(AuthConfig {
            bearer: Some(file(secret)),
            ..AuthConfig::default()
        });
        let problem = with_secret(config).unwrap_err();
        assert!(
            problem.contains("destinations.billing.auth.bearer"),
            "{problem}"
        );
    }
}

#[tokio::test]
async fn one_token_serves_until_it_is_refused_or_old() {
    let receiver = Receiver::start([OK, OK, NO, OK, NO, NO].map(text)).await;
    let tokens =
        Receiver::start([token("one", 3_600), token("two", 3_600), token("three", 0)]).await;
    let sender = with_secret(oauth2(&receiver, &tokens)).unwrap();
    assert_eq!(kind(&sender).await, OutcomeKind::Delivered);
    assert_eq!(kind(&sender).await, OutcomeKind::Delivered);
    assert_eq!(tokens.requests().len(), 1);
    // The receiver knows it no longer: an attempt that failed, not a delivery that is refused.
    assert_eq!(kind(&sender).await, OutcomeKind::Failed);
    assert_eq!(kind(&sender).await, OutcomeKind::Delivered);
    assert_eq!(kind(&sender).await, OutcomeKind::Failed);
    // One that was just fetched.
    assert_eq!(kind(&sender).await, OutcomeKind::Rejected);
    let seen: Vec<String> = receiver
        .requests()
        .iter()
        .map(|request| request.one("authorization").to_owned())
        .collect();
    let expected = ["one", "one", "one", "two", "two", "three"];
    assert_eq!(seen, expected.map(|token| format!("Bearer {token}")));

    let request = tokens.requests().remove(0);
    assert_eq!(request.line, "POST /token?x=1 HTTP/1.1");
    assert_eq!(
        request.one("content-type"),
        "application/x-www-form-urlencoded"
    );
    assert_eq!(request.body, b"grant_type=client_credentials&scope=a+b");
    // printf me%%3Atoo:hunter2 | base64
    assert_eq!(
        request.one("authorization"),
        "Basic bWUlM0F0b286aHVudGVyMg=="
    );
}

#[tokio::test]
async fn attempts_at_once_share_one_fetch() {
    let receiver = Receiver::start([text(OK)]).await;
    let tokens = Receiver::start([token("one", 3_600)]).await;
    let sender = with_secret(oauth2(&receiver, &tokens)).unwrap();
    let all: Vec<_> = (0..8)
        .map(|_| {
            let sender = sender.clone();
            tokio::spawn(async move { kind(&sender).await })
        })
        .collect();
    for one in all {
        assert_eq!(one.await.unwrap(), OutcomeKind::Delivered);
    }
    assert_eq!((tokens.requests().len(), receiver.requests().len()), (1, 8));
}

#[tokio::test]
async fn without_a_token_the_receiver_is_not_asked() {
    let long = format!("\"{}\"", "x".repeat(65 << 10));
    for (answer, says) in [
        (
            json(
                "400 Bad",
                r#"{"error":"invalid_scope","error_description":"hunter2"}"#,
            ),
            "http status 400 (invalid_scope)",
        ),
        (
            text("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"),
            "http status 302",
        ),
        (json("200 OK", &long), "too long"),
        (
            Answer::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
            "too long",
        ),
        (json("200 OK", "<html>hunter2"), "no token"),
        (Answer::Hang(b"HTTP/1.1 200 OK\r\n".to_vec()), "timeout"),
        (Answer::Close, "request"),
    ] {
        let receiver = Receiver::start([text(OK)]).await;
        let tokens = Receiver::start([answer]).await;
        let mut config = oauth2(&receiver, &tokens);
        if says == "timeout" {
            config.timeout = Duration::from_millis(300);
        }
        config
            .auth
            .as_mut()
            .unwrap()
            .oauth2
            .as_mut()
            .unwrap()
            .client_auth = ClientAuth::Post;
        let sender = with_secret(config).unwrap();
        // Both at once: what failed is not asked again at once.
        let body = webhook(b"{}");
        let (one, two) = tokio::join!(send(&sender, &body), send(&sender, &body));
        for got in [one, two] {
            assert_eq!(
                (got.kind, got.status),
                (OutcomeKind::Failed, None),
                "{got:?}"
            );
            assert!(
                got.detail
                    .starts_with("no token, so the receiver was not asked: "),
                "{got:?}"
            );
            assert!(
                got.detail.contains(says) && !got.detail.contains("hunter2"),
                "{got:?}"
            );
        }
        assert_eq!(receiver.connections(), 0);
        let requests = tokens.requests();
        assert_eq!(requests.len(), 1, "{says}");
        assert_eq!(
            requests[0].body,
            b"grant_type=client_credentials&client_id=me%3Atoo&client_secret=hunter2&scope=a+b"
        );
    }
}

#[tokio::test]
async fn the_token_endpoint_is_judged_like_the_destination() {
    let receiver = Receiver::start([text(OK)]).await;
    let mut config = oauth2(&receiver, &receiver);
    config.allow_cidrs = vec!["127.0.0.1/32".parse().unwrap()];
    let oauth2 = config.auth.as_mut().unwrap().oauth2.as_mut().unwrap();
    oauth2.token_url = "http://127.9.9.9/token".parse().unwrap();
    let problem = with_secret(config).unwrap_err();
    assert!(
        problem.contains("destinations.billing.auth.oauth2.token_url"),
        "{problem}"
    );
    assert!(problem.contains("loopback"), "{problem}");
}
