//! Tokens by client credentials (RFC 6749 section 4.4), kept for their life.

use super::{
    auth,
    client::{Connections, Place},
    failure::Failure,
};
use crate::config::{ClientAuth, DestinationConfig, OAuth2Config};
use http::{HeaderValue, header};
use reqwest::{Client, RequestBuilder};
use runtime::{Problem, Secret, addresses::Dns};
use serde::Deserialize;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

/// An answer with more is none.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Of a token whose life is not told.
const LIFE_UNKNOWN: Duration = Duration::from_secs(300);
const LIFE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// A token is fetched again this long before its end, or a fifth of a short life: it must outlive the attempt.
const MARGIN_MAX: Duration = Duration::from_secs(60);
/// A token endpoint that fails is asked once in this time; meanwhile attempts fail with what it said.
const FAILURE_KEPT: Duration = Duration::from_secs(1);
/// Says whose failure it is.
const PREFIX: &str = "no token, so the receiver was not asked: ";

/// One destination's tokens.
#[derive(Debug)]
pub(super) struct OAuth2 {
    connections: Connections,
    client_id: String,
    client_secret: Secret,
    client_auth: ClientAuth,
    scope: Option<String>,
    audience: Option<String>,
    /// One fetch at a time.
    fetching: Semaphore,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    token: Option<Token>,
    failed: Option<(Failure, Instant)>,
    /// Number of the token fetched last.
    number: u64,
}

#[derive(Clone, Debug)]
struct Token {
    value: HeaderValue,
    until: Instant,
    number: u64,
}

/// A token for one attempt.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) value: HeaderValue,
    number: u64,
    /// Fetched for this attempt, so it is not its age that a receiver refuses.
    pub(super) is_fresh: bool,
}

#[derive(Deserialize)]
struct Answer {
    access_token: String,
    token_type: String,
    #[serde(default)]
    expires_in: Option<Seconds>,
}

/// Some servers write the number as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

// === impl OAuth2 ===

impl OAuth2 {
    /// Reads the secret and builds the client.
    ///
    /// # Errors
    /// Every problem found, with its key path.
    pub(super) fn open(
        config: &DestinationConfig,
        oauth2: &OAuth2Config,
        place: Place<'_>,
        dns: &Dns,
    ) -> Result<Self, Vec<Problem>> {
        let url = (&oauth2.token_url, "auth.oauth2.token_url");
        let tls = (oauth2.tls.as_ref(), "auth.oauth2.tls");
        let connections = Connections::open(config, url, tls, place, dns);
        let key = format!("{}.auth.oauth2.client_secret", place.key);
        let client_secret = auth::open(&oauth2.client_secret, place, key, |_| true);
        match (connections, client_secret) {
            (Ok(connections), Ok(client_secret)) => Ok(Self {
                connections,
                client_id: oauth2.client_id.clone(),
                client_secret,
                client_auth: oauth2.client_auth,
                scope: oauth2.scope.clone(),
                audience: oauth2.audience.clone(),
                fetching: Semaphore::new(1),
                known: Mutex::default(),
            }),
            (connections, secret) => {
                let mut problems = connections.err().unwrap_or_default();
                problems.extend(secret.err().unwrap_or_default());
                Err(problems)
            }
        }
    }

    /// A token that is good for a while, from memory or fetched.
    ///
    /// # Errors
    /// There is none by `deadline`; the text says that the receiver was not asked.
    pub(super) async fn token(&self, deadline: Instant) -> Result<Lent, Failure> {
        if let Some(known) = self.known(Instant::now()) {
            return known;
        }
        let late = || Failure::timeout().after(PREFIX);
        // Never closed, so what comes is a permit or the deadline.
        let turn = timeout_at(deadline, self.fetching.acquire()).await;
        let _turn = turn.map_err(|_late| late())?;
        // Somebody else has fetched it meanwhile.
        if let Some(known) = self.known(Instant::now()) {
            return known;
        }
        let fetched = timeout_at(deadline, self.fetch()).await;
        let fetched = fetched.unwrap_or_else(|_late| Err(Failure::timeout()));
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match fetched {
            Ok((value, life)) => {
                known.number += 1;
                let token = Token {
                    value,
                    until: now + life.saturating_sub(MARGIN_MAX.min(life / 5)),
                    number: known.number,
                };
                known.token = Some(token.clone());
                known.failed = None;
                Ok(Lent::new(token, true))
            }
            Err(failure) => {
                let failure = failure.after(PREFIX);
                known.failed = Some((failure.clone(), now + FAILURE_KEPT));
                Err(failure)
            }
        }
    }

    /// A token that the receiver answered 401 to is not lent again.
    pub(super) fn refused(&self, lent: &Lent) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.token.take_if(|token| token.number == lent.number);
    }

    fn known(&self, now: Instant) -> Option<Result<Lent, Failure>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = &known.token
            && now < token.until
        {
            return Some(Ok(Lent::new(token.clone(), false)));
        }
        match &known.failed {
            Some((failure, until)) if now < *until => Some(Err(failure.clone())),
            Some(_) | None => None,
        }
    }

    async fn fetch(&self) -> Result<(HeaderValue, Duration), Failure> {
        let response = self.request(&self.connections.ready()?)?.send().await;
        let mut response = response.map_err(|error| Failure::of(&error.without_url()))?;
        let status = response.status().as_u16();
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| Failure::of(&e))? {
            if answer.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Failure::new(format!("http status {status}, too long")));
            }
            answer.extend_from_slice(&chunk);
        }
        read(status, &answer)
    }

    fn request(&self, client: &Client) -> Result<RequestBuilder, Failure> {
        let mut request = client
            .post(self.connections.url.clone())
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        let secret = String::from_utf8(self.client_secret.with(<[u8]>::to_vec))
            .map_err(|_secret| Failure::new("the client's secret is no text"))?;
        match self.client_auth {
            ClientAuth::Basic => {
                let (id, secret) = (encoded(&self.client_id), encoded(&secret));
                let value = auth::basic(id.as_bytes(), secret.as_bytes());
                let value =
                    value.map_err(|_unusable| Failure::new("the client's id is no text"))?;
                request = request.header(header::AUTHORIZATION, value);
            }
            ClientAuth::Post => {
                form.append_pair("client_id", &self.client_id);
                form.append_pair("client_secret", &secret);
            }
        }
        for (name, value) in [("scope", &self.scope), ("audience", &self.audience)] {
            if let Some(value) = value {
                form.append_pair(name, value);
            }
        }
        Ok(request.body(form.finish()))
    }
}

// === impl Lent ===

impl Lent {
    fn new(token: Token, is_fresh: bool) -> Self {
        Self {
            value: token.value,
            number: token.number,
            is_fresh,
        }
    }
}

/// The token and its life (RFC 6749 sections 5.1 and 5.2). What is said of an answer is its status and, when it is one of the
/// short words of the RFC, its `error`: the rest may quote what was sent.
fn read(status: u16, answer: &[u8]) -> Result<(HeaderValue, Duration), Failure> {
    if status != 200 {
        let refusal = serde_json::from_slice::<Refusal>(answer);
        let is_word = |error: &String| {
            (1..=40).contains(&error.len())
                && error
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let word = refusal.map(|refusal| refusal.error).ok().filter(is_word);
        let word = word.map(|word| format!(" ({word})")).unwrap_or_default();
        return Err(Failure::new(format!("http status {status}{word}")));
    }
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|_quoting| Failure::new("http status 200, but what came is no token"))?;
    if !answer.token_type.eq_ignore_ascii_case("bearer") {
        return Err(Failure::new("the token is of a type that is not known"));
    }
    if answer.access_token.is_empty() {
        return Err(Failure::new("http status 200, but the token is empty"));
    }
    let value = auth::bearer(answer.access_token.as_bytes())
        .map_err(|_unusable| Failure::new("the token can not stand in a header"))?;
    let told_s = match answer.expires_in {
        Some(Seconds::Number(seconds)) => Some(seconds),
        Some(Seconds::Text(text)) => text.trim().parse().ok(),
        None => None,
    };
    let life = told_s.map(|seconds: f64| {
        Duration::try_from_secs_f64(seconds.clamp(0.0, LIFE_MAX.as_secs_f64())).unwrap_or_default()
    });
    Ok((value, life.unwrap_or(LIFE_UNKNOWN)))
}

/// RFC 6749 section 2.3.1: id and secret are form-encoded before they are joined.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_token_endpoint() {
        let life = |answer: &str| read(200, answer.as_bytes()).unwrap().1.as_secs();
        let with = |rest: &str| format!(r#"{{"access_token":"a.b","token_type":"bEARER"{rest}}}"#);
        assert_eq!(life(&with("")), 300);
        assert_eq!(life(&with(r#","expires_in":3600,"scope":"x""#)), 3_600);
        assert_eq!(life(&with(r#","expires_in":"90""#)), 90);
        assert_eq!(life(&with(r#","expires_in":1e300"#)), 86_400);
        assert_eq!(life(&with(r#","expires_in":-5"#)), 0);
        assert_eq!(life(&with(r#","expires_in":"soon""#)), 300);
        let (value, _) = read(200, with("").as_bytes()).unwrap();
        assert_eq!(value.as_bytes(), b"Bearer a.b");
        assert!(value.is_sensitive());

        let detail = |status, answer: &str| read(status, answer.as_bytes()).unwrap_err().detail;
        let text = r#"{"error":"invalid_client","error_description":"hunter2 is wrong"}"#;
        assert_eq!(detail(401, text), "http status 401 (invalid_client)");
        assert_eq!(detail(400, r#"{"error":"hunter2"}"#), "http status 400");
        assert_eq!(detail(302, ""), "http status 302");
        for answer in [
            "",
            "<html>",
            "[]",
            r#"{"access_token":1,"token_type":"bearer"}"#,
            r#"{"access_token":"a"}"#,
            r#"{"access_token":"","token_type":"bearer"}"#,
            r#"{"access_token":"a\nb","token_type":"bearer"}"#,
            r#"{"access_token":"hunter2","token_type":"mac"}"#,
        ] {
            let detail = detail(200, answer);
            assert!(!detail.contains("hunter2"), "{detail}");
        }
    }

    #[test]
    fn ids_and_secrets_are_encoded_before_they_are_joined() {
        assert_eq!(encoded("a:b c+é"), "a%3Ab+c%2B%C3%A9");
    }
}
