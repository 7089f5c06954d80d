//! Mistakes in the config are told, each with its key.

use crate::{GITHUB, SECRET, app, fake_log::FakeLog, try_app};
use ingest::{IngestConfig, SourceConfig};
use schemas::Reopen;
use std::{path::PathBuf, time::Duration};

/// Lines below `[x]` with a preset and a secret, and the key that is wrong.
const WITH_PRESET: [(&str, &str); 8] = [
    ("body_bytes_max = 26214401", "sources.x.body_bytes_max"),
    ("deadline = \"0s\"", "sources.x.deadline"),
    ("events = [\"a*b\"]", "sources.x.events"),
    ("events = []", "sources.x.events"),
    ("delivery_id = []", "sources.x.delivery_id"),
    (
        "rate_limit = { per_second = 0 }",
        "sources.x.rate_limit.per_second",
    ),
    (
        "rate_limit = { per_second = 1, burst = 4000000000 }",
        "sources.x.rate_limit.burst",
    ),
    ("delivery_id = [{ hash = false }]", "sources.x.delivery_id"),
];

/// Lines below `[x]`, and the key that is wrong.
const SECRETS: [(&str, &str); 7] = [
    ("secrets = [{ file = \"s\" }]", "sources.x.scheme"),
    (
        "scheme = \"gitbub\"\nsecrets = [{ file = \"s\" }]",
        "sources.x.scheme",
    ),
    ("scheme = \"github\"", "sources.x.secrets"),
    ("scheme = \"github\"\nsecrets = []", "sources.x.secrets"),
    (
        "scheme = \"github\"\nsecrets = [{ file = \"s\" }, { file = \"none\" }]",
        "sources.x.secrets.1",
    ),
    (
        "scheme = \"github\"\nsecrets = [{ file = \"s\", env = \"S\" }]",
        "sources.x.secrets.0",
    ),
    (
        "scheme = \"standard-webhooks\"\nsecrets = [{ file = \"not-base64\" }]",
        "sources.x.secrets.0",
    ),
];

/// Lines below `[x.verify]`, and the key that is wrong.
const RULES: [(&str, &str); 7] = [
    (
        "signature = { header = \"a b\", encoding = \"hex\" }\nsigned = [\"body\"]",
        "signature.header",
    ),
    (
        "signature = { header = \"a\", encoding = \"hex\" }\nsigned = [{ header = \"b\" }]",
        "signed",
    ),
    (
        "signature = { header = \"a\", encoding = \"hex\" }\nsigned = [\"body\", { literal = \"\" }]",
        "signed",
    ),
    (
        "signature = { header = \"a\", encoding = \"hex\" }\nsigned = [\"timestamp\", \"body\"]",
        "signed",
    ),
    (
        "signature = { header = \"a\", encoding = \"hex\", field = \"v1\" }\nsigned = [\"body\"]",
        "signature",
    ),
    (
        "signature = { header = \"a\", encoding = \"hex\" }\ntimestamp = { header = \"t\" }\nsigned = [\"body\"]",
        "timestamp",
    ),
    (
        "signature = { header = \"a\", encoding = \"hex\" }\ntimestamp = { field = \"t\" }\nsigned = [\"timestamp\", \"body\"]",
        "signature",
    ),
];

fn keys(config: IngestConfig, sources: &str) -> Vec<String> {
    let Err(problems) = try_app(config, sources, FakeLog::new()) else {
        return Vec::new();
    };
    for problem in &problems {
        assert!(!problem.to_string().contains(SECRET), "{problem}");
    }
    problems.into_iter().map(|problem| problem.key).collect()
}

#[test]
fn mistakes_are_told_with_their_keys() {
    let usual = IngestConfig::default;
    for (lines, key) in WITH_PRESET {
        let source = format!("[x]\nscheme = \"github\"\nsecrets = [{{ file = \"s\" }}]\n{lines}");
        assert_eq!(keys(usual(), &source), [key], "{lines}");
    }
    for (lines, key) in SECRETS {
        assert_eq!(keys(usual(), &format!("[x]\n{lines}")), [key], "{lines}");
    }
    for (lines, key) in RULES {
        let source = format!(
            "[x]\nsecrets = [{{ file = \"s\" }}]\n[x.verify]\n{lines}\ndelivery_id = [{{ hash = true }}]"
        );
        assert_eq!(
            keys(usual(), &source),
            [format!("sources.x.verify.{key}")],
            "{lines}"
        );
    }
    // What would not be safe in a URL or in `webhook-id`; the last part of a dotted name alone would be.
    for name in ["GitHub", "git.hub", "git hub", "a/b", "-a", "é", "a\\n", ""] {
        let source = GITHUB.replace("[github]", &format!("[\"{name}\"]"));
        let key = format!("sources.{}", name.replace("\\n", "\n"));
        assert_eq!(keys(usual(), &source), [key], "{name}");
    }
    let small = IngestConfig {
        in_flight_bytes_max: 999,
        write_timeout: Duration::ZERO,
        path_prefix: "hooks/".to_owned(),
        ..IngestConfig::default()
    };
    assert_eq!(
        keys(small, GITHUB),
        [
            "ingest.path_prefix",
            "ingest.write_timeout",
            "sources.github.body_bytes_max"
        ]
    );
    assert_eq!(keys(usual(), GITHUB), [""; 0]);
}

#[test]
fn what_is_not_said_is_as_the_preset_says() {
    use figment::providers::{Format, Toml};
    let read = |text: &str| {
        figment::Figment::from(Toml::string(text))
            .extract::<SourceConfig>()
            .ok()
    };
    let source = read("scheme = \"slack\"\nsecrets = [{ file = \"s\" }]").unwrap();
    assert_eq!(source.deadline(), Duration::from_millis(2_500));
    assert_eq!(source.body_bytes_max(), 1 << 20);
    assert_eq!(source.reopen, Reopen::Exhausted);
    assert_eq!(source.secrets[0].file, Some(PathBuf::from("s")));
    let source = read(
        "scheme = \"slack\"\ndeadline = \"1s\"\nreopen = \"any-failed\"\ntolerance = { past = \"1m\" }",
    )
    .unwrap();
    assert_eq!(source.deadline(), Duration::from_secs(1));
    assert_eq!(source.reopen, Reopen::AnyFailed);
    let tolerance = source.rule().unwrap().tolerance;
    assert_eq!(tolerance.past, Duration::from_secs(60));
    assert_eq!(tolerance.future, Duration::from_secs(300));
    assert!(read("scheme = \"slack\"\nsecret = \"plain\"").is_none());
    assert!(read("secrets = [{ value = \"plain\" }]").is_none());
}

#[test]
fn debug_shows_no_secret() {
    let app = app(IngestConfig::default(), GITHUB, &FakeLog::new());
    assert!(!format!("{app:?}").contains(SECRET));
}
