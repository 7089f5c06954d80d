//! Abuse of the real server while honest senders go on: every webhook is answered 2xx, and memory stays within a bound.
//!
//! Needs no stack: log and store are embedded.

#[path = "abuse/attacks.rs"]
mod attacks;
#[path = "abuse/good.rs"]
mod good;
#[path = "abuse/tally.rs"]
mod tally;
#[path = "abuse/wire.rs"]
mod wire;

use attacks::{Attackers, IDLE};
use harness::{
    process::{Process, Role},
    receiver::Receiver,
    sender::Sender,
    site::{GITHUB_SECRET, Limits, Site},
    until,
};
use std::time::Duration;
use tally::Tally;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// A debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Resident memory of the process may not exceed this: about twice what a debug build was measured at.
const RESIDENT_MAX_KIB: u64 = 384 * 1024;
/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Webhooks of the honest senders.
const WEBHOOKS: usize = 4_000;
/// Of the body that claims to be 1 GB, no more may be taken than GitHub's 25 MiB and what sockets hold.
const BYTES_TAKEN_MAX: u64 = 64 << 20;
/// Files that this process may need: its ends of all connections.
const FILES: u64 = 3_000;
const INGEST: &str = r#"
connections_max = 3_000
header_timeout = "4s"
body_timeout = "2s"
body_grace = "1s"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_senders_are_answered_and_memory_is_bounded_under_abuse() {
    runtime::FileLimits::raise(FILES).expect("files can be opened");
    let receiver = Receiver::start().await;
    let mut site = Site::embedded("abuse");
    site.ingest(INGEST);
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    let process = site.start(Role::Standalone).await;
    let port = process.ingest_port();
    let before_kib = process.resident_kib();

    let attackers = Attackers::start(port);
    until(PATIENCE, "all idle connections are open", async || {
        (attackers.idle_opened() >= IDLE).then_some(())
    })
    .await;
    let sending = timeout(PATIENCE, good::send(port, WEBHOOKS));
    let (sent, peak) = beside(&process, sending).await;
    let sent = sent.expect("all are answered in time");
    attackers.stop();
    until(PATIENCE, "all connections have been cut off", async || {
        let open = process.metric("fencepost_ingest_connections").await;
        (open == 0.0).then_some(())
    })
    .await;
    let tallies = timeout(PATIENCE, attackers.end()).await;
    let tallies = tallies.expect("all attackers end in time");

    println!("{sent}");
    println!(
        "resident memory: {:.1} MiB before, peak {:.1} MiB, bound {} MiB; peak of the server's connections {}",
        before_kib as f64 / 1024.0,
        peak.resident_kib as f64 / 1024.0,
        RESIDENT_MAX_KIB / 1024,
        peak.connections,
    );
    for (attack, tally) in &tallies {
        println!("{attack}: {tally}");
    }
    assert_eq!(sent.failures, Vec::<String>::new());
    assert_eq!(sent.answered, WEBHOOKS);
    assert!(peak.resident_kib <= RESIDENT_MAX_KIB, "{peak:?}");
    for (attack, tally) in &tallies {
        assert!(tally.made > 0, "{attack} did not take place");
    }
    for (attack, expected) in [
        ("idle", &[][..]),
        ("slow body", &["408"]),
        // Whichever limit a busy machine comes to first.
        ("1 GB chunked", &["413", "408"]),
        ("gzip bomb", &["415"]),
        ("10,000 header lines", &["431"]),
        ("rapid reset", &["GOAWAY 11"]),
    ] {
        let Tally { answers, .. } = &tallies[attack];
        let as_expected = answers.keys().all(|one| expected.contains(&one.as_str()));
        assert!(as_expected, "{attack}: {answers:?}");
        assert_eq!(answers.is_empty(), expected.is_empty(), "{attack}");
    }
    let most_taken = tallies["1 GB chunked"].most_taken;
    assert!(most_taken <= BYTES_TAKEN_MAX, "{most_taken}");

    let fresh = Sender::new(process.hook_url(), GITHUB_SECRET);
    let fresh = fresh.post(&good::webhook(WEBHOOKS)).await;
    assert!(fresh.acknowledged(), "{fresh:?}");
}

/// The most that was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    resident_kib: u64,
    connections: u64,
}

/// What `work` gives, and what was seen of the process meanwhile.
async fn beside<T>(process: &Process, work: impl Future<Output = T>) -> (T, Peak) {
    let mut peak = Peak::default();
    let watch = async {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            peak.resident_kib = peak.resident_kib.max(process.resident_kib());
            let connections = process.metric("fencepost_ingest_connections").await;
            peak.connections = peak.connections.max(connections as u64);
        }
    };
    let done = tokio::select! {
        done = work => done,
        () = watch => unreachable!("it watches for ever"),
    };
    (done, peak)
}
