//! Certificates: whom we trust, who we are, and what is said when it does not work.

use crate::receiver::{Answer, Receiver, destination, send, sender_in, text, webhook};
use dispatcher::{DestinationConfig, config::TlsConfig};
use runtime::SecretRef;
use schemas::OutcomeKind;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub(crate) fn certificates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/http_send/certificates")
}

/// A server with the certificate `name`; with `asks`, it wants a client's of our authority.
pub(crate) fn acceptor(name: &str, asks: bool, protocols: &[&[u8]]) -> TlsAcceptor {
    let path = |file: &str| certificates().join(file);
    let ders = |file: &str| CertificateDer::pem_file_iter(path(file)).unwrap();
    let chain = ders(&format!("{name}.pem")).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(path(&format!("{name}.key"))).unwrap();
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let mut config = if asks {
        let mut roots = RootCertStore::empty();
        for der in ders("ca.pem") {
            roots.add(der.unwrap()).unwrap();
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        builder.with_client_cert_verifier(verifier.unwrap())
    } else {
        builder.with_no_client_auth()
    }
    .with_single_cert(chain, key)
    .unwrap();
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

pub(crate) fn file(name: &str) -> SecretRef {
    SecretRef {
        env: None,
        file: Some(name.into()),
        not_after: None,
    }
}

pub(crate) fn trusting(ca: &str) -> TlsConfig {
    TlsConfig {
        ca: Some(ca.into()),
        ..TlsConfig::default()
    }
}

fn https(receiver: &Receiver, tls: Option<TlsConfig>) -> DestinationConfig {
    let mut config = destination(&receiver.url().replace("http:", "https:"));
    config.allow_http = false;
    config.tls = tls;
    config
}

async fn outcome(receiver: &Receiver, tls: Option<TlsConfig>) -> (OutcomeKind, String) {
    let sender = sender_in(&certificates(), https(receiver, tls)).unwrap();
    let got = send(&sender, &webhook(b"{}")).await;
    (got.kind, got.detail)
}

#[tokio::test]
async fn an_authority_of_ones_own_is_trusted_and_no_other() {
    let receiver = Receiver::tls([text(OK)], acceptor("server", false, &[])).await;
    let (kind, detail) = outcome(&receiver, Some(trusting("ca.pem"))).await;
    assert_eq!(kind, OutcomeKind::Delivered, "{detail}");
    let untrusted = "tls: the certificate's issuer is not trusted".to_owned();
    for tls in [None, Some(trusting("strangers.pem"))] {
        let failed = (OutcomeKind::Failed, untrusted.clone());
        assert_eq!(outcome(&receiver, tls).await, failed);
    }
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn what_is_wrong_with_a_certificate_is_said() {
    for (name, detail) in [
        ("expired", "tls: the certificate has expired"),
        ("other-name", "tls: the certificate is for another name"),
    ] {
        let receiver = Receiver::tls([text(OK)], acceptor(name, false, &[])).await;
        let got = outcome(&receiver, Some(trusting("ca.pem"))).await;
        assert_eq!(got, (OutcomeKind::Failed, detail.to_owned()));
        assert!(receiver.requests().is_empty());
    }
}

#[tokio::test]
async fn a_receiver_that_speaks_no_tls_or_an_old_one_is_told_apart() {
    // An alert: fatal, protocol_version; as servers without TLS 1.2 answer.
    let old = b"\x15\x03\x01\x00\x02\x02\x46".as_slice();
    let plain = b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice();
    for (answer, detail) in [
        (old, "tls: no version or cipher in common; 1.2 is the least"),
        (plain, "tls: what the receiver speaks is no TLS"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 4_096];
            assert!(stream.read(&mut hello).await.unwrap() > 0);
            stream.write_all(answer).await.unwrap();
            // Until the other side has had enough.
            while stream.read(&mut hello).await.is_ok_and(|length| length > 0) {}
        });
        let sender = sender_in(&certificates(), destination(&url)).unwrap();
        let got = send(&sender, &webhook(b"{}")).await;
        assert_eq!(
            (got.kind, got.detail.as_str()),
            (OutcomeKind::Failed, detail)
        );
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown() {
    let receiver = Receiver::tls([text(OK)], acceptor("server", true, &[])).await;
    let of = |name: &str| TlsConfig {
        ca: Some("ca.pem".into()),
        cert: Some(format!("{name}.pem").into()),
        key: Some(file(&format!("{name}.key"))),
    };
    let (kind, detail) = outcome(&receiver, Some(of("client"))).await;
    assert_eq!(kind, OutcomeKind::Delivered, "{detail}");
    for tls in [trusting("ca.pem"), of("stranger")] {
        let (kind, detail) = outcome(&receiver, Some(tls)).await;
        assert_eq!(kind, OutcomeKind::Failed);
        let said = "tls: the receiver does not accept our certificate";
        assert!(detail.starts_with(said), "{detail}");
    }
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn files_are_read_again_and_bad_ones_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let put = |from: &str, to: &str| {
        std::fs::copy(certificates().join(from), dir.path().join(to)).unwrap();
    };
    put("ca.pem", "trusted.pem");
    put("client.pem", "cert.pem");
    put("client.key", "key.pem");
    // A new connection each time, or nothing new would be looked at.
    let answer = Answer::Last(OK.as_bytes().to_vec());
    let receiver = Receiver::tls([answer], acceptor("server", true, &[])).await;
    let tls = TlsConfig {
        ca: Some("trusted.pem".into()),
        cert: Some("cert.pem".into()),
        key: Some(file("key.pem")),
    };
    let sender = sender_in(dir.path(), https(&receiver, Some(tls))).unwrap();
    let reaches = async |kind: OutcomeKind| {
        let patience = Duration::from_secs(20);
        let reached = async {
            while send(&sender, &webhook(b"{}")).await.kind != kind {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(patience, reached)
            .await
            .expect("reached");
    };
    reaches(OutcomeKind::Delivered).await;
    // Only half of a pair: the old one stays, for longer than a look takes.
    put("stranger.key", "key.pem");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    for _ in 0..2 {
        let got = send(&sender, &webhook(b"{}")).await;
        assert_eq!(got.kind, OutcomeKind::Delivered, "{got:?}");
    }
    put("stranger.pem", "cert.pem");
    reaches(OutcomeKind::Failed).await;
    put("client.key", "key.pem");
    put("client.pem", "cert.pem");
    reaches(OutcomeKind::Delivered).await;
    put("strangers.pem", "trusted.pem");
    reaches(OutcomeKind::Failed).await;
}

#[tokio::test]
async fn wrong_files_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    let read = |name: &str| std::fs::read_to_string(certificates().join(name)).unwrap();
    for name in ["ca.pem", "client.pem", "client.key", "stranger.key"] {
        write(name, &read(name));
    }
    write("none.pem", "no certificate in here\n");
    let on_one_line = read("client.key").replace('\n', " ");
    write("one-line.key", &on_one_line);
    for (ca, cert, key, at, message) in [
        (
            "absent.pem",
            "client.pem",
            "client.key",
            "tls.ca",
            "can not read",
        ),
        (
            "none.pem",
            "client.pem",
            "client.key",
            "tls.ca",
            "no certificate",
        ),
        (
            "ca.pem",
            "none.pem",
            "client.key",
            "tls.cert",
            "no certificate",
        ),
        (
            "ca.pem",
            "client.pem",
            "absent.key",
            "tls.key",
            "can not read",
        ),
        ("ca.pem", "client.pem", "none.pem", "tls.key", "PEM"),
        ("ca.pem", "client.pem", "one-line.key", "tls.key", "PEM"),
        (
            "ca.pem",
            "client.pem",
            "stranger.key",
            "tls.key",
            "does not belong",
        ),
    ] {
        let mut config = DestinationConfig::to("https://billing.example/".parse().unwrap());
        config.tls = Some(TlsConfig {
            ca: Some(ca.into()),
            cert: Some(cert.into()),
            key: Some(file(key)),
        });
        let problem = sender_in(dir.path(), config).unwrap_err();
        assert!(
            problem.contains(&format!("destinations.billing.{at}")),
            "{problem}"
        );
        assert!(problem.contains(message), "{problem}");
        assert_eq!(problem.lines().count(), 1, "{problem}");
        let body = on_one_line.split(' ').nth(4).unwrap();
        assert!(!problem.contains(body), "{problem}");
    }
}

/// seanmonstar/reqwest#2802: the answer is whole, or its status is known; how the connection ends does not matter.
#[tokio::test]
async fn an_end_without_close_notify_is_no_failure() {
    for answer in [
        OK,
        "HTTP/1.1 200 OK\r\n\r\nuntil the end",
        "HTTP/1.1 204 No Content\r\n\r\n",
    ] {
        let answer = Answer::Last(answer.as_bytes().to_vec());
        let receiver = Receiver::tls([answer], acceptor("server", false, &[])).await;
        for _ in 0..2 {
            let (kind, detail) = outcome(&receiver, Some(trusting("ca.pem"))).await;
            assert_eq!(kind, OutcomeKind::Delivered, "{detail}");
        }
    }
}
