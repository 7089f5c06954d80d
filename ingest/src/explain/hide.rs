//! Secrets taken out of what is shown: a body may hold one (Notion sends its token in one, an echo returns what it was sent).

use crate::{rule::Rule, verify::key::decoded};
use runtime::Secret;

/// Shorter texts stand everywhere by chance; hiding them would only tell where.
const HIDDEN_BYTES_MIN: usize = 4;
/// What stands in their place.
const HIDDEN: &[u8] = b"[secret]";

/// `bytes` without any of `secrets`, neither as they are written nor as the keys that they stand for.
pub fn hide(rule: &Rule, secrets: &[Secret], bytes: &[u8]) -> Vec<u8> {
    let mut shown = bytes.to_vec();
    for secret in secrets {
        secret.with(|text| {
            let bare = text.strip_prefix(rule.secret.strip_prefix.as_bytes());
            let key = decoded(&rule.secret, text).ok();
            let forms = [Some(text), bare, key.as_deref()];
            for form in forms.into_iter().flatten() {
                if form.len() >= HIDDEN_BYTES_MIN {
                    shown = without(&shown, form);
                }
            }
        });
    }
    shown
}

fn without(bytes: &[u8], secret: &[u8]) -> Vec<u8> {
    let mut shown = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest
        .windows(secret.len())
        .position(|window| window == secret)
    {
        shown.extend_from_slice(rest.get(..at).unwrap_or_default());
        shown.extend_from_slice(HIDDEN);
        rest = rest.get(at + secret.len()..).unwrap_or_default();
    }
    shown.extend_from_slice(rest);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::presets;

    #[test]
    fn a_secret_is_hidden_as_it_is_written_and_as_a_key() {
        let rule = presets().unwrap().remove("svix").unwrap().verify;
        let secrets = [Secret::from_bytes(*b"whsec_c2VjcmV0LWtleQ==")];
        let bytes = b"a secret-key b c2VjcmV0LWtleQ== c whsec_c2VjcmV0LWtleQ== secret-ke";
        let shown = hide(&rule, &secrets, bytes);
        assert_eq!(shown, b"a [secret] b [secret] c [secret] secret-ke");
    }
}
