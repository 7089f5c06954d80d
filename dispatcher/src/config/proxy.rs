//! `destinations.<name>.proxy`: the way out through a forward proxy.

use runtime::{Problem, SecretRef};
use serde::Deserialize;
use url::Url;

/// A forward proxy that is asked to CONNECT. Proxies named in the environment are never asked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyConfig {
    /// `http://` or `https://` (TLS to the proxy). Its address may be a private one: it is dialled because it is named here.
    pub url: Url,
    /// User at the proxy.
    #[serde(default)]
    pub user: Option<String>,
    /// The user's password.
    #[serde(default)]
    pub password: Option<SecretRef>,
}

// === impl ProxyConfig ===

impl ProxyConfig {
    /// Mistakes in this table, under the key path `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut require = |good: bool, name: &str, message: &str| {
            if !good {
                problems.push(Problem::new(format!("{key}.{name}"), message));
            }
        };
        let url = &self.url;
        let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
        require(is_http, "url", "must be http:// or https:// and a host");
        let bare = url.username().is_empty() && url.password().is_none();
        let message = "user and password do not belong into the URL; give `user` and `password`";
        require(bare, "url", message);
        let no_rest = matches!(url.path(), "" | "/") && url.query().is_none();
        require(no_rest, "url", "a path or query is never sent");
        require(
            self.user.is_some() || self.password.is_none(),
            "user",
            "is needed with `password`",
        );
        require(
            self.password.is_some() || self.user.is_none(),
            "password",
            "is needed with `user`",
        );
        let plain = |user: &String| !user.is_empty() && !user.contains([':', '\r', '\n']);
        require(
            self.user.as_ref().is_none_or(plain),
            "user",
            "must not be empty nor contain `:` or line ends",
        );
        problems
    }
}
