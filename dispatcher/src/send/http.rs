//! The real [`Send`]: one hardened client a destination.

use super::{
    Attempt, Send,
    auth::{Auth, Statics},
    client::{Connections, Place},
    failure::{Failure, no_descriptors},
    headers, sign,
};
use crate::{
    config::{DestinationConfig, SigningScheme},
    metrics::Egress,
    outcome::{Outcome, of_status, without_answer},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use reqwest::Response;
use runtime::{Clock, Problem, Secret, addresses::Dns};
use schemas::{OutcomeKind, Webhook};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Between two tries to get a descriptor.
const DESCRIPTORS_PAUSE: Duration = Duration::from_millis(250);

/// Sends over HTTP.
#[derive(Clone, Debug)]
pub struct HttpSend {
    endpoints: Arc<BTreeMap<String, Endpoint>>,
    clock: Clock,
    metrics: Egress,
}

#[derive(Debug)]
struct Endpoint {
    config: DestinationConfig,
    connections: Connections,
    statics: Statics,
    auth: Auth,
    /// Those of the signature.
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
        let dns = Dns::system();
        for (name, config) in destinations {
            match Endpoint::new(name, config, secrets_base, &dns) {
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
                metrics: Egress::new(),
            })
        } else {
            Err(problems)
        }
    }
}

impl Send for HttpSend {
    async fn send(&self, attempt: Attempt<'_>) -> Outcome {
        match self.endpoints.get(attempt.destination) {
            Some(endpoint) => match endpoint.send(attempt, &self.clock).await {
                Ok(outcome) => outcome,
                Err(failure) => {
                    if let Some(class) = failure.blocked {
                        self.metrics.blocked(attempt.destination, class);
                    }
                    failure.outcome()
                }
            },
            None => without_answer(OutcomeKind::Failed, "destination is not configured"),
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    fn new(
        name: &str,
        config: &DestinationConfig,
        base: &Path,
        dns: &Dns,
    ) -> Result<Self, Vec<Problem>> {
        let key = format!("destinations.{name}");
        let place = Place { base, key: &key };
        let tls = (config.tls.as_ref(), "tls");
        let connections = Connections::open(config, (&config.url, "url"), tls, place, dns);
        let opened = (
            connections,
            Statics::open(config, place),
            Auth::open(config, place, dns),
            signing_secrets(config, place),
        );
        match opened {
            (Ok(connections), Ok(statics), Ok(auth), Ok(secrets)) => Ok(Self {
                config: config.clone(),
                connections,
                statics,
                auth,
                secrets,
            }),
            (connections, statics, auth, secrets) => {
                Err(
                    [connections.err(), statics.err(), auth.err(), secrets.err()]
                        .into_iter()
                        .flatten()
                        .flatten()
                        .collect(),
                )
            }
        }
    }

    /// One attempt: credentials, request, answer. The status decides; what comes after it changes nothing.
    async fn send(&self, attempt: Attempt<'_>, clock: &Clock) -> Result<Outcome, Failure> {
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
            return Err(Failure::new("no usable signing secret"));
        }
        let mut headers = headers::of(attempt, &id, signature.as_deref(), now_ms);
        self.statics.add(&mut headers)?;
        let lent = self.auth.authorize(&mut headers, deadline).await?;
        let mut response = self.ask(&headers, attempt.webhook, deadline).await?;
        let retry_after = response.headers().get(header::RETRY_AFTER);
        let mut outcome = of_status(
            response.status().as_u16(),
            retry_after.map(HeaderValue::as_bytes),
            &self.config.retry_statuses,
            clock.now_ms(),
        );
        if let Some(lent) = lent
            && response.status() == StatusCode::UNAUTHORIZED
        {
            self.auth.refused(&lent);
            // A receiver may have forgotten a token before its time. With one that was just fetched, 401 means no.
            if !lent.is_fresh {
                outcome.kind = OutcomeKind::Failed;
                outcome.detail.push_str(", the token is not used again");
            }
        }
        // Reading the rest, up to the cap, lets the connection be used again; dropping it closes the connection.
        let mut left = self.config.response_bytes_max;
        while let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await {
            match left.checked_sub(chunk.len()) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        Ok(outcome)
    }

    async fn ask(
        &self,
        headers: &HeaderMap,
        webhook: &Webhook,
        deadline: Instant,
    ) -> Result<Response, Failure> {
        let client = self.connections.ready()?;
        loop {
            let request = client
                .post(self.connections.url.clone())
                .headers(headers.clone())
                .body(webhook.body.clone());
            match timeout_at(deadline, request.send()).await {
                Err(_late) => return Err(Failure::timeout()),
                // Nothing was sent, and it is not the receiver's failure: no attempt of its is used up on it while
                // there is time.
                Ok(Err(error)) if no_descriptors(&error) && Instant::now() < deadline => {
                    tracing::error!("no file descriptors left for connections, waiting for some");
                    tokio::time::sleep(DESCRIPTORS_PAUSE).await;
                }
                Ok(Err(error)) => return Err(Failure::of(&error.without_url())),
                Ok(Ok(response)) => return Ok(response),
            }
        }
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

fn signing_secrets(
    config: &DestinationConfig,
    place: Place<'_>,
) -> Result<Vec<Secret>, Vec<Problem>> {
    let (mut secrets, mut problems) = (Vec::new(), Vec::new());
    let places = config.signing.iter().flat_map(|signing| &signing.secrets);
    for (at, secret) in places.enumerate() {
        let key = format!("{}.signing.secrets[{at}]", place.key);
        match Secret::open(secret, place.base) {
            Ok(secret) => {
                if let Err(error) = secret.with(sign::key_bytes) {
                    problems.push(Problem::new(key, error.to_string()));
                }
                secrets.push(secret);
            }
            Err(error) => problems.push(Problem::new(key, error.to_string())),
        }
    }
    if problems.is_empty() {
        Ok(secrets)
    } else {
        Err(problems)
    }
}
