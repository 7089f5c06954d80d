//! The HTTP client that dials only what it may.

use super::{Blocked, Dns, allowed, class};
use hyper_util::client::legacy::connect::{Connection, HttpInfo};
use ipnet::IpNet;
use reqwest::{
    Client, ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect, retry,
};
use std::{
    error::Error,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::Semaphore;
use tower::{Layer, Service};

type BoxError = Box<dyn Error + Send + Sync>;

/// What one client may dial, and how it finds addresses.
#[derive(Clone, Debug)]
pub struct Guard {
    allow: Arc<[IpNet]>,
    /// Public addresses may be dialled; else only those in `allow`.
    public: bool,
    dns: Dns,
    /// A client looks up one name at a time, so that a name whose servers are slow holds one of the places that all share.
    turn: Arc<Semaphore>,
}

/// The start of a client that dials public addresses and `allow`, with a [`Dns`] of its own; see [`Guard::client`].
pub fn client(allow: Vec<IpNet>) -> ClientBuilder {
    Guard::new(allow, Dns::system()).client()
}

// === impl Guard ===

impl Guard {
    /// Public addresses and `allow`.
    pub fn new(allow: Vec<IpNet>, dns: Dns) -> Self {
        Self {
            allow: allow.into(),
            public: true,
            dns,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Only `allow`: the port is none that is dialled at public addresses.
    #[must_use]
    pub fn without_public(self) -> Self {
        Self {
            public: false,
            ..self
        }
    }

    /// Whether `ip` may be dialled.
    ///
    /// # Errors
    /// [`Blocked`] with the kind of the address, or `port`.
    pub fn judge(&self, ip: IpAddr) -> Result<(), Blocked> {
        allowed(ip, &self.allow)?;
        let inside = || self.allow.iter().any(|net| net.contains(&ip));
        if self.public || class(ip).is_some() || inside() {
            Ok(())
        } else {
            Err(Blocked { class: "port" })
        }
    }

    /// The start of a client: names are resolved by [`Dns`] and judged; the peer of every new connection is judged again
    /// before the request is written; no proxy, no redirect, no retry of its own, no referer. **Not judged here before it is
    /// dialled:** a URL whose host is an IP address, for which no resolver is asked; see [`Self::judge`].
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where a client begins, hardened"
    )]
    pub fn client(&self) -> ClientBuilder {
        // Somebody else in the process may have chosen a provider already; that one serves as well.
        drop(rustls::crypto::ring::default_provider().install_default());
        Client::builder()
            .dns_resolver(Arc::new(self.clone()))
            .connector_layer(CheckPeer {
                guard: self.clone(),
            })
            .no_proxy()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let addresses = guard.dns.resolve(name.as_str(), &guard.turn).await?;
            for ip in &addresses {
                guard.judge(*ip)?;
            }
            let addresses = addresses.into_iter().map(|ip| SocketAddr::new(ip, 0));
            let addresses: Addrs = Box::new(addresses);
            Ok(addresses)
        })
    }
}

/// Judges the peer of each new connection, whatever led to it, before a request is written to it.
#[derive(Clone, Debug)]
struct CheckPeer {
    guard: Guard,
}

#[derive(Clone, Debug)]
struct CheckedPeer<S> {
    guard: Guard,
    connect: S,
}

impl<S> Layer<S> for CheckPeer {
    type Service = CheckedPeer<S>;

    fn layer(&self, connect: S) -> Self::Service {
        CheckedPeer {
            guard: self.guard.clone(),
            connect,
        }
    }
}

// === impl CheckedPeer ===

impl<S, R> Service<R> for CheckedPeer<S>
where
    S: Service<R>,
    S::Response: Connection,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connect.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: R) -> Self::Future {
        let (guard, connecting) = (self.guard.clone(), self.connect.call(target));
        Box::pin(async move {
            let connection = connecting.await.map_err(Into::into)?;
            let peer = peer(&connection);
            // The system knows no peer any more when the other side has cut the connection off meanwhile.
            let peer = peer.ok_or("connection was closed at once")?;
            guard.judge(peer.ip())?;
            Ok(connection)
        })
    }
}

fn peer(connection: &impl Connection) -> Option<SocketAddr> {
    let mut extras = http::Extensions::new();
    connection.connected().get_extras(&mut extras);
    extras.get::<HttpInfo>().map(HttpInfo::remote_addr)
}
