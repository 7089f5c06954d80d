//! Signatures against the official libraries, in JavaScript and Python: what they sign we accept, what we sign they accept,
//! what they refuse we refuse.
//!
//! `tests/setup data` installs them; without it the tests say so and end, `make test` requires it.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use bytes::Bytes;
use dispatcher::{
    DestinationConfig, HttpSend,
    send::{Attempt, Send},
};
use harness::{
    peers::{
        Answer,
        Language::{self, JavaScript, Python},
        Question, Task, ask, installed,
    },
    receiver::Receiver,
    sender::sha256,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ingest::{
    Request, Rule, Unsigned,
    rule::{Part, Preset, presets},
    rule_for, sign,
    verify::{Refusal, Verified, verify},
};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use runtime::{Clock, Secret};
use schemas::{OutcomeKind, Webhook};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::LazyLock};

type Headers = BTreeMap<String, String>;

const NOW_S: i64 = 1_700_000_000;
const RANDOM_BODIES: usize = 200;
const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_WHSEC: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const THIRD_WHSEC: &str = "whsec_plJ3nmyCDGBKInavdOK15jsl";
/// Neither UTF-8 nor JSON.
const NO_TEXT: &[u8] = b"{\"a\":\"\xff\xfe\xe2\x80\"}";

/// One library, and where it differs from the others.
#[derive(Debug)]
struct Peer {
    language: Language,
    library: &'static str,
    preset: &'static str,
    secret: &'static str,
    /// Before every signature; what changes it makes a signature of another kind.
    mark: Option<&'static str>,
    signs: Signs,
    /// Whether it accepts a body of no bytes. What parses JSON does not.
    takes_empty: bool,
    time: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signs {
    No,
    Bodies,
    /// Also one of no bytes.
    All,
}

/// What a library makes of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    /// None is signed.
    None,
    /// Refused when more than five minutes away.
    Checked { takes_fraction: bool },
    /// Refused when more than five minutes ago; any future is accepted.
    OnlyPast { takes_fraction: bool },
}

const PEERS: [Peer; 9] = [
    Peer {
        language: JavaScript,
        library: "@octokit/webhooks-methods",
        preset: "github",
        secret: "It's a Secret to Everybody",
        mark: Some("sha256="),
        signs: Signs::Bodies,
        takes_empty: false,
        time: Time::None,
    },
    Peer {
        language: JavaScript,
        library: "@shopify/shopify-api",
        preset: "shopify",
        secret: "hush",
        mark: None,
        signs: Signs::No,
        takes_empty: false,
        time: Time::None,
    },
    Peer {
        language: JavaScript,
        library: "standardwebhooks",
        preset: "standard-webhooks",
        secret: WHSEC,
        mark: Some("v1,"),
        signs: Signs::All,
        takes_empty: true,
        time: Time::Checked {
            takes_fraction: true,
        },
    },
    Peer {
        language: JavaScript,
        library: "svix",
        preset: "svix",
        secret: WHSEC,
        mark: Some("v1,"),
        signs: Signs::All,
        takes_empty: false,
        time: Time::Checked {
            takes_fraction: true,
        },
    },
    Peer {
        language: JavaScript,
        library: "stripe",
        preset: "stripe",
        secret: WHSEC,
        mark: Some("v1="),
        signs: Signs::All,
        takes_empty: false,
        time: Time::OnlyPast {
            takes_fraction: true,
        },
    },
    Peer {
        language: Python,
        library: "slack_sdk",
        preset: "slack",
        secret: "8f742231b10e8888abcd99yyyzzz85a5",
        mark: Some("v0="),
        signs: Signs::All,
        takes_empty: true,
        time: Time::Checked {
            takes_fraction: false,
        },
    },
    Peer {
        language: Python,
        library: "standardwebhooks",
        preset: "standard-webhooks",
        secret: WHSEC,
        mark: Some("v1,"),
        signs: Signs::All,
        takes_empty: false,
        time: Time::Checked {
            takes_fraction: true,
        },
    },
    Peer {
        language: Python,
        library: "svix",
        preset: "svix",
        secret: WHSEC,
        mark: Some("v1,"),
        signs: Signs::All,
        takes_empty: true,
        time: Time::Checked {
            takes_fraction: true,
        },
    },
    Peer {
        language: Python,
        library: "stripe",
        preset: "stripe",
        secret: WHSEC,
        mark: Some("v1="),
        signs: Signs::All,
        takes_empty: false,
        time: Time::OnlyPast {
            takes_fraction: false,
        },
    },
];

/// A request that is shown to a library and to us.
#[derive(Debug)]
struct Case {
    what: &'static str,
    secret: String,
    headers: Headers,
    body: Vec<u8>,
    now_s: i64,
    /// Who accepts it.
    they: bool,
    we: bool,
}

#[tokio::test]
async fn what_they_sign_we_accept() {
    if !installed() {
        return;
    }
    for language in [JavaScript, Python] {
        let mut asked = Vec::new();
        for peer in peers(language).filter(|peer| peer.signs != Signs::No) {
            for body in bodies() {
                asked.push((peer, peer.question(Task::Sign, body)));
            }
        }
        for (peer, question, answer) in answered(language, asked).await {
            let body = &question.body;
            if body.is_empty() && peer.signs != Signs::All {
                assert_eq!(answer.headers, None, "{}", peer.name());
                continue;
            }
            let about = format!("{} {} {}", peer.name(), shown(body), answer.why);
            let headers = answer.headers.unwrap_or_else(|| panic!("{about}"));
            let secrets = [peer.other_secret(), peer.secret.to_owned()];
            let check = |body: &[u8]| we(peer, &secrets, &headers, body, NOW_S);
            assert_eq!(check(body), Ok(Verified { slot: 1 }), "{about}");
            let more = [body, b" ".as_slice()].concat();
            assert_eq!(check(&more), Err(Refusal::Mismatch), "{about}");
        }
    }
}

#[tokio::test]
async fn what_we_sign_as_a_sender_they_accept() {
    if !installed() {
        return;
    }
    for language in [JavaScript, Python] {
        let mut asked = Vec::new();
        for peer in peers(language) {
            for body in bodies() {
                let mut question = peer.question(Task::Verify, body);
                question.headers = signed(peer, &question.body);
                asked.push((peer, question));
            }
        }
        for (peer, question, answer) in answered(language, asked).await {
            let wanted = peer.takes_empty || !question.body.is_empty();
            let about = format!("{} {} {}", peer.name(), shown(&question.body), answer.why);
            assert_eq!(answer.ok, wanted, "{about}");
        }
    }
}

/// The dispatcher's own requests while it changes its key: signed with the new one and with the old one.
#[tokio::test]
async fn what_the_dispatcher_sends_they_accept_with_either_key() {
    if !installed() {
        return;
    }
    let sent = dispatched(&[WHSEC, OTHER_WHSEC]).await;
    assert_eq!(sent.len(), bodies().len());
    for language in [JavaScript, Python] {
        let mut asked = Vec::new();
        let libraries = ["standardwebhooks", "svix"];
        for peer in peers(language).filter(|peer| libraries.contains(&peer.library)) {
            for (headers, body) in &sent {
                for secret in [WHSEC, OTHER_WHSEC, THIRD_WHSEC] {
                    let mut question = peer.question(Task::Verify, body.clone());
                    question.headers = headers.clone();
                    question.secret = secret.to_owned();
                    asked.push((peer, question));
                }
            }
        }
        assert_eq!(asked.len(), 2 * 3 * sent.len());
        for (peer, question, answer) in answered(language, asked).await {
            let known = question.secret != THIRD_WHSEC;
            let wanted = known && (peer.takes_empty || !question.body.is_empty());
            let about = format!("{} {} {}", peer.name(), shown(&question.body), answer.why);
            assert_eq!(answer.ok, wanted, "{about} {}", question.secret);
        }
    }
}

#[tokio::test]
async fn what_they_refuse_we_refuse() {
    if !installed() {
        return;
    }
    for language in [JavaScript, Python] {
        let mut cases = Vec::new();
        let mut asked = Vec::new();
        for peer in peers(language) {
            for case in peer.cases() {
                let mut question = peer.question(Task::Verify, case.body.clone());
                question.secret.clone_from(&case.secret);
                question.headers = case.headers.clone();
                question.now_s = case.now_s;
                asked.push((peer, question));
                cases.push(case);
            }
        }
        let answers = answered(language, asked).await;
        for (case, (peer, _, answer)) in cases.iter().zip(answers) {
            let about = format!("{}: {} {}", peer.name(), case.what, answer.why);
            let secrets = [case.secret.clone()];
            let found = we(peer, &secrets, &case.headers, &case.body, case.now_s);
            assert_eq!(answer.ok, case.they, "they, {about}");
            assert_eq!(found.is_ok(), case.we, "we, {about} {found:?}");
            assert!(
                answer.ok || found.is_err(),
                "only we accept it: {about} {found:?}"
            );
        }
    }
}

/// The libraries make text of a body first: those in JavaScript put U+FFFD for what is none and find no signature that
/// fits, those in Python raise. We sign and verify bytes.
#[tokio::test]
async fn bodies_that_are_no_text_are_ours_only() {
    if !installed() {
        return;
    }
    for language in [JavaScript, Python] {
        let mut asked = Vec::new();
        for peer in peers(language) {
            let mut question = peer.question(Task::Verify, NO_TEXT.to_vec());
            question.headers = signed(peer, NO_TEXT);
            asked.push((peer, question));
        }
        for (peer, question, answer) in answered(language, asked).await {
            let secrets = [question.secret];
            let found = we(peer, &secrets, &question.headers, NO_TEXT, NOW_S);
            assert_eq!(found, Ok(Verified { slot: 0 }), "{}", peer.name());
            let raised = answer.why.starts_with("UnicodeDecodeError");
            let about = format!("{} {}", peer.name(), answer.why);
            assert!(!answer.ok && raised == (language == Python), "{about}");
        }
    }
}

// === impl Peer ===

impl Peer {
    fn name(&self) -> String {
        format!("{} ({:?})", self.library, self.language)
    }

    fn rule(&self) -> &'static Rule {
        static PRESETS: LazyLock<BTreeMap<String, Preset>> = LazyLock::new(|| presets().unwrap());
        &PRESETS[self.preset].verify
    }

    /// A secret of the same kind that nothing is signed with.
    fn unknown_secret(&self) -> String {
        if self.secret == WHSEC {
            THIRD_WHSEC.to_owned()
        } else {
            format!("{}?", self.secret)
        }
    }

    /// Another secret of this peer's.
    fn other_secret(&self) -> String {
        if self.secret == WHSEC {
            OTHER_WHSEC.to_owned()
        } else {
            format!("{}!", self.secret)
        }
    }

    fn question(&self, task: Task, body: Vec<u8>) -> Question {
        Question {
            library: self.library,
            task,
            secret: self.secret.to_owned(),
            id: "msg_1".to_owned(),
            headers: Headers::new(),
            body,
            now_s: NOW_S,
        }
    }

    /// A request as this peer's sender makes it.
    fn good(&self, what: &'static str) -> Case {
        let body = br#"{"type":"invoice.paid","id":"evt_1"}"#;
        Case {
            what,
            secret: self.secret.to_owned(),
            headers: signed(self, body),
            body: body.to_vec(),
            now_s: NOW_S,
            they: true,
            we: true,
        }
    }

    /// The same with something wrong.
    fn bad(&self, what: &'static str, change: impl FnOnce(&mut Case)) -> Case {
        let mut case = Case {
            they: false,
            we: false,
            ..self.good(what)
        };
        change(&mut case);
        case
    }

    /// One request, and everything that may be wrong with it.
    fn cases(&self) -> Vec<Case> {
        let rule = self.rule();
        let header = rule.signature.as_ref().unwrap().header.as_str();
        let rewrite = |case: &mut Case, change: &dyn Fn(&str) -> String| {
            let text = change(&case.headers[header]);
            case.headers.insert(header.to_owned(), text);
        };
        let mut cases = vec![
            self.good("as signed"),
            self.bad("a space more", |case| case.body.push(b' ')),
            self.bad("another letter", |case| case.body[2] = b'T'),
            self.bad("another secret", |case| case.secret = self.unknown_secret()),
            self.bad("no signature", |case| {
                case.headers.remove(header);
            }),
            self.bad("an empty signature", |case| {
                rewrite(case, &|_| String::new());
            }),
            self.bad("a shortened signature", |case| {
                rewrite(case, &|text| text.get(..text.len() - 4).unwrap().to_owned());
            }),
        ];
        if let Some(mark) = self.mark {
            cases.push(self.bad("a signature of another kind", |case| {
                let other = mark.replace(['0', '1', '2'], "3");
                rewrite(case, &|text| text.replace(mark, &other));
            }));
        }
        let id = header.replace("-signature", "-id");
        if rule.signed.contains(&Part::Header(id.clone())) {
            cases.push(self.bad("another id", |case| {
                case.headers.insert(id.clone(), "msg_2".to_owned());
            }));
            cases.push(self.bad("no id", |case| {
                case.headers.remove(&id);
            }));
        }
        cases.extend(self.cases_of_time());
        cases
    }

    fn cases_of_time(&self) -> Vec<Case> {
        let (takes_future, takes_fraction) = match self.time {
            Time::None => return Vec::new(),
            Time::Checked { takes_fraction } => (false, takes_fraction),
            Time::OnlyPast { takes_fraction } => (true, takes_fraction),
        };
        let received = |now_s, what| Case {
            now_s,
            ..self.good(what)
        };
        let signed_at = NOW_S.to_string();
        vec![
            received(NOW_S + 300, "five minutes old"),
            received(NOW_S - 300, "five minutes ahead"),
            self.bad("older than five minutes", |case| case.now_s += 301),
            self.bad("further ahead than five minutes", |case| {
                case.now_s -= 301;
                case.they = takes_future;
            }),
            self.bad("another timestamp", |case| {
                case.rewrite(&signed_at, &(NOW_S + 1).to_string());
            }),
            self.bad("a timestamp that is no number", |case| {
                case.rewrite(&signed_at, "now");
            }),
            // The same number, and so the same signed bytes for whoever reads it as a number.
            self.bad("a timestamp written otherwise", |case| {
                case.rewrite(&signed_at, &format!("{signed_at}.0"));
                case.they = takes_fraction;
            }),
            self.bad("no timestamp", |case| {
                case.headers.retain(|_, value| *value != signed_at);
                case.rewrite(&format!("t={signed_at},"), "");
            }),
        ]
    }
}

// === impl Case ===

impl Case {
    /// In all headers.
    fn rewrite(&mut self, from: &str, to: &str) {
        for value in self.headers.values_mut() {
            *value = value.replace(from, to);
        }
    }
}

fn peers(language: Language) -> impl Iterator<Item = &'static Peer> {
    PEERS.iter().filter(move |peer| peer.language == language)
}

/// Asks all questions at once.
async fn answered(
    language: Language,
    asked: Vec<(&'static Peer, Question)>,
) -> Vec<(&'static Peer, Question, Answer)> {
    assert!(!asked.is_empty());
    let (peers, questions): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let answers = ask(language, &questions).await;
    let both = peers.into_iter().zip(questions).zip(answers);
    both.map(|((peer, question), answer)| (peer, question, answer))
        .collect()
}

/// What we make of a body as the peer's sender: with its secret, and with another one before it where there may be two.
fn signed(peer: &Peer, body: &[u8]) -> Headers {
    let rule = peer.rule();
    let signature = rule.signature.as_ref().unwrap();
    let other = peer.other_secret();
    let secrets = match &signature.item_separator {
        Some(_) => vec![other.as_bytes(), peer.secret.as_bytes()],
        None => vec![peer.secret.as_bytes()],
    };
    let unsigned = Unsigned {
        delivery_id: "msg_1",
        event_type: "invoice.paid",
        public_url: None,
        body,
        now_ms: NOW_S * 1_000,
    };
    let mut headers: Headers = sign(rule, &secrets, &unsigned)
        .unwrap()
        .into_iter()
        .collect();
    if peer.preset == "shopify" {
        // Not signed, but its library wants them.
        for (name, value) in [("shop-domain", "a.example"), ("api-version", "2025-07")] {
            headers.insert(format!("x-shopify-{name}"), value.to_owned());
        }
    }
    headers
}

fn we(
    peer: &Peer,
    secrets: &[String],
    headers: &Headers,
    body: &[u8],
    now_s: i64,
) -> Result<Verified, Refusal> {
    let pair = |(name, value): (&String, &String)| {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    };
    let headers: HeaderMap = headers.iter().map(pair).collect();
    let secrets: Vec<Secret> = secrets
        .iter()
        .map(|secret| Secret::from_bytes(secret.as_bytes()))
        .collect();
    let request = Request {
        method: &Method::POST,
        headers: &headers,
        query: None,
        public_url: None,
        body,
        received_at_ms: now_s * 1_000,
    };
    let variants = peer.rule().variants();
    verify(rule_for(&variants, &headers).unwrap(), &secrets, &request)
}

/// All bodies, sent by the dispatcher's own client and as they arrived.
async fn dispatched(secrets: &[&str]) -> Vec<(Headers, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<Value> = (0..secrets.len())
        .map(|at| json!({ "file": at.to_string() }))
        .collect();
    for (at, secret) in secrets.iter().enumerate() {
        std::fs::write(dir.path().join(at.to_string()), secret).unwrap();
    }
    let receiver = Receiver::start().await;
    let config: DestinationConfig = serde_json::from_value(json!({
        "url": receiver.url("/hooks"),
        "allow_http": true,
        "allow_cidrs": ["127.0.0.0/8"],
        "signing": { "secrets": files },
    }))
    .unwrap();
    let destinations = BTreeMap::from([("billing".to_owned(), config)]);
    let clock = Clock::manual(NOW_S * 1_000);
    let sender = HttpSend::new(&destinations, dir.path(), clock).unwrap();
    for (at, body) in bodies().into_iter().enumerate() {
        let webhook = Webhook {
            source: "github".to_owned(),
            delivery_id: format!("{at}.é"),
            event_type: "push".to_owned(),
            content_type: Some("application/json".to_owned()),
            headers: Vec::new(),
            body: Bytes::from(body),
            received_at_ms: NOW_S * 1_000,
            generation: 0,
        };
        let attempt = Attempt {
            destination: "billing",
            webhook: &webhook,
            attempt: 1,
            token: uuid::Uuid::nil(),
        };
        let outcome = sender.send(attempt).await;
        assert_eq!(outcome.kind, OutcomeKind::Delivered, "{outcome:?}");
    }
    let arrivals = receiver.arrivals().into_iter().zip(bodies());
    arrivals
        .map(|(arrival, body)| {
            assert_eq!(arrival.body_sha256, sha256(&body));
            let signatures = arrival.headers["webhook-signature"].to_str().unwrap();
            assert_eq!(signatures.split(' ').count(), secrets.len());
            let headers = arrival.headers.iter().map(|(name, value)| {
                (name.as_str().to_owned(), value.to_str().unwrap().to_owned())
            });
            (headers.collect(), body)
        })
        .collect()
}

/// What has broken signatures elsewhere, then random objects; always the same ones.
fn bodies() -> Vec<Vec<u8>> {
    let long = json!({ "text": "0123456789abcdef".repeat(6_400) }).to_string();
    let known = [
        "",
        "{}",
        " {\r\n\t\"a\" : 1.0e0 ,\"b\":[ ] }\n\n",
        r#"{"type":"push","big":12345678901234567890,"float":0.10}"#,
        r#"{"emoji":"👩‍👩‍👧 🏴‍☠️ ⚠️","text":"grüße … 你好"}"#,
        "{\"line\":\"a\u{2028}b\u{2029}c\u{feff}d\"}",
        r#"{"escapes":"\u001b[0m \u0000 \u2028 \ud83d\ude00 \/ \" \\"}"#,
        r#"{"lone":"\ud83d"}"#,
        "{\"normal\":\"e\u{301}\",\"composed\":\"\u{e9}\"}",
        &long,
    ];
    let mut bodies: Vec<Vec<u8>> = known.iter().map(|body| body.as_bytes().to_vec()).collect();
    let mut runner = TestRunner::deterministic();
    let random = objects();
    for _ in 0..RANDOM_BODIES {
        let body = random.new_tree(&mut runner).unwrap().current();
        bodies.push(body.into_bytes());
    }
    bodies
}

/// JSON objects as different writers write them: dense or spaced, other than ASCII as it is or escaped.
fn objects() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|entries| Value::Object(Map::from_iter(entries))),
        ]
    });
    let entries = prop::collection::vec(("[a-z]{1,8}|\\PC{1,4}", value), 0..6);
    (entries, any::<bool>(), any::<bool>()).prop_map(|(entries, spaced, ascii)| {
        let object = Value::Object(Map::from_iter(entries));
        let text = if spaced {
            format!("{object:#}\r\n")
        } else {
            object.to_string()
        };
        if ascii { escaped(&text) } else { text }
    })
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}

/// The beginning of a body, for messages.
fn shown(body: &[u8]) -> String {
    body.escape_ascii().to_string().chars().take(200).collect()
}
