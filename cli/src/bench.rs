//! `fencepost bench`: what the pipeline does a second, beside what its parts could do alone on the same machine.
//!
//! Every figure stands beside its limit, measured in the same run and in turn with it, so that a busy machine slows both
//! and the ratio still tells something. Product and limits are processes of their own (this binary again); the load and
//! the receiver are in this one. Everything is bounded in count and time and stays on the loopback.

mod backlog;
mod drain;
mod isolation;
mod limit;
mod load;
mod pace;
mod pipeline;
mod receive;
mod receiver;
mod report;
mod rig;
mod scale;

use crate::{child::command, output::print};
use anyhow::{Context, ensure};
use backlog::BacklogArgs;
use isolation::IsolationArgs;
use limit::{Limit, Slice};
use receiver::Receiver;
use report::Report;
use rig::{Ground, Setup};
use scale::ScaleArgs;
use std::{path::Path, process::ExitCode, time::Duration};
use uuid::Uuid;

/// Bodies of one slice, all together.
const SLICE_BYTES_MAX: usize = 1 << 30;

/// `fencepost bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    measure: MeasureArgs,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum BenchCommand {
    /// One, two and four dispatchers over 12 partitions, with a receiver that takes 100 ms
    Scale(ScaleArgs),
    /// How long webhooks take to a good receiver: alone, beside a dead one, beside one that is flooded
    Isolation(IsolationArgs),
    /// Memory of a dispatcher that drains a million webhooks while others wait in the delay tiers (embedded)
    Backlog(BacklogArgs),
    /// One limit alone; the bench starts these
    #[command(subcommand, hide = true)]
    Limit(Limit),
}

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MeasureArgs {
    /// Log and store
    #[arg(long, value_enum, default_value_t = SetupName::Embedded)]
    setup: SetupName,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Webhooks of a slice; each figure is the median of three slices
    #[arg(long, default_value_t = 6_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    pub webhooks: u32,
    /// Size of a body
    #[arg(long, default_value_t = 8_192)]
    pub body_bytes: usize,
    /// Connections of the sender, and attempts at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub concurrency: u16,
    /// Longest time of a slice
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds_max: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Exit 1 when a figure is below its bar
    #[arg(long)]
    enforce: bool,
}

/// Where Kafka and the store are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClusterArgs {
    /// Kafka; topics named bench-… are made there and left behind
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:9092")]
    brokers: Vec<String>,
    /// ScyllaDB or Cassandra; keyspaces named bench_… are made there and left behind
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:9042")]
    contact_points: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SetupName {
    /// SQLite in a temporary directory, one process
    Embedded,
    /// Kafka and a CQL store, a process each for ingest and dispatcher
    Kafka,
}

/// A run: the ground it stands on, and the numbers of the webhooks given out so far.
#[derive(Debug)]
pub(crate) struct Bench {
    pub ground: Ground,
    pub args: MeasureArgs,
    pub receiver: Receiver,
    next: u32,
}

/// Slices of each figure.
pub(crate) const ROUNDS: usize = 3;

/// Measures and prints.
///
/// # Errors
/// When something around the measured processes fails, or they do. A missed bar is no error, see `--enforce`.
pub(crate) async fn run(args: BenchArgs, config: Option<&Path>) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(BenchCommand::Limit(limit)) => {
            limit::run(&limit, config).await?;
            Ok(ExitCode::SUCCESS)
        }
        Some(BenchCommand::Scale(args)) => scale::run(&args).await,
        Some(BenchCommand::Isolation(args)) => isolation::run(&args).await,
        Some(BenchCommand::Backlog(args)) => backlog::run(&args).await,
        None => measure(args.measure).await,
    }
}

async fn measure(args: MeasureArgs) -> anyhow::Result<ExitCode> {
    let slice_bytes = args
        .body_bytes
        .saturating_mul(usize::try_from(args.webhooks)?);
    ensure!(
        slice_bytes <= SLICE_BYTES_MAX,
        "{} webhooks of {} bytes are more than {SLICE_BYTES_MAX} bytes",
        args.webhooks,
        args.body_bytes
    );
    let temporary = tempfile::tempdir().context("no temporary directory")?;
    let (json, enforce) = (args.json, args.enforce);
    let mut bench = Bench {
        ground: Ground {
            setup: match args.setup {
                SetupName::Embedded => Setup::Embedded,
                SetupName::Kafka => args.cluster.setup(),
            },
            run: run_id(),
            dir: temporary.path().to_path_buf(),
        },
        receiver: Receiver::start(Duration::ZERO).await?,
        args,
        next: 0,
    };
    let say = |line: &str| if json { Ok(()) } else { print(line) };
    let setup = bench.ground.setup.name();
    say(&format!(
        "bench: {setup}, bodies of {} bytes, {} at once, medians of {ROUNDS} slices of {} webhooks\n",
        bench.args.body_bytes, bench.args.concurrency, bench.args.webhooks
    ))?;
    say("bench: receiving\n")?;
    let receiving = receive::measure(&mut bench).await?;
    say("bench: delivering\n")?;
    let delivering = drain::measure(&mut bench).await?;
    say("bench: the whole pipeline\n")?;
    let pipeline = pipeline::measure(&mut bench).await?;
    let report = Report {
        setup,
        receiving,
        delivering,
        pipeline,
    };
    if json {
        print(&format!("{}\n", report.json()))?;
    } else {
        print(&report.table())?;
        print(&report.last_line())?;
    }
    Ok(ExitCode::from(u8::from(enforce && report.below_the_bar())))
}

/// Letters and digits that no other run has.
pub(crate) fn run_id() -> String {
    let mut id = Uuid::new_v4().simple().to_string();
    id.truncate(8);
    id
}

// === impl ClusterArgs ===

impl ClusterArgs {
    /// The set-up of production.
    pub(crate) fn setup(&self) -> Setup {
        Setup::Kafka {
            brokers: self.brokers.clone(),
            contact_points: self.contact_points.clone(),
        }
    }
}

// === impl Bench ===

impl Bench {
    /// The next slice of webhooks.
    pub(crate) fn slice(&mut self, count: u32) -> Slice {
        let first = self.next;
        self.next = self.next.saturating_add(count);
        Slice {
            run: format!("bench-{}", self.ground.run),
            first,
            count,
            body_bytes: self.args.body_bytes,
            concurrency: self.concurrency(),
            seconds_max: self.args.seconds_max,
        }
    }

    /// Requests at once.
    pub(crate) fn concurrency(&self) -> usize {
        usize::from(self.args.concurrency)
    }
}

/// Runs one limit in a process of its own; what it printed. `config` is a config file, for limits that need one.
pub(crate) async fn limited(
    arguments: &[&str],
    slice: &Slice,
    config: Option<&Path>,
) -> anyhow::Result<String> {
    let mut command = command()?;
    command
        .args(["bench", "limit"])
        .args(arguments)
        .args(slice.arguments());
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let within = Duration::from_secs(slice.seconds_max) + rig::GRACE;
    let output = tokio::time::timeout(within, command.output())
        .await
        .with_context(|| format!("limit {arguments:?} does not end"))??;
    ensure!(
        output.status.success(),
        "limit {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
