//! HTTP clients of commands: they go wherever the operator says, but not to a cloud's metadata by mistake.

use crate::output::plain;
use reqwest::{ClientBuilder, Url};
use runtime::addresses::{self, Blocked};
use std::error::Error;

/// The start of a client for `url`: its own machine and network are allowed.
///
/// # Errors
/// When the URL's host is an address that is never dialled. That of a name is judged when it is resolved.
pub(crate) fn client(url: &Url) -> Result<ClientBuilder, Blocked> {
    let all = ["0.0.0.0/0", "::/0"].iter();
    let all: Vec<_> = all.filter_map(|net| net.parse().ok()).collect();
    let host = url.host_str().unwrap_or_default();
    if let Ok(ip) = host.trim_matches(['[', ']']).parse() {
        addresses::allowed(ip, &all)?;
    }
    Ok(addresses::client(all))
}

/// An error with its causes, on one line and without the URL, whose query may be signed.
pub(crate) fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    plain(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_never_dialled_however_it_is_written() {
        for url in [
            "http://169.254.169.254/",
            "http://0xa9fea9fe/",
            "http://[::ffff:169.254.169.254]/",
        ] {
            assert!(client(&url.parse().unwrap()).is_err(), "{url}");
        }
        for url in ["http://127.0.0.1:1/", "http://[::1]/", "https://10.0.0.1/"] {
            assert!(client(&url.parse().unwrap()).is_ok(), "{url}");
        }
    }
}
