//! What may be wrong with a rule. Checked once, at start, so that reading requests never meets it.

use super::{IdPlace, Part, Rule, TypePlace};
use http::HeaderName;
use runtime::Problem;

impl Rule {
    /// What is wrong with the rule, under `key`.
    pub fn check(&self, key: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut wrong = |field: &str, message: &str| {
            problems.push(Problem::new(format!("{key}.{field}"), message));
        };
        for (field, name) in self.header_names() {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                wrong(field, "is not a header name");
            }
        }
        let renamed = self.variants();
        let mut renamed = renamed.iter().skip(1).flat_map(Self::header_names);
        if renamed.any(|(_, name)| HeaderName::from_bytes(name.as_bytes()).is_err()) {
            wrong("alias", "does not make header names");
        }
        if self.signed.contains(&Part::Literal(String::new())) {
            wrong("signed", "a literal may not be empty");
        }
        let signature = &self.signature;
        if signature.field.is_some() != signature.field_separator.is_some() {
            wrong(
                "signature",
                "give both or none of `field` and `field_separator`",
            );
        }
        for separator in [&signature.item_separator, &signature.field_separator] {
            if separator.as_ref().is_some_and(String::is_empty) {
                wrong("signature", "a separator may not be empty");
            }
        }
        if self
            .signed
            .iter()
            .filter(|part| **part == Part::Body)
            .count()
            != 1
        {
            wrong(
                "signed",
                "must hold \"body\" exactly once: an unsigned body can be forged",
            );
        }
        let signs_time = self.signed.contains(&Part::Timestamp);
        match (&self.timestamp, signs_time) {
            (None, true) => wrong(
                "signed",
                "holds \"timestamp\", but `timestamp` names no place",
            ),
            (Some(_), false) => wrong("timestamp", "is not among `signed`: it could be forged"),
            (Some(place), true) if place.header.is_some() == place.field.is_some() => {
                wrong("timestamp", "give exactly one of `header` and `field`");
            }
            _ => {}
        }
        let reads_fields = self
            .signed
            .iter()
            .any(|part| matches!(part, Part::Field(_)))
            || self
                .timestamp
                .as_ref()
                .is_some_and(|place| place.field.is_some());
        if reads_fields && (signature.field.is_none() || signature.item_separator.is_none()) {
            wrong(
                "signature",
                "fields are read from it: give `item_separator` and `field`",
            );
        }
        check_places(&self.delivery_id, &self.event_type, &mut wrong);
        problems
    }

    /// Every header that the rule names, with the key under which it does.
    fn header_names(&self) -> Vec<(&'static str, &str)> {
        let mut names = vec![("signature.header", self.signature.header.as_str())];
        names.extend(
            self.timestamp
                .iter()
                .filter_map(|place| place.header.as_deref())
                .map(|name| ("timestamp.header", name)),
        );
        for part in &self.signed {
            if let Part::Header(name) = part {
                names.push(("signed", name));
            }
        }
        for place in &self.delivery_id {
            if let IdPlace::Header(name) = place {
                names.push(("delivery_id", name));
            }
        }
        let of_types = self
            .event_type
            .iter()
            .filter_map(|place| place.header.as_deref());
        names.extend(of_types.map(|name| ("event_type", name)));
        names
    }
}

fn check_places(ids: &[IdPlace], types: &[TypePlace], wrong: &mut impl FnMut(&str, &str)) {
    if ids.is_empty() {
        wrong(
            "delivery_id",
            "names no place: give a header, a json path or { hash = true }",
        );
    }
    for (at, place) in ids.iter().enumerate() {
        match place {
            IdPlace::Hash(false) => {
                wrong("delivery_id", "`hash = false` says nothing: leave it out")
            }
            IdPlace::Hash(true) if at + 1 < ids.len() => {
                wrong(
                    "delivery_id",
                    "nothing can follow `hash`: every webhook has one",
                );
            }
            IdPlace::Json(path) if !is_path(path) => {
                wrong("delivery_id", "`json` is a dotted path such as event.id");
            }
            IdPlace::Hash(true) | IdPlace::Json(_) | IdPlace::Header(_) => {}
        }
    }
    for place in types {
        if place.header.is_none() && place.json.is_none() {
            wrong("event_type", "give `header`, `json` or both");
        }
        if place.json.as_deref().is_some_and(|path| !is_path(path)) {
            wrong("event_type", "`json` is a dotted path such as event.type");
        }
    }
}

fn is_path(path: &str) -> bool {
    path.split('.').all(|key| !key.is_empty())
}
