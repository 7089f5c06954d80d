//! What `fencepost send` signs with and where it posts to.

use crate::{args::SendArgs, config::Config, failure::Failure};
use ingest::{Rule, SourceConfig, rule::Algorithm};
use reqwest::Url;
use runtime::{Secret, SecretRef};
use std::{net::IpAddr, path::Path};

/// The key that signs: an argument's, or a secret of the source.
///
/// # Errors
/// [`Failure::Config`].
pub(super) fn key(
    args: &SendArgs,
    source: &SourceConfig,
    rule: &Rule,
    base: &Path,
) -> Result<Secret, Failure> {
    if args.signing_key_env.is_some() || args.signing_key_file.is_some() {
        let place = SecretRef {
            env: args.signing_key_env.clone(),
            file: args.signing_key_file.clone(),
            not_after: None,
        };
        // A path on the command line starts where the command does.
        let key = Secret::open(&place, Path::new("."));
        return key.map_err(|error| Failure::config("--signing-key", error.to_string()));
    }
    if matches!(
        rule.algorithm,
        Algorithm::Ed25519 | Algorithm::EcdsaP256Sha256
    ) {
        let message =
            "is missing: the source has the sender's public key, and the private one signs";
        return Err(Failure::config("--signing-key-file", message));
    }
    let at = format!("sources.{}.secrets", args.source);
    let Some(place) = source.secrets.get(args.secret_slot) else {
        let message = format!("{at} has {}, counted from 0", source.secrets.len());
        return Err(Failure::config("--secret-slot", message));
    };
    let at = format!("{at}.{}", args.secret_slot);
    let secret = match Secret::open(place, base) {
        Ok(secret) => secret,
        Err(error) => return Err(Failure::config(at, error.to_string())),
    };
    match rule.checks(&secret) {
        Ok(()) => Ok(secret),
        Err(error) => Err(Failure::config(at, format!("the secret {error}"))),
    }
}

/// The URL of `--to`.
///
/// # Errors
/// [`Failure::Config`].
pub(super) fn given(text: &str) -> Result<Url, Failure> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host());
    url.ok_or_else(|| {
        Failure::config(
            "--to",
            "is not a URL such as http://127.0.0.1:8080/hooks/github",
        )
    })
}

/// Where ingest listens, seen from this machine.
///
/// # Errors
/// [`Failure::Config`].
pub(super) fn configured(config: &Config, source: &str) -> Result<Url, Failure> {
    let problems = config.ingest.check("ingest");
    if !problems.is_empty() {
        return Err(problems.into());
    }
    let mut listen = config.ingest.listen;
    if listen.port() == 0 {
        let message = "is missing: ingest.listen leaves the port to the system";
        return Err(Failure::config("--to", message));
    }
    if config.ingest.proxy_protocol {
        let message = "is missing: ingest.proxy_protocol wants a proxy in between";
        return Err(Failure::config("--to", message));
    }
    let scheme = if config.ingest.tls.is_some() {
        "https"
    } else {
        "http"
    };
    if listen.ip().is_unspecified() {
        listen.set_ip(match listen.ip() {
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    given(&format!(
        "{scheme}://{listen}{}/{source}",
        config.ingest.path_prefix
    ))
}
