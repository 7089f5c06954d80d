//! The `fencepost` binary. Wiring only: command line, config, exit codes.

mod args;
mod bench;
mod check;
mod child;
mod config;
mod demo;
mod destinations;
mod dlq;
mod failure;
mod files;
mod output;
mod outward;
mod ports;
mod process;
mod reconcile;
mod send;
mod sender;
mod store;
mod topics;
mod verify;

use args::{CheckArgs, Cli, Command, DlqCommand, ReconcileCommand, StoreCommand};
use clap::Parser;
use config::Loaded;
use failure::Failure;
use files::Need;
use output::{complain, print};
use process::Role;
use runtime::{Clock, FileLimits, Problem};
use std::{io::IsTerminal, process::ExitCode, time::Duration};

/// What still runs when everything was told to end is left behind after this.
const LEAVE_DEADLINE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let cli = Cli::parse();
    // One provider for every TLS client of the process; refused only when there is one already.
    drop(rustls::crypto::ring::default_provider().install_default());
    // Two threads at least: exporters that block must not hold up the timers that bound them.
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("can not start: {error}"));
            return ExitCode::from(69);
        }
    };
    let code = runtime.block_on(run(cli));
    runtime.shutdown_timeout(LEAVE_DEADLINE);
    code.unwrap_or_else(|failure| {
        complain(&failure.to_string());
        failure.exit_code()
    })
}

async fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let load = || config::load(cli.config.as_deref());
    match cli.command {
        Command::Standalone => process::run(Role::Standalone, &load()?).await?,
        Command::Ingest => process::run(Role::Ingest, &load()?).await?,
        Command::Dispatcher => process::run(Role::Dispatcher, &load()?).await?,
        Command::Check(args) => show(&check(&load()?, &args)?)?,
        Command::Verify(args) => {
            let colours = std::io::stdout().is_terminal();
            let verdict = verify::run(&args, &load()?, Clock::system().now_ms(), colours)?;
            show(&verdict.text)?;
            return Ok(ExitCode::from(u8::from(!verdict.taken)));
        }
        Command::Send(args) => return send::run(&args, &load()?, &Clock::system()).await,
        Command::Topics(command) => {
            let loaded = sound(load()?)?;
            show(&topics::run(command, &loaded.config.log, &loaded.base).await?)?;
        }
        Command::Store(StoreCommand::Migrate) => {
            let loaded = sound(load()?)?;
            show(&store::migrate(&loaded.config.store, &loaded.base).await?)?;
        }
        Command::Store(StoreCommand::Get(args)) => {
            let found = store::get(&args, &sound(load()?)?, Clock::system().now_ms()).await?;
            let Some(text) = found else {
                complain(
                    "the store knows nothing of this delivery: never tried yet (its destination may be paused or down), expired or mistyped",
                );
                return Ok(ExitCode::from(1));
            };
            show(&text)?;
        }
        Command::Dlq(DlqCommand::List(args)) => {
            show(&dlq::list(&args, &sound(load()?)?, Clock::system()).await?)?;
        }
        Command::Destinations(command) => {
            let now_ms = Clock::system().now_ms();
            show(&destinations::run(&command, &sound(load()?)?, now_ms).await?)?;
        }
        Command::Reconcile(ReconcileCommand::Github(args)) => {
            return reconcile::github(&args, &sound(load()?)?, Clock::system()).await;
        }
        Command::Demo(args) => return Ok(demo::run(args).await?),
        Command::Bench(args) => return Ok(bench::run(args, cli.config.as_deref()).await?),
    }
    Ok(ExitCode::SUCCESS)
}

/// `fencepost check`: the summary of a config without mistakes; warnings go to standard error.
fn check(loaded: &Loaded, args: &CheckArgs) -> Result<String, Failure> {
    let mut findings = if args.skip_secrets {
        check::values(loaded)
    } else {
        check::all(loaded, Clock::system().now_ms())
    };
    // The process may run on another machine, with other limits; it will raise its own to the hard one.
    let need = Need::of(&loaded.config, true, true);
    let limit = FileLimits::of_process().hard;
    findings.warnings.extend(need.problem(limit));
    for warning in &findings.warnings {
        complain(&format!("warning: {warning}"));
    }
    if !findings.problems.is_empty() {
        return Err(Failure::Config(findings.problems));
    }
    Ok(check::summary(loaded))
}

/// The tools need a log or a store, not a config without mistakes elsewhere.
fn sound(loaded: Loaded) -> Result<Loaded, Vec<Problem>> {
    let mut problems = loaded.config.log.check("log");
    problems.extend(loaded.config.store.check("store"));
    if problems.is_empty() {
        Ok(loaded)
    } else {
        Err(problems)
    }
}

fn show(text: &str) -> Result<(), Failure> {
    print(text).map_err(|error| Failure::Fatal(format!("can not print: {error}")))
}
