use super::{
    super::{
        Refusal, Verified,
        custom::testing::{BODIES, NOW_MS, Sent, secrets, unsigned, word},
    },
    *,
};
use proptest::prelude::*;

const URL: &str = "https://mycompany.com/myapp.php?foo=1&bar=2";
const FORM: &str = "CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212";
const TOKEN: &str = "12345";

fn made(url: &str, is_form: bool, body: &[u8]) -> Sent {
    let mut unsigned = unsigned("tok-1", body);
    unsigned.public_url = Some(url);
    let mut sent = Sent::of(sign(TOKEN.as_bytes(), &unsigned, is_form).unwrap());
    sent.public_url = Some(split(url).0.to_owned());
    sent
}

fn check(sent: &Sent) -> Result<Verified, Refusal> {
    verify(&secrets(&["other", TOKEN]), &sent.request())
}

/// twilio/twilio-node `spec/validation.spec.js`: URL, form, signature. The fifth is of a URL that was made by addition of the
/// usual port to one with a user.
const VECTORS: [(&str, &str, &str); 11] = [
    (URL, FORM, "RSOYDt4T1cUTdK1PDd93/VVr8B8="),
    (
        "https://mycompany.com:1234/myapp.php?foo=1&bar=2",
        FORM,
        "RSOYDt4T1cUTdK1PDd93/VVr8B8=",
    ),
    (
        "http://mycompany.com:1234/myapp.php?foo=1&bar=2",
        FORM,
        "Zmvh+3yNM1Phv2jhDCwEM3q5ebU=",
    ),
    (URL, FORM, "kvajT1Ptam85bY51eRf/AJRuM3w="),
    (
        "http://mycompany.com/myapp.php?foo=1&bar=2",
        FORM,
        "0ZXoZLH/DfblKGATFgpif+LLRf4=",
    ),
    (
        "https://user:pass@mycompany.com/myapp.php?foo=1&bar=2",
        FORM,
        "CukzLTc1tT5dXEDIHm/tKBanW10=",
    ),
    (
        "https://user@mycompany.com/myapp.php?foo=1&bar=2",
        FORM,
        "2YRLlVAflCqxaNicjMpJcSTgzSs=",
    ),
    (
        "https://user:pass@mycompany.com/myapp.php?foo=1&bar=2",
        FORM,
        "ZQFR1PTIZXF2MXB8ZnKCvnnA+rI=",
    ),
    (
        "https://mycompany.com/myapp.php?foo=1&bar=2&Body=It's+amazing",
        FORM,
        "dsq4Ehbj6cs+KdTkpF5sSSplOWw=",
    ),
    (
        URL,
        "MessagingBinding.Address=%2B1415xxxxxxx&MessagingBinding.Address=%2B1325xxxxxxx",
        "83O6e2vORAoJHUNzJjDWN1jz+BA=",
    ),
    (
        URL,
        "Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234&Digits=1234",
        "IK+Dwps556ElfBT0I3Rgjkr1wJU=",
    ),
];

fn form(url: &str, form: &str, signature: &str) -> Sent {
    let mut sent = made(url, true, form.as_bytes());
    sent.query = split(url).1.map(str::to_owned);
    sent.with(SIGNATURE, signature.as_bytes())
}

#[test]
fn published_forms_are_accepted_and_nothing_may_change() {
    for (url, text, signature) in VECTORS {
        let sent = form(url, text, signature);
        assert_eq!(check(&sent), Ok(Verified { slot: 1 }), "{url} {text}");
        for at in 0..text.len() {
            let mut body = text.as_bytes().to_vec();
            body[at] ^= 1;
            // `&` and `'`, `%2B` and `%3B` …: each says something else.
            let found = word(&check(&sent.clone().body(body)));
            assert_ne!(found, "ok", "{text} at {at}");
        }
        for end in 0..signature.len() {
            let found = check(&sent.clone().with(SIGNATURE, &signature.as_bytes()[..end]));
            assert_eq!(word(&found), "mismatch", "{end} of {signature}");
        }
        let mut other = sent.clone();
        other.query = Some(format!("{}&x", sent.query.unwrap()));
        assert_eq!(word(&check(&other)), "mismatch");
    }
}

/// The same spec file: a URL with the hash of a JSON body.
#[test]
fn published_json_is_accepted_and_nothing_may_change() {
    let body = br#"{"property": "value", "boolean": true}"#;
    let hash = "bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620";
    let query = format!("foo=1&bar=2&{hash}");
    for (query, signature) in [
        (query.as_str(), "a9nBmqA0ju/hNViExpshrM61xv4="),
        (hash, "y77kIzt2vzLz71DgmJGsen2scGs="),
    ] {
        let mut sent = made(URL, false, body).with(SIGNATURE, signature.as_bytes());
        sent.query = Some(query.to_owned());
        assert_eq!(check(&sent), Ok(Verified { slot: 1 }));
        assert_eq!(word(&check(&sent.clone().body(b"{}"))), "mismatch");
        assert_eq!(word(&check(&sent.clone().body(b""))), "mismatch");
        for (query, expected) in [
            (Some(hash.replace("0a1f", "0a1e")), "mismatch"),
            (Some(hash.replace("bodySHA256", "bodysha256")), "missing"),
            (Some(hash.replace("0a1f", "")), "malformed"),
            (Some(format!("{hash}&{hash}")), "repeated"),
            (Some(String::new()), "missing"),
            (None, "missing"),
        ] {
            let mut other = sent.clone();
            other.query = query;
            assert_eq!(word(&check(&other)), expected, "{:?}", other.query);
        }
    }
}

#[test]
fn every_body_is_bound() {
    for body in BODIES {
        let sent = made(URL, false, body);
        assert_eq!(check(&sent), Ok(Verified { slot: 1 }), "{body:?}");
        let longer = [body, b"x"].concat();
        assert_eq!(word(&check(&sent.body(longer))), "mismatch", "{body:?}");
    }
    for form in [
        &b""[..],
        b"a",
        b"a=%F0%9F%8E%89&b=\xff&%ff=%zz",
        b"Body=%E2%80%A8",
        b"&&a=&=b",
    ] {
        let sent = made(URL, true, form);
        assert_eq!(check(&sent), Ok(Verified { slot: 1 }), "{form:?}");
        let longer = [form, b"&x=y"].concat();
        assert_eq!(word(&check(&sent.body(longer))), "mismatch", "{form:?}");
    }
}

#[test]
fn everything_that_may_be_wrong_with_a_request() {
    let sent = made(URL, true, FORM.as_bytes());
    let signature = sent.text(SIGNATURE);
    let padded = format!("{signature} ");
    let unpadded = signature.trim_end_matches('=').to_owned();
    for (sent, expected) in [
        (sent.clone().without(SIGNATURE), "unsigned"),
        (sent.clone().repeated(SIGNATURE), "repeated"),
        (sent.clone().with(SIGNATURE, b""), "mismatch"),
        (sent.clone().with(SIGNATURE, b"\xff"), "malformed"),
        (sent.clone().with(SIGNATURE, padded.as_bytes()), "mismatch"),
        (
            sent.clone().with(SIGNATURE, unpadded.as_bytes()),
            "mismatch",
        ),
        (sent.clone().with(SIGNATURE, &[b'A'; 5_000]), "malformed"),
        (
            sent.clone().with("content-type", b"application/json"),
            "missing",
        ),
        (sent.clone().without("content-type"), "missing"),
        (
            sent.clone().with(
                "content-type",
                b"Application/X-WWW-Form-URLencoded; charset=UTF-8",
            ),
            "ok",
        ),
        (
            sent.clone()
                .body(FORM.replace("Digits=1234", "Digits=1234 ")),
            "mismatch",
        ),
        (sent.clone().body("a&".repeat(1_001)), "malformed"),
        (sent.clone().at(i64::MAX), "ok"),
        (sent.clone().at(i64::MIN), "ok"),
    ] {
        assert_eq!(word(&check(&sent)), expected, "{sent:?}");
    }
    let mut nowhere = sent.clone();
    nowhere.public_url = None;
    assert_eq!(word(&check(&nowhere)), "missing");
    let mut elsewhere = sent.clone();
    elsewhere.public_url = Some("https://mycompany.com/Myapp.php".to_owned());
    assert_eq!(word(&check(&elsewhere)), "mismatch");
    for others in [&["other"][..], &[""], &[]] {
        let found = verify(&secrets(others), &sent.request());
        assert_eq!(found, Err(Refusal::Mismatch), "{others:?}");
    }
}

/// A signed URL whose query, hash and all, comes as the name of a parameter would else be a form with nothing in it that
/// Twilio ever sent.
#[test]
fn a_signed_hash_can_not_be_moved_into_a_form() {
    let json = made(URL, false, b"{}");
    let query = json.query.clone().unwrap();
    for at in 0..=query.len() {
        let (kept, moved) = query.split_at(at);
        let escaped: String = moved.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mut form = json.clone().body(escaped);
        form.headers = made(URL, true, b"").headers;
        form.headers
            .insert(SIGNATURE, json.headers[SIGNATURE].clone());
        form.query = Some(kept.to_owned());
        if at == query.len() {
            form.body = b"{}".to_vec();
            assert_eq!(word(&check(&form)), "ok");
        } else {
            assert_ne!(word(&check(&form)), "ok", "{kept} | {moved}");
        }
    }
}

#[test]
fn the_query_is_tried_in_three_spellings() {
    for (signed, sent) in [
        ("q=It's+a+b", "q=It's+a+b"),
        ("q=It%27s+a", "q=It's+a"),
        ("q=It's%20a%3D", "q=It%27s+a%3d"),
    ] {
        let mut request = made(&format!("https://a.example/x?{signed}"), true, b"A=1");
        request.query = Some(sent.to_owned());
        assert_eq!(word(&check(&request)), "ok", "{signed} {sent}");
    }
    assert!(urls("https://a.example/x", Some("q=It's+a%2b")).len() <= 6);
}

#[test]
fn the_id_is_of_what_is_signed() {
    let sent = made(URL, true, FORM.as_bytes());
    let id = |sent: &Sent| delivery_id(&sent.request()).unwrap();
    let first = id(&sent);
    assert!(first.starts_with("sha256-"));
    assert_eq!(id(&sent.clone().at(NOW_MS + 5)), first);
    let mut pairs: Vec<&str> = FORM.split('&').collect();
    pairs.rotate_left(2);
    assert_eq!(id(&sent.clone().body(pairs.join("&"))), first);
    assert_ne!(id(&sent.edited("1234", "1235")), first);
    let json = id(&made(URL, false, b"{}"));
    assert_ne!(json, id(&made(URL, false, b"{ }")));
}

proptest! {
    #[test]
    fn order_and_repetition_of_parameters_are_not_signed(
        pairs in prop::collection::vec(("[A-Z][a-z]{0,3}", "[a-z ]{0,3}"), 0..8),
        seed: u64,
    ) {
        let written: Vec<String> = pairs
            .iter()
            .map(|(name, value)| format!("{name}={}", value.replace(' ', "+")))
            .collect();
        let sent = made(URL, true, written.join("&").as_bytes());
        prop_assert_eq!(word(&check(&sent)), "ok");
        let mut other = written.clone();
        other.extend(written.first().cloned());
        if !other.is_empty() {
            let by = usize::try_from(seed % other.len() as u64).unwrap();
            other.rotate_left(by);
        }
        prop_assert_eq!(word(&check(&sent.body(other.join("&")))), "ok");
    }

    #[test]
    fn decoding_undoes_encoding(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let escaped: String = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
        prop_assert_eq!(&decoded(escaped.as_bytes()), &bytes);
        let query = format!("a={escaped}");
        let again = encoded_anew(&query);
        let found: Vec<_> = pairs(again.as_bytes()).collect();
        prop_assert_eq!(found, vec![(b"a".to_vec(), bytes)]);
    }

    #[test]
    fn nothing_a_stranger_sends_panics(
        url in "(https?://)?[a-z:@/?#.0-9\\[\\]]{0,20}",
        query in prop::option::of("[a-zA-Z0-9%&=+']{0,40}"),
        is_form: bool,
        body in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut sent = made(URL, is_form, &body).with(SIGNATURE, b"AAAA");
        sent.public_url = Some(url);
        sent.query = query;
        prop_assert!(check(&sent).is_err());
        drop(delivery_id(&sent.request()));
    }
}
