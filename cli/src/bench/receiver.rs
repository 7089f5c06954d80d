//! Where everything is delivered to: a bare HTTP server that reads the body, waits if told to, and notes when.

use super::load::number_of;
use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use schemas::header;
use std::{
    convert::Infallible,
    net::SocketAddr,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};

/// Between two looks at the count.
const LOOK: Duration = Duration::from_millis(5);

/// The running receiver. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Receiver {
    address: SocketAddr,
    seen: Arc<Seen>,
    accepting: JoinHandle<()>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// Number of the webhook.
    pub number: u32,
    /// When its body had been read.
    pub at: Instant,
}

#[derive(Debug)]
struct Seen {
    /// Before it answers.
    delay: Duration,
    count: AtomicUsize,
    arrivals: Mutex<Vec<Arrival>>,
}

// === impl Receiver ===

impl Receiver {
    /// Starts it on a free port of the loopback.
    pub(crate) async fn start(delay: Duration) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("no port for the receiver")?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Seen {
            delay,
            count: AtomicUsize::new(0),
            arrivals: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&seen)));
        Ok(Self {
            address,
            seen,
            accepting,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forgets what has arrived: a new slice begins.
    pub(crate) fn forget(&self) {
        let mut arrivals = self.seen.lock();
        arrivals.clear();
        self.seen.count.store(0, Ordering::Relaxed);
    }

    /// Waits until `count` requests have come, or the deadline, and hands out those whose number is in `numbers`.
    ///
    /// # Errors
    /// When hardly anything has come: then there is nothing to measure.
    pub(crate) async fn take(
        &self,
        numbers: &Range<u32>,
        deadline: Instant,
    ) -> anyhow::Result<Vec<Arrival>> {
        while self.seen.count.load(Ordering::Relaxed) < numbers.len() && Instant::now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
        let mut arrivals = std::mem::take(&mut *self.seen.lock());
        self.seen.count.store(0, Ordering::Relaxed);
        arrivals.retain(|arrival| numbers.contains(&arrival.number));
        ensure!(
            arrivals.len() * 10 >= numbers.len(),
            "only {} of {} webhooks arrived in time",
            arrivals.len(),
            numbers.len()
        );
        Ok(arrivals)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

// === impl Seen ===

impl Seen {
    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn accept(listener: TcpListener, seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        // Small answers shall not wait for company; without it they are only slower.
        drop(stream.set_nodelay(true));
        let seen = Arc::clone(&seen);
        let service = service_fn(move |request| arrive(Arc::clone(&seen), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn arrive(
    seen: Arc<Seen>,
    request: Request<Incoming>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let mut answer = Response::new(Empty::new());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let number = head
        .headers
        .get(header::WEBHOOK_ID)
        .and_then(|id| number_of(id.to_str().ok()?));
    let whole = body.collect().await.is_ok();
    let Some(number) = number.filter(|_| whole) else {
        *answer.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(answer);
    };
    let at = Instant::now();
    seen.lock().push(Arrival { number, at });
    seen.count.fetch_add(1, Ordering::Relaxed);
    if !seen.delay.is_zero() {
        tokio::time::sleep(seen.delay).await;
    }
    Ok(answer)
}
