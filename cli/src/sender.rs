//! The sender's side of a webhook, for demo and bench.

use hmac::{Hmac, KeyInit, Mac};
use rand::Rng;
use sha2::Sha256;
use std::time::Duration;

/// GitHub's signature, by our own hand: the sender checks the pipeline and does not borrow from it.
pub(crate) fn signature(secret: &str, body: &[u8]) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        return String::new();
    };
    mac.update(body);
    format!("sha256={}", hex::encode(mac.finalize().into_bytes()))
}

/// A plain HTTP client.
///
/// # Errors
/// When it can not be built.
#[expect(
    clippy::disallowed_methods,
    reason = "a sender outside of the pipeline"
)]
pub(crate) fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(10))
        .build()
}

/// A body of JSON, at least `bytes` long and hardly more, whose text comes from `random`.
pub(crate) fn body(event: &str, bytes: usize, random: &mut impl Rng) -> Vec<u8> {
    let mut body = format!("{{\"event\":\"{event}\",\"emoji\":\"\u{1f9f1}\",\"payload\":\"");
    let letters = b"abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ+-";
    while body.len() + 2 < bytes {
        for bits in random.next_u64().to_le_bytes() {
            body.push(char::from(letters[usize::from(bits) % letters.len()]));
        }
    }
    body.push_str("\"}");
    body.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of GitHub's documentation.
    #[test]
    fn signs_as_github_does() {
        assert_eq!(
            signature("It's a Secret to Everybody", b"Hello, World!"),
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        );
    }
}
