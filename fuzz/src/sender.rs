//! Requests of somebody who has the key.

use super::{
    KEY, NOW_MS, OTHER_KEY, header_map,
    input::Input,
    keys::keys,
    post,
    rule::{append, body},
};
use http::HeaderMap;
use ingest::{
    Request, Rule, Unsigned,
    explain::explain,
    rule::{Algorithm, Part, SignatureRule, Unit},
    sign,
    verify::{Refusal, Verified, verify},
};
use runtime::Secret;

#[derive(Clone)]
struct Sent<'a> {
    rule: &'a Rule,
    public_url: Option<&'a str>,
    secret: Secret,
    headers: HeaderMap,
    body: &'a [u8],
}

/// What is signed is verified, and nothing else is in its stead.
pub fn sender(input: &mut Input<'_>, rule: &Rule) -> &'static str {
    let keys = keys(rule, KEY);
    let body = body(input);
    let unsigned = Unsigned {
        delivery_id: &any_id(input),
        event_type: input.pick(&["push", "push.created", "."]),
        public_url: [
            Some("https://a.example/b"),
            Some("https://a.example/b?c=%3A%2"),
            None,
        ][input.below(3)],
        body: &body,
        now_ms: NOW_MS,
    };
    let Some(signature) = &rule.signature else {
        return "verifier";
    };
    let Ok(signed) = sign(rule, &[&keys.private], &unsigned) else {
        return "not to be signed";
    };
    // HTTP knows no letters beyond ASCII: they are sent, but not read.
    let readable = signed.iter().all(|(_, value)| value.is_ascii());
    let Some(headers) = header_map(&signed).filter(|_| readable) else {
        return "not to be sent";
    };
    let sent = Sent {
        rule,
        public_url: unsigned.public_url,
        secret: Secret::from_bytes(keys.public),
        headers,
        body: &body,
    };
    let found = sent.check();
    sent.assert_no_other_body_or_key(input);
    if contradicts_itself(rule, signature, &signed) {
        return "contradicts itself";
    }
    let time = rule.timestamp.as_ref();
    if time.is_some_and(|place| place.json.is_some()) {
        assert_ne!(found, Err(Refusal::Mismatch));
        return "time in the body";
    }
    assert_eq!(found, Ok(Verified { slot: 0 }), "{signed:?}");
    sent.assert_no_other_headers(signature);
    "verified"
}

// === impl Sent ===

impl Sent<'_> {
    /// What is said of it, and that it is explained the same way.
    fn check(&self) -> Result<Verified, Refusal> {
        let request = Request {
            public_url: self.public_url,
            ..post(&self.headers, self.body)
        };
        let secrets = std::slice::from_ref(&self.secret);
        let found = verify(self.rule, secrets, &request);
        let explanation = explain(self.rule, "source", secrets, &request);
        assert_eq!(explanation.result, found);
        found
    }

    fn assert_no_other_body_or_key(&self, input: &mut Input<'_>) {
        let algorithm = self.rule.algorithm;
        let mut body = self.body.to_vec();
        match body.len() {
            0 => body.push(input.byte()),
            length => {
                let at = usize::from(input.byte()) * 256 + usize::from(input.byte());
                body[at % length] ^= input.byte().max(1);
            }
        }
        if algorithm != Algorithm::Token {
            let changed = Sent {
                body: &body,
                ..self.clone()
            };
            assert!(changed.check().is_err(), "a changed body is accepted");
        }
        if !matches!(algorithm, Algorithm::Ed25519 | Algorithm::EcdsaP256Sha256) {
            let secret = Secret::from_bytes(keys(self.rule, OTHER_KEY).public);
            let changed = Sent {
                secret,
                ..self.clone()
            };
            assert!(changed.check().is_err(), "another key is accepted");
        }
    }

    fn assert_no_other_headers(&self, signature: &SignatureRule) {
        for part in &self.rule.signed {
            if let Part::Header(name) = part {
                let mut changed = self.clone();
                let value = [self.headers[name.as_str()].as_bytes(), b"0"].concat();
                changed.headers.remove(name.as_str());
                append(&mut changed.headers, name, &value);
                assert!(changed.check().is_err(), "{name} may be changed");
            }
        }
        let mut changed = self.clone();
        changed.headers.remove(signature.header.as_str());
        assert_eq!(changed.check(), Err(Refusal::Unsigned));
    }
}

/// Rules that `check` can not know to be impossible: what they ask for is read in another way than it is written.
fn contradicts_itself(rule: &Rule, signature: &SignatureRule, signed: &[(String, String)]) -> bool {
    let mut names: Vec<String> = signed
        .iter()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect();
    names.sort();
    let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
    let value_of = |wanted: &str| {
        signed
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    };
    // A value that holds the separator behind it could be signed for two readings.
    let time = rule.timestamp.as_ref().map(|place| match place.unit {
        Unit::Seconds => "1700000000",
        Unit::Milliseconds => "1700000000000",
        Unit::Rfc3339 => "2023-11-14T22:13:20Z",
    });
    let ambiguous = rule.signed.windows(2).any(|pair| {
        let value = if let Part::Header(name) = &pair[0] {
            value_of(name)
        } else {
            time.filter(|_| pair[0] == Part::Timestamp)
        };
        matches!(&pair[1], Part::Literal(text) if value.is_some_and(|value| value.contains(text.as_str())))
    });
    let field = signature.field.as_deref().unwrap_or_default();
    let time_field = rule
        .timestamp
        .as_ref()
        .and_then(|place| place.field.as_deref());
    let between = signature.field_separator.as_deref().unwrap_or("\n");
    let badly_separated = signature
        .item_separator
        .as_deref()
        .is_some_and(|separator| {
            let usual = [",", " ", ";"].contains(&separator);
            !usual
                || [field, signature.prefix.as_str(), between]
                    .iter()
                    .any(|text| text.contains(separator))
        });
    let split_early = [Some(field), time_field]
        .into_iter()
        .flatten()
        .any(|name| format!("{name}{between}").find(between) != Some(name.len()));
    twice || ambiguous || badly_separated || split_early || time_field == Some(field)
}

fn any_id(input: &mut Input<'_>) -> String {
    if input.below(4) == 0 {
        input.text()
    } else {
        "msg_1".to_owned()
    }
}
