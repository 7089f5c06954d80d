//! Calls of GitHub's REST API: one at a time, each with a deadline, repeated within limits.

use super::{
    answer::{self, Page, Verdict},
    config::ReconcileConfig,
    progress::Progress,
};
use crate::outward::{self, causes};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use reqwest::{Client, Url};
use runtime::{Clock, Problem, Secret};
use std::{path::Path, time::Duration};

/// One request with its whole answer.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A page of 100 deliveries has about 50 KiB.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Of what GitHub says when it refuses.
const MESSAGE_CHARS_MAX: usize = 200;
const PAGE_DELIVERIES: &str = "100";

/// Tries of one call while GitHub, or the way to it, is in trouble.
const TRIES_MAX: u32 = 5;
const BACKOFF_BASE: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Rate limits that one call sits out.
const LIMITS_MAX: u32 = 5;
/// The longest that one of them is sat out.
const LIMIT_WAIT_MAX: Duration = Duration::from_secs(15 * 60);
/// When GitHub does not say how long: at least a minute, then longer and longer, says its documentation.
const LIMIT_WAIT: Duration = Duration::from_secs(60);

/// The version of the API that this was written for, <https://docs.github.com/rest/about-the-rest-api/api-versions>.
const API_VERSION: (&str, &str) = ("x-github-api-version", "2022-11-28");
const USER_AGENT: &str = concat!("fencepost/", env!("CARGO_PKG_VERSION"));

/// GitHub's API, as one token sees it.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    base: Url,
    token: Secret,
    clock: Clock,
    progress: Progress,
}

/// Why a call came to nothing. Never with the token.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// It would be refused next time as well.
    #[error("{status}{}{message}", separator(.message))]
    Refused { status: StatusCode, message: String },
    /// A rate limit that is too long to be sat out, or came too often.
    #[error("rate limit{}", .wait.map_or_else(String::new, |wait| format!(" for another {} s", wait.as_secs())))]
    Limited { wait: Option<Duration> },
    /// No success in any try.
    #[error("no answer in {TRIES_MAX} tries: {0}")]
    Down(String),
    /// The request was sent, and may have been obeyed.
    #[error("no answer: {0}")]
    Unanswered(String),
    /// An answer that makes no sense.
    #[error("unexpected answer: {0}")]
    Malformed(String),
    /// What is kept as the token can not stand in a header.
    #[error("the token has characters that no token has")]
    Token,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// A request without an answer.
enum Fault {
    /// Nothing left this machine.
    Unsent(String),
    Unanswered(String),
    Token,
    TooLong,
}

// === impl Api ===

impl Api {
    /// Reads the token; relative paths start at `base`.
    ///
    /// # Errors
    /// What is wrong with the table at `key`.
    pub(super) fn open(
        config: &ReconcileConfig,
        key: &str,
        base: &Path,
        clock: Clock,
        progress: Progress,
    ) -> Result<Self, Vec<Problem>> {
        let wrong =
            |field: &str, message: String| vec![Problem::new(format!("{key}.{field}"), message)];
        let url = config.base().map_err(|message| wrong("api_url", message))?;
        let token =
            Secret::open(&config.token, base).map_err(|error| wrong("token", error.to_string()))?;
        if !token.usable_at(clock.now_ms()) {
            return Err(wrong("token", "its `not_after` has passed".to_owned()));
        }
        let client = outward::client(&url)
            .map_err(|blocked| wrong("api_url", blocked.to_string()))?
            .https_only(url.scheme() != "http")
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_DEADLINE)
            .timeout(CALL_DEADLINE)
            .build();
        let unbuilt = |error| format!("no client can be built: {}", causes(error));
        let client = client.map_err(|error| wrong("api_url", unbuilt(error)))?;
        Ok(Self {
            client,
            base: url,
            token,
            clock,
            progress,
        })
    }

    /// A page of a hook's deliveries, from `cursor` or the newest on.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub(super) async fn list(&self, hook: &str, cursor: Option<&str>) -> Result<Page, ApiError> {
        let mut url = self.url(&format!("{hook}/deliveries"));
        url.query_pairs_mut()
            .append_pair("per_page", PAGE_DELIVERIES);
        if let Some(cursor) = cursor {
            url.query_pairs_mut().append_pair("cursor", cursor);
        }
        let answer = self.call(&Method::GET, &url).await?;
        answer::page(&answer.headers, &answer.body).map_err(ApiError::Malformed)
    }

    /// Asks for another attempt of a delivery.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub(super) async fn redeliver(&self, hook: &str, id: u64) -> Result<(), ApiError> {
        let url = self.url(&format!("{hook}/deliveries/{id}/attempts"));
        self.call(&Method::POST, &url).await.map(drop)
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        let prefix = self.base.path().trim_end_matches('/');
        url.set_path(&format!("{prefix}/{path}"));
        url
    }

    async fn call(&self, method: &Method, url: &Url) -> Result<Answer, ApiError> {
        let (mut failures, mut limits) = (0, 0);
        loop {
            let (failed, limited) = match self.once(method, url).await {
                Ok(answer) => {
                    let now_ms = self.clock.now_ms();
                    match answer::verdict(answer.status, &answer.headers, &answer.body, now_ms) {
                        Verdict::Fine => return Ok(answer),
                        Verdict::Refused => return Err(self.refused(&answer)),
                        Verdict::Again => (Some(answer.status.to_string()), None),
                        Verdict::Limited(wait) => (None, wait),
                    }
                }
                Err(Fault::Token) => return Err(ApiError::Token),
                Err(Fault::TooLong) => {
                    let message = format!("longer than {ANSWER_BYTES_MAX} bytes");
                    return Err(ApiError::Malformed(message));
                }
                Err(Fault::Unanswered(cause)) if *method != Method::GET => {
                    return Err(ApiError::Unanswered(cause));
                }
                Err(Fault::Unsent(cause) | Fault::Unanswered(cause)) => (Some(cause), None),
            };
            let pause = if let Some(cause) = failed {
                failures += 1;
                let jitter = rand::random_range(0.0..1.0);
                after_failure(failures, jitter).ok_or(ApiError::Down(cause))?
            } else {
                limits += 1;
                let pause = after_limit(limited, limits);
                let pause = pause.ok_or(ApiError::Limited { wait: limited })?;
                self.progress.pausing(pause);
                pause
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn once(&self, method: &Method, url: &Url) -> Result<Answer, Fault> {
        let authorization = self.token.with(|token| {
            let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat()).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let request = self
            .client
            .request(method.clone(), url.clone())
            .header(header::ACCEPT, "application/vnd.github+json")
            .header(API_VERSION.0, API_VERSION.1)
            .header(header::AUTHORIZATION, authorization.ok_or(Fault::Token)?);
        let mut response = request.send().await.map_err(|error| {
            let unsent = error.is_connect();
            let cause = causes(error);
            if unsent {
                Fault::Unsent(cause)
            } else {
                Fault::Unanswered(cause)
            }
        })?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut body = BytesMut::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > ANSWER_BYTES_MAX => {
                    return Err(Fault::TooLong);
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Err(Fault::Unanswered(causes(error))),
            }
        }
        let body = body.freeze();
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    /// A proxy may show what it was sent; the token is taken out of it.
    fn refused(&self, answer: &Answer) -> ApiError {
        let message = answer::message(&answer.body);
        let message = self.token.with(|token| match std::str::from_utf8(token) {
            Ok(token) => message.replace(token, "[token]"),
            Err(_) => message,
        });
        ApiError::Refused {
            status: answer.status,
            message: message.chars().take(MESSAGE_CHARS_MAX).collect(),
        }
    }
}

// === impl ApiError ===

impl ApiError {
    /// What to look at when a hook can not be listed. GitHub answers 404 for what the token may not see.
    pub(super) fn advice(&self) -> &'static str {
        let Self::Refused { status, .. } = self else {
            return "";
        };
        match status.as_u16() {
            401 => "; the token is wrong or has expired (`app/hook` needs a JWT of the app)",
            403 | 404 => {
                "; there is no such hook, or the token may not read and write webhooks there"
            }
            300..=399 => "; redirects are not followed: has it been renamed?",
            _ => "",
        }
    }
}

/// The pause after the `failures`th failure; `jitter` is in 0 to 1. None: enough.
fn after_failure(failures: u32, jitter: f64) -> Option<Duration> {
    if failures >= TRIES_MAX {
        return None;
    }
    let longest = BACKOFF_BASE
        .saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)))
        .min(BACKOFF_MAX);
    Some(longest.mul_f64(0.5 + jitter / 2.0))
}

/// The pause after the `limits`th rate limit of a call; `told` is how long GitHub wants us to wait. None: too long, or enough.
fn after_limit(told: Option<Duration>, limits: u32) -> Option<Duration> {
    let longer = 2_u32.saturating_pow(limits.saturating_sub(1));
    let wait = told.unwrap_or_else(|| LIMIT_WAIT.saturating_mul(longer));
    (limits <= LIMITS_MAX && wait <= LIMIT_WAIT_MAX).then_some(wait)
}

fn separator(message: &str) -> &'static str {
    if message.is_empty() { "" } else { ": " }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_pause_longer_and_end() {
        for (failures, least_ms, most_ms) in [(1, 250, 500), (2, 500, 1_000), (4, 2_000, 4_000)] {
            let ms = |jitter| after_failure(failures, jitter).map(|pause| pause.as_millis());
            assert_eq!((ms(0.0), ms(1.0)), (Some(least_ms), Some(most_ms)));
        }
        assert_eq!(after_failure(TRIES_MAX, 0.5), None);
    }

    #[test]
    fn limits_are_sat_out_within_bounds() {
        let seconds = Duration::from_secs;
        assert_eq!(after_limit(Some(seconds(7)), 3), Some(seconds(7)));
        assert_eq!(after_limit(None, 1), Some(seconds(60)));
        assert_eq!(after_limit(None, 3), Some(seconds(240)));
        assert_eq!(after_limit(Some(seconds(900)), 1), Some(seconds(900)));
        assert_eq!(after_limit(Some(seconds(901)), 1), None);
        assert_eq!(after_limit(Some(seconds(0)), 6), None);
        assert_eq!(after_limit(None, 40), None);
    }
}
