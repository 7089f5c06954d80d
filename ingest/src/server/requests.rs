//! What is done with each request of a connection before and after the routes see it.

use super::{
    Shared, Signed,
    client::Client,
    life::{Life, UnderWay},
    opening::Version,
};
use crate::receive::overloaded;
use axum::{Router, body::Body};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::{Frame, SizeHint};
use hyper::{body::Incoming, service::Service};
use hyper_util::service::TowerToHyperService;
use std::{
    convert::Infallible,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::time::Instant;

/// The routes, as one connection sees them.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    pub(super) routes: TowerToHyperService<Router>,
    pub(super) shared: Arc<Shared>,
    pub(super) life: Arc<Life>,
    pub(super) version: Version,
    /// Who connected, or whom the proxy names.
    pub(super) peer: IpAddr,
}

/// An answer's body. Holds the request until it is taken.
#[derive(Debug)]
pub(super) struct Answer {
    body: Body,
    _request: UnderWay,
}

// === impl Requests ===

impl Service<Request<Incoming>> for Requests {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let mut under_way = self.life.begin();
        if self.is_last() {
            self.life.wake();
        }
        let client = if self.shared.proxy_protocol {
            self.peer
        } else {
            self.shared.trusted.client(self.peer, request.headers())
        };
        request.extensions_mut().insert(Client(client));
        // Here, and not in the request's task: HTTP/2 packs heads so well that many would pile up until theirs run.
        let held = Arc::clone(&self.shared.heads).try_acquire_many_owned(head_bytes(&request));
        let answer = held.map(|held| (self.routes.call(request), held));
        let this = self.clone();
        Box::pin(async move {
            let mut response = match answer {
                Ok((answer, _held)) => {
                    let Ok(response) = answer.await;
                    response
                }
                Err(_none_left) => overloaded(&this.shared.metrics),
            };
            if this.version == Version::Http1 && this.is_last() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            let signed = response.extensions().get::<Signed>().is_some();
            under_way.answered(Instant::now(), signed);
            Ok(response.map(|body| Answer {
                body,
                _request: under_way,
            }))
        })
    }
}

impl Requests {
    /// Whether the connection is to end after this request.
    fn is_last(&self) -> bool {
        let Shared {
            draining, limits, ..
        } = &*self.shared;
        draining.is_cancelled() || self.life.is_spent(limits, Instant::now())
    }
}

/// As HTTP/2 counts it: 32 bytes for each field besides name and value (RFC 9113 section 6.5.2).
fn head_bytes<B>(request: &Request<B>) -> u32 {
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = request.uri().path().len() + request.uri().query().map_or(0, str::len);
    u32::try_from(target + fields.sum::<usize>()).unwrap_or(u32::MAX)
}

// === impl Answer ===

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
