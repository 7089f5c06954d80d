//! Bodies of webhooks: generated GitHub-like ones, and the real examples that GitHub's schemas are made of.

use crate::{random::SplitMix, sender::Webhook, stack::cache};
use bytes::Bytes;
use serde_json::{Value, json};

/// Version of `@octokit/webhooks-examples` that `tests/setup data` fetches.
const EXAMPLES_VERSION: &str = "7.6.1";

/// `count` webhooks with unlike bodies of 1 to 30 KB; the same `seed` gives the same ones.
pub fn generated(seed: u64, count: usize) -> Vec<Webhook> {
    let mut random = SplitMix::new(seed);
    (0..count)
        .map(|number| {
            let bytes = 1_000 + (random.draw() % 29_000) as usize;
            let body = json!({
                "ref": "refs/heads/main",
                "number": number,
                "repository": { "full_name": "octo/hello-wörld", "id": random.draw() },
                "message": filler(&mut random, bytes),
            });
            Webhook {
                delivery_id: format!("{:016x}-{number:05}", random.draw()),
                event: "push".into(),
                body: Bytes::from(body.to_string()),
            }
        })
        .collect()
}

/// Every example payload, serialised anew, with its event name.
///
/// # Panics
/// When the examples are not there: `tests/setup data` fetches them.
pub fn examples() -> Vec<Webhook> {
    let path = cache()
        .join("payloads")
        .join(EXAMPLES_VERSION)
        .join("index.json");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run tests/setup data", path.display()));
    let events: Vec<Value> = serde_json::from_str(&text).expect("the examples are JSON");
    let mut webhooks = Vec::new();
    for event in &events {
        let name = event["name"].as_str().expect("an event has a name");
        for example in event["examples"].as_array().expect("an event has examples") {
            webhooks.push(Webhook {
                delivery_id: format!("example-{:03}", webhooks.len()),
                event: name.into(),
                // GitHub sends compact JSON with escapes of its own; odd spacing shows that nobody serialises again.
                body: Bytes::from(format!(" {example:#}\r\n")),
            });
        }
    }
    webhooks
}

/// Text that does not compress to nothing.
fn filler(random: &mut SplitMix, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(&format!("{:016x}", random.draw()));
    }
    text.truncate(bytes);
    text
}
