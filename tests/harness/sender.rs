//! A sender like GitHub: signs with its own HMAC, posts concurrently, remembers what was acknowledged.

use crate::http;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Longer than ingest may take.
const POST_DEADLINE: Duration = Duration::from_secs(30);

/// A webhook to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// `x-github-delivery`.
    pub delivery_id: String,
    /// `x-github-event`.
    pub event: String,
    /// Exact bytes.
    pub body: Bytes,
}

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Sent {
    /// `x-github-delivery`.
    pub delivery_id: String,
    /// SHA-256 of the body, hex.
    pub body_sha256: String,
    /// Status of the answer; none when there was no answer.
    pub status: Option<u16>,
    /// Why there was no answer; empty when there was one.
    pub failure: String,
    /// When the answer came, milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// Posts webhooks of one source.
#[derive(Clone, Debug)]
pub struct Sender {
    url: String,
    secret: Vec<u8>,
    concurrency: usize,
    per_second: Option<u32>,
}

// === impl Sent ===

impl Sent {
    /// Whether the pipeline has taken it on: from here on it is an obligation.
    pub fn acknowledged(&self) -> bool {
        self.status
            .is_some_and(|status| (200..300).contains(&status))
    }
}

// === impl Sender ===

impl Sender {
    /// A sender to `url`, 32 requests at once.
    pub fn new(url: impl Into<String>, secret: &[u8]) -> Self {
        Self {
            url: url.into(),
            secret: secret.to_vec(),
            concurrency: 32,
            per_second: None,
        }
    }

    /// At most so many requests at once.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// An even pace instead of as fast as it goes.
    #[must_use]
    pub fn per_second(mut self, per_second: u32) -> Self {
        self.per_second = Some(per_second);
        self
    }

    /// A signed request that is still to be sent.
    pub fn request(&self, webhook: &Webhook) -> reqwest::RequestBuilder {
        http::client()
            .post(&self.url)
            .header("content-type", "application/json")
            .header("user-agent", "GitHub-Hookshot/0123456")
            .header("x-github-delivery", &webhook.delivery_id)
            .header("x-github-event", &webhook.event)
            .header(
                "x-hub-signature-256",
                signature(&self.secret, &webhook.body),
            )
            .body(webhook.body.clone())
    }

    /// One request.
    pub async fn post(&self, webhook: &Webhook) -> Sent {
        self.post_within(webhook, POST_DEADLINE).await
    }

    /// One request; without an answer at `deadline` there is none.
    pub async fn post_within(&self, webhook: &Webhook, deadline: Duration) -> Sent {
        let request = self.request(webhook).timeout(deadline);
        let (status, failure) = match request.send().await {
            Ok(answer) => (Some(answer.status().as_u16()), String::new()),
            Err(error) => (None, format!("{error:?}")),
        };
        Sent {
            delivery_id: webhook.delivery_id.clone(),
            body_sha256: sha256(&webhook.body),
            status,
            failure,
            at_ms: crate::now_ms(),
        }
    }

    /// All of them, in this order, as concurrently as allowed. Nothing is sent again.
    pub async fn post_all(&self, webhooks: Vec<Webhook>) -> Vec<Sent> {
        let room = Arc::new(Semaphore::new(self.concurrency));
        let start = Instant::now();
        let mut posts = JoinSet::new();
        let mut sent = Vec::with_capacity(webhooks.len());
        for (number, webhook) in webhooks.into_iter().enumerate() {
            if let Some(per_second) = self.per_second {
                sleep_until(start + Duration::from_secs(1) * number as u32 / per_second).await;
            }
            let permit = Arc::clone(&room)
                .acquire_owned()
                .await
                .expect("never closed");
            let sender = self.clone();
            posts.spawn(async move {
                let sent = sender.post(&webhook).await;
                drop(permit);
                sent
            });
            while let Some(done) = posts.try_join_next() {
                sent.push(done.expect("a post does not panic"));
            }
        }
        while let Some(done) = posts.join_next().await {
            sent.push(done.expect("a post does not panic"));
        }
        sent
    }
}

/// `x-hub-signature-256` as GitHub documents it.
pub fn signature(secret: &[u8], body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    mac.update(body);
    format!("sha256={}", hex::encode(mac.finalize().into_bytes()))
}

/// SHA-256, hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    /// The example of GitHub's documentation.
    #[test]
    fn signs_as_github_documents() {
        let signature = super::signature(b"It's a Secret to Everybody", b"Hello, World!");
        assert_eq!(
            signature,
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        );
    }
}
