//! The server on a real port: slow, many and late clients, and the end.

use crate::{GITHUB, app, fake_log::FakeLog, router::until, signed};
use ingest::{IngestConfig, serve};
use std::{io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// What must happen happens within this time.
const PATIENCE: Duration = Duration::from_secs(10);

struct Running {
    address: SocketAddr,
    shutdown: CancellationToken,
    served: JoinHandle<io::Result<()>>,
}

async fn start(config: IngestConfig, log: &FakeLog) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_on(listener, config, log)
}

fn start_on(listener: TcpListener, config: IngestConfig, log: &FakeLog) -> Running {
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let app = app(config, GITHUB, log);
    let served = tokio::spawn(serve(app, listener, shutdown.clone()));
    Running {
        address,
        shutdown,
        served,
    }
}

impl Running {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.served)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

fn head(body: &[u8], length: &str) -> String {
    let mut text = "POST /hooks/github HTTP/1.1\r\nhost: h\r\n".to_owned();
    for (name, value) in signed(body) {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + length + "\r\n\r\n"
}

fn whole(body: &str) -> String {
    head(body.as_bytes(), &format!("content-length: {}", body.len())) + body
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Everything until the server closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A reset ends the connection as well.
    drop(
        timeout(PATIENCE, stream.read_to_end(&mut text))
            .await
            .unwrap(),
    );
    String::from_utf8(text).unwrap()
}

/// An answer's head.
async fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap();
        text.push(byte);
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn a_connection_serves_several_webhooks() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let mut stream = running.connect().await;
    for expected in 1..=3 {
        send(&mut stream, &whole("{}")).await;
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 202 "));
        assert_eq!(log.acknowledged(), expected);
    }
    running.stop().await;
}

#[tokio::test]
async fn a_slow_head_and_an_idle_connection_are_cut_off() {
    let config = IngestConfig {
        header_timeout: Duration::from_millis(100),
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    for text in [
        "",
        "POST /hooks/github HT",
        "POST /hooks/github HTTP/1.1\r\nhost: h\r\n",
    ] {
        let mut stream = running.connect().await;
        send(&mut stream, text).await;
        let said = rest(&mut stream).await;
        assert!(
            said.is_empty() || said.starts_with("HTTP/1.1 408 "),
            "{said}"
        );
    }
    running.stop().await;
}

#[tokio::test]
async fn a_slow_body_is_answered_408_and_cut_off() {
    let config = IngestConfig {
        body_timeout: Duration::from_millis(100),
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut stream = running.connect().await;
    send(&mut stream, &(head(b"{}", "content-length: 2") + "{")).await;
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 408 "));
    running.stop().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_sent() {
    let running = start(IngestConfig::default(), &FakeLog::new()).await;
    let mut stream = running.connect().await;
    send(
        &mut stream,
        &head(b"{}", "content-length: 1001\r\nexpect: 100-continue"),
    )
    .await;
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 413 "));

    let mut stream = running.connect().await;
    let chunk = format!("3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1_001));
    send(
        &mut stream,
        &(head(b"{}", "transfer-encoding: chunked") + &chunk),
    )
    .await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 413 "));

    let mut stream = running.connect().await;
    send(
        &mut stream,
        &head(b"{}", &format!("x: {}", "x".repeat(40_000))),
    )
    .await;
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 431 "));
    running.stop().await;
}

/// Which length counts must not be a matter of opinion between a proxy and us.
#[tokio::test]
async fn a_body_with_two_lengths_goes_no_further() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    for lengths in [
        "content-length: 2\r\ncontent-length: 3",
        "content-length: -2",
        "content-length: 2x",
    ] {
        let mut stream = running.connect().await;
        send(&mut stream, &(head(b"{}", lengths) + "{}")).await;
        assert!(
            rest(&mut stream).await.starts_with("HTTP/1.1 400 "),
            "{lengths}"
        );
    }
    assert_eq!(log.asked(), []);
    running.stop().await;
}

#[tokio::test]
async fn only_chunked_is_taken_as_a_transfer_coding() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    for coding in [
        "transfer-encoding: gzip, chunked",
        "transfer-encoding: chunked, chunked",
        "transfer-encoding: gzip\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked, gzip",
        "transfer-encoding: ",
    ] {
        let mut stream = running.connect().await;
        send(&mut stream, &(head(b"{}", coding) + "2\r\n{}\r\n0\r\n\r\n")).await;
        let said = rest(&mut stream).await;
        assert!(said.starts_with("HTTP/1.1 400 "), "{coding}: {said}");
    }
    assert_eq!(log.asked(), []);
    running.stop().await;
}

/// A proxy that goes by the content-length would take the end of the body for the next request, or the reverse.
#[tokio::test]
async fn nothing_is_taken_from_behind_a_chunked_body() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    for lengths in [
        "content-length: 2\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 2",
        "transfer-encoding: Chunked",
    ] {
        let before = log.acknowledged();
        let mut stream = running.connect().await;
        let first = head(b"{}", lengths) + "2\r\n{}\r\n0\r\n\r\n";
        send(&mut stream, &(first + &whole("{}"))).await;
        let said = rest(&mut stream).await;
        assert!(said.starts_with("HTTP/1.1 202 "), "{lengths}: {said}");
        assert!(said.contains("connection: close"), "{lengths}: {said}");
        assert_eq!(log.acknowledged(), before + 1, "{lengths}");
    }
    running.stop().await;
}

/// A listener with small send buffers: what nobody reads soon has nowhere to go.
fn narrow() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(4_096).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(16).unwrap()
}

/// A client that asks and asks and reads nothing; none when it has been cut off.
async fn deaf(address: SocketAddr, until_silent_for: Duration) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1_024).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let many = "GET /x HTTP/1.1\r\nhost: h\r\n\r\n".repeat(1_000);
    loop {
        match timeout(until_silent_for, stream.write_all(many.as_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return None,
            Err(_) => return Some(stream),
        }
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let config = IngestConfig {
        connections_max: 1,
        write_timeout: Duration::from_millis(100),
        ..IngestConfig::default()
    };
    let running = start_on(narrow(), config, &FakeLog::new());
    assert!(deaf(running.address, PATIENCE).await.is_none());
    let mut honest = running.connect().await;
    send(&mut honest, &whole("{}")).await;
    assert!(answer(&mut honest).await.starts_with("HTTP/1.1 202 "));
    running.stop().await;
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_client_that_does_not_read() {
    let config = IngestConfig {
        write_timeout: Duration::from_secs(1),
        drain: Duration::from_secs(600),
        ..IngestConfig::default()
    };
    let running = start_on(narrow(), config, &FakeLog::new());
    // Still connected, and it has filled every buffer between us.
    let stuck = deaf(running.address, Duration::from_millis(300)).await;
    running.stop().await;
    drop(stuck);
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_room() {
    let log = FakeLog::new();
    let config = IngestConfig {
        connections_max: 1,
        ..IngestConfig::default()
    };
    let running = start(config, &log).await;
    let mut first = running.connect().await;
    send(&mut first, &whole("{}")).await;
    answer(&mut first).await;

    let mut second = running.connect().await;
    send(&mut second, &whole("{}")).await;
    send(&mut first, &whole("{}")).await;
    answer(&mut first).await;
    assert_eq!(
        log.acknowledged(),
        2,
        "the second connection was served beside the first"
    );

    drop(first);
    assert!(answer(&mut second).await.starts_with("HTTP/1.1 202 "));
    assert_eq!(log.acknowledged(), 3);
    running.stop().await;
}

#[tokio::test]
async fn the_end_waits_for_requests_under_way_and_takes_no_new_ones() {
    let log = FakeLog::holding();
    let running = start(IngestConfig::default(), &log).await;
    let mut idle = running.connect().await;
    let mut busy = running.connect().await;
    send(&mut busy, &whole("{}")).await;
    until(|| log.asked().len() == 1).await;

    running.shutdown.cancel();
    while TcpStream::connect(running.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(rest(&mut idle).await, "");
    // So that a server that does not wait has the time to show it.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!running.served.is_finished());
    assert_eq!(log.flushed(), 0);
    log.release();
    let said = rest(&mut busy).await;
    assert!(said.starts_with("HTTP/1.1 202 "), "{said}");
    assert!(said.contains("connection: close"), "{said}");
    running.stop().await;
    assert_eq!(log.flushed(), 1);
}

#[tokio::test]
async fn the_end_does_not_wait_for_ever() {
    let log = FakeLog::holding();
    let config = IngestConfig {
        drain: Duration::from_millis(100),
        ..IngestConfig::default()
    };
    let running = start(config, &log).await;
    let mut busy = running.connect().await;
    send(&mut busy, &whole("{}")).await;
    until(|| log.asked().len() == 1).await;
    running.stop().await;
    assert_eq!(rest(&mut busy).await, "");
    assert_eq!((log.acknowledged(), log.flushed()), (0, 1));
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_share_back() {
    let log = FakeLog::holding();
    let config = IngestConfig {
        in_flight_bytes_max: 1_000,
        ..IngestConfig::default()
    };
    let running = start(config, &log).await;
    let body = "x".repeat(900);
    let mut gone = running.connect().await;
    send(&mut gone, &whole(&body)).await;
    until(|| log.asked().len() == 1).await;
    drop(gone);
    log.release();
    let retry = async {
        loop {
            let mut stream = running.connect().await;
            send(&mut stream, &whole(&body)).await;
            if answer(&mut stream).await.starts_with("HTTP/1.1 202 ") {
                return;
            }
        }
    };
    timeout(PATIENCE, retry).await.unwrap();
    running.stop().await;
}
