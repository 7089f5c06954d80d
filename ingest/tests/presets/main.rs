//! Every preset: requests as its provider sends them (`samples.json`, signed by `samples.py` and not by the code under test), and
//! everything that may be wrong with such a request. [`samples`] fails when a preset has no sample, so a new preset
//! goes through all of it. The engine's depths are in `signatures.rs`, the router's answers in `http`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod bent;
mod sent;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ingest::{
    Request, Rule, Unsigned,
    rule::{Algorithm, Preset, SecretEncoding},
    rule_for, sign,
    verify::{self, Refusal, Verified},
};
use runtime::Secret;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

pub(crate) static PRESETS: LazyLock<BTreeMap<String, Preset>> =
    LazyLock::new(|| ingest::rule::presets().unwrap());

/// Presets with a verifier of their own. What may be wrong with their requests is tested beside their code.
const WITH_CODE: [&str; 4] = ["adyen", "mailgun", "paypal", "twilio"];
/// Only PayPal can sign its requests.
const WITHOUT_SAMPLE: [&str; 1] = ["paypal"];

/// What a provider sends under one preset: a webhook, the same once more, and another one.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sample {
    pub(crate) preset: String,
    /// Which kind of webhook, where the provider has several.
    variant: String,
    #[serde(rename = "origin")]
    _origin: String,
    /// As it is configured.
    pub(crate) secret: String,
    /// What the provider signs with, where that is not the secret.
    signing_secret: Option<String>,
    public_url: Option<String>,
    query: Option<String>,
    pub(crate) event_type: String,
    /// The provider changes the body of a repeat and has no id for it.
    #[serde(default)]
    pub(crate) repeat_is_new: bool,
    /// The secret is being changed.
    #[serde(default)]
    several_signatures: bool,
    pub(crate) first: Sent,
    pub(crate) repeat: Sent,
    pub(crate) other: Sent,
}

#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sent {
    pub(crate) signed_at_ms: i64,
    headers: BTreeMap<String, String>,
    pub(crate) body: String,
    pub(crate) delivery_id: String,
}

/// A request in the making, to be bent.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) sample: Sample,
    pub(crate) rule: Rule,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) now_ms: i64,
}

/// All samples. Fails when a preset has none.
pub(crate) fn samples() -> Vec<Sample> {
    let samples: Vec<Sample> = serde_json::from_str(include_str!("samples.json")).unwrap();
    let sampled = samples.iter().map(|sample| sample.preset.as_str());
    let covered: BTreeSet<&str> = sampled.chain(WITHOUT_SAMPLE).collect();
    let all = &*PRESETS;
    assert_eq!(covered, all.keys().map(String::as_str).collect());
    for (name, preset) in all {
        let has_code = WITH_CODE.contains(&name.as_str());
        assert_eq!(preset.verify.verifier.is_some(), has_code, "{name}");
    }
    samples
}

/// The samples of presets that are rules of the table, with one signature each.
pub(crate) fn samples_of_rules() -> Vec<Sample> {
    let mut samples = samples();
    samples.retain(|sample| !WITH_CODE.contains(&sample.preset.as_str()));
    samples.retain(|sample| !sample.several_signatures);
    samples
}

// === impl Sample ===

impl Sample {
    /// For messages.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.preset, self.variant)
    }

    pub(crate) fn given(&self, sent: &Sent) -> Given {
        let mut headers = HeaderMap::new();
        for (name, value) in &sent.headers {
            headers.insert(name_of(name), HeaderValue::from_str(value).unwrap());
        }
        let rules = PRESETS[&self.preset].verify.variants();
        let rule = rule_for(&rules, &headers).unwrap().clone();
        Given {
            sample: self.clone(),
            rule,
            headers,
            body: sent.body.clone().into_bytes(),
            now_ms: sent.signed_at_ms,
        }
    }

    /// The first webhook with another body, signed by the code under test at the same time.
    pub(crate) fn with_body(&self, body: &[u8]) -> Given {
        let mut given = self.given(&self.first);
        let key = self.signing_secret.as_ref().unwrap_or(&self.secret).clone();
        given.body = body.to_vec();
        given.sign(&[&key]);
        given
    }

    /// What the provider signs with; of the same kind, but another one.
    pub(crate) fn signing_secrets(&self) -> [String; 2] {
        let right = self.signing_secret.as_ref().unwrap_or(&self.secret);
        let rule = self.given(&self.first).rule;
        // An Ed25519 seed may be any 32 bytes.
        let other = if rule.algorithm == Algorithm::Ed25519 {
            "whsk_CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=".to_owned()
        } else {
            other_secret(&rule)
        };
        [right.clone(), other]
    }
}

// === impl Given ===

impl Given {
    pub(crate) fn request(&self) -> Request<'_> {
        Request {
            method: &Method::POST,
            headers: &self.headers,
            query: self.sample.query.as_deref(),
            public_url: self.sample.public_url.as_deref(),
            body: &self.body,
            received_at_ms: self.now_ms,
        }
    }

    pub(crate) fn verify_with(&self, secrets: &[Secret]) -> Result<Verified, Refusal> {
        verify::verify(&self.rule, secrets, &self.request())
    }

    /// In a word, with the right secret.
    pub(crate) fn verify(&self) -> &'static str {
        word(&self.verify_with(&[secret_of(&self.sample.secret)]))
    }

    /// Signs what is given, in place.
    pub(crate) fn sign(&mut self, secrets: &[&str]) {
        let secrets: Vec<&[u8]> = secrets.iter().map(|secret| secret.as_bytes()).collect();
        let url = self.full_url();
        let unsigned = Unsigned {
            delivery_id: &self.sample.first.delivery_id,
            event_type: &self.sample.event_type,
            public_url: url.as_deref(),
            body: &self.body,
            now_ms: self.now_ms,
        };
        for (name, value) in sign(&self.rule, &secrets, &unsigned).unwrap() {
            self.headers
                .insert(name_of(&name), HeaderValue::from_str(&value).unwrap());
        }
    }

    /// Name of the signature header.
    pub(crate) fn signature(&self) -> HeaderName {
        name_of(&self.rule.signature.as_ref().unwrap().header)
    }

    /// Headers other than the signature without which it can not be verified.
    pub(crate) fn needed(&self) -> Vec<HeaderName> {
        let of_time = self.rule.timestamp.iter();
        let mut names: BTreeSet<&String> = of_time.filter_map(|at| at.header.as_ref()).collect();
        for part in &self.rule.signed {
            if let ingest::rule::Part::Header(name) = part {
                names.insert(name);
            }
        }
        names.into_iter().map(|name| name_of(name)).collect()
    }

    pub(crate) fn text(&self, name: &HeaderName) -> String {
        self.headers[name].to_str().unwrap().to_owned()
    }

    /// The same with another value of a header.
    pub(crate) fn with(&self, name: &HeaderName, value: impl AsRef<[u8]>) -> Self {
        let mut given = self.clone();
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        given.headers.insert(name.clone(), value);
        given
    }

    /// As the sender called it.
    fn full_url(&self) -> Option<String> {
        let url = self.sample.public_url.clone()?;
        match &self.sample.query {
            Some(query) if !url.contains('?') => Some(format!("{url}?{query}")),
            Some(_) | None => Some(url),
        }
    }
}

/// A secret as it could be configured, but another one.
pub(crate) fn other_secret(rule: &Rule) -> String {
    // Of RFC 8032, 7.1, and of SendGrid's own tests.
    let text = match (rule.algorithm, rule.secret.encoding) {
        (Algorithm::Ed25519, SecretEncoding::Hex) => {
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        }
        (Algorithm::Ed25519, _) => "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
        (Algorithm::EcdsaP256Sha256, _) => {
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
        }
        (_, SecretEncoding::Base64) => "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        (_, SecretEncoding::Hex) => {
            "00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff"
        }
        (_, SecretEncoding::Utf8) => "another secret",
    };
    text.to_owned()
}

pub(crate) fn secret_of(text: &str) -> Secret {
    Secret::from_bytes(text.as_bytes())
}

pub(crate) fn name_of(name: &str) -> HeaderName {
    HeaderName::from_bytes(name.as_bytes()).unwrap()
}

pub(crate) fn word(found: &Result<Verified, Refusal>) -> &'static str {
    match found {
        Ok(_) => "ok",
        Err(Refusal::Unsigned) => "unsigned",
        Err(Refusal::Mismatch) => "mismatch",
        Err(Refusal::Stale) => "stale",
        Err(Refusal::Early) => "early",
        Err(Refusal::Repeated(_)) => "repeated",
        Err(Refusal::Missing(_)) => "missing",
        Err(Refusal::Malformed(_)) => "malformed",
    }
}
