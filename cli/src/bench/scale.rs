//! Scaling out: the same backlog for each process, with one, two and four of them.
//!
//! The receiver takes its time, so that what bounds a process is its own room and not the machine: the question is
//! whether several processes get in each other's way, not how fast the machine is.

use super::{
    ClusterArgs,
    limit::{self, Slice},
    pace,
    receiver::Receiver,
    rig::{GRACE, Ground, Knobs, Rig},
    run_id,
};
use crate::{
    child::{Child, metric},
    output::print,
};
use anyhow::{Context, bail};
use std::{process::ExitCode, time::Duration};
use tokio::time::Instant;

/// How long the receiver takes.
const RECEIVER_DELAY: Duration = Duration::from_millis(100);
/// Attempts at once of each process.
const CONCURRENCY: usize = 4;
/// Partitions, as `fencepost topics ensure` makes them by default.
const PARTITIONS: usize = 12;
/// Steady state: between the first and the last quartile.
const QUARTILES: (usize, usize) = (25, 75);
/// At least, with two and with four processes.
const BARS: (f64, f64) = (1.8, 3.2);
/// Until the partitions are shared out evenly.
const SETTLE_DEADLINE: Duration = Duration::from_secs(90);
const BODY_BYTES: usize = 2_048;

/// `fencepost bench scale`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ScaleArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Webhooks for each process
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(100..=20_000))]
    webhooks: u32,
    /// Exit 1 when a figure is below its bar
    #[arg(long)]
    enforce: bool,
}

/// Measures and prints.
pub(crate) async fn run(args: &ScaleArgs) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::tempdir().context("no temporary directory")?;
    let ground = Ground {
        setup: args.cluster.setup(),
        run: run_id(),
        dir: temporary.path().to_path_buf(),
    };
    let receiver = Receiver::start(RECEIVER_DELAY).await?;
    let mut rates = Vec::new();
    for (name, processes) in [("one", 1_u32), ("two", 2), ("four", 4)] {
        let rate = rate(args, &ground, &receiver, name, processes).await?;
        print(&format!("bench: {name}: {rate:.1} deliveries/s\n"))?;
        rates.push(rate);
    }
    let [one, two, four] = rates[..] else {
        bail!("not three rates");
    };
    let (x2, x4) = (pace::ratio(two, one), pace::ratio(four, one));
    let below = x2 < BARS.0 || x4 < BARS.1;
    if below {
        print(&format!("bench: below the bar of {BARS:?}\n"))?;
    }
    print(&format!(
        "scale: one={one:.1} two={two:.1} four={four:.1} x2={x2:.2} x4={x4:.2}\n"
    ))?;
    Ok(ExitCode::from(u8::from(args.enforce && below)))
}

/// Deliveries a second of so many processes, on topics and a keyspace of their own.
async fn rate(
    args: &ScaleArgs,
    ground: &Ground,
    receiver: &Receiver,
    name: &'static str,
    processes: u32,
) -> anyhow::Result<f64> {
    let knobs = Knobs {
        receiver: Some(receiver.address()),
        concurrency: CONCURRENCY,
        in_flight_max: CONCURRENCY * 2,
    };
    let mut rig = Rig::new(ground, name, knobs).await?;
    let mut dispatchers = Vec::new();
    for _ in 0..processes {
        dispatchers.push(rig.dispatcher().await?);
    }
    settled(&mut dispatchers).await?;

    let count = args.webhooks * processes;
    // Alone, and as slow as a process with nothing to spare, twice over.
    let at_most =
        f64::from(args.webhooks) / pace::float(CONCURRENCY) * RECEIVER_DELAY.as_secs_f64();
    let within = Duration::from_secs_f64(at_most * 2.0) + GRACE;
    let slice = Slice {
        run: format!("scale-{}-{name}", ground.run),
        first: 0,
        count,
        body_bytes: BODY_BYTES,
        concurrency: 256,
        seconds_max: within.as_secs(),
    };
    receiver.forget();
    limit::append(rig.loaded(), &slice).await?;
    let arrivals = receiver
        .take(&slice.numbers(), Instant::now() + within)
        .await?;
    for dispatcher in &mut dispatchers {
        dispatcher.stop().await?;
    }
    let times = arrivals.iter().map(|arrival| arrival.at).collect();
    Ok(pace::per_second(times, QUARTILES))
}

/// Waits until every process has its share of the partitions.
async fn settled(dispatchers: &mut [Child]) -> anyhow::Result<()> {
    let share = PARTITIONS / dispatchers.len().max(1);
    let deadline = Instant::now() + SETTLE_DEADLINE;
    loop {
        let mut owned = Vec::new();
        for dispatcher in dispatchers.iter_mut() {
            dispatcher.alive()?;
            owned.push(metric(
                &dispatcher.metrics().await?,
                "fencepost_partitions_owned",
            ));
        }
        if owned.iter().all(|owned| *owned == share) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("partitions are not shared out evenly in time: {owned:?}");
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
