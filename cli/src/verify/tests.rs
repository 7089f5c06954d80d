use super::*;
use crate::config::DEFAULT_TOML;
use std::path::PathBuf;
use tempfile::TempDir;

/// 2023-11-14T22:13:20Z
const AT: &str = "1700000000";
const BODY: &str = r#"{"id":"evt_1","type":"invoice.paid","n":[1,2]}"#;
const GITHUB_SECRET: &str = "It's a Secret to Everybody";
const STRIPE_SECRET: &str = "whsec_c2VjcmV0LWtleS1vZi1zdHJpcGU=";
const TOKEN: &str = "a-token-nobody-may-see";

const CONFIG: &str = r#"
[sources.github]
scheme = "github"
secrets = [{ file = "old" }, { file = "github" }]
events = ["push", "ping"]
[sources.stripe]
scheme = "stripe"
secrets = [{ file = "stripe" }]
[sources.token]
scheme = "gitlab-token"
secrets = [{ file = "token" }]
body_bytes_max = 1_048_576
[sources.own]
secrets = [{ file = "stripe" }]
[sources.own.verify]
signature = { header = "webhook-signature", item_separator = " ", field_separator = ",", field = "v1", encoding = "base64" }
timestamp = { header = "webhook-timestamp" }
signed = [{ header = "webhook-id" }, { literal = "." }, "timestamp", { literal = "." }, "body"]
delivery_id = [{ header = "webhook-id" }]
[sources.standard]
scheme = "standard-webhooks"
secrets = [{ file = "stripe" }]
[sources.broken]
scheme = "github"
secrets = [{ file = "missing" }]
[destinations.billing]
url = "https://billing.example/hooks"
[[routes]]
source = "github"
to = ["billing"]
"#;

struct Bench {
    dir: TempDir,
    loaded: Loaded,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("old", "the-former-secret"),
            ("github", GITHUB_SECRET),
            ("stripe", STRIPE_SECRET),
            ("token", TOKEN),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let file = Some(("test.toml".into(), CONFIG.to_owned()));
        let config = runtime::config::read(file, DEFAULT_TOML, &[]).unwrap();
        let loaded = Loaded {
            config,
            file: None,
            base: dir.path().to_path_buf(),
        };
        Self { dir, loaded }
    }

    fn file(&self, name: &str, text: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn verdict(&self, source: &str, headers: &str, body: &str) -> String {
        let args = VerifyArgs {
            source: source.to_owned(),
            headers: self.file("h", headers.as_bytes()),
            body: self.file("b", body.as_bytes()),
            at: Some(AT.to_owned()),
            query: None,
            method: None,
            cert: None,
            json: false,
        };
        let verdict = run(&args, &self.loaded, 0, false).unwrap_or_else(|error| panic!("{error}"));
        let json = VerifyArgs { json: true, ..args };
        let json = run(&json, &self.loaded, 0, false).unwrap();
        assert_eq!(json.taken, verdict.taken);
        let parsed: serde_json::Value = serde_json::from_str(&json.text).unwrap();
        assert_eq!(parsed["taken"], verdict.taken);
        for text in [&verdict.text, &json.text] {
            for secret in [
                GITHUB_SECRET,
                STRIPE_SECRET,
                TOKEN,
                "secret-key-of-stripe",
                "the-former-secret",
            ] {
                assert!(!text.contains(secret), "{text}");
            }
        }
        assert_eq!(
            verdict.taken,
            verdict.text.contains("\ntaken: "),
            "{}",
            verdict.text
        );
        verdict.text
    }

    /// What a sender with this preset and secret sends at `AT`.
    fn signed(preset: &str, secret: &str, body: &str) -> String {
        let rule = ingest::rule::presets()
            .unwrap()
            .remove(preset)
            .unwrap()
            .verify;
        let unsigned = ingest::Unsigned {
            delivery_id: "d-1",
            event_type: "push",
            public_url: None,
            body: body.as_bytes(),
            now_ms: 1_700_000_000_000,
        };
        let headers = ingest::sign(&rule, &[secret.as_bytes()], &unsigned).unwrap();
        let mut text = "content-type: application/json\n".to_owned();
        for (name, value) in headers {
            text += &format!("{name}: {value}\n");
        }
        text
    }
}

#[test]
fn a_good_request() {
    let headers = Bench::signed("github", GITHUB_SECRET, BODY);
    assert_eq!(
        Bench::new().verdict("github", &headers, BODY),
        r#"a request to github, received 2023-11-14T22:13:20Z
  ok  head          POST, application/json
  ok  body          46 bytes; at most 26214400 are taken
  ok  signatures    1 in x-hub-signature-256
      signed bytes  46 bytes: {"id":"evt_1","type":"invoice.paid","n":[1,2]}
      secret        slot 0 does not fit
  ok  secret        slot 1 fits
  ok  delivery id   d-1 (header x-github-delivery)
  ok  event type    push (header x-github-event, action of the body)
  ok  allow-list    the source takes this type
  ok  routes        to billing
taken: 202, accepted
"#
    );
}

#[test]
fn a_wrong_secret() {
    let headers = Bench::signed("github", "another secret", BODY);
    assert_eq!(
        Bench::new().verdict("github", &headers, BODY),
        r#"a request to github, received 2023-11-14T22:13:20Z
  ok  head          POST, application/json
  ok  body          46 bytes; at most 26214400 are taken
  ok  signatures    1 in x-hub-signature-256
      signed bytes  46 bytes: {"id":"evt_1","type":"invoice.paid","n":[1,2]}
  no  secret        slot 0 does not fit
  no  secret        slot 1 does not fit
  ok  delivery id   d-1 (header x-github-delivery)
  ok  event type    push (header x-github-event, action of the body)
refused: 401, bad_signature: no signature fits
"#
    );
}

#[test]
fn a_missing_header_and_another_senders() {
    let bench = Bench::new();
    let headers = Bench::signed("stripe", "whsec_other", BODY);
    assert_eq!(
        bench.verdict("github", &headers, BODY),
        r#"a request to github, received 2023-11-14T22:13:20Z
  ok  head          POST, application/json
  ok  body          46 bytes; at most 26214400 are taken
  no  headers       there is no header x-hub-signature-256
      hint          there is stripe-signature: this looks like stripe
  no  delivery id   the delivery id is missing
      event type    none
refused: 401, bad_signature: there is no signature
"#
    );
    let headers = Bench::signed("stripe", GITHUB_SECRET, BODY);
    let text = bench.verdict("github", &headers, BODY);
    let hint = "hint          it fits by the preset stripe: `scheme = \"stripe\"`";
    assert!(text.contains(hint), "{text}");
}

#[test]
fn a_stale_one() {
    let headers =
        Bench::signed("stripe", STRIPE_SECRET, BODY).replace("t=1700000000", "t=1699999000");
    let bench = Bench::new();
    let text = bench.verdict("stripe", &headers, BODY);
    assert!(
        text.ends_with("refused: 401, bad_signature: no signature fits\n"),
        "{text}"
    );

    let rule = ingest::rule::presets()
        .unwrap()
        .remove("stripe")
        .unwrap()
        .verify;
    let unsigned = ingest::Unsigned {
        delivery_id: "",
        event_type: "",
        public_url: None,
        body: BODY.as_bytes(),
        now_ms: 1_699_999_000_000,
    };
    let signed = ingest::sign(&rule, &[STRIPE_SECRET.as_bytes()], &unsigned).unwrap();
    let headers = format!("{}: {}\n", signed[0].0, signed[0].1);
    assert_eq!(
        bench.verdict("stripe", &headers, BODY),
        r#"a request to stripe, received 2023-11-14T22:13:20Z
  ok  head          POST, without a content type
  ok  body          46 bytes; at most 1048576 are taken
  ok  signatures    1 in stripe-signature
      signed bytes  57 bytes: 1699999000.{"id":"evt_1","type":"invoice.paid","n":[1,2]}
  ok  secret        slot 0 fits
  no  timestamp     2023-11-14T21:56:40Z (t= of the signature), 1000 s before the receipt; at most 5m are taken: signed too long ago
  ok  delivery id   evt_1 (id of the body)
  ok  event type    invoice.paid (type of the body)
      hint          the signature would have been in time at its own time; use --at 2023-11-14T21:56:40Z
refused: 401, stale: signed too long ago
"#
    );
}

#[test]
fn a_body_that_was_changed_on_the_way() {
    let bench = Bench::new();
    let headers = Bench::signed("github", GITHUB_SECRET, BODY);
    for (body, hint) in [
        (
            format!("{BODY}\n"),
            "without the line end at the end of the body: was it added by an editor?",
        ),
        (format!("\u{feff}{BODY}"), "without the byte order mark"),
        (
            BODY.replace(',', " ,\n  "),
            "without the white space in the JSON: was the body written anew for reading?",
        ),
    ] {
        let text = bench.verdict("github", &headers, &body);
        assert!(
            text.contains(&format!("\n      hint          it fits {hint}")),
            "{text}"
        );
        assert!(
            text.ends_with("refused: 401, bad_signature: no signature fits\n"),
            "{text}"
        );
    }
    let lines = "{\"id\":\n1}";
    let headers = Bench::signed("github", GITHUB_SECRET, &lines.replace('\n', "\r\n"));
    let text = bench.verdict("github", &headers, lines);
    assert!(text.contains("it fits with CRLF instead of LF"), "{text}");
    let headers = Bench::signed("github", GITHUB_SECRET, "{\"id\": 1, \"b\": 2}");
    let text = bench.verdict("github", &headers, "{\"id\":1,\"b\":2}");
    assert!(text.contains("it fits with one space behind"), "{text}");
    let headers = format!(
        "{}content-length: 46\n",
        Bench::signed("github", GITHUB_SECRET, BODY)
    );
    let text = bench.verdict("github", &headers, "{}");
    assert!(text.contains("content-length is 46"), "{text}");
}

#[test]
fn a_header_twice() {
    let headers = Bench::signed("github", GITHUB_SECRET, BODY);
    let bench = Bench::new();
    let text = bench.verdict(
        "github",
        &format!("{headers}x-hub-signature-256: sha256=00\n"),
        BODY,
    );
    assert!(
        text.contains("\n  no  headers       x-hub-signature-256 is there more than once\n"),
        "{text}"
    );
    assert!(
        text.ends_with("refused: 400, malformed: x-hub-signature-256 is there more than once\n"),
        "{text}"
    );
    let text = bench.verdict(
        "github",
        &format!("{headers}x-github-delivery: d-2\n"),
        BODY,
    );
    assert!(
        text.contains("\n  no  delivery id   x-github-delivery is there more than once\n"),
        "{text}"
    );
    assert!(text.contains("\nrefused: 400, "), "{text}");
}

#[test]
fn a_token_is_not_shown() {
    let bench = Bench::new();
    let headers = format!("x-gitlab-token: {TOKEN}\nidempotency-key: d-1\n");
    let body = format!("{{\"object_kind\":\"{TOKEN}\"}}");
    assert_eq!(
        bench.verdict("token", &headers, &body),
        r#"a request to token, received 2023-11-14T22:13:20Z
  ok  head          POST, without a content type
  ok  body          40 bytes; at most 1048576 are taken
  ok  signatures    1 in x-gitlab-token
  ok  secret        slot 0 fits
  ok  delivery id   d-1 (header idempotency-key)
  ok  event type    [secret] (object_kind of the body, object_attributes.action of the body)
  ok  allow-list    the source takes this type
      routes        none takes it: it is kept in the log and goes nowhere
taken: 202, accepted
"#
    );
    let text = bench.verdict(
        "token",
        "x-gitlab-token: almost\nidempotency-key: d-1\n",
        &body,
    );
    assert!(
        !text.contains("almost") && text.contains("slot 0 does not fit"),
        "{text}"
    );
}

#[test]
fn a_secret_that_is_base64() {
    let bench = Bench::new();
    let headers = Bench::signed("standard-webhooks", STRIPE_SECRET, BODY);
    let text = bench.verdict("own", &headers, BODY);
    let hint = "it fits when the secret is read as base64 behind whsec_, but the rule reads it as text as it is";
    assert!(
        text.contains(&format!("      hint          {hint}\n")),
        "{text}"
    );
    let text = bench.verdict("standard", &headers, BODY);
    assert!(text.contains("\ntaken: 202"), "{text}");
}

#[test]
fn what_the_allow_list_leaves_out_and_what_is_no_post() {
    let bench = Bench::new();
    let headers =
        Bench::signed("github", GITHUB_SECRET, BODY).replace("event: push", "event: star");
    let text = bench.verdict("github", &headers, BODY);
    assert!(
        text.contains("      allow-list    not in `events`"),
        "{text}"
    );
    assert!(text.ends_with("taken: 200, ignored\n"), "{text}");
    let text = bench.verdict("github", &format!("PUT / HTTP/1.1\n{headers}"), BODY);
    assert!(text.contains("  no  head          not a POST"), "{text}");
    assert!(text.contains("\nrefused: 405, "), "{text}");
    let text = bench.verdict("stripe", "", &"x".repeat((1 << 20) + 1));
    assert!(
        text.contains("  no  body          more than 1048576 bytes\nrefused: 413, "),
        "{text}"
    );
}

#[test]
fn mistakes_are_named_where_they_are() {
    let bench = Bench::new();
    let args = VerifyArgs {
        source: "github".to_owned(),
        headers: bench.file("h", b"a: 1\nb\n"),
        body: bench.file("b", b""),
        at: None,
        query: None,
        method: None,
        cert: None,
        json: false,
    };
    let message = |change: &dyn Fn(&mut VerifyArgs)| {
        let mut args = args.clone();
        change(&mut args);
        let failure = run(&args, &bench.loaded, 0, false).unwrap_err();
        assert!(matches!(failure, Failure::Config(_)), "{failure}");
        failure.to_string()
    };
    assert_eq!(message(&|_| ()), "--headers: line 2: is not `Name: value`");
    let found = message(&|args| args.source = "gitbub".to_owned());
    assert!(
        found.starts_with("sources.gitbub: is not configured; there are broken, github"),
        "{found}"
    );
    let found = message(&|args| args.source = "broken".to_owned());
    assert!(
        found.starts_with("sources.broken.secrets.0: can not read"),
        "{found}"
    );
    let good = bench.file("good", b"a: 1\n");
    let found = message(&|args| (args.headers, args.body) = (good.clone(), "nowhere".into()));
    assert!(found.starts_with("--body: can not read nowhere"), "{found}");
    let found = message(&|args| (args.headers, args.body) = ("-".into(), "-".into()));
    assert!(found.starts_with("--headers: only one"), "{found}");
    let found = message(&|args| (args.headers, args.at) = (good.clone(), Some("noon".to_owned())));
    assert!(found.starts_with("--at: "), "{found}");
}
