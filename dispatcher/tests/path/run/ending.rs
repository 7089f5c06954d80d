//! Ownership ends while outcomes are known, unknown, or far away.

use crate::{
    driver::hops,
    fakes::{
        faults::Faults,
        send::status,
        world::{START_MS, World, eventually, webhook},
    },
    run::running::{Running, check_watermarks, publish, until_committed},
};
use bytes::Bytes;
use dedup_store::Status;
use event_log::{EventLog, Record};
use schemas::{Topic, Webhook};
use std::time::Duration;

/// The loop's limit for one topic and partition.
const WINDOW_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug)]
enum Ends {
    Revoked,
    Shutdown,
}

#[derive(Clone, Copy, Debug)]
enum Fails {
    StoreOnce,
    StoreForSeconds,
    LogOnce,
    LogForSeconds,
}

#[tokio::test(start_paused = true)]
async fn a_known_outcome_is_written_after_ownership_has_ended() {
    for ends in [Ends::Revoked, Ends::Shutdown] {
        for fails in [
            Fails::StoreOnce,
            Fails::StoreForSeconds,
            Fails::LogOnce,
            Fails::LogForSeconds,
        ] {
            for answer in [204, 500, 404] {
                known_outcome(ends, fails, answer).await;
            }
        }
    }
}

async fn known_outcome(ends: Ends, fails: Fails, answer: u16) {
    let what = format!("{ends:?}, {fails:?}, {answer}");
    let world = World::new(1, Faults::default());
    world.send.script([status(answer), status(204)]);
    world.send.hold();
    publish(&world, "a", 1).await;
    let only = Running::start(&world);
    eventually("an attempt", || world.send.running() == 1).await;
    match ends {
        Ends::Revoked => world.log.inner.revoke(0, false),
        Ends::Shutdown => only.shutdown.cancel(),
    }
    // The loop has heard of it; the attempt is still out.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(world.send.running(), 1, "{what}");
    match fails {
        Fails::StoreOnce => world.store.inner.fail_next(1),
        Fails::StoreForSeconds => world.store.inner.fail_next(u32::MAX),
        Fails::LogOnce => world.log.inner.fail_produces(1, false),
        Fails::LogForSeconds => world.log.inner.set_unavailable(Some("a fault")),
    }
    world.send.answer(1);
    tokio::time::sleep(Duration::from_secs(4)).await;
    world.store.inner.heal();
    world.log.inner.set_unavailable(None);

    let settled = match answer {
        204 => Status::Completed,
        500 => Status::Waiting,
        _ => Status::Failed,
    };
    eventually(&what, || world.store.inner.rows()[0].1.status == settled).await;
    assert_eq!(world.send.sent().len(), 1, "{what}");
    // What found the claim busy meanwhile may have been put off.
    let hops = hops(&world);
    let retries = hops.iter().filter(|(_, hop)| hop.deferred == 0);
    assert_eq!(retries.count(), usize::from(answer == 500), "{what}");
    assert_eq!(world.letters().len(), usize::from(answer == 404), "{what}");
    if matches!(ends, Ends::Revoked) {
        // Read again under the next epoch, where it is a repeat.
        until_committed(&world).await;
    }
    world.send.answer(1);
    assert!(only.stop().await.is_ok(), "{what}");
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 1, "{what}");
    check_watermarks(&world);
}

/// What ends within the grace is committed at once, and the others get their partitions.
#[tokio::test(start_paused = true)]
async fn the_grace_holds_up_no_rebalance() {
    let world = World::new(2, Faults::default());
    world.send.hold();
    publish(&world, "a", 10).await;
    let first = Running::start(&world);
    eventually("attempts run", || world.send.running() == 10).await;
    first.shutdown.cancel();
    tokio::task::yield_now().await;
    // A log that did not answer once is asked again.
    world.log.inner.fail_reads(1);
    // The gate is first come, first served.
    let oldest = world.send.sent().remove(0).delivery_id;
    let records = world.log.inner.records(Topic::Webhooks);
    let oldest = records
        .iter()
        .find(|record| record.key == oldest.as_bytes())
        .unwrap();
    world.send.answer(1);
    eventually("a commit", || {
        world.log.inner.committed(Topic::Webhooks, oldest.partition) == oldest.offset + 1
    })
    .await;
    assert!(!first.task.is_finished(), "within the grace");

    publish(&world, "b", 10).await;
    let second = Running::start(&world);
    let taken = || {
        let sent = world.send.sent();
        sent.iter().any(|it| it.delivery_id.starts_with('b'))
    };
    eventually("the second has a partition", || {
        taken() || first.task.is_finished()
    })
    .await;
    assert!(
        taken() && !first.task.is_finished(),
        "before the first ends"
    );
    world.send.answer(1_000);
    assert!(first.stop().await.is_ok());
    until_committed(&world).await;
    check_watermarks(&world);
    assert!(second.stop().await.is_ok());
}

/// One record that is not taken any more, among others: it holds the watermark and nothing else.
#[tokio::test(start_paused = true)]
async fn a_record_that_can_not_hop_blocks_no_other() {
    let world = World::new(1, Faults::default());
    world.send.script([status(500), status(204)]);
    let large = Webhook {
        body: Bytes::from(vec![7; 200_000]),
        ..webhook("large", START_MS)
    };
    world.publish(&large).await;
    world.log.inner.set_record_bytes_max(100_000);
    publish(&world, "a", 5).await;
    let only = Running::start(&world);
    let completed = || {
        let rows = world.store.inner.rows();
        let done = |row: &dedup_store::Row| row.status == Status::Completed;
        rows.iter().filter(|(_, row)| done(row)).count()
    };
    eventually("the others are delivered", || completed() == 5).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 0);
    assert_eq!(world.send.sent().len(), 6);
    // Still at work.
    publish(&world, "b", 5).await;
    eventually("more are delivered", || completed() == 10).await;
    let stopped_ms = world.clock.now_ms();
    assert!(only.stop().await.is_ok());
    assert!(world.clock.now_ms() - stopped_ms < 1_000, "nothing is left");
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 0);
}

/// A hundred thousand records that no route wants are finished behind one that is not.
#[tokio::test(start_paused = true)]
async fn a_full_window_stops_reading_until_its_head_ends() {
    let mut world = World::new(1, Faults::default());
    world.routes[0].events = Some(vec!["push".to_owned()]);
    world.send.hold();
    publish(&world, "head", 1).await;
    let only = Running::start(&world);
    eventually("an attempt", || world.send.running() == 1).await;
    unrouted(&world, WINDOW_MAX - 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    publish(&world, "last", 1).await;
    eventually("the last one of the window", || {
        world.send.sent().len() == 2
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    publish(&world, "behind", 1).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.send.sent().len(), 2, "the window is full");
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 0);
    world.send.answer(1);
    eventually("reading goes on", || world.send.sent().len() == 3).await;
    world.send.answer(2);
    until_committed(&world).await;
    assert!(only.stop().await.is_ok());
}

async fn unrouted(world: &World, count: usize) {
    let webhook = Webhook {
        event_type: "ping".to_owned(),
        ..webhook("unrouted", START_MS)
    };
    let record = Record {
        topic: Topic::Webhooks,
        key: Bytes::from_static(b"unrouted"),
        value: world.codec.encode_webhook(&webhook).unwrap(),
        headers: Vec::new(),
    };
    for _ in 0..count {
        world.log.inner.produce(record.clone()).await.unwrap();
    }
}
