//! A delivery: the obligation to get one webhook to one destination, as it waits in a delay tier.

use crate::webhook::Webhook;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Entries kept in [`Delivery::history`]: the first attempt and the last ones. Bounds the record.
pub const HISTORY_MAX: usize = 10;

/// Identity of a delivery. The claims are kept under it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryKey {
    /// Configured name of the sender.
    pub source: String,
    /// The sender's id of the webhook.
    pub delivery_id: String,
    /// Configured name of the receiver.
    pub destination: String,
}

/// A delivery on its way through the delay tiers. Value of `<p>.delay.<tier>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The webhook to deliver, body inline.
    pub webhook: Webhook,
    /// Configured name of the receiver.
    pub destination: String,
    /// Number of the attempt that this record asks for, from 1. A deferral keeps it, a retry adds one.
    pub attempt: u32,
    /// 0 for the first life of the delivery, +1 each time an ended one is opened again.
    pub generation: u32,
    /// Claim token of the attempt that scheduled this record; none when no attempt was made yet.
    #[serde(with = "crate::wire::optional_uuid")]
    pub fence: Option<Uuid>,
    /// Not before this time, milliseconds since the Unix epoch. Jitter is already in it.
    #[serde(rename = "due_at")]
    pub due_at_ms: i64,
    /// How often the record was put off because its destination had no room, without an attempt.
    pub deferred: u32,
    /// What earlier attempts came to, oldest first, at most [`HISTORY_MAX`].
    pub history: Vec<AttemptSummary>,
}

/// What one attempt came to, small enough to travel with the delivery. Never holds a response body or a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptSummary {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The claim token: id of the attempt in logs and traces.
    #[serde(with = "crate::wire::uuid")]
    pub token: Uuid,
    /// Start, milliseconds since the Unix epoch.
    #[serde(rename = "started_at")]
    pub started_at_ms: i64,
    /// From the start to the end of the answer, milliseconds.
    pub duration_ms: u32,
    /// What it came to.
    pub outcome: OutcomeKind,
    /// HTTP status, when an answer came.
    pub status: Option<u16>,
    /// Short cause for people, at most 200 characters, e.g. `connect: connection refused`.
    pub detail: String,
}

/// Kind of an attempt's outcome; the string form is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// 2xx.
    Delivered,
    /// A permanent refusal: 3xx or 4xx other than those below.
    Rejected,
    /// 410.
    Gone,
    /// 429, or 503 with Retry-After.
    Throttled,
    /// 408, 425, 5xx, a timeout or a transport error.
    Failed,
    /// The destination's address may not be dialled.
    Blocked,
    /// The dispatcher ended in mid-attempt; nobody knows what the receiver saw.
    Interrupted,
    /// A symbol that this version does not know.
    Unknown,
}

/// Which ended deliveries a later repeat of the webhook opens again (GitHub's "Redeliver" sends the same id). A setting of
/// the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reopen {
    /// Those that failed because their attempts or their age were used up.
    #[default]
    Exhausted,
    /// All that failed.
    AnyFailed,
    /// None.
    Never,
}

// === impl DeliveryKey ===

impl std::fmt::Display for DeliveryKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}/{}/{}",
            self.source, self.delivery_id, self.destination
        )
    }
}

// === impl Delivery ===

impl Delivery {
    /// The first life of a delivery, made of a webhook read from `<p>.webhooks`: attempt 1, no fence, due at once.
    pub fn first(webhook: Webhook, destination: &str) -> Self {
        Self {
            generation: webhook.generation,
            due_at_ms: webhook.received_at_ms,
            webhook,
            destination: destination.to_owned(),
            attempt: 1,
            fence: None,
            deferred: 0,
            history: Vec::new(),
        }
    }

    /// The key that the claim is kept under.
    pub fn key(&self) -> DeliveryKey {
        DeliveryKey {
            source: self.webhook.source.clone(),
            delivery_id: self.webhook.delivery_id.clone(),
            destination: self.destination.clone(),
        }
    }

    /// Adds an attempt to the history; past [`HISTORY_MAX`] the second oldest goes, so the first one is always kept.
    pub fn push_history(&mut self, summary: AttemptSummary) {
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(1);
        }
        self.history.push(summary);
    }
}

// === impl OutcomeKind ===

impl OutcomeKind {
    /// Stable name, as on the wire, in logs and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Rejected => "rejected",
            Self::Gone => "gone",
            Self::Throttled => "throttled",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Interrupted => "interrupted",
            Self::Unknown => "unknown",
        }
    }
}
