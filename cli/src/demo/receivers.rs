//! The other side of the demo: an HTTP server that takes, refuses and delays, and writes down what it saw.

use anyhow::Context;
use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use runtime::Clock;
use sha2::{Digest, Sha256};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::net::TcpListener;

/// `flaky` is down for this long, and says when to come back.
const DOWN: Duration = Duration::from_secs(6);
const RETRY_AFTER_S: &str = "2";
/// How long `slow` takes for an answer.
const SLOW: Duration = Duration::from_millis(300);

/// A destination of the demo.
#[derive(Debug)]
pub(crate) struct Destination {
    /// Name in the config, and path at the receiver.
    pub name: &'static str,
    /// Event types that are routed to it; all when empty.
    pub events: &'static [&'static str],
    /// What it does, for people.
    pub what: &'static str,
    /// The reason with which its deliveries end as dead letters.
    pub dead: Option<&'static str>,
}

/// Every destination of the demo.
pub(crate) const DESTINATIONS: [Destination; 5] = [
    Destination {
        name: "billing",
        events: &[],
        what: "answers at once",
        dead: None,
    },
    Destination {
        name: "flaky",
        events: &["pull_request"],
        what: "503 and Retry-After for 6 s",
        dead: None,
    },
    Destination {
        name: "slow",
        events: &["issues"],
        what: "takes 300 ms",
        dead: None,
    },
    Destination {
        name: "gone",
        events: &["release"],
        what: "410",
        dead: Some("gone"),
    },
    Destination {
        name: "broken",
        events: &["deployment"],
        what: "500, twice",
        dead: Some("exhausted"),
    },
];

/// One request that arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Index into [`DESTINATIONS`].
    pub destination: usize,
    pub webhook_id: String,
    pub digest: [u8; 32],
    pub at_ms: i64,
    /// Answered 2xx.
    pub taken: bool,
}

/// The running receivers.
#[derive(Clone, Debug)]
pub(crate) struct Receivers {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    arrivals: Mutex<Vec<Arrival>>,
    begun_at_ms: AtomicI64,
    clock: Clock,
}

// === impl Destination ===

impl Destination {
    /// Whether an event type is routed here.
    pub(crate) fn takes(&self, event: &str) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }
}

// === impl Receivers ===

impl Receivers {
    /// Starts them on a free port of the loopback.
    pub(crate) async fn start(clock: Clock) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("no port for receivers")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            arrivals: Mutex::new(Vec::new()),
            begun_at_ms: AtomicI64::new(i64::MAX),
            clock,
        });
        let router = Router::new()
            .route("/{destination}", post(arrive))
            .layer(DefaultBodyLimit::max(1 << 20))
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { address, shared })
    }

    /// Where they listen.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The misbehaviour starts now.
    pub(crate) fn begin(&self) {
        self.shared
            .begun_at_ms
            .store(self.shared.clock.now_ms(), Ordering::SeqCst);
    }

    /// What has arrived.
    pub(crate) fn seen(&self) -> Vec<Arrival> {
        self.shared.lock().clone()
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn down(&self) -> bool {
        let begun_at_ms = self.begun_at_ms.load(Ordering::SeqCst);
        let since_ms = self.clock.now_ms().saturating_sub(begun_at_ms);
        u128::try_from(since_ms).unwrap_or(0) < DOWN.as_millis()
    }
}

async fn arrive(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(destination) = DESTINATIONS.iter().position(|known| known.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let answer = match name.as_str() {
        "flaky" if shared.down() => (
            StatusCode::SERVICE_UNAVAILABLE,
            [("retry-after", RETRY_AFTER_S)],
        )
            .into_response(),
        "gone" => StatusCode::GONE.into_response(),
        "broken" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        _ => StatusCode::NO_CONTENT.into_response(),
    };
    let id = headers
        .get("webhook-id")
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default();
    shared.lock().push(Arrival {
        destination,
        webhook_id: id.to_owned(),
        digest: Sha256::digest(&body).into(),
        at_ms: shared.clock.now_ms(),
        taken: answer.status().is_success(),
    });
    if name == "slow" {
        tokio::time::sleep(SLOW).await;
    }
    answer
}
