//! The delivery id and the event type of a verified request. Only here is a body parsed, and only as far as needed.

use crate::{
    request::Request,
    rule::{IdPlace, Rule, TypePlace, Verifier},
    verify::{Refusal, adyen, mailgun, single, twilio},
};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use sha2::{Digest, Sha256};
use std::{borrow::Cow, fmt};

/// Longest delivery id and event type, bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// The sender's id of the delivery, from the first of the rule's places that has one.
///
/// # Errors
/// `Missing` when no place has one; `Repeated` and `Malformed` (empty, longer than [`NAME_BYTES_MAX`], control
/// characters) instead of going on to the next place: a sender that gives an id means it.
pub fn delivery_id(rule: &Rule, source: &str, request: &Request<'_>) -> Result<String, Refusal> {
    for place in &rule.delivery_id {
        let found = match place {
            IdPlace::Header(name) => single(request.headers, name)?.map(str::to_owned),
            IdPlace::Json(path) => json_text(rule, request, path),
            IdPlace::JsonJoined(paths) => joined(rule, request, paths),
            IdPlace::Form(name) => form_field(request, name)?.map(Cow::into_owned),
            IdPlace::Hash(_) => Some(hash_of(source, request.body)),
            IdPlace::Verifier(_) => verifiers_id(rule, request)?,
        };
        if let Some(id) = found {
            return well_formed(id, "the delivery id");
        }
    }
    Err(Refusal::Missing("the delivery id".to_owned()))
}

/// The event type, from the first of the rule's places that has one; empty when none has.
///
/// # Errors
/// `Repeated` and `Malformed` as for [`delivery_id`].
pub fn event_type(rule: &Rule, request: &Request<'_>) -> Result<String, Refusal> {
    for place in &rule.event_type {
        if let Some(name) = type_at(place, rule, request)? {
            return well_formed(name, "the event type");
        }
    }
    Ok(String::new())
}

/// The string or integer at a dotted path of the JSON body, or of the JSON in the form body's `form_json`; of keys that stand
/// twice the last one, as most readers do it. None when the path leads nowhere or the text is not JSON.
pub(crate) fn json_text(rule: &Rule, request: &Request<'_>, path: &str) -> Option<String> {
    match &rule.form_json {
        Some(field) if request.is_form() => {
            let text = form_field(request, field).ok()??;
            text_at(text.as_bytes(), path)
        }
        Some(_) | None => text_at(request.body, path),
    }
}

/// The value of a field of a form body that may stand at most once, decoded
/// (<https://url.spec.whatwg.org/#urlencoded-parsing>). None when the body is no form or has no such field.
///
/// # Errors
/// `Repeated`, and `Malformed` when it is not UTF-8: replacing what is not would make different ids equal.
pub(crate) fn form_field<'a>(
    request: &Request<'a>,
    name: &str,
) -> Result<Option<Cow<'a, str>>, Refusal> {
    if !request.is_form() {
        return Ok(None);
    }
    let mut fields = form_urlencoded::parse(request.body).filter(|(field, _)| field == name);
    let Some((_, value)) = fields.next() else {
        return Ok(None);
    };
    if fields.next().is_some() {
        return Err(Refusal::Repeated(name.to_owned()));
    }
    if value.contains(char::REPLACEMENT_CHARACTER) {
        return Err(Refusal::Malformed(name.to_owned()));
    }
    Ok(Some(value))
}

fn verifiers_id(rule: &Rule, request: &Request<'_>) -> Result<Option<String>, Refusal> {
    match rule.verifier {
        Some(Verifier::Twilio) => twilio::delivery_id(request).map(Some),
        Some(Verifier::Mailgun) => mailgun::delivery_id(request).map(Some),
        Some(Verifier::AdyenStandard) => adyen::delivery_id(request).map(Some),
        Some(Verifier::Paypal) | None => Ok(None),
    }
}

fn joined(rule: &Rule, request: &Request<'_>, paths: &[String]) -> Option<String> {
    let texts: Option<Vec<String>> = paths
        .iter()
        .map(|path| json_text(rule, request, path))
        .collect();
    Some(texts?.join(":"))
}

fn type_at(
    place: &TypePlace,
    rule: &Rule,
    request: &Request<'_>,
) -> Result<Option<String>, Refusal> {
    let in_body = |path: &Option<String>| json_text(rule, request, path.as_deref()?);
    let (first, second) = match (&place.header, &place.form) {
        (Some(name), _) => (
            single(request.headers, name)?.map(str::to_owned),
            &place.json,
        ),
        (None, Some(name)) => (form_field(request, name)?.map(Cow::into_owned), &place.json),
        (None, None) => (in_body(&place.json), &place.sub_json),
    };
    let Some(first) = first else {
        return Ok(None);
    };
    Ok(Some(match in_body(second) {
        Some(second) => format!("{first}.{second}"),
        None => first,
    }))
}

fn well_formed(name: String, what: &str) -> Result<String, Refusal> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        return Err(Refusal::Malformed(what.to_owned()));
    }
    Ok(name)
}

/// Of source and body alone: with a timestamp or signature in it, every repeat would look new.
fn hash_of(source: &str, body: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update((source.len() as u64).to_be_bytes());
    hash.update(source.as_bytes());
    hash.update(body);
    format!("sha256-{}", hex::encode(hash.finalize()))
}

/// The string or integer at a dotted path of a JSON text.
pub(crate) fn text_at(json: &[u8], path: &str) -> Option<String> {
    let keys: Vec<&str> = path.split('.').collect();
    let mut json = serde_json::Deserializer::from_slice(json);
    let found = At(&keys).deserialize(&mut json).ok()?;
    json.end().ok()?;
    found
}

/// What stands at the path below the current value. Skips everything else without building it.
#[derive(Clone, Copy)]
struct At<'p>(&'p [&'p str]);

/// Whether a key is the one looked for.
struct IsKey<'p>(&'p str);

// === impl At ===

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl At<'_> {
    fn leaf(self, text: &impl ToString) -> Option<String> {
        self.0.is_empty().then(|| text.to_string())
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.leaf(&text))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(self.leaf(&number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(self.leaf(&number))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Some((key, rest)) = self.0.split_first() else {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(None);
        };
        let mut found = None;
        while let Some(is_key) = map.next_key_seed(IsKey(key))? {
            if is_key {
                found = map.next_value_seed(At(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let wanted = self.0.split_first().and_then(|(key, rest)| {
            let at: usize = key.parse().ok()?;
            Some((at, rest))
        });
        let mut found = None;
        for at in 0.. {
            let there = match wanted {
                Some((index, rest)) if index == at => {
                    let element = seq.next_element_seed(At(rest))?;
                    let there = element.is_some();
                    found = element.flatten();
                    there
                }
                _ => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !there {
                break;
            }
        }
        Ok(found)
    }
}

// === impl IsKey ===

impl<'de> DeserializeSeed<'de> for IsKey<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IsKey<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}
