//! Connections that are used again, and are not there any more (hyperium/hyper#2136, #3553). Whatever the receiver saw of it, the
//! attempt is one attempt, failed; the next one carries the same id.

use crate::receiver::{Answer, Receiver, destination, send, sender, text, webhook};
use schemas::OutcomeKind;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The receiver closes each connection as soon as it has answered: sometimes we notice in time, sometimes the request is on its way.
#[tokio::test]
async fn an_idle_connection_that_closes_is_never_a_second_request() {
    let receiver = Receiver::start([Answer::Last(OK.to_vec())]).await;
    let sender = sender(destination(&receiver.url()));
    let mut delivered = 0;
    for at in 0..200 {
        let got = send(&sender, &webhook(b"{}")).await;
        if got.kind == OutcomeKind::Delivered {
            delivered += 1;
        } else {
            assert_eq!(got.kind, OutcomeKind::Failed, "{got:?}");
        }
        // Sometimes the end of the connection is there before the next request, sometimes not.
        if at % 2 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(receiver.requests().len(), delivered);
    assert!(delivered > 0);
    for request in receiver.requests() {
        assert_eq!(request.one("webhook-id"), "github_d1");
    }
}

#[tokio::test]
async fn a_reset_of_a_used_connection_is_a_failed_attempt() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let mut bytes = Vec::new();
            while !bytes.ends_with(b"{}") {
                bytes.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(OK).await.unwrap();
            // The next request has begun to arrive: what is not read when a socket is closed makes it a reset.
            assert!(stream.peek(&mut [0]).await.unwrap() > 0);
            stream.set_zero_linger().unwrap();
        }
    });
    let sender = sender(destination(&url));
    for round in 1..=3 {
        let got = send(&sender, &webhook(b"{}")).await;
        assert_eq!(got.kind, OutcomeKind::Delivered, "{got:?}");
        let got = send(&sender, &webhook(b"{}")).await;
        assert_eq!(
            (got.kind, got.status),
            (OutcomeKind::Failed, None),
            "{got:?}"
        );
        assert_eq!(connections.load(Ordering::SeqCst), round, "no second try");
    }
}

#[tokio::test]
async fn long_headers_and_pages_are_answers() {
    let long = format!(
        "HTTP/1.1 200 OK\r\nx-long: {}\r\ncontent-length: 0\r\n\r\n",
        "x".repeat(9 << 10)
    );
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 22\r\n\r\n<form>Log in</form>   ";
    let none = "HTTP/1.1 204 No Content\r\n\r\n";
    for answer in [&long, page, none] {
        let receiver = Receiver::start([text(answer)]).await;
        let sender = sender(destination(&receiver.url()));
        for _ in 0..2 {
            let got = send(&sender, &webhook(b"{}")).await;
            assert_eq!(got.kind, OutcomeKind::Delivered, "{got:?}");
        }
        assert_eq!(receiver.connections(), 1, "used again: {answer}");
    }
}

#[tokio::test]
async fn a_receiver_with_ipv6_only_is_reached() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        eprintln!("no IPv6 on this machine: not tested");
        return;
    };
    let receiver = Receiver::on(listener, [Answer::Bytes(OK.to_vec())], None);
    let port = receiver.address.port();
    for host in ["[::1]", "ipv6-only.localhost"] {
        let mut config = destination(&format!("http://{host}:{port}/"));
        config.allow_cidrs.push("::1/128".parse().unwrap());
        let got = send(&sender(config), &webhook(b"{}")).await;
        assert_eq!(got.kind, OutcomeKind::Delivered, "{host}: {got:?}");
    }
}
