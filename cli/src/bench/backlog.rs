//! Memory with a backlog: a dispatcher drains webhooks that lie in the log while others wait in the delay tiers, and its
//! resident memory is looked at all the while. What lies in the log must not lie in memory.

use super::{
    limit::{self, Slice},
    load::EVENT,
    pace,
    receiver::{Arrival, Receiver},
    rig::{DESTINATION, Ground, Knobs, Rig, SOURCE, Setup},
    run_id,
};
use crate::{child::Child, output::print, ports};
use anyhow::{Context, anyhow, ensure};
use event_log::{EventLog, Record};
use futures::{StreamExt, TryStreamExt, stream};
use runtime::Clock;
use schemas::{DelayTier, Delivery, Topic, Webhook};
use std::{process::ExitCode, time::Duration};
use tokio::time::Instant;

/// Webhooks that are appended with one opening of the log, which holds them all in the bench's memory.
const SLICE: u32 = 20_000;
const CONCURRENCY: usize = 512;
/// Attempts at once.
const ATTEMPTS: usize = 64;
/// Between two looks at the memory.
const LOOK: Duration = Duration::from_millis(100);
const MIB: u64 = 1 << 20;
/// Beyond every tier, so that what waits goes on waiting: what leaves a short tier goes into a longer one.
const DUE_IN_MS: i64 = 48 * 3_600 * 1_000;

/// `fencepost bench backlog`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BacklogArgs {
    /// Webhooks that lie in the log when the dispatcher starts
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=5_000_000))]
    webhooks: u32,
    /// Deliveries that wait in the delay tiers, evenly in all of them
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    waiting: u32,
    /// Size of a body
    #[arg(long, default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    body_bytes: u32,
    /// Longest time for draining
    #[arg(long, default_value_t = 1_800, value_parser = clap::value_parser!(u64).range(1..=7_200))]
    seconds_max: u64,
    /// The bar, in MiB of resident memory
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    resident_mib_max: u64,
    /// Exit 1 when memory is above its bar
    #[arg(long)]
    enforce: bool,
}

/// Resident memory at a time, bytes.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    bytes: u64,
}

/// Measures and prints.
pub(crate) async fn run(args: &BacklogArgs) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::tempdir().context("no temporary directory")?;
    let ground = Ground {
        setup: Setup::Embedded,
        run: run_id(),
        dir: temporary.path().to_path_buf(),
    };
    let receiver = Receiver::start(Duration::ZERO).await?;
    let knobs = Knobs::new(Some(receiver.address()), ATTEMPTS);
    let mut rig = Rig::new(&ground, "backlog", knobs).await?;
    let run = format!("backlog-{}", ground.run);
    let all = slice(args, &run, 0, args.webhooks)?;
    let mut first = 0;
    while first < args.webhooks {
        let count = SLICE.min(args.webhooks - first);
        let slice = slice(args, &run, first, count)?;
        let appended = limit::append(rig.loaded(), &slice).await?;
        ensure!(appended.len() == usize::try_from(count)?, "the log is slow");
        first += count;
    }
    wait_in_tiers(&rig, args, &run).await?;
    print("bench: the log is filled, the dispatcher starts\n")?;

    let mut dispatcher = rig.dispatcher().await?;
    let began = Instant::now();
    let deadline = began + Duration::from_secs(args.seconds_max);
    let mut looks = Vec::new();
    let numbers = all.numbers();
    let arrivals = tokio::select! {
        arrivals = receiver.take(&numbers, deadline) => arrivals,
        failed = watch(&mut dispatcher, &mut looks) => return Err(failed),
    };
    dispatcher.stop().await?;
    match arrivals {
        Ok(arrivals) => report(args, &arrivals, &looks),
        Err(error) => {
            let largest = largest_mib(&looks);
            Err(error.context(format!("resident_mib_max={largest} until then")))
        }
    }
}

fn slice(args: &BacklogArgs, run: &str, first: u32, count: u32) -> anyhow::Result<Slice> {
    Ok(Slice {
        run: run.to_owned(),
        first,
        count,
        body_bytes: usize::try_from(args.body_bytes)?,
        concurrency: CONCURRENCY,
        seconds_max: args.seconds_max,
    })
}

/// Appends deliveries that are due in days, one tier after the other.
async fn wait_in_tiers(rig: &Rig, args: &BacklogArgs, run: &str) -> anyhow::Result<()> {
    let clock = Clock::system();
    let config = &rig.loaded().config;
    let log = ports::log::open(&config.log, &rig.loaded().base, clock.clone())
        .await
        .map_err(|failure| anyhow!("{failure}"))?;
    let codec = ports::log::codec(&config.log);
    let slice = slice(args, run, args.webhooks, args.waiting)?;
    let webhooks = slice.webhooks();
    let (log, codec, webhooks) = (&log, &codec, &webhooks);
    stream::iter(slice.numbers().zip(DelayTier::ALL.into_iter().cycle()))
        .map(|(number, tier)| {
            let received_at_ms = clock.now_ms();
            async move {
                let webhook = Webhook {
                    source: SOURCE.to_owned(),
                    delivery_id: webhooks.delivery_id(number),
                    event_type: EVENT.to_owned(),
                    content_type: Some("application/json".to_owned()),
                    headers: Vec::new(),
                    body: webhooks.body(number),
                    received_at_ms,
                    generation: 0,
                };
                let mut delivery = Delivery::first(webhook, DESTINATION);
                delivery.due_at_ms = received_at_ms.saturating_add(DUE_IN_MS);
                let record = Record {
                    topic: Topic::Delay(tier),
                    key: delivery.webhook.delivery_id.clone().into(),
                    value: codec.encode_delivery(&delivery)?,
                    headers: Vec::new(),
                };
                log.produce(record).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await
}

/// Looks at the process's memory until it ends, which it should not.
async fn watch(child: &mut Child, looks: &mut Vec<Look>) -> anyhow::Error {
    loop {
        if let Err(error) = child.alive() {
            return error;
        }
        if let Some(memory) = child.memory() {
            let at = Instant::now();
            looks.push(Look {
                at,
                bytes: memory.bytes,
            });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn report(args: &BacklogArgs, arrivals: &[Arrival], looks: &[Look]) -> anyhow::Result<ExitCode> {
    let mut times: Vec<_> = arrivals.iter().map(|arrival| arrival.at).collect();
    times.sort_unstable();
    let (Some(begin), Some(end)) = (times.first().copied(), times.last().copied()) else {
        return Err(anyhow!("nothing was delivered"));
    };
    ensure!(
        !looks.is_empty(),
        "this system does not tell a process's memory"
    );
    let took = end.saturating_duration_since(begin);
    let fifth = |from: u32| {
        let of = looks.iter().filter(|look| {
            let since = look.at.saturating_duration_since(begin) * 5;
            since >= took * from && since <= took * (from + 1)
        });
        of.map(|look| look.bytes).max().unwrap_or(0) / MIB
    };
    let largest = largest_mib(looks);
    let above = largest > args.resident_mib_max;
    if above {
        print(&format!(
            "bench: above the bar of {} MiB\n",
            args.resident_mib_max
        ))?;
    }
    let all = arrivals.len() >= usize::try_from(args.webhooks)?;
    print(&format!(
        "backlog: webhooks={} waiting={} body_bytes={} delivered={} seconds={:.0} per_second={:.0} \
         resident_mib_by_fifth={:?} resident_mib_max={largest}\n",
        args.webhooks,
        args.waiting,
        args.body_bytes,
        arrivals.len(),
        took.as_secs_f64(),
        pace::float(arrivals.len()) / took.as_secs_f64().max(0.001),
        [0, 1, 2, 3, 4].map(fifth),
    ))?;
    Ok(ExitCode::from(u8::from(args.enforce && (above || !all))))
}

fn largest_mib(looks: &[Look]) -> u64 {
    looks.iter().map(|look| look.bytes).max().unwrap_or(0) / MIB
}
