//! HTTP/1 as it is spoken, and as it is abused.

use crate::{
    fake_log::FakeLog,
    server::{answer, head, rest, send, start, whole},
};
use ingest::IngestConfig;
use tokio::io::AsyncWriteExt;

/// What a proxy in front and we could understand differently must not be answered as if it were clear, and nothing behind it
/// may be taken for a request.
#[tokio::test]
async fn what_could_smuggle_a_request_is_refused() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let chunked = "2\r\n{}\r\n0\r\n\r\n";
    for (lines, body) in [
        ("content-length: 2\r\ncontent-length: 3", "{}"),
        ("content-length: 2, 2", "{}"),
        ("content-length: -2", "{}"),
        ("content-length: +2", "{}"),
        ("content-length: 2x", "{}"),
        ("content-length: 0x2", "{}"),
        ("content-length: ", "{}"),
        ("content-length: 99999999999999999999", "{}"),
        ("content-length: 2\r\ntransfer-encoding: chunked", chunked),
        ("transfer-encoding: chunked\r\ncontent-length: 2", chunked),
        ("transfer-encoding: chunked\r\ncontent-length: 0", chunked),
        ("Content-Length: 2\r\nTRANSFER-ENCODING: x", "{}"),
        ("content-length : 2", "{}"),
        ("content-length\t: 2", "{}"),
        ("x: y\r\n folded: z\r\ncontent-length: 2", "{}"),
        ("x: y\r\n\tz\r\ncontent-length: 2", "{}"),
        (" x: y\r\ncontent-length: 2", "{}"),
        ("x: y\ncontent-length: 2", "{}"),
        ("x: y\rcontent-length: 2", "{}"),
        ("x: a\0b\r\ncontent-length: 2", "{}"),
        ("x\r\ncontent-length: 2", "{}"),
        ("transfer\x0b-encoding: chunked", chunked),
        ("transfer-encoding: chunked", "2\n{}\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked", "2\r\n{}\n0\r\n\r\n"),
        ("transfer-encoding: chunked", "0x2\r\n{}\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked", "-2\r\n{}\r\n0\r\n\r\n"),
        ("transfer-encoding: chunked", "2;a\nb\r\n{}\r\n0\r\n\r\n"),
        (
            "transfer-encoding: chunked",
            "10000000000000002\r\n{}\r\n0\r\n\r\n",
        ),
    ] {
        let text = head(b"{}", lines) + body + &whole("{}");
        for cut in [text.len(), text.len() - whole("{}").len() - body.len() - 3] {
            let mut stream = running.connect().await;
            let (first, second) = text.split_at(cut);
            send(&mut stream, first).await;
            tokio::task::yield_now().await;
            // It may have been refused already; bytes that were not read reset the connection, and that swallows the answer.
            drop(stream.write_all(second.as_bytes()).await);
            let said = rest(&mut stream).await;
            let swallowed = said.is_empty() && !second.is_empty();
            assert!(
                swallowed || said.starts_with("HTTP/1.1 400 "),
                "{lines:?} {body:?}: {said}"
            );
            assert!(said.matches("HTTP/1.1 ").count() <= 1, "{lines:?}: {said}");
        }
    }
    assert_eq!(log.asked(), []);
    running.stop().await;
}

#[tokio::test]
async fn the_second_head_of_a_connection_is_read_as_strictly_as_the_first() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let bad = head(b"{}", "content-length: 2\r\ntransfer-encoding: chunked");
    for first in [
        whole("{}"),
        head(b"{}", "transfer-encoding: chunked") + "1;x=y\r\n{\r\n1\r\n}\r\n0\r\nt: u\r\n\r\n",
    ] {
        let before = log.acknowledged();
        let mut stream = running.connect().await;
        send(&mut stream, &(first + &bad + "2\r\n{}\r\n0\r\n\r\n")).await;
        let said = rest(&mut stream).await;
        assert!(said.starts_with("HTTP/1.1 202 "), "{said}");
        assert_eq!(said.matches("HTTP/1.1 400 ").count(), 1, "{said}");
        assert_eq!(log.acknowledged(), before + 1);
    }
    running.stop().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_turn() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let mut stream = running.connect().await;
    let chunked = head(b"{}", "Transfer-Encoding: Chunked") + "2\r\n{}\r\n0\r\n\r\n";
    let twice = head(b"{}", "content-length: 2\r\ncontent-length: 2") + "{}";
    let unknown = "GET /nothing HTTP/1.1\r\nhost: h\r\n\r\n";
    let last = head(b"{}", "content-length: 2\r\nconnection: close") + "{}";
    let all = whole("{}") + &chunked + "\r\n" + &twice + unknown + &last + &whole("{}");
    send(&mut stream, &all).await;
    let said = rest(&mut stream).await;
    let answers = said.split("HTTP/1.1 ").skip(1);
    let statuses: Vec<&str> = answers.filter_map(|answer| answer.get(..3)).collect();
    assert_eq!(statuses, ["202", "202", "202", "404", "202"], "{said}");
    assert_eq!(log.acknowledged(), 4, "the one after close is not taken");
    running.stop().await;
}

#[tokio::test]
async fn who_asks_whether_to_go_on_is_told_so() {
    let running = start(IngestConfig::default(), &FakeLog::new()).await;
    let mut stream = running.connect().await;
    send(
        &mut stream,
        &head(b"{}", "content-length: 2\r\nexpect: 100-continue"),
    )
    .await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 100 "));
    send(&mut stream, "{}").await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 202 "));
    // Whom we refuse anyway is not asked for the body.
    let get = "GET /hooks/github HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n";
    send(&mut stream, get).await;
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 405 "));
    running.stop().await;
}

#[tokio::test]
async fn http_1_0_is_answered_and_closed() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let old = |text: String| text.replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut stream = running.connect().await;
    send(&mut stream, &old(whole("{}"))).await;
    let said = rest(&mut stream).await;
    assert!(said.starts_with("HTTP/1.0 202 "), "{said}");
    // It knows no transfer coding.
    let mut stream = running.connect().await;
    let chunked = head(b"{}", "transfer-encoding: chunked") + "2\r\n{}\r\n0\r\n\r\n";
    send(&mut stream, &old(chunked)).await;
    let said = rest(&mut stream).await;
    assert!(said.contains(" 400 "), "{said}");
    assert_eq!(log.acknowledged(), 1);
    running.stop().await;
}

#[tokio::test]
async fn a_head_with_too_many_lines_is_refused() {
    let running = start(IngestConfig::default(), &FakeLog::new()).await;
    for lines in [101, 10_000] {
        let mut stream = running.connect().await;
        let text = head(b"{}", &"x: y\r\n".repeat(lines));
        drop(stream.write_all(text.as_bytes()).await);
        let said = rest(&mut stream).await;
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 431 "),
            "{said}"
        );
    }
    running.stop().await;
}
