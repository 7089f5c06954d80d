//! The server on a real port: slow, many and late clients, and the end.

use crate::{GITHUB, app, fake_log::FakeLog, router::until, signed};
use ingest::{App, IngestConfig, serve};
use std::{io, net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// What must happen happens within this time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) draining: CancellationToken,
    pub(crate) shutdown: CancellationToken,
    served: JoinHandle<io::Result<()>>,
}

pub(crate) async fn start(config: IngestConfig, log: &FakeLog) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    start_on(listener, config, log)
}

fn start_on(listener: TcpListener, config: IngestConfig, log: &FakeLog) -> Running {
    start_app(listener, app(config, GITHUB, log))
}

pub(crate) fn start_app(listener: TcpListener, app: App<FakeLog>) -> Running {
    let address = listener.local_addr().unwrap();
    let (draining, shutdown) = (CancellationToken::new(), CancellationToken::new());
    let served = tokio::spawn(serve(app, listener, draining.clone(), shutdown.clone()));
    Running {
        address,
        draining,
        shutdown,
        served,
    }
}

impl Running {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.served)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

pub(crate) fn head(body: &[u8], length: &str) -> String {
    let mut text = "POST /hooks/github HTTP/1.1\r\nhost: h\r\n".to_owned();
    for (name, value) in signed(body) {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + length + "\r\n\r\n"
}

pub(crate) fn whole(body: &str) -> String {
    head(body.as_bytes(), &format!("content-length: {}", body.len())) + body
}

pub(crate) async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Everything until the server closes the connection.
pub(crate) async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut text)).await;
    // A reset ends the connection as well.
    if read.is_err() {
        panic!("still open after {}", String::from_utf8_lossy(&text));
    }
    String::from_utf8(text).unwrap()
}

/// An answer's head.
pub(crate) async fn answer(stream: &mut TcpStream) -> String {
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

/// The end of what a client sends is not the end of what it waits for.
#[tokio::test]
async fn who_closes_the_sending_side_after_a_request_is_answered() {
    let log = FakeLog::holding();
    let running = start(IngestConfig::default(), &log).await;
    let mut stream = running.connect().await;
    send(&mut stream, &whole("{}")).await;
    stream.shutdown().await.unwrap();
    until(|| log.asked().len() == 1).await;
    log.release();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 202 "));
    assert_eq!(log.acknowledged(), 1);
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
    let log = FakeLog::holding();
    let config = IngestConfig {
        connections_max: 1,
        ..IngestConfig::default()
    };
    let running = start(config, &log).await;
    let mut first = running.connect().await;
    send(&mut first, &whole("{}")).await;
    until(|| log.asked().len() == 1).await;

    let mut second = running.connect().await;
    send(&mut second, &whole("{}")).await;
    // So that a server that does not wait has the time to show it.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(log.asked().len(), 1, "the second was served beside it");

    log.release();
    answer(&mut first).await;
    drop(first);
    assert!(answer(&mut second).await.starts_with("HTTP/1.1 202 "));
    assert_eq!(log.acknowledged(), 2);
    running.stop().await;
}

#[tokio::test]
async fn an_idle_connection_gives_way_to_a_new_one() {
    let config = IngestConfig {
        connections_max: 2,
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut silent = running.connect().await;
    let mut idle = running.connect().await;
    send(&mut idle, &whole("{}")).await;
    answer(&mut idle).await;
    for _ in 0..3 {
        let mut honest = running.connect().await;
        send(&mut honest, &whole("{}")).await;
        assert!(answer(&mut honest).await.starts_with("HTTP/1.1 202 "));
    }
    assert_eq!(rest(&mut silent).await, "", "waited longest");
    running.stop().await;
}

/// Sends the same request every now and then, so that it never counts as idle, and reads the answers. False: told to go.
async fn busy(stream: &mut TcpStream, text: &str, times: usize) -> bool {
    for _ in 0..times {
        send(stream, text).await;
        if answer(stream).await.contains("connection: close") {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    true
}

#[tokio::test]
async fn a_busy_stranger_gives_way_and_a_busy_sender_does_not() {
    let config = IngestConfig {
        connections_max: 1,
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut stranger = running.connect().await;
    let forged = "POST /hooks/github HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n";
    assert!(busy(&mut stranger, forged, 3).await, "nobody waits");
    let mut sender = running.connect().await;
    send(&mut sender, &whole("{}")).await;
    assert!(!busy(&mut stranger, forged, 100).await);
    assert!(answer(&mut sender).await.starts_with("HTTP/1.1 202 "));

    let _waits = running.connect().await;
    assert!(busy(&mut sender, &whole("{}"), 10).await);
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
async fn while_draining_new_connections_are_served_and_all_are_told_to_go() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let mut old = running.connect().await;
    send(&mut old, &whole("{}")).await;
    assert!(!answer(&mut old).await.contains("connection: close"));
    running.draining.cancel();
    let mut new = running.connect().await;
    for stream in [&mut old, &mut new] {
        send(stream, &whole("{}")).await;
        let said = rest(stream).await;
        assert!(said.starts_with("HTTP/1.1 202 "), "{said}");
        assert!(said.contains("connection: close"), "{said}");
    }
    assert_eq!(log.acknowledged(), 3);
    running.stop().await;
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
