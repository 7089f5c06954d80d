//! The processes of a run: ingest and dispatchers, how they start, die and stop.

use crate::{
    log::SimLog,
    lot::Lot,
    plan::{CANARY, SOURCES, STORE_DEADLINE},
    receivers::SimSend,
    scene::{Life, START_MS, Scene},
    store::SimStore,
};
use axum::Router;
use dispatcher::{Status, process::Parts};
use ingest::{App, IngestConfig, SourceConfig};
use runtime::Clock;
use schemas::TopicNames;
use serde_json::json;
use std::{
    collections::BTreeMap,
    future::poll_fn,
    path::Path,
    sync::{Arc, Mutex, OnceLock},
    task::ready,
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Signs for every source: base64, as Standard Webhooks wants it.
pub(crate) const SECRET: &str = "bm90LXRvLWJlLXNlZW4tYW55d2hlcmUtZXZlcg==";
/// Number of ingest's lives; those of dispatchers come after them.
const INGEST_LIVES: usize = 1_000;

/// Ingest: a router over the log, and the life that serves it.
#[derive(Debug)]
pub(crate) struct Ingest {
    scene: Arc<Scene>,
    clock: Clock,
    serving: Mutex<(Life, Router)>,
    lives: Mutex<usize>,
}

/// A machine with a dispatcher on it.
#[derive(Debug)]
pub(crate) struct Machine {
    scene: Arc<Scene>,
    number: usize,
    pub(crate) clock: Clock,
    lives: usize,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    life: Life,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

// === impl Ingest ===

impl Ingest {
    pub(crate) fn start(scene: &Arc<Scene>) -> Self {
        let clock = Clock::going(START_MS);
        let first = serve(scene, &clock, 0);
        Self {
            scene: Arc::clone(scene),
            clock,
            serving: Mutex::new(first),
            lives: Mutex::new(1),
        }
    }

    /// Who serves now.
    pub(crate) fn serving(&self) -> (Life, Router) {
        self.serving.lock().expect("nothing panics").clone()
    }

    /// Dies with all requests, and is there again.
    pub(crate) fn crash(&self) {
        let mut lives = self.lives.lock().expect("nothing panics");
        let next = serve(&self.scene, &self.clock, *lives);
        *lives += 1;
        let mut serving = self.serving.lock().expect("nothing panics");
        serving.0.die_after(0);
        *serving = next;
    }
}

fn serve(scene: &Arc<Scene>, clock: &Clock, number: usize) -> (Life, Router) {
    let life = Life::new(number, "ingest".to_owned(), None, clock.clone());
    let log = SimLog {
        scene: Arc::clone(scene),
        life: life.clone(),
    };
    let source = |scheme: &str| -> SourceConfig {
        let config = json!({"scheme": scheme, "secrets": [{"file": "secret"}]});
        serde_json::from_value(config).expect("a source")
    };
    let [github, standard] = SOURCES;
    let sources = BTreeMap::from([
        (github.to_owned(), source("github")),
        (standard.to_owned(), source("standard-webhooks")),
        (CANARY.to_owned(), source("github")),
    ]);
    let config = IngestConfig::default();
    let codec = scene.codec.clone();
    let app = App::new(config, sources, secrets(), log, codec, clock.clone());
    (life, ingest::router(app.expect("no mistakes")))
}

/// A directory with the secret, for all runs of this process.
fn secrets() -> &'static Path {
    static SECRETS: OnceLock<tempfile::TempDir> = OnceLock::new();
    let directory = SECRETS.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("secret"), SECRET).expect("a file");
        directory
    });
    directory.path()
}

// === impl Machine ===

impl Machine {
    /// With its clock, and nothing running.
    pub(crate) fn new(scene: &Arc<Scene>, number: usize) -> Self {
        let skew_ms = scene.plan.skews_ms[number];
        Self {
            scene: Arc::clone(scene),
            number,
            clock: Clock::going(START_MS + skew_ms),
            lives: 0,
            running: None,
        }
    }

    /// Sets the clock to the true time and `skew_ms` more.
    pub(crate) fn set_clock(&self, skew_ms: i64) {
        let now_ms = self.scene.clock.now_ms() + skew_ms;
        self.clock.advance(now_ms - self.clock.now_ms());
    }

    /// Starts a dispatcher, unless one runs.
    pub(crate) fn start(&mut self) {
        if self.is_running() {
            return;
        }
        let number = INGEST_LIVES + self.number * 1_000 + self.lives;
        let name = format!("d{}", self.number);
        let life = Life::new(number, name, Some(self.number), self.clock.clone());
        self.lives += 1;
        let scene = &self.scene;
        scene.tell(life.name(), "starts");
        let parts = Parts {
            log: SimLog {
                scene: Arc::clone(scene),
                life: life.clone(),
            },
            store: SimStore {
                scene: Arc::clone(scene),
                life: life.clone(),
            },
            send: SimSend {
                scene: Arc::clone(scene),
                life: life.clone(),
            },
            codec: scene.codec.clone(),
            clock: self.clock.clone(),
            dice: Lot::new(scene.plan.seed, 1_000 + number as u64).dice(),
            names: TopicNames::new("fencepost"),
            config: scene.plan.config.clone(),
            destinations: scene.plan.destinations.clone(),
            routes: scene.plan.routes.clone(),
            sources: scene.plan.policies.clone(),
            store_deadline: STORE_DEADLINE,
        };
        let path = Arc::new(dispatcher::Path::new(parts));
        let shutdown = CancellationToken::new();
        let task = live(
            Arc::clone(scene),
            life.clone(),
            dispatcher::run(path, Status::default(), shutdown.clone()),
        );
        let task = tokio::spawn(task);
        self.running = Some(Running {
            life,
            shutdown,
            task,
        });
    }

    /// Whether a dispatcher runs, or is just ending.
    pub(crate) fn is_running(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| !running.task.is_finished())
    }

    /// It dies at this step from now on.
    pub(crate) fn crash(&self, steps: usize) {
        if let Some(running) = &self.running {
            running.life.die_after(steps);
        }
    }

    /// One that is ending dies.
    pub(crate) fn end_now(&self) {
        if let Some(running) = &self.running
            && running.shutdown.is_cancelled()
        {
            running.life.die_after(0);
        }
    }

    /// It stands still.
    pub(crate) fn freeze(&self, for_ms: u64) {
        if let Some(running) = &self.running {
            running.life.freeze(Duration::from_millis(for_ms));
            let until_ms = self.scene.at_ms() + i64::try_from(for_ms).expect("short");
            self.scene.oracle().froze(running.life.number(), until_ms);
        }
    }

    /// It goes on.
    pub(crate) fn thaw(&self) {
        if let Some(running) = &self.running {
            running.life.freeze(Duration::ZERO);
        }
    }

    /// Asks it to stop.
    pub(crate) fn stop(&self) {
        if let Some(running) = &self.running {
            self.scene.tell(running.life.name(), "is asked to stop");
            running.shutdown.cancel();
        }
    }
}

/// Runs a dispatcher until it ends or dies. Dropping its future is its death: whatever it has spawned goes with it.
async fn live(
    scene: Arc<Scene>,
    life: Life,
    run: impl Future<Output = Result<(), dispatcher::RunError>>,
) {
    let mut run = Box::pin(run);
    let mut thaws = Box::pin(tokio::time::sleep(Duration::ZERO));
    let unfrozen = poll_fn(|context| {
        while let Some(until) = life.stands_still() {
            thaws.as_mut().reset(until);
            ready!(thaws.as_mut().poll(context));
        }
        run.as_mut().poll(context)
    });
    let ended = tokio::select! {
        biased;
        () = life.died().cancelled() => None,
        ended = unfrozen => Some(ended),
    };
    drop(run);
    let what = match &ended {
        None => "dies".to_owned(),
        Some(Ok(())) => "stops".to_owned(),
        Some(Err(error)) => format!("ends: {error}"),
    };
    scene.tell(life.name(), &what);
    let mut oracle = scene.oracle();
    oracle
        .tally
        .count(if ended.is_none() { "crashes" } else { "stops" });
    if let Some(Err(error)) = ended {
        oracle.violated(7, format!("{} ended: {error}", life.name()), None);
    }
    oracle.life_over(life.number());
    drop(oracle);
}

/// The rule that a source's webhooks are signed by.
pub(crate) fn rule(source: &str) -> &'static ingest::Rule {
    static RULES: OnceLock<[ingest::Rule; 2]> = OnceLock::new();
    let [github, standard] = RULES.get_or_init(|| {
        let mut presets = ingest::rule::presets().expect("they are ours");
        ["github", "standard-webhooks"].map(|name| presets.remove(name).expect("is there").verify)
    });
    if source == "standard" {
        standard
    } else {
        github
    }
}
