//! A forward proxy that the config names.

use crate::{
    receiver::{Receiver, destination, send, sender_in, text, webhook},
    tls::{acceptor, certificates, file, trusting},
};
use dispatcher::{DestinationConfig, config::ProxyConfig};
use schemas::OutcomeKind;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

/// A proxy that leads everybody to one place, or refuses with `answer`. Gives its address and the heads that it got.
async fn proxy(answer: &'static str, to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::new(Mutex::new(Vec::new()));
    let got = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            got.lock().unwrap().push(String::from_utf8(head).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
            if answer.contains(" 200 ") {
                let mut there = TcpStream::connect(to).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut stream, &mut there).await });
            }
        }
    });
    (address, heads)
}

fn through(proxy: SocketAddr, url: &str) -> DestinationConfig {
    let mut config = destination(url);
    config.allow_http = false;
    config.allow_cidrs.clear();
    config.tls = Some(trusting("ca.pem"));
    config.proxy = Some(ProxyConfig {
        url: format!("http://{proxy}").parse().unwrap(),
        user: Some("me".to_owned()),
        password: Some(file("make.sh")),
    });
    config
}

#[tokio::test]
async fn the_proxy_finds_the_receiver_and_sees_nothing() {
    let ok = text("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let receiver = Receiver::tls([ok], acceptor("other-name", false, &[])).await;
    let (address, heads) = proxy("HTTP/1.1 200 OK\r\n\r\n", receiver.address).await;
    let mut config = through(address, "https://other.example/hooks");
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(certificates().join("ca.pem"), dir.path().join("ca.pem")).unwrap();
    std::fs::write(dir.path().join("password"), "hunter2").unwrap();
    config.proxy.as_mut().unwrap().password = Some(file("password"));
    assert_eq!(config.check("x"), []);
    let sender = sender_in(dir.path(), config).unwrap();
    assert!(!format!("{sender:?}").contains("hunter2"));
    let got = send(&sender, &webhook(b"{}")).await;
    assert_eq!(got.kind, OutcomeKind::Delivered, "{got:?}");

    let head = heads.lock().unwrap().remove(0).to_ascii_lowercase();
    assert!(
        head.starts_with("connect other.example:443 http/1.1\r\n"),
        "{head}"
    );
    // printf me:hunter2 | base64
    assert!(
        head.contains("proxy-authorization: basic bwu6ahvudgvymg=="),
        "{head}"
    );
    assert!(!head.contains("webhook-id"), "{head}");
    let request = receiver.requests().remove(0);
    assert_eq!(request.line, "POST /hooks HTTP/1.1");
    assert!(request.all("proxy-authorization").is_empty());
}

#[tokio::test]
async fn a_proxy_that_refuses_is_a_failed_attempt() {
    for answer in [
        "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 302 Found\r\nlocation: http://x/\r\n\r\n",
    ] {
        let (address, heads) = proxy(answer, "127.0.0.1:9".parse().unwrap()).await;
        let config = through(address, "https://other.example/hooks");
        let sender = sender_in(&certificates(), config).unwrap();
        let got = send(&sender, &webhook(b"{}")).await;
        assert_eq!(
            (got.kind, got.status),
            (OutcomeKind::Failed, None),
            "{got:?}"
        );
        assert!(got.detail.starts_with("connect: tunnel error"), "{got:?}");
        assert_eq!(heads.lock().unwrap().len(), 1);
    }
}

/// What is inside for us may be inside for the proxy.
#[tokio::test]
async fn addresses_are_judged_although_a_proxy_dials() {
    let (address, heads) = proxy("HTTP/1.1 200 OK\r\n\r\n", "127.0.0.1:9".parse().unwrap()).await;
    for host in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "[::1]",
        "localhost",
        "a.localhost.",
    ] {
        let config = through(address, &format!("https://{host}/"));
        let problem = sender_in(&certificates(), config).unwrap_err();
        assert!(
            problem.contains("destinations.billing.url"),
            "{host}: {problem}"
        );
    }
    let mut config = through(address, "https://metadata.example/");
    config.proxy.as_mut().unwrap().url = "http://169.254.169.254:3128".parse().unwrap();
    let problem = sender_in(&certificates(), config).unwrap_err();
    assert!(
        problem.contains("destinations.billing.proxy.url"),
        "{problem}"
    );
    assert!(heads.lock().unwrap().is_empty());
}
