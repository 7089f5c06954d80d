use super::*;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

const NOW_MS: i64 = 1_800_000_000_000;
const LONG: Duration = Duration::from_secs(60);

macro_rules! pem {
    ($name:literal) => {
        include_str!(concat!("../../tests/certificates/", $name))
    };
}

/// How the server answers, by the last part of the path.
async fn answer(path: &str, served: &Served) -> Option<String> {
    let of = |status: &str, body: &str| {
        let len = body.len();
        Some(format!(
            "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n{body}"
        ))
    };
    match path.rsplit('/').next().unwrap_or_default() {
        "CERT-good" => of("200 OK", pem!("paypal.pem")),
        "CERT-chain" => of("200 OK", concat!(pem!("paypal.pem"), pem!("ca.pem"))),
        "CERT-other" => of("200 OK", pem!("other.pem")),
        "CERT-html" => of("200 OK", "<html>"),
        "CERT-huge" => of("200 OK", &"x".repeat(BYTES_MAX + 1)),
        "CERT-broken" => Some("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx".to_owned()),
        "CERT-moved" => Some(
            "HTTP/1.1 302 Found\r\nlocation: CERT-good\r\ncontent-length: 0\r\n\r\n".to_owned(),
        ),
        held if held.starts_with("CERT-held") => {
            served.gate.acquire().await.unwrap().forget();
            of("200 OK", pem!("paypal.pem"))
        }
        "CERT-hang" => std::future::pending().await,
        "CERT-once" if served.asked.load(Ordering::SeqCst) > 1 => of("200 OK", pem!("paypal.pem")),
        _ => of("503 Service Unavailable", ""),
    }
}

struct Served {
    /// Requests that arrived.
    asked: AtomicUsize,
    gate: Semaphore,
}

pub(crate) struct Server {
    served: Arc<Served>,
    pub(crate) certificates: Arc<Certificates>,
    host: String,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let chain = vec![CertificateDer::from_pem_slice(pem!("tls.pem").as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(pem!("tls.key").as_bytes()).unwrap();
        drop(rustls::crypto::ring::default_provider().install_default());
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = Arc::new(Served {
            asked: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        });
        let shared = Arc::clone(&served);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, served) = (acceptor.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mut head = vec![0; 4_096];
                    let len = stream.read(&mut head).await.unwrap_or(0);
                    let head = String::from_utf8_lossy(&head[..len]).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or_default();
                    served.asked.fetch_add(1, Ordering::SeqCst);
                    if let Some(answer) = answer(path, &served).await {
                        drop(stream.write_all(answer.as_bytes()).await);
                        drop(stream.shutdown().await);
                    }
                });
            }
        });
        let host = format!("localhost:{port}");
        let allow = vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        let root = reqwest::Certificate::from_pem(pem!("ca.pem").as_bytes()).unwrap();
        let client = runtime::addresses::client(allow).tls_certs_only([root]);
        let certificates = Certificates::new(vec![host.clone()], client).unwrap();
        Self {
            served,
            certificates: Arc::new(certificates),
            host,
        }
    }

    pub(crate) fn url(&self, id: &str) -> String {
        format!("https://{}{PATH}{id}", self.host)
    }

    async fn get(&self, id: &str, now_ms: i64) -> Result<Arc<Certificate>, NoCertificate> {
        let deadline = Instant::now() + LONG;
        self.certificates.get(&self.url(id), deadline, now_ms).await
    }

    pub(crate) fn asked(&self) -> usize {
        self.served.asked.load(Ordering::SeqCst)
    }

    async fn until_asked(&self, times: usize) {
        let asked = async {
            while self.asked() < times {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, asked).await.unwrap();
    }
}

#[test]
fn only_paypals_urls_are_allowed() {
    let certificates = Certificates::of_paypal().unwrap();
    for url in [
        "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77",
        "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-1d93a270",
    ] {
        assert!(certificates.allows(url), "{url}");
    }
    let long = format!("https://api.paypal.com{PATH}{}", "x".repeat(101));
    for url in [
        "",
        "http://api.paypal.com/v1/notifications/certs/CERT-1",
        "HTTPS://api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com:443/v1/notifications/certs/CERT-1",
        "https://api.paypal.com:8443/v1/notifications/certs/CERT-1",
        "https://u@api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com@evil.example/v1/notifications/certs/CERT-1",
        "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1",
        "https://evil.example/https://api.paypal.com/v1/notifications/certs/CERT-1",
        "https://www.paypal.com/v1/notifications/certs/CERT-1",
        "https://API.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com./v1/notifications/certs/CERT-1",
        "https://127.0.0.1/v1/notifications/certs/CERT-1",
        "https://[::1]/v1/notifications/certs/CERT-1",
        "https://169.254.169.254/v1/notifications/certs/CERT-1",
        "https://api.paypal.com/v1/notifications/certs/",
        "https://api.paypal.com/v1/notifications/certs/../../oauth2/token",
        "https://api.paypal.com/v1/notifications/certs/CERT-1/x",
        "https://api.paypal.com/v1/notifications/certs/CERT-1?x=1",
        "https://api.paypal.com/v1/notifications/certs/CERT-1#x",
        "https://api.paypal.com/v1/notifications/certs/CERT%2d1",
        "https://api.paypal.com/v1/notifications/certs/CERT-1 ",
        " https://api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com/v1/notifications/certs/\\CERT-1",
        "https:\\\\api.paypal.com/v1/notifications/certs/CERT-1",
        "https://api.paypal.com//v1/notifications/certs/CERT-1",
        "file:///v1/notifications/certs/CERT-1",
        &long,
    ] {
        assert!(!certificates.allows(url), "{url}");
    }
}

#[tokio::test]
async fn a_certificate_is_fetched_once_and_again_after_a_day() {
    let server = Server::start().await;
    let first = server.get("CERT-good", NOW_MS).await.unwrap();
    assert!(first.is_paypals());
    let again = server.get("CERT-good", NOW_MS + KEEP_MS - 1).await.unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    assert_eq!(server.asked(), 1);
    let later = server.get("CERT-good", NOW_MS + KEEP_MS).await.unwrap();
    assert_eq!(later, first);
    assert_eq!(server.asked(), 2);
    assert_eq!(server.get("CERT-chain", NOW_MS).await.unwrap(), first);
}

#[tokio::test]
async fn whatever_else_is_answered_is_a_failure_that_is_kept_for_a_while() {
    let server = Server::start().await;
    for (asked, (id, reason)) in [
        ("CERT-moved", "not status 200"),
        ("CERT-missing", "not status 200"),
        ("CERT-huge", "too long"),
        ("CERT-broken", "the answer broke off"),
        ("CERT-html", "the answer is no certificate"),
        ("CERT-other", "the certificate has another name"),
    ]
    .into_iter()
    .enumerate()
    {
        for now_ms in [NOW_MS, NOW_MS + KEEP_FAILURE_MS - 1] {
            let found = server.get(id, now_ms).await;
            assert_eq!(found, Err(NoCertificate::Failed(reason)), "{id}");
        }
        assert_eq!(server.asked(), asked + 1, "{id}");
    }
}

#[tokio::test]
async fn a_failure_is_asked_again_later() {
    let server = Server::start().await;
    assert!(server.get("CERT-once", NOW_MS).await.is_err());
    assert!(
        server
            .get("CERT-once", NOW_MS + KEEP_FAILURE_MS)
            .await
            .is_ok()
    );
    assert_eq!(server.asked(), 2);
}

#[tokio::test]
async fn nobody_waits_past_the_deadline() {
    let server = Server::start().await;
    let deadline = Instant::now() + Duration::from_millis(200);
    let found = server
        .certificates
        .get(&server.url("CERT-hang"), deadline, NOW_MS)
        .await;
    assert_eq!(found, Err(NoCertificate::Failed("not in time")));
    // The one who gave up stands in nobody's way.
    assert_eq!(server.certificates.fetches.available_permits(), FETCHES_MAX);
    assert!(server.get("CERT-good", NOW_MS).await.is_ok());
}

#[tokio::test]
async fn those_who_want_the_same_share_one_fetch() {
    let server = Arc::new(Server::start().await);
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { server.get("CERT-held", NOW_MS).await })
        })
        .collect();
    server.until_asked(1).await;
    server.served.gate.add_permits(20);
    for found in waiting {
        assert!(found.await.unwrap().is_ok());
    }
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn the_next_goes_on_when_the_one_who_fetches_goes_away() {
    let server = Arc::new(Server::start().await);
    let start = |server: &Arc<Server>| {
        let server = Arc::clone(server);
        tokio::spawn(async move { server.get("CERT-held", NOW_MS).await })
    };
    let first = start(&server);
    server.until_asked(1).await;
    let second = start(&server);
    tokio::task::yield_now().await;
    first.abort();
    server.until_asked(2).await;
    server.served.gate.add_permits(2);
    assert!(second.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_flood_of_urls_is_bounded() {
    let server = Server::start().await;
    assert!(server.get("CERT-good", NOW_MS).await.is_ok());
    for at in 0..3 * ENTRIES_MAX {
        let found = server.get(&format!("CERT-flood-{at}"), NOW_MS).await;
        assert!(found.is_err(), "{at}");
    }
    let fetched = usize::try_from(FETCHES_A_MINUTE_MAX).unwrap();
    assert_eq!(server.asked(), fetched);
    let entries = server.certificates.known.lock().unwrap().entries.len();
    assert!(entries <= ENTRIES_MAX, "{entries}");
    // What is known goes on being known, and after the minute all is as before.
    assert!(server.get("CERT-good", NOW_MS).await.is_ok());
    assert!(server.get("CERT-chain", NOW_MS).await.is_err());
    assert!(server.get("CERT-chain", NOW_MS + MINUTE_MS).await.is_ok());
}

#[tokio::test]
async fn fetches_at_once_are_bounded() {
    let server = Arc::new(Server::start().await);
    assert!(server.get("CERT-good", NOW_MS).await.is_ok());
    let start = |at: usize| {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.get(&format!("CERT-held-{at}"), NOW_MS).await })
    };
    let held: Vec<_> = (0..FETCHES_MAX).map(start).collect();
    server.until_asked(1 + FETCHES_MAX).await;
    let found = server.get("CERT-chain", NOW_MS).await;
    assert_eq!(found, Err(NoCertificate::Busy));
    assert!(server.get("CERT-good", NOW_MS).await.is_ok());
    server.served.gate.add_permits(FETCHES_MAX);
    for found in held {
        assert!(found.await.unwrap().is_ok());
    }
    // Too much at the time was not a failure of that URL.
    assert!(server.get("CERT-chain", NOW_MS).await.is_ok());
}

#[tokio::test]
async fn a_forbidden_address_is_not_dialled() {
    let server = Server::start().await;
    let root = reqwest::Certificate::from_pem(pem!("ca.pem").as_bytes()).unwrap();
    let client = runtime::addresses::client(Vec::new()).tls_certs_only([root]);
    let guarded = Certificates::new(vec![server.host.clone()], client).unwrap();
    let deadline = Instant::now() + LONG;
    let found = guarded
        .get(&server.url("CERT-good"), deadline, NOW_MS)
        .await;
    assert_eq!(found, Err(NoCertificate::Failed("no answer")));
    assert_eq!(server.asked(), 0);
}

#[tokio::test]
async fn a_server_without_the_hosts_name_is_not_believed() {
    let server = Server::start().await;
    let client = runtime::addresses::client(vec!["127.0.0.0/8".parse().unwrap()]);
    let strict = Certificates::new(vec![server.host.clone()], client).unwrap();
    let deadline = Instant::now() + LONG;
    let found = strict.get(&server.url("CERT-good"), deadline, NOW_MS).await;
    assert_eq!(found, Err(NoCertificate::Failed("no answer")));
    assert_eq!(server.asked(), 0);
}
