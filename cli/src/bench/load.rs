//! The load: signed webhooks over a fixed number of connections, as fast as they are answered or at a fixed rate.

use super::rig::SOURCE;
use crate::sender::{body, signature};
use anyhow::{Context, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rand::{SeedableRng, rngs::StdRng};
use std::{
    net::SocketAddr,
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};
use tokio::{net::TcpStream, time::Instant};

/// The webhook secret that sender and pipeline share.
pub(crate) const SECRET: &str = "bench-secret-between-sender-and-pipeline";
/// The event type of every webhook.
pub(crate) const EVENT: &str = "push";
/// Different bodies, sent in turn, so that a batch of them does not compress to one.
const BODIES: u64 = 64;
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

/// The webhooks of a run.
#[derive(Debug)]
pub(crate) struct Webhooks {
    run: String,
    source: String,
    bodies: Vec<Signed>,
}

#[derive(Debug)]
struct Signed {
    body: Bytes,
    signature: String,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    /// Number of the webhook.
    pub number: u32,
    /// When it was sent; at a fixed rate, when it should have been sent.
    pub begun: Instant,
    /// When it was answered with 2xx.
    pub at: Instant,
}

// === impl Webhooks ===

impl Webhooks {
    /// Bodies of `body_bytes`, always the same ones; `run` keeps ids of runs apart.
    pub(crate) fn new(run: &str, body_bytes: usize) -> Self {
        let signed = |seed| {
            let body = body(EVENT, body_bytes, &mut StdRng::seed_from_u64(seed));
            Signed {
                signature: signature(SECRET, &body),
                body: body.into(),
            }
        };
        Self {
            run: run.to_owned(),
            source: SOURCE.to_owned(),
            bodies: (0..BODIES).map(signed).collect(),
        }
    }

    /// The same for another source.
    pub(crate) fn of(self, source: &str) -> Self {
        Self {
            source: source.to_owned(),
            ..self
        }
    }

    /// The sender's id of a webhook.
    pub(crate) fn delivery_id(&self, number: u32) -> String {
        format!("{}-{number}", self.run)
    }

    /// The body of a webhook.
    pub(crate) fn body(&self, number: u32) -> Bytes {
        self.signed(number)
            .map(|signed| signed.body.clone())
            .unwrap_or_default()
    }

    fn signed(&self, number: u32) -> Option<&Signed> {
        // The number of bodies is far below what a u32 holds.
        self.bodies.get(number as usize % self.bodies.len().max(1))
    }

    fn request(&self, target: SocketAddr, number: u32) -> anyhow::Result<Request<Full<Bytes>>> {
        let signed = self.signed(number).context("no bodies")?;
        let request = Request::post(format!("/hooks/{}", self.source))
            .header(header::HOST, target.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, "GitHub-Hookshot/bench")
            .header("x-github-delivery", self.delivery_id(number))
            .header("x-github-event", EVENT)
            .header("x-hub-signature-256", &signed.signature)
            .body(Full::new(signed.body.clone()))?;
        Ok(request)
    }
}

/// The number in a delivery id, or in what was made of one.
pub(crate) fn number_of(id: &str) -> Option<u32> {
    id.rsplit_once('-')?.1.parse().ok()
}

/// Sends the webhooks `numbers` to `target` over `connections` until all are answered or `deadline` has passed; at most
/// `per_second` of them a second when there is such a limit.
///
/// # Errors
/// When a connection breaks, or an answer is not 2xx.
pub(crate) async fn send(
    webhooks: &Webhooks,
    target: SocketAddr,
    connections: usize,
    numbers: Range<u32>,
    per_second: Option<f64>,
    deadline: Instant,
) -> anyhow::Result<Vec<Answered>> {
    let next = AtomicU32::new(numbers.start);
    let senders = try_join_all((0..connections).map(|_| connect(target))).await?;
    let start = Instant::now();
    let workers = senders.into_iter().map(async |mut sender| {
        let mut answered = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let mut begun = Instant::now();
            if let Some(per_second) = per_second {
                let at = f64::from(number - numbers.start) / per_second;
                begun = start + Duration::from_secs_f64(at);
                tokio::time::sleep_until(begun).await;
            }
            if number >= numbers.end || begun >= deadline {
                return anyhow::Ok(answered);
            }
            let exchange = exchange(&mut sender, webhooks.request(target, number)?);
            tokio::time::timeout(ANSWER_DEADLINE, exchange)
                .await
                .context("no answer in time")??;
            let at = Instant::now();
            answered.push(Answered { number, begun, at });
        }
    });
    let answered = try_join_all(workers).await?;
    Ok(answered.into_iter().flatten().collect())
}

async fn connect(target: SocketAddr) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(target)
        .await
        .context("can not connect")?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn exchange(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<()> {
    sender.ready().await?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    ensure!(
        status.is_success(),
        "answered {status}: {}",
        String::from_utf8_lossy(&body)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_survives_the_way_through_the_pipeline() {
        let webhooks = Webhooks::new("bench-0a1b", 2_000);
        let id = webhooks.delivery_id(17);
        assert_eq!(number_of(&id), Some(17));
        assert_eq!(number_of(&format!("github_{id}")), Some(17));
        assert_eq!(number_of("github_x"), None);
        let bytes = webhooks.body(17).len();
        assert!((2_000..2_020).contains(&bytes), "{bytes}");
        assert_ne!(webhooks.body(1), webhooks.body(2));
    }
}
