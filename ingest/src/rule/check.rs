//! What may be wrong with a rule. Checked once, at start, so that reading requests never meets it.

use super::{
    Algorithm, Encoding, Handshake, IdPlace, Part, Reply, Rule, SignatureRule, TypePlace, Value,
    Verifier,
};
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
        match (&self.signature, self.verifier) {
            (Some(signature), None) => self.check_signature(signature, &mut wrong),
            (None, Some(_)) => {
                if !self.signed.is_empty() || self.timestamp.is_some() {
                    wrong(
                        "verifier",
                        "says what is signed: leave `signed` and `timestamp` out",
                    );
                }
            }
            (Some(_), Some(_)) => wrong("verifier", "give `signature` or `verifier`, not both"),
            (None, None) => wrong("signature", "is missing: where does the signature stand?"),
        }
        let makes_ids = self.verifier.is_some_and(|made| made != Verifier::Paypal);
        let asks = self
            .delivery_id
            .iter()
            .any(|place| matches!(place, IdPlace::Verifier(_)));
        if asks && !makes_ids {
            wrong(
                "delivery_id",
                "`verifier` is for a rule whose verifier makes an id",
            );
        }
        check_ids(&self.delivery_id, &mut wrong);
        check_types(&self.event_type, &mut wrong);
        for handshake in &self.handshake {
            if let Some(message) = mistake(handshake) {
                wrong("handshake", message);
            }
        }
        problems
    }

    fn check_signature(&self, signature: &SignatureRule, wrong: &mut impl FnMut(&str, &str)) {
        if self.signed.contains(&Part::Literal(String::new())) {
            wrong("signed", "a literal may not be empty");
        }
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
        let separators = [&signature.item_separator, &signature.field_separator];
        let texts = separators.into_iter().chain([&signature.field]).flatten();
        let mut texts = texts.chain([&signature.prefix]);
        if texts.any(|text| text.contains(|is: char| is != ' ' && !is.is_ascii_graphic())) {
            wrong(
                "signature",
                "`prefix`, `field` and separators are visible ASCII: nothing else is read from a header",
            );
        }
        if (signature.encoding == Encoding::Plain) != (self.algorithm == Algorithm::Token) {
            wrong(
                "signature.encoding",
                "\"plain\" goes with the algorithm \"token\", and with no other",
            );
        }
        if self.algorithm == Algorithm::Token {
            if !self.signed.is_empty() || self.timestamp.is_some() {
                wrong(
                    "algorithm",
                    "a token signs nothing: leave `signed` and `timestamp` out",
                );
            }
            return;
        }
        let is_body = |part: &&Part| **part == Part::Body;
        if self.signed.iter().filter(is_body).count() != 1 {
            wrong(
                "signed",
                "must hold \"body\" exactly once: an unsigned body can be forged",
            );
        }
        self.check_time(signature, wrong);
    }

    fn check_time(&self, signature: &SignatureRule, wrong: &mut impl FnMut(&str, &str)) {
        let signs_time = self.signed.contains(&Part::Timestamp);
        match &self.timestamp {
            None if signs_time => wrong(
                "signed",
                "holds \"timestamp\", but `timestamp` names no place",
            ),
            None => {}
            Some(place) => {
                let places = [&place.header, &place.field, &place.json];
                if places.into_iter().flatten().count() != 1 {
                    wrong(
                        "timestamp",
                        "give exactly one of `header`, `field` and `json`",
                    );
                } else if place.json.is_some() && signs_time {
                    wrong(
                        "signed",
                        "a timestamp in the body is signed with it: leave \"timestamp\" out",
                    );
                } else if place.json.is_none() && !signs_time {
                    wrong("timestamp", "is not among `signed`: it could be forged");
                }
                if place.json.as_deref().is_some_and(|path| !is_path(path)) {
                    wrong("timestamp", "`json` is a dotted path such as event.time");
                }
            }
        }
        let in_signature = self.timestamp.iter().any(|place| place.field.is_some());
        let mut parts = self.signed.iter();
        let reads_fields = in_signature || parts.any(|part| matches!(part, Part::Field(_)));
        if reads_fields && (signature.field.is_none() || signature.item_separator.is_none()) {
            wrong(
                "signature",
                "fields are read from it: give `item_separator` and `field`",
            );
        }
    }

    /// Every header that the rule names, with the key under which it does.
    fn header_names(&self) -> Vec<(&'static str, &str)> {
        let mut names = Vec::new();
        if let Some(signature) = &self.signature {
            names.push(("signature.header", signature.header.as_str()));
        }
        let of_time = self.timestamp.iter();
        names.extend(
            of_time
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
        let of_types = self.event_type.iter();
        names.extend(
            of_types
                .filter_map(|place| place.header.as_deref())
                .map(|name| ("event_type", name)),
        );
        names
    }
}

fn check_ids(ids: &[IdPlace], wrong: &mut impl FnMut(&str, &str)) {
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
            IdPlace::Verifier(false) => {
                wrong(
                    "delivery_id",
                    "`verifier = false` says nothing: leave it out",
                );
            }
            IdPlace::Hash(true) | IdPlace::Verifier(true) if at + 1 < ids.len() => {
                wrong(
                    "delivery_id",
                    "nothing can follow `hash` or `verifier`: every webhook has one",
                );
            }
            IdPlace::Json(path) if !is_path(path) => {
                wrong("delivery_id", "`json` is a dotted path such as event.id");
            }
            IdPlace::JsonJoined(paths)
                if paths.len() < 2 || !paths.iter().all(|path| is_path(path)) =>
            {
                wrong(
                    "delivery_id",
                    "`json-joined` is a list of dotted paths such as event.id",
                );
            }
            IdPlace::Form(name) if name.is_empty() => {
                wrong("delivery_id", "`form` is the name of a field");
            }
            IdPlace::Hash(true)
            | IdPlace::Verifier(true)
            | IdPlace::Json(_)
            | IdPlace::JsonJoined(_)
            | IdPlace::Form(_)
            | IdPlace::Header(_) => {}
        }
    }
}

fn check_types(types: &[TypePlace], wrong: &mut impl FnMut(&str, &str)) {
    for place in types {
        let outside = place.header.is_some() || place.form.is_some();
        if place.header.is_some() && place.form.is_some() {
            wrong("event_type", "give `header` or `form`, not both");
        }
        if !outside && place.json.is_none() {
            wrong("event_type", "give `header`, `form` or `json`");
        }
        if outside && place.sub_json.is_some() {
            wrong(
                "event_type",
                "`sub_json` goes with a `json` that stands alone",
            );
        }
        let paths = [&place.json, &place.sub_json];
        if paths.into_iter().flatten().any(|path| !is_path(path)) {
            wrong("event_type", "`json` is a dotted path such as event.type");
        }
    }
}

fn mistake(handshake: &Handshake) -> Option<&'static str> {
    let places = [&handshake.json, &handshake.form, &handshake.query];
    let echoes = !matches!(handshake.reply, Reply::Empty | Reply::Constant(_));
    let computes = matches!(handshake.reply, Reply::Object(_));
    if places.into_iter().flatten().count() != 1 {
        Some("give exactly one of `json`, `form` and `query`")
    } else if handshake.query.is_some() != handshake.token_query.is_some() {
        Some("`query` and `token_query` go together: nothing else protects such a request")
    } else if !paths(handshake).all(is_path) {
        Some("`json`, and what the reply is made of, are dotted paths such as event.type")
    } else if handshake.query.is_some() && computes {
        Some("a query has no body to take the reply from")
    } else if handshake.unsigned && (echoes || handshake.query.is_some()) {
        Some("what is not signed may only be answered with nothing or a constant")
    } else if !(200..300).contains(&handshake.status) {
        Some("`status` must be from 200 to 299")
    } else if handshake.status == 204 && handshake.reply != Reply::Empty {
        Some("an answer with the status 204 has no body: the reply must be \"empty\"")
    } else {
        None
    }
}

/// Every path of the JSON body that a handshake looks at.
fn paths(handshake: &Handshake) -> impl Iterator<Item = &str> {
    let mut paths: Vec<&str> = handshake.json.as_deref().into_iter().collect();
    match &handshake.reply {
        Reply::EchoJson(path) => paths.push(path),
        Reply::Object(fields) => paths.extend(fields.values().map(|value| match value {
            Value::Json(path) | Value::HmacOfJson(path) => path.as_str(),
        })),
        Reply::Empty | Reply::Constant(_) | Reply::EchoQuery(_) => {}
    }
    paths.into_iter()
}

fn is_path(path: &str) -> bool {
    path.split('.').all(|key| !key.is_empty())
}
