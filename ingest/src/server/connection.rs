//! One connection from the accept to its end.

use super::{
    NotServed, Shared,
    client::Counted,
    framing::Framing,
    life::Life,
    opening::{Ahead, Version},
    patience::Patience,
    requests::Requests,
};
use hyper::{
    rt::Executor,
    server::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use std::{fmt::Display, net::IpAddr, pin::pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

/// Longest head of a request, bytes.
const HEAD_BYTES_MAX: u32 = 32 << 10;
/// What hyper reads ahead of an HTTP/1 connection at most, bytes: a head that is too long is seen whole, and told so.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;
/// Requests of an HTTP/2 connection at once.
const STREAMS_MAX: u32 = 128;
/// Streams that a client may reset before we have looked at them (CVE-2023-44487, "rapid reset"), and errors of its that we
/// may have to reset (CVE-2025-8671, "made you reset"); beyond them the connection ends.
const PENDING_RESETS_MAX: usize = 20;
const ERROR_RESETS_MAX: usize = 64;
/// Bytes that a client may send before we have read them, by stream and by connection. They bound memory, and speed: a megabyte
/// a second over a round trip of 100 ms.
const WINDOW_BYTES: u32 = 128 << 10;
/// Bytes of answers that a stream may hold; ours are small.
const SEND_BYTES_MAX: usize = 16 << 10;

/// Makes HTTP out of streams.
#[derive(Clone, Debug)]
pub(super) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<Tasks>,
}

/// Where the requests of HTTP/2 connections run, so that the end can wait for them.
#[derive(Clone, Debug)]
pub(super) struct Tasks(pub(super) TaskTracker);

/// One accepted connection.
pub(super) struct Accepted {
    pub(super) stream: TcpStream,
    pub(super) peer: IpAddr,
    pub(super) life: Arc<Life>,
    /// Its place among those of its address; none while it has to say first which one that is.
    pub(super) counted: Option<Counted>,
}

/// Serves one connection until it ends, for whatever reason.
pub(super) async fn serve(shared: Arc<Shared>, accepted: Accepted) {
    let life = Arc::clone(&accepted.life);
    tokio::select! {
        biased;
        () = life.cut.cancelled() => {}
        served = open(&shared, accepted) => if let Err(refused) = served {
            shared.refused(refused);
        },
    }
}

/// What comes before HTTP, all of it within one time.
async fn open(shared: &Arc<Shared>, accepted: Accepted) -> Result<(), NotServed> {
    let Accepted {
        stream,
        mut peer,
        life,
        mut counted,
    } = accepted;
    let deadline = Instant::now() + shared.limits.head;
    let mut stream = Ahead::new(stream);
    if shared.proxy_protocol {
        match timeout_at(deadline, stream.proxy_header()).await {
            Ok(Ok(client)) => peer = client.unwrap_or(peer),
            Ok(Err(_)) => return Err(NotServed::ProxyProtocol),
            Err(_) => return Err(NotServed::HandshakeTimeout),
        }
        counted = Some(shared.addresses.enter(peer).ok_or(NotServed::PerAddress)?);
    }
    let Some(tls) = &shared.tls else {
        let version = tokio::select! {
            biased;
            version = timeout_at(deadline, stream.version()) => version,
            () = shared.shutdown.cancelled() => return Ok(()),
        };
        let Ok(version) = version else {
            return Ok(());
        };
        talk(shared, stream, version, peer, life).await;
        drop(counted);
        return Ok(());
    };
    let acceptor = TlsAcceptor::from(tls.current());
    let stream = match timeout_at(deadline, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "handshake failed");
            return Err(NotServed::Tls);
        }
        Err(_) => return Err(NotServed::HandshakeTimeout),
    };
    let version = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Version::Http2,
        _ => Version::Http1,
    };
    talk(shared, stream, version, peer, life).await;
    drop(counted);
    Ok(())
}

async fn talk<S>(shared: &Arc<Shared>, stream: S, version: Version, peer: IpAddr, life: Arc<Life>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let requests = Requests {
        routes: shared.routes.clone(),
        shared: Arc::clone(shared),
        life: Arc::clone(&life),
        version,
        peer,
    };
    let patience = shared.limits.answer;
    match version {
        Version::Http1 => {
            let (mut framing, read) = (Framing::new(), Arc::clone(&life));
            let stream = Patience::new(stream, patience, move |bytes: &mut [u8]| {
                read.has_read(Instant::now());
                framing.follow(bytes);
            });
            let http = &shared.protocols.http1;
            let connection = http.serve_connection(TokioIo::new(stream), requests);
            watch(shared, &life, version, connection).await;
        }
        Version::Http2 => {
            let stream = Patience::new(stream, patience, |_: &mut [u8]| {});
            let http = &shared.protocols.http2;
            let connection = http.serve_connection(TokioIo::new(stream), requests);
            watch(shared, &life, version, connection).await;
        }
    }
}

/// Lets the connection go on for as long as it may.
///
/// An HTTP/1 connection that has served enough is told so with its next answer (`Requests`), since closing an idle one can
/// collide with a request. HTTP/2 has a GOAWAY that can not.
async fn watch<C>(shared: &Shared, life: &Life, version: Version, connection: C)
where
    C: GracefulConnection,
    C::Error: Display,
{
    let limits = &shared.limits;
    let mut connection = pin!(connection);
    let mut closed_by: Option<Instant> = None;
    let mut heard_of_draining = false;
    loop {
        let now = Instant::now();
        let idle_at = life.ends_at(limits);
        let is_idle = idle_at.is_some_and(|at| at <= now);
        if closed_by.is_none() {
            let enough = version == Version::Http2
                && (is_idle
                    || life.is_spent(limits, now)
                    || (heard_of_draining && life.has_served()));
            if enough || shared.shutdown.is_cancelled() {
                connection.as_mut().graceful_shutdown();
                closed_by = Some(now + limits.closing);
            }
        }
        let untaken_at = life.untaken_at(limits);
        let gone_at = match (version, closed_by) {
            // It was asked to end because it was idle; now it has the time that closing takes.
            (Version::Http2, Some(_)) => None,
            _ => idle_at,
        };
        let aged_at = (version == Version::Http2 && closed_by.is_none())
            .then(|| life.opened_at() + limits.age);
        let cut_at = [untaken_at, gone_at, closed_by].into_iter().flatten().min();
        if cut_at.is_some_and(|at| at <= now) {
            tracing::debug!("connection cut off");
            return;
        }
        // Whoever ends a request tells nobody, so it is looked now and then.
        let look_at = aged_at.map_or(now + limits.head, |at| at.min(now + limits.head));
        let look_at = cut_at.map_or(look_at, |at| at.min(look_at));
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended with an error");
                }
                return;
            }
            () = life.changed() => {}
            () = shared.draining.cancelled(), if !heard_of_draining => heard_of_draining = true,
            () = shared.shutdown.cancelled(), if closed_by.is_none() => {}
            () = sleep_until(look_at) => {}
        }
    }
}

// === impl Protocols ===

impl Protocols {
    /// `ping_every`: how often an HTTP/2 client is asked whether it is there, and how long it may take to answer. This is what
    /// ends a header block that never ends: between its frames no ping can be answered.
    pub(super) fn new(tasks: TaskTracker, ping_every: Duration) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // `watch` has the times.
            .header_read_timeout(None)
            .max_header_size(HEAD_BYTES_MAX as usize)
            .max_buf_size(READ_AHEAD_BYTES_MAX)
            // Who has sent a whole request and nothing more is to come is owed its answer.
            .half_close(true);
        let mut http2 = http2::Builder::new(Tasks(tasks));
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
            .max_local_error_reset_streams(ERROR_RESETS_MAX)
            .max_header_list_size(HEAD_BYTES_MAX)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES_MAX)
            .keep_alive_interval(ping_every)
            .keep_alive_timeout(ping_every);
        Self { http1, http2 }
    }
}

// === impl Tasks ===

impl<F> Executor<F> for Tasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}
