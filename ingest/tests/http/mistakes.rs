//! Every mistake in a rule or a source has a message of its own, under the key where it stands.

use crate::{fake_log::FakeLog, try_app};
use ingest::IngestConfig;

/// The table `[x.verify]` without its ids; key below `sources.x.verify`; what the message says.
const RULES: [(&str, &str, &str); 24] = [
    (
        r#"signature = { header = "a b", encoding = "hex" }
        signed = ["body"]"#,
        "signature.header",
        "not a header name",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        timestamp = { header = "a b" }
        signed = ["timestamp", "body"]"#,
        "timestamp.header",
        "not a header name",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        signed = [{ header = "a b" }, "body"]"#,
        "signed",
        "not a header name",
    ),
    (
        r#"signature = { header = "x-a", encoding = "hex" }
        signed = ["body"]
        alias = { from = "x-", to = "y y" }"#,
        "alias",
        "does not make header names",
    ),
    (r#"signed = ["body"]"#, "signature", "is missing"),
    (
        r#"verifier = "mailgun"
        signature = { header = "a", encoding = "hex" }"#,
        "verifier",
        "not both",
    ),
    (
        r#"verifier = "mailgun"
        signed = ["body"]"#,
        "verifier",
        "leave `signed` and `timestamp` out",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        signed = ["body", { literal = "" }]"#,
        "signed",
        "a literal may not be empty",
    ),
    (
        r#"signature = { header = "a", encoding = "hex", field = "v1" }
        signed = ["body"]"#,
        "signature",
        "both or none",
    ),
    (
        r#"signature = { header = "a", encoding = "hex", field_separator = "=" }
        signed = ["body"]"#,
        "signature",
        "both or none",
    ),
    (
        r#"signature = { header = "a", encoding = "hex", item_separator = "" }
        signed = ["body"]"#,
        "signature",
        "a separator may not be empty",
    ),
    (
        r#"signature = { header = "a", encoding = "plain" }
        signed = ["body"]"#,
        "signature.encoding",
        "\"plain\" goes with the algorithm \"token\"",
    ),
    (
        r#"algorithm = "token"
        signature = { header = "a", encoding = "hex" }"#,
        "signature.encoding",
        "\"plain\" goes with the algorithm \"token\"",
    ),
    (
        r#"algorithm = "token"
        signature = { header = "a", encoding = "plain" }
        signed = ["body"]"#,
        "algorithm",
        "a token signs nothing",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        signed = ["method"]"#,
        "signed",
        "\"body\" exactly once",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        signed = ["body", "body"]"#,
        "signed",
        "\"body\" exactly once",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        signed = ["timestamp", "body"]"#,
        "signed",
        "`timestamp` names no place",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        timestamp = { unit = "ms" }
        signed = ["timestamp", "body"]"#,
        "timestamp",
        "exactly one of",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        timestamp = { header = "t", json = "t" }
        signed = ["timestamp", "body"]"#,
        "timestamp",
        "exactly one of",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        timestamp = { json = "t" }
        signed = ["timestamp", "body"]"#,
        "signed",
        "a timestamp in the body",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        timestamp = { header = "t" }
        signed = ["body"]"#,
        "timestamp",
        "could be forged",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        timestamp = { json = "a..b" }
        signed = ["body"]"#,
        "timestamp",
        "dotted path",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        timestamp = { field = "t" }
        signed = ["timestamp", "body"]"#,
        "signature",
        "fields are read from it",
    ),
    (
        r#"signature = { header = "a", encoding = "hex" }
        signed = [{ field = "n" }, "body"]"#,
        "signature",
        "fields are read from it",
    ),
];

/// A line of a good `[x.verify]`; key; what the message says.
const PLACES: [(&str, &str, &str); 27] = [
    ("delivery_id = []", "delivery_id", "names no place"),
    (
        "delivery_id = [{ hash = false }]",
        "delivery_id",
        "`hash = false` says nothing",
    ),
    (
        "delivery_id = [{ hash = true }, { header = \"a\" }]",
        "delivery_id",
        "nothing can follow",
    ),
    (
        "delivery_id = [{ verifier = true }]",
        "delivery_id",
        "whose verifier makes an id",
    ),
    (
        "delivery_id = [{ header = \"a b\" }]",
        "delivery_id",
        "not a header name",
    ),
    (
        "delivery_id = [{ json = \"\" }]",
        "delivery_id",
        "dotted path",
    ),
    (
        "delivery_id = [{ json-joined = [\"a\"] }]",
        "delivery_id",
        "list of dotted paths",
    ),
    (
        "delivery_id = [{ json-joined = [\"a\", \"b.\"] }]",
        "delivery_id",
        "list of dotted paths",
    ),
    (
        "delivery_id = [{ form = \"\" }]",
        "delivery_id",
        "name of a field",
    ),
    (
        "event_type = [{ header = \"a b\" }]",
        "event_type",
        "not a header name",
    ),
    (
        "event_type = [{ header = \"a\", form = \"b\" }]",
        "event_type",
        "not both",
    ),
    (
        "event_type = [{}]",
        "event_type",
        "give `header`, `form` or `json`",
    ),
    (
        "event_type = [{ header = \"a\", sub_json = \"b\" }]",
        "event_type",
        "stands alone",
    ),
    (
        "event_type = [{ json = \"a.\" }]",
        "event_type",
        "dotted path",
    ),
    (
        "event_type = [{ json = \"a\", sub_json = \".b\" }]",
        "event_type",
        "dotted path",
    ),
    (
        "handshake = [{ equals = \"1\", reply = \"empty\" }]",
        "handshake",
        "exactly one of `json`, `form` and `query`",
    ),
    (
        "handshake = [{ json = \"a\", form = \"b\", equals = \"1\", reply = \"empty\" }]",
        "handshake",
        "exactly one of `json`, `form` and `query`",
    ),
    (
        "handshake = [{ query = \"a\", equals = \"1\", reply = \"empty\" }]",
        "handshake",
        "go together",
    ),
    (
        "handshake = [{ json = \"a\", token_query = \"b\", equals = \"1\", reply = \"empty\" }]",
        "handshake",
        "go together",
    ),
    (
        "handshake = [{ json = \"a.\", equals = \"1\", reply = \"empty\" }]",
        "handshake",
        "dotted paths",
    ),
    (
        "handshake = [{ json = \"a\", equals = \"1\", reply = { echo-json = \"\" } }]",
        "handshake",
        "dotted paths",
    ),
    (
        "handshake = [{ json = \"a\", equals = \"1\", reply = { object = { b = { hmac-of-json = \"\" } } } }]",
        "handshake",
        "dotted paths",
    ),
    (
        "handshake = [{ query = \"a\", token_query = \"b\", equals = \"1\", reply = { object = { b = { json = \"c\" } } } }]",
        "handshake",
        "has no body",
    ),
    (
        "handshake = [{ json = \"a\", unsigned = true, equals = \"1\", reply = { echo-json = \"c\" } }]",
        "handshake",
        "what is not signed",
    ),
    (
        "handshake = [{ query = \"a\", token_query = \"b\", unsigned = true, equals = \"1\", reply = \"empty\" }]",
        "handshake",
        "what is not signed",
    ),
    (
        "handshake = [{ json = \"a\", equals = \"1\", status = 302, reply = \"empty\" }]",
        "handshake",
        "from 200 to 299",
    ),
    (
        "handshake = [{ json = \"a\", equals = \"1\", status = 204, reply = { constant = \"{}\" } }]",
        "handshake",
        "has no body",
    ),
];

/// Lines of a source with the scheme and a secret; key below `sources.x`; what the message says.
const SOURCES: [(&str, &str, &str, &str); 24] = [
    ("square", "", "public_url", "is missing"),
    ("hubspot", "", "public_url", "is missing"),
    ("twilio", "", "public_url", "is missing"),
    (
        "github",
        "public_url = \"hooks.example.com/x\"",
        "public_url",
        "the URL that the sender was given",
    ),
    (
        "github",
        "public_url = \"https://hooks.example.com/a b\"",
        "public_url",
        "the URL that the sender was given",
    ),
    (
        "github",
        "content_types = []",
        "content_types",
        "list of media types",
    ),
    (
        "github",
        "content_types = [\"json\"]",
        "content_types",
        "list of media types",
    ),
    (
        "github",
        "content_types = [\"application/json; charset=utf-8\"]",
        "content_types",
        "list of media types",
    ),
    (
        "github",
        "answer = { status = 302 }",
        "answer.status",
        "from 200 to 299",
    ),
    (
        "github",
        "answer = { status = 500 }",
        "answer.status",
        "from 200 to 299",
    ),
    (
        "github",
        "answer = { status = 204, body = \"ok\" }",
        "answer.body",
        "must be empty",
    ),
    (
        "github",
        "answer = { status = 200, content_type = \"a\\nb\" }",
        "answer.content_type",
        "not a media type",
    ),
    (
        "github",
        "handshake_token = {}",
        "handshake_token",
        "exactly one of `env` and `file`",
    ),
    (
        "github",
        "handshake_token = { env = \"A\", file = \"b\" }",
        "handshake_token",
        "exactly one of `env` and `file`",
    ),
    (
        "github",
        "handshake_token = { file = \"none\" }",
        "handshake_token",
        "none",
    ),
    ("github", "events = [\"a*\"]", "events", "neither a type"),
    ("github", "events = []", "events", "takes nothing"),
    (
        "github",
        "deadline = \"11m\"",
        "deadline",
        "at most 10 minutes",
    ),
    (
        "github",
        "body_bytes_max = 0",
        "body_bytes_max",
        "from 1 to",
    ),
    (
        "github",
        "replay_window = \"59s\"",
        "replay_window",
        "from 1 minute to 30 days",
    ),
    (
        "gitbub",
        "",
        "scheme",
        "there are adyen, adyen-platform, bitbucket",
    ),
    ("discord", "", "secrets.0", "is not hexadecimal"),
    ("sendgrid", "", "secrets.0", "is not base64"),
    ("adyen-platform", "", "secrets.0", "is not hexadecimal"),
];

/// What is said of `[x]` with these lines: keys and messages.
fn said(lines: &str) -> Vec<(String, String)> {
    let source = format!("[x]\nsecrets = [{{ file = \"s\" }}]\n{lines}");
    match try_app(IngestConfig::default(), &source, FakeLog::new()) {
        Ok(_) => Vec::new(),
        Err(problems) => problems
            .into_iter()
            .map(|problem| (problem.key.clone(), problem.to_string()))
            .collect(),
    }
}

fn says(lines: &str, key: &str, part: &str) {
    let found = said(lines);
    let is_it = |(at, message): &(String, String)| at == key && message.contains(part);
    assert!(found.iter().any(is_it), "{lines}: {found:?}");
    assert!(found.iter().all(|(at, _)| at == key), "{lines}: {found:?}");
}

#[test]
fn mistakes_in_a_rule_are_explained() {
    for (lines, key, part) in RULES {
        let lines = format!("[x.verify]\n{lines}\ndelivery_id = [{{ hash = true }}]");
        says(&lines, &format!("sources.x.verify.{key}"), part);
    }
}

#[test]
fn mistakes_in_its_places_are_explained() {
    let good =
        "[x.verify]\nsignature = { header = \"a\", encoding = \"hex\" }\nsigned = [\"body\"]\n";
    for (line, key, part) in PLACES {
        let ids = if key == "delivery_id" {
            ""
        } else {
            "delivery_id = [{ hash = true }]\n"
        };
        let lines = format!("{good}{ids}{line}");
        says(&lines, &format!("sources.x.verify.{key}"), part);
    }
    assert_eq!(
        said(&format!("{good}delivery_id = [{{ hash = true }}]")),
        []
    );
}

#[test]
fn mistakes_in_a_source_are_explained() {
    for (scheme, line, key, part) in SOURCES {
        let lines = format!("scheme = \"{scheme}\"\n{line}");
        says(&lines, &format!("sources.x.{key}"), part);
    }
    let long = "x".repeat(4_097);
    let lines = format!("scheme = \"github\"\nanswer = {{ status = 200, body = \"{long}\" }}");
    says(&lines, "sources.x.answer.body", "longer than 4096 bytes");
    says("", "sources.x.scheme", "give `scheme` or `verify`");
    let both = "scheme = \"github\"\n[x.verify]\nverifier = \"mailgun\"\ndelivery_id = [{ verifier = true }]";
    says(both, "sources.x.scheme", "not both");
}

/// A preset with its URL, its token and an answer is no mistake.
#[test]
fn what_a_preset_may_need_is_taken() {
    for (scheme, lines) in [
        (
            "square",
            "public_url = \"https://hooks.example.com/hooks/x\"",
        ),
        ("meta", "handshake_token = { file = \"token\" }"),
        ("meta", ""),
        (
            "slack",
            "answer = { status = 204 }\ncontent_types = [\"application/json\"]",
        ),
    ] {
        assert_eq!(said(&format!("scheme = \"{scheme}\"\n{lines}")), []);
    }
}
