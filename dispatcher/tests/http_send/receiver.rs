//! A receiver that answers every request with scripted bytes and remembers what it was sent.

use bytes::Bytes;
use dispatcher::{
    DestinationConfig, HttpSend,
    outcome::Outcome,
    send::{Attempt, Send},
};
use runtime::Clock;
use schemas::Webhook;
use std::{
    collections::BTreeMap,
    future::pending,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;
use uuid::Uuid;

/// Far above every deadline in these tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// What follows a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// These bytes; then the next request.
    Bytes(Vec<u8>),
    /// These bytes, then nothing for ever.
    Hang(Vec<u8>),
    /// These bytes, then more and more.
    Endless(Vec<u8>),
    /// These bytes, then the connection is closed, without a word of TLS.
    Last(Vec<u8>),
    /// The connection is closed.
    Close,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The last one stays.
    answers: Mutex<Vec<Answer>>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    /// Connections that the other side has closed in the middle of an endless answer.
    cut: AtomicUsize,
}

// === impl Receiver ===

impl Receiver {
    pub(crate) async fn start(answers: impl Into<Vec<Answer>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        Self::on(listener, answers, None)
    }

    /// One behind TLS.
    pub(crate) async fn tls(answers: impl Into<Vec<Answer>>, acceptor: TlsAcceptor) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        Self::on(listener, answers, Some(acceptor))
    }

    pub(crate) fn on(
        listener: TcpListener,
        answers: impl Into<Vec<Answer>>,
        acceptor: Option<TlsAcceptor>,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answers: Mutex::new(answers.into()),
            ..Shared::default()
        });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                let serving = Arc::clone(&serving);
                match acceptor.clone() {
                    None => drop(tokio::spawn(serve(stream, serving))),
                    Some(acceptor) => drop(tokio::spawn(async move {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            serve(stream, serving).await;
                        }
                    })),
                }
            }
        });
        Self { address, shared }
    }

    /// One that answers 200 to everything.
    pub(crate) async fn willing() -> Self {
        Self::start([text("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")]).await
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn cut(&self) -> usize {
        self.shared.cut.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks?a=b%20c", self.address)
    }
}

// === impl Request ===

impl Request {
    /// The values of a header, in order.
    pub(crate) fn all(&self, name: &str) -> Vec<&[u8]> {
        let of = self.headers.iter().filter(|(found, _)| found == name);
        of.map(|(_, value)| value.as_slice()).collect()
    }

    /// The value of a header that must be there once.
    pub(crate) fn one(&self, name: &str) -> &str {
        let values = self.all(name);
        assert_eq!(values.len(), 1, "{name}: {values:?}");
        std::str::from_utf8(values[0]).unwrap()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    while let Some(request) = read(&mut stream, &mut buffer).await {
        let number = {
            let mut requests = shared.requests.lock().unwrap();
            requests.push(request);
            requests.len() - 1
        };
        let answer = {
            let answers = shared.answers.lock().unwrap();
            answers[number.min(answers.len() - 1)].clone()
        };
        match answer {
            Answer::Bytes(bytes) => {
                stream.write_all(&bytes).await.unwrap();
                stream.flush().await.unwrap();
            }
            Answer::Last(bytes) => {
                stream.write_all(&bytes).await.unwrap();
                stream.flush().await.unwrap();
                return;
            }
            Answer::Hang(bytes) => {
                stream.write_all(&bytes).await.unwrap();
                stream.flush().await.unwrap();
                pending::<()>().await;
            }
            Answer::Endless(bytes) => {
                let mut more = stream.write_all(&bytes).await;
                while more.is_ok() {
                    more = stream.write_all(&[b'x'; 16_384]).await;
                }
                shared.cut.fetch_add(1, Ordering::SeqCst);
                return;
            }
            Answer::Close => return,
        }
    }
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> Option<Request> {
    let head = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break buffer.drain(..at + 4).collect::<Vec<u8>>();
        }
        more(stream, buffer).await?;
    };
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii_end);
    let line = String::from_utf8(lines.next()?.to_vec()).unwrap();
    let mut headers = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let at = line.iter().position(|byte| *byte == b':').unwrap();
        let name = String::from_utf8(line[..at].to_ascii_lowercase()).unwrap();
        headers.push((name, line[at + 1..].trim_ascii().to_vec()));
    }
    let mut request = Request {
        line,
        headers,
        body: Vec::new(),
    };
    let length = request.one("content-length").parse().unwrap();
    while buffer.len() < length {
        more(stream, buffer).await?;
    }
    request.body = buffer.drain(..length).collect();
    Some(request)
}

async fn more<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> Option<()> {
    let mut chunk = vec![0; 65_536];
    match stream.read(&mut chunk).await {
        Ok(0) | Err(_) => None,
        Ok(count) => {
            buffer.extend_from_slice(&chunk[..count]);
            Some(())
        }
    }
}

pub(crate) fn text(text: &str) -> Answer {
    Answer::Bytes(text.as_bytes().to_vec())
}

/// A destination at `url` that may be on the loopback.
pub(crate) fn destination(url: &str) -> DestinationConfig {
    DestinationConfig {
        timeout: Duration::from_secs(20),
        concurrency: 4,
        allow_cidrs: vec!["127.0.0.0/8".parse().unwrap()],
        allow_http: true,
        ..DestinationConfig::to(url.parse().unwrap())
    }
}

pub(crate) fn sender(destination: DestinationConfig) -> HttpSend {
    sender_in(Path::new("."), destination).unwrap()
}

/// One whose files stand in `base`, or what is wrong, as text.
pub(crate) fn sender_in(base: &Path, destination: DestinationConfig) -> Result<HttpSend, String> {
    let destinations = BTreeMap::from([("billing".to_owned(), destination)]);
    HttpSend::new(&destinations, base, Clock::system()).map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        texts.join("\n")
    })
}

pub(crate) fn webhook(body: &[u8]) -> Webhook {
    Webhook {
        source: "github".to_owned(),
        delivery_id: "d1".to_owned(),
        event_type: "push".to_owned(),
        content_type: Some("application/json; charset=utf-8".to_owned()),
        headers: Vec::new(),
        body: Bytes::copy_from_slice(body),
        received_at_ms: 0,
        generation: 0,
    }
}

/// One attempt, the third.
pub(crate) async fn send(sender: &HttpSend, webhook: &Webhook) -> Outcome {
    let attempt = Attempt {
        destination: "billing",
        webhook,
        attempt: 3,
        token: Uuid::from_u128(1),
    };
    let outcome = tokio::time::timeout(PATIENCE, sender.send(attempt)).await;
    outcome.expect("an outcome soon after the deadline")
}
