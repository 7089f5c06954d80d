//! How a sender signs, said as data: one declarative HMAC rule, and the presets that are entries of it.
//!
//! The rule names places (headers, fields of the signature header, body) and the order in which their bytes are signed.
//! It is checked once, at start; [`crate::verify`] and [`crate::extract`] then only follow it.

mod check;

use serde::Deserialize;
use std::{collections::BTreeMap, time::Duration};

/// The presets, readable as they are: see the file.
const PRESETS: &str = include_str!("presets.toml");
/// Signatures of one header that are looked at; a header with more is refused.
pub const CANDIDATES_MAX: usize = 16;
/// Longest signature, timestamp or id header that is read, bytes.
pub const HEADER_BYTES_MAX: usize = 4_096;

/// A known sender.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// How long it may take until the sender is answered; below the sender's own timeout.
    #[serde(with = "humantime_serde")]
    pub deadline: Duration,
    /// How it signs.
    pub verify: Rule,
}

/// How one sender signs its webhooks: HMAC over an ordered list of parts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The hash under the HMAC.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Where the signatures stand and how they are written.
    pub signature: SignatureRule,
    /// Where the time of signing stands, if the sender signs one.
    #[serde(default)]
    pub timestamp: Option<TimestampRule>,
    /// What is signed, in order. Holds `body` exactly once.
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
    /// How far the signed time may be from the receipt.
    #[serde(default)]
    pub tolerance: Tolerance,
    /// The same scheme under other header names.
    #[serde(default)]
    pub alias: Option<Alias>,
}

/// The hash under the HMAC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// SHA-256.
    #[default]
    Sha256,
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
}

/// Where the time of signing stands: exactly one of `header` and `field`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimestampRule {
    /// Name of a header.
    #[serde(default)]
    pub header: Option<String>,
    /// Name of an item of the signature header.
    #[serde(default)]
    pub field: Option<String>,
    /// What the number counts.
    #[serde(default)]
    pub unit: Unit,
}

/// What a timestamp counts since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Unit {
    /// Seconds.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
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
    /// `hash = true`: a hash of source and body. Two equal bodies are then one delivery, so it must be asked for.
    Hash(bool),
}

/// A place of the event type: a header, a JSON path, or both joined by a dot (the JSON half may be missing).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypePlace {
    /// Name of a header.
    #[serde(default)]
    pub header: Option<String>,
    /// Dotted path of a string of the JSON body.
    #[serde(default)]
    pub json: Option<String>,
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
    figment::Figment::from(Toml::string(PRESETS))
        .extract()
        .map_err(|error| error.to_string())
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

    fn renamed(&self, alias: &Alias) -> Self {
        let mut rule = self.clone();
        rename(&mut rule.signature.header, alias);
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

// === impl Unit ===

impl Unit {
    /// Milliseconds in one.
    pub fn ms(self) -> i64 {
        match self {
            Self::Seconds => 1_000,
            Self::Milliseconds => 1,
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
