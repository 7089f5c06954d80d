//! A body that comes again under another delivery id.
//!
//! Where a sender does not sign its delivery ids (GitHub, Shopify and others), whoever has captured one signed request can send it
//! again under ids that nobody has seen, and every one of them would be a delivery of its own. For sources with a
//! `replay_window` a delivery therefore has a second row in the store before it has its claim: named after its body, held by a
//! token that is made of its delivery id, with the window as the lease. The claim's own state machine does the rest: the same
//! id finds its own token and goes on, another id finds the row busy until the window has passed.

use super::{Infra, Job, Path, millis, wait};
use crate::send::Send;
use dedup_store::{Claim, ClaimAsk, Reopen, Store};
use event_log::EventLog;
use schemas::DeliveryKey;
use sha2::{Digest, Sha256};
use std::time::Duration;
use uuid::Uuid;

/// Whether the job's body has been seen under another id within the source's window.
///
/// # Errors
/// See [`Infra`].
pub(super) async fn is_replay<L: EventLog, S: Store, H: Send>(
    path: &Path<L, S, H>,
    job: &Job,
) -> Result<bool, Infra> {
    let webhook = &job.delivery.webhook;
    let policy = path.sources.get(&webhook.source);
    let Some(window) = policy.and_then(|policy| policy.replay_window) else {
        return Ok(false);
    };
    // What an attempt has scheduled, or was put off, was let through before; by now the window may have passed, and the row be
    // another id's.
    if job.delivery.fence.is_some() || job.delivery.deferred > 0 {
        return Ok(false);
    }
    let ask = ask(&job.delivery.key(), &webhook.body, window);
    let answer = wait::insist(path, job, || path.store.claim(&ask, path.clock.now_ms())).await?;
    Ok(!matches!(answer, Claim::Claimed(_)))
}

/// What is asked of the store for the body of the delivery `key`.
fn ask(key: &DeliveryKey, body: &[u8], window: Duration) -> ClaimAsk {
    let mut hash = Sha256::new();
    hash.update(b"fencepost replay window\0");
    hash.update(key.delivery_id.as_bytes());
    let mut token = [0; 16];
    for (to, from) in token.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    ClaimAsk {
        key: DeliveryKey {
            source: key.source.clone(),
            // No delivery's own: a sender's id with this text would have to be the hash of what it is the hash of.
            delivery_id: format!("body-sha256-{}", hex::encode(Sha256::digest(body))),
            destination: key.destination.clone(),
        },
        token: Uuid::from_bytes(token),
        lease_ms: millis(window),
        skew_margin_ms: 0,
        attempt: 1,
        fence: None,
        generation: 0,
        received_at_ms: 0,
        reopen: Reopen::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_is_the_body_s_and_the_token_the_id_s() {
        let key = |id: &str| DeliveryKey {
            source: "s".to_owned(),
            delivery_id: id.to_owned(),
            destination: "d".to_owned(),
        };
        let hour = Duration::from_secs(3_600);
        let [first, again, other_id, other_body] = [
            ask(&key("a"), b"{}", hour),
            ask(&key("a"), b"{}", hour),
            ask(&key("b"), b"{}", hour),
            ask(&key("a"), b"{ }", hour),
        ];
        assert_eq!(first, again);
        assert_eq!(first.key, other_id.key);
        assert_ne!(first.token, other_id.token);
        assert_ne!(first.key, other_body.key);
        assert_eq!(first.token, other_body.token);
        assert_eq!(first.lease_ms, 3_600_000);
    }
}
