//! HTTP/2 without TLS, as a proxy in front may speak it, and as it is abused. Abuse is written as raw frames (RFC 9113).

use crate::{
    fake_log::FakeLog,
    router::until,
    server::{PATIENCE, Running, answer, send, start, whole},
    signed,
};
use bytes::Bytes;
use h2::{
    RecvStream,
    client::{self, ResponseFuture, SendRequest},
};
use http::{Request, Response};
use ingest::IngestConfig;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};

const SHORT: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(600);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames.
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `POST http /`, out of HPACK's static table.
const POST: &[u8] = &[0x83, 0x86, 0x84];

/// A client that behaves; the task ends when the connection does.
async fn client(running: &Running) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let (send, connection) = client::handshake(running.connect().await).await.unwrap();
    (send, tokio::spawn(connection))
}

/// A webhook, answered some time.
async fn post(client: &mut SendRequest<Bytes>, body: &[u8]) -> Result<ResponseFuture, h2::Error> {
    let mut request = Request::post("http://h/hooks/github");
    for (name, value) in signed(body) {
        request = request.header(name, value);
    }
    std::future::poll_fn(|cx| client.poll_ready(cx)).await?;
    let (answer, mut stream) = client.send_request(request.body(()).unwrap(), false)?;
    stream.send_data(Bytes::copy_from_slice(body), true)?;
    Ok(answer)
}

async fn status(answer: ResponseFuture) -> Response<RecvStream> {
    timeout(PATIENCE, answer).await.unwrap().unwrap()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A connection after preface and SETTINGS with this payload.
async fn raw(running: &Running, settings: &[u8]) -> TcpStream {
    let mut stream = running.connect().await;
    let opening = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, settings)].concat();
    stream.write_all(&opening).await.unwrap();
    stream
}

/// All frames until the server closes: type and payload.
async fn frames(stream: &mut TcpStream) -> Vec<(u8, Vec<u8>)> {
    let mut bytes = Vec::new();
    drop(
        timeout(PATIENCE, stream.read_to_end(&mut bytes))
            .await
            .expect("closed in time"),
    );
    let (mut frames, mut rest) = (Vec::new(), bytes.as_slice());
    while let Some((head, behind)) = rest.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, behind)) = behind.split_at_checked(length) else {
            break;
        };
        frames.push((head[3], payload.to_vec()));
        rest = behind;
    }
    frames
}

fn errors_of_goaway(frames: &[(u8, Vec<u8>)]) -> Vec<u32> {
    let of_type = frames.iter().filter(|(kind, _)| *kind == GOAWAY);
    of_type
        .map(|(_, payload)| u32::from_be_bytes(payload[4..8].try_into().unwrap()))
        .collect()
}

#[tokio::test]
async fn webhooks_are_taken_over_one_connection() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let (mut client, connection) = client(&running).await;
    let mut answers = Vec::new();
    for _ in 0..10 {
        answers.push(post(&mut client, b"{}").await.unwrap());
    }
    for answer in answers {
        let answer = status(answer).await;
        assert_eq!(answer.status(), 202);
        assert!(!answer.headers().contains_key("connection"));
    }
    assert_eq!(log.acknowledged(), 10);
    running.stop().await;
    assert!(timeout(PATIENCE, connection).await.unwrap().is_ok());
}

/// One byte each, out of HPACK's table: they would take a thousand times as much memory as they cost to send.
#[tokio::test]
async fn many_headers_are_refused_before_the_body_is_waited_for() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let (mut client, _connection) = client(&running).await;
    for path in ["github", "nobody"] {
        let mut request = Request::post(format!("http://h/hooks/{path}"));
        for _ in 0..101 {
            request = request.header("x-a", "");
        }
        let request = request.body(()).unwrap();
        let (answer, _body) = client.send_request(request, false).unwrap();
        assert_eq!(status(answer).await.status(), 431, "{path}");
    }
    let answer = post(&mut client, b"{}").await.unwrap();
    assert_eq!(status(answer).await.status(), 202, "the connection goes on");
    running.stop().await;
}

#[tokio::test]
async fn a_stranger_with_a_request_always_under_way_gives_way() {
    let config = IngestConfig {
        connections_max: 1,
        body_timeout: Duration::from_millis(200),
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let (mut stranger, _connection) = client(&running).await;
    let mut stream = running.connect().await;
    let told_to_go = async {
        loop {
            std::future::poll_fn(|cx| stranger.poll_ready(cx)).await?;
            let request = Request::post("http://h/hooks/github").body(()).unwrap();
            let (answer, _body) = stranger.send_request(request, false)?;
            assert_eq!(answer.await?.status(), 408);
        }
    };
    let told: Result<(), h2::Error> = timeout(PATIENCE, told_to_go).await.unwrap();
    assert!(told.unwrap_err().is_go_away());
    send(&mut stream, &whole("{}")).await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 202 "));
    running.stop().await;
}

#[tokio::test]
async fn heads_of_all_streams_share_one_budget() {
    let config = IngestConfig {
        // So that heads have no more than a megabyte.
        in_flight_bytes_max: 2 << 20,
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let (mut client, _connection) = client(&running).await;
    // Packed they are a few dozen bytes. A field costs more than its bytes: 34 with the RFC's 32.
    let hold = |client: &mut SendRequest<Bytes>| {
        let mut request = Request::post("http://h/hooks/github");
        for _ in 0..800 {
            request = request.header("a", "b");
        }
        client
            .send_request(request.body(()).unwrap(), false)
            .unwrap()
    };
    let fit = (1 << 20) / (800 * 34 + 40);
    let held: Vec<_> = (0..fit).map(|_| hold(&mut client)).collect();
    let (refused, _body) = hold(&mut client);
    assert_eq!(status(refused).await.status(), 503);

    drop(held);
    let taken = async {
        while {
            let answer = post(&mut client, b"{}").await.unwrap();
            status(answer).await.status() != 202
        } {}
    };
    timeout(PATIENCE, taken).await.unwrap();
    running.stop().await;
}

#[tokio::test]
async fn bodies_of_all_streams_share_one_budget() {
    let log = FakeLog::holding();
    let config = IngestConfig {
        in_flight_bytes_max: 5_000,
        ..IngestConfig::default()
    };
    let running = start(config, &log).await;
    let (mut client, _connection) = client(&running).await;
    let body = [b'x'; 1_000];
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(post(&mut client, &body).await.unwrap());
    }
    until(|| log.asked().len() == 5).await;
    for _ in 0..50 {
        let answer = status(post(&mut client, &body).await.unwrap()).await;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["retry-after"], "5");
    }
    log.release();
    for answer in held {
        assert_eq!(status(answer).await.status(), 202);
    }
    let answer = status(post(&mut client, &body).await.unwrap()).await;
    assert_eq!(answer.status(), 202, "the budget was given back");
    assert_eq!(log.acknowledged(), 6);
    running.stop().await;
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let log = FakeLog::holding();
    let running = start(IngestConfig::default(), &log).await;
    let mut stream = raw(&running, &[]).await;
    // Heads whose bodies never come.
    for number in 0..200 {
        let open = frame(HEADERS, END_HEADERS, number * 2 + 1, POST);
        stream.write_all(&open).await.unwrap();
    }
    stream.shutdown().await.unwrap();
    let frames = frames(&mut stream).await;
    let refused = |(kind, payload): &&(u8, Vec<u8>)| *kind == RST_STREAM && payload[3] == 7;
    // All beyond 128 are, of those that were opened before an answer to another ended it.
    let most = frames.iter().filter(refused).count();
    let settings = frames.iter().find(|(kind, _)| *kind == SETTINGS).unwrap();
    assert!(
        settings.1.chunks(6).any(|one| one == [0, 3, 0, 0, 0, 128]),
        "{settings:?}"
    );
    assert!(most <= 72, "{most}");
    running.stop().await;
}

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let log = FakeLog::new();
    let running = start(IngestConfig::default(), &log).await;
    let mut stream = raw(&running, &[]).await;
    let mut attack = Vec::new();
    for number in 0..1_000 {
        attack.extend(frame(HEADERS, END_HEADERS, number * 2 + 1, POST));
        attack.extend(frame(RST_STREAM, 0, number * 2 + 1, &8_u32.to_be_bytes()));
    }
    drop(stream.write_all(&attack).await);
    let frames = frames(&mut stream).await;
    // ENHANCE_YOUR_CALM; the reset of the connection may swallow it.
    let errors = errors_of_goaway(&frames);
    assert!(errors.is_empty() || errors.contains(&11), "{errors:?}");
    running.stop().await;
}

#[tokio::test]
async fn a_head_that_never_ends_ends_the_connection() {
    let config = IngestConfig {
        header_timeout: SHORT,
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut stream = raw(&running, &[]).await;
    stream
        .write_all(&frame(HEADERS, END_STREAM, 1, POST))
        .await
        .unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let drip = async {
        let more = frame(CONTINUATION, 0, 1, b"");
        while writer.write_all(&more).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let mut bytes = Vec::new();
    tokio::select! {
        () = drip => {}
        read = timeout(PATIENCE, reader.read_to_end(&mut bytes)) => drop(read.unwrap()),
    }
    running.stop().await;
}

#[tokio::test]
async fn a_connection_without_requests_ends() {
    // Once it has been served, and before.
    let log = FakeLog::new();
    let served = IngestConfig {
        header_timeout: LONG,
        idle_timeout: SHORT,
        drain: Duration::from_secs(1),
        ..IngestConfig::default()
    };
    let running = start(served, &log).await;
    let (mut client, connection) = client(&running).await;
    let answer = post(&mut client, b"{}").await.unwrap();
    assert_eq!(status(answer).await.status(), 202);
    timeout(PATIENCE, connection)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    running.stop().await;

    let silent = IngestConfig {
        header_timeout: SHORT,
        idle_timeout: LONG,
        drain: SHORT,
        ..IngestConfig::default()
    };
    let running = start(silent, &log).await;
    for opening in [&b"PR"[..], PREFACE, b""] {
        let mut stream = running.connect().await;
        stream.write_all(opening).await.unwrap();
        frames(&mut stream).await;
    }
    let mut stream = raw(&running, &[]).await;
    let frames = frames(&mut stream).await;
    assert_eq!(errors_of_goaway(&frames).first(), Some(&0), "{frames:?}");
    running.stop().await;
}

/// The client opens no window, so that the answer's body can not be sent. It does answer pings.
#[tokio::test]
async fn an_answer_that_is_not_taken_ends_the_connection() {
    let config = IngestConfig {
        write_timeout: SHORT,
        ..IngestConfig::default()
    };
    let running = start(config, &FakeLog::new()).await;
    let mut builder = client::Builder::new();
    builder.initial_window_size(0);
    let handshake = builder.handshake::<_, Bytes>(running.connect().await).await;
    let (mut client, connection) = handshake.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post("http://h/nothing").body(()).unwrap();
    let (answer, _stream) = client.send_request(request, true).unwrap();
    let answer = status(answer).await;
    assert_eq!(answer.status(), 404);
    let ended = timeout(PATIENCE, connection).await.unwrap().unwrap();
    drop((answer, ended));
    running.stop().await;
}

#[tokio::test]
async fn a_connection_that_has_served_enough_is_told_to_go() {
    let log = FakeLog::new();
    let config = IngestConfig {
        requests_per_connection_max: 2,
        ..IngestConfig::default()
    };
    let running = start(config, &log).await;
    let (mut client, connection) = client(&running).await;
    for _ in 0..2 {
        let answer = post(&mut client, b"{}").await.unwrap();
        assert_eq!(status(answer).await.status(), 202);
    }
    timeout(PATIENCE, connection)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(post(&mut client, b"{}").await.is_err());
    assert_eq!(log.acknowledged(), 2);
    running.stop().await;
}

#[tokio::test]
async fn while_draining_streams_under_way_finish_and_no_new_ones_begin() {
    let log = FakeLog::holding();
    let running = start(IngestConfig::default(), &log).await;
    let (mut old, connection) = client(&running).await;
    let under_way = post(&mut old, b"{}").await.unwrap();
    until(|| log.asked().len() == 1).await;
    running.draining.cancel();
    let told = async {
        while post(&mut old, b"{}").await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, told).await.expect("no GOAWAY");
    log.release();
    assert_eq!(status(under_way).await.status(), 202);
    timeout(PATIENCE, connection)
        .await
        .unwrap()
        .unwrap()
        .unwrap();

    let (mut new, connection) = client(&running).await;
    let answer = post(&mut new, b"{}").await.unwrap();
    assert_eq!(status(answer).await.status(), 202);
    timeout(PATIENCE, connection)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    running.stop().await;
}
