use super::{
    super::{
        Refusal, Verified,
        custom::testing::{BODIES, NOW_MS, Sent, secrets, tolerance, unsigned, word},
    },
    *,
};
use proptest::prelude::*;

const KEY: &str = "5d2e3b0c9a8f7e6d5c4b3a2918f7e6d5";
const TOKEN: &str = "a8ce0edb2dd8301dee6c2405235584e45aa91d1e9f979f3de0";
const EVENT: &str = r#"{"event-data":{"event":"opened","id":"Ase7i2zsRYeDXztHGENqRA"}}"#;

fn made() -> Sent {
    Sent::of(sign(KEY.as_bytes(), &unsigned(TOKEN, EVENT.as_bytes())).unwrap())
}

fn check(sent: &Sent) -> Result<Verified, Refusal> {
    verify(&secrets(&["other", KEY]), &sent.request(), tolerance())
}

/// Time and token are those of Mailgun's documentation, the signature was made with Python's `hmac`.
#[test]
fn a_signature_made_elsewhere_is_accepted() {
    let body = concat!(
        r#"{"signature":{"token":"a8ce0edb2dd8301dee6c2405235584e45aa91d1e9f979f3de0","timestamp":"1529006854","#,
        r#""signature":"d1fc6d49b056db5a7cd5afc862debd7f47e7b346ad90f28bb7c3752dba4b50fd"},"event-data":{}}"#
    );
    let sent = made().body(body).at(1_529_006_855_000);
    assert_eq!(check(&sent), Ok(Verified { slot: 1 }));
}

#[test]
fn time_and_token_are_bound_and_nothing_else_is() {
    let sent = made();
    assert_eq!(check(&sent), Ok(Verified { slot: 1 }));
    let text = String::from_utf8(sent.body.clone()).unwrap();
    let signed = serde_json::from_str::<serde_json::Value>(&text).unwrap()["signature"].clone();
    for field in ["timestamp", "token", "signature"] {
        let value = signed[field].as_str().unwrap();
        for at in 0..value.len() {
            let mut other = value.as_bytes().to_vec();
            other[at] = if other[at] == b'1' { b'2' } else { b'1' };
            let other = String::from_utf8(other).unwrap();
            let found = check(&sent.clone().edited(value, &other));
            assert_eq!(word(&found), "mismatch", "{field} {other}");
        }
    }
    // What this scheme can not see. The id that comes of it is the same, so that the store takes it once.
    let forged = sent.clone().edited("opened", "forged");
    assert_eq!(check(&forged), Ok(Verified { slot: 1 }));
    for sent in [sent, forged] {
        assert_eq!(delivery_id(&sent.request()), Ok(TOKEN.to_owned()));
    }
}

/// `timestamp` and `token` are joined without anything between them.
#[test]
fn digits_that_wander_between_token_and_time_are_out_of_time() {
    let token = "12ab";
    let sent = Sent::of(sign(KEY.as_bytes(), &unsigned(token, b"{}")).unwrap());
    for (timestamp, token, expected) in [
        ("18000000001", "2ab", "early"),
        ("180000000", "012ab", "stale"),
        ("180000000012ab", "", "malformed"),
        ("1800000000", "12ab", "ok"),
    ] {
        let moved = sent
            .clone()
            .edited("\"1800000000\"", &format!("\"{timestamp}\""))
            .edited("\"12ab\"", &format!("\"{token}\""));
        assert_eq!(word(&check(&moved)), expected, "{timestamp} {token}");
    }
}

#[test]
fn everything_that_may_be_wrong_with_the_body() {
    let sent = made();
    let body: serde_json::Value = serde_json::from_slice(&sent.body).unwrap();
    let hex = body["signature"]["signature"].as_str().unwrap();
    let digit = hex.chars().next_back().unwrap();
    let time = "\"1800000000\"";
    for (from, to, expected) in [
        (hex, hex.to_uppercase().as_str(), "ok"),
        (hex, hex.trim_end_matches(digit), "mismatch"),
        (hex, "", "mismatch"),
        (hex, &format!(" {hex}"), "mismatch"),
        ("\"signature\":{", "\"other\":{", "unsigned"),
        (
            "\"signature\":{",
            "\"signature\":null,\"signature\":{",
            "malformed",
        ),
        ("\"token\"", "\"tokem\"", "malformed"),
        ("\"token\":", "\"token\":\"x\",\"token\":", "malformed"),
        ("\"timestamp\"", "\"time\"", "malformed"),
        (time, "1800000000", "malformed"),
        (time, "\"+1800000000\"", "malformed"),
        (time, "\"01800000000\"", "malformed"),
        (time, "\"1800000000.0\"", "malformed"),
        (time, "\"99999999999999999999\"", "malformed"),
        (TOKEN, "a b", "malformed"),
        (TOKEN, &"a".repeat(129), "malformed"),
        ("}}", "}} x", "malformed"),
    ] {
        let found = check(&sent.clone().edited(from, to));
        assert_eq!(word(&found), expected, "{from} -> {to}");
    }
    for body in BODIES {
        assert!(check(&sent.clone().body(body)).is_err());
        assert!(delivery_id(&sent.clone().body(body).request()).is_err());
    }
    let deep = "[".repeat(100_000);
    assert_eq!(word(&check(&sent.body(deep))), "malformed");
}

#[test]
fn the_time_is_bounded_on_both_sides_and_told_to_no_forger() {
    let at = |ms| word(&check(&made().at(ms)));
    assert_eq!(at(NOW_MS + 9 * 3_600_000), "ok");
    assert_eq!(at(NOW_MS + 9 * 3_600_000 + 1), "stale");
    assert_eq!(at(NOW_MS - 60_000), "ok");
    assert_eq!(at(NOW_MS - 60_001), "early");
    assert_eq!(at(i64::MAX), "stale");
    assert_eq!(at(i64::MIN), "early");
    for others in [&["other"][..], &[""], &[]] {
        for at_ms in [NOW_MS, i64::MAX] {
            let sent = made().at(at_ms);
            let found = verify(&secrets(others), &sent.request(), tolerance());
            assert_eq!(found, Err(Refusal::Mismatch), "{others:?}");
        }
    }
}

proptest! {
    #[test]
    fn what_surrounds_the_signature_does_not_matter(text in "\\PC{0,30}", number: i64) {
        let event = serde_json::json!({ "a": text, "event-data": { "signature": number }, "z": [text] });
        let sent = Sent::of(sign(KEY.as_bytes(), &unsigned(TOKEN, event.to_string().as_bytes())).unwrap());
        prop_assert_eq!(word(&check(&sent)), "ok");
    }

    #[test]
    fn nothing_a_stranger_sends_panics(body in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        r#"[\[\]{}:,"a-z0-9\\u]{0,80}"#.prop_map(String::into_bytes),
    ]) {
        let sent = made().body(body);
        prop_assert!(check(&sent).is_err());
        drop(delivery_id(&sent.request()));
    }
}
