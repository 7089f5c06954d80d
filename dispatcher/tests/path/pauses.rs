//! Destinations that are paused: by a 410, by days of failures, by hand; for every dispatcher, and until somebody resumes them.

use crate::{
    driver::{Driver, Order, due_ms, hops, is_crash, start},
    fakes::{
        faults::{Faults, Mode, Step},
        send::status,
        world::{START_MS, World, eventually, webhook},
    },
    run::running::Running,
};
use dedup_store::{Noted, PauseCause, Standing, Status, Store};
use dispatcher::{config::WhilePaused, pause::look, process::Finished};
use schemas::{DelayTier, Reason, Topic};
use std::{sync::Arc, time::Duration};

async fn standing(world: &World) -> Standing {
    let mut standings = world.store.inner.standings().await.unwrap();
    standings.remove("billing").unwrap_or_default()
}

async fn note(world: &World, new: &Standing) {
    let noted = world.store.inner.set_standing("billing", new).await;
    assert_eq!(noted, Ok(Noted::Written));
}

async fn pause(world: &World) {
    let paused = standing(world)
        .await
        .pause(START_MS, PauseCause::Manual, "");
    note(world, &paused).await;
}

async fn resume(world: &World) {
    let resumed = standing(world).await.resume(world.clock.now_ms());
    note(world, &resumed).await;
}

#[tokio::test(start_paused = true)]
async fn a_410_pauses_the_destination_for_every_dispatcher_until_it_is_resumed() {
    let world = World::new(1, Faults::default());
    world.send.script([status(410), status(204)]);
    let (first, second) = (Arc::new(world.path()), Arc::new(world.path()));
    for id in ["d1", "d2", "d3"] {
        world.publish(&webhook(id, START_MS)).await;
    }
    let records = world.log.inner.records(Topic::Webhooks);
    let gone = start(&world, &first, &records[0]).await.unwrap();
    assert_eq!(gone, Ok(Finished::DeadLettered(Reason::Gone)));
    look(&first).await.unwrap();
    let paused = standing(&world).await.paused.unwrap();
    assert_eq!(
        (paused.cause, paused.note.as_str()),
        (PauseCause::Gone, "http status 410")
    );

    look(&second).await.unwrap();
    for (path, record) in [(&first, &records[1]), (&second, &records[2])] {
        let waits = start(&world, path, record).await.unwrap();
        assert_eq!(waits, Ok(Finished::Deferred));
    }
    assert_eq!(world.store.inner.rows().len(), 1, "no claim was made");
    for (tier, hop) in hops(&world) {
        assert_eq!(tier, DelayTier::M10);
        assert_eq!((hop.attempt, hop.fence, hop.deferred), (1, None, 1));
    }

    // Round and round, until it is resumed.
    let hop = |at: usize| {
        world
            .log
            .inner
            .records(Topic::Delay(DelayTier::M10))
            .remove(at)
    };
    world.clock.advance(due_ms(&hop(0)) - world.clock.now_ms());
    look(&second).await.unwrap();
    let waits = start(&world, &second, &hop(0)).await.unwrap();
    assert_eq!(waits, Ok(Finished::Deferred));
    assert_eq!(world.send.sent().len(), 1);
    resume(&world).await;
    // The 410 of before counts no more, neither for who saw it nor for the others.
    for path in [&first, &second, &first] {
        look(path).await.unwrap();
        assert_eq!(standing(&world).await.paused, None);
    }
    for at in [1, 2] {
        let hop = hop(at);
        let wait_ms = due_ms(&hop) - world.clock.now_ms();
        world.clock.advance(wait_ms.max(0));
        let delivered = start(&world, &first, &hop).await.unwrap();
        assert_eq!(delivered, Ok(Finished::Delivered));
    }
    assert_eq!(world.send.sent().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_410_of_a_destination_that_shall_not_be_paused_for_it_pauses_nothing() {
    let mut world = World::new(1, Faults::default());
    world.destinations.get_mut("billing").unwrap().pause.on_gone = Some(false);
    world.send.script([status(410)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(Order::OldestFirst).await;
    look(&driver.path).await.unwrap();
    assert_eq!(standing(&world).await, Standing::default());
}

/// 1: what waits for a paused destination ends when it is too old, and is told as that.
#[tokio::test(start_paused = true)]
async fn what_waits_too_long_at_a_paused_destination_expires() {
    let mut world = World::new(1, Faults::default());
    let retry = &mut world.destinations.get_mut("billing").unwrap().retry;
    retry.max_age = Duration::from_secs(3_600);
    pause(&world).await;
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    look(&driver.path).await.unwrap();
    driver.until_quiet(Order::OldestFirst).await;
    assert_eq!(world.send.sent(), []);
    let letter = world.letters().remove(0);
    assert_eq!((letter.reason, letter.attempts), (Reason::Expired, 0));
    assert!(hops(&world).iter().all(|(tier, _)| *tier == DelayTier::M10));
    // Six rounds of ten minutes, and the one after which the hour is over.
    assert_eq!(hops(&world).len(), 7);
}

/// Every effect may crash, fail or lose its answer: there is a letter for a paused delivery, and nothing is sent.
#[tokio::test(start_paused = true)]
async fn a_paused_delivery_is_dead_lettered_in_the_order_of_effects() {
    let modes = [
        Mode::CrashBefore,
        Mode::CrashAfter,
        Mode::Fail,
        Mode::LoseAnswer,
    ];
    let mut plans = vec![Faults::default()];
    for at in 0..4 {
        // The mark on the offset can not fail, only come too late.
        let possible = modes.into_iter().filter(|mode| at < 3 || is_crash(*mode));
        plans.extend(possible.map(|mode| Faults::at(&[(at, mode)])));
    }
    for (number, faults) in plans.into_iter().enumerate() {
        let mut world = World::new(1, faults);
        let billing = world.destinations.get_mut("billing").unwrap();
        billing.pause.deliveries = WhilePaused::DeadLetter;
        // What needs no room must not wait for any.
        billing.concurrency = 1;
        pause(&world).await;
        world.publish(&webhook("d1", START_MS)).await;
        let mut driver = Driver::new(&world);
        look(&driver.path).await.unwrap();
        let record = driver.unfinished().remove(0);
        let ended = driver.take(&record).await;
        if number == 0 {
            let reason = Reason::DestinationPaused;
            assert_eq!(ended, Some(Ok(Finished::DeadLettered(reason))));
            let effects = [Step::Claim, Step::Letter, Step::Transition, Step::Finish];
            assert_eq!(world.faults.trace(), effects);
        }
        // After a crash, the new dispatcher looks before it takes anything.
        look(&driver.path).await.unwrap();
        driver.until_quiet(Order::OldestFirst).await;
        assert_eq!(world.send.sent(), [], "plan {number}");
        let letters = world.letters();
        assert!((1..=2).contains(&letters.len()), "plan {number}");
        for letter in &letters {
            assert_eq!(letter.dead_letter_id, letters[0].dead_letter_id);
            assert_eq!(letter.reason, Reason::DestinationPaused);
        }
        let row = world.store.inner.rows().remove(0).1;
        assert_eq!(row.status, Status::Failed);
        assert_eq!(row.reason, Some(Reason::DestinationPaused));
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_what_was_known_last_holds() {
    let world = World::new(1, Faults::default());
    let path = Arc::new(world.path());
    world.publish(&webhook("d1", START_MS)).await;
    world.publish(&webhook("d2", START_MS)).await;
    let records = world.log.inner.records(Topic::Webhooks);
    pause(&world).await;
    look(&path).await.unwrap();
    world.store.inner.fail_next(u32::MAX);
    assert!(look(&path).await.is_err());
    let waits = start(&world, &path, &records[0]).await.unwrap();
    assert_eq!(waits, Ok(Finished::Deferred));

    world.store.inner.heal();
    resume(&world).await;
    world.store.inner.fail_next(u32::MAX);
    assert!(look(&path).await.is_err());
    let waits = start(&world, &path, &records[1]).await.unwrap();
    assert_eq!(waits, Ok(Finished::Deferred), "nobody has heard of it yet");
    world.store.inner.heal();
    look(&path).await.unwrap();
    let hop = world
        .log
        .inner
        .records(Topic::Delay(DelayTier::M10))
        .remove(0);
    let delivered = start(&world, &path, &hop).await.unwrap();
    assert_eq!(delivered, Ok(Finished::Delivered));
}

/// What this process saw is noted once the store is back, and a lost answer is no second pause.
#[tokio::test(start_paused = true)]
async fn a_410_that_could_not_be_noted_is_noted_later() {
    let world = World::new(1, Faults::default());
    world.send.script([status(410)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(Order::OldestFirst).await;
    world.store.inner.fail_next(3);
    for _ in 0..3 {
        assert!(look(&driver.path).await.is_err());
    }
    assert_eq!(standing(&world).await, Standing::default());
    world.store.inner.lose_answers(1);
    assert!(look(&driver.path).await.is_err(), "the listing was lost");
    for _ in 0..2 {
        look(&driver.path).await.unwrap();
    }
    let noted = standing(&world).await;
    assert_eq!(
        noted.paused.map(|paused| paused.cause),
        Some(PauseCause::Gone)
    );
    assert_eq!(noted.revision, 1);
}

/// The whole dispatcher: nothing but failures for long enough, then silence, then a resume.
#[tokio::test(start_paused = true)]
async fn nothing_but_failures_for_long_pauses_a_destination() {
    let mut world = World::new(1, Faults::default());
    let billing = world.destinations.get_mut("billing").unwrap();
    billing.pause.after = Duration::from_secs(60);
    billing.retry.factor = 1.0;
    billing.retry.attempts_max = 1_000;
    world.send.script([status(500)]);
    let running = Running::start(&world);
    world.publish(&webhook("d1", START_MS)).await;
    let mut cause = None;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cause = standing(&world).await.paused.map(|paused| paused.cause);
        if cause.is_some() {
            break;
        }
    }
    assert_eq!(cause, Some(PauseCause::Failing));
    assert!(world.clock.now_ms() >= START_MS + 60_000);
    assert!(standing(&world).await.failing_since_ms.is_some());
    let waits = || hops(&world).iter().any(|(tier, _)| *tier == DelayTier::M10);
    eventually("it waits", waits).await;
    let sent = world.send.sent().len();
    world.publish(&webhook("d2", world.clock.now_ms())).await;
    let hops_now = || {
        let paused = hops(&world).into_iter();
        paused.filter(|(tier, _)| *tier == DelayTier::M10).count()
    };
    eventually("the fresh one waits too", || hops_now() == 2).await;
    assert_eq!(world.send.sent().len(), sent);

    resume(&world).await;
    world.send.script([status(204)]);
    // A fresh one tells when the resume has been noticed; those of before wait for their tier's end.
    tokio::time::sleep(Duration::from_secs(10)).await;
    world.publish(&webhook("d3", world.clock.now_ms())).await;
    eventually("it is sent", || world.send.sent().len() > sent).await;
    assert_eq!(world.send.sent().pop().unwrap().delivery_id, "d3");
    running.stop().await.unwrap();
}

/// A pause of before holds from the first record on, and a 410 does not wait for the next look.
#[tokio::test(start_paused = true)]
async fn a_dispatcher_looks_before_its_first_attempt_and_at_once_after_a_410() {
    let world = World::new(1, Faults::default());
    pause(&world).await;
    world.publish(&webhook("d1", START_MS)).await;
    let running = Running::start(&world);
    eventually("it waits", || hops(&world).len() == 1).await;
    assert_eq!(world.send.sent(), []);
    resume(&world).await;
    tokio::time::sleep(Duration::from_secs(10)).await;

    world.send.script([status(410)]);
    world.publish(&webhook("d2", START_MS)).await;
    eventually("it is sent", || world.send.sent().len() == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(standing(&world).await.paused.is_some());
    running.stop().await.unwrap();
}
