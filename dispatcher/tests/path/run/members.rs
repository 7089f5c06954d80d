//! Several dispatchers, and ownership that comes and goes.

use crate::{
    fakes::{
        faults::Faults,
        send::status,
        store::StoreEvent,
        world::{World, eventually},
    },
    run::running::{Running, check_watermarks, publish, sends, until_committed},
};
use dispatcher::RunError;
use schemas::Topic;
use std::time::Duration;

/// Partitions move in mid-load while attempts run: all is delivered once, since attempts may end before the hand-over.
#[tokio::test(start_paused = true)]
async fn a_rebalance_in_mid_load_repeats_nothing() {
    let world = World::new(8, Faults::default());
    world.send.takes(Duration::from_millis(300));
    publish(&world, "a", 300).await;
    let first = Running::start(&world);
    eventually("some are sent", || world.send.sent().len() > 50).await;
    let second = Running::start(&world);
    publish(&world, "b", 300).await;
    eventually("more are sent", || world.send.sent().len() > 300).await;
    check_watermarks(&world);
    assert!(first.stop().await.is_ok());
    check_watermarks(&world);
    // Those that found no room went through a tier.
    eventually("all has ended", || completed(&world) == 600).await;
    until_committed(&world).await;
    check_watermarks(&world);
    assert!(second.stop().await.is_ok());
    let sends = sends(&world.send.sent());
    assert_eq!(sends.len(), 600);
    let twice: Vec<_> = sends.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// What ends while a revocation waits is committed with it, so the next owner does not even read it.
#[tokio::test(start_paused = true)]
async fn a_revocation_waits_for_attempts_that_end_soon() {
    let world = World::new(1, Faults::default());
    world.send.hold();
    publish(&world, "a", 3).await;
    let only = Running::start(&world);
    eventually("attempts run", || world.send.running() == 3).await;
    world.log.inner.revoke(0, false);
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.send.answer(3);
    until_committed(&world).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = |event: &StoreEvent| matches!(event, StoreEvent::Refused(_));
    assert!(!world.store.events().iter().any(refused));
    assert!(only.stop().await.is_ok());
}

/// One dies with its attempts: the other one takes over when the leases are over, and loses nothing.
#[tokio::test(start_paused = true)]
async fn a_killed_member_loses_nothing() {
    let world = World::new(4, Faults::default());
    world.send.takes(Duration::from_secs(1));
    publish(&world, "a", 100).await;
    let first = Running::start(&world);
    eventually("attempts run", || world.send.running() > 10).await;
    first.kill().await;
    let interrupted = world.send.sent().len();
    check_watermarks(&world);
    let second = Running::start(&world);
    until_committed(&world).await;
    eventually("all has ended", || completed(&world) == 100).await;
    assert!(second.stop().await.is_ok());
    assert!(world.send.sent().len() <= 100 + interrupted);
    assert!(sends(&world.send.sent()).values().all(|count| *count <= 2));
}

/// A lost ownership (session expired) commits nothing of the old epoch; the records are read again and are duplicates.
#[tokio::test(start_paused = true)]
async fn a_lost_assignment_commits_nothing_late() {
    let world = World::new(1, Faults::default());
    world.send.hold();
    publish(&world, "a", 5).await;
    let only = Running::start(&world);
    eventually("attempts run", || world.send.running() == 5).await;
    world.log.inner.revoke(0, true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The attempts of the old epoch end now. The new epoch has the same records, and waits for the claims.
    world.send.answer(5);
    eventually("the attempts end", || world.send.running() == 0).await;
    until_committed(&world).await;
    check_watermarks(&world);
    assert_eq!(world.send.sent().len(), 5);
    assert!(only.stop().await.is_ok());
}

/// A record with two deliveries is read again under a new epoch: the end of one of them in both epochs is not the end of
/// two.
#[tokio::test(start_paused = true)]
async fn an_end_of_a_lost_epoch_does_not_count_in_the_next_one() {
    let mut world = World::new(1, Faults::default());
    let billing = world.destinations["billing"].clone();
    world.destinations.insert("audit".to_owned(), billing);
    world.routes[0].to.push("audit".to_owned());
    world.send.hold();
    publish(&world, "a", 1).await;
    let only = Running::start(&world);
    eventually("attempts run", || world.send.running() == 2).await;
    world.log.inner.revoke(0, true);
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.send.answer(1);
    eventually("one has ended", || completed(&world) == 1).await;
    // Shorter than a repeat parks, longer than its looks are apart.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 0);
    world.send.answer(1);
    until_committed(&world).await;
    assert_eq!(completed(&world), 2);
    assert_eq!(world.send.sent().len(), 2);
    assert!(only.stop().await.is_ok());
}

/// Ownership that flaps while everything is slow.
#[tokio::test(start_paused = true)]
async fn flapping_ownership_never_commits_past_a_gap() {
    let world = World::new(3, Faults::default());
    world.send.takes(Duration::from_millis(700));
    world.send.script([status(204), status(500), status(204)]);
    publish(&world, "a", 200).await;
    let members = [Running::start(&world), Running::start(&world)];
    for round in 0..30 {
        tokio::time::sleep(Duration::from_millis(170)).await;
        world.log.inner.revoke(round % 3, round % 4 == 0);
        check_watermarks(&world);
    }
    until_committed(&world).await;
    check_watermarks(&world);
    for member in members {
        assert!(member.stop().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_attempts_end_and_commits_them() {
    let world = World::new(1, Faults::default());
    world.send.takes(Duration::from_secs(4));
    publish(&world, "a", 3).await;
    let only = Running::start(&world);
    eventually("attempts run", || world.send.running() == 3).await;
    only.shutdown.cancel();
    tokio::task::yield_now().await;
    publish(&world, "b", 3).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!only.task.is_finished());
    assert!(only.stop().await.is_ok());
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 3);
    assert_eq!(world.send.sent().len(), 3, "no new work");
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_ever() {
    let world = World::new(1, Faults::default());
    publish(&world, "a", 1).await;
    let only = Running::start(&world);
    eventually("the first is delivered", || {
        world.store.inner.rows().len() == 1
    })
    .await;
    until_committed(&world).await;
    world.send.hold();
    publish(&world, "b", 2).await;
    eventually("attempts run", || world.send.running() == 2).await;
    let asked_ms = world.clock.now_ms();
    assert!(only.stop().await.is_ok());
    let grace_ms = i64::try_from(world.config.shutdown_grace.as_millis()).unwrap();
    assert!(world.clock.now_ms() - asked_ms <= grace_ms + 1_000);
    assert_eq!(world.send.running(), 0);
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 1);
}

/// A defect ends the process with an error; its record stays unfinished, what is below it is committed.
#[tokio::test(start_paused = true)]
async fn a_panic_ends_the_run_and_finishes_nothing() {
    let world = World::new(1, Faults::default());
    world.send.panic_at("a2");
    publish(&world, "a", 5).await;
    let only = Running::start(&world);
    let result = only.task.await.unwrap();
    assert!(matches!(result, Err(RunError::Panicked(_))), "{result:?}");
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 2);
    check_watermarks(&world);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_does_not_answer_is_asked_again() {
    let world = World::new(1, Faults::default());
    let only = Running::start(&world);
    world.log.inner.fail_reads(5);
    publish(&world, "a", 5).await;
    until_committed(&world).await;
    assert!(!only.task.is_finished());
    assert!(only.stop().await.is_ok());
}

/// Deliveries that are completed.
fn completed(world: &World) -> usize {
    let rows = world.store.inner.rows();
    let completed = rows.iter().filter(|(_, row)| row.completed_at_ms.is_some());
    completed.count()
}
