//! A running process: `standalone`, `ingest` or `dispatcher`.

use crate::{
    check,
    config::Loaded,
    failure::Failure,
    files::Need,
    ports::{
        log::{self, AnyLog, Connecting},
        store::{self, AnyStore},
    },
};
use dedup_store::{Store, config::StoreConfig};
use dispatcher::{HttpSend, Status, config::SourcePolicy, process::Parts};
use event_log::{EventLog, config::LogConfig};
use ingest::{Drain, SourceConfig, Spool, SpoolConfig};
use runtime::{
    Admin, Clock, Dice, FileLimits, Problem, Readiness, Shutdown, Telemetry, shutdown::within,
};
use schemas::TopicNames;
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// One answer of a dependency to `/readyz`.
const CHECK_DEADLINE: Duration = Duration::from_secs(2);

/// The dispatcher's loop goes round many times a second; after this long without, it hangs.
const DISPATCHER_SILENT_MAX_MS: i64 = 30_000;

/// Beyond what ingest and dispatcher are given to drain: committing, closing.
const CLOSE_MARGIN: Duration = Duration::from_secs(10);

/// Records that nobody waits for any more get this long to be acknowledged.
const FLUSH_DEADLINE: Duration = Duration::from_secs(5);

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Both of the others.
    Standalone,
    /// HTTP to log.
    Ingest,
    /// Log to HTTP.
    Dispatcher,
}

/// Everything that runs, and what it stands on.
struct Running {
    log: AnyLog,
    readiness: Readiness,
    /// Ingest and dispatcher, by name. None of them ends by itself but for a reason.
    work: JoinSet<(&'static str, Result<(), Failure>)>,
    /// The process is going to stop; ingest tells its clients.
    draining: CancellationToken,
    stop: CancellationToken,
}

/// Runs until a signal asks to stop, or something breaks.
///
/// The order at the end: not ready, and clients are told to go; wait until balancers have noticed; stop accepting and finish
/// requests, stop reading and finish attempts; flush the log; close log and store; send what is left of telemetry; close the admin port.
///
/// # Errors
/// See [`Failure`].
pub(crate) async fn run(role: Role, loaded: &Loaded) -> Result<(), Failure> {
    let clock = Clock::system();
    let config = &loaded.config;
    let need = Need::of(config, role.ingests(), role.dispatches());
    let raised = FileLimits::raise(need.files());
    let limits = FileLimits::of_process();
    let warnings = checked(role, loaded, need.problem(limits.soft), clock.now_ms())?;
    let telemetry = Telemetry::start(&config.telemetry, env!("CARGO_PKG_VERSION"))
        .map_err(|error| Failure::config("telemetry", error.to_string()))?;
    for Problem { key, message } in warnings {
        tracing::warn!(key, message, "config warning");
    }
    let FileLimits { soft, hard } = limits;
    tracing::info!(soft, hard, needed = need.files(), "open files");
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files can not be raised");
    }
    let shutdown = Shutdown::on_signals()
        .map_err(|error| Failure::Unavailable(format!("no signal handlers: {error}")))?;
    let readiness = Readiness::new();
    let started_up = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&started_up);
    readiness.check("started", CHECK_DEADLINE, move || {
        let started = seen.load(Ordering::Acquire);
        async move {
            started
                .then_some(())
                .ok_or_else(|| "log, store or port not open yet".to_owned())
        }
    });
    let admin = Admin::bind(&config.admin)
        .await
        .map_err(|error| taken("admin.listen", config.admin.listen, &error))?;
    // The address as bound: with port 0 the system chose one.
    let address = admin.address().unwrap_or(config.admin.listen);
    tracing::info!(%address, "admin port");
    let admin_stop = CancellationToken::new();
    let admin =
        tokio::spawn(admin.serve(readiness.clone(), telemetry.metrics(), admin_stop.clone()));

    // A signal before everything has started finds nothing to drain.
    let started = tokio::select! {
        started = Running::start(role, loaded, &clock, readiness.clone()) => started.map(Some),
        () = shutdown.asked() => Ok(None),
    };
    let outcome = match started {
        Ok(Some(running)) => {
            started_up.store(true, Ordering::Release);
            running.until_stopped(loaded, &shutdown).await
        }
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    // The checks hold the last handles of log and store: with them, both are closed.
    readiness.close();
    if let Err(failure) = &outcome {
        tracing::error!(cause = %failure, "process ends");
    }
    telemetry.shutdown().await;
    admin_stop.cancel();
    match admin.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the admin port broke"),
        Err(error) => tracing::warn!(%error, "the admin server broke"),
    }
    outcome
}

// === impl Role ===

impl Role {
    fn ingests(self) -> bool {
        matches!(self, Self::Standalone | Self::Ingest)
    }

    fn dispatches(self) -> bool {
        matches!(self, Self::Standalone | Self::Dispatcher)
    }

    /// What a process of this role can not run with.
    fn problems(self, loaded: &Loaded) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self == Self::Standalone {
            return problems;
        }
        let message =
            "\"embedded\" serves one process: run `fencepost standalone`, or choose a shared one";
        if matches!(loaded.config.log, LogConfig::Embedded(_)) {
            problems.push(Problem::new("log.kind", message));
        }
        if self.dispatches() && matches!(loaded.config.store, StoreConfig::Embedded(_)) {
            problems.push(Problem::new("store.kind", message));
        }
        problems
    }
}

// === impl Running ===

impl Running {
    async fn start(
        role: Role,
        loaded: &Loaded,
        clock: &Clock,
        readiness: Readiness,
    ) -> Result<Self, Failure> {
        let config = &loaded.config;
        let spool = match &config.ingest.spool {
            Some(spool) if role.ingests() => Some(open_spool(spool, clock).await?),
            Some(_) | None => None,
        };
        // A dispatcher has nothing to do without a log.
        let (log, connecting) = if spool.is_some() && role == Role::Ingest {
            log::open_or_wait(&config.log, &loaded.base, clock.clone()).await?
        } else {
            (
                log::open(&config.log, &loaded.base, clock.clone()).await?,
                None,
            )
        };
        let (checked, standby) = (log.clone(), spool.as_ref().map(|(spool, _)| spool.clone()));
        readiness.check_telling("log", CHECK_DEADLINE, move || {
            let log = checked.ready();
            let answer = match &standby {
                Some(spool) => spool.readiness(log),
                None => log
                    .map(|()| "ok".to_owned())
                    .map_err(|error| error.to_string()),
            };
            async { answer }
        });
        let mut running = Self {
            log,
            readiness,
            work: JoinSet::new(),
            draining: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        if let Some(connecting) = connecting {
            running.connect(connecting);
        }
        if role.dispatches() {
            let store = store::open(&config.store, &loaded.base).await?;
            running.dispatch(loaded, clock, store)?;
        }
        if role.ingests() {
            running.ingest(loaded, clock, spool)?;
        }
        Ok(running)
    }

    /// Goes on connecting to the log while the process runs.
    fn connect(&mut self, connecting: Connecting) {
        let stop = self.stop.clone();
        self.work.spawn(async move {
            let connected = tokio::select! {
                () = stop.cancelled() => return ("log", Ok(())),
                connected = connecting => connected,
            };
            // What ends by itself ends the process.
            if connected.is_ok() {
                stop.cancelled().await;
            }
            ("log", connected)
        });
    }

    fn ingest(
        &mut self,
        loaded: &Loaded,
        clock: &Clock,
        spool: Option<(Spool, Drain)>,
    ) -> Result<(), Failure> {
        let config = &loaded.config;
        let app = ingest::App::new(
            config.ingest.clone(),
            config.sources.clone(),
            &loaded.base,
            self.log.clone(),
            log::codec(&config.log),
            clock.clone(),
        )?;
        let address = config.ingest.listen;
        let listener = listen(address).map_err(|error| taken("ingest.listen", address, &error))?;
        let address = listener.local_addr().unwrap_or(address);
        tracing::info!(%address, path = config.ingest.path_prefix, "receiving webhooks");
        let (draining, stop) = (self.draining.clone(), self.stop.clone());
        if let Some((spool, drain)) = spool {
            app.spool_to(spool);
            let drained = drain.run(app.clone(), stop.clone());
            self.work.spawn(async move {
                let drained = drained.await;
                (
                    "spool",
                    drained.map_err(|error| Failure::Fatal(error.to_string())),
                )
            });
        }
        self.work.spawn(async move {
            let served = ingest::serve(app, listener, draining, stop).await;
            (
                "ingest",
                served.map_err(|error| Failure::Fatal(error.to_string())),
            )
        });
        Ok(())
    }

    fn dispatch(&mut self, loaded: &Loaded, clock: &Clock, store: AnyStore) -> Result<(), Failure> {
        let config = &loaded.config;
        store.observe();
        let checked = store.clone();
        self.readiness.check("store", CHECK_DEADLINE, move || {
            let store = checked.clone();
            async move { store.ready().await.map_err(|error| error.to_string()) }
        });
        let path = dispatcher::Path::new(Parts {
            log: self.log.clone(),
            store,
            send: HttpSend::new(&config.destinations, &loaded.base, clock.clone())?,
            codec: log::codec(&config.log),
            clock: clock.clone(),
            dice: Dice::system(),
            names: TopicNames::new(log::topic_prefix(&config.log)),
            config: config.dispatcher.clone(),
            destinations: config.destinations.clone(),
            routes: config.routes.clone(),
            sources: config
                .sources
                .iter()
                .map(|(name, source)| (name.clone(), policy(source)))
                .collect(),
            store_deadline: config.store.deadline(),
        });
        let status = Status::default();
        let (seen, clock) = (status.clone(), clock.clone());
        self.readiness.check("dispatcher", CHECK_DEADLINE, move || {
            let answer = ticks(seen.last_tick_ms(), clock.now_ms());
            async { answer }
        });
        let stop = self.stop.clone();
        self.work.spawn(async move {
            let ran = dispatcher::run(Arc::new(path), status, stop).await;
            (
                "dispatcher",
                ran.map_err(|error| Failure::Fatal(error.to_string())),
            )
        });
        Ok(())
    }

    /// Waits for a signal or a failure, then ends everything in order.
    async fn until_stopped(mut self, loaded: &Loaded, shutdown: &Shutdown) -> Result<(), Failure> {
        let config = &loaded.config;
        let mut outcome = tokio::select! {
            () = shutdown.asked() => Ok(()),
            ended = self.work.join_next(), if !self.work.is_empty() => match ended_as(ended) {
                Ok(()) => Err(Failure::Fatal("a part of the process ended by itself".to_owned())),
                failed => failed,
            },
        };
        self.readiness.drain();
        self.draining.cancel();
        if outcome.is_ok() {
            tokio::time::sleep(config.admin.drain_delay).await;
        }
        self.stop.cancel();
        let longest = config
            .ingest
            .drain
            .max(config.dispatcher.shutdown_grace)
            .saturating_add(CLOSE_MARGIN);
        let work = &mut self.work;
        within(longest, "ingest and dispatcher", async {
            while let Some(ended) = work.join_next().await {
                let ended = ended_as(Some(ended));
                if outcome.is_ok() {
                    outcome = ended;
                }
            }
        })
        .await;
        self.work.shutdown().await;
        self.log.flush(FLUSH_DEADLINE).await;
        tracing::info!("stopped");
        outcome
    }
}

async fn open_spool(config: &SpoolConfig, clock: &Clock) -> Result<(Spool, Drain), Failure> {
    let opened = Spool::open(config, clock.clone()).await;
    opened.map_err(|error| Failure::Unavailable(format!("ingest.spool.dir: {error}")))
}

fn checked(
    role: Role,
    loaded: &Loaded,
    files: Option<Problem>,
    now_ms: i64,
) -> Result<Vec<Problem>, Failure> {
    let mut findings = check::all(loaded, now_ms);
    findings.problems.extend(role.problems(loaded));
    findings.problems.extend(files);
    if findings.problems.is_empty() {
        Ok(findings.warnings)
    } else {
        Err(Failure::Config(findings.problems))
    }
}

type Ended = Result<(&'static str, Result<(), Failure>), tokio::task::JoinError>;

fn ended_as(ended: Option<Ended>) -> Result<(), Failure> {
    match ended {
        None | Some(Ok((_, Ok(())))) => Ok(()),
        Some(Ok((name, Err(failure)))) => Err(Failure::Fatal(format!("{name} ended: {failure}"))),
        Some(Err(error)) => Err(Failure::Fatal(format!(
            "a part of the process broke: {error}"
        ))),
    }
}

/// Whether the dispatcher's loop goes round.
fn ticks(last_tick_ms: i64, now_ms: i64) -> Result<(), String> {
    if last_tick_ms == 0 {
        return Err("has not begun".to_owned());
    }
    let silent_ms = now_ms.saturating_sub(last_tick_ms);
    if silent_ms > DISPATCHER_SILENT_MAX_MS {
        return Err(format!("its loop has not gone round for {silent_ms} ms"));
    }
    Ok(())
}

/// Connections that wait to be accepted. A short queue overflows in a burst, and who was turned away comes again only after
/// a second; the kernel has a limit of its own.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // Else a restart would wait until the last connections are forgotten.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What the dispatcher has to know of a source.
fn policy(source: &SourceConfig) -> SourcePolicy {
    SourcePolicy {
        reopen: source.reopen,
        replay_window: source.replay_window,
    }
}

fn taken(key: &str, address: SocketAddr, error: &io::Error) -> Failure {
    Failure::Unavailable(format!("can not listen on {key} = {address}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatcher_whose_loop_hangs_is_not_ready() {
        assert!(ticks(0, 5).is_err(), "before the first round");
        assert_eq!(ticks(1_000, 1_000 + DISPATCHER_SILENT_MAX_MS), Ok(()));
        assert_eq!(ticks(1_000, 900), Ok(()), "a clock that was set back");
        assert!(ticks(1_000, 1_001 + DISPATCHER_SILENT_MAX_MS).is_err());
    }
}
