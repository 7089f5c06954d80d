//! Who the client is, behind proxies.

use crate::{
    fake_log::FakeLog,
    server::{PATIENCE, Running, answer, rest, send, start, whole},
    telemetry::Lines,
};
use ingest::IngestConfig;
use std::time::Duration;
use tokio::{io::AsyncWriteExt, time::timeout};

const V1: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n";
const V1_UNKNOWN: &[u8] = b"PROXY UNKNOWN\r\n";
/// 2001:db8::7, version 2.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x07\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x01\0\x02";

fn behind(networks: &str) -> IngestConfig {
    IngestConfig {
        trusted_proxies: vec![networks.parse().unwrap()],
        header_timeout: Duration::from_millis(200),
        ..IngestConfig::default()
    }
}

fn with_header(networks: &str) -> IngestConfig {
    IngestConfig {
        proxy_protocol: true,
        ..behind(networks)
    }
}

/// The `client` of the only request that `lines` tell of.
fn client(lines: &Lines) -> String {
    let told: Vec<serde_json::Value> = lines
        .text()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &serde_json::Value| line["fields"]["message"] == "webhook answered")
        .collect();
    let [line] = told.as_slice() else {
        panic!("{told:?}");
    };
    line["fields"]["client"].as_str().unwrap().to_owned()
}

/// A webhook behind `opening` is taken; who its log line says that sent it.
async fn told_client(running: &Running, opening: &[u8], forwarded_for: &[&str]) -> String {
    let lines = Lines::default();
    let guard = lines.collect();
    let mut stream = running.connect().await;
    stream.write_all(opening).await.unwrap();
    let mut lines_of_head = String::new();
    for value in forwarded_for {
        lines_of_head += &format!("\r\nX-Forwarded-For: {value}");
    }
    let text = whole("{}").replacen("\r\n", &(lines_of_head + "\r\n"), 1);
    send(&mut stream, &text).await;
    let said = answer(&mut stream).await;
    assert!(said.starts_with("HTTP/1.1 202 "), "{said}");
    drop(guard);
    client(&lines)
}

#[tokio::test]
async fn the_proxy_header_names_the_client() {
    let running = start(with_header("127.0.0.0/8"), &FakeLog::new()).await;
    // What the client itself forwards is not believed.
    assert_eq!(told_client(&running, V1, &["6.6.6.6"]).await, "192.0.2.7");
    assert_eq!(told_client(&running, V2, &[]).await, "2001:db8::7");
    assert_eq!(told_client(&running, V1_UNKNOWN, &[]).await, "127.0.0.1");
    running.stop().await;
}

#[tokio::test]
async fn without_a_proxy_header_nothing_is_answered() {
    let running = start(with_header("127.0.0.0/8"), &FakeLog::new()).await;
    for opening in [
        &b""[..],
        b"PROXY",
        b"PROXY TCP4 192.0.2.7",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 x\r\n",
        b"PROXY TCP4 2001:db8::7 10.0.0.1 1 2\r\n",
        &V2[..20],
        b"\r\n\r\n\0\r\nQUIT\n\x21\x21\xff\xff",
        whole("{}").as_bytes(),
        &[b'P'; 10_000],
    ] {
        let mut stream = running.connect().await;
        drop(stream.write_all(opening).await);
        assert_eq!(rest(&mut stream).await, "", "{opening:?}");
    }
    running.stop().await;
}

#[tokio::test]
async fn a_proxy_header_of_a_stranger_is_worth_nothing() {
    let running = start(with_header("10.0.0.0/8"), &FakeLog::new()).await;
    let mut stream = running.connect().await;
    drop(
        stream
            .write_all(&[V1, whole("{}").as_bytes()].concat())
            .await,
    );
    assert_eq!(rest(&mut stream).await, "");
    running.stop().await;
    // Nor is it one where none is expected.
    let running = start(IngestConfig::default(), &FakeLog::new()).await;
    let mut stream = running.connect().await;
    drop(
        stream
            .write_all(&[V1, whole("{}").as_bytes()].concat())
            .await,
    );
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 400 "));
    running.stop().await;
}

#[tokio::test]
async fn the_address_in_the_proxy_header_is_the_one_that_is_counted() {
    let config = IngestConfig {
        connections_per_address_max: Some(1),
        ..with_header("127.0.0.0/8")
    };
    let running = start(config, &FakeLog::new()).await;
    let mut first = running.connect().await;
    let text = [V1, whole("{}").as_bytes()].concat();
    first.write_all(&text).await.unwrap();
    assert!(answer(&mut first).await.starts_with("HTTP/1.1 202 "));
    let mut second = running.connect().await;
    drop(second.write_all(&text).await);
    assert_eq!(rest(&mut second).await, "");
    let mut other = running.connect().await;
    let text = [V2, whole("{}").as_bytes()].concat();
    other.write_all(&text).await.unwrap();
    assert!(answer(&mut other).await.starts_with("HTTP/1.1 202 "));
    running.stop().await;
}

#[tokio::test]
async fn forwarded_addresses_are_believed_from_trusted_proxies_only() {
    let forwarded = ["6.6.6.6, 192.0.2.7", "127.0.0.2"];
    for (config, client) in [
        (IngestConfig::default(), "127.0.0.1"),
        (behind("10.0.0.0/8"), "127.0.0.1"),
        (behind("127.0.0.0/8"), "192.0.2.7"),
    ] {
        let running = start(config, &FakeLog::new()).await;
        assert_eq!(told_client(&running, b"", &forwarded).await, client);
        running.stop().await;
    }
}

#[tokio::test]
async fn http_2_comes_behind_a_proxy_header_too() {
    let running = start(with_header("127.0.0.0/8"), &FakeLog::new()).await;
    let mut stream = running.connect().await;
    stream.write_all(V1).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::post("http://h/nothing").body(()).unwrap();
    let (answer, _) = client.send_request(request, true).unwrap();
    let answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
    assert_eq!(answer.status(), 404);
    drop((client, connection));
    running.stop().await;
}
