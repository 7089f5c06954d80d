//! The admin port: `/livez`, `/readyz`, `/metrics`. Not for the public.

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
use std::{future::IntoFuture, io, net::SocketAddr, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

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
    /// When the listener breaks.
    pub async fn serve(
        self,
        readiness: Readiness,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> io::Result<()> {
        let router = router(readiness, metrics);
        let served = axum::serve(self.listener, router)
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::select! {
            ended = served.into_future() => ended,
            () = async {
                stop.cancelled().await;
                tokio::time::sleep(DRAIN_DEADLINE).await;
            } => Ok(()),
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
