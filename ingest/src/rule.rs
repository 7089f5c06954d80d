//! How a sender signs, said as data: one declarative rule, and the presets that are entries of it.
//!
//! The rule names places (headers, fields of the signature header, body) and the order in which their bytes are signed.
//! It is checked once, at start; [`crate::verify`], [`crate::extract`] and [`crate::handshake`] then only follow it.

mod check;
mod handshake;

pub use handshake::{Handshake, Reply, Value};

use serde::Deserialize;
use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

/// The presets, readable as they are: see the file.
const PRESETS: &str = include_str!("presets.toml");
/// Signatures of one header that are looked at; a header with more is refused.
pub const CANDIDATES_MAX: usize = 16;
/// Longest signature, timestamp or id header that is read, bytes.
pub const HEADER_BYTES_MAX: usize = 4_096;

/// A known sender: a rule, and what is good for every source of this kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// How long it may take until the sender is answered; below the sender's own timeout.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// Largest body that it sends, bytes, where that is not the usual 1 MiB.
    #[serde(default)]
    pub body_bytes_max: Option<usize>,
    /// Media types that it sends, see [`crate::SourceConfig`].
    #[serde(default)]
    pub content_types: Option<Vec<String>>,
    /// What it wants to be answered, where that is not 202.
    #[serde(default)]
    pub answer: Option<Answer>,
    /// How it signs.
    pub verify: Rule,
}

/// How one sender signs its webhooks: `algorithm` over an ordered list of parts, or a `verifier` of its own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// What a signature is made with.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Where the signatures stand and how they are written. There unless a `verifier` is.
    #[serde(default)]
    pub signature: Option<SignatureRule>,
    /// Instead of `signature` and `signed`: a scheme that the table has no words for.
    #[serde(default)]
    pub verifier: Option<Verifier>,
    /// Where the time of signing stands, if the sender signs one.
    #[serde(default)]
    pub timestamp: Option<TimestampRule>,
    /// What is signed, in order. Holds `body` exactly once. Empty for a token, which signs nothing.
    #[serde(default)]
    pub signed: Vec<Part>,
    /// How a secret is turned into the key.
    #[serde(default)]
    pub secret: SecretRule,
    /// Where the sender's id of the delivery stands; the first place that has one counts.
    #[serde(default)]
    pub delivery_id: Vec<IdPlace>,
    /// Where the event type stands; the first place that has one counts. None: webhooks have no type.
    #[serde(default)]
    pub event_type: Vec<TypePlace>,
    /// Of a body that is a form, the field whose text is the JSON that paths are looked for in.
    #[serde(default)]
    pub form_json: Option<String>,
    /// How far the signed time may be from the receipt.
    #[serde(default)]
    pub tolerance: Tolerance,
    /// The same scheme under other header names.
    #[serde(default)]
    pub alias: Option<Alias>,
    /// Requests that want an answer of their own and are no webhooks.
    #[serde(default)]
    pub handshake: Vec<Handshake>,
}

/// What a signature is made with, and therefore what a source's secrets are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// HMAC with SHA-256.
    #[default]
    HmacSha256,
    /// HMAC with SHA-1, for senders that have nothing better.
    HmacSha1,
    /// HMAC with SHA-512.
    HmacSha512,
    /// The secret itself is sent. It proves the sender and says nothing of the body.
    Token,
    /// Ed25519 (RFC 8032); a secret is the sender's public key of 32 bytes.
    Ed25519,
    /// ECDSA over P-256 with SHA-256, signatures in DER; a secret is the sender's public key (SubjectPublicKeyInfo).
    EcdsaP256Sha256,
}

/// A scheme that needs code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verifier {
    /// URL and sorted form parameters, or URL and a hash of the body in the query.
    Twilio,
    /// Time and token in the JSON body.
    Mailgun,
    /// Eight fields of every item of the JSON body.
    AdyenStandard,
    /// RSA over ids and a CRC-32 of the body, with a certificate that is fetched.
    Paypal,
}

/// What a taken webhook is answered with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// HTTP status, 200 to 299.
    pub status: u16,
    /// Body.
    #[serde(default)]
    pub body: String,
    /// Media type of the body.
    #[serde(default = "plain_text")]
    pub content_type: String,
}

/// Where the signatures stand: `[prefix]signature`, or items `field<field_separator>signature`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureRule {
    /// Name of the header.
    pub header: String,
    /// How the bytes of a signature are written.
    pub encoding: Encoding,
    /// What stands before the signature, e.g. `sha256=`.
    #[serde(default)]
    pub prefix: String,
    /// Separates items, when there are several.
    #[serde(default)]
    pub item_separator: Option<String>,
    /// Separates an item's name and value.
    #[serde(default)]
    pub field_separator: Option<String>,
    /// Name of the items that are signatures of this rule, e.g. `v1`. Others are skipped.
    #[serde(default)]
    pub field: Option<String>,
}

/// Text form of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encoding {
    /// Hexadecimal; both cases are read, lower case is written.
    Hex,
    /// Base64 with the standard alphabet and padding.
    Base64,
    /// As it is; for tokens.
    Plain,
}

/// Where the time of signing stands: exactly one of `header`, `field` and `json`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimestampRule {
    /// Name of a header.
    #[serde(default)]
    pub header: Option<String>,
    /// Name of an item of the signature header.
    #[serde(default)]
    pub field: Option<String>,
    /// Dotted path of the JSON body. Read only after the signature has been checked.
    #[serde(default)]
    pub json: Option<String>,
    /// How it is written.
    #[serde(default)]
    pub unit: Unit,
}

/// How a timestamp is written: a number since the Unix epoch, or a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Unit {
    /// Seconds.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// A date and time such as `2026-11-30T08:00:00Z` (RFC 3339).
    #[serde(rename = "rfc3339")]
    Rfc3339,
}

/// A piece of what is signed, always as the bytes received.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// These bytes.
    Literal(String),
    /// The value of a header.
    Header(String),
    /// The value of an item of the signature header.
    Field(String),
    /// The timestamp as it was written.
    Timestamp,
    /// The HTTP method.
    Method,
    /// The source's `public_url`, and the query of the request.
    Url,
    /// The same with these decoded: `%3A %2F %3F %40 %21 %24 %27 %28 %29 %2A %2C %3B`, as HubSpot does it.
    UrlDecoded,
    /// The body.
    Body,
}

/// How a secret is turned into the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretRule {
    /// Text form of the key.
    #[serde(default)]
    pub encoding: SecretEncoding,
    /// Taken off the front before decoding, when it is there.
    #[serde(default)]
    pub strip_prefix: String,
}

/// Text form of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecretEncoding {
    /// The secret's bytes are the key.
    #[default]
    Utf8,
    /// Base64 with the standard alphabet; padding may be missing.
    Base64,
    /// Hexadecimal.
    Hex,
}

/// A place of the delivery id.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdPlace {
    /// The value of a header.
    Header(String),
    /// A string or integer of the JSON body, by dotted path, e.g. `event.id`.
    Json(String),
    /// Several such, all there, joined by `:`.
    JsonJoined(Vec<String>),
    /// A field of a form body.
    Form(String),
    /// `verifier = true`: what the rule's `verifier` makes of that which is signed. For Mailgun, the token; for Adyen,
    /// `pspReference:eventCode:success`, or a hash of all that is signed in several items; for Twilio, a hash of URL and
    /// parameters in whatever order.
    Verifier(bool),
    /// `hash = true`: a hash of source and body. Two equal bodies are then one delivery, so it must be asked for.
    Hash(bool),
}

/// A place of the event type: a header, a form field or a JSON path, alone or followed by a dot and a (further) JSON path,
/// which may be missing in the body.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypePlace {
    /// Name of a header.
    #[serde(default)]
    pub header: Option<String>,
    /// Name of a field of a form body.
    #[serde(default)]
    pub form: Option<String>,
    /// Dotted path of the JSON body; behind `header` or `form` the second half.
    #[serde(default)]
    pub json: Option<String>,
    /// Second half behind a `json` that stands alone.
    #[serde(default)]
    pub sub_json: Option<String>,
}

/// How far the signed time may be from the receipt. Two sides: late repeats and fast clocks are different troubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// How old a signature may be.
    #[serde(default = "five_minutes", with = "humantime_serde")]
    pub past: Duration,
    /// How far ahead the sender's clock may be.
    #[serde(default = "five_minutes", with = "humantime_serde")]
    pub future: Duration,
}

/// When the signature header is absent, header names that start with `from` are read with `to` instead, all of them:
/// the two families are never mixed in one request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alias {
    /// Start of the names in the rule.
    pub from: String,
    /// Start of the names on the wire.
    pub to: String,
}

/// Every preset by name.
///
/// # Errors
/// When the embedded file is broken, which a test excludes.
pub fn presets() -> Result<BTreeMap<String, Preset>, String> {
    use figment::providers::{Format, Toml};
    /// Every source asks several times.
    static READ: LazyLock<Result<BTreeMap<String, Preset>, String>> = LazyLock::new(|| {
        let read = figment::Figment::from(Toml::string(PRESETS)).extract();
        read.map_err(|error| error.to_string())
    });
    READ.clone()
}

// === impl Rule ===

impl Rule {
    /// The rule, and the rule under its other header names if it has any. The first whose signature header is there
    /// is the one that a request is read by.
    pub fn variants(&self) -> Vec<Self> {
        let mut variants = vec![self.clone()];
        if let Some(alias) = &self.alias {
            variants.push(self.renamed(alias));
        }
        variants
    }

    /// Whether the URL is signed, so that the source needs a `public_url`.
    pub fn signs_url(&self) -> bool {
        self.verifier == Some(Verifier::Twilio)
            || self
                .signed
                .iter()
                .any(|part| matches!(part, Part::Url | Part::UrlDecoded))
    }

    /// Whether requests are verified with a certificate that is fetched.
    pub fn needs_certificate(&self) -> bool {
        self.verifier == Some(Verifier::Paypal)
    }

    fn renamed(&self, alias: &Alias) -> Self {
        let mut rule = self.clone();
        if let Some(signature) = &mut rule.signature {
            rename(&mut signature.header, alias);
        }
        if let Some(name) = rule
            .timestamp
            .as_mut()
            .and_then(|place| place.header.as_mut())
        {
            rename(name, alias);
        }
        for part in &mut rule.signed {
            if let Part::Header(name) = part {
                rename(name, alias);
            }
        }
        for place in &mut rule.delivery_id {
            if let IdPlace::Header(name) = place {
                rename(name, alias);
            }
        }
        for name in rule
            .event_type
            .iter_mut()
            .filter_map(|place| place.header.as_mut())
        {
            rename(name, alias);
        }
        rule
    }
}

// === impl Tolerance ===

impl Default for Tolerance {
    fn default() -> Self {
        Self {
            past: five_minutes(),
            future: five_minutes(),
        }
    }
}

fn rename(name: &mut String, alias: &Alias) {
    if let Some(rest) = name.strip_prefix(alias.from.as_str()) {
        *name = format!("{}{rest}", alias.to);
    }
}

fn five_minutes() -> Duration {
    Duration::from_secs(300)
}

fn plain_text() -> String {
    "text/plain".to_owned()
}
