//! Places of a request, for people.

use crate::{
    extract::{delivery_id, event_type},
    request::Request,
    rule::{IdPlace, Rule, TimestampRule, TypePlace},
};

/// Where the time of signing stands.
pub(super) fn time_place(place: &TimestampRule) -> String {
    match (&place.header, &place.field, &place.json) {
        (Some(name), ..) => format!("header {name}"),
        (None, Some(name), _) => format!("{name}= of the signature"),
        (None, None, Some(path)) => format!("{path} of the body"),
        (None, None, None) => "nowhere".to_owned(),
    }
}

/// Where the delivery id was found.
pub(super) fn id_place(rule: &Rule, source: &str, request: &Request<'_>) -> Option<String> {
    let found = rule.delivery_id.iter().find(|place| {
        let alone = Rule {
            delivery_id: vec![(*place).clone()],
            ..rule.clone()
        };
        delivery_id(&alone, source, request).is_ok()
    })?;
    Some(found.described())
}

/// Where the event type was found.
pub(super) fn type_place(rule: &Rule, request: &Request<'_>) -> Option<String> {
    let found = rule.event_type.iter().find(|place| {
        let alone = Rule {
            event_type: vec![(*place).clone()],
            ..rule.clone()
        };
        event_type(&alone, request).is_ok_and(|name| !name.is_empty())
    })?;
    Some(found.described())
}

// === impl IdPlace ===

impl IdPlace {
    /// The place for people, e.g. `header x-github-delivery`.
    pub fn described(&self) -> String {
        match self {
            Self::Header(name) => format!("header {name}"),
            Self::Json(path) => format!("{path} of the body"),
            Self::JsonJoined(paths) => format!("{} of the body", paths.join(", ")),
            Self::Form(name) => format!("field {name} of the form"),
            Self::Hash(_) => "a hash of the body".to_owned(),
            Self::Verifier(_) => "what is signed".to_owned(),
        }
    }
}

// === impl TypePlace ===

impl TypePlace {
    /// The place for people, e.g. `header x-github-event, action of the body`.
    pub fn described(&self) -> String {
        let header = self.header.iter().map(|name| format!("header {name}"));
        let form = self
            .form
            .iter()
            .map(|name| format!("field {name} of the form"));
        let json = [&self.json, &self.sub_json].into_iter().flatten();
        let json = json.map(|path| format!("{path} of the body"));
        let places: Vec<String> = header.chain(form).chain(json).collect();
        places.join(", ")
    }
}
