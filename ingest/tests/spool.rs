//! Webhooks wait on the disk while the log is away, through crashes, and go to it when it is back.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use axum::body::Body;
use event_log::{LogError, memory::MemoryLog};
use http::Request;
use http_body_util::BodyExt;
use ingest::{App, Drain, IngestConfig, SourceConfig, Spool, SpoolConfig, Unsigned, router, sign};
use runtime::Clock;
use schemas::{Codec, Topic};
use std::{collections::BTreeMap, path::Path, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

const NOW_MS: i64 = 1_700_000_000_000;
const HOUR_MS: i64 = 3_600_000;
const SECRET: &str = "s3cret";
/// What must happen happens within this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ingest over a log in memory and a spool in a directory.
struct Ingest {
    app: App<MemoryLog>,
    spool: Spool,
    stop: CancellationToken,
    drain: JoinHandle<Result<(), LogError>>,
}

struct Setting<'a> {
    dir: &'a Path,
    log: &'a MemoryLog,
    clock: &'a Clock,
    bytes_max: u64,
    source: &'a str,
}

impl<'a> Setting<'a> {
    fn new(dir: &'a Path, log: &'a MemoryLog, clock: &'a Clock) -> Self {
        Self {
            dir,
            log,
            clock,
            bytes_max: 1 << 30,
            source: "",
        }
    }

    fn app(&self) -> App<MemoryLog> {
        use figment::providers::{Format, Toml};
        std::fs::write(self.dir.join("s"), SECRET).unwrap();
        let text = format!(
            "[github]\nscheme = \"github\"\nsecrets = [{{ file = \"s\" }}]\n{}",
            self.source
        );
        let sources: BTreeMap<String, SourceConfig> = figment::Figment::from(Toml::string(&text))
            .extract()
            .unwrap();
        let (codec, clock) = (Codec::default(), self.clock.clone());
        App::new(
            IngestConfig::default(),
            sources,
            self.dir,
            self.log.clone(),
            codec,
            clock,
        )
        .unwrap()
    }

    async fn spool(&self) -> Result<(Spool, Drain), LogError> {
        let config = SpoolConfig {
            dir: self.dir.join("spool"),
            bytes_max: self.bytes_max,
        };
        Spool::open(&config, self.clock.clone()).await
    }

    async fn start(&self) -> Ingest {
        let app = self.app();
        let (spool, drain) = self.spool().await.unwrap();
        app.spool_to(spool.clone());
        let stop = CancellationToken::new();
        let drain = tokio::spawn(drain.run(app.clone(), stop.clone()));
        Ingest {
            app,
            spool,
            stop,
            drain,
        }
    }
}

impl Ingest {
    async fn stop(self) {
        self.stop.cancel();
        self.drain.await.unwrap().unwrap();
    }

    /// As a crash: the drain gets no time to commit anything.
    async fn crash(self) {
        self.drain.abort();
        drop(self.drain.await);
    }

    /// Status and the last part of a problem's type.
    async fn post(&self, id: &str, body: &[u8]) -> (u16, String) {
        post(&self.app, id, body).await
    }

    fn state(&self) -> Result<String, String> {
        self.spool.readiness(Ok(()))
    }
}

async fn post(app: &App<MemoryLog>, id: &str, body: &[u8]) -> (u16, String) {
    let rule = ingest::rule::presets().unwrap();
    let unsigned = Unsigned {
        delivery_id: id,
        event_type: "push",
        body,
        now_ms: NOW_MS,
        public_url: None,
    };
    let signed = sign(&rule["github"].verify, &[SECRET.as_bytes()], &unsigned).unwrap();
    let request = signed
        .into_iter()
        .fold(Request::post("/hooks/github"), |request, (name, value)| {
            request.header(name, value)
        });
    let request = request.body(Body::from(body.to_vec())).unwrap();
    let answered = router(app.clone()).oneshot(request);
    let response = tokio::time::timeout(PATIENCE, answered)
        .await
        .unwrap()
        .unwrap();
    let status = response.status().as_u16();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let problem = serde_json::from_slice::<serde_json::Value>(&text).ok();
    let kind =
        problem.and_then(|problem| Some(problem["type"].as_str()?.rsplit(':').next()?.to_owned()));
    (status, kind.unwrap_or_default())
}

async fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + PATIENCE;
    while !seen() {
        assert!(tokio::time::Instant::now() < end, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn log(clock: &Clock) -> MemoryLog {
    MemoryLog::new(1, clock.clone())
}

/// Delivery ids in the log, in order.
fn ids(log: &MemoryLog) -> Vec<String> {
    let records = log.records(Topic::Webhooks).into_iter();
    records
        .map(|record| String::from_utf8(record.key.to_vec()).unwrap())
        .collect()
}

fn numbered(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("d-{number:03}")).collect()
}

fn taken() -> (u16, String) {
    (202, String::new())
}

#[tokio::test]
async fn what_comes_while_the_log_is_away_goes_to_it_in_order_when_it_is_back() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let ingest = Setting::new(dir.path(), &log, &clock).start().await;
    assert_eq!(ingest.post("before", b"{}").await, taken());
    assert_eq!(ingest.state().unwrap(), "ok", "the log comes first");

    log.set_unavailable(Some("no broker"));
    let body = b"{\"not utf-8\": \"\xff\"}";
    for id in numbered(0..60) {
        assert_eq!(ingest.post(&id, body).await, taken());
    }
    assert_eq!(ids(&log), ["before"]);
    let away = || Err(LogError::Unavailable("no broker".to_owned()));
    let said = ingest.spool.readiness(away()).unwrap();
    assert!(said.contains("60") && said.contains("no broker"), "{said}");

    log.set_unavailable(None);
    until("drained", || ids(&log).len() == 61).await;
    assert_eq!(ids(&log)[1..], numbered(0..60));
    for record in &log.records(Topic::Webhooks)[1..] {
        let webhook = Codec::default().decode_webhook(&record.value).unwrap();
        assert_eq!(webhook.body, &body[..]);
        let names: Vec<_> = record
            .headers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert!(names.contains(&"fencepost-source"), "{names:?}");
    }
    until("empty", || ingest.state().unwrap() == "ok").await;
    ingest.stop().await;
}

#[tokio::test]
async fn a_log_that_takes_nothing_although_it_is_ready_is_no_reason_to_refuse() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let setting = Setting {
        source: "deadline = \"500ms\"",
        ..Setting::new(dir.path(), &log, &clock)
    };
    let ingest = setting.start().await;
    log.refuse_produces(1);
    assert_eq!(ingest.post("busy", b"{}").await, taken());
    until("busy", || ids(&log) == ["busy"]).await;
    log.fail_produces(1, false);
    assert_eq!(ingest.post("failed", b"{}").await, taken());
    until("failed", || ids(&log) == ["busy", "failed"]).await;
    // Answers too late for the sender, who is told all the same that it is safe.
    log.delay_produces(1, Duration::from_secs(3_600));
    assert_eq!(ingest.post("late", b"{}").await, taken());
    until("late", || ids(&log) == ["busy", "failed", "late"]).await;
    until("empty", || ingest.state().unwrap() == "ok").await;
    ingest.stop().await;
}

#[tokio::test]
async fn a_crash_before_the_commit_sends_again_and_loses_nothing() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let setting = Setting::new(dir.path(), &log, &clock);
    let ingest = setting.start().await;
    log.set_unavailable(Some("no broker"));
    for id in numbered(0..10) {
        assert_eq!(ingest.post(&id, b"{}").await, taken());
    }
    // Written, and the word of it lost: for all that is known, nothing is in the log.
    log.fail_produces(10_000, true);
    log.set_unavailable(None);
    until("written", || !ids(&log).is_empty()).await;
    ingest.crash().await;
    assert_eq!(ids(&log)[0], "d-000");

    let log = self::log(&clock);
    let setting = Setting {
        log: &log,
        ..setting
    };
    let ingest = setting.start().await;
    until("all again", || ids(&log) == numbered(0..10)).await;
    until("empty", || ingest.state().unwrap() == "ok").await;
    ingest.stop().await;

    let (spool, drain) = setting.spool().await.unwrap();
    assert_eq!(spool.readiness(Ok(())).unwrap(), "ok", "finished is gone");
    drop((spool, drain));
}

#[tokio::test]
async fn a_stop_leaves_the_spool_to_the_next_start() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let setting = Setting::new(dir.path(), &log, &clock);
    log.set_unavailable(Some("no broker"));
    let ingest = setting.start().await;
    for id in numbered(0..5) {
        assert_eq!(ingest.post(&id, b"{}").await, taken());
    }
    ingest.stop().await;
    let ingest = setting.start().await;
    assert_eq!(ingest.post("d-005", b"{}").await, taken());
    log.set_unavailable(None);
    until("drained", || ids(&log) == numbered(0..6)).await;
    ingest.stop().await;
}

#[tokio::test]
async fn a_full_spool_refuses_until_there_is_room() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let setting = Setting {
        bytes_max: 25_000,
        ..Setting::new(dir.path(), &log, &clock)
    };
    let full = (503, "spool_full".to_owned());
    let body = vec![b'x'; 10_000];
    log.set_unavailable(Some("no broker"));
    let ingest = setting.start().await;
    assert_eq!(ingest.post("d-000", &body).await, taken());
    assert_eq!(ingest.post("d-001", &body).await, taken());
    assert_eq!(ingest.post("d-002", &body).await, full);
    assert_eq!(
        ingest.post("d-003", b"{}").await,
        taken(),
        "a small one fits"
    );
    ingest.stop().await;

    // The bound holds over a restart.
    let ingest = setting.start().await;
    assert_eq!(ingest.post("d-004", &body).await, full);
    log.set_unavailable(None);
    until("drained", || ids(&log).len() == 3).await;
    until("empty", || ingest.state().unwrap() == "ok").await;
    log.set_unavailable(Some("no broker"));
    assert_eq!(ingest.post("d-005", &body).await, taken());
    ingest.stop().await;

    let cramped = Setting {
        bytes_max: 1_000,
        ..setting
    };
    let ingest = cramped.start().await;
    let away = Err(LogError::Unavailable("no broker".to_owned()));
    let said = ingest.spool.readiness(away).unwrap_err();
    assert!(said.contains("full"), "{said}");
    assert_eq!(
        ingest.post("d-006", b"{}").await,
        full,
        "before its body is read"
    );
    log.set_unavailable(None);
    until("drained", || ids(&log).len() == 4).await;
    ingest.stop().await;
}

#[tokio::test]
async fn one_that_the_log_will_not_take_is_kept_aside_and_holds_up_nobody() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let setting = Setting::new(dir.path(), &log, &clock);
    let ingest = setting.start().await;
    log.set_unavailable(Some("no broker"));
    assert_eq!(ingest.post("large", &vec![b'x'; 50_000]).await, taken());
    assert_eq!(ingest.post("small", b"{}").await, taken());
    log.set_record_bytes_max(10_000);
    log.set_unavailable(None);
    until("small", || ids(&log) == ["small"]).await;
    until("nothing waits", || ingest.state().unwrap() == "ok").await;
    // One that the log refuses to its sender's face does not go to the spool.
    let refused = ingest.post("larger", &vec![b'x'; 60_000]).await;
    assert_eq!(refused, (413, "too_large".to_owned()));
    ingest.stop().await;

    let ingest = setting.start().await;
    clock.advance(HOUR_MS + 1);
    // Not mended yet: it is kept for another hour.
    assert_eq!(ingest.post("other", b"{}").await, taken());
    ingest.stop().await;
    log.set_record_bytes_max(100_000);
    let ingest = setting.start().await;
    clock.advance(HOUR_MS + 1);
    until("large", || ids(&log).contains(&"large".to_owned())).await;
    ingest.stop().await;
    assert_eq!(ids(&log).len(), 3);
}

#[tokio::test]
async fn a_spool_belongs_to_one_process() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let setting = Setting::new(dir.path(), &log, &clock);
    let ingest = setting.start().await;
    let error = setting.spool().await.unwrap_err().to_string();
    assert!(error.contains("another process"), "{error}");
    assert!(error.contains(&dir.path().display().to_string()), "{error}");
    ingest.stop().await;
    let second = setting.spool().await.unwrap();
    drop(second);
}

/// What has gone to the log does not stay on the disk: the bound of the spool is one of the disk too.
#[tokio::test]
async fn what_is_drained_is_deleted() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Clock::manual(NOW_MS));
    let log = log(&clock);
    let setting = Setting {
        bytes_max: 2_000_000,
        ..Setting::new(dir.path(), &log, &clock)
    };
    let ingest = setting.start().await;
    let body = vec![b'x'; 100_000];
    for round in 0..12 {
        log.set_unavailable(Some("no broker"));
        for number in 0..15 {
            let id = format!("d-{round}-{number}");
            assert_eq!(ingest.post(&id, &body).await, taken());
        }
        log.set_unavailable(None);
        until("empty", || ingest.state().unwrap() == "ok").await;
        // As time goes by; the writer looks once a second, of its clock and of ours.
        clock.advance(2_000);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ingest.stop().await;
    let database = dir.path().join("spool/log.sqlite");
    let bytes = std::fs::metadata(database).unwrap().len();
    // 18 MB have gone through it.
    assert!(bytes < 9_000_000, "{bytes}");
}
