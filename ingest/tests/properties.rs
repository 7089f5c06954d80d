//! What holds for any rule, request and time. The bodies of the fuzz targets are run here, too: on their committed corpora
//! and on random bytes.

use ingest::{
    Request, Unsigned,
    rule::{Algorithm, Unit},
    sign,
    verify::{Refusal, verify},
};
use proptest::{collection::vec, prelude::*};
use runtime::Secret;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

#[path = "../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "a library for the fuzz targets")]
mod fuzz;

/// Every input of the corpus of `target`, and that they still get to where they once got.
fn replay(target: &str, run: fn(&[u8]) -> &'static str, wanted: &[&str]) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let files: Vec<PathBuf> = fs::read_dir(corpus.join(target))
        .expect("the corpus is committed")
        .map(|entry| entry.expect("a file").path())
        .collect();
    assert!(files.len() < 200, "minimise the corpus: {}", files.len());
    let mut reached = BTreeSet::new();
    for file in files {
        let input = fs::read(&file).expect("a file");
        assert!(input.len() < 4_096, "{} is too long", file.display());
        match std::panic::catch_unwind(|| run(&input)) {
            Ok(label) => drop(reached.insert(label)),
            Err(_) => panic!("the input is {}", file.display()),
        }
    }
    let wanted: BTreeSet<&str> = wanted.iter().copied().collect();
    let missed: Vec<_> = wanted.difference(&reached).collect();
    assert!(missed.is_empty(), "no input of {target} gets to {missed:?}");
}

#[test]
fn the_corpus_of_headers_is_read_as_the_rules_say() {
    let wanted = ["stranger", "bent", "same", "among others", "too many"];
    replay("header", fuzz::header::run, &wanted);
}

#[test]
fn the_corpus_of_rules_is_followed() {
    let wanted = [
        "refused by check",
        "verifier",
        "contradicts itself",
        "time in the body",
        "verified",
    ];
    replay("rule", fuzz::rule::run, &wanted);
}

#[test]
fn the_corpus_of_json_is_read_as_a_full_parser_does() {
    let wanted = ["not JSON", "nothing there", "no name", "found"];
    replay("json", fuzz::json::run, &wanted);
}

#[test]
fn the_corpus_of_forms_is_read_as_the_standard_says() {
    let wanted = [
        "field",
        "no field",
        "JSON in a field",
        "subscribed",
        "not subscribed",
        "the same form",
        "another form",
    ];
    replay("form", fuzz::form::run, &wanted);
}

/// Found by `fuzz::rule`: every request would have been refused, and nobody told why.
#[test]
fn a_rule_can_not_ask_for_what_no_header_can_hold() {
    for text in ["é", "\u{7f}", "a\tb", "\n"] {
        for key in ["prefix", "field", "field_separator", "item_separator"] {
            let mut signature = serde_json::json!({
                "header": "x-signature", "encoding": "hex", "field": "v1", "field_separator": "=", "item_separator": ",",
            });
            let rule = |signature: &serde_json::Value| -> ingest::Rule {
                let rule = serde_json::json!({ "signature": signature, "signed": ["body"], "delivery_id": [{ "hash": true }] });
                serde_json::from_value(rule).expect("a rule")
            };
            assert_eq!(rule(&signature).check("verify"), []);
            signature[key] = text.into();
            let problems = rule(&signature).check("verify");
            assert_eq!(problems.len(), 1, "{key} {text:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_header_is_read_as_its_rule_says(bytes in vec(any::<u8>(), 0..400)) {
        fuzz::header::run(&bytes);
    }

    #[test]
    fn any_rule_that_passes_check_can_be_followed(bytes in vec(any::<u8>(), 0..400)) {
        fuzz::rule::run(&bytes);
    }

    #[test]
    fn any_json_is_read_as_a_full_parser_does(mut bytes in vec(any::<u8>(), 1..400)) {
        // Written from the bytes, since few bytes are JSON.
        bytes[0] = 1;
        fuzz::json::run(&bytes);
    }

    #[test]
    fn any_form_is_read_as_the_standard_says(kind in 0..4_u8, form in "([a-c%=&+2]|%[0-9a-f]{2}|&id=|&payload=){0,60}") {
        fuzz::form::run(&[&[kind], form.as_bytes()].concat());
    }

    #[test]
    fn a_request_is_in_time_exactly_within_the_tolerance(
        at_ms in 0..4_000_000_000_000_i64, age_ms in -400_000..400_000_i64,
    ) {
        for rule in timed() {
            let found = signed_at_and_verified_at(&rule, at_ms, at_ms + age_ms);
            let in_seconds = rule.timestamp.as_ref().is_some_and(|place| place.unit == Unit::Seconds);
            let written_ms = if in_seconds { at_ms / 1_000 * 1_000 } else { at_ms };
            let age_ms = at_ms + age_ms - written_ms;
            let [past_ms, future_ms] = [rule.tolerance.past, rule.tolerance.future]
                .map(|side| i64::try_from(side.as_millis()).unwrap_or(i64::MAX));
            let expected = match age_ms {
                age_ms if age_ms > past_ms => Err(Refusal::Stale),
                age_ms if age_ms < -future_ms => Err(Refusal::Early),
                _ => Ok(()),
            };
            prop_assert_eq!(found, expected, "{:?} {}", &rule.timestamp, age_ms);
        }
    }

    #[test]
    fn no_clock_is_too_wrong_to_be_compared(at_ms in any::<i64>(), received_at_ms in any::<i64>()) {
        for rule in timed() {
            let found = signed_at_and_verified_at(&rule, at_ms, received_at_ms);
            if found.is_ok() {
                prop_assert!(at_ms >= 0 && at_ms.abs_diff(received_at_ms) <= 301_000);
            } else {
                prop_assert_ne!(found, Err(Refusal::Mismatch));
            }
        }
    }
}

/// The rules of the presets with a signed time outside the body, and so in every unit.
fn timed() -> Vec<ingest::Rule> {
    let rules = fuzz::preset_rules().values();
    let timed = rules.filter(|rule| {
        let place = rule.timestamp.as_ref();
        rule.algorithm == Algorithm::HmacSha256 && place.is_some_and(|place| place.json.is_none())
    });
    timed.cloned().collect()
}

fn signed_at_and_verified_at(
    rule: &ingest::Rule,
    at_ms: i64,
    received_at_ms: i64,
) -> Result<(), Refusal> {
    let unsigned = Unsigned {
        delivery_id: "msg_1",
        event_type: "push",
        public_url: Some("https://a.example/b"),
        body: b"{}",
        now_ms: at_ms,
    };
    let signed = sign(rule, &[fuzz::KEY], &unsigned).unwrap_or_default();
    let headers = fuzz::header_map(&signed).unwrap_or_default();
    let request = Request {
        public_url: unsigned.public_url,
        received_at_ms,
        ..fuzz::post(&headers, unsigned.body)
    };
    verify(rule, &[Secret::from_bytes(fuzz::KEY)], &request).map(drop)
}
