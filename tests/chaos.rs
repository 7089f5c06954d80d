//! Oracle chaos: real processes, three brokers, three replicas; a plan of faults from a seed, and a judgement by what was
//! acknowledged and what the receivers saw. `docs/reliability.md` says what counts and what came out.
//!
//! `CHAOS_SEED` and `CHAOS_MINUTES` (of faults) choose another plan; `make chaos` sets them.

#[path = "chaos/fleet.rs"]
mod fleet;
#[path = "chaos/lanes.rs"]
mod lanes;

use fleet::Fleet;
use harness::{
    chaos::{
        self,
        plan::{DISPATCHERS, INGESTS, plan},
        report::Report,
        verdict::{Facts, Terms},
    },
    cluster::Cluster,
    cql_proxy::CqlProxy,
    dead_letters, now_ms,
    oracle::Oracle,
    payload,
    process::Role,
    provider::Provider,
    receiver::{Receiver, Reply, Script},
    sender::Sent,
    site::{GITHUB_SECRET, Limits, Site, free_port},
    stack::{Stack, turn},
    within,
};
use lanes::Run;
use std::{io::Write as _, process::ExitStatus, time::Duration};
use tokio::time::{Instant, sleep};

const SEED: u64 = 1;
/// Of faults; with all around it, it takes five.
const MINUTES: u64 = 3;
const WEBHOOKS_PER_SECOND: u32 = 10;
/// Statements that each dispatcher has in flight at the store. Three replicas on two processors that they share with all the
/// rest decide some hundred a second, and give each one a second: with more at once, none would come to its end.
const STATEMENTS_MAX: u32 = 16;
/// Six tries in some fifteen seconds, more when answers take their time.
const TRIES_MAX: u32 = 6;
/// After everything is mended: nothing new for so long is a standstill. Longer than all waits: a backoff, a lease, a tier, a
/// group that settles on a machine that is busy.
const STANDSTILL: Duration = Duration::from_secs(120);
/// What is still in work after everything has arrived would show up as a repeat within a lease.
const QUIET: Duration = Duration::from_secs(20);
/// For a fresh webhook after everything is mended. Seconds are meant, and told; a machine that is busy may take its time.
const FRESH_DEADLINE: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(60);
/// Where no receiver's fault strikes; where they all do; where one in five deliveries is refused for good.
const STEADY: &str = "/billing";
const TROUBLED: &str = "/crm";
const REFUSING: &str = "/audit";
const REFUSED_ONE_IN: usize = 5;
const REFUSED_STATUS: u16 = 422;

const TIMEOUT_S: u32 = 6;
const ATTEMPTS_MAX: u32 = 12;
const BASE_S: u32 = 5;
/// Above [`BASE_S`], so that it shows.
const RETRY_AFTER_S: u32 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_whatever_is_killed_frozen_or_cut_off() {
    let Some(cluster) = Cluster::start().await else {
        return;
    };
    let _turn = turn().await;
    let seed = chaos::seed(SEED);
    let minutes = chaos::minutes(MINUTES);
    let steps = plan(seed, minutes * 60_000);
    tell(&format!("chaos: CHAOS_SEED={seed} CHAOS_MINUTES={minutes}"));
    let (proxy, proxy_port) = proxy(&cluster).await;
    let calm = Receiver::start().await;
    let mut troubled = Receiver::start().await;
    calm.script(
        REFUSING,
        Script::always(Reply::Status(200)).refuses(REFUSED_ONE_IN, REFUSED_STATUS),
    );
    let site = site(&cluster, proxy_port, [&calm, &troubled]);
    site.prepare().await;
    let stack = stack(&cluster);
    // What the judge needs is there before anything is broken.
    let letters = dead_letters::read(&stack, site.topic_prefix(), None).await;
    assert!(letters.is_empty(), "{letters:?}");
    let mut dispatchers = Fleet::start(&site, Role::Dispatcher, DISPATCHERS).await;
    let mut ingests = Fleet::start(&site, Role::Ingest, INGESTS).await;

    let provider = Provider::new(&ingests.hook_urls(), GITHUB_SECRET, TRIES_MAX);
    let run = Run::new(&cluster, steps, Duration::from_secs(minutes * 60));
    let (mut sent, ..) = tokio::join!(
        provider.run(seed, WEBHOOKS_PER_SECOND, run.end),
        lanes::dispatchers(&run, &mut dispatchers),
        lanes::ingests(&run, &mut ingests),
        lanes::log(&run),
        lanes::store(&run),
        lanes::answers(&run, &proxy),
        lanes::receivers(&run, &mut troubled),
    );
    let mended = Instant::now();

    let fresh_ms = fresh(&provider, &calm, &mut sent).await;
    let mut oracle = Oracle {
        sent,
        destinations: destinations(),
        ..Oracle::default()
    };
    drain(
        &mut oracle,
        &[&calm, &troubled],
        &stack,
        site.topic_prefix(),
    )
    .await;
    let drained_ms = mended.elapsed().as_millis() as i64;
    quiet(&[&calm, &troubled]).await;
    let mut ended = dispatchers.stop(STOP).await;
    ended.extend(ingests.stop(STOP).await);
    gather(&mut oracle, &[&calm, &troubled]);
    oracle.dead_letters = dead_letters::read(&stack, site.topic_prefix(), None).await;

    let (touches, injected, ended_by_themselves) = run.recorded();
    let facts = Facts {
        oracle,
        touches,
        terms: terms(),
    };
    let mut report = Report::new(seed, &facts, injected, STEADY);
    report.answers_dropped = proxy.dropped();
    report.ended_by_themselves = ended_by_themselves;
    report.fresh_ms = fresh_ms;
    report.drained_ms = drained_ms;
    assert_good(&report, &ended, &site);
}

fn assert_good(report: &Report, ended: &[ExitStatus], site: &Site) {
    tell(&format!("\n{report}"));
    if !report.verdict.faults().is_empty() {
        tell_about(report, site);
        panic!("see the report above");
    }
    assert!(ended.iter().all(ExitStatus::success), "{ended:?}");
    let fresh = report.fresh_ms.is_some();
    assert!(fresh, "no fresh webhook within {FRESH_DEADLINE:?}");
}

/// In front of the store, and its port.
async fn proxy(cluster: &Cluster) -> (CqlProxy, u16) {
    let port = free_port();
    let nodes = cluster.contact_points();
    let nodes: Vec<_> = nodes
        .iter()
        .map(|node| node.parse().expect("an address"))
        .collect();
    (CqlProxy::start(&nodes, port).await, port)
}

/// What the foreign consumer needs to know.
fn stack(cluster: &Cluster) -> Stack {
    Stack {
        kafka: cluster.kafka_brokers().join(","),
        cql: cluster.contact_points().join(","),
    }
}

/// Names and paths.
fn destinations() -> Vec<(String, String)> {
    let named = |path: &str| (path.trim_start_matches('/').to_owned(), path.to_owned());
    [STEADY, TROUBLED, REFUSING].map(named).to_vec()
}

fn terms() -> Terms {
    Terms {
        timeout_ms: i64::from(TIMEOUT_S) * 1_000,
        attempts_max: ATTEMPTS_MAX,
        base_ms: i64::from(BASE_S) * 1_000,
        retry_after_ms: i64::from(RETRY_AFTER_S) * 1_000,
    }
}

/// Three destinations; the store is reached through the proxy.
fn site(cluster: &Cluster, proxy_port: u16, [calm, troubled]: [&Receiver; 2]) -> Site {
    let behind_proxy = |address: &String| {
        let (host, _) = address.split_once(':').expect("host and port");
        format!("{host}:{proxy_port}")
    };
    let contact_points: Vec<_> = cluster.contact_points().iter().map(behind_proxy).collect();
    let mut site = Site::on_three(&cluster.kafka_brokers(), &contact_points, "chaos", 12);
    site.store(&format!("in_flight_max = {STATEMENTS_MAX}"));
    let limits = Limits {
        base_s: BASE_S,
        factor: 1.5,
        cap_s: 15,
        jitter: 0.2,
        attempts_max: ATTEMPTS_MAX,
        timeout_s: TIMEOUT_S,
        concurrency: 64,
    };
    for (receiver, path) in [(calm, STEADY), (troubled, TROUBLED), (calm, REFUSING)] {
        let url = format!("{}?from={{process}}", receiver.url(path));
        site.destination(path.trim_start_matches('/'), &url, &limits);
    }
    site
}

/// One webhook after everything is mended; gives the time from the first try to post it to its arrival, milliseconds. None when
/// it has not passed in time.
async fn fresh(provider: &Provider, receiver: &Receiver, sent: &mut Vec<Sent>) -> Option<i64> {
    let began = Instant::now();
    for webhook in &payload::generated(now_ms() as u64, 1) {
        sent.extend(provider.send(webhook, 0).await);
        within(FRESH_DEADLINE, async || {
            let arrived = receiver.has_accepted(STEADY, &webhook.delivery_id);
            arrived.then_some(())
        })
        .await?;
    }
    Some(began.elapsed().as_millis() as i64)
}

/// Waits until nothing is owed any more, or nothing comes any more.
async fn drain(oracle: &mut Oracle, receivers: &[&Receiver], stack: &Stack, prefix: &str) {
    let mut owed = usize::MAX;
    let mut since = Instant::now();
    while since.elapsed() < STANDSTILL {
        gather(oracle, receivers);
        oracle.dead_letters = dead_letters::read(stack, prefix, None).await;
        let now = oracle.judge().lost.len();
        if now == 0 {
            return;
        }
        if now < owed {
            (owed, since) = (now, Instant::now());
        }
        sleep(Duration::from_secs(5)).await;
    }
}

/// Waits until nothing arrives any more, for a while.
async fn quiet(receivers: &[&Receiver]) {
    let count = || receivers.iter().map(|it| it.count()).sum::<usize>();
    let (mut seen, mut since) = (count(), Instant::now());
    let end = Instant::now() + STANDSTILL;
    while since.elapsed() < QUIET && Instant::now() < end {
        sleep(Duration::from_millis(500)).await;
        if count() > seen {
            (seen, since) = (count(), Instant::now());
        }
    }
}

/// Also when all is well, and the test runner keeps to itself what a test prints.
fn tell(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").expect("stdout is there");
}

/// What the processes' logs say of deliveries that something is wrong with.
fn tell_about(report: &Report, site: &Site) {
    let logs = std::fs::read_dir(site.dir())
        .into_iter()
        .flatten()
        .flatten();
    let logs: Vec<_> = logs
        .filter(|entry| entry.path().extension().is_some_and(|it| it == "log"))
        .map(|entry| {
            (
                entry.file_name(),
                std::fs::read_to_string(entry.path()).unwrap_or_default(),
            )
        })
        .collect();
    for id in report.verdict.suspects() {
        tell(&format!("--- {id}"));
        let of = |(name, text): &(std::ffi::OsString, String)| -> Vec<String> {
            let lines = text.lines().filter(|line| line.contains(&id));
            lines
                .map(|line| format!("{line} {}", name.display()))
                .collect()
        };
        let mut lines: Vec<_> = logs.iter().flat_map(of).collect();
        // Each begins with its time.
        lines.sort();
        lines.iter().for_each(|line| tell(line));
    }
}

fn gather(oracle: &mut Oracle, receivers: &[&Receiver]) {
    oracle.arrivals = receivers.iter().flat_map(|it| it.arrivals()).collect();
}
