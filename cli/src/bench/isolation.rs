//! Isolation: how long webhooks take to a good receiver when nothing else goes on, beside a receiver that hangs, and beside
//! a source that floods its own receiver.
//!
//! The three are measured in turn, several times, each in a process and on a log of its own, so that a busy machine slows
//! all of them and none inherits another's backlog. What is compared are the medians of their p99.

use super::{
    load::{self, Webhooks},
    pace::{float, median, percentile, ratio},
    pipeline::latencies_ms,
    receiver::Receiver,
    rig::{GRACE, Ground, Rig, Setup},
    run_id,
};
use crate::{child::metric, output::print};
use anyhow::{Context, ensure};
use std::{net::SocketAddr, ops::Range, path::Path, process::ExitCode, time::Duration};
use tokio::{net::TcpListener, task::AbortHandle, time::Instant};

/// p99 beside others may be so many times the p99 alone.
const BAR: f64 = 1.5;
/// Records in work at once: few, so that deliveries which wait would soon be in the way of others. And everything else is small in
/// the same measure, so that nobody waits for processors: it is not their speed that is asked for.
const IN_FLIGHT_MAX: usize = 24;
/// Attempts at once at each receiver.
const CONCURRENCY: usize = 4;
/// After that an attempt at the dead receiver is given up.
const DEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// What the flooded receiver takes for each webhook: at most 40 a second.
const HOT_DELAY: Duration = Duration::from_millis(100);
/// The others' load begins so long before the measurement.
const AHEAD: Duration = Duration::from_secs(3);
const BODY_BYTES: usize = 2_048;
/// Connections of a source.
const CONNECTIONS: usize = 16;

/// `fencepost bench isolation`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct IsolationArgs {
    /// Webhooks a second for the good receiver, and as many for the dead one
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(10..=1_000))]
    per_second: u32,
    /// Webhooks a second for the flooded receiver, which takes 40
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(10..=4_000))]
    hot_per_second: u32,
    /// Seconds of one measurement
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=60))]
    seconds: u32,
    /// Measurements of each kind
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// Exit 1 when a ratio is above its bar
    #[arg(long)]
    enforce: bool,
}

/// What goes on beside the good receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Dead,
    Hot,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Measured {
    p50_ms: f64,
    p99_ms: f64,
    /// Deliveries put off.
    deferred: usize,
    attempts: usize,
}

/// Where the webhooks of each kind go.
#[derive(Clone, Copy, Debug)]
struct Receivers {
    good: SocketAddr,
    dead: SocketAddr,
    hot: SocketAddr,
}

/// Measures and prints.
pub(crate) async fn run(args: &IsolationArgs) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::tempdir().context("no temporary directory")?;
    let mut all = Vec::new();
    for round in 0..args.rounds {
        let dir = temporary.path().join(format!("round-{round}"));
        std::fs::create_dir(&dir)?;
        let ground = Ground {
            setup: Setup::Embedded,
            run: run_id(),
            dir,
        };
        for beside in [Beside::Nothing, Beside::Dead, Beside::Hot] {
            let measured = measure(args, &ground, beside).await?;
            let Measured {
                p50_ms,
                p99_ms,
                deferred,
                attempts,
            } = measured;
            let name = beside.name();
            print(&format!(
                "bench: {name:<6} p50={p50_ms:.1} ms p99={p99_ms:.1} ms attempts={attempts} deferred={deferred}\n"
            ))?;
            all.push((beside, measured));
        }
    }
    let p99 = |beside: Beside| {
        let of = all.iter().filter(|(other, _)| *other == beside);
        median(&of.map(|(_, measured)| measured.p99_ms).collect::<Vec<_>>())
    };
    let (alone, dead, hot) = (p99(Beside::Nothing), p99(Beside::Dead), p99(Beside::Hot));
    let (dead_ratio, hot_ratio) = (ratio(dead, alone), ratio(hot, alone));
    let above = dead_ratio >= BAR || hot_ratio >= BAR;
    if above {
        print(&format!("bench: above the bar of {BAR}\n"))?;
    }
    print(&format!(
        "isolation: p99 alone={alone:.1} ms dead={dead:.1} ms x{dead_ratio:.2} hot={hot:.1} ms x{hot_ratio:.2}\n"
    ))?;
    Ok(ExitCode::from(u8::from(args.enforce && above)))
}

/// One process, one log; its load, and when the good receiver had its webhooks.
async fn measure(
    args: &IsolationArgs,
    ground: &Ground,
    beside: Beside,
) -> anyhow::Result<Measured> {
    let good = Receiver::start(Duration::ZERO).await?;
    let hot = Receiver::start(HOT_DELAY).await?;
    let (dead, hanging) = hang().await?;
    let receivers = Receivers {
        good: good.address(),
        dead,
        hot: hot.address(),
    };
    let mut rig = Rig::with(ground, beside.name(), |dir, hooks| {
        text(dir, hooks, receivers)
    })
    .await?;
    let mut child = rig.ingest().await?;
    let hooks = rig.hooks();
    let length = Duration::from_secs(args.seconds.into());
    let (begin, end) = (Instant::now() + AHEAD, Instant::now() + AHEAD + length);
    let source = |name: &str| {
        let run = format!("{name}-{}", ground.run);
        Webhooks::new(&run, BODY_BYTES).of(name)
    };
    let (other, per_second) = match beside {
        Beside::Nothing => (None, 0),
        Beside::Dead => (Some(source("dead")), args.per_second),
        Beside::Hot => (Some(source("hot")), args.hot_per_second),
    };
    let beside_it = async {
        let Some(other) = other else {
            return anyhow::Ok(());
        };
        let rate = Some(f64::from(per_second));
        let numbers = 0..u32::MAX;
        drop(load::send(&other, hooks, CONNECTIONS, numbers, rate, end).await?);
        Ok(())
    };
    let webhooks = source("good");
    let measured = async {
        // Until everybody is connected; and with the others' load it is not the first second that counts.
        let warm_up = args.per_second;
        drive(&webhooks, hooks, 0..warm_up, args.per_second).await?;
        tokio::time::sleep_until(begin).await;
        good.forget();
        let numbers = warm_up..warm_up + args.per_second * args.seconds;
        let answered = drive(&webhooks, hooks, numbers.clone(), args.per_second).await?;
        let arrivals = good.take(&numbers, Instant::now() + GRACE).await?;
        anyhow::Ok(latencies_ms(&answered, &arrivals))
    };
    let (beside_it, latencies_ms) = tokio::join!(beside_it, measured);
    beside_it?;
    let latencies_ms = latencies_ms?;
    let sent = args.per_second * args.seconds;
    ensure!(
        latencies_ms.len() == usize::try_from(sent)?,
        "{} of {sent} webhooks arrived in time",
        latencies_ms.len()
    );
    child.alive()?;
    let metrics = child.metrics().await?;
    hanging.abort();
    // Not stopped in order: attempts hang.
    drop(child);
    Ok(Measured {
        p50_ms: percentile(&latencies_ms, 50),
        p99_ms: percentile(&latencies_ms, 99),
        deferred: metric(&metrics, "fencepost_deliveries_deferred_total"),
        attempts: metric(&metrics, "fencepost_delivery_attempts_total"),
    })
}

async fn drive(
    webhooks: &Webhooks,
    hooks: SocketAddr,
    numbers: Range<u32>,
    per_second: u32,
) -> anyhow::Result<Vec<load::Answered>> {
    let deadline = Instant::now()
        + Duration::from_secs_f64(float(numbers.len()) / f64::from(per_second))
        + GRACE;
    let rate = Some(f64::from(per_second));
    load::send(webhooks, hooks, CONNECTIONS, numbers, rate, deadline).await
}

/// A receiver that takes connections and never answers.
async fn hang() -> anyhow::Result<(SocketAddr, AbortHandle)> {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .context("no port for the dead receiver")?;
    let address = listener.local_addr()?;
    let taking = tokio::spawn(async move {
        // As many as attempts run at once, and those that are given up; the process that dials them closes them.
        let mut connections = std::collections::VecDeque::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.push_back(stream);
            if connections.len() > 4 * CONCURRENCY {
                drop(connections.pop_front());
            }
        }
    });
    Ok((address, taking.abort_handle()))
}

fn text(dir: &Path, hooks: SocketAddr, receivers: Receivers) -> String {
    let data = dir.join("data");
    let timeout = DEAD_TIMEOUT.as_secs();
    let mut text = format!(
        "[log]\nkind = \"embedded\"\ndir = {data:?}\n[store]\nkind = \"embedded\"\ndir = {data:?}\n\
         [ingest]\nlisten = \"{hooks}\"\n[dispatcher]\nin_flight_max = {IN_FLIGHT_MAX}\n\
         [telemetry]\nlog = \"json\"\n"
    );
    for (name, receiver) in [
        ("good", receivers.good),
        ("dead", receivers.dead),
        ("hot", receivers.hot),
    ] {
        text += &format!(
            "[sources.{name}]\nscheme = \"github\"\nsecrets = [{{ file = \"github-secret\" }}]\n\
             [destinations.{name}]\nurl = \"http://{receiver}/\"\nallow_http = true\n\
             allow_cidrs = [\"127.0.0.0/8\"]\nconcurrency = {CONCURRENCY}\ntimeout = \"{timeout}s\"\n\
             [[routes]]\nsource = \"{name}\"\nto = [\"{name}\"]\n"
        );
    }
    text
}

// === impl Beside ===

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "alone",
            Self::Dead => "dead",
            Self::Hot => "hot",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bench::load::SECRET, check, config};

    #[test]
    fn the_config_has_no_mistakes() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("github-secret"), SECRET).unwrap();
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let file = dir.path().join("fencepost.toml");
        let receivers = Receivers {
            good: address,
            dead: address,
            hot: address,
        };
        std::fs::write(&file, text(dir.path(), address, receivers)).unwrap();
        let loaded = config::load(Some(&file)).unwrap();
        let problems = check::all(&loaded, 0).problems;
        assert!(problems.is_empty(), "{problems:?}");
    }
}
