//! The client of `fencepost send`.

use crate::{
    failure::Failure,
    outward::{self, causes},
};
use http::{HeaderMap, StatusCode};
use reqwest::{Client, Url};
use std::time::Duration;

/// One request, from the name's lookup to the end of the answer. Longer than the deadline of any preset.
const DEADLINE: Duration = Duration::from_secs(30);
/// Of an answer's body this much is read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Posts to one host.
#[derive(Debug)]
pub(super) struct Poster {
    client: Client,
}

/// What was answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    body: Vec<u8>,
}

// === impl Poster ===

impl Poster {
    /// Whoever types the URL may call his own machine and network, but not a cloud's metadata by mistake.
    pub(super) fn new(url: &Url) -> Result<Self, Failure> {
        let client = match outward::client(url) {
            Ok(client) => client.timeout(DEADLINE).build(),
            Err(blocked) => return Err(Failure::config("--to", blocked.to_string())),
        };
        let unbuilt = |error| format!("no client can be built: {}", causes(error));
        let client = client.map_err(|error| Failure::Unavailable(unbuilt(error)))?;
        Ok(Self { client })
    }

    /// Posts and reads the answer.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] when there is none.
    pub(super) async fn post(
        &self,
        url: Url,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<Answer, Failure> {
        let host = url.origin().ascii_serialization();
        let silent =
            |error| Failure::Unavailable(format!("no answer from {host}: {}", causes(error)));
        let request = self.client.post(url).headers(headers).body(body);
        let mut response = request.send().await.map_err(silent)?;
        let status = response.status();
        let mut body = Vec::new();
        while body.len() < ANSWER_BYTES_MAX
            && let Some(chunk) = response.chunk().await.map_err(silent)?
        {
            body.extend_from_slice(&chunk);
        }
        body.truncate(ANSWER_BYTES_MAX);
        Ok(Answer { status, body })
    }
}

// === impl Answer ===

impl Answer {
    /// Status and body, without anything that a terminal would obey.
    pub(super) fn printed(&self) -> Vec<u8> {
        let reason = self.status.canonical_reason().unwrap_or_default();
        let mut text = format!("< {} {reason}", self.status.as_u16())
            .trim_end()
            .to_owned();
        text.push('\n');
        let body = String::from_utf8_lossy(&self.body);
        text.extend(body.chars().map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => ' ',
            c => c,
        }));
        if !body.is_empty() && !body.ends_with('\n') {
            text.push('\n');
        }
        text.into_bytes()
    }
}
