//! The tests' own HTTP client.

use std::{sync::LazyLock, time::Duration};

static CLIENT: LazyLock<reqwest::Client> = LazyLock::new(build);

/// A plain client without proxy and redirects. Shared: its pool belongs to no runtime, so connections are not kept.
pub fn client() -> reqwest::Client {
    CLIENT.clone()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the tests must not send through the product's own client"
)]
fn build() -> reqwest::Client {
    // Another test of the same process may have been first.
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .timeout(Duration::from_secs(30))
        .build()
        .expect("client without special settings")
}
