//! One thing wrong at a time, with every preset. What is expected follows from the preset's class: whether it has a time, a list
//! of signatures, hexadecimal; a token covers nothing.

use crate::{Given, Sample, other_secret, samples_of_rules, secret_of, word};
use http::{HeaderName, HeaderValue};
use ingest::{
    SourceConfig,
    rule::{Algorithm, Encoding, Unit},
    verify::Verified,
};
use runtime::Secret;

const BODIES: [&[u8]; 9] = [
    b"",
    b"{}",
    b"{}\r\n",
    b"\xff\xfe\x00 not text",
    b"{\"a\":\"\xf0\x9f\x98\x80\xef\xb8\x8f\"}",
    b"{\"a\":\"\xe2\x80\xa8\"}",
    b"{\"a\":\"\x1b[34m \\u003c \\/ \"}",
    b"\xef\xbb\xbf{}",
    &[b'.'; 300_000],
];

fn is_token(given: &Given) -> bool {
    given.rule.algorithm == Algorithm::Token
}

fn each(check: impl Fn(&Sample, &Given)) {
    for sample in samples_of_rules() {
        check(&sample, &sample.given(&sample.first));
    }
}

#[test]
fn another_secret_does_not_fit() {
    each(|sample, given| {
        let [right, other] = [&sample.secret, &other_secret(&given.rule)].map(|it| secret_of(it));
        let try_all = |secrets: &[Secret]| word(&given.verify_with(secrets));
        given.rule.checks(&other).unwrap();
        assert_eq!(
            try_all(std::slice::from_ref(&other)),
            "mismatch",
            "{}",
            sample.name()
        );
        assert_eq!(try_all(&[]), "mismatch", "{}", sample.name());
        let at = |secrets: &[Secret]| given.verify_with(secrets);
        let third = at(&[other.clone(), other.clone(), right.clone()]);
        assert_eq!(third, Ok(Verified { slot: 2 }), "{}", sample.name());
        let first = at(&[right, other]);
        assert_eq!(first, Ok(Verified { slot: 0 }), "{}", sample.name());
        // Nor does what is not a key at all.
        for text in ["", "whsec_", "not base64, not hexadecimal"] {
            assert_eq!(try_all(&[secret_of(text)]), "mismatch", "{}", sample.name());
        }
    });
}

/// The samples are of 2023-11-14T22:13:20Z.
#[test]
fn a_secret_fits_until_its_end() {
    use figment::providers::{Format, Toml};
    let directory = tempfile::tempdir().unwrap();
    each(|sample, given| {
        std::fs::write(directory.path().join("s"), &sample.secret).unwrap();
        for (second, expected) in [(20, "ok"), (19, "mismatch")] {
            let text = format!(
                "secrets = [{{ file = \"s\", not_after = \"2023-11-14T22:13:{second}Z\" }}]"
            );
            let config: SourceConfig = figment::Figment::from(Toml::string(&text))
                .extract()
                .unwrap();
            let secret = Secret::open(&config.secrets[0], directory.path()).unwrap();
            let found = word(&given.verify_with(&[secret]));
            assert_eq!(found, expected, "{}", sample.name());
        }
    });
}

/// While a provider rotates its secret, it sends a signature of each.
#[test]
fn any_of_several_signatures_fits() {
    let mut lists = 0;
    for sample in samples_of_rules() {
        let mut given = sample.given(&sample.first);
        let signature = given.rule.signature.as_ref().unwrap();
        if signature.item_separator.is_none() {
            continue;
        }
        lists += 1;
        let [right, other] = sample.signing_secrets();
        for secrets in [[right.as_str(), &other], [&other, &right]] {
            given.sign(&secrets);
            assert_eq!(given.verify(), "ok", "{}", sample.name());
        }
    }
    assert!(lists >= 10, "{lists}");
}

#[test]
fn a_needed_header_stands_there_once() {
    each(|sample, given| {
        let signature = given.signature();
        let needed = given.needed();
        let absent = |name: &HeaderName| {
            if *name == signature {
                "unsigned"
            } else {
                "missing"
            }
        };
        for name in needed.iter().chain([&signature]) {
            let mut without = given.clone();
            let value = without.headers.remove(name).unwrap();
            assert_eq!(without.verify(), absent(name), "{} {name}", sample.name());
            for again in [value, HeaderValue::from_static("")] {
                let mut twice = given.clone();
                twice.headers.append(name, again);
                assert_eq!(twice.verify(), "repeated", "{} {name}", sample.name());
            }
            let long = given.with(name, "1".repeat(5_000));
            assert_eq!(long.verify(), "malformed", "{} {name}", sample.name());
            for bytes in [b"\xff".as_slice(), "é".as_bytes()] {
                let other = given.with(name, bytes);
                assert_eq!(other.verify(), "malformed", "{} {name}", sample.name());
            }
        }
    });
}

#[test]
fn a_signature_that_is_bent_does_not_fit() {
    each(|sample, given| {
        let name = given.signature();
        let text = given.text(&name);
        let with = |value: &str| given.with(&name, value).verify();
        let rule = given.rule.signature.as_ref().unwrap();
        let by_spaces = rule.item_separator.as_deref() == Some(" ");
        let time_inside = given.rule.timestamp.as_ref();
        let time_inside = time_inside.is_some_and(|place| place.field.is_some());
        // White space is part of an item, unless it separates them; of a list that begins with the time it is part of that.
        let [before, after] = match (by_spaces, time_inside) {
            (true, _) => ["ok", "ok"],
            (false, true) => ["missing", "mismatch"],
            (false, false) => ["mismatch", "mismatch"],
        };
        assert_eq!(with(&format!(" {text}")), before, "{}", sample.name());
        assert_eq!(with(&format!("{text} ")), after, "{}", sample.name());
        assert_eq!(with(&format!("{text}\t")), "mismatch", "{}", sample.name());
        let empty = if time_inside { "missing" } else { "mismatch" };
        assert_eq!(with(""), empty, "{}", sample.name());
        for cut in [1, 2, 4, 20] {
            let shorter = text.get(..text.len() - cut).unwrap();
            assert_eq!(with(shorter), "mismatch", "{} -{cut}", sample.name());
        }
        assert_eq!(with(&format!("{text}00")), "mismatch", "{}", sample.name());
        let (last, rest) = (text.len() - 9, text.get(text.len() - 8..).unwrap());
        let changed = if text.as_bytes()[last] == b'0' {
            '1'
        } else {
            '0'
        };
        let bent = format!("{}{changed}{rest}", text.get(..last).unwrap());
        assert_eq!(with(&bent), "mismatch", "{}", sample.name());
        if !rule.prefix.is_empty() {
            let bare = text.strip_prefix(&rule.prefix).unwrap();
            assert_eq!(with(bare), "mismatch", "{}", sample.name());
            let upper = format!("{}{bare}", rule.prefix.to_uppercase());
            assert_eq!(with(&upper), "mismatch", "{}", sample.name());
        }
        if let Some(field) = &rule.field {
            let other = text.replace(
                &format!("{field}{}", rule.field_separator.as_ref().unwrap()),
                "v9=",
            );
            assert_eq!(with(&other), "mismatch", "{}", sample.name());
        }
    });
}

#[test]
fn upper_case_is_the_same_in_hexadecimal_and_another_signature_elsewhere() {
    let mut hexadecimal = 0;
    for sample in samples_of_rules() {
        let given = sample.given(&sample.first);
        let name = given.signature();
        let text = given.text(&name);
        let upper = if given.rule.signature.as_ref().unwrap().encoding == Encoding::Hex {
            hexadecimal += 1;
            let at = text.rfind('=').map_or(0, |at| at + 1);
            format!(
                "{}{}",
                text.get(..at).unwrap(),
                text.get(at..).unwrap().to_uppercase()
            )
        } else {
            let at = text.len() - 24;
            format!(
                "{}{}",
                text.get(..at).unwrap(),
                text.get(at..).unwrap().to_uppercase()
            )
        };
        assert_ne!(upper, text);
        let hex = given.rule.signature.as_ref().unwrap().encoding == Encoding::Hex;
        let expected = if hex { "ok" } else { "mismatch" };
        assert_eq!(
            given.with(&name, upper).verify(),
            expected,
            "{}",
            sample.name()
        );
    }
    assert!(hexadecimal >= 15, "{hexadecimal}");
}

#[test]
fn the_time_is_good_for_as_long_as_the_preset_says() {
    each(|sample, given| {
        let at = |now_ms| {
            Given {
                now_ms,
                ..given.clone()
            }
            .verify()
        };
        if given.rule.timestamp.is_none() {
            for now_ms in [i64::MIN, 0, i64::MAX] {
                assert_eq!(at(now_ms), "ok", "{}", sample.name());
            }
            return;
        }
        let ms = |duration: std::time::Duration| i64::try_from(duration.as_millis()).unwrap();
        let signed_at_ms = sample.first.signed_at_ms;
        let [past, future] = [given.rule.tolerance.past, given.rule.tolerance.future].map(ms);
        assert!((60_000..=300_000).contains(&past) && (60_000..=300_000).contains(&future));
        for (now_ms, expected) in [
            (signed_at_ms + past, "ok"),
            (signed_at_ms + past + 1, "stale"),
            (signed_at_ms - future, "ok"),
            (signed_at_ms - future - 1, "early"),
            (i64::MAX, "stale"),
            (i64::MIN, "early"),
        ] {
            assert_eq!(at(now_ms), expected, "{} {now_ms}", sample.name());
        }
        // Whoever can not sign is not told of the clock.
        let forged = Given {
            now_ms: i64::MAX,
            body: b"{}".to_vec(),
            ..given.clone()
        };
        assert_eq!(forged.verify(), "mismatch", "{}", sample.name());
    });
}

#[test]
fn a_time_in_a_header_has_one_spelling_and_is_signed() {
    each(|sample, given| {
        let Some((place, name)) = given.rule.timestamp.as_ref().and_then(|place| {
            let name = place.header.as_deref()?;
            Some((place, crate::name_of(name)))
        }) else {
            return;
        };
        let text = given.text(&name);
        let bent: Vec<String> = match place.unit {
            Unit::Seconds | Unit::Milliseconds => {
                ["+{}", "0{}", " {}", "{}.0", "-{}", "{} ", "0x{}"]
                    .map(|form| form.replace("{}", &text))
                    .into()
            }
            Unit::Rfc3339 => vec![
                "1700000000".to_owned(),
                text.replace('Z', ""),
                format!("{text}[UTC]"),
                "today".to_owned(),
            ],
        };
        for value in bent.into_iter().chain([String::new()]) {
            let found = given.with(&name, &value).verify();
            assert_eq!(found, "malformed", "{} {value:?}", sample.name());
        }
        let later = text
            .replace("1700000000", "1700000001")
            .replace("13:20", "13:21");
        assert_ne!(later, text);
        let found = given.with(&name, later).verify();
        assert_eq!(found, "mismatch", "{}", sample.name());
    });
}

#[test]
fn no_byte_of_the_body_may_change() {
    each(|sample, given| {
        let expected = if is_token(given) { "ok" } else { "mismatch" };
        let with = |body: Vec<u8>| {
            Given {
                body,
                ..given.clone()
            }
            .verify()
        };
        for at in 0..given.body.len() {
            let mut changed = given.body.clone();
            changed[at] ^= 1;
            assert_eq!(with(changed), expected, "{} byte {at}", sample.name());
        }
        let body = given.body.as_slice();
        assert_eq!(with([body, b"\n"].concat()), expected, "{}", sample.name());
        assert_eq!(with([b" ", body].concat()), expected, "{}", sample.name());
        let shorter = body.get(..body.len() - 1).unwrap().to_vec();
        assert_eq!(with(shorter), expected, "{}", sample.name());
        assert_eq!(with(Vec::new()), expected, "{}", sample.name());
    });
    let tokens = samples_of_rules()
        .into_iter()
        .filter(|sample| is_token(&sample.given(&sample.first)));
    assert!(tokens.clone().count() > 0);
    assert!(
        tokens
            .into_iter()
            .all(|sample| sample.preset == "gitlab-token")
    );
}

#[test]
fn any_bytes_are_a_body() {
    each(|sample, given| {
        // A body without the time that must stand in it is refused, but only once it is known who signed it.
        let in_body = given.rule.timestamp.as_ref();
        let in_body = in_body.is_some_and(|place| place.json.is_some());
        for body in BODIES {
            let signed = sample.with_body(body);
            let expected = if in_body { "missing" } else { "ok" };
            assert_eq!(signed.verify(), expected, "{}", sample.name());
            let mut forged = signed;
            forged.body.push(b' ');
            let expected = if is_token(given) { "ok" } else { "mismatch" };
            assert_eq!(forged.verify(), expected, "{}", sample.name());
        }
    });
}

/// Of a URL nothing may be another, whichever part of it is configured.
#[test]
fn a_signed_url_is_the_one_that_was_called() {
    for sample in samples_of_rules() {
        let given = sample.given(&sample.first);
        if !given.rule.signs_url() {
            continue;
        }
        let url = sample.public_url.clone().unwrap();
        let with = |public_url: Option<String>, query: Option<&str>| {
            let mut given = given.clone();
            given.sample.public_url = public_url;
            given.sample.query = query.map(str::to_owned);
            given.verify()
        };
        let query = sample.query.as_deref();
        assert_eq!(with(Some(url.clone()), query), "ok");
        assert_eq!(with(None, query), "missing");
        assert_eq!(with(Some(url.replace("https", "http")), query), "mismatch");
        assert_eq!(with(Some(url.replace("/s", "/s/")), query), "mismatch");
        assert_eq!(
            with(Some(url.replace("example.com", "example.com:443")), query),
            "mismatch"
        );
        let other = if url.contains('?') { "ok" } else { "mismatch" };
        assert_eq!(
            with(Some(url), Some("another=1")),
            other,
            "{}",
            sample.name()
        );
    }
}
