//! The spool with real processes: a broker that stands still, kill -9 of ingest, and nothing that was acknowledged is lost.
//!
//! Needs the stack (`tests/stack/stack up`), as `e2e.rs` does.

use harness::{
    oracle::Oracle,
    payload,
    process::{Process, Role},
    receiver::Receiver,
    sender::{Sender, Sent},
    site::{GITHUB_SECRET, Limits, Site},
    stack::{OwnKafka, Stack, stack, turn},
    until,
};
use std::time::Duration;

/// A broker that was paused, a group that settles, a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_spooled_while_the_broker_stood_still_outlives_a_kill_and_is_delivered() {
    const COUNT: usize = 200;
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let kafka = OwnKafka::start().await;
    let stack = Stack {
        kafka: kafka.address(),
        ..stack
    };
    let receiver = Receiver::start().await;
    let mut site = Site::on_stack(&stack, "spool", 4);
    let dir = site.dir().join("spool");
    site.ingest(&format!("[ingest.spool]\ndir = {dir:?}"));
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    site.prepare().await;
    let mut ingest = site.start(Role::Ingest).await;
    let mut webhooks = payload::generated(11, COUNT + 20);
    let before = webhooks.split_off(COUNT);
    let after = payload::generated(12, 20);
    let mut sent = sender(&ingest).post_all(before).await;
    assert_all_acknowledged(&sent);
    assert_eq!(ingest.metric("fencepost_ingest_spooled_total").await, 0.0);

    kafka.pause();
    let spooled = sender(&ingest).post_all(webhooks).await;
    assert_all_acknowledged(&spooled);
    sent.extend(spooled);
    assert_eq!(
        ingest.metric("fencepost_ingest_spool_records").await,
        COUNT as f64
    );
    assert_shows(&mut ingest, COUNT).await;

    ingest.kill_9();
    // The broker does not answer at the start either.
    let mut ingest = site.start(Role::Ingest).await;
    let spooled = sender(&ingest).post_all(after).await;
    assert_all_acknowledged(&spooled);
    sent.extend(spooled);
    assert_eq!(
        ingest.metric("fencepost_ingest_spool_records").await,
        (COUNT + 20) as f64
    );
    kafka.resume();
    until(PATIENCE, "the broker answers again", async || {
        let described = site.tool(&["topics", "describe"]).await;
        (described.code == Some(0)).then_some(())
    })
    .await;
    let _dispatcher = site.start(Role::Dispatcher).await;
    until(PATIENCE, "the spool is empty", async || {
        let left = ingest.metric("fencepost_ingest_spool_records").await;
        (left == 0.0).then_some(())
    })
    .await;
    assert_eq!(
        ingest.metric("fencepost_ingest_spool_drained_total").await,
        (COUNT + 20) as f64
    );
    until(PATIENCE, "all delivered", async || {
        (receiver.accepted("/billing") >= COUNT + 40).then_some(())
    })
    .await;

    assert!(ingest.terminate(PATIENCE).await.success());
    let oracle = Oracle {
        sent,
        arrivals: receiver.arrivals(),
        destinations: vec![("billing".to_owned(), "/billing".to_owned())],
        ..Oracle::default()
    };
    let report = oracle.judge();
    println!("{report}");
    report.assert_clean();
}

/// What operators see while `count` webhooks are spooled.
async fn assert_shows(ingest: &mut Process, count: usize) {
    let bytes = ingest.metric("fencepost_ingest_spool_bytes").await;
    assert!(bytes >= (count * 1_000) as f64, "{bytes}");
    until(PATIENCE, "the oldest grows old", async || {
        let seconds = ingest.metric("fencepost_ingest_spool_oldest_seconds").await;
        (seconds >= 1.0).then_some(())
    })
    .await;
    // Whoever balances must not take it out: it does what it can.
    ingest.wait_ready().await;
    let log = ingest.log();
    assert!(log.contains("webhooks go to the spool"), "{log}");
}

fn sender(ingest: &Process) -> Sender {
    Sender::new(ingest.hook_url(), GITHUB_SECRET)
}

fn assert_all_acknowledged(sent: &[Sent]) {
    let refused: Vec<_> = sent.iter().filter(|sent| !sent.acknowledged()).collect();
    assert!(refused.is_empty(), "not acknowledged: {refused:?}");
}
