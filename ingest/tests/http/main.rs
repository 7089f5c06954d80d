//! Requests against the router and against the server on a real port, over a log that can fail.
#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "helpers of tests fail the test"
)]

mod config;
mod fake_log;
mod handshake;
mod mistakes;
mod options;
mod outage;
mod reports;
mod router;
mod server;
mod server_connections;
mod server_heads;
mod server_http2;
mod server_proxy;
mod server_tls;
mod telemetry;
mod verifiers;

use fake_log::FakeLog;
use ingest::{App, IngestConfig, SourceConfig, Unsigned, sign};
use runtime::{Clock, Problem};
use std::collections::BTreeMap;

pub(crate) const NOW_MS: i64 = 1_700_000_000_000;
pub(crate) const SECRET: &str = "not-to-be-seen-anywhere";

/// In the file `token`.
pub(crate) const TOKEN: &str = "the-verify-token";
/// In the file `public`, and what belongs to it: Ed25519, hexadecimal.
pub(crate) const PUBLIC_KEY: &str =
    "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8";
pub(crate) const PRIVATE_KEY: &str =
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// An app over `log` with these `[sources]`, whose secret `s` is [`SECRET`].
pub(crate) fn try_app(
    config: IngestConfig,
    sources: &str,
    log: FakeLog,
) -> Result<App<FakeLog>, Vec<Problem>> {
    use figment::providers::{Format, Toml};
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("s"), SECRET).unwrap();
    std::fs::write(directory.path().join("not-base64"), "?").unwrap();
    std::fs::write(directory.path().join("h"), hex::encode(SECRET)).unwrap();
    std::fs::write(directory.path().join("token"), TOKEN).unwrap();
    std::fs::write(directory.path().join("public"), PUBLIC_KEY).unwrap();
    let sources: BTreeMap<String, SourceConfig> = figment::Figment::from(Toml::string(sources))
        .extract()
        .unwrap();
    let codec = schemas::Codec::default();
    App::new(
        config,
        sources,
        directory.path(),
        log,
        codec,
        Clock::manual(NOW_MS),
    )
}

pub(crate) fn app(config: IngestConfig, sources: &str, log: &FakeLog) -> App<FakeLog> {
    try_app(config, sources, log.clone()).unwrap()
}

pub(crate) const GITHUB: &str = r#"
    [github]
    scheme = "github"
    secrets = [{ file = "s" }]
    body_bytes_max = 1000
"#;

/// Headers of a signed GitHub webhook.
pub(crate) fn signed(body: &[u8]) -> Vec<(String, String)> {
    let rule = ingest::rule::presets()
        .unwrap()
        .remove("github")
        .unwrap()
        .verify;
    let unsigned = Unsigned {
        delivery_id: "d-1",
        event_type: "push",
        public_url: None,
        body,
        now_ms: NOW_MS,
    };
    sign(&rule, &[SECRET.as_bytes()], &unsigned).unwrap()
}
