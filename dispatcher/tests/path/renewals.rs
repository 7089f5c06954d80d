//! When a claim is renewed, and what its renewal means for the transition.

use crate::{
    driver::begin,
    fakes::{
        faults::{Faults, Mode, Step},
        send::status,
        store::StoreEvent,
        world::{START_MS, World, eventually},
    },
};
use dispatcher::process::Finished;
use schemas::Reason;
use std::time::Duration;

const LEASE_MS: i64 = 15_000;
/// Step of the world's clock, and of the looks at it.
const SLACK_MS: i64 = 100;

/// The lease counts from the ask, not from its answer.
#[tokio::test(start_paused = true)]
async fn a_claim_that_took_long_is_renewed_by_its_end() {
    for takes_ms in [0_i64, 4_000, 9_000] {
        let world = World::new(1, Faults::default());
        world.send.hold();
        world
            .store
            .inner
            .delay(Duration::from_millis(takes_ms.unsigned_abs()));
        let job = begin(&world).await;
        eventually("the ask", || !world.faults.trace().is_empty()).await;
        world.store.inner.heal();
        eventually("a renewal", || renewals(&world) == 1).await;
        let at_ms = world.clock.now_ms() - START_MS;
        let due_ms = takes_ms.max(LEASE_MS / 3);
        assert!(
            (due_ms..=due_ms + SLACK_MS).contains(&at_ms),
            "{takes_ms}: {at_ms}"
        );
        world.send.answer(1);
        assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_within_a_second() {
    let world = World::new(1, Faults::default());
    world.send.hold();
    let job = begin(&world).await;
    eventually("an attempt", || world.send.running() == 1).await;
    world.store.inner.fail_next(8);
    let mut at_ms = Vec::new();
    for count in 1..=9 {
        eventually("a renewal", || renewals(&world) == count).await;
        at_ms.push(world.clock.now_ms());
    }
    assert!(
        at_ms.windows(2).all(|pair| pair[1] - pair[0] <= 1_000),
        "{at_ms:?}"
    );
    world.send.answer(1);
    assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
}

/// The store is away again and again, each time until just before the lease would end.
#[tokio::test(start_paused = true)]
async fn a_lease_does_not_lapse_while_the_store_comes_back_in_time() {
    let world = World::new(1, Faults::default());
    world.send.hold();
    let job = begin(&world).await;
    eventually("an attempt", || world.send.running() == 1).await;
    let until_ms = || world.store.inner.rows()[0].1.lease_until_ms;
    for _ in 0..10 {
        let before_ms = until_ms();
        world.store.inner.fail_next(u32::MAX);
        eventually("the end is near", || {
            before_ms - world.clock.now_ms() <= 1_000
        })
        .await;
        world.store.inner.heal();
        eventually("a renewal or the end", || {
            until_ms() > before_ms || world.clock.now_ms() >= before_ms
        })
        .await;
        assert!(world.clock.now_ms() < before_ms, "lapsed");
    }
    world.send.answer(1);
    assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
    assert_eq!(world.send.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_back_makes_no_renewal_late() {
    let world = World::new(1, Faults::default());
    world.send.hold();
    let job = begin(&world).await;
    eventually("an attempt", || world.send.running() == 1).await;
    world.clock.advance(-3_600_000);
    let set_back_ms = world.clock.now_ms();
    for count in 1..=4 {
        eventually("a renewal", || renewals(&world) == count).await;
        let late_ms = world.clock.now_ms() - set_back_ms - (LEASE_MS / 3) * i64_of(count);
        assert!(late_ms <= SLACK_MS * i64_of(count), "{count}: {late_ms}");
    }
    world.send.answer(1);
    assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
}

/// The claim takes most of its lease, and so does the first renewal: one more is made before anything is sent.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_took_long_is_followed_by_another_one() {
    let world = World::new(1, Faults::default());
    world.send.hold();
    world.store.inner.delay(Duration::from_secs(13));
    let job = begin(&world).await;
    eventually("a renewal", || renewals(&world) > 0).await;
    world.store.inner.heal();
    eventually("an attempt", || world.send.running() == 1).await;
    let sent_ms = world.send.sent()[0].at_ms;
    assert!(
        sent_ms >= START_MS + 26_000 - SLACK_MS,
        "both were waited for"
    );
    // One of the work before the attempt and one of the lease's keeper were slow; neither left enough.
    let trace = world.faults.trace();
    let before = trace.iter().take_while(|step| **step != Step::Send);
    assert_eq!(
        before.copied().collect::<Vec<_>>(),
        [Step::Claim, Step::Renew, Step::Renew, Step::Renew]
    );
    let until_ms = world.store.inner.rows()[0].1.lease_until_ms;
    assert!(until_ms - sent_ms > 2_500, "{}", until_ms - sent_ms);
    world.send.answer(1);
    assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
}

/// The transition is applied and its answers are lost; a renewal meanwhile finds the claim ended. That is no lost lease.
#[tokio::test(start_paused = true)]
async fn a_renewal_behind_our_own_transition_loses_nothing() {
    let reason = Reason::Rejected;
    for (answer, first, finished) in [
        (204, 2, Finished::Delivered),
        (500, 3, Finished::Retried),
        (404, 3, Finished::DeadLettered(reason)),
    ] {
        // Four tries from the fourth second on, each with a longer pause, end before the renewal in the fifth.
        let lost = [0, 1, 2, 3].map(|more| (first + more, Mode::LoseAnswer));
        let world = World::new(1, Faults::at(&lost));
        world.send.script([status(answer)]);
        world.send.takes(Duration::from_secs(4));
        let job = begin(&world).await;
        assert_eq!(job.await.unwrap(), Ok(finished));
        let transition = Step::Transition;
        assert_eq!(
            world.faults.trace()[first..],
            [
                transition,
                transition,
                transition,
                transition,
                Step::Renew,
                transition
            ]
        );
        assert_eq!(world.send.sent().len(), 1);
    }
}

/// How long a store keeps a row is counted from the lease's end, so the transition must know the one in the row.
#[tokio::test(start_paused = true)]
async fn a_transition_knows_the_renewed_end_of_the_lease() {
    for answer in [204, 500, 404] {
        let world = World::new(1, Faults::default());
        world.send.script([status(answer)]);
        world.send.takes(Duration::from_secs(12));
        let job = begin(&world).await;
        assert!(job.await.unwrap().is_ok());
        let events = world.store.events();
        let told_ms = events.iter().find_map(|event| match event {
            StoreEvent::Moved { lease_until_ms, .. } => Some(*lease_until_ms),
            StoreEvent::Claimed(_) | StoreEvent::Refused(_) | StoreEvent::Renewed => None,
        });
        let row = world.store.inner.rows().remove(0).1;
        assert_eq!(told_ms, Some(row.lease_until_ms));
        assert!(
            row.lease_until_ms > START_MS + LEASE_MS + 9_000,
            "renewed twice"
        );
    }
}

fn renewals(world: &World) -> usize {
    let trace = world.faults.trace();
    trace.iter().filter(|step| **step == Step::Renew).count()
}

fn i64_of(count: usize) -> i64 {
    i64::try_from(count).unwrap()
}
