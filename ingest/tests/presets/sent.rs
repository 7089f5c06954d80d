//! What providers send, as they send it.

use crate::{Given, PRESETS, samples, samples_of_rules, secret_of};
use http::HeaderMap;
use ingest::{
    Request,
    extract::{delivery_id, event_type},
    rule::Algorithm,
    verify::{Refusal, Verified, verify},
};
use std::{collections::BTreeSet, time::Duration};

#[test]
fn what_a_provider_signs_is_verified() {
    for sample in samples() {
        for sent in [&sample.first, &sample.repeat, &sample.other] {
            let given = sample.given(sent);
            assert_eq!(given.verify(), "ok", "{}", sample.name());
        }
    }
}

/// Signature and time come out as the provider's would, for all who sign by a preset: demo, tests and `fencepost send`.
#[test]
fn what_is_signed_here_is_what_the_provider_signs() {
    for sample in samples_of_rules() {
        let theirs = sample.given(&sample.first);
        let ours = sample.with_body(&theirs.body);
        assert_eq!(ours.verify(), "ok", "{}", sample.name());
        let mut names = theirs.needed();
        // ECDSA signatures hold a random number.
        if theirs.rule.algorithm != Algorithm::EcdsaP256Sha256 {
            names.push(theirs.signature());
        }
        for name in names {
            assert_eq!(ours.text(&name), theirs.text(&name), "{}", sample.name());
        }
    }
}

#[test]
fn ids_and_types_stand_where_the_provider_puts_them() {
    for sample in samples() {
        for sent in [&sample.first, &sample.repeat, &sample.other] {
            let given = sample.given(sent);
            let id = delivery_id(&given.rule, "s", &given.request());
            assert_eq!(id.as_ref(), Ok(&sent.delivery_id), "{}", sample.name());
        }
        for sent in [&sample.first, &sample.repeat] {
            let given = sample.given(sent);
            let kind = event_type(&given.rule, &given.request());
            assert_eq!(kind.as_ref(), Ok(&sample.event_type), "{}", sample.name());
        }
    }
}

#[test]
fn a_repeat_is_the_same_delivery_and_another_webhook_is_another() {
    let mut new = BTreeSet::new();
    for sample in samples() {
        let id = &sample.first.delivery_id;
        assert_ne!(id, &sample.other.delivery_id, "{}", sample.name());
        if sample.repeat_is_new {
            new.insert(sample.preset);
        } else {
            assert_eq!(id, &sample.repeat.delivery_id, "{}", sample.name());
        }
    }
    // Counts its attempts in the body and has no id for it: see docs/providers.md.
    assert_eq!(new, BTreeSet::from(["hubspot".to_owned()]));
}

/// Where an id is needed, a request without it is not taken; where there is none, its absence is no mistake.
#[test]
fn an_id_header_that_is_missing_or_repeated_is_refused() {
    for sample in samples() {
        let given = sample.given(&sample.first);
        let id = |given: &Given| delivery_id(&given.rule, "s", &given.request());
        for place in &given.rule.delivery_id {
            let ingest::rule::IdPlace::Header(name) = place else {
                continue;
            };
            let name = crate::name_of(name);
            let Some(value) = given.headers.get(&name).cloned() else {
                continue;
            };
            let mut without = given.clone();
            without.headers.remove(&name);
            match id(&without) {
                Ok(found) => assert!(found.starts_with("sha256-"), "{}", sample.name()),
                Err(refusal) => assert!(matches!(refusal, Refusal::Missing(_))),
            }
            let mut twice = given.clone();
            twice.headers.append(&name, value);
            let found = id(&twice);
            assert!(matches!(found, Err(Refusal::Repeated(_))), "{found:?}");
            for bent in ["", "\t", &"x".repeat(257)] {
                let found = id(&given.with(&name, bent));
                assert!(matches!(found, Err(Refusal::Malformed(_))), "{found:?}");
            }
        }
    }
}

/// How long each provider waits for its answer, milliseconds, by its documentation; what it does not tell is taken for 10 s.
const WAITS_MS: [(&str, u64); 31] = [
    ("adyen", 10_000),
    ("adyen-platform", 10_000),
    ("bitbucket", 10_000),
    ("calendly", 10_000),
    ("discord", 3_000),
    ("discord-events", 3_000),
    ("github", 10_000),
    ("gitlab", 10_000),
    ("gitlab-token", 10_000),
    ("hubspot", 5_000),
    ("intercom", 5_000),
    ("linear", 5_000),
    ("mailgun", 10_000),
    ("meta", 5_000),
    ("notion", 10_000),
    ("paddle", 5_000),
    ("pagerduty", 5_000),
    ("paypal", 10_000),
    ("sendgrid", 10_000),
    ("sentry", 1_000),
    ("shopify", 5_000),
    ("slack", 3_000),
    ("square", 10_000),
    ("standard-webhooks", 15_000),
    ("standard-webhooks-v1a", 15_000),
    ("stripe", 10_000),
    ("svix", 15_000),
    ("twilio", 15_000),
    ("typeform", 30_000),
    ("zendesk", 10_000),
    ("zoom", 3_000),
];

#[test]
fn a_provider_is_answered_before_it_stops_waiting() {
    let presets = &*PRESETS;
    let names: Vec<&str> = WAITS_MS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, presets.keys().collect::<Vec<_>>());
    for (name, waits_ms) in WAITS_MS {
        let preset = &presets[name];
        assert!(preset.deadline < Duration::from_millis(waits_ms), "{name}");
        let answer = preset.answer.as_ref();
        assert!(answer.is_none_or(|answer| (200..300).contains(&answer.status)));
        assert_eq!(preset.verify.check("x"), [], "{name}");
        let signs_url = ["hubspot", "square", "twilio"].contains(&name);
        assert_eq!(preset.verify.signs_url(), signs_url, "{name}");
    }
}

type Headers = &'static [(&'static str, &'static str)];

/// Valid by schemes that are not offered: HubSpot's plain hashes, and the order in which Zendesk once signed.
#[test]
fn schemes_that_are_not_offered_are_not_accepted() {
    let hubspot = "yyyyyyyy-yyyy-yyyy-yyyy-yyyyyyyyyyyy";
    let vectors: [(&str, &str, Headers); 3] = [
        (
            hubspot,
            r#"[{"eventId":1,"subscriptionId":12345,"portalId":62515,"occurredAt":1564113600000,"subscriptionType":"contact.creation","attemptNumber":0,"objectId":123,"changeSource":"CRM","changeFlag":"NEW","appId":54321}]"#,
            &[(
                "x-hubspot-signature",
                "232db2615f3d666fe21a8ec971ac7b5402d33b9a925784df3ca654d05f4817de",
            )],
        ),
        (
            hubspot,
            r#"{"example_field":"example_value"}"#,
            &[
                (
                    "x-hubspot-signature",
                    "9569219f8ba981ffa6f6f16aa0f48637d35d728c7e4d93d0d52efaa512af7900",
                ),
                ("x-hubspot-signature-version", "v2"),
            ],
        ),
        (
            "HRkRd4BeOAoUkfZr-mhauJT64rvBASlJRoIyPsd3zeA=",
            r#"{"say": "hello"}"#,
            &[
                (
                    "x-zendesk-webhook-signature",
                    "tRDSF7URY8BLCDlaBcQ7FHu051Zk+aAB0NKMP53teMw=",
                ),
                (
                    "x-zendesk-webhook-signature-timestamp",
                    "2021-07-25T10:00:00Z",
                ),
            ],
        ),
    ];
    for (secret, body, headers) in vectors {
        for (name, preset) in &*PRESETS {
            let found = accepts(&preset.verify, secret, body, headers);
            assert!(found.is_err(), "{name}: {found:?}");
        }
    }
}

fn accepts(
    rule: &ingest::Rule,
    secret: &str,
    body: &str,
    headers: Headers,
) -> Result<Verified, Refusal> {
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (crate::name_of(name), value.parse().unwrap()))
        .collect();
    let request = Request {
        method: &http::Method::POST,
        headers: &headers,
        query: None,
        public_url: Some("https://www.example.com/webhook_uri"),
        body: body.as_bytes(),
        // 2021-07-25T10:00:00Z
        received_at_ms: 1_627_207_200_000,
    };
    let secrets = [secret_of(secret)];
    verify(rule, &secrets, &request)
}
