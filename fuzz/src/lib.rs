//! What the fuzz targets do, as plain functions over bytes that panic when a promise is broken. `make fuzz` feeds them
//! by libFuzzer; `ingest/tests/properties.rs` includes this file and replays the committed corpora in `make test`.
//!
//! Each returns how far an input came, so that a corpus which no longer gets anywhere is noticed.

pub mod form;
pub mod header;
pub mod input;
pub mod json;
mod keys;
pub mod rule;
mod rule_from;
mod sender;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ingest::{Request, Rule, rule::presets};
use std::{collections::BTreeMap, sync::OnceLock};

/// Arrival of every request, milliseconds since the Unix epoch.
pub const NOW_MS: i64 = 1_700_000_000_000;
/// A secret that no input knows: nothing that an input says may be verified with it.
pub const KEY: &[u8] = b"uV5dQm8Xw2JrT7nKc4ZbYh9LgPa3EsF6";
/// Another one.
pub const OTHER_KEY: &[u8] = b"Hq1zNv7RtB0yWk5MxCj8DpGf2UaSe4Lo";

/// The rules of the presets, by name; read once.
pub fn preset_rules() -> &'static BTreeMap<String, Rule> {
    static RULES: OnceLock<BTreeMap<String, Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        let presets = presets().expect("a test excludes that they are broken");
        let rule = |(name, preset): (String, ingest::rule::Preset)| (name, preset.verify);
        presets.into_iter().map(rule).collect()
    })
}

/// A POST that arrives at [`NOW_MS`].
pub fn post<'a>(headers: &'a HeaderMap, body: &'a [u8]) -> Request<'a> {
    Request {
        method: &Method::POST,
        headers,
        query: None,
        public_url: None,
        body,
        received_at_ms: NOW_MS,
    }
}

/// As a map; none when a name or value can not be sent by HTTP.
pub fn header_map(headers: &[(String, String)]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        map.append(name, HeaderValue::from_str(value).ok()?);
    }
    Some(map)
}
