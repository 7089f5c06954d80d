//! The peer of a connection is judged again, whatever led to it.

use super::super::*;
use reqwest::ClientBuilder;
use std::{error::Error, net::SocketAddr};
use tokio::{io::AsyncReadExt, net::TcpListener};

fn blocked(error: &reqwest::Error) -> Option<Blocked> {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        if let Some(blocked) = error.downcast_ref() {
            return Some(*blocked);
        }
        cause = error.source();
    }
    None
}

/// What one request brings, and the bytes that the other side has got.
async fn request(client: ClientBuilder, host: &str) -> (Option<Blocked>, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = client.resolve("public.test", address).build().unwrap();
    let url = format!("http://{host}:{}/", address.port());
    let (answer, got) = tokio::join!(client.get(url).send(), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut got = vec![0; 4];
        match stream.read(&mut got).await {
            Ok(length) => got.truncate(length),
            Err(_) => got.clear(),
        }
        got
    });
    (blocked(&answer.unwrap_err()), got)
}

#[tokio::test]
async fn a_forbidden_peer_gets_no_byte() {
    let refused = (Some(Blocked { class: "loopback" }), Vec::new());
    // For a literal no resolver is asked; the override stands for a resolver that was lied to.
    for host in ["127.0.0.1", "2130706433", "public.test"] {
        let guard = Guard::new(Vec::new(), Dns::system());
        assert_eq!(request(guard.client(), host).await, refused, "{host}");
    }
    let guard = Guard::new(vec!["127.0.0.0/8".parse().unwrap()], Dns::system());
    let (_, got) = request(guard.client(), "public.test").await;
    assert_eq!(got, b"GET ");
}

#[tokio::test]
async fn a_name_is_resolved_by_the_guard() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let nobody: SocketAddr = "127.0.0.1:9".parse().unwrap();
    let dns = Dns::with_servers(&[nobody], "127.0.0.1 inside.test\n");
    let client = Guard::new(Vec::new(), dns).client().build().unwrap();
    let url = format!("http://inside.test:{port}/");
    let error = client.get(url).send().await.unwrap_err();
    assert_eq!(blocked(&error), Some(Blocked { class: "loopback" }));
    let dialled = tokio::time::timeout(std::time::Duration::ZERO, listener.accept()).await;
    assert!(dialled.is_err(), "it was dialled");
}
