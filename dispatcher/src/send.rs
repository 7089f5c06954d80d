//! The port to the receivers: one attempt out, one outcome back.

mod auth;
mod client;
mod failure;
mod headers;
pub mod http;
mod oauth2;
pub mod sign;
mod tls;

use crate::outcome::Outcome;
use schemas::Webhook;
use std::future::Future;
use uuid::Uuid;

/// Makes attempts. The real one is [`http::HttpSend`]; tests script theirs.
pub trait Send: Clone + std::marker::Send + Sync + 'static {
    /// Makes one attempt, within the destination's own deadline. Never an error: whatever happens is an outcome.
    fn send(&self, attempt: Attempt<'_>) -> impl Future<Output = Outcome> + std::marker::Send;
}

/// One attempt to be made.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Configured name of the destination.
    pub destination: &'a str,
    pub webhook: &'a Webhook,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The claim token: id of the attempt in logs and traces.
    pub token: Uuid,
}
