//! `fencepost reconcile github` through the real binary, against a server that speaks GitHub's API as its documentation has it.

mod github;

use dedup_store::{
    Claim, ClaimAsk, Reopen, Store, config::EmbeddedConfig, embedded::EmbeddedStore,
};
use github::{Call, GitHub, Say, TOKEN};
use runtime::Clock;
use schemas::DeliveryKey;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(30);
const REPOSITORY: &str = "repos/acme/widgets/hooks/123";
const APP: &str = "app/hook";
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// Says the same to every call.
type Always = dyn Fn() -> Say + Send + Sync;

/// A directory with a config, an embedded store and a token.
struct Site {
    dir: tempfile::TempDir,
}

// === impl Site ===

impl Site {
    fn new(github: &GitHub) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = format!(
            r#"
            [sources.github]
            scheme = "github"
            secrets = [{{ file = "token" }}]
            events = ["push", "issues", "star"]
            [destinations.billing]
            url = "https://billing.example/hooks"
            [[routes]]
            source = "github"
            events = ["push", "issues.opened"]
            to = ["billing"]
            [reconcile.github]
            hooks = ["{REPOSITORY}", "{APP}"]
            token = {{ file = "token" }}
            api_url = "{}/"
            "#,
            github.url
        );
        std::fs::write(dir.path().join("fencepost.toml"), config).expect("config written");
        std::fs::write(dir.path().join("token"), format!("{TOKEN}\n")).expect("token written");
        let site = Self { dir };
        site.arrived(&[]);
        site
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Rows for these GUIDs, as a dispatcher makes them.
    fn arrived(&self, guids: &[&str]) {
        let config = EmbeddedConfig {
            dir: self.path().join("fencepost-data"),
            ..EmbeddedConfig::default()
        };
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let store = EmbeddedStore::open(&config).expect("opens");
            for guid in guids {
                let now_ms = Clock::system().now_ms();
                let ask = ClaimAsk {
                    key: DeliveryKey {
                        source: "github".to_owned(),
                        delivery_id: (*guid).to_owned(),
                        destination: "billing".to_owned(),
                    },
                    token: Uuid::new_v4(),
                    lease_ms: 15_000,
                    skew_margin_ms: 500,
                    attempt: 1,
                    fence: None,
                    generation: 0,
                    received_at_ms: now_ms,
                    reopen: Reopen::default(),
                };
                let Ok(Claim::Claimed(held)) = store.claim(&ask, now_ms).await else {
                    panic!("not claimed")
                };
                store.complete(&held, now_ms).await.expect("completed");
            }
        });
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
        command
            .current_dir(self.path())
            .env_remove("FENCEPOST_CONFIG")
            // A proxy of the environment must not get the token.
            .env("http_proxy", "http://127.0.0.1:9")
            .args(["reconcile", "github", "--json", "--per-minute", "6000"])
            .args(args);
        command
    }

    fn run(&self, args: &[&str]) -> (Option<i32>, Vec<Value>, String) {
        told(&self.command(args).output().expect("binary runs"))
    }
}

/// Exit code, JSON lines, standard error. The token is nowhere.
fn told(output: &Output) -> (Option<i32>, Vec<Value>, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(
        !stdout.contains(TOKEN) && !stderr.contains(TOKEN),
        "{stderr}"
    );
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    (output.status.code(), lines.collect(), stderr)
}

/// What became of each webhook, by GUID.
fn results(lines: &[Value]) -> BTreeMap<String, String> {
    let text = |line: &Value, key: &str| line[key].as_str().map(str::to_owned);
    let of = |line| Some((text(line, "delivery_id")?, text(line, "result")?));
    lines.iter().filter_map(of).collect()
}

/// An attempt as GitHub lists it.
fn attempt(id: u64, guid: &str, age_ms: i64, status: u16, event: &str) -> Value {
    let at = Clock::system().now_ms() - age_ms;
    let (event, action) = match event.split_once('.') {
        Some((event, action)) => (event, Some(action)),
        None => (event, None),
    };
    json!({
        "id": id,
        "guid": guid,
        "delivered_at": jiff::Timestamp::from_millisecond(at).expect("a time").to_string(),
        "redelivery": false,
        "duration": 0.27,
        "status": if status == 202 { "OK" } else { "failed to connect" },
        "status_code": status,
        "event": event,
        "action": action,
        "installation_id": null,
        "repository_id": 456,
        "throttled_at": null,
    })
}

fn failures(count: u64) -> Vec<Value> {
    let hours = |n: u64| HOUR_MS * i64::try_from(n).expect("small");
    (1..=count)
        .map(|n| attempt(n, &format!("guid-{n}"), hours(n), 503, "push"))
        .collect()
}

fn limited(seconds_from_now: i64) -> Say {
    let reset = Clock::system().now_ms() / 1_000 + seconds_from_now;
    let headers = vec![
        ("x-ratelimit-remaining", "0".to_owned()),
        ("x-ratelimit-reset", reset.to_string()),
    ];
    Say::This(
        403,
        headers,
        json!({"message": "API rate limit exceeded"}).to_string(),
    )
}

/// Some of everything.
fn much() -> (GitHub, Site) {
    let repository = vec![
        attempt(20, "young", MINUTE_MS, 503, "push"),
        attempt(19, "again", 10 * MINUTE_MS, 0, "push"),
        attempt(18, "fine", HOUR_MS, 202, "issues.opened"),
        attempt(17, "lost", 2 * HOUR_MS, 202, "issues.opened"),
        attempt(16, "no-route", 3 * HOUR_MS, 503, "issues.closed"),
        attempt(15, "not-taken", 4 * HOUR_MS, 503, "pull_request.opened"),
        attempt(14, "again", 5 * HOUR_MS, 503, "push"),
        attempt(13, "arrived", 6 * HOUR_MS, 503, "push"),
        attempt(9_007_199_254_740_993, "oldest", 70 * HOUR_MS, 502, "push"),
        attempt(11, "too-old", 80 * HOUR_MS, 503, "push"),
        attempt(10, "never-listed", 90 * HOUR_MS, 503, "push"),
        attempt(9, "never-listed", 91 * HOUR_MS, 503, "push"),
    ];
    let app = vec![attempt(99, "of-the-app", HOUR_MS, 500, "push")];
    let github = GitHub::usual(&[(REPOSITORY, repository), (APP, app)]);
    let site = Site::new(&github);
    site.arrived(&["fine", "arrived"]);
    (github, site)
}

#[test]
fn a_dry_run_asks_for_nothing() {
    let (github, site) = much();
    let (code, lines, stderr) = site.run(&["--dry-run", "--state", "state"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(github.calls().iter().all(|call| call.method == "GET"));
    assert_eq!(github.calls().len(), 6, "no page behind --since");
    assert!(results(&lines).values().all(|result| result == "would_ask"));
    assert!(!site.path().join("state").exists());

    let (code, lines, _) = site.run(&["--failed-only", "--limit", "2", "--dry-run"]);
    let guids: Vec<_> = results(&lines).into_keys().collect();
    let expected = vec!["of-the-app".to_owned(), "oldest".to_owned()];
    assert_eq!((code, guids), (Some(0), expected));
    assert!(github.asked().is_empty());
}

#[test]
fn pages_are_followed_and_the_store_decides() {
    let (github, site) = much();
    let (code, lines, stderr) = site.run(&["--state", "state"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(
        github.asked(),
        ["9007199254740993", "17", "99", "19"],
        "the oldest first"
    );
    let posts: Vec<_> = github
        .calls()
        .into_iter()
        .filter(|call| call.method == "POST")
        .collect();
    assert_eq!(
        posts[1].target,
        "/api/v3/repos/acme/widgets/hooks/123/deliveries/17/attempts"
    );
    assert_eq!(posts[2].target, "/api/v3/app/hook/deliveries/99/attempts");
    for call in github.calls() {
        let header = |name: &str| call.headers.get(name).map(String::as_str);
        assert_eq!(header("accept"), Some("application/vnd.github+json"));
        assert_eq!(header("x-github-api-version"), Some("2022-11-28"));
        assert!(header("user-agent").is_some_and(|agent| agent.starts_with("fencepost/")));
        assert!(
            call.method == "POST" || call.target.contains("per_page=100"),
            "{call:?}"
        );
    }
    let why: BTreeMap<_, _> = lines
        .iter()
        .filter_map(|line| Some((line["delivery_id"].as_str()?, line["why"].as_str()?)))
        .collect();
    let expected = [
        ("again", "failed"),
        ("lost", "unseen"),
        ("of-the-app", "failed"),
        ("oldest", "failed"),
    ];
    assert_eq!(why, BTreeMap::from(expected));
    let figures = lines.last().expect("a summary");
    assert_eq!(figures["attempts"], 10);
    assert_eq!(figures["webhooks"], 9);
    assert_eq!(
        (&figures["failed"], &figures["unseen"]),
        (&json!(7), &json!(1))
    );
    assert_eq!(
        figures["skipped"],
        json!({"arrived": 2, "ignored": 2, "unsettled": 1})
    );
    assert_eq!(figures["results"], json!({"asked": 4}));

    let (code, lines, _) = site.run(&["--state", "state"]);
    assert_eq!((code, github.asked().len()), (Some(0), 4), "nothing twice");
    assert_eq!(
        lines.last().expect("a summary")["skipped"]["cooling_down"],
        4
    );
}

#[test]
fn text_for_people() {
    let github = GitHub::usual(&[(REPOSITORY, failures(1)), (APP, Vec::new())]);
    let site = Site::new(&github);
    let output = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .current_dir(site.path())
        .args(["reconcile", "github"])
        .output()
        .expect("binary runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        stdout.starts_with("asked       github  guid-1  push  failed (503)"),
        "{stdout}"
    );
    assert!(
        stdout.contains("1 attempts of 1 webhooks since"),
        "{stdout}"
    );
}

#[test]
fn passing_trouble_is_sat_out() {
    let script = |nth: usize, call: &Call| match nth {
        0 => limited(0),
        1 => Say::This(429, vec![("retry-after", "0".to_owned())], String::new()),
        2 | 5 => Say::This(500, Vec::new(), "<html>".to_owned()),
        _ if call.method == "POST" && nth == 6 => limited(-5),
        _ => Say::Usual,
    };
    let github = GitHub::start(
        &[(REPOSITORY, failures(1)), (APP, Vec::new())],
        Box::new(script),
    );
    let (code, lines, stderr) = Site::new(&github).run(&[]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(
        lines.last().expect("a summary")["results"],
        json!({"asked": 1})
    );
    let methods: Vec<_> = github.calls().into_iter().map(|call| call.method).collect();
    assert_eq!(
        methods,
        ["GET", "GET", "GET", "GET", "GET", "POST", "POST", "POST"]
    );
}

#[test]
fn what_can_not_be_listed_is_told() {
    let echo = json!({"message": format!("Bad credentials: Bearer {TOKEN}")}).to_string();
    let away = vec![("location", "/elsewhere".to_owned())];
    let this = |status, body: &str| Say::This(status, Vec::new(), body.to_owned());
    let itself = vec![("link", "<http://x/?cursor=v1_2>; rel=next".to_owned())];
    let page = Value::from(failures(1)).to_string();
    let cases: Vec<(&str, Box<Always>, &str)> = vec![
        (
            "token",
            Box::new(move || this(401, &echo)),
            "the token is wrong or has expired",
        ),
        (
            "rights",
            Box::new(move || this(404, "{}")),
            "may not read and write webhooks",
        ),
        (
            "json",
            Box::new(move || this(200, "[{\"id\": ")),
            "unexpected answer: no list of deliveries",
        ),
        (
            "long",
            Box::new(move || this(200, &" ".repeat(5 << 20))),
            "longer than 4194304 bytes",
        ),
        (
            "limit",
            Box::new(|| limited(7_200)),
            "rate limit for another 7",
        ),
        (
            "moved",
            Box::new(move || Say::This(301, away.clone(), String::new())),
            "redirects are not followed",
        ),
        (
            "circle",
            Box::new(move || Say::This(200, itself.clone(), page.clone())),
            "leads to itself",
        ),
    ];
    for (name, say, expected) in cases {
        let github = GitHub::start(&[(APP, Vec::new())], Box::new(move |_, _| say()));
        let (code, lines, stderr) = Site::new(&github).run(&[]);
        assert_eq!(code, Some(69), "{name}: {stderr}");
        assert!(
            stderr.contains(&format!("github: {REPOSITORY}: ")),
            "{name}: {stderr}"
        );
        assert!(stderr.contains(expected), "{name}: {stderr}");
        assert_eq!(lines, [] as [Value; 0], "{name}");
        let elsewhere = github
            .calls()
            .iter()
            .any(|call| call.target.contains("elsewhere"));
        assert!(!elsewhere, "{name}");
    }
}

#[test]
fn nobody_there_is_told() {
    let github = GitHub::usual(&[]);
    let site = Site::new(&github);
    drop(github.runtime);
    let (code, _, stderr) = site.run(&[]);
    assert_eq!(code, Some(69), "{stderr}");
    assert!(stderr.contains("no answer in 5 tries"), "{stderr}");
}

#[test]
fn what_can_not_be_asked_for_is_left_for_the_next_run() {
    // The oldest is asked for first: 5, 4, 3.
    let script = |_: usize, call: &Call| match call.method.as_str() {
        "POST" if call.attempt() == "4" => {
            Say::This(422, Vec::new(), json!({"message": "too old"}).to_string())
        }
        "POST" if call.attempt() == "3" => limited(7_200),
        _ => Say::Usual,
    };
    let deliveries = [(REPOSITORY, failures(5)), (APP, Vec::new())];
    let github = GitHub::start(&deliveries, Box::new(script));
    let site = Site::new(&github);
    let (code, lines, stderr) = site.run(&["--state", "state"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains("asking ends: rate limit for another 7"),
        "{stderr}"
    );
    assert_eq!(github.asked(), ["5", "4", "3"], "nothing after the limit");
    let found = results(&lines);
    let result = |guid: &str| found.get(guid).map(String::as_str);
    assert_eq!(result("guid-5"), Some("asked"));
    assert_eq!(result("guid-4"), Some("refused"));
    assert_eq!(
        (result("guid-3"), result("guid-1")),
        (Some("left"), Some("left"))
    );

    let healthy = GitHub::usual(&deliveries);
    let config = std::fs::read_to_string(site.path().join("fencepost.toml")).expect("config");
    let config = config.replace(&github.url, &healthy.url);
    std::fs::write(site.path().join("fencepost.toml"), config).expect("config written");
    let (code, _, stderr) = site.run(&["--state", "state"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(healthy.asked(), ["4", "3", "2", "1"]);
}

#[test]
fn a_killed_run_goes_on_and_asks_for_nothing_twice() {
    // The second redelivery, of 2, gets no answer.
    let script = |_: usize, call: &Call| {
        if call.method == "POST" && call.attempt() == "2" {
            Say::Nothing
        } else {
            Say::Usual
        }
    };
    let deliveries = [(REPOSITORY, failures(3)), (APP, Vec::new())];
    let github = GitHub::start(&deliveries, Box::new(script));
    let site = Site::new(&github);
    let mut child = site
        .command(&["--state", "state"])
        .stdout(Stdio::null())
        .spawn()
        .expect("binary runs");
    loop {
        let call = github.arrivals.recv_timeout(DEADLINE).expect("a call");
        if call.method == "POST" && call.attempt() == "2" {
            break;
        }
    }
    let (code, _, stderr) = site.run(&["--state", "state"]);
    assert_eq!(code, Some(69), "one run at a time: {stderr}");
    child.kill().expect("killed");
    child.wait().expect("a child");
    assert_eq!(github.asked(), ["3", "2"]);

    let (code, lines, stderr) = site.run(&["--state", "state"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(github.asked(), ["3", "2", "1"]);
    assert_eq!(
        lines.last().expect("a summary")["skipped"],
        json!({"cooling_down": 2})
    );
    // Whether the unanswered one was obeyed is seen later, by what GitHub lists.
    let (code, lines, _) = site.run(&["--dry-run", "--state", "state", "--cool-down", "0s"]);
    assert_eq!((code, results(&lines).len()), (Some(0), 3));
}

#[test]
fn mistakes_are_named() {
    let github = GitHub::usual(&[]);
    let site = Site::new(&github);
    let file = site.path().join("fencepost.toml");
    let good = std::fs::read_to_string(&file).expect("config");
    let run = |config: String, args: &[&str]| {
        std::fs::write(&file, config).expect("config written");
        let output = Command::new(env!("CARGO_BIN_EXE_fencepost"))
            .current_dir(site.path())
            .args(args)
            .output()
            .expect("binary runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let reconcile = ["reconcile", "github"].as_slice();
    for (from, to, key) in [
        (
            github.url.as_str(),
            "http://github.example",
            "reconcile.github.api_url: must be https",
        ),
        (APP, "repos/acme", "reconcile.github.hooks.1: "),
        (
            "[reconcile.github]",
            "[reconcile.other]",
            "reconcile.other: no [sources.other]",
        ),
        (
            "scheme = \"github\"",
            "scheme = \"stripe\"",
            "reconcile.github: sources.github must",
        ),
        (
            "api_url",
            "api_uri",
            "reconcile.github.api_uri: unknown key",
        ),
    ] {
        for args in [reconcile, &["check", "--skip-secrets"]] {
            let (code, stderr) = run(good.replacen(from, to, 1), args);
            assert_eq!(code, Some(64), "{stderr}");
            assert!(stderr.contains(key), "{key}: {stderr}");
        }
    }
    // The token may be there only where the command runs.
    let no_token = good.replace(
        "token = { file = \"token\" }",
        "token = { file = \"absent\" }",
    );
    let (code, stderr) = run(no_token.clone(), &["check"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stderr) = run(no_token, reconcile);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(
        stderr.contains("reconcile.github.token: can not read"),
        "{stderr}"
    );

    let (code, stderr) = run(good.clone(), &["reconcile", "github", "--source", "other"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert!(stderr.contains("no [reconcile.other]"), "{stderr}");
    let (code, stderr) = run(
        good.clone(),
        &["reconcile", "github", "--since", "yesterday"],
    );
    assert_eq!(code, Some(64), "{stderr}");
    std::fs::remove_dir_all(site.path().join("fencepost-data")).expect("removed");
    let (code, stderr) = run(good, reconcile);
    assert_eq!(code, Some(69), "no store, no judgement: {stderr}");
    assert!(github.calls().is_empty());
}
