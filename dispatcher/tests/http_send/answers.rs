//! What a receiver may do to us: every answer, half an answer, too much of one, and none.

use crate::receiver::{Answer, Receiver, destination, send, sender, text, webhook};
use dispatcher::outcome::Outcome;
use schemas::OutcomeKind;
use std::time::Duration;

/// The outcome of one attempt at a receiver that answers so.
async fn outcome(answer: Answer) -> Outcome {
    let receiver = Receiver::start([answer]).await;
    let outcome = send(&sender(destination(&receiver.url())), &webhook(b"{}")).await;
    assert_eq!(receiver.requests().len(), 1, "one attempt is one request");
    outcome
}

#[tokio::test]
async fn statuses_and_retry_after() {
    for (head, kind, retry_after_s) in [
        ("200 OK", OutcomeKind::Delivered, None),
        ("299 Odd\r\nretry-after: 7", OutcomeKind::Delivered, Some(7)),
        ("404 Not Found", OutcomeKind::Rejected, None),
        ("410 Gone", OutcomeKind::Gone, None),
        (
            "429 Too Many\r\nRetry-After: 7",
            OutcomeKind::Throttled,
            Some(7),
        ),
        (
            "429 Too Many\r\nRetry-After: soon",
            OutcomeKind::Throttled,
            None,
        ),
        ("500 Oops", OutcomeKind::Failed, None),
        (
            "503 Busy\r\nretry-after:  120 ",
            OutcomeKind::Throttled,
            Some(120),
        ),
        ("999 Odd", OutcomeKind::Rejected, None),
    ] {
        let got = outcome(text(&format!(
            "HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n"
        )))
        .await;
        assert_eq!(got.kind, kind, "{head}: {got:?}");
        assert_eq!(
            got.retry_after,
            retry_after_s.map(Duration::from_secs),
            "{head}"
        );
        assert_eq!(
            got.status.map(|it| it.to_string()).as_deref(),
            head.get(..3)
        );
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Receiver::willing().await;
    for status in [301, 302, 303, 307, 308] {
        let head = format!(
            "HTTP/1.1 {status} Moved\r\nlocation: {}\r\n",
            elsewhere.url()
        );
        let got = outcome(text(&format!("{head}content-length: 0\r\n\r\n"))).await;
        assert_eq!(
            (got.kind, got.status),
            (OutcomeKind::Rejected, Some(status))
        );
    }
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn interim_answers_are_no_answers() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let got = outcome(text(&format!(
        "{interim}HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"
    )))
    .await;
    assert_eq!((got.kind, got.status), (OutcomeKind::Failed, Some(500)));
    let switch = "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let got = outcome(text(switch)).await;
    assert_ne!(got.kind, OutcomeKind::Delivered, "{got:?}");
}

#[tokio::test]
async fn interim_answers_without_end_meet_the_deadline() {
    let receiver =
        Receiver::start([Answer::Hang(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(50))]).await;
    let got = send(&impatient(&receiver), &webhook(b"{}")).await;
    assert_eq!((got.kind, got.status), (OutcomeKind::Failed, None));
}

#[tokio::test]
async fn a_body_where_none_may_be_does_not_spoil_the_next_attempt() {
    let odd = text("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\nhello");
    let receiver = Receiver::start([odd]).await;
    let sender = sender(destination(&receiver.url()));
    for _ in 0..3 {
        let got = send(&sender, &webhook(b"{}")).await;
        assert_eq!(
            (got.kind, got.status),
            (OutcomeKind::Delivered, Some(204)),
            "{got:?}"
        );
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_and_the_status_counts() {
    for head in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n",
    ] {
        let receiver = Receiver::start([Answer::Endless(head.as_bytes().to_vec())]).await;
        let mut config = destination(&receiver.url());
        // Far away, so that only the cap can end it.
        config.timeout = Duration::from_secs(3_600);
        let (sender, webhook) = (sender(config), webhook(b"{}"));
        let cut = async {
            let got = send(&sender, &webhook).await;
            assert_eq!(got.kind, OutcomeKind::Delivered, "{got:?}");
            while receiver.cut() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let patience = Duration::from_secs(20);
        tokio::time::timeout(patience, cut).await.expect("a cut");
    }
}

#[tokio::test]
async fn headers_without_end_are_no_answer() {
    let endless = Answer::Endless(b"HTTP/1.1 200 OK\r\nx-long: ".to_vec());
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x-many: 1\r\n".repeat(10_000));
    for answer in [endless, text(&many)] {
        let got = outcome(answer).await;
        assert_eq!(
            (got.kind, got.status),
            (OutcomeKind::Failed, None),
            "{got:?}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_never_comes_meets_the_deadline() {
    for part in ["", "HTTP/1.1", "HTTP/1.1 200 OK\r\nx-a: b\r\n"] {
        let receiver = Receiver::start([Answer::Hang(part.into())]).await;
        let got = send(&impatient(&receiver), &webhook(b"{}")).await;
        assert_eq!(
            (got.kind, got.status),
            (OutcomeKind::Failed, None),
            "{got:?}"
        );
        assert!(got.detail.starts_with("timeout"), "{got:?}");
    }
}

#[tokio::test]
async fn a_body_that_never_ends_changes_no_outcome() {
    for (status, kind) in [(200, OutcomeKind::Delivered), (500, OutcomeKind::Failed)] {
        for rest in [
            "content-length: 9\r\n\r\nhalf",
            "transfer-encoding: chunked\r\n\r\n5\r\nab",
        ] {
            let part = format!("HTTP/1.1 {status} X\r\n{rest}");
            let receiver = Receiver::start([Answer::Hang(part.into())]).await;
            let got = send(&impatient(&receiver), &webhook(b"{}")).await;
            assert_eq!((got.kind, got.status), (kind, Some(status)), "{got:?}");
        }
    }
}

#[tokio::test]
async fn a_broken_body_changes_no_outcome() {
    let broken = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n";
    assert_eq!(outcome(text(broken)).await.kind, OutcomeKind::Delivered);
}

/// A receiver that closes without a word may have done the work; the next attempt is the dispatcher's to make.
#[tokio::test]
async fn a_connection_that_is_closed_before_the_answer_is_not_tried_again() {
    let got = outcome(Answer::Close).await;
    assert_eq!(
        (got.kind, got.status),
        (OutcomeKind::Failed, None),
        "{got:?}"
    );

    // The same on a connection that was good before.
    let good = text("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let receiver = Receiver::start([good, Answer::Close]).await;
    let sender = sender(destination(&receiver.url()));
    assert_eq!(
        send(&sender, &webhook(b"{}")).await.kind,
        OutcomeKind::Delivered
    );
    assert_eq!(
        send(&sender, &webhook(b"{}")).await.kind,
        OutcomeKind::Failed
    );
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn nobody_there() {
    let receiver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", receiver.local_addr().unwrap());
    drop(receiver);
    let got = send(&sender(destination(&url)), &webhook(b"{}")).await;
    assert_eq!(got.kind, OutcomeKind::Failed);
    assert!(got.detail.starts_with("connect"), "{got:?}");
    assert!(
        !got.detail.contains("http://"),
        "no url in what is kept: {got:?}"
    );
}

#[tokio::test]
async fn a_compressed_answer_is_not_inflated() {
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\ncontent-length: 9\r\n\r\n");
        let got = outcome(text(&format!("{head}not gzip!"))).await;
        assert_eq!((got.kind, got.status), (OutcomeKind::Delivered, Some(200)));
    }
}

#[tokio::test]
async fn what_is_no_http_is_no_answer() {
    for answer in [
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "\0\0\0\r\n\r\n",
    ] {
        let got = outcome(text(answer)).await;
        assert_eq!(
            (got.kind, got.status),
            (OutcomeKind::Failed, None),
            "{answer:?} {got:?}"
        );
        assert!(got.detail.len() <= 200);
    }
}

/// A sender with a short deadline.
fn impatient(receiver: &Receiver) -> dispatcher::HttpSend {
    let mut config = destination(&receiver.url());
    config.timeout = Duration::from_millis(400);
    sender(config)
}
