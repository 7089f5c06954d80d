//! The HTTP server: an accept loop of our own, since `axum::serve` has no header timeout and no write timeout.
//!
//! HTTP/1.1 only, behind whatever terminates TLS: guessing the version of a connection waits for its first bytes without
//! a limit (hyperium/hyper#3756).

mod patience;

use self::patience::Patience;
use crate::{app::App, receive};
use axum::{
    Router,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    middleware::{Next, from_fn},
    response::Response,
    routing::any,
};
use event_log::EventLog;
use http::{HeaderValue, Request, header};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Longest head of a request, bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Pause after a failed accept: the process is out of files, and trying at once would only spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The routes: `POST <path_prefix>/<source>`, 404 for everything else.
pub fn router<L: EventLog>(app: App<L>) -> Router {
    let path = format!("{}/{{source}}", app.inner().config.path_prefix);
    Router::new()
        .route(&path, any(to_source::<L>))
        .fallback(async |State(app): State<App<L>>| receive::unknown(&app))
        .layer(from_fn(close_after_coded))
        .with_state(app)
}

/// Serves until `shutdown`, then stops accepting, lets the requests under way finish within the configured drain time
/// and flushes the log.
///
/// # Errors
/// None at present: what goes wrong with a connection ends that connection.
pub async fn serve<L: EventLog>(
    app: App<L>,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let config = &app.inner().config;
    let service = TowerToHyperService::new(router(app.clone()));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_header_size(HEAD_BYTES_MAX)
        .half_close(false);
    let room = Arc::new(Semaphore::new(config.connections_max));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();

    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((stream, permit)) = accepted else {
            break;
        };
        let stream = Patience::new(stream, config.write_timeout);
        let connection = http.serve_connection(TokioIo::new(stream), service.clone());
        let connection = graceful.watch(connection);
        let open = app.inner().metrics.connection();
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended with an error");
            }
            drop((permit, open));
        });
    }

    // The port is closed first: nobody may connect to a process that will not answer.
    drop(listener);
    let deadline = Instant::now() + config.drain;
    tracing::info!(connections = connections.len(), "draining");
    if timeout_at(deadline, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests did not finish in time and were cut off");
    }
    connections.shutdown().await;
    let left = deadline.saturating_duration_since(Instant::now());
    app.inner().log.flush(left.max(FLUSH_MIN)).await;
    Ok(())
}

/// The log may take this long to flush, even when the requests have used the drain time up.
const FLUSH_MIN: Duration = Duration::from_secs(1);

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

/// Ends a connection after a request with a transfer coding. hyper takes a content-length beside it out before anybody sees
/// it, and RFC 9112 section 6.1 wants the connection closed then: what follows may be another's idea of the same body.
async fn close_after_coded(request: Request<Body>, next: Next) -> Response {
    let coded = request.headers().contains_key(header::TRANSFER_ENCODING);
    let mut response = next.run(request).await;
    if coded {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Waits for room, then for a connection; none when there will never be room again. Cancel-safe.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Answers are one small packet each; waiting to fill it only costs time.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "nodelay refused");
                }
                return Some((stream, permit));
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
