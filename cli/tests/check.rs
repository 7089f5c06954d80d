//! `fencepost check` through the real binary: every mistake is named at its exact key, all at once, with exit code 64.

use std::{
    path::Path,
    process::{Command, Output},
};

/// Goes without a mistake; each case puts a line into one of its tables.
const GOOD: &str = r#"
[log]
kind = "embedded"
# log

[store]
kind = "embedded"
# store

[ingest]
# ingest

[sources.github]
scheme = "github"
secrets = [{ file = "secret" }]
# source

[dispatcher]
# dispatcher

[destinations.billing]
url = "https://billing.example/hooks"
# destination

[[routes]]
source = "github"
to = ["billing"]
# route

[telemetry]
# telemetry

[admin]
# admin
"#;

fn fencepost(dir: &Path, config: &str, args: &[&str]) -> Output {
    std::fs::write(dir.join("fencepost.toml"), config).expect("config written");
    std::fs::write(dir.join("secret"), "s3cret\n").expect("secret written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"FENCEPOST_"))
    {
        command.env_remove(name);
    }
    command
        .current_dir(dir)
        .args(args)
        .output()
        .expect("binary runs")
}

fn check(config: &str) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let output = fencepost(dir.path(), config, &["check"]);
    (
        output.status.code(),
        String::from_utf8(output.stderr).expect("text"),
    )
}

/// The keys at the beginning of the lines, without warnings.
fn keys(stderr: &str) -> Vec<&str> {
    stderr
        .lines()
        .filter(|line| !line.starts_with("warning: "))
        .map(|line| line.split_once(": ").map_or(line, |(key, _)| key))
        .collect()
}

#[test]
fn a_good_config_is_summed_up() {
    let dir = tempfile::tempdir().unwrap();
    let output = fencepost(dir.path(), GOOD, &["check"]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(stdout.contains("fencepost.toml: fine"), "{stdout}");
    assert!(
        stdout.contains("1 sources, 1 destinations, 1 routes"),
        "{stdout}"
    );
    assert!(
        !dir.path().join("fencepost-data").exists(),
        "check creates nothing"
    );
}

/// Place in [`GOOD`], line put there, key of the mistake, part of its message.
const MISTAKES: [(&str, &str, &str, &str); 39] = [
    // Form: types, unknown keys, unknown variants.
    (
        "# log",
        "partition = 4",
        "log.partition",
        "did you mean `partitions`?",
    ),
    (
        "# log",
        "partitions = \"many\"",
        "log.partitions",
        "expected a whole number",
    ),
    (
        "# store",
        "retention = { complete = \"1d\" }",
        "store.retention.complete",
        "`completed`",
    ),
    (
        "# dispatcher",
        "lease = \"soon\"",
        "dispatcher.lease",
        "duration",
    ),
    (
        "# ingest",
        "listen = \"nowhere\"",
        "ingest.listen",
        "address",
    ),
    (
        "# destination",
        "concurency = 1",
        "destinations.billing.concurency",
        "`concurrency`",
    ),
    (
        "# destination",
        "allow_cidrs = [\"10.0.0.0/99\"]",
        "destinations.billing.allow_cidrs.0",
        "invalid",
    ),
    (
        "# source",
        "reopen = \"always\"",
        "sources.github.reopen",
        "`any-failed`",
    ),
    ("# telemetry", "log = \"xml\"", "telemetry.log", "`json`"),
    // What a section says of itself.
    ("# log", "partitions = 0", "log.partitions", "between 1 and"),
    ("# store", "dir = \"\"", "store.dir", "name a directory"),
    (
        "# ingest",
        "path_prefix = \"hooks\"",
        "ingest.path_prefix",
        "/hooks",
    ),
    (
        "# ingest",
        "proxy_protocol = true",
        "ingest.trusted_proxies",
        "name the networks",
    ),
    (
        "# ingest",
        "trusted_proxies = [\"10.0.0.0/33\"]",
        "ingest.trusted_proxies.0",
        "invalid",
    ),
    (
        "# ingest",
        "connections_per_address_max = 0",
        "ingest.connections_per_address_max",
        "at least 1",
    ),
    (
        "# ingest",
        "connection_age_max = \"2d\"",
        "ingest.connection_age_max",
        "at most a day",
    ),
    (
        "# ingest",
        "[ingest.tls]\ncert = \"secret\"\nkey = \"secret\"",
        "ingest.tls.cert",
        "no certificate",
    ),
    (
        "# ingest",
        "[ingest.tls]\ncert = \"none\"\nkey = \"secret\"",
        "ingest.tls.cert",
        "can not read",
    ),
    (
        "# destination",
        "timeout = \"0s\"",
        "destinations.billing.timeout",
        "above 0s",
    ),
    (
        "# destination",
        "retry = { base = \"1s\" }",
        "destinations.billing.retry.base",
        "5s",
    ),
    (
        "# telemetry",
        "sample_ratio = 2.0",
        "telemetry.sample_ratio",
        "between 0 and 1",
    ),
    (
        "# telemetry",
        "otlp_endpoint = \"collector:4317\"",
        "telemetry.otlp_endpoint",
        "http://",
    ),
    (
        "# ingest",
        "[ingest.spool]\ndir = \"\"",
        "ingest.spool.dir",
        "must name a directory",
    ),
    (
        "# ingest",
        "[ingest.spool]\nbytes = 1",
        "ingest.spool.bytes",
        "`bytes_max`",
    ),
    // `secret` is a file.
    (
        "# ingest",
        "[ingest.spool]\ndir = \"secret/spool\"",
        "ingest.spool.dir",
        "is no directory",
    ),
    (
        "# source",
        "rate_limit = { per_second = 0 }",
        "sources.github.rate_limit.per_second",
        "from 1 to",
    ),
    // Bounds of the process and of one partition against each other.
    (
        "# dispatcher",
        "partition_in_flight_max = 2_000",
        "dispatcher.partition_in_flight_max",
        "at most `in_flight_max`",
    ),
    (
        "# dispatcher",
        "partition_in_flight_max = 0",
        "dispatcher.partition_in_flight_max",
        "above 0",
    ),
    (
        "# dispatcher",
        "partition_in_flight_bytes_max = 99_999_999",
        "dispatcher.partition_in_flight_bytes_max",
        "at most `in_flight_bytes_max`",
    ),
    (
        "# dispatcher",
        "partition_window_max = 1_000",
        "dispatcher.partition_window_max",
        "at least `in_flight_max`",
    ),
    // Sections against each other.
    (
        "# ingest",
        "[ingest.spool]\nbytes_max = 1_100_000",
        "ingest.spool.bytes_max",
        "sources.github.body_bytes_max = ",
    ),
    (
        "# ingest",
        "[ingest.spool]\ndir = \"./fencepost-data/\"",
        "ingest.spool.dir",
        "directory of the log",
    ),
    (
        "# dispatcher",
        "lease = \"6s\"",
        "dispatcher.lease",
        "store.deadline = 5s",
    ),
    (
        "# store",
        "deadline = \"14s\"",
        "dispatcher.lease",
        "at least 21s",
    ),
    (
        "# log",
        "retention = \"12d\"",
        "store.retention.failed",
        "log.retention = 12days",
    ),
    (
        "# destination",
        "retry = { max_age = \"8d\" }",
        "store.retention.failed",
        "destinations.billing.retry.max_age = 8days",
    ),
    (
        "# log",
        "record_bytes_max = 1_100_000",
        "sources.github.body_bytes_max",
        "log.record_bytes_max",
    ),
    (
        "# dispatcher",
        "in_flight_bytes_max = 1_000\nheld_bytes_max = 500",
        "sources.github.body_bytes_max",
        "dispatcher.in_flight_bytes_max",
    ),
    (
        "# admin",
        "listen = \"127.0.0.1:8080\"",
        "admin.listen",
        "ingest.listen",
    ),
];

#[test]
fn each_mistake_is_named_at_its_key() {
    for (place, line, key, message) in MISTAKES {
        let (code, stderr) = check(&GOOD.replace(place, line));
        assert_eq!(code, Some(64), "{line}: {stderr}");
        assert_eq!(keys(&stderr), [key], "{line}: {stderr}");
        assert!(stderr.contains(message), "{line}: {stderr}");
    }
}

/// Place in [`GOOD`] (or in its form with Kafka and CQL) and a line there; `@` is the duration.
const DURATIONS: [(&str, &str); 33] = [
    ("# log", "retention = @"),
    ("# log", "dead_letters_retention = @"),
    ("# kafka", "retention = @"),
    ("# kafka", "dead_letters_retention = @"),
    ("# kafka", "session_timeout = @"),
    ("# store", "deadline = @"),
    ("# store", "retention = { open = @ }"),
    ("# store", "retention = { failed = @ }"),
    ("# store", "retention = { completed = @ }"),
    ("# cql", "connect_timeout = @"),
    ("# cql", "request_timeout = @"),
    ("# cql", "deadline = @"),
    ("# ingest", "header_timeout = @"),
    ("# ingest", "body_timeout = @"),
    ("# ingest", "drain = @"),
    ("# source", "deadline = @"),
    ("# source", "tolerance = { past = @ }"),
    ("# source", "tolerance = { future = @ }"),
    ("# dispatcher", "lease = @"),
    ("# dispatcher", "skew_margin = @"),
    ("# dispatcher", "room_wait = @"),
    ("# dispatcher", "retry_after_max = @"),
    ("# dispatcher", "produce_timeout = @"),
    ("# dispatcher", "shutdown_grace = @"),
    ("# destination", "timeout = @"),
    ("# destination", "retry = { base = @ }"),
    ("# destination", "retry = { cap = @ }"),
    ("# destination", "retry = { max_age = @ }"),
    ("# destination", "breaker = { window = @ }"),
    ("# destination", "breaker = { open = @ }"),
    ("# destination", "breaker = { open_max = @ }"),
    ("# destination", "breaker = { penalty = @ }"),
    ("# admin", "drain_delay = @"),
];

/// At and beyond the ends of what a duration can be, in seconds and in milliseconds.
const ABSURD: [&str; 6] = [
    "0s",
    "1ns",
    "99999999999y",
    "18446744073709551615s",
    "18446744073709551614s 999ms",
    "9223372036854775807ms",
];

#[test]
fn no_duration_breaks_the_check() {
    let large = GOOD
        .replace(
            "kind = \"embedded\"\n# log",
            "kind = \"kafka\"\nbrokers = [\"127.0.0.1:9092\"]\n# kafka",
        )
        .replace(
            "kind = \"embedded\"\n# store",
            "kind = \"cql\"\ncontact_points = [\"127.0.0.1:9042\"]\n# cql",
        );
    for value in ABSURD {
        let value = format!("{value:?}");
        for (place, line) in DURATIONS {
            let good = if GOOD.contains(place) { GOOD } else { &large };
            assert!(good.contains(place), "{place}");
            let (code, stderr) = check(&good.replace(place, &line.replace('@', &value)));
            assert!(
                matches!(code, Some(0 | 64)) && !stderr.contains("panicked"),
                "{line} with {value}: {code:?} {stderr}"
            );
        }
        for good in [GOOD, &large] {
            // Tables cannot be given twice, so one line of each kind.
            let all = DURATIONS
                .iter()
                .fold(good.to_owned(), |text, (place, line)| {
                    let line = line.replace('@', &value);
                    let table = line.split('=').next().unwrap_or_default();
                    let twice = text.lines().any(|other| other.starts_with(table));
                    if twice {
                        return text;
                    }
                    text.replace(place, &format!("{line}\n{place}"))
                });
            let (code, stderr) = check(&all);
            assert!(
                matches!(code, Some(0 | 64)) && !stderr.contains("panicked"),
                "{all}: {code:?} {stderr}"
            );
        }
    }
}

#[test]
fn what_bounds_a_destination_must_not_contradict_itself() {
    for (line, key, message) in [
        ("concurrency = 2000", "concurrency", "in_flight_max = 1024"),
        ("rate = { per_second = 0.0 }", "rate.per_second", "0.001"),
        ("rate = { per_second = nan }", "rate.per_second", "0.001"),
        (
            "rate = { per_second = 5.0, burst = 0 }",
            "rate.burst",
            "nothing would ever be sent",
        ),
        (
            "breaker = { window = \"9s\" }",
            "breaker.window",
            "at least `timeout`",
        ),
        (
            "concurrency = 2\nbreaker = { attempts_min = 13 }",
            "breaker.attempts_min",
            "at most 12 attempts",
        ),
        (
            "rate = { per_second = 0.1 }\nbreaker = { attempts_min = 8 }",
            "breaker.attempts_min",
            "`rate`",
        ),
        (
            "breaker = { failure_rate = 0.0 }",
            "breaker.failure_rate",
            "above 0",
        ),
        (
            "breaker = { consecutive_failures = 0 }",
            "breaker.consecutive_failures",
            "above 0",
        ),
        (
            "breaker = { open = \"31s\" }",
            "breaker.open_max",
            "at least `open`",
        ),
        (
            "breaker = { penalty = \"31s\" }",
            "breaker.penalty",
            "at most `open_max`",
        ),
        (
            "breaker = { open_max = \"72h\" }",
            "breaker.open_max",
            "below `retry.max_age`",
        ),
    ] {
        let (code, stderr) = check(&GOOD.replace("# destination", line));
        assert_eq!(code, Some(64), "{line}: {stderr}");
        let key = format!("destinations.billing.{key}");
        assert_eq!(keys(&stderr), [key], "{line}: {stderr}");
        assert!(stderr.contains(message), "{line}: {stderr}");
    }
    for line in [
        "concurrency = 1",
        "timeout = \"5m\"",
        "concurrency = 2\nbreaker = { attempts_min = 12 }",
        "rate = { per_second = 0.1 }\nbreaker = { attempts_min = 7 }",
        "breaker = { enabled = false }",
    ] {
        let (code, stderr) = check(&GOOD.replace("# destination", line));
        assert_eq!(code, Some(0), "{line}: {stderr}");
    }
}

#[test]
fn a_source_is_named_for_urls_and_ids() {
    for name in ["GitHub", "git.hub", "git hub", "a/b"] {
        let config = GOOD
            .replace("[sources.github]", &format!("[sources.{name:?}]"))
            .replace("source = \"github\"", &format!("source = {name:?}"));
        let (code, stderr) = check(&config);
        assert_eq!(code, Some(64), "{name}: {stderr}");
        assert_eq!(keys(&stderr), [format!("sources.{name}")], "{stderr}");
        assert!(stderr.contains("a-z, 0-9, '-' and '_'"), "{stderr}");
    }
}

#[test]
fn routes_lead_from_and_to_what_exists() {
    for (from, to, key, message) in [
        (
            "source = \"github\"",
            "source = \"gitlab\"",
            "routes.0.source",
            "[sources.gitlab]",
        ),
        (
            "to = [\"billing\"]",
            "to = [\"biling\"]",
            "routes.0.to",
            "[destinations.biling]",
        ),
        (
            "to = [\"billing\"]",
            "to = []",
            "routes.0.to",
            "no destination",
        ),
    ] {
        let (code, stderr) = check(&GOOD.replace(from, to));
        assert_eq!(code, Some(64), "{to}: {stderr}");
        assert_eq!(keys(&stderr), [key], "{to}: {stderr}");
        assert!(stderr.contains(message), "{to}: {stderr}");
    }
}

#[test]
fn a_secret_that_can_not_be_used_is_a_mistake() {
    const SECRET: &str = "{ file = \"secret\" }";
    for (place, key, message) in [
        (
            "{ file = \"absent\" }",
            "sources.github.secrets.0",
            "absent",
        ),
        (
            "{ env = \"NOT_SET_ANYWHERE\" }",
            "sources.github.secrets.0",
            "NOT_SET_ANYWHERE",
        ),
        (
            "{ file = \"secret\", env = \"A\" }",
            "sources.github.secrets.0",
            "exactly one",
        ),
        ("{ }", "sources.github.secrets.0", "exactly one"),
        ("", "sources.github.secrets", "secrets"),
        (
            "{ file = \"secret\", not_after = \"2020-01-01T00:00:00Z\" }",
            "sources.github.secrets",
            "has passed",
        ),
        ("\"hunter2\"", "sources.github.secrets.0", "found a string"),
    ] {
        let config = GOOD.replace(SECRET, place);
        let (code, stderr) = check(&config);
        assert_eq!(code, Some(64), "{place}: {stderr}");
        assert_eq!(keys(&stderr), [key], "{place}: {stderr}");
        assert!(stderr.contains(message), "{place}: {stderr}");
        assert!(!stderr.contains("hunter2"), "{stderr}");
    }
    let dir = tempfile::tempdir().unwrap();
    let absent = GOOD.replace(SECRET, "{ file = \"absent\" }");
    let output = fencepost(dir.path(), &absent, &["check", "--skip-secrets"]);
    assert_eq!(output.status.code(), Some(0));
}

/// A key is wrong for the rule that uses it, though it can be read.
#[test]
fn a_secret_that_is_no_key_is_a_mistake() {
    let outgoing = GOOD.replace(
        "# destination",
        "signing = { secrets = [{ file = \"secret\" }, { file = \"no-key\" }] }",
    );
    let incoming = GOOD
        .replace("\"github\"\nsecrets", "\"standard-webhooks\"\nsecrets")
        .replace("file = \"secret\"", "file = \"no-key\"");
    for (config, key, message) in [
        (
            &outgoing,
            "destinations.billing.signing.secrets.1",
            "base64",
        ),
        (&incoming, "sources.github.secrets.0", "is not base64"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("no-key"), "whsec_!!!\n").unwrap();
        // What check says, a process says too.
        for command in ["check", "standalone"] {
            let output = fencepost(dir.path(), config, &[command]);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(64), "{command}: {stderr}");
            assert_eq!(keys(&stderr), [key], "{command}: {stderr}");
            assert!(stderr.contains(message), "{command}: {stderr}");
            assert!(!stderr.contains("!!!"), "{stderr}");
        }
        let output = fencepost(dir.path(), config, &["check", "--skip-secrets"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
}

#[test]
fn an_address_that_may_not_be_dialled_is_a_mistake() {
    const URL: &str = "https://billing.example/hooks";
    for (url, message) in [
        ("https://10.0.0.1/hooks", "private"),
        ("https://[::1]/hooks", "allow_cidrs"),
        ("https://169.254.169.254/", "metadata"),
    ] {
        let config = GOOD.replace(URL, url).replace(
            "# destination",
            "signing = { secrets = [{ file = \"secret\" }] }",
        );
        let config = config.replace("file = \"secret\"", "file = \"absent\"");
        let dir = tempfile::tempdir().unwrap();
        let output = fencepost(dir.path(), &config, &["check", "--skip-secrets"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{url}: {stderr}");
        assert_eq!(keys(&stderr), ["destinations.billing.url"], "{stderr}");
        assert!(stderr.contains(message), "{url}: {stderr}");

        let (code, stderr) = check(&GOOD.replace(URL, url));
        assert_eq!(code, Some(64), "{url}: {stderr}");
        assert_eq!(keys(&stderr), ["destinations.billing.url"], "{stderr}");
    }
    let allowed = GOOD
        .replace(URL, "https://10.0.0.1/hooks")
        .replace("# destination", "allow_cidrs = [\"10.0.0.0/8\"]");
    let (code, stderr) = check(&allowed);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn all_mistakes_come_at_once_and_warnings_do_not_count() {
    let config = GOOD
        .replace("# dispatcher", "lease = \"6s\"")
        .replace("{ file = \"secret\" }", "{ file = \"absent\" }")
        .replace("to = [\"billing\"]", "to = [\"nobody\"]");
    let (code, stderr) = check(&config);
    assert_eq!(code, Some(64));
    let mut found = keys(&stderr);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "dispatcher.lease",
            "routes.0.to",
            "sources.github.secrets.0"
        ],
        "{stderr}"
    );
    assert!(
        stderr.contains("warning: destinations.billing: no route leads here"),
        "{stderr}"
    );

    let (code, stderr) = check("");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.starts_with("warning: sources: "), "{stderr}");
}

#[test]
fn a_file_that_can_not_be_read_or_parsed_says_where() {
    let (code, stderr) = check("[log]\nkind = embedded\n");
    assert_eq!(code, Some(64));
    assert!(
        stderr.starts_with("fencepost.toml, line 2, column 8: "),
        "{stderr}"
    );
    let dir = tempfile::tempdir().unwrap();
    let output = fencepost(dir.path(), "", &["check", "--config", "elsewhere.toml"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("elsewhere.toml"));
}

#[test]
fn a_role_with_an_embedded_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (role, expected) in [
        ("ingest", vec!["log.kind"]),
        ("dispatcher", vec!["log.kind", "store.kind"]),
    ] {
        let output = fencepost(dir.path(), GOOD, &[role]);
        assert_eq!(output.status.code(), Some(64));
        assert_eq!(keys(&String::from_utf8_lossy(&output.stderr)), expected);
    }
}

#[test]
fn the_example_has_no_mistakes_but_the_secret_that_is_yours() {
    let example = include_str!("../../fencepost.example.toml");
    let dir = tempfile::tempdir().unwrap();
    let output = fencepost(dir.path(), example, &["check", "--skip-secrets"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.stderr.is_empty());
}
