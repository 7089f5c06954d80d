//! `fencepost demo`: a standalone process, receivers that misbehave on purpose, and a count that does not trust it.
//!
//! The pipeline runs as a process of its own, with the same binary and a config file that can be kept and looked at. What
//! was lost or doubled is counted by the receivers and the [`oracle`], never by the pipeline.

mod load;
mod oracle;
mod pipeline;
mod receivers;
mod report;

use crate::output::print;
use anyhow::Context;
use load::Plan;
use oracle::Tally;
use pipeline::Pipeline;
use receivers::Receivers;
use runtime::Clock;
use std::{path::PathBuf, pin::pin, process::ExitCode, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The whole demo, after which it gives up.
const DEADLINE: Duration = Duration::from_secs(90);
/// Between two looks at the progress.
const LOOK: Duration = Duration::from_millis(250);

/// `fencepost demo`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Different webhooks to send
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(10..=200_000))]
    pub webhooks: u32,
    /// Seed of everything that is random
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep config, data and log of the pipeline in this new directory
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// Resolves when somebody asks the demo to stop; never where there are no signals.
async fn stop_asked() {
    if let Ok(shutdown) = runtime::Shutdown::on_signals() {
        shutdown.asked().await;
    } else {
        std::future::pending::<()>().await;
    }
}

/// Runs the demo and prints its table.
///
/// # Errors
/// When something around the pipeline fails. Lost or doubled deliveries are no error but exit code 1.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::tempdir().context("no temporary directory")?;
    let dir = args.keep.as_deref().unwrap_or(temporary.path());
    if args.keep.is_some() {
        std::fs::create_dir(dir).with_context(|| format!("can not create {}", dir.display()))?;
    }
    let clock = Clock::system();
    let receivers = Receivers::start(clock.clone()).await?;
    let mut pipeline = Pipeline::start(dir, receivers.address()).await?;
    let plan = Arc::new(Plan::new(args.webhooks, args.seed));
    print(&format!(
        "demo: {} webhooks, {} repeats and {} forgeries go to {}\n",
        plan.webhooks.len(),
        plan.repeats(),
        plan.forged(),
        pipeline.hooks_url()
    ))?;

    let tally = Arc::new(Tally::default());
    let progress = report::Progress::start(&plan);
    let deadline = Instant::now() + DEADLINE;
    receivers.begin();
    let sending = tokio::spawn(load::send(
        Arc::clone(&plan),
        Arc::clone(&tally),
        pipeline.hooks_url(),
        clock.clone(),
    ));
    let mut interrupted = pin!(stop_asked());
    let complete = loop {
        tokio::select! {
            () = &mut interrupted => {
                // Not left behind: the pipeline is a process of its own.
                pipeline.stop().await?;
                anyhow::bail!("stopped before everything had ended");
            }
            () = tokio::time::sleep(LOOK) => {}
        }
        pipeline.alive()?;
        let verdict = oracle::judge(&plan, &tally.lock(), &receivers.seen(), None);
        let figures = pipeline.figures().await.unwrap_or_default();
        progress.show(&verdict, &figures);
        if sending.is_finished() && verdict.open() == figures.dead_letters && figures.quiet() {
            break true;
        }
        if Instant::now() > deadline {
            break false;
        }
    };
    let elapsed = progress.finish();
    let figures = pipeline.figures().await.unwrap_or_default();
    let memory = pipeline.memory_bytes_max();
    sending.abort();
    pipeline.stop().await?;

    let letters = pipeline.dead_letters(clock).await?;
    let verdict = oracle::judge(&plan, &tally.lock(), &receivers.seen(), Some(&letters));
    print(&report::table(&verdict, &figures, elapsed, memory))?;
    if !complete {
        print("demo: not everything ended in time\n")?;
    }
    if args.keep.is_some() {
        print(&format!(
            "demo: config, data and log are in {}\n",
            dir.display()
        ))?;
    }
    print(&report::last_line(&verdict))?;
    Ok(ExitCode::from(u8::from(
        !complete || verdict.lost > 0 || verdict.doubled > 0,
    )))
}
