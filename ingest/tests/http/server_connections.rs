//! How long a connection may go on, and how many one address may have.

use crate::{
    GITHUB, app,
    fake_log::FakeLog,
    server::{answer, head, rest, send, start, start_app, whole},
};
use ingest::IngestConfig;
use std::time::Duration;
use tokio::net::TcpListener;

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn between_requests_a_connection_may_be_idle_for_longer_than_a_head_may_take() {
    let config = IngestConfig {
        header_timeout: SHORT,
        idle_timeout: LONG,
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut stream = running.connect().await;
    send(&mut stream, &whole("{}")).await;
    answer(&mut stream).await;
    tokio::time::sleep(3 * SHORT).await;
    send(&mut stream, &whole("{}")).await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 202 "));
    // The next head does not come to its end.
    send(&mut stream, "POST /hooks/github HTTP/1.1\r\n").await;
    assert_eq!(rest(&mut stream).await, "");
    running.stop().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let config = IngestConfig {
        header_timeout: LONG,
        idle_timeout: SHORT,
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut stream = running.connect().await;
    send(&mut stream, &whole("{}")).await;
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 202 "));
    running.stop().await;
}

#[tokio::test]
async fn a_connection_ends_with_the_answer_after_its_last_request_or_its_time() {
    for (requests_max, age, answers) in [(2, LONG, 2), (1_000, Duration::from_nanos(1), 1)] {
        let config = IngestConfig {
            requests_per_connection_max: requests_max,
            connection_age_max: age,
            ..IngestConfig::default()
        };
        let running = start(config, &FakeLog::new()).await;
        let mut stream = running.connect().await;
        send(&mut stream, &whole("{}").repeat(3)).await;
        let said = rest(&mut stream).await;
        assert_eq!(said.matches("HTTP/1.1 202 ").count(), answers, "{said}");
        assert_eq!(said.matches("connection: close").count(), 1, "{said}");
        running.stop().await;
    }
}

#[tokio::test]
async fn a_body_that_drips_is_answered_408() {
    let config = IngestConfig {
        body_timeout: LONG,
        body_grace: SHORT,
        body_bytes_per_second_min: 1_000,
        ..IngestConfig::default()
    };
    let sources = format!("{GITHUB}    deadline = \"10m\"\n");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let running = start_app(listener, app(config, &sources, &FakeLog::new()));
    let mut stream = running.connect().await;
    let (mut reader, mut writer) = stream.split();
    let drip = async {
        use tokio::io::AsyncWriteExt;
        let text = head(b"{}", "content-length: 1000");
        writer.write_all(text.as_bytes()).await.unwrap();
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let read = async {
        use tokio::io::AsyncReadExt;
        let mut status = [0; 13];
        reader.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 408 ");
    };
    tokio::select! {
        () = drip => panic!("cut off without an answer"),
        read = tokio::time::timeout(crate::server::PATIENCE, read) => read.unwrap(),
    }
    running.stop().await;
}

#[tokio::test]
async fn an_address_has_so_many_connections_and_no_more() {
    let config = IngestConfig {
        connections_per_address_max: Some(2),
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = running.connect().await;
        send(&mut stream, &whole("{}")).await;
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 202 "));
        open.push(stream);
    }
    let mut third = running.connect().await;
    assert_eq!(rest(&mut third).await, "");
    open.pop();
    let again = async {
        loop {
            let mut stream = running.connect().await;
            send(&mut stream, &whole("{}")).await;
            if rest_or_answer(&mut stream)
                .await
                .starts_with("HTTP/1.1 202 ")
            {
                return;
            }
        }
    };
    let served = tokio::time::timeout(crate::server::PATIENCE, again).await;
    assert!(served.is_ok(), "the place was not given back");
    running.stop().await;
}

#[tokio::test]
async fn a_trusted_proxy_is_not_one_client() {
    let config = IngestConfig {
        connections_per_address_max: Some(1),
        trusted_proxies: vec!["127.0.0.0/8".parse().unwrap()],
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut streams = [running.connect().await, running.connect().await];
    for stream in &mut streams {
        send(stream, &whole("{}")).await;
        assert!(answer(stream).await.starts_with("HTTP/1.1 202 "));
    }
    running.stop().await;
}

/// What comes first: the head of an answer, or the end.
async fn rest_or_answer(stream: &mut tokio::net::TcpStream) -> String {
    use tokio::io::AsyncReadExt;
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(text).unwrap()
}
