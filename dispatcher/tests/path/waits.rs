//! Repeats, deferrals and hops: what waits, waits in the log or for a bounded time, and is never dropped or early.

use crate::{
    driver::{Driver, Order, hops, put, start},
    fakes::{
        faults::Faults,
        send::status,
        store::StoreEvent,
        world::{START_MS, World, eventually, webhook},
    },
};
use dedup_store::{Claim, Status};
use dispatcher::{outcome::of_status, process::Finished};
use schemas::{DelayTier, Delivery, Reason, Topic};
use std::{sync::Arc, time::Duration};
use uuid::Uuid;

/// 9: two dispatchers get fifty copies of one webhook at once.
#[tokio::test(start_paused = true)]
async fn copies_at_once_are_sent_once() {
    for takes in [0, 2_000, 9_000] {
        let world = World::new(1, Faults::default());
        world.send.takes(Duration::from_millis(takes));
        for _ in 0..50 {
            world.publish(&webhook("d1", START_MS)).await;
        }
        let paths = [Arc::new(world.path()), Arc::new(world.path())];
        let mut jobs = Vec::new();
        for (at, record) in world.log.inner.records(Topic::Webhooks).iter().enumerate() {
            jobs.push(start(&world, &paths[at % 2], record));
        }
        let mut finished = Vec::new();
        for job in jobs {
            finished.push(job.await.unwrap().unwrap());
        }
        let count = |what: Finished| finished.iter().filter(|it| **it == what).count();
        assert_eq!(count(Finished::Delivered), 1);
        assert_eq!(count(Finished::Duplicate) + count(Finished::Deferred), 49);
        assert_eq!(count(Finished::Deferred), hops(&world).len());
        // A short attempt is waited for in memory; a long one puts the repeats into the log.
        assert_eq!(count(Finished::Deferred) > 0, takes > 5_000);
        Driver::new(&world).until_quiet(Order::OldestFirst).await;
        assert_eq!(world.send.sent().len(), 1);
    }
}

/// 9: the source repeats it again and again, before and after the retries, and once it is delivered.
#[tokio::test(start_paused = true)]
async fn a_repeat_between_retries_changes_nothing() {
    let world = World::new(1, Faults::default());
    world.send.script([status(500), status(503), status(204)]);
    let mut driver = Driver::new(&world);
    for _ in 0..4 {
        for _ in 0..3 {
            world.publish(&webhook("d1", START_MS)).await;
        }
        driver.until_quiet(Order::NewestFirst).await;
    }
    let attempts: Vec<u32> = world.send.sent().iter().map(|it| it.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    let hops = hops(&world);
    assert!(
        hops.iter()
            .all(|(_, hop)| hop.attempt > 1 && hop.deferred == 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_parked_then_deferred_and_not_dropped_while_the_lease_lives() {
    let world = World::new(1, Faults::default());
    world.send.hold();
    for _ in 0..2 {
        world.publish(&webhook("d1", START_MS)).await;
    }
    let records = world.log.inner.records(Topic::Webhooks);
    let path = Arc::new(world.path());
    let first = start(&world, &path, &records[0]);
    eventually("an attempt", || world.send.running() == 1).await;
    let repeat = start(&world, &path, &records[1]).await.unwrap();
    assert_eq!(repeat, Ok(Finished::Deferred));
    assert!(world.clock.now_ms() < START_MS + 5_000);
    let hops = hops(&world);
    assert_eq!((hops.len(), hops[0].0), (1, DelayTier::S5));
    let Delivery {
        attempt,
        fence,
        deferred,
        ..
    } = hops[0].1;
    assert_eq!((attempt, fence, deferred), (1, None, 1));
    let busy = |event: &StoreEvent| matches!(event, StoreEvent::Refused(Claim::Busy { .. }));
    let events = world.store.events();
    assert_eq!(events.iter().filter(|event| busy(event)).count(), 7);

    // The next look comes when the attempt has ended: only now it is a duplicate.
    world.send.answer(1);
    assert_eq!(first.await.unwrap(), Ok(Finished::Delivered));
    let record = world
        .log
        .inner
        .records(Topic::Delay(DelayTier::S5))
        .remove(0);
    let repeat = start(&world, &path, &record).await.unwrap();
    assert_eq!(repeat, Ok(Finished::Duplicate));
    assert_eq!(world.send.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_room_a_delivery_is_deferred_unclaimed() {
    let mut world = World::new(1, Faults::default());
    world.destinations.get_mut("billing").unwrap().concurrency = 1;
    world.send.hold();
    world.publish(&webhook("d1", START_MS)).await;
    let path = Arc::new(world.path());
    let slow = start(&world, &path, &world.log.inner.records(Topic::Webhooks)[0]);
    eventually("an attempt", || world.send.running() == 1).await;

    let fence = Some(Uuid::from_u128(7));
    let waiting = Delivery {
        attempt: 3,
        fence,
        deferred: 3,
        ..Delivery::first(webhook("d2", START_MS), "billing")
    };
    let record = put(&world, &waiting).await;
    let second = start(&world, &path, &record).await.unwrap();
    assert_eq!(second, Ok(Finished::Deferred));
    assert_eq!(world.store.inner.rows().len(), 1, "no claim was made");
    let (tier, put_off) = hops(&world).pop().unwrap();
    assert_eq!(tier, DelayTier::S5);
    assert_eq!(
        put_off,
        Delivery {
            deferred: 4,
            ..waiting
        }
    );

    world.send.answer(2);
    assert_eq!(slow.await.unwrap(), Ok(Finished::Delivered));
    Driver::new(&world).until_quiet(Order::OldestFirst).await;
    let last = world.send.sent().pop().unwrap();
    assert_eq!((last.delivery_id.as_str(), last.attempt), ("d2", 3));
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_goes_through_tiers_and_never_ends_early() {
    let world = World::new(1, Faults::default());
    let throttled = of_status(429, Some(b"11863"), &[], 0);
    world.send.script([throttled, status(204)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    let record = driver.unfinished().remove(0);
    driver.take(&record).await.unwrap().unwrap();
    let due_ms = hops(&world)[0].1.due_at_ms;
    assert_eq!(due_ms, START_MS + 11_863_000);
    driver.until_quiet(Order::OldestFirst).await;

    let sent = world.send.sent();
    assert_eq!(sent.len(), 2);
    assert!((due_ms..due_ms + 100).contains(&sent[1].at_ms), "{sent:?}");
    let mut tiers: Vec<DelayTier> = hops(&world).into_iter().map(|(tier, _)| tier).collect();
    tiers.sort_by_key(|tier| std::cmp::Reverse(tier.wait_ms()));
    let (h1, m10, m2, s30, s5) = (
        DelayTier::H1,
        DelayTier::M10,
        DelayTier::M2,
        DelayTier::S30,
        DelayTier::S5,
    );
    // 3 h, 10 min, 3 * 2 min, 3 * 30 s, 2 * 5 s; the last 3 s in memory. What a hop takes is not counted twice.
    assert_eq!(tiers, [h1, h1, h1, m10, m2, m2, m2, s30, s30, s30, s5, s5]);
    assert!(
        hops(&world)
            .iter()
            .all(|(_, hop)| hop.attempt == 2 && hop.due_at_ms == due_ms)
    );
    let claimed = |event: &StoreEvent| matches!(event, StoreEvent::Claimed(_));
    assert_eq!(
        world
            .store
            .events()
            .iter()
            .filter(|event| claimed(event))
            .count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_into_memory_goes_round_a_tier() {
    let mut world = World::new(1, Faults::default());
    world.config.held_bytes_max = 2_000;
    let path = Arc::new(world.path());
    let mut jobs = Vec::new();
    for id in ["d1", "d2"] {
        let due_at_ms = START_MS + 3_000;
        let first = Delivery::first(webhook(id, START_MS), "billing");
        let record = put(&world, &Delivery { due_at_ms, ..first }).await;
        jobs.push(start(&world, &path, &record));
    }
    let mut finished = Vec::new();
    for job in jobs {
        finished.push(job.await.unwrap().unwrap());
    }
    assert_eq!(finished, [Finished::Delivered, Finished::Hopped]);
    assert!(world.send.sent()[0].at_ms >= START_MS + 3_000);
    // The budget is free again.
    Driver::new(&world).until_quiet(Order::NewestFirst).await;
    assert_eq!(world.send.sent().len(), 2);
    assert!(
        world
            .store
            .inner
            .rows()
            .iter()
            .all(|(_, row)| row.status == Status::Completed)
    );
}

/// What ends without a request needs no room, and must not go round for want of it.
#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_over_needs_no_room() {
    let mut world = World::new(1, Faults::default());
    world.destinations.get_mut("billing").unwrap().concurrency = 1;
    world.send.hold();
    world.publish(&webhook("d1", START_MS)).await;
    let path = Arc::new(world.path());
    let slow = start(&world, &path, &world.log.inner.records(Topic::Webhooks)[0]);
    eventually("an attempt", || world.send.running() == 1).await;
    let retry = &world.destinations["billing"].retry;
    let age_ms = i64::try_from(retry.max_age.as_millis()).unwrap();
    let used_up = Delivery {
        attempt: retry.attempts_max + 1,
        fence: Some(Uuid::from_u128(7)),
        ..Delivery::first(webhook("d2", START_MS), "billing")
    };
    let old = Delivery::first(webhook("d3", START_MS - age_ms - 1), "billing");
    for (delivery, reason) in [(used_up, Reason::Exhausted), (old, Reason::Expired)] {
        let record = put(&world, &delivery).await;
        let finished = start(&world, &path, &record).await.unwrap();
        assert_eq!(finished, Ok(Finished::DeadLettered(reason)));
        assert_eq!(world.letters().pop().unwrap().reason, reason);
    }
    assert_eq!(world.send.sent().len(), 1);
    world.send.answer(1);
    assert_eq!(slow.await.unwrap(), Ok(Finished::Delivered));
}

#[tokio::test(start_paused = true)]
async fn a_clock_set_back_puts_what_is_held_into_a_tier() {
    let world = World::new(1, Faults::default());
    let first = Delivery::first(webhook("d1", START_MS), "billing");
    let due_at_ms = START_MS + 3_000;
    let record = put(&world, &Delivery { due_at_ms, ..first }).await;
    let job = start(&world, &Arc::new(world.path()), &record);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!job.is_finished(), "held");
    world.clock.advance(-60_000);
    let set_back_ms = world.clock.now_ms();
    assert_eq!(job.await.unwrap(), Ok(Finished::Hopped));
    assert!(world.clock.now_ms() - set_back_ms < 5_000);
    let (tier, hop) = hops(&world).pop().unwrap();
    assert_eq!((tier, hop.due_at_ms), (DelayTier::S30, due_at_ms));
    Driver::new(&world).until_quiet(Order::NewestFirst).await;
    let sent = world.send.sent();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].at_ms >= due_at_ms);
}
