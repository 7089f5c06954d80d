//! The admin port: `/livez`, `/readyz`, `/metrics`. Not for the public.
//!
//! An accept loop of our own: `axum::serve` limits neither the number of connections nor their time. HTTP/1.1 and one
//! request a connection, so that one deadline covers everything that a peer can hold up.

mod readiness;

pub use readiness::Readiness;

use crate::telemetry::Metrics;
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown, service::TowerToHyperService};
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Connections served at once; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// A connection is cut off after this, whatever its peer does.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(10);
/// Pause after a failed accept: the process is out of files, and trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Open connections get this long to finish.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

/// Section `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// After a signal, `/readyz` fails for this long before anything stops, so that balancers notice in time.
    #[serde(with = "humantime_serde")]
    pub drain_delay: Duration,
}

/// The admin server, bound and not yet serving.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
}

#[derive(Clone)]
struct App {
    readiness: Readiness,
    metrics: Metrics,
}

// === impl AdminConfig ===

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9090)),
            drain_delay: Duration::ZERO,
        }
    }
}

// === impl Admin ===

impl Admin {
    /// Takes the port.
    ///
    /// # Errors
    /// When it can not be had.
    pub async fn bind(config: &AdminConfig) -> io::Result<Self> {
        Ok(Self {
            listener: TcpListener::bind(config.listen).await?,
        })
    }

    /// The address that was bound; tells the port when 0 was asked for.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then lets open requests finish for up to 2 seconds. Stop it last: probes and the scraper watch
    /// the drain through it.
    ///
    /// # Errors
    /// None at present: what goes wrong with a connection ends that connection.
    pub async fn serve(
        self,
        readiness: Readiness,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let service = TowerToHyperService::new(router(readiness, metrics));
        let mut http = http1::Builder::new();
        http.keep_alive(false);
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener, &room) => accepted,
            };
            let Some((stream, permit)) = accepted else {
                break;
            };
            let connection = http.serve_connection(TokioIo::new(stream), service.clone());
            let connection = timeout(CONNECTION_DEADLINE, graceful.watch(connection));
            connections.spawn(async move {
                match connection.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "admin connection ended with an error")
                    }
                    Err(_) => tracing::debug!("admin connection cut off, it took too long"),
                }
                drop(permit);
            });
        }
        drop(self.listener);
        if timeout(DRAIN_DEADLINE, graceful.shutdown()).await.is_err() {
            tracing::debug!("admin connections did not finish in time and were cut off");
        }
        connections.shutdown().await;
        Ok(())
    }
}

/// Waits for room, then for a connection; none when there will never be room again. Cancel-safe.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, permit)),
            Err(error) => {
                tracing::warn!(%error, "the admin port can not accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The routes, without a port.
pub fn router(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(App { readiness, metrics })
}

async fn readyz(State(app): State<App>) -> impl IntoResponse {
    let report = app.readiness.report().await;
    let status = if report.ready() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (
        status,
        [(CONTENT_TYPE, "application/json")],
        report.to_json(),
    )
}

async fn scrape(State(app): State<App>) -> impl IntoResponse {
    match app.metrics.render() {
        Ok(text) => (
            StatusCode::OK,
            [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
            text,
        ),
        Err(error) => {
            tracing::error!(%error, "metrics can not be rendered");
            let text = format!("{error}\n");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                [(CONTENT_TYPE, "text/plain")],
                text,
            )
        }
    }
}

#[cfg(test)]
mod tests;
