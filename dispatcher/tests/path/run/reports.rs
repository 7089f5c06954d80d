//! What went wrong in other people's consumers, played against the loop. Scenario numbers as in docs/adr/0019.

use crate::{
    driver::{Driver, Order},
    fakes::{
        faults::Faults,
        log::FakeLog,
        send::{FakeSend, status},
        store::FakeStore,
        world::{FakePath, START_MS, World, eventually, webhook},
    },
    run::running::{Running, check_watermarks, publish, until_committed},
};
use bytes::Bytes;
use dispatcher::{Status, run};
use event_log::{EventLog, Received, Record};
use schemas::{DelayTier, Topic};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// T26 (spring-kafka 2579, 2580): partitions move while the loop waits for a log and for a store that do not answer.
#[tokio::test(start_paused = true)]
async fn a_rebalance_in_mid_pause_stops_nothing() {
    let world = World::new(2, Faults::default());
    let only = Running::start(&world);
    publish(&world, "a", 10).await;
    until_committed(&world).await;
    world.store.inner.fail_next(u32::MAX);
    publish(&world, "b", 10).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    for round in 0..6 {
        world.log.inner.fail_reads(2);
        world.log.inner.revoke(round % 2, round % 3 == 0);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    check_watermarks(&world);
    assert!(!only.task.is_finished());
    world.store.inner.heal();
    until_committed(&world).await;
    check_watermarks(&world);
    assert_eq!(world.send.sent().len(), 20);
    assert!(only.stop().await.is_ok());
}

/// The log waits for a store that is away: what is in work stays in memory, the rest is not read, and nothing goes round the
/// tiers but what had no room before that was known.
#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_the_backlog_stays_where_it_is() {
    let world = World::new(2, Faults::default());
    world.store.inner.fail_next(u32::MAX);
    let only = Running::start(&world);
    publish(&world, "a", 20).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    publish(&world, "b", 3_000).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let in_tiers = || {
        let tiers = DelayTier::ALL.map(Topic::Delay).into_iter();
        tiers.map(|tier| world.log.inner.records(tier).len()).sum()
    };
    let deferred: usize = in_tiers();
    assert!(deferred < 20, "{deferred}");
    world.store.inner.heal();
    until_committed(&world).await;
    eventually("all is sent", || world.send.sent().len() == 3_020).await;
    check_watermarks(&world);
    assert!(only.stop().await.is_ok());
}

/// T27 (spring-kafka 1994): what travels with a delivery does not grow with its attempts, and the dead letter fits.
#[tokio::test(start_paused = true)]
async fn twenty_attempts_make_no_record_larger() {
    let mut world = World::new(1, Faults::default());
    let billing = world.destinations.get_mut("billing").unwrap();
    billing.retry.attempts_max = 20;
    billing.retry.max_age = Duration::from_hours(20 * 24);
    world.send.script([status(500)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(Order::OldestFirst).await;
    assert_eq!(world.send.sent().len(), 20);
    let bytes_at = |attempt: u32| {
        let tiers = DelayTier::ALL.map(Topic::Delay).into_iter();
        let mut records = tiers.flat_map(|tier| world.log.inner.records(tier));
        let of_attempt = |record: &Received| {
            world.codec.decode_delivery(&record.value).unwrap().attempt == attempt
        };
        let record = records.find(of_attempt).unwrap();
        let headers = record.headers.iter();
        let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
        record.value.len() + headers
    };
    // The history holds ten.
    let (twelfth, last) = (bytes_at(12), bytes_at(20));
    assert!(last <= twelfth + 64, "{twelfth} bytes, later {last}");
    let letters = world.letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].attempts, 20);
}

/// T29 (spring-kafka 1494): nothing in the record at all: one letter, and the watermark behind it.
#[tokio::test(start_paused = true)]
async fn an_empty_record_is_dead_lettered_once() {
    let world = World::new(1, Faults::default());
    let empty = Record {
        topic: Topic::Webhooks,
        key: Bytes::new(),
        value: Bytes::new(),
        headers: Vec::new(),
    };
    world.log.inner.produce(empty).await.unwrap();
    publish(&world, "a", 3).await;
    let only = Running::start(&world);
    until_committed(&world).await;
    assert_eq!(world.letters().len(), 1);
    assert_eq!(world.send.sent().len(), 3);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(world.letters().len(), 1, "no loop");
    assert!(only.stop().await.is_ok());
}

/// T37 (parallel-consumer 547, 606) and T41 (vector 26438): ownership comes and goes while attempts of the old one still run.
/// At the end nothing counts as in flight.
#[tokio::test(start_paused = true)]
async fn after_many_rebalances_nothing_counts_as_in_flight() {
    let world = World::new(3, Faults::default());
    world.send.takes(Duration::from_millis(900));
    let (path, shutdown): (Arc<FakePath>, _) = (Arc::new(world.path()), CancellationToken::new());
    let figures = Status::default();
    let running = run::<FakeLog, FakeStore, FakeSend>(path, figures.clone(), shutdown.clone());
    let task = tokio::spawn(running);
    publish(&world, "a", 120).await;
    for round in 0..40 {
        tokio::time::sleep(Duration::from_millis(130)).await;
        world.log.inner.revoke(round % 3, round % 5 == 0);
    }
    eventually("work was in flight", || figures.in_flight() > 0).await;
    until_committed(&world).await;
    eventually("nothing is in flight", || figures.in_flight() == 0).await;
    assert_eq!(figures.partitions_owned(), 3);
    check_watermarks(&world);
    // What was counted before has given its room back: as much as at first runs at once.
    publish(&world, "b", 30).await;
    until_committed(&world).await;
    shutdown.cancel();
    assert!(task.await.unwrap().is_ok());
}
