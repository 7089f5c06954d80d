//! `destinations.<name>.auth` and `.headers`: what a receiver wants to see besides the signature.

use super::TlsConfig;
use http::{HeaderName, HeaderValue, header};
use runtime::{Problem, SecretRef};
use schemas::header as names;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use url::Url;

/// Static headers of a destination; a request's head must stay one that servers take.
const HEADERS_MAX: usize = 32;

/// How a request says who we are. Exactly one of the three.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// `authorization: Bearer <secret>`.
    pub bearer: Option<SecretRef>,
    /// `authorization: Basic …` (RFC 7617).
    pub basic: Option<BasicConfig>,
    /// A token that is fetched and kept for its life (RFC 6749 section 4.4).
    pub oauth2: Option<OAuth2Config>,
}

/// User and password.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BasicConfig {
    /// Without `:`.
    pub user: String,
    pub password: SecretRef,
}

/// OAuth 2.0 client credentials.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuth2Config {
    /// Where tokens are fetched. The destination's rules of addresses, ports, http and proxy hold for it too.
    pub token_url: Url,
    pub client_id: String,
    pub client_secret: SecretRef,
    /// Where the request for a token has id and secret.
    #[serde(default)]
    pub client_auth: ClientAuth,
    /// Scopes, separated by spaces.
    #[serde(default)]
    pub scope: Option<String>,
    /// Sent as `audience`, which some servers want.
    #[serde(default)]
    pub audience: Option<String>,
    /// Certificates towards the token endpoint; those of the destination are for the destination only.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
}

/// RFC 6749 section 2.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuth {
    /// In the `authorization` header.
    #[default]
    Basic,
    /// In the body.
    Post,
}

/// The value of a static header.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "a text, or a place such as { env = \"NAME\" } or { file = \"path\" }"
)]
pub enum HeaderText {
    Text(String),
    Secret(SecretRef),
}

// === impl AuthConfig ===

impl AuthConfig {
    /// Mistakes in this table, under the key path `key`. Those of `token_url` as a URL are the destination's to find.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let given = [
            self.bearer.is_some(),
            self.basic.is_some(),
            self.oauth2.is_some(),
        ];
        if given.iter().filter(|given| **given).count() != 1 {
            let message = "give exactly one of `bearer`, `basic` and `oauth2`";
            problems.push(Problem::new(key, message));
        }
        if let Some(basic) = &self.basic
            && (basic.user.contains(':') || basic.user.chars().any(char::is_control))
        {
            let message = "must not contain `:` or control characters (RFC 7617)";
            problems.push(Problem::new(format!("{key}.basic.user"), message));
        }
        if let Some(oauth2) = &self.oauth2 {
            if oauth2.client_id.is_empty() {
                let key = format!("{key}.oauth2.client_id");
                problems.push(Problem::new(key, "is empty"));
            }
            if let Some(tls) = &oauth2.tls {
                problems.extend(tls.check(&format!("{key}.oauth2.tls")));
            }
        }
        problems
    }
}

/// Mistakes in static headers, under the key path `key`. `authorized`: there is an `auth` table.
pub(super) fn check_headers(
    headers: &BTreeMap<String, HeaderText>,
    authorized: bool,
    key: &str,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut wrong = |name: &str, message: &str| {
        problems.push(Problem::new(format!("{key}.{name}"), message));
    };
    let mut seen = BTreeSet::new();
    for (name, text) in headers {
        let Ok(parsed) = HeaderName::from_bytes(name.as_bytes()) else {
            wrong(name, "is no name of a header");
            continue;
        };
        if parsed == header::AUTHORIZATION && authorized {
            wrong(name, "is set by `auth`");
        } else if is_ours(&parsed) {
            wrong(name, "is set by this program or belongs to the connection");
        }
        if !seen.insert(parsed.as_str().to_owned()) {
            wrong(
                name,
                "is there twice: case does not matter in names of headers",
            );
        }
        if let HeaderText::Text(text) = text
            && HeaderValue::from_str(text).is_err()
        {
            wrong(name, "has a character that a header can not have");
        }
    }
    if headers.len() > HEADERS_MAX {
        problems.push(Problem::new(key, format!("at most {HEADERS_MAX} headers")));
    }
    problems
}

/// Headers that a config can not set: of the connection, of the message's framing, of our own signature and of traces.
fn is_ours(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "host"
            | "content-length"
            | "content-type"
            | "content-encoding"
            | "accept-encoding"
            | "expect"
            | "traceparent"
            | "tracestate"
            | "baggage"
            | names::WEBHOOK_ID
            | names::WEBHOOK_TIMESTAMP
            | names::WEBHOOK_SIGNATURE
            | names::WEBHOOK_ATTEMPT
            | names::WEBHOOK_EVENT_TYPE
            | names::IDEMPOTENCY_KEY
    )
}
