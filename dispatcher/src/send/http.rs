//! The real [`Send`]: one hardened client a destination.

use super::{Attempt, Send, headers, sign};
use crate::{
    config::{DestinationConfig, SigningScheme},
    outcome::{Outcome, of_status, without_answer},
};
use http::{HeaderValue, header};
use reqwest::Client;
use runtime::{
    Clock, Problem, Secret,
    addresses::{self, Blocked, allowed},
};
use schemas::{OutcomeKind, Webhook};
use std::{collections::BTreeMap, error::Error, path::Path, sync::Arc, time::Duration};
use tokio::time::Instant;
use url::Host;

/// Below the 5 s after which Node's server closes idle connections, so that we rarely send into a closing one
/// (hyperium/hyper#2136).
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// POSIX: the process's, and the system's, table of open files is full. The same numbers on Linux, BSD and macOS.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
/// Between two tries to get a descriptor.
const DESCRIPTORS_PAUSE: Duration = Duration::from_millis(250);

/// Sends over HTTP.
#[derive(Clone, Debug)]
pub struct HttpSend {
    endpoints: Arc<BTreeMap<String, Endpoint>>,
    clock: Clock,
}

#[derive(Debug)]
struct Endpoint {
    config: DestinationConfig,
    client: Client,
    secrets: Vec<Secret>,
}

// === impl HttpSend ===

impl HttpSend {
    /// Builds a client for every destination; relative secret files start at `secrets_base`.
    ///
    /// # Errors
    /// Every problem found, with its key path.
    pub fn new(
        destinations: &BTreeMap<String, DestinationConfig>,
        secrets_base: &Path,
        clock: Clock,
    ) -> Result<Self, Vec<Problem>> {
        let mut endpoints = BTreeMap::new();
        let mut problems = Vec::new();
        for (name, config) in destinations {
            match Endpoint::new(name, config, secrets_base) {
                Ok(endpoint) => {
                    endpoints.insert(name.clone(), endpoint);
                }
                Err(found) => problems.extend(found),
            }
        }
        if problems.is_empty() {
            Ok(Self {
                endpoints: Arc::new(endpoints),
                clock,
            })
        } else {
            Err(problems)
        }
    }
}

impl Send for HttpSend {
    async fn send(&self, attempt: Attempt<'_>) -> Outcome {
        match self.endpoints.get(attempt.destination) {
            Some(endpoint) => endpoint.send(attempt, &self.clock).await,
            None => without_answer(OutcomeKind::Failed, "destination is not configured"),
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn new(name: &str, config: &DestinationConfig, base: &Path) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut secrets = Vec::new();
        for (at, place) in config
            .signing
            .iter()
            .flat_map(|signing| &signing.secrets)
            .enumerate()
        {
            let key = format!("destinations.{name}.signing.secrets[{at}]");
            match Secret::open(place, base) {
                Ok(secret) => {
                    if let Err(error) = secret.with(sign::key_bytes) {
                        problems.push(Problem::new(key, error.to_string()));
                    }
                    secrets.push(secret);
                }
                Err(error) => problems.push(Problem::new(key, error.to_string())),
            }
        }
        if let Some(ip) = literal(config)
            && let Err(blocked) = allowed(ip, &config.allow_cidrs)
        {
            let message = format!("{blocked}; name its network in `allow_cidrs` to allow it");
            problems.push(Problem::new(format!("destinations.{name}.url"), message));
        }
        match client(config) {
            Ok(client) if problems.is_empty() => Ok(Self {
                config: config.clone(),
                client,
                secrets,
            }),
            Ok(_) => Err(problems),
            Err(error) => {
                let key = format!("destinations.{name}");
                problems.push(Problem::new(
                    key,
                    format!("no client can be built: {error}"),
                ));
                Err(problems)
            }
        }
    }

    async fn send(&self, attempt: Attempt<'_>, clock: &Clock) -> Outcome {
        // The connector asks no resolver for an IP literal, so it is judged here.
        if let Some(ip) = literal(&self.config)
            && let Err(blocked) = allowed(ip, &self.config.allow_cidrs)
        {
            return without_answer(OutcomeKind::Blocked, &blocked.to_string());
        }
        let deadline = Instant::now() + self.config.timeout;
        let now_ms = clock.now_ms();
        let id = sign::webhook_id(&attempt.webhook.source, &attempt.webhook.delivery_id);
        let signature = self.signature(&id, now_ms.div_euclid(1_000), attempt.webhook);
        if signature.is_none() && self.config.signing.is_some() {
            // The receiver would refuse it for good; a new secret mends it.
            tracing::warn!(
                destination = attempt.destination,
                "no usable signing secret"
            );
            return without_answer(OutcomeKind::Failed, "no usable signing secret");
        }
        let headers = headers::of(attempt, &id, signature.as_deref(), now_ms);
        let mut response = loop {
            let request = self
                .client
                .post(self.config.url.clone())
                .headers(headers.clone())
                .body(attempt.webhook.body.clone());
            match tokio::time::timeout_at(deadline, request.send()).await {
                Err(_) => return without_answer(OutcomeKind::Failed, "timeout: no answer in time"),
                // Nothing was sent, and it is not the receiver's failure: no attempt of its is used up on it while
                // there is time.
                Ok(Err(error)) if no_descriptors(&error) && Instant::now() < deadline => {
                    tracing::error!("no file descriptors left for connections, waiting for some");
                    tokio::time::sleep(DESCRIPTORS_PAUSE).await;
                }
                Ok(Err(error)) => return of_error(&error.without_url()),
                Ok(Ok(response)) => break response,
            }
        };
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .map(HeaderValue::as_bytes);
        let status = response.status().as_u16();
        let outcome = of_status(
            status,
            retry_after,
            &self.config.retry_statuses,
            clock.now_ms(),
        );
        // The status is known, so nothing that happens to the rest changes the outcome. Reading it, up to the cap, lets
        // the connection be used again; dropping it closes the connection.
        let mut left = self.config.response_bytes_max;
        while let Ok(Ok(Some(chunk))) = tokio::time::timeout_at(deadline, response.chunk()).await {
            match left.checked_sub(chunk.len()) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        outcome
    }

    fn signature(&self, id: &str, timestamp_s: i64, webhook: &Webhook) -> Option<String> {
        let scheme = self.config.signing.as_ref()?.scheme;
        let signed = self
            .secrets
            .iter()
            .filter(|secret| secret.usable_at(timestamp_s * 1_000));
        let signatures: Vec<String> = signed
            .filter_map(|secret| secret.with(sign::key_bytes).ok())
            .map(|key| match scheme {
                SigningScheme::StandardWebhooks => {
                    sign::standard_webhooks(&key, id, timestamp_s, &webhook.body)
                }
                SigningScheme::Framed => sign::framed(&key, id, timestamp_s, webhook),
            })
            .collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

fn client(config: &DestinationConfig) -> reqwest::Result<Client> {
    // Every try is an attempt that is counted; the client makes none of its own.
    addresses::client(config.allow_cidrs.clone())
        .https_only(!config.allow_http)
        .connect_timeout(config.timeout)
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .pool_max_idle_per_host(config.concurrency)
        .build()
}

fn literal(config: &DestinationConfig) -> Option<std::net::IpAddr> {
    match config.url.host()? {
        Host::Ipv4(ip) => Some(ip.into()),
        Host::Ipv6(ip) => Some(ip.into()),
        Host::Domain(_) => None,
    }
}

/// Whether a connection was not made because this process, or the machine, has no file descriptors left.
fn no_descriptors(error: &reqwest::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        let code = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error);
        if code.is_some_and(|code| code == EMFILE || code == ENFILE) {
            return true;
        }
        cause = error.source();
    }
    false
}

fn of_error(error: &reqwest::Error) -> Outcome {
    let mut cause: &dyn Error = error;
    loop {
        if let Some(blocked) = cause.downcast_ref::<Blocked>() {
            return without_answer(OutcomeKind::Blocked, &blocked.to_string());
        }
        match cause.source() {
            Some(source) => cause = source,
            None => break,
        }
    }
    let class = if error.is_timeout() {
        "timeout"
    } else if error.is_connect() {
        "connect"
    } else if error.is_body() || error.is_request() {
        "request"
    } else {
        "transport"
    };
    without_answer(OutcomeKind::Failed, &format!("{class}: {cause}"))
}
