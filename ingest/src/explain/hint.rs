//! What often went wrong: the request would pass with another form of its body, of the secret or of the URL, or by the rule of
//! another sender. Nothing here makes anything pass; it only says what would have.

use super::signed_rightly;
use crate::{
    request::Request,
    rule::{Rule, SecretEncoding, SecretRule, presets},
    verify::{Reading, verify},
};
use runtime::Secret;
use serde::de::IgnoredAny;

/// Prefixes that secrets are handed out with.
const PREFIXES: [&str; 2] = ["", "whsec_"];
/// Headers of the schemes that have a verifier of their own.
const OWN_HEADERS: [(&str, &str); 2] = [
    ("x-twilio-signature", "twilio"),
    ("paypal-transmission-sig", "paypal"),
];

/// What would make a request pass that no secret fits; empty when nothing is found.
pub(super) fn hints(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> Vec<String> {
    let mut hints = Vec::new();
    if rule.needs_certificate() {
        return hints;
    }
    hints.extend(of_body(rule, secrets, request));
    hints.extend(of_secret(rule, secrets, request));
    hints.extend(of_url(rule, secrets, request));
    if hints.is_empty() {
        hints.extend(of_sender(rule, secrets, request));
    }
    hints
}

fn fits(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> bool {
    signed_rightly(&verify(rule, secrets, request))
}

fn of_body(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> Option<String> {
    let body = request.body;
    let fits = |body: &[u8]| fits(rule, secrets, &Request { body, ..*request });
    let without_end = |end: &[u8]| body.strip_suffix(end).is_some_and(fits);
    let found = if without_end(b"\n") || without_end(b"\r\n") {
        "without the line end at the end of the body: was it added by an editor?"
    } else if fits(&[body, b"\n"].concat()) || fits(&[body, b"\r\n"].concat()) {
        "with a line end at the end of the body: was it lost in the capture?"
    } else if body.strip_prefix(b"\xef\xbb\xbf").is_some_and(fits) {
        "without the byte order mark at the start of the body: was it added by an editor?"
    } else if body.contains(&b'\r') && fits(&line_ends(body, b"\n")) {
        "with LF instead of CRLF in the body: were line ends converted?"
    } else if body.contains(&b'\n') && fits(&line_ends(body, b"\r\n")) {
        "with CRLF instead of LF in the body: were line ends converted?"
    } else {
        let compact = compact(body)?;
        if fits(&compact) {
            "without the white space in the JSON: was the body written anew for reading?"
        } else if fits(&spaced(&compact)) {
            "with one space behind each comma and colon of the JSON: was the body parsed and written anew?"
        } else {
            return None;
        }
    };
    Some(format!(
        "it fits {found} What is signed are the bytes as they were sent"
    ))
}

fn of_secret(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> Option<String> {
    let trimmed: Vec<Secret> = secrets
        .iter()
        .map(|secret| secret.with(|text| Secret::from_bytes(text.trim_ascii())))
        .collect();
    if fits(rule, &trimmed, request) {
        return Some(
            "it fits when the white space around the secret is taken off: how was it stored?"
                .to_owned(),
        );
    }
    let encodings = [
        SecretEncoding::Utf8,
        SecretEncoding::Base64,
        SecretEncoding::Hex,
    ];
    for encoding in encodings {
        for prefix in PREFIXES {
            let secret = SecretRule {
                encoding,
                strip_prefix: prefix.to_owned(),
            };
            let other = Rule {
                secret,
                ..rule.clone()
            };
            if other.secret != rule.secret && fits(&other, secrets, request) {
                return Some(format!(
                    "it fits when the secret is read as {}, but the rule reads it as {}",
                    read_as(&other.secret),
                    read_as(&rule.secret)
                ));
            }
        }
    }
    None
}

fn of_url(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> Option<String> {
    let url = request.public_url.filter(|_| rule.signs_url())?;
    let slash = url
        .strip_suffix('/')
        .map_or_else(|| format!("{url}/"), str::to_owned);
    let scheme = match url.strip_prefix("https://") {
        Some(rest) => format!("http://{rest}"),
        None => url.replacen("http://", "https://", 1),
    };
    for other in [slash, scheme] {
        let request = Request {
            public_url: Some(&other),
            ..*request
        };
        if fits(rule, secrets, &request) {
            return Some(format!("it fits with `public_url` = {other}"));
        }
    }
    let query = request.query.is_some() || url.contains('?');
    let part = if query { " and its query" } else { "" };
    Some(format!(
        "`public_url`{part} is signed too: is {url} letter for letter what the sender was given?"
    ))
}

/// Other senders whose headers the request has, and whose rule it fits.
fn of_sender(rule: &Rule, secrets: &[Secret], request: &Request<'_>) -> Vec<String> {
    let mut like = Vec::new();
    let mut header = "";
    let presets = presets().unwrap_or_default();
    let variants: Vec<(&str, Rule)> = presets
        .iter()
        .flat_map(|(name, preset)| {
            let variants = preset.verify.variants();
            variants
                .into_iter()
                .map(move |variant| (name.as_str(), variant))
        })
        .collect();
    for (name, variant) in &variants {
        let Some(signature) = &variant.signature else {
            continue;
        };
        let reading = Reading::of(variant, signature, request);
        if !reading.is_ok_and(|reading| !reading.signatures.candidates.is_empty()) {
            continue;
        }
        if fits(variant, secrets, request) {
            return vec![format!(
                "it fits by the preset {name}: `scheme = \"{name}\"`"
            )];
        }
        let own = rule.signature.as_ref();
        if own.is_none_or(|own| own.header != signature.header) && !like.contains(name) {
            header = &signature.header;
            like.push(name);
        }
    }
    for (own, name) in OWN_HEADERS {
        if request.headers.contains_key(own) && rule.verifier.is_none() {
            (header, like) = (own, vec![name]);
        }
    }
    if like.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "there is {header}: this looks like {}",
        like.join(" or ")
    )]
}

fn read_as(rule: &SecretRule) -> String {
    let encoding = match rule.encoding {
        SecretEncoding::Utf8 => "text as it is",
        SecretEncoding::Base64 => "base64",
        SecretEncoding::Hex => "hexadecimal",
    };
    match rule.strip_prefix.as_str() {
        "" => encoding.to_owned(),
        prefix => format!("{encoding} behind {prefix}"),
    }
}

/// The text with all its line ends written as `end`.
fn line_ends(text: &[u8], end: &[u8]) -> Vec<u8> {
    let lines = text
        .split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    lines.collect::<Vec<_>>().join(end)
}

/// A JSON text without the white space between its tokens; none when it is no JSON.
fn compact(json: &[u8]) -> Option<Vec<u8>> {
    serde_json::from_slice::<IgnoredAny>(json).ok()?;
    let mut inside = Inside::default();
    let keep = |byte: &&u8| inside.string(**byte) || !byte.is_ascii_whitespace();
    Some(json.iter().filter(keep).copied().collect())
}

/// A compact JSON text as Python writes it.
fn spaced(compact: &[u8]) -> Vec<u8> {
    let mut inside = Inside::default();
    let mut text = Vec::with_capacity(compact.len() * 2);
    for &byte in compact {
        let string = inside.string(byte);
        text.push(byte);
        if !string && matches!(byte, b',' | b':') {
            text.push(b' ');
        }
    }
    text
}

/// Follows a JSON text.
#[derive(Default)]
struct Inside {
    string: bool,
    escaped: bool,
}

// === impl Inside ===

impl Inside {
    /// Whether the next byte belongs to a string, quotes included.
    fn string(&mut self, byte: u8) -> bool {
        if !self.string {
            self.string = byte == b'"';
            return self.string;
        }
        if self.escaped {
            self.escaped = false;
        } else if byte == b'\\' {
            self.escaped = true;
        } else if byte == b'"' {
            self.string = false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_goes_and_comes_only_between_tokens() {
        let json = b"{ \"a, b: \\\" c\" : [ 1 ,\n\t2 ], \"d\\\\\" : null }\n";
        let small = compact(json).unwrap();
        assert_eq!(small, br#"{"a, b: \" c":[1,2],"d\\":null}"#);
        assert_eq!(spaced(&small), br#"{"a, b: \" c": [1, 2], "d\\": null}"#);
        assert_eq!(compact(b"{"), None);
    }

    #[test]
    fn line_ends_are_converted_whole() {
        assert_eq!(line_ends(b"a\r\nb\nc", b"\n"), b"a\nb\nc");
        assert_eq!(line_ends(b"a\r\nb\n", b"\r\n"), b"a\r\nb\r\n");
    }
}
