//! HTTP receivers on loopback, scripted by path. They remember every arrival.

use crate::{now_ms, sender::sha256, site::free_port};
use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    net::TcpListener,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

/// From the decision about an answer to its last byte in the socket, milliseconds, on a busy machine.
const GETTING_OUT_MS: i64 = 500;

/// What a receiver does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers with this status.
    Status(u16),
    /// Answers with this status and `Retry-After` in seconds.
    RetryAfter(u16, u32),
    /// Answers 200 after this time.
    Slow(Duration),
    /// Never answers.
    Hang,
    /// Closes the connection without an answer.
    Cut,
    /// Answers 200 and closes the connection in the middle of the body.
    Stammer,
}

/// What a path does: the replies for the first, second … arrival of each delivery, then the last one for ever.
#[derive(Clone, Debug)]
pub struct Script {
    replies: Vec<Reply>,
    /// Instead, for every n-th request of all.
    every: Option<(usize, Reply)>,
    /// Instead of all this, for one in so many deliveries: see [`Self::refuses`].
    refused: Option<(usize, u16)>,
}

/// One request that arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Path of the request: tells the destination.
    pub path: String,
    /// `x-github-delivery`, passed on from the sender.
    pub delivery_id: String,
    /// `webhook-id`.
    pub webhook_id: String,
    /// `webhook-attempt`, 0 when missing.
    pub attempt: u32,
    /// The process that sent it, as [`crate::process::Process::number`]; none when the destination's URL does not say.
    pub sent_by: Option<usize>,
    /// SHA-256 of the body, hex.
    pub body_sha256: String,
    /// All headers.
    pub headers: HeaderMap,
    /// Status of the answer; none when there was none, because the script hangs or the client went away before it.
    pub status: Option<u16>,
    /// When it was answered, milliseconds since the Unix epoch.
    pub answered_at_ms: Option<i64>,
    /// It was answered, but nobody knows whether the answer got out: no obligation is open, and no repeat is one.
    pub uncertain: bool,
    /// When its body had arrived, milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// A server with scripted paths.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    scripts: Mutex<BTreeMap<String, Script>>,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    arrivals: Vec<Arrival>,
    /// How often each path and delivery has arrived.
    counts: HashMap<(String, String), usize>,
}

// === impl Script ===

impl Script {
    /// Always the same.
    pub fn always(reply: Reply) -> Self {
        Self {
            replies: vec![reply],
            every: None,
            refused: None,
        }
    }

    /// `status` for one in `n` deliveries, each time: which ones, their ids say.
    #[must_use]
    pub fn refuses(mut self, n: usize, status: u16) -> Self {
        self.refused = Some((n, status));
        self
    }

    /// `reply` for every `n`-th request, whichever it is.
    #[must_use]
    pub fn every(mut self, n: usize, reply: Reply) -> Self {
        self.every = Some((n, reply));
        self
    }

    /// `first` for the first `times` arrivals of each delivery, then 200.
    pub fn first(times: usize, first: Reply) -> Self {
        let mut replies = vec![first; times];
        replies.push(Reply::Status(200));
        Self {
            replies,
            every: None,
            refused: None,
        }
    }

    /// The reply to the delivery's arrival after `earlier` ones, when `all` requests were before it.
    fn reply(&self, delivery_id: &str, earlier: usize, all: usize) -> Reply {
        let sum: usize = delivery_id.bytes().map(usize::from).sum();
        if let Some((n, status)) = self.refused
            && sum.is_multiple_of(n)
        {
            return Reply::Status(status);
        }
        if let Some((n, reply)) = self.every
            && all.is_multiple_of(n)
        {
            return reply;
        }
        let at = earlier.min(self.replies.len().saturating_sub(1));
        self.replies.get(at).copied().unwrap_or(Reply::Status(200))
    }
}

// === impl Arrival ===

impl Arrival {
    /// Whether it was answered with 2xx.
    pub fn accepted(&self) -> bool {
        self.status
            .is_some_and(|status| (200..300).contains(&status))
    }
}

// === impl Receiver ===

impl Receiver {
    /// A running receiver; paths without a script answer 200.
    pub async fn start() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut receiver = Self {
            address,
            shared: Arc::default(),
            server: None,
        };
        receiver.up().await;
        receiver
    }

    /// Sets what `path` does from now on.
    pub fn script(&self, path: &str, script: Script) {
        lock(&self.shared.scripts).insert(path.to_owned(), script);
    }

    /// URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Refuses connections until [`Self::up`]. Open requests are cut off, and what was just answered is
    /// [`Arrival::uncertain`]: it may not have got out.
    pub async fn down(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        server.abort();
        // An aborted task ends with an error, and that is what is wanted.
        drop(server.await);
        let out_ms = now_ms() - GETTING_OUT_MS;
        for arrival in &mut lock(&self.shared.log).arrivals {
            if arrival.answered_at_ms.is_some_and(|at_ms| at_ms > out_ms) {
                arrival.uncertain = arrival.accepted();
                arrival.status = None;
                arrival.answered_at_ms = None;
            }
        }
    }

    /// Listens (again), on the same port.
    pub async fn up(&mut self) {
        if self.server.is_some() {
            return;
        }
        let listener = TcpListener::bind(self.address)
            .await
            .expect("the receiver's port is free");
        self.server = Some(tokio::spawn(serve(listener, Arc::clone(&self.shared))));
    }

    /// Everything that arrived so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        lock(&self.shared.log).arrivals.clone()
    }

    /// How many different deliveries were answered 2xx, by path.
    pub fn accepted(&self, path: &str) -> usize {
        let log = lock(&self.shared.log);
        let ids: std::collections::BTreeSet<_> = log
            .arrivals
            .iter()
            .filter(|arrival| arrival.path == path && arrival.accepted())
            .map(|arrival| arrival.delivery_id.as_str())
            .collect();
        ids.len()
    }

    /// Whether this delivery was answered 2xx.
    pub fn has_accepted(&self, path: &str, delivery_id: &str) -> bool {
        let log = lock(&self.shared.log);
        let mut arrivals = log.arrivals.iter();
        arrivals.any(|it| it.path == path && it.delivery_id == delivery_id && it.accepted())
    }

    /// How many requests have arrived.
    pub fn count(&self) -> usize {
        lock(&self.shared.log).arrivals.len()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }
}

/// Connections end with this future.
async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        // Out of descriptors, or the client has gone already: the next one may come through.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let shared = Arc::clone(&shared);
        let service = service_fn(move |request| receive(Arc::clone(&shared), request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // A connection that breaks is the dispatcher's business.
        connections.spawn(async move { drop(connection.await) });
        while connections.try_join_next().is_some() {}
    }
}

/// An error closes the connection without an answer.
async fn receive(shared: Arc<Shared>, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(Body::new(body), 64 << 20)
        .await
        .map_err(io::Error::other)?;
    let path = head.uri.path().to_owned();
    let text = |name: &str| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let delivery_id = text("x-github-delivery");
    let script = lock(&shared.scripts).get(&path).cloned();
    let (number, reply) = {
        let mut log = lock(&shared.log);
        let number = log.arrivals.len();
        let key = (path.clone(), delivery_id.clone());
        let count = log.counts.entry(key).or_default();
        let id = &delivery_id;
        let reply = script.map_or(Reply::Status(200), |it| it.reply(id, *count, number));
        *count += 1;
        log.arrivals.push(Arrival {
            path,
            delivery_id,
            webhook_id: text("webhook-id"),
            attempt: text("webhook-attempt").parse().unwrap_or(0),
            sent_by: head
                .uri
                .query()
                .and_then(|query| query.strip_prefix("from=")?.parse().ok()),
            body_sha256: sha256(&body),
            status: None,
            at_ms: now_ms(),
            answered_at_ms: None,
            uncertain: false,
            headers: head.headers,
        });
        (number, reply)
    };
    let (status, retry_after) = match reply {
        Reply::Status(status) => (status, None),
        Reply::RetryAfter(status, seconds) => (status, Some(seconds)),
        Reply::Slow(wait) => {
            // The server drops this future when the client goes away: then it was not answered.
            sleep(wait).await;
            (200, None)
        }
        Reply::Hang => std::future::pending().await,
        Reply::Cut => return Err(io::ErrorKind::ConnectionAborted.into()),
        Reply::Stammer => (200, None),
    };
    if let Some(arrival) = lock(&shared.log).arrivals.get_mut(number) {
        arrival.status = Some(status);
        arrival.answered_at_ms = Some(now_ms());
    }
    if reply == Reply::Stammer {
        return Ok(half_an_answer());
    }
    Ok(answer(code(status), retry_after))
}

fn code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).expect("a script names real statuses")
}

/// A status, the begin of a body, and an error where the rest should be.
fn half_an_answer() -> Response<Body> {
    let parts = [
        Ok(Bytes::from("not")),
        Err(io::ErrorKind::ConnectionAborted),
    ];
    let mut response = Response::new(Body::from_stream(stream::iter(
        parts.map(|it| it.map_err(io::Error::from)),
    )));
    response
        .headers_mut()
        .insert(http::header::CONTENT_LENGTH, 100.into());
    response
}

fn answer(status: StatusCode, retry_after: Option<u32>) -> Response<Body> {
    let mut response = Response::new(Body::from("noted"));
    *response.status_mut() = status;
    if let Some(seconds) = retry_after {
        response
            .headers_mut()
            .insert(http::header::RETRY_AFTER, seconds.into());
    }
    response
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
