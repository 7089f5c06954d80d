//! The whole system in one thread and in virtual time: ingest, dispatchers, log, store, senders and receivers, with faults.
//!
//! One seed decides everything: what is sent when, what fails when, who dies at which step. The oracle checks the numbered
//! invariants of the design at every step and when everything has come to rest. A seed that fails fails again:
//!
//! ```text
//! make soak SEEDS=5000         many seeds
//! make soak SEED=123           this one, with its trace
//! ```
#![expect(clippy::panic, reason = "a test")]

#[path = "simulation/log.rs"]
mod log;
#[path = "simulation/lot.rs"]
mod lot;
#[path = "simulation/oracle.rs"]
mod oracle;
#[path = "simulation/plan.rs"]
mod plan;
#[path = "simulation/processes.rs"]
mod processes;
#[path = "simulation/receivers.rs"]
mod receivers;
#[path = "simulation/scene.rs"]
mod scene;
#[path = "simulation/senders.rs"]
mod senders;
#[path = "simulation/store.rs"]
mod store;
#[path = "simulation/trace.rs"]
mod trace;
#[path = "simulation/world.rs"]
mod world;

use oracle::Tally;
use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};
use world::Report;

/// Seeds that `make test` runs.
const SEEDS: u64 = 200;
/// Lines of the trace that a failure shows.
const LINES: usize = 120;
/// What some seed must have seen, else the simulation tests less than it says.
const SEEN: [&str; 13] = [
    "acknowledged",
    "attempts",
    "claims",
    "completed",
    "crashes",
    "dead letters",
    "deferrals",
    "renewals",
    "reopened",
    "repeats that a fault explains",
    "retries",
    "takeovers",
    "undecodable",
];

#[test]
fn every_invariant_holds_in_every_seed() {
    let (from, seeds) = match number("SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("SEEDS").unwrap_or(SEEDS)),
    };
    let began = harness::now_ms();
    let next = AtomicU64::new(from);
    let tally = Mutex::new((Tally::default(), 0_i64, 0_usize));
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(usize::try_from(seeds).unwrap_or(usize::MAX)) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    // The first failure is enough.
                    if seed >= from + seeds || !failed.lock().unwrap().is_empty() {
                        return;
                    }
                    let report = world::run(seed, LINES);
                    let mut tally = tally.lock().unwrap();
                    tally.0.add(&report.tally);
                    tally.1 += report.virtual_ms;
                    tally.2 += report.events;
                    drop(tally);
                    if seeds == 1 || report.violation.is_some() {
                        failed.lock().unwrap().push(report);
                    }
                }
            });
        }
    });
    let (tally, virtual_ms, events) = tally.into_inner().unwrap();
    let took_ms = harness::now_ms() - began;
    println!(
        "{seeds} seeds from {from}: {} h of virtual time in {} s, {events} events\n{tally}",
        virtual_ms / 3_600_000,
        took_ms / 1_000
    );
    let mut failed = failed.into_inner().unwrap();
    failed.sort_by_key(|report| report.plan.seed);
    if let Some(report) = failed.first() {
        let story = story(report);
        assert!(report.violation.is_none(), "{story}");
        println!("{story}");
    } else {
        for what in SEEN.iter().filter(|_| seeds >= SEEDS) {
            assert!(tally.of(what) > 0, "no seed has seen: {what}");
        }
    }
}

/// Else a printed seed would be worth nothing.
#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in [1, 4, 7, 10, 23] {
        let (first, again) = (world::run(seed, 0), world::run(seed, 0));
        assert_eq!(
            (first.hash, first.events, first.virtual_ms),
            (again.hash, again.events, again.virtual_ms),
            "seed {seed}"
        );
        assert!(first.events > 100, "seed {seed}");
    }
}

/// What is to be known of a run, the most important at the end.
fn story(report: &Report) -> String {
    let Report { plan, .. } = report;
    let mut story = vec![
        format!(
            "seed {}: {} partitions, {} dispatchers, clocks off by {:?} ms, faults until {} ms",
            plan.seed, plan.partitions, plan.dispatchers, plan.skews_ms, plan.heal_at_ms
        ),
        format!("{:?}\nreceivers: {:?}", plan.config, plan.moods),
    ];
    let faults = plan.faults.iter();
    story.extend(faults.map(|(at_ms, fault)| format!("{at_ms:>8} ms {fault:?}")));
    story.push("the last of the trace that has to do with it:".to_owned());
    story.extend(report.lines.iter().cloned());
    if let Some(violation) = &report.violation {
        story.push(format!(
            "seed {}: invariant {} is violated: {}\nrun it again: make soak SEED={}",
            plan.seed, violation.invariant, violation.what, plan.seed
        ));
    }
    story.join("\n")
}

/// A number from the environment, `FENCEPOST_<name>`.
fn number(name: &str) -> Option<u64> {
    let name = format!("FENCEPOST_{name}");
    let text = harness::stack::variable(&name)?;
    let number = text.parse();
    Some(number.unwrap_or_else(|error| panic!("{name}: {error}")))
}
