//! A body that comes again under another delivery id, where the source has a replay window.

use crate::{
    driver::{Driver, Order},
    fakes::{
        faults::{Faults, Mode},
        send::status,
        world::{START_MS, World, webhook},
    },
};
use bytes::Bytes;
use dedup_store::{PauseCause, Standing, Store};
use dispatcher::{config::SourcePolicy, pause::look, process::Finished};
use schemas::{DelayTier, Topic, Webhook};
use std::time::Duration;

const WINDOW_MS: i64 = 3_600_000;

fn guarded(faults: Faults) -> World {
    let mut world = World::new(1, faults);
    let policy = SourcePolicy {
        replay_window: Some(Duration::from_millis(3_600_000)),
        ..SourcePolicy::default()
    };
    world.sources.insert("github".to_owned(), policy);
    world
}

async fn end(driver: &mut Driver<'_>, webhook: &Webhook) -> Option<Finished> {
    driver.world.publish(webhook).await;
    let record = driver.unfinished().pop().unwrap();
    driver.take(&record).await.map(Result::unwrap)
}

async fn note(driver: &Driver<'_>, standing: &Standing) {
    let store = &driver.world.store.inner;
    let noted = store.set_standing("billing", standing).await;
    assert!(noted.is_ok(), "{noted:?}");
    look(&driver.path).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_same_body_under_another_id_is_delivered_once() {
    let world = guarded(Faults::default());
    world.send.script([status(200), status(200), status(200)]);
    let mut driver = Driver::new(&world);
    let first = webhook("d1", START_MS);
    assert_eq!(end(&mut driver, &first).await, Some(Finished::Delivered));
    assert_eq!(end(&mut driver, &first).await, Some(Finished::Duplicate));
    for id in ["d2", "d3", "D1", "d1 "] {
        let found = end(&mut driver, &webhook(id, START_MS)).await;
        assert_eq!(found, Some(Finished::Replayed), "{id}");
    }
    let mut other = webhook("d4", START_MS);
    other.body = Bytes::from_static(b"another body");
    assert_eq!(end(&mut driver, &other).await, Some(Finished::Delivered));
    assert_eq!(world.send.sent().len(), 2);

    // The window counts from the first, not from the latest.
    world.clock.advance(WINDOW_MS - 1);
    let late = webhook("d5", world.clock.now_ms());
    assert_eq!(end(&mut driver, &late).await, Some(Finished::Replayed));
    world.clock.advance(60_000);
    let later = webhook("d6", world.clock.now_ms());
    assert_eq!(end(&mut driver, &later).await, Some(Finished::Delivered));
}

#[tokio::test(start_paused = true)]
async fn without_a_window_ids_alone_count() {
    let world = World::new(1, Faults::default());
    world.send.script([status(200), status(200)]);
    let mut driver = Driver::new(&world);
    for id in ["d1", "d2"] {
        let found = end(&mut driver, &webhook(id, START_MS)).await;
        assert_eq!(found, Some(Finished::Delivered), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_no_replay_of_itself() {
    let world = guarded(Faults::default());
    world.send.script([status(500), status(500), status(200)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(Order::OldestFirst).await;
    let attempts: Vec<u32> = world.send.sent().iter().map(|it| it.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
}

/// Its body's row may be another id's by then, but it was let through before.
#[tokio::test(start_paused = true)]
async fn what_was_put_off_for_longer_than_the_window_is_delivered() {
    let world = guarded(Faults::default());
    world.send.script([status(200), status(200)]);
    let mut driver = Driver::new(&world);
    let paused = Standing::default().pause(START_MS, PauseCause::Manual, "");
    note(&driver, &paused).await;
    let waits = end(&mut driver, &webhook("d1", START_MS)).await;
    assert_eq!(waits, Some(Finished::Deferred));
    world.clock.advance(WINDOW_MS + 60_000);
    note(&driver, &paused.resume(START_MS)).await;
    world.publish(&webhook("d2", world.clock.now_ms())).await;
    for topic in [Topic::Webhooks, Topic::Delay(DelayTier::M10)] {
        let mut unfinished = driver.unfinished().into_iter();
        let record = unfinished.find(|record| record.topic == topic).unwrap();
        let ended = driver.take(&record).await.map(Result::unwrap);
        assert_eq!(ended, Some(Finished::Delivered), "{topic:?}");
    }
    assert_eq!(world.send.sent().len(), 2);
}

/// Whatever becomes of the two first effects, the delivery gets through, and its replay does not.
#[tokio::test(start_paused = true)]
async fn a_fault_at_the_body_s_row_loses_nothing() {
    let modes = [
        Mode::CrashBefore,
        Mode::CrashAfter,
        Mode::Fail,
        Mode::LoseAnswer,
    ];
    // 0: the body's row, 1: the claim.
    for (at, mode) in [0, 1]
        .into_iter()
        .flat_map(|at| modes.map(|mode| (at, mode)))
    {
        let world = guarded(Faults::at(&[(at, mode)]));
        world.send.script([status(200), status(200)]);
        world.publish(&webhook("d1", START_MS)).await;
        let mut driver = Driver::new(&world);
        driver.until_quiet(Order::OldestFirst).await;
        world.publish(&webhook("d2", START_MS)).await;
        driver.until_quiet(Order::OldestFirst).await;
        let ids: Vec<String> = world
            .send
            .sent()
            .into_iter()
            .map(|it| it.delivery_id)
            .collect();
        assert_eq!(ids, ["d1"], "{at} {mode:?}");
    }
}
