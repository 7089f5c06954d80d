//! How deliveries end without success, and how they live again.

use crate::{
    driver::{Driver, Order, due_ms, put, start},
    fakes::{
        faults::{Faults, Mode, Step},
        send::status,
        store::StoreEvent,
        world::{DAY_MS, START_MS, World, eventually, webhook},
    },
};
use bytes::Bytes;
use dedup_store::Status;
use dispatcher::process::{Finished, Infra, undecodable};
use event_log::{EventLog, Record};
use schemas::{AttemptSummary, Delivery, OutcomeKind, Reason, Topic};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

#[tokio::test(start_paused = true)]
async fn a_redelivered_webhook_opens_an_exhausted_delivery_again() {
    let mut world = World::new(1, Faults::default());
    world
        .destinations
        .get_mut("billing")
        .unwrap()
        .retry
        .attempts_max = 2;
    world.send.script([
        status(500),
        status(503),
        status(500),
        status(502),
        status(204),
    ]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(Order::OldestFirst).await;
    // A repeat that was received before the end is a duplicate.
    world.publish(&webhook("d1", START_MS + 1)).await;
    driver.until_quiet(Order::OldestFirst).await;
    assert_eq!((world.letters().len(), world.send.sent().len()), (1, 2));

    world.clock.advance(60_000);
    world.publish(&webhook("d1", world.clock.now_ms())).await;
    driver.until_quiet(Order::OldestFirst).await;
    let letters = world.letters();
    let attempts: Vec<u32> = world.send.sent().iter().map(|it| it.attempt).collect();
    assert_eq!(attempts, [1, 2, 1, 2]);
    assert_eq!(letters.len(), 2);
    assert_ne!(letters[0].dead_letter_id, letters[1].dead_letter_id);
    for (generation, (letter, last)) in letters.iter().zip([503, 502]).enumerate() {
        assert_eq!(letter.generation as usize, generation);
        assert_eq!((letter.attempts, letter.last_status), (2, Some(last)));
        assert_eq!(letter.history.len(), 2);
    }

    world.clock.advance(60_000);
    world.publish(&webhook("d1", world.clock.now_ms())).await;
    driver.until_quiet(Order::OldestFirst).await;
    let row = world.store.inner.rows().remove(0).1;
    assert_eq!((row.status, row.generation), (Status::Completed, 2));
    // Completed stays ended, however late the repeat; only a replay names a higher generation.
    world
        .publish(&webhook("d1", world.clock.now_ms() + DAY_MS))
        .await;
    driver.until_quiet(Order::OldestFirst).await;
    assert_eq!(world.send.sent().len(), 5);
    let mut replay = webhook("d1", world.clock.now_ms());
    replay.generation = 3;
    world.publish(&replay).await;
    driver.until_quiet(Order::OldestFirst).await;
    assert_eq!(world.send.sent().len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_rejected_delivery_is_not_opened_by_default() {
    let world = World::new(1, Faults::default());
    world.send.script([status(404), status(204)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(Order::OldestFirst).await;
    world.clock.advance(60_000);
    world.publish(&webhook("d1", world.clock.now_ms())).await;
    driver.until_quiet(Order::OldestFirst).await;
    assert_eq!(world.send.sent().len(), 1);
}

/// A record of the first life takes over a claim of the second: the letter tells only of the second.
#[tokio::test(start_paused = true)]
async fn a_later_generation_does_not_tell_of_an_earlier_one() {
    // claim, send, letter, transition, finish; then the claim and the send of the second life.
    let mut world = World::new(1, Faults::at(&[(6, Mode::CrashAfter)]));
    world
        .destinations
        .get_mut("billing")
        .unwrap()
        .retry
        .attempts_max = 1;
    world.send.script([status(500)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    driver.until_quiet(Order::OldestFirst).await;
    let first = world.letters().remove(0);
    assert_eq!(world.faults.trace().len(), 5);

    world.clock.advance(60_000);
    world.publish(&webhook("d1", world.clock.now_ms())).await;
    let again = driver.unfinished().remove(0);
    assert_eq!(driver.take(&again).await, None);
    assert_eq!(world.faults.trace().last(), Some(&Step::Send));

    let left = Delivery {
        fence: Some(Uuid::from_u128(5)),
        history: first.history.clone(),
        ..Delivery::first(webhook("d1", START_MS), "billing")
    };
    let left = put(&world, &left).await;
    world
        .clock
        .advance(due_ms(&left) + DAY_MS / 24 - world.clock.now_ms());
    let finished = driver.take(&left).await.unwrap();
    assert_eq!(finished, Ok(Finished::DeadLettered(Reason::Exhausted)));
    let letter = world.letters().pop().unwrap();
    assert_eq!((letter.generation, letter.attempts), (1, 1));
    let told: Vec<_> = letter
        .history
        .iter()
        .map(|it| (it.attempt, it.outcome))
        .collect();
    assert_eq!(told, [(1, OutcomeKind::Interrupted)]);
    let token = |history: &[AttemptSummary]| history.last().map(|it| it.token);
    assert_ne!(token(&letter.history), token(&first.history));
    driver.until_quiet(Order::OldestFirst).await;
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_record_is_dead_lettered_raw() {
    let world = World::new(1, Faults::default());
    let record = Record {
        topic: Topic::Webhooks,
        key: Bytes::from_static(b"\xffkey"),
        value: Bytes::from_static(b"no avro \0\xff"),
        headers: vec![("traceparent".to_owned(), Bytes::from_static(b"00-a-b-01"))],
    };
    world.log.inner.produce(record.clone()).await.unwrap();
    let received = world.log.inner.records(Topic::Webhooks).remove(0);
    let path = world.path();
    let owned = CancellationToken::new();
    // Again and again, as after crashes: always the same letter.
    for _ in 0..2 {
        world.log.inner.fail_produces(3, false);
        let finished = undecodable(&path, &received, "what the codec said", &owned).await;
        assert_eq!(finished, Ok(Finished::DeadLettered(Reason::Undecodable)));
    }
    let letters = world.letters();
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0].dead_letter_id, letters[1].dead_letter_id);
    assert_eq!(letters[0].body, record.value);
    assert_eq!(letters[0].detail, "what the codec said");
    assert_eq!(letters[0].origin.topic, "fencepost.webhooks");
    let published = world.log.inner.records(Topic::DeadLetters).remove(0);
    assert_eq!(published.key, record.key);
    assert!(published.headers.contains(&record.headers[0]));

    world.log.inner.fail_produces(1_000, false);
    let ends = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        owned.cancel();
    };
    let (finished, ()) = tokio::join!(undecodable(&path, &received, "", &owned), ends);
    assert_eq!(finished, Err(Infra::Abandoned));
    assert_eq!(world.letters().len(), 2);
}

/// Neither the row nor the record moves on before the letter is durable.
#[tokio::test(start_paused = true)]
async fn a_letter_that_can_not_be_published_finishes_nothing() {
    let world = World::new(1, Faults::default());
    world.send.script([status(404)]);
    world.publish(&webhook("d1", START_MS)).await;
    world.log.inner.fail_produces(14, false);
    let record = world.log.inner.records(Topic::Webhooks).remove(0);
    let job = start(&world, &Arc::new(world.path()), &record);
    let tries = || {
        let trace = world.faults.trace();
        trace.iter().filter(|step| **step == Step::Letter).count()
    };
    eventually("ten tries", || tries() >= 10).await;
    assert!(!job.is_finished());
    assert_eq!(world.store.inner.rows()[0].1.status, Status::Processing);
    let moved = |event: &StoreEvent| matches!(event, StoreEvent::Moved { .. });
    assert!(!world.store.events().iter().any(moved));
    // Meanwhile the claim is kept.
    assert!(world.store.inner.rows()[0].1.lease_until_ms > world.clock.now_ms());
    assert_eq!(
        job.await.unwrap(),
        Ok(Finished::DeadLettered(Reason::Rejected))
    );
    assert_eq!((tries(), world.letters().len()), (15, 1));
    assert_eq!(world.send.sent().len(), 1);
}

/// A dispatcher dies between the hop and the transition: the hop tells what came of the attempt, the takeover does not
/// tell it again.
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_outcome_is_known_is_not_told_as_interrupted() {
    // claim, send, hop, transition.
    let world = World::new(1, Faults::at(&[(3, Mode::CrashBefore)]));
    world.send.script([status(500), status(404)]);
    world.publish(&webhook("d1", START_MS)).await;
    let mut driver = Driver::new(&world);
    let first = driver.unfinished().remove(0);
    assert_eq!(driver.take(&first).await, None);
    let hop = driver.unfinished().pop().unwrap();
    assert_ne!(hop.topic, Topic::Webhooks);
    world.clock.advance(60_000);
    let finished = driver.take(&hop).await.unwrap();
    assert_eq!(finished, Ok(Finished::DeadLettered(Reason::Rejected)));
    let events = world.store.events();
    let took_over = |event: &StoreEvent| matches!(event, StoreEvent::Claimed(held) if held.interrupted.is_some());
    assert!(events.iter().any(took_over), "{events:?}");
    let letter = world.letters().remove(0);
    let told: Vec<_> = letter.history.iter().map(|it| it.outcome).collect();
    assert_eq!(told, [OutcomeKind::Failed, OutcomeKind::Rejected]);
    assert_eq!(letter.attempts, 2);
    driver.until_quiet(Order::OldestFirst).await;
    assert_eq!(world.send.sent().len(), 2);
}
