//! The HTTP server: an accept loop of our own, since `axum::serve` bounds neither the time of a client nor their number.
//!
//! Everything that a client can make wait has a time, everything that it can make pile up has a number: [`connection`] is
//! the life of one connection, [`life`] decides how long it lasts, [`room`] who gives way when there are too many.

mod client;
mod connection;
mod framing;
mod life;
mod opening;
mod patience;
mod proxy;
mod requests;
mod room;
mod tls;

pub(crate) use self::{client::Client, tls::Tls};

use self::{
    client::{Addresses, Counted, Trusted},
    connection::{Accepted, Protocols},
    life::{Life, Limits},
    room::Room,
};
use crate::{
    app::{App, Inner},
    config::IngestConfig,
    metrics::Metrics,
    receive,
};
use axum::{
    Router,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
    routing::any,
};
use event_log::EventLog;
use http::Request;
use hyper_util::service::TowerToHyperService;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Pause after a failed accept: the process is out of files, and trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The log may take this long to flush, even when the requests have used the drain time up.
const FLUSH_MIN: Duration = Duration::from_secs(1);

/// Heads always have so much, bytes.
const HEADS_BYTES_MIN: usize = 1 << 20;

/// What all connections share.
#[derive(Debug)]
struct Shared {
    routes: TowerToHyperService<Router>,
    protocols: Protocols,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    proxy_protocol: bool,
    trusted: Trusted,
    addresses: Addresses,
    /// Bytes of heads that may be held, over all requests.
    heads: Arc<Semaphore>,
    metrics: Metrics,
    draining: CancellationToken,
    shutdown: CancellationToken,
}

/// Why a connection was closed before a request of it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotServed {
    /// Its address has enough.
    PerAddress,
    /// No PROXY header, or not from a trusted proxy.
    ProxyProtocol,
    /// The handshake failed.
    Tls,
    /// PROXY header or handshake took too long.
    HandshakeTimeout,
    /// It did nothing, and another needed its place.
    GaveWay,
}

/// Rides in the extensions of an answer to a request that was signed with a secret of its source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signed;

/// The routes: `POST <path_prefix>/<source>`, 404 for everything else.
pub fn router<L: EventLog>(app: App<L>) -> Router {
    let path = format!("{}/{{source}}", app.inner().config.path_prefix);
    Router::new()
        .route(&path, any(to_source::<L>))
        .fallback(async |State(app): State<App<L>>| receive::unknown(&app))
        .with_state(app)
}

/// Serves until `shutdown`, then stops accepting, lets the requests under way finish within the configured drain time
/// and flushes the log. From `draining` on, before that, clients are told with each answer that their connection ends, while
/// new connections are still served.
///
/// # Errors
/// None at present: what goes wrong with a connection ends that connection.
pub async fn serve<L: EventLog>(
    app: App<L>,
    listener: TcpListener,
    draining: CancellationToken,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let config = &app.inner().config;
    let tasks = TaskTracker::new();
    let routes = TowerToHyperService::new(router(app.clone()));
    let shared = Shared::new(app.inner(), routes, &tasks, (draining, shutdown.clone()));
    let shared = Arc::new(shared);
    let room = Room::new(config.connections_max);
    let cut = CancellationToken::new();

    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let (stream, peer) = accepted;
        let peer = peer.ip().to_canonical();
        let counted = match shared.admit(peer) {
            Ok(counted) => counted,
            Err(refused) => {
                shared.refused(refused);
                continue;
            }
        };
        let life = Life::new(Instant::now(), cut.child_token());
        let place = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            place = room.enter(&life, || shared.refused(NotServed::GaveWay)) => place,
        };
        let open = app.inner().metrics.connection();
        let accepted = Accepted {
            stream,
            peer,
            life,
            counted,
        };
        let serving = connection::serve(Arc::clone(&shared), accepted);
        tasks.spawn(async move {
            serving.await;
            drop((place, open));
        });
    }

    // The port is closed first: nobody may connect to a process that will not answer.
    drop(listener);
    let deadline = Instant::now() + config.drain;
    tracing::info!(tasks = tasks.len(), "draining");
    tasks.close();
    if timeout_at(deadline, tasks.wait()).await.is_err() {
        tracing::warn!("requests did not finish in time and were cut off");
        cut.cancel();
        tasks.wait().await;
    }
    let left = deadline.saturating_duration_since(Instant::now());
    app.inner().log.flush(left.max(FLUSH_MIN)).await;
    Ok(())
}

// === impl Shared ===

impl Shared {
    fn new<L>(
        inner: &Inner<L>,
        routes: TowerToHyperService<Router>,
        tasks: &TaskTracker,
        (draining, shutdown): (CancellationToken, CancellationToken),
    ) -> Self {
        let config = &inner.config;
        Self {
            routes,
            protocols: Protocols::new(tasks.clone(), config.header_timeout),
            limits: Limits {
                head: config.header_timeout,
                idle: config.idle_timeout,
                answer: config.write_timeout,
                age: config.connection_age_max,
                requests_max: config.requests_per_connection_max,
                closing: config.drain,
            },
            tls: inner.tls.clone(),
            proxy_protocol: config.proxy_protocol,
            trusted: Trusted(config.trusted_proxies.clone()),
            addresses: Addresses::new(config.connections_per_address_max),
            heads: Arc::new(Semaphore::new(heads_bytes_max(config))),
            metrics: inner.metrics.clone(),
            draining,
            shutdown,
        }
    }

    /// Whether a connection of this address may come in; its place, when it is known whose it is.
    fn admit(&self, peer: IpAddr) -> Result<Option<Counted>, NotServed> {
        match (self.proxy_protocol, self.trusted.contains(peer)) {
            (true, false) => Err(NotServed::ProxyProtocol),
            (_, true) => Ok(None),
            (false, false) => {
                let counted = self.addresses.enter(peer);
                counted.ok_or(NotServed::PerAddress).map(Some)
            }
        }
    }

    fn refused(&self, refused: NotServed) {
        self.metrics.connection_refused(refused.reason());
        tracing::debug!(reason = refused.reason(), "connection refused");
    }
}

// === impl NotServed ===

impl NotServed {
    /// The metric's label: stable.
    fn reason(self) -> &'static str {
        match self {
            Self::PerAddress => "per_address",
            Self::ProxyProtocol => "proxy_protocol",
            Self::Tls => "tls",
            Self::HandshakeTimeout => "handshake_timeout",
            Self::GaveWay => "gave_way",
        }
    }
}

/// Half of what bodies may have, but enough for the heads of some connections.
fn heads_bytes_max(config: &IngestConfig) -> usize {
    (config.in_flight_bytes_max / 2).max(HEADS_BYTES_MIN)
}

async fn to_source<L: EventLog>(
    State(app): State<App<L>>,
    source: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    match source {
        Ok(Path(source)) => receive::receive(app, source, request).await,
        Err(_) => receive::unknown(&app),
    }
}

/// Waits for a connection. Cancel-safe.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                // Answers are one small packet each; waiting to fill it only costs time.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "nodelay refused");
                }
                return (stream, peer);
            }
            Err(error) if is_of_the_peer(&error) => {}
            Err(error) => {
                tracing::error!(%error, "can not accept connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}
