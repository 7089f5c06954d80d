//! The limits: each does one part of the work and nothing else, in a process of its own, as the product does.

use super::{
    load::{EVENT, SECRET, Webhooks},
    pace::{self, STEADY},
    rig::{DESTINATION, SOURCE},
};
use crate::{
    config::{self, Loaded},
    output::print,
    ports, sender,
};
use anyhow::{Context, anyhow, ensure};
use axum::{Router, body::Bytes, extract::DefaultBodyLimit, http::HeaderMap, routing::post};
use dedup_store::{Claim, ClaimAsk, Reopen, Store, Transition};
use event_log::{EventLog, Record};
use futures::{StreamExt, TryStreamExt, stream};
use hmac::{Hmac, KeyInit, Mac};
use http::StatusCode;
use runtime::Clock;
use schemas::{DeliveryKey, Topic, Webhook, header};
use sha2::Sha256;
use std::{net::SocketAddr, ops::Range, path::Path, sync::Arc, time::Duration};
use tokio::{net::TcpListener, time::Instant};
use uuid::Uuid;

/// `fencepost bench limit …`: what the bench starts for itself.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Limit {
    /// A bare HTTP server that reads bodies and verifies their HMAC
    Server {
        #[arg(long)]
        listen: SocketAddr,
    },
    /// Append webhooks to the log of the config
    Produce(Slice),
    /// Claim and complete deliveries in the store of the config
    Claims(Slice),
    /// POST webhooks
    Posts {
        #[arg(long)]
        to: SocketAddr,
        #[command(flatten)]
        slice: Slice,
    },
}

/// How much a limit does.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Slice {
    /// Of the webhooks' ids
    #[arg(long)]
    pub run: String,
    /// First number
    #[arg(long)]
    pub first: u32,
    /// Webhooks
    #[arg(long)]
    pub count: u32,
    #[arg(long)]
    pub body_bytes: usize,
    #[arg(long)]
    pub concurrency: usize,
    #[arg(long)]
    pub seconds_max: u64,
}

/// Runs one; prints its rate a second, when it has one.
pub(crate) async fn run(limit: &Limit, file: Option<&Path>) -> anyhow::Result<()> {
    let loaded = || config::load(file).map_err(|problems| anyhow!("{problems:?}"));
    let times = match limit {
        Limit::Server { listen } => return serve(*listen).await,
        Limit::Produce(slice) => append(&loaded()?, slice).await?,
        Limit::Claims(slice) => claims(&loaded()?, slice).await?,
        Limit::Posts { to, slice } => posts(*to, slice).await?,
    };
    print(&format!("{:.1}\n", pace::per_second(times, STEADY)))?;
    Ok(())
}

/// Appends webhooks to a log that nobody else has open; when each was acknowledged.
///
/// # Errors
/// When the log can not be opened or does not acknowledge.
pub(crate) async fn append(loaded: &Loaded, slice: &Slice) -> anyhow::Result<Vec<Instant>> {
    let clock = Clock::system();
    let log = ports::log::open(&loaded.config.log, &loaded.base, clock.clone())
        .await
        .map_err(|failure| anyhow!("{failure}"))?;
    let codec = ports::log::codec(&loaded.config.log);
    let webhooks = slice.webhooks();
    let mut records = Vec::new();
    for number in slice.numbers() {
        let webhook = Webhook {
            source: SOURCE.to_owned(),
            delivery_id: webhooks.delivery_id(number),
            event_type: EVENT.to_owned(),
            content_type: Some("application/json".to_owned()),
            headers: Vec::new(),
            body: webhooks.body(number),
            received_at_ms: clock.now_ms(),
            generation: 0,
        };
        records.push(Record {
            topic: Topic::Webhooks,
            key: webhook.delivery_id.clone().into(),
            value: codec.encode_webhook(&webhook)?,
            headers: Vec::new(),
        });
    }
    let deadline = slice.deadline();
    let log = &log;
    stream::iter(records)
        .take_while(|_| std::future::ready(Instant::now() < deadline))
        .map(|record| async move {
            log.produce(record).await?;
            anyhow::Ok(Instant::now())
        })
        .buffer_unordered(slice.concurrency)
        .try_collect()
        .await
}

async fn claims(loaded: &Loaded, slice: &Slice) -> anyhow::Result<Vec<Instant>> {
    let clock = Clock::system();
    let store = ports::store::open(&loaded.config.store, &loaded.base)
        .await
        .map_err(|failure| anyhow!("{failure}"))?;
    let (store, clock, webhooks) = (&store, &clock, &slice.webhooks());
    let lease = loaded.config.dispatcher.lease;
    let lease_ms = i64::try_from(lease.as_millis())?;
    let deadline = slice.deadline();
    stream::iter(slice.numbers())
        .take_while(|_| std::future::ready(Instant::now() < deadline))
        .map(|number| async move {
            let ask = ClaimAsk {
                key: DeliveryKey {
                    source: SOURCE.to_owned(),
                    delivery_id: webhooks.delivery_id(number),
                    destination: DESTINATION.to_owned(),
                },
                token: Uuid::now_v7(),
                lease_ms,
                skew_margin_ms: 0,
                attempt: 1,
                fence: None,
                generation: 0,
                received_at_ms: clock.now_ms(),
                reopen: Reopen::default(),
            };
            let Claim::Claimed(held) = store.claim(&ask, clock.now_ms()).await? else {
                anyhow::bail!("a fresh delivery could not be claimed");
            };
            let ended = store.complete(&held, clock.now_ms()).await?;
            ensure!(ended == Transition::Applied, "a claim was lost");
            Ok(Instant::now())
        })
        .buffer_unordered(slice.concurrency)
        .try_collect()
        .await
}

/// With the dispatcher's own client library, so that what is compared is our code and not two libraries.
async fn posts(to: SocketAddr, slice: &Slice) -> anyhow::Result<Vec<Instant>> {
    let client = sender::client().context("no HTTP client")?;
    let (client, webhooks) = (&client, &slice.webhooks());
    let url = &format!("http://{to}/");
    let deadline = slice.deadline();
    stream::iter(slice.numbers())
        .take_while(|_| std::future::ready(Instant::now() < deadline))
        .map(|number| async move {
            let sent = client
                .post(url)
                .header("content-type", "application/json")
                .header(header::WEBHOOK_ID, webhooks.delivery_id(number))
                .body(webhooks.body(number));
            let answer = sent.send().await?.error_for_status()?;
            drop(answer.bytes().await?);
            anyhow::Ok(Instant::now())
        })
        .buffer_unordered(slice.concurrency)
        .try_collect()
        .await
}

async fn serve(listen: SocketAddr) -> anyhow::Result<()> {
    let key = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())?;
    let take = async move |headers: HeaderMap, body: Bytes| verify(key.clone(), &headers, &body);
    let router = Router::new()
        .route("/hooks/github", post(take))
        .layer(DefaultBodyLimit::max(32 << 20));
    let listener = TcpListener::bind(listen).await?;
    // Until it is killed.
    axum::serve(listener, router).await?;
    Ok(())
}

fn verify(mut key: Hmac<Sha256>, headers: &HeaderMap, body: &[u8]) -> StatusCode {
    let shown = headers
        .get("x-hub-signature-256")
        .and_then(|value| value.to_str().ok()?.strip_prefix("sha256="))
        .and_then(|text| hex::decode(text).ok());
    key.update(body);
    match shown.map(|shown| key.verify_slice(&shown)) {
        Some(Ok(())) => StatusCode::ACCEPTED,
        Some(Err(_)) | None => StatusCode::UNAUTHORIZED,
    }
}

// === impl Slice ===

impl Slice {
    /// The webhooks' numbers.
    pub(crate) fn numbers(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The webhooks.
    pub(crate) fn webhooks(&self) -> Arc<Webhooks> {
        Arc::new(Webhooks::new(&self.run, self.body_bytes))
    }

    /// No new work is begun after this.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.seconds_max)
    }

    /// As arguments of `fencepost bench limit …`.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let pairs = [
            ("--run", self.run.clone()),
            ("--first", self.first.to_string()),
            ("--count", self.count.to_string()),
            ("--body-bytes", self.body_bytes.to_string()),
            ("--concurrency", self.concurrency.to_string()),
            ("--seconds-max", self.seconds_max.to_string()),
        ];
        pairs
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }
}
