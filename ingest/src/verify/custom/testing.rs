//! Requests that tests can spoil.

use crate::{
    Request,
    rule::Tolerance,
    sign::{Made, Unsigned},
    verify::{Refusal, Verified},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use runtime::Secret;

/// A day after the certificates of the tests were made.
pub(in crate::verify) const NOW_MS: i64 = 1_800_000_000_000;

pub(in crate::verify) fn unsigned<'a>(delivery_id: &'a str, body: &'a [u8]) -> Unsigned<'a> {
    Unsigned {
        delivery_id,
        event_type: "",
        public_url: None,
        body,
        now_ms: NOW_MS,
    }
}

pub(in crate::verify) const BODIES: [&[u8]; 6] = [
    b"",
    b"{}",
    "{\"a\":\"\u{1f389} \u{2028}\"}".as_bytes(),
    b"\xff\xfe\x00",
    b" {} \r\n",
    b"{\"a\":\"\\ud800\"}",
];

#[derive(Clone, Debug)]
pub(in crate::verify) struct Sent {
    pub(in crate::verify) headers: HeaderMap,
    pub(in crate::verify) query: Option<String>,
    pub(in crate::verify) public_url: Option<String>,
    pub(in crate::verify) body: Vec<u8>,
    pub(in crate::verify) at_ms: i64,
}

impl Sent {
    pub(in crate::verify) fn of(made: Made) -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in made.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_str(&value).unwrap());
        }
        Self {
            headers,
            query: made.query,
            public_url: None,
            body: made.body,
            at_ms: NOW_MS,
        }
    }

    pub(in crate::verify) fn request(&self) -> Request<'_> {
        Request {
            method: &Method::POST,
            headers: &self.headers,
            query: self.query.as_deref(),
            public_url: self.public_url.as_deref(),
            body: &self.body,
            received_at_ms: self.at_ms,
        }
    }

    pub(in crate::verify) fn with(mut self, name: &'static str, value: &[u8]) -> Self {
        self.headers
            .insert(name, HeaderValue::from_bytes(value).unwrap());
        self
    }

    pub(in crate::verify) fn without(mut self, name: &str) -> Self {
        self.headers.remove(name).unwrap();
        self
    }

    pub(in crate::verify) fn repeated(mut self, name: &'static str) -> Self {
        let value = self.headers[name].clone();
        self.headers.append(name, value);
        self
    }

    pub(in crate::verify) fn text(&self, name: &str) -> String {
        self.headers[name].to_str().unwrap().to_owned()
    }

    pub(in crate::verify) fn at(mut self, at_ms: i64) -> Self {
        self.at_ms = at_ms;
        self
    }

    pub(in crate::verify) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// The body with one text in place of another, which must be there.
    pub(in crate::verify) fn edited(mut self, from: &str, to: &str) -> Self {
        let body = String::from_utf8(self.body).unwrap();
        assert!(body.contains(from), "{from} in {body}");
        self.body = body.replacen(from, to, 1).into_bytes();
        self
    }
}

pub(in crate::verify) fn secrets(texts: &[&str]) -> Vec<Secret> {
    texts
        .iter()
        .map(|text| Secret::from_bytes(text.as_bytes()))
        .collect()
}

pub(in crate::verify) fn word(found: &Result<Verified, Refusal>) -> &'static str {
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

/// Nine hours back, a minute ahead.
pub(in crate::verify) fn tolerance() -> Tolerance {
    Tolerance {
        past: std::time::Duration::from_secs(9 * 3_600),
        future: std::time::Duration::from_secs(60),
    }
}

#[test]
fn the_first_secret_that_fits_counts_until_its_end() {
    let fits = |text: &[u8]| text == b"right";
    let slot = |texts: &[&str]| super::slot_of(&secrets(texts), NOW_MS, fits);
    assert_eq!(slot(&["right", "wrong", "right"]), Ok(0));
    assert_eq!(slot(&["wrong", "right", "wrong"]), Ok(1));
    assert_eq!(slot(&["wrong"]), Err(Refusal::Mismatch));
    assert_eq!(slot(&[]), Err(Refusal::Mismatch));

    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("s"), "right").unwrap();
    let not_after = jiff::Timestamp::from_millisecond(NOW_MS).unwrap();
    let place = runtime::SecretRef {
        env: None,
        file: Some("s".into()),
        not_after: Some(not_after),
    };
    let ending = [Secret::open(&place, directory.path()).unwrap()];
    assert_eq!(super::slot_of(&ending, NOW_MS, fits), Ok(0));
    let after = super::slot_of(&ending, NOW_MS + 1, fits);
    assert_eq!(after, Err(Refusal::Mismatch));
}
