use super::{
    super::{
        Refusal, Verified,
        custom::testing::{BODIES, NOW_MS, Sent, secrets, unsigned, word},
    },
    *,
};
use proptest::prelude::*;

/// Adyen/adyen-node-api-library `src/__tests__/hmacValidator.spec.ts`; the second signature is that of its present version.
const KEY: &str = "DFB1EB5485895CFA84146406857104ABB4CBCABDC8AAF103A624C8F6A3EAAB00";
const OTHER: &str = "00B1EB5485895CFA84146406857104ABB4CBCABDC8AAF103A624C8F6A3EAAB00";
const VECTORS: [(&str, &str); 2] = [
    ("EVENT", "ipnxGCaUZ4l8TUW75a71/ghd2Fe5ffvX0pV4TLTntIc="),
    ("CAPTURE", "xhpHvYq2u2Np0rstbZ6QjLGu7JWhvf7Iwaa6EviJSX0="),
];

fn item(event_code: &str, signature: &str) -> String {
    format!(
        r#"{{"NotificationRequestItem":{{"pspReference":"pspReference","originalReference":"originalReference","merchantAccountCode":"merchantAccount","merchantReference":"reference","amount":{{"currency":"EUR","value":1000}},"eventCode":"{event_code}","eventDate":"1970-01-01T00:00:00+01:00","paymentMethod":"VISA","reason":"reason","success":"true","additionalData":{{"hmacSignature":"{signature}","shopper":"s"}}}}}}"#
    )
}

fn of(items: &[String]) -> Sent {
    let body = format!(
        r#"{{"live":"false","notificationItems":[{}]}}"#,
        items.join(",")
    );
    Sent::of(Made {
        query: None,
        headers: Vec::new(),
        body: body.into_bytes(),
    })
}

fn published() -> Sent {
    of(&[item(VECTORS[0].0, VECTORS[0].1)])
}

fn check(sent: &Sent) -> Result<Verified, Refusal> {
    verify(&secrets(&[OTHER, KEY]), &sent.request())
}

#[test]
fn published_vectors_are_accepted_and_signed_fields_are_bound() {
    for (event_code, signature) in VECTORS {
        let sent = of(&[item(event_code, signature)]);
        assert_eq!(check(&sent), Ok(Verified { slot: 1 }));
        let lower_case_key = secrets(&[&KEY.to_lowercase()]);
        let found = verify(&lower_case_key, &sent.request());
        assert_eq!(found, Ok(Verified { slot: 0 }));
        for (from, to) in [
            ("\"pspReference\":\"p", "\"pspReference\":\"P"),
            (
                "\"originalReference\":\"o",
                "\"originalReference\":\"\u{1f389}",
            ),
            ("merchantAccount\"", "merchantaccount\""),
            ("\"reference\"", "\"reference \""),
            ("1000", "1001"),
            ("1000", "-1000"),
            ("EUR", "USD"),
            ("\"true\"", "\"false\""),
            ("\"true\"", "false"),
            (event_code, "REFUND"),
            (signature, &signature.to_lowercase()),
            (signature, "notValidSign"),
            (signature, signature.trim_end_matches('=')),
            (signature, &format!("{signature} ")),
            (signature, ""),
        ] {
            let found = check(&sent.clone().edited(from, to));
            assert_eq!(word(&found), "mismatch", "{from} -> {to}");
        }
    }
}

#[test]
fn everything_that_may_be_wrong_with_a_body() {
    let sent = published();
    for (from, to, expected) in [
        ("\"true\"", "true", "ok"),
        ("\"true\"", "\"True\"", "malformed"),
        ("\"true\"", "1", "malformed"),
        ("\"true\"", "null", "malformed"),
        ("\"success\"", "\"succes\"", "malformed"),
        ("1000", "1e3", "malformed"),
        ("1000", "1000.0", "malformed"),
        ("1000", "\"1000\"", "malformed"),
        ("\"EUR\"", "\"E:R\"", "malformed"),
        ("merchantAccount\"", "merchant:Account\"", "malformed"),
        ("\"pspReference\":\"", "\"pspReference\":\":", "malformed"),
        (
            "\"eventCode\":",
            "\"eventCode\":\"X\",\"eventCode\":",
            "malformed",
        ),
        (
            "\"live\":",
            "\"notificationItems\":[],\"live\":",
            "malformed",
        ),
        ("\"hmacSignature\"", "\"hmacsignature\"", "unsigned"),
        ("\"additionalData\"", "\"additional\"", "unsigned"),
        ("\"notificationItems\"", "\"items\"", "unsigned"),
        ("\"NotificationRequestItem\"", "\"item\"", "malformed"),
    ] {
        let found = check(&sent.clone().edited(from, to));
        assert_eq!(word(&found), expected, "{from} -> {to}");
    }
    assert_eq!(word(&check(&of(&[]))), "unsigned");
    for at_ms in [i64::MIN, i64::MAX] {
        assert_eq!(word(&check(&sent.clone().at(at_ms))), "ok");
    }
    for body in BODIES {
        assert!(check(&sent.clone().body(body)).is_err());
        assert!(delivery_id(&sent.clone().body(body).request()).is_err());
    }
    for others in [&[OTHER][..], &["", "not hexadecimal", "ABC"], &[]] {
        let found = verify(&secrets(others), &sent.request());
        assert_eq!(found, Err(Refusal::Mismatch), "{others:?}");
    }
}

/// What this scheme can not see.
#[test]
fn other_fields_are_not_bound() {
    let sent = published();
    for (from, to) in [("\"live\":\"false\"", "\"live\":\"true\""), ("VISA", "MC")] {
        assert_eq!(word(&check(&sent.clone().edited(from, to))), "ok");
    }
}

#[test]
fn every_item_must_be_signed_and_by_the_same_secret() {
    let [first, second] = VECTORS.map(|(event_code, signature)| item(event_code, signature));
    let both = of(&[first.clone(), second.clone()]);
    assert_eq!(check(&both), Ok(Verified { slot: 1 }));
    for spoilt in [
        of(&[first.clone(), second.replace("1000", "1001")]),
        of(&[first.replace("1000", "1001"), second.clone()]),
        of(&[first.clone(), item(VECTORS[1].0, VECTORS[0].1)]),
    ] {
        assert_eq!(word(&check(&spoilt)), "mismatch");
    }
    let half = of(&[first.clone(), second.replace("hmacSignature", "x")]);
    assert_eq!(word(&check(&half)), "unsigned");
    let other = Sent::of(
        sign(
            OTHER.as_bytes(),
            &unsigned("", &of(std::slice::from_ref(&first)).body),
        )
        .unwrap(),
    );
    let other: serde_json::Value = serde_json::from_slice(&other.body).unwrap();
    let mixed = of(&[other["notificationItems"][0].to_string(), second]);
    assert_eq!(word(&check(&mixed)), "mismatch");
    assert_eq!(word(&check(&of(&vec![first.clone(); 64]))), "ok");
    assert_eq!(word(&check(&of(&vec![first; 65]))), "malformed");
}

#[test]
fn ids_are_made_of_signed_fields() {
    let [first, second] = VECTORS.map(|(event_code, signature)| item(event_code, signature));
    let one = of(std::slice::from_ref(&first));
    let id = |sent: &Sent| delivery_id(&sent.request()).unwrap();
    assert_eq!(id(&one), "pspReference:EVENT:true");
    let both = of(&[first, second]);
    assert!(id(&both).starts_with("sha256-"));
    assert_eq!(id(&both), id(&both.clone().edited("VISA", "MC")));
    assert_ne!(id(&both), id(&both.clone().edited("1000", "1001")));
}

proptest! {
    #[test]
    fn what_is_signed_is_accepted(
        reference in "\\PC{0,30}", value: i64, currency in "[A-Z]{0,3}", success: bool, amount: bool,
    ) {
        let mut item = serde_json::json!({ "merchantReference": reference, "success": success });
        if amount {
            item["amount"] = serde_json::json!({ "value": value, "currency": currency });
        }
        let body = serde_json::json!({ "notificationItems": [{ "NotificationRequestItem": item }] });
        let sent = Sent::of(sign(KEY.as_bytes(), &unsigned("", body.to_string().as_bytes())).unwrap());
        prop_assert_eq!(word(&check(&sent)), "ok");
        prop_assert_eq!(sent.at_ms, NOW_MS);
    }

    #[test]
    fn nothing_a_stranger_sends_panics(body in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        r#"\{"notificationItems":[\[\]{}:,"a-z0-9\\u]{0,80}"#.prop_map(String::into_bytes),
    ]) {
        let sent = published().body(body);
        prop_assert!(check(&sent).is_err());
        drop(delivery_id(&sent.request()));
    }
}
