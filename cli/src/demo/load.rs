//! What the demo sends: GitHub-like webhooks, some twice, some forged, all from one seed.

use super::oracle::{Answer, Tally};
use crate::sender::{self, client, signature};
use anyhow::Context;
use futures::StreamExt;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use runtime::Clock;
use sha2::{Digest, Sha256};
use std::{sync::Arc, time::Duration};

/// The webhook secret that sender and pipeline share.
pub(crate) const SECRET: &str = "demo-secret-between-sender-and-pipeline";
/// Requests at once.
const CONCURRENCY: usize = 32;
/// Every so many webhooks are sent twice, or forged.
const REPEAT_EVERY: u32 = 10;
const FORGE_EVERY: u32 = 50;
/// Size of the bodies, bytes.
const BODY_BYTES: std::ops::Range<usize> = 1_000..30_000;
/// A sender that gets no 2xx tries again this often, as GitHub does not but a person would.
const TRIES: u32 = 5;

/// Everything that is sent, in order.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The genuine webhooks.
    pub webhooks: Vec<Genuine>,
    requests: Vec<Request>,
}

/// A genuine webhook, as the oracle needs it.
#[derive(Debug)]
pub(crate) struct Genuine {
    pub delivery_id: String,
    pub event: &'static str,
    /// SHA-256 of the body.
    pub digest: [u8; 32],
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    webhook: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    First,
    Repeat,
    Forged,
}

/// Event types and how many of a hundred webhooks have them. The routes of the demo go by these.
const EVENTS: [(&str, u32); 5] = [
    ("push", 60),
    ("pull_request", 15),
    ("issues", 15),
    ("release", 5),
    ("deployment", 5),
];

/// Sends everything.
///
/// # Errors
/// When no client can be built.
pub(crate) async fn send(
    plan: Arc<Plan>,
    tally: Arc<Tally>,
    url: String,
    clock: Clock,
) -> anyhow::Result<()> {
    let client = client().context("no HTTP client")?;
    let sent = futures::stream::iter(plan.requests.iter().copied()).map(|request| {
        let (plan, tally, client) = (&plan, &tally, &client);
        let (url, clock) = (url.as_str(), &clock);
        async move {
            let Some(genuine) = plan.webhooks.get(request.webhook) else {
                return;
            };
            let begun_at_ms = clock.now_ms();
            let status = post(client, url, genuine, request.kind).await;
            tally.note(Answer {
                webhook: request.webhook,
                repeat: request.kind == Kind::Repeat,
                forged: request.kind == Kind::Forged,
                status,
                begun_at_ms,
            });
        }
    });
    sent.buffer_unordered(CONCURRENCY).collect::<()>().await;
    Ok(())
}

async fn post(client: &reqwest::Client, url: &str, genuine: &Genuine, kind: Kind) -> u16 {
    let body = body(genuine.event, genuine.seed);
    let secret = if kind == Kind::Forged {
        "a guess"
    } else {
        SECRET
    };
    let signature = signature(secret, &body);
    let mut status = 0;
    for _ in 0..TRIES {
        let sent = client
            .post(url)
            .header("content-type", "application/json")
            .header("user-agent", "GitHub-Hookshot/demo")
            .header("x-github-delivery", &genuine.delivery_id)
            .header("x-github-event", genuine.event)
            .header("x-hub-signature-256", &signature)
            .body(body.clone())
            .send()
            .await;
        status = sent.map_or(0, |response| response.status().as_u16());
        if (200..500).contains(&status) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    status
}

/// A body of JSON whose size and text come from its seed.
fn body(event: &str, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let size = random.random_range(BODY_BYTES);
    sender::body(event, size, &mut random)
}

// === impl Plan ===

impl Plan {
    /// `count` webhooks, a tenth of them sent twice (near each other, so that some are in work at once), a fiftieth forged
    /// beside the genuine one.
    pub(crate) fn new(count: u32, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut plan = Self {
            webhooks: Vec::new(),
            requests: Vec::new(),
        };
        for at in 0..count {
            let event = event(random.random_range(0..100));
            let seed = random.next_u64();
            plan.webhooks.push(Genuine {
                delivery_id: delivery_id(&mut random),
                event,
                digest: Sha256::digest(body(event, seed)).into(),
                seed,
            });
            let webhook = plan.webhooks.len() - 1;
            plan.requests.push(Request {
                webhook,
                kind: Kind::First,
            });
            if at % FORGE_EVERY == FORGE_EVERY - 1 {
                plan.requests.push(Request {
                    webhook,
                    kind: Kind::Forged,
                });
            }
            if at % REPEAT_EVERY == 0 {
                // Half of the repeats follow at once, half come much later.
                let again = if at % (2 * REPEAT_EVERY) == 0 {
                    webhook
                } else {
                    webhook / 2
                };
                plan.requests.push(Request {
                    webhook: again,
                    kind: Kind::Repeat,
                });
            }
        }
        plan
    }

    /// Requests of a kind that is no first one.
    pub(crate) fn repeats(&self) -> usize {
        self.requests
            .iter()
            .filter(|request| request.kind == Kind::Repeat)
            .count()
    }

    /// Requests with a wrong signature.
    pub(crate) fn forged(&self) -> usize {
        self.requests
            .iter()
            .filter(|request| request.kind == Kind::Forged)
            .count()
    }
}

fn event(mut percent: u32) -> &'static str {
    for (name, share) in EVENTS {
        if percent < share {
            return name;
        }
        percent -= share;
    }
    EVENTS[0].0
}

/// A GUID as GitHub's deliveries have it.
fn delivery_id(random: &mut StdRng) -> String {
    uuid::Builder::from_random_bytes(random.random())
        .into_uuid()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_comes_from_the_seed() {
        let (plan, again) = (Plan::new(500, 7), Plan::new(500, 7));
        assert_eq!(plan.webhooks[99].digest, again.webhooks[99].digest);
        assert_ne!(
            plan.webhooks[99].digest,
            Plan::new(500, 8).webhooks[99].digest
        );
        assert_eq!((plan.repeats(), plan.forged()), (50, 10));
        let size = body("push", plan.webhooks[0].seed).len();
        assert!((1_000..30_100).contains(&size));
        assert!(serde_json::from_slice::<serde_json::Value>(&body("push", 3)).is_ok());
    }
}
