//! TLS at the port. The certificates in `tls/` sign themselves, for the name `localhost`, and are good for a hundred years.

use crate::{
    GITHUB,
    fake_log::FakeLog,
    server::{PATIENCE, Running, rest, start_app, whole},
    signed, try_app,
};
use bytes::Bytes;
use http::Request;
use ingest::{IngestConfig, TlsConfig};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{path::Path, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

const ONE: (&str, &str) = (include_str!("tls/one.crt"), include_str!("tls/one.key"));
const TWO: (&str, &str) = (include_str!("tls/two.crt"), include_str!("tls/two.key"));

fn write(dir: &Path, cert: &str, key: &str) {
    std::fs::write(dir.join("tls.crt"), cert).unwrap();
    std::fs::write(dir.join("tls.key"), key).unwrap();
}

fn config(dir: &Path) -> IngestConfig {
    IngestConfig {
        tls: Some(TlsConfig {
            cert: dir.join("tls.crt"),
            key: dir.join("tls.key"),
        }),
        header_timeout: Duration::from_millis(500),
        ..IngestConfig::default()
    }
}

async fn start(log: &FakeLog) -> (Running, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), ONE.0, ONE.1);
    let app = try_app(config(dir.path()), GITHUB, log.clone()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (start_app(listener, app), dir)
}

/// A connection to a server that we trust with either certificate.
async fn connect(running: &Running, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for (cert, _) in [ONE, TWO] {
        let cert = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
        roots.add(cert).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, running.connect().await).await
}

fn certificate(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

fn parsed(pair: (&str, &str)) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pair.0.as_bytes()).unwrap()
}

#[tokio::test]
async fn both_versions_are_spoken() {
    let log = FakeLog::new();
    let (running, _dir) = start(&log).await;
    let mut stream = connect(&running, "http/1.1").await.unwrap();
    stream.write_all(whole("{}").as_bytes()).await.unwrap();
    let mut status = [0; 13];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 202 ");

    let stream = connect(&running, "h2").await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::post("https://localhost/hooks/github");
    for (name, value) in signed(b"{}") {
        request = request.header(name, value);
    }
    let (answer, mut body) = client
        .send_request(request.body(()).unwrap(), false)
        .unwrap();
    body.send_data(Bytes::from_static(b"{}"), true).unwrap();
    let answer = timeout(PATIENCE, answer).await.unwrap().unwrap();
    assert_eq!(answer.status(), 202);
    assert_eq!(log.acknowledged(), 2);
    running.stop().await;
    drop(connection);
}

#[tokio::test]
async fn heads_are_read_as_strictly_as_without() {
    let (running, _dir) = start(&FakeLog::new()).await;
    let mut stream = connect(&running, "http/1.1").await.unwrap();
    stream
        .write_all(b"POST / HTTP/1.1\nhost: h\n\n")
        .await
        .unwrap();
    let mut said = String::new();
    drop(
        timeout(PATIENCE, stream.read_to_string(&mut said))
            .await
            .unwrap(),
    );
    assert!(said.starts_with("HTTP/1.1 400 "), "{said}");
    running.stop().await;
}

#[tokio::test]
async fn a_client_that_shakes_no_hands_is_cut_off() {
    let (running, _dir) = start(&FakeLog::new()).await;
    for opening in ["", "\x16\x03\x01", &whole("{}")] {
        let mut stream = running.connect().await;
        stream.write_all(opening.as_bytes()).await.unwrap();
        let mut said = Vec::new();
        drop(
            timeout(PATIENCE, stream.read_to_end(&mut said))
                .await
                .unwrap(),
        );
        assert!(said.len() < 16, "at most an alert: {said:?}");
    }
    // Nothing after it.
    let mut stream = connect(&running, "http/1.1").await.unwrap();
    let mut said = Vec::new();
    drop(
        timeout(PATIENCE, stream.read_to_end(&mut said))
            .await
            .unwrap(),
    );
    assert_eq!(said, b"");
    running.stop().await;
}

#[tokio::test]
async fn a_new_certificate_is_served_and_a_bad_one_is_not() {
    let (running, dir) = start(&FakeLog::new()).await;
    let mut old = connect(&running, "http/1.1").await.unwrap();
    assert_eq!(certificate(&old), parsed(ONE));
    let until_served = async |expected: CertificateDer<'static>| {
        let look = async {
            while certificate(&connect(&running, "http/1.1").await.unwrap()) != expected {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, look).await.expect("never served");
    };
    // Half a pair, then none, then a good one: all handshakes between succeed with the old one.
    write(dir.path(), TWO.0, ONE.1);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    until_served(parsed(ONE)).await;
    write(dir.path(), "no certificate", TWO.1);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    until_served(parsed(ONE)).await;
    write(dir.path(), TWO.0, TWO.1);
    until_served(parsed(TWO)).await;
    // Connections go on with what they began with; this one was only idle for too long.
    drop(old.shutdown().await);
    running.stop().await;
}

#[tokio::test]
async fn without_tls_the_port_speaks_none_and_the_other_way_round() {
    let (running, _dir) = start(&FakeLog::new()).await;
    let mut plain = running.connect().await;
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    drop(
        timeout(PATIENCE, plain.read_to_end(&mut said))
            .await
            .unwrap(),
    );
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
    running.stop().await;

    let running = crate::server::start(IngestConfig::default(), &FakeLog::new()).await;
    assert!(connect(&running, "h2").await.is_err());
    let mut stream = running.connect().await;
    stream.write_all(b"\x16\x03\x01\r\n\r\n").await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 400 "));
    running.stop().await;
}

#[test]
fn files_that_can_not_be_used_are_named() {
    let dir = tempfile::tempdir().unwrap();
    for (cert, key, at) in [
        (None, Some(ONE.1), &["ingest.tls.cert"][..]),
        (Some(ONE.0), None, &["ingest.tls.key"]),
        (None, None, &["ingest.tls.cert", "ingest.tls.key"]),
        (Some("x"), Some(ONE.1), &["ingest.tls.cert"]),
        (Some(ONE.0), Some("x"), &["ingest.tls.key"]),
        (Some(TWO.0), Some(ONE.1), &["ingest.tls.key"]),
    ] {
        for (name, text) in [("tls.crt", cert), ("tls.key", key)] {
            drop(std::fs::remove_file(dir.path().join(name)));
            if let Some(text) = text {
                std::fs::write(dir.path().join(name), text).unwrap();
            }
        }
        let problems = try_app(config(dir.path()), GITHUB, FakeLog::new()).unwrap_err();
        let keys: Vec<&str> = problems
            .iter()
            .map(|problem| problem.key.as_str())
            .collect();
        assert_eq!(keys, at, "{problems:?}");
    }
}

/// What a variable or a copied field often makes of a key. Its bytes as numbers would be the key as well.
#[test]
fn a_key_that_can_not_be_read_is_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let flat = ONE.1.replace('\n', "");
    let spaced = ONE.1.replace('\n', " ");
    let cut = ONE.1.trim_end().trim_end_matches('-');
    let bent = ONE.1.replacen("MIGH", "MI!H", 1);
    for key in [flat.as_str(), &spaced, cut, &bent] {
        for (cert, key) in [(ONE.0, key), (key, ONE.1)] {
            write(dir.path(), cert, key);
            let problems = try_app(config(dir.path()), GITHUB, FakeLog::new()).unwrap_err();
            let [problem] = problems.as_slice() else {
                panic!("{problems:?}")
            };
            let digits = problem.message.chars().any(|c| c.is_ascii_digit());
            assert!(!digits && problem.message.len() < 100, "{problem:?}");
        }
    }
}
