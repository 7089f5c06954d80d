//! `[reconcile.<source>]`: where GitHub keeps its record of a source's deliveries.

use ingest::SourceConfig;
use reqwest::Url;
use runtime::{Problem, SecretRef};
use std::{collections::BTreeMap, net::IpAddr};

/// Hooks of one source; each is listed for itself.
const HOOKS_MAX: usize = 100;

/// `[reconcile.<source>]`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReconcileConfig {
    /// Hooks that send to the source, as in GitHub's REST paths: `repos/<owner>/<repository>/hooks/<id>`,
    /// `orgs/<organisation>/hooks/<id>` or `app/hook`.
    pub hooks: Vec<String>,
    /// A token that may read and write these hooks; for `app/hook` a JWT of the app.
    pub token: SecretRef,
    /// Where the API stands; for GitHub Enterprise Server `https://<host>/api/v3`.
    #[serde(default = "github")]
    pub api_url: String,
    /// Whether the token may travel over plain HTTP to another machine.
    #[serde(default)]
    pub allow_http: bool,
}

/// What is wrong with all of them; `sources` are those that the config has.
pub(crate) fn check(
    tables: &BTreeMap<String, ReconcileConfig>,
    sources: &BTreeMap<String, SourceConfig>,
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, table) in tables {
        let key = format!("reconcile.{name}");
        match sources.get(name) {
            None => {
                let message = format!("no [sources.{name}] is configured");
                problems.push(Problem::new(&key, message));
            }
            Some(source) if !has_github_ids(source) => {
                let message = format!(
                    "sources.{name} must have a scheme of GitHub and its delivery_id and event_type: what GitHub lists is \
                     looked up by them"
                );
                problems.push(Problem::new(&key, message));
            }
            Some(_) => {}
        }
        problems.extend(table.check(&key));
    }
    problems
}

/// Whether rows of this source are kept under the id that GitHub lists.
fn has_github_ids(source: &SourceConfig) -> bool {
    let scheme = source.scheme.as_deref().unwrap_or_default();
    scheme.starts_with("github") && source.delivery_id.is_none() && source.event_type.is_none()
}

fn github() -> String {
    "https://api.github.com".to_owned()
}

// === impl ReconcileConfig ===

impl ReconcileConfig {
    /// What is wrong with it; `key` is where it stands. Reads no secret: the token may be there only where the command runs.
    pub(crate) fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |field: String, message: String| {
            problems.push(Problem::new(format!("{key}.{field}"), message));
        };
        if self.hooks.is_empty() || self.hooks.len() > HOOKS_MAX {
            wrong("hooks".to_owned(), format!("must be 1 to {HOOKS_MAX}"));
        }
        for (at, hook) in self.hooks.iter().enumerate() {
            let twice = self.hooks.iter().take(at).any(|earlier| earlier == hook);
            if twice {
                wrong(format!("hooks.{at}"), "stands here twice".to_owned());
            } else if !is_hook(hook) {
                let message = format!(
                    "`{hook}` is not like repos/acme/widgets/hooks/123, orgs/acme/hooks/9 or app/hook"
                );
                wrong(format!("hooks.{at}"), message);
            }
        }
        if self.token.env.is_some() == self.token.file.is_some() {
            let message = "give exactly one of `env` and `file`";
            wrong("token".to_owned(), message.to_owned());
        }
        if let Err(message) = self.base() {
            wrong("api_url".to_owned(), message);
        }
        problems
    }

    /// The API's address, without a slash at the end.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn base(&self) -> Result<Url, String> {
        let mut url: Url = self
            .api_url
            .parse()
            .map_err(|error| format!("is no URL: {error}"))?;
        let plain = url.username().is_empty() && url.password().is_none();
        if !plain || url.query().is_some() || url.fragment().is_some() {
            return Err("must be a URL without user, query and fragment".to_owned());
        }
        match url.scheme() {
            "https" => {}
            "http" if self.allow_http || is_loopback(&url) => {}
            "http" => {
                let message = "must be https: the token would travel in the clear; `allow_http = true` allows it";
                return Err(message.to_owned());
            }
            _ => return Err("must be https".to_owned()),
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(url)
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let literal: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
    literal.map_or(host == "localhost", |ip| ip.is_loopback())
}

/// The three kinds of hooks whose deliveries the API lists. Nothing in them can lead elsewhere.
fn is_hook(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_name = |name: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.is_empty() && name.chars().all(plain) && !name.chars().all(|c| c == '.')
    };
    let is_id = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    match parts.as_slice() {
        ["app", "hook"] => true,
        ["orgs", organisation, "hooks", id] => is_name(organisation) && is_id(id),
        ["repos", owner, repository, "hooks", id] => {
            is_name(owner) && is_name(repository) && is_id(id)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(api_url: &str, allow_http: bool) -> ReconcileConfig {
        ReconcileConfig {
            hooks: vec!["app/hook".to_owned()],
            token: SecretRef {
                env: Some("GITHUB_TOKEN".to_owned()),
                file: None,
                not_after: None,
            },
            api_url: api_url.to_owned(),
            allow_http,
        }
    }

    #[test]
    fn hooks_lead_nowhere_else() {
        for hook in [
            "app/hook",
            "orgs/acme/hooks/9",
            "repos/acme/wid.gets_2/hooks/1234567890123",
        ] {
            assert!(is_hook(hook), "{hook}");
        }
        for nonsense in [
            "",
            "/app/hook",
            "app/hook/",
            "app/hook/deliveries",
            "orgs/acme/hooks/x",
            "orgs//hooks/1",
            "orgs/../hooks/1",
            "repos/acme/widgets/hooks/",
            "repos/acme/widgets/hooks/1?x=y",
            "repos/acme/wid gets/hooks/1",
            "repos/acme/%2e%2e/hooks/1",
        ] {
            assert!(!is_hook(nonsense), "{nonsense}");
        }
    }

    #[test]
    fn the_token_goes_over_tls_or_stays_on_this_machine() {
        for (url, expected) in [
            ("https://api.github.com", "https://api.github.com/"),
            ("https://git.example/api/v3/", "https://git.example/api/v3"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("http://[::1]:8080/x", "http://[::1]:8080/x"),
            ("http://localhost", "http://localhost/"),
        ] {
            let base = table(url, false).base();
            assert_eq!(base.as_ref().map(Url::as_str), Ok(expected), "{url}");
        }
        for url in [
            "http://git.example",
            "http://127.0.0.1.example",
            "http://10.0.0.1",
            "ftp://git.example",
            "git.example",
            "https://user@git.example",
            "https://git.example/?a=b",
        ] {
            assert!(table(url, false).base().is_err(), "{url}");
        }
        assert!(table("http://git.example", true).base().is_ok());
        assert!(table("ftp://git.example", true).base().is_err());
    }

    #[test]
    fn mistakes_are_named_at_their_keys() {
        let mut wrong = table("x", false);
        wrong.hooks = vec!["app/hook".into(), "app/hook".into(), "repos/a".into()];
        wrong.token.env = None;
        let keys: Vec<_> = wrong
            .check("r")
            .into_iter()
            .map(|found| found.key)
            .collect();
        assert_eq!(keys, ["r.hooks.1", "r.hooks.2", "r.token", "r.api_url"]);
        assert!(table("https://git.example", false).check("r").is_empty());
    }
}
