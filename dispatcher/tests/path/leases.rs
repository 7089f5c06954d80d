//! Claims that are lost, renewals and writes without an answer.

use crate::{
    driver::{begin, hops, job},
    fakes::{
        faults::{Faults, Mode, Step},
        send::status,
        store::StoreEvent,
        world::{START_MS, World, eventually},
    },
};
use dedup_store::{Claim, ClaimAsk, Held, Reopen, Status, Store, Transition};
use dispatcher::process::{Finished, process};
use runtime::Clock;
use schemas::Topic;
use std::time::Duration;
use uuid::Uuid;

const THIEF: Uuid = Uuid::from_u128(99);

#[tokio::test(start_paused = true)]
async fn a_lost_lease_cancels_the_attempt_and_settles_nothing() {
    let world = World::new(1, Faults::default());
    world.send.takes(Duration::from_secs(60));
    let job = begin(&world).await;
    eventually("an attempt", || world.send.running() == 1).await;
    let thief = take_over(&world).await;
    eventually("the end of the attempt", || world.send.running() == 0).await;
    assert!(world.clock.now_ms() < START_MS + 30_000);
    assert!(
        !job.is_finished(),
        "the record stays until the other one has ended"
    );
    let now_ms = world.clock.now_ms();
    let answer = world.store.inner.complete(&thief, now_ms).await;
    assert_eq!(answer, Ok(Transition::Applied));
    assert_eq!(job.await.unwrap(), Ok(Finished::Duplicate));
    assert_eq!(moves(&world), 0);
    assert_eq!(world.send.sent().len(), 1);
    assert_eq!((hops(&world).len(), world.letters().len()), (0, 0));
}

/// The attempt ends before a renewal shows the loss: the stale token changes nothing (2), and the record waits for the
/// end of the other claim.
#[tokio::test(start_paused = true)]
async fn a_stale_transition_is_refused_and_the_claim_looked_at_again() {
    let world = World::new(1, Faults::default());
    world.send.takes(Duration::from_secs(2));
    let job = begin(&world).await;
    eventually("an attempt", || world.send.running() == 1).await;
    let thief = take_over(&world).await;
    let result = job.await.unwrap();
    assert_eq!(
        result,
        Ok(Finished::Deferred),
        "busy for longer than a job parks"
    );
    let refused = |event: &StoreEvent| {
        matches!(
            event,
            StoreEvent::Moved {
                answer: Transition::LeaseLost,
                ..
            }
        )
    };
    assert_eq!(
        world
            .store
            .events()
            .iter()
            .filter(|event| refused(event))
            .count(),
        1
    );
    let rows = world.store.inner.rows();
    assert_eq!(rows[0].1, thief.row);
    assert_eq!(world.send.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_cancels_nothing() {
    let world = World::new(1, Faults::default());
    world.send.takes(Duration::from_secs(40));
    let job = begin(&world).await;
    eventually("an attempt", || world.send.running() == 1).await;
    // Nobody renews, the lease runs out, nobody else comes.
    world.store.inner.fail_next(u32::MAX);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.send.running(), 1);
    world.store.inner.heal();
    assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
    assert_eq!(world.send.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_known_outcome_outlives_an_outage_of_the_store() {
    for (answer, finished) in [
        (204, Finished::Delivered),
        (500, Finished::Retried),
        (404, Finished::DeadLettered(schemas::Reason::Rejected)),
    ] {
        let world = World::new(1, Faults::default());
        world.send.script([status(answer)]);
        world.send.takes(Duration::from_secs(1));
        let job = begin(&world).await;
        eventually("an attempt", || world.send.running() == 1).await;
        world.store.inner.fail_next(u32::MAX);
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert!(!job.is_finished());
        world.store.inner.heal();
        assert_eq!(job.await.unwrap(), Ok(finished));
        assert_eq!(world.send.sent().len(), 1);
        assert_eq!(
            hops(&world).len() + world.letters().len(),
            usize::from(answer != 204)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_known_outcome_outlives_an_outage_of_the_log() {
    let world = World::new(1, Faults::default());
    world.send.script([status(500)]);
    let job = begin(&world).await;
    world.log.inner.fail_produces(14, false);
    assert_eq!(job.await.unwrap(), Ok(Finished::Retried));
    assert_eq!(world.send.sent().len(), 1);
    let hops = hops(&world);
    assert_eq!(hops.len(), 1);
    let row = world.store.inner.rows().remove(0).1;
    assert_eq!(row.status, Status::Waiting);
    assert_eq!(row.not_before_ms, Some(hops[0].1.due_at_ms));
    assert_eq!(hops[0].1.fence, Some(row.claim_token));
    assert!(row.lease_until_ms > START_MS + 30_000, "renewed meanwhile");
}

/// The ask was applied and its answers lost until little is left of the lease: it is extended before the attempt.
#[tokio::test(start_paused = true)]
async fn no_attempt_starts_on_the_last_seconds_of_a_lease() {
    let world = World::new(1, Faults::default());
    world.store.inner.lose_answers(9);
    let job = begin(&world).await;
    eventually("an attempt", || world.send.sent().len() == 1).await;
    let sent = world.send.sent().remove(0);
    let rows = world.store.inner.rows();
    assert!(rows[0].1.lease_until_ms - sent.at_ms > 2_500, "{rows:?}");
    assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
}

/// A store that fails just then is one more call to be tried again, not the end of the job.
#[tokio::test(start_paused = true)]
async fn a_renewal_before_the_attempt_is_insisted_on() {
    let world = World::new(1, Faults::at(&[(10, Mode::Fail)]));
    world.store.inner.lose_answers(9);
    let job = begin(&world).await;
    assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
    assert_eq!(
        world.faults.trace()[9..12],
        [Step::Claim, Step::Renew, Step::Renew]
    );
    assert_eq!(world.send.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_lost_before_the_attempt_sends_nothing() {
    let world = World::new(1, Faults::default());
    world.store.inner.lose_answers(9);
    world.store.inner.delay(Duration::from_millis(200));
    let job = begin(&world).await;
    eventually("the renewal", || {
        world.faults.trace().last() == Some(&Step::Renew)
    })
    .await;
    // It is on its way; the other one's calls are faster.
    world.store.inner.heal();
    let thief = take_over(&world).await;
    let now_ms = world.clock.now_ms();
    world.store.inner.complete(&thief, now_ms).await.unwrap();
    assert_eq!(job.await.unwrap(), Ok(Finished::Duplicate));
    assert_eq!(world.send.sent(), []);
    assert_eq!(world.store.inner.rows()[0].1.status, Status::Completed);
}

/// Two dispatchers whose clocks differ by no more than the margin never work on one delivery at once, even when the lease has
/// run out on the one that is ahead. One that is further ahead takes over: the fence then ends the other one's attempt.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_takes_over_only_past_the_margin() {
    let mut world = World::new(1, Faults::default());
    world.send.takes(Duration::from_secs(60));
    let owner = begin(&world).await;
    eventually("an attempt", || world.send.running() == 1).await;
    let record = world.log.inner.records(Topic::Webhooks).remove(0);
    let lease_until_ms = |world: &World| world.store.inner.rows()[0].1.lease_until_ms;

    let margin_ms = 500;
    assert_eq!(world.config.skew_margin, Duration::from_millis(500));
    world.clock = Clock::manual(lease_until_ms(&world) + margin_ms);
    let within = process(&world.path(), &mut job(&world, &record)).await;
    assert_eq!(within, Ok(Finished::Deferred));
    assert_eq!((world.send.running(), world.send.sent().len()), (1, 1));

    world.clock = Clock::manual(lease_until_ms(&world) + margin_ms + 1);
    let (path, mut beyond) = (world.path(), job(&world, &record));
    let thief = tokio::spawn(async move { process(&path, &mut beyond).await });
    eventually("a second attempt", || world.send.sent().len() == 2).await;
    assert_eq!(world.send.sent()[1].attempt, 2);
    eventually("the end of the first one", || world.send.running() == 1).await;
    assert_eq!(thief.await.unwrap(), Ok(Finished::Delivered));
    assert!(matches!(
        owner.await.unwrap(),
        Ok(Finished::Duplicate | Finished::Deferred)
    ));
    let row = &world.store.inner.rows()[0].1;
    assert_eq!((row.status, row.attempts), (Status::Completed, 2));
}

/// Another dispatcher, whose clock is far ahead, takes the claim over.
async fn take_over(world: &World) -> Held {
    let (key, row) = world.store.inner.rows().remove(0);
    let ask = ClaimAsk {
        key,
        token: THIEF,
        lease_ms: 60_000,
        skew_margin_ms: 500,
        attempt: 1,
        fence: None,
        generation: 0,
        received_at_ms: START_MS,
        reopen: Reopen::Never,
    };
    let now_ms = row.lease_until_ms + 501;
    loop {
        match world.store.inner.claim(&ask, now_ms).await {
            Ok(Claim::Claimed(held)) => return held,
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
}

/// Transitions that were asked for.
fn moves(world: &World) -> usize {
    let moved = |event: &&StoreEvent| matches!(event, StoreEvent::Moved { .. });
    world.store.events().iter().filter(moved).count()
}
