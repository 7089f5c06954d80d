//! No destination harms another, and one that is ill gets well in peace: attempts at once, attempts a second, breaker,
//! overload, and who waits where.

use crate::{
    driver::{hops, put, start},
    fakes::{
        faults::Faults,
        send::{Sent, status},
        world::{START_MS, World, eventually, webhook},
    },
    run::running::{Running, until_committed},
};
use dedup_store::Status;
use dispatcher::{
    RateConfig, RouteConfig,
    outcome::{Outcome, of_status, without_answer},
    process::Finished,
};
use schemas::{Delivery, OutcomeKind, Topic, Webhook};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const SECOND: Duration = Duration::from_secs(1);

/// A world with `billing` for the event `push` and `other` for the event `other`.
fn two(partitions: u32) -> World {
    let mut world = World::new(partitions, Faults::default());
    let billing = world.destinations["billing"].clone();
    world.destinations.insert("other".to_owned(), billing);
    let route = |event: &str, to: &str| RouteConfig {
        source: "github".to_owned(),
        events: Some(vec![event.to_owned()]),
        to: vec![to.to_owned()],
    };
    world.routes = vec![route("push", "billing"), route("other", "other")];
    world
}

fn other(delivery_id: &str) -> Webhook {
    Webhook {
        event_type: "other".to_owned(),
        ..webhook(delivery_id, START_MS)
    }
}

fn sent_to(world: &World, destination: &str) -> Vec<Sent> {
    let mut sent = world.send.sent();
    sent.retain(|it| it.destination == destination);
    sent
}

fn timeout() -> Outcome {
    without_answer(OutcomeKind::Failed, "timeout: no answer in time")
}

fn completed(world: &World) -> usize {
    let rows = world.store.inner.rows();
    rows.iter()
        .filter(|(_, row)| row.status == Status::Completed)
        .count()
}

/// Publishes one webhook for `billing` every 100 ms, thirty of them; the longest time that one took until it was sent.
async fn longest_ms(world: &World, prefix: &str) -> i64 {
    let mut published = BTreeMap::new();
    for at in 0..30 {
        let id = format!("{prefix}{at}");
        world.publish(&webhook(&id, START_MS)).await;
        published.insert(id, world.clock.now_ms());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let count = || {
        let sent = sent_to(world, "billing");
        sent.iter()
            .filter(|it| published.contains_key(&it.delivery_id))
            .count()
    };
    eventually("all are sent", || count() == published.len()).await;
    let took = |it: &Sent| Some(it.at_ms - published.get(&it.delivery_id)?);
    let sent = sent_to(world, "billing");
    sent.iter().filter_map(took).max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_dead_destination_and_a_hot_one_leave_the_others_alone() {
    for takes in [Duration::from_secs(10), Duration::from_millis(200)] {
        let mut world = two(4);
        world.config.in_flight_max = 64;
        let only = Running::start(&world);
        let alone_ms = longest_ms(&world, "alone").await;
        let outcome = match takes.as_secs() {
            0 => status(204),
            _ => timeout(),
        };
        world.send.answers("other", outcome, takes);
        for at in 0..2_000 {
            world.publish(&other(&format!("x{at}"))).await;
        }
        let beside_ms = longest_ms(&world, "beside").await;
        // The clock goes in steps of 50 ms.
        assert!(
            beside_ms <= alone_ms + 100,
            "{alone_ms} {beside_ms} {takes:?}"
        );
        // Nothing was claimed that was not sent.
        let mut tried: Vec<String> = sent_to(&world, "other")
            .into_iter()
            .map(|it| it.delivery_id)
            .collect();
        tried.sort_unstable();
        tried.dedup();
        let rows = world.store.inner.rows();
        let claimed = |key: &str| rows.iter().filter(|(it, _)| it.destination == key).count();
        assert!(claimed("other") <= tried.len() + 16);
        only.kill().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_only_destination_keeps_its_backlog_in_the_log() {
    let mut world = World::new(4, Faults::default());
    world.config.in_flight_max = 64;
    world.send.takes(Duration::from_millis(100));
    for at in 0..1_000 {
        world.publish(&webhook(&format!("d{at}"), START_MS)).await;
    }
    let only = Running::start(&world);
    until_committed(&world).await;
    assert_eq!(world.send.sent().len(), 1_000);
    assert_eq!(hops(&world).len(), 0, "nothing was put off");
    assert!(only.stop().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_breaker_opens_and_comes_back_with_growing_probes() {
    let mut world = World::new(1, Faults::default());
    world.config.in_flight_max = 64;
    let takes = Duration::from_millis(500);
    world.send.answers("billing", status(500), takes);
    for at in 0..200 {
        world.publish(&webhook(&format!("d{at}"), START_MS)).await;
    }
    let only = Running::start(&world);
    tokio::time::sleep(SECOND * 4).await;
    // One full round at once; ten failures in a row open it.
    assert_eq!(world.send.sent().len(), 16);
    assert_eq!(
        world.store.inner.rows().len(),
        16,
        "the others are unclaimed"
    );

    tokio::time::sleep(SECOND * 20).await;
    let failing = world.send.sent().len();
    // Probes after 5 and after 10 further seconds, one each.
    assert_eq!(failing, 18);
    world.send.answers("billing", status(204), takes);
    eventually("all are delivered", || completed(&world) == 200).await;
    let mut rounds: BTreeMap<i64, usize> = BTreeMap::new();
    for it in &world.send.sent()[failing..] {
        // Attempts of one round begin together, give or take a step of the clock.
        let round = (it.at_ms - world.send.sent()[failing].at_ms + 250) / 500;
        *rounds.entry(round).or_default() += 1;
    }
    let most: Vec<usize> = rounds.values().copied().collect();
    assert_eq!(most[0], 1, "{rounds:?}");
    assert!(most[1] <= 2 && most[2] <= 4 && most[3] <= 8, "{rounds:?}");
    assert!(most.iter().all(|count| *count <= 16), "{rounds:?}");
    // What never was tried has its first attempt: being put off used up none.
    let attempts = world.send.sent();
    let firsts = attempts[failing..].iter().filter(|it| it.attempt == 1);
    assert!(firsts.count() >= 182 - 2);
    assert!(only.stop().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn without_a_breaker_it_is_tried_for_as_long_as_there_is_something_to_try() {
    let mut world = World::new(1, Faults::default());
    world
        .destinations
        .get_mut("billing")
        .unwrap()
        .breaker
        .enabled = false;
    world.send.script([status(500)]);
    for at in 0..200 {
        world.publish(&webhook(&format!("d{at}"), START_MS)).await;
    }
    let only = Running::start(&world);
    until_committed(&world).await;
    assert!(world.send.sent().len() >= 200);
    assert!(only.stop().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_429_keeps_everybody_out_for_its_retry_after() {
    let world = World::new(1, Faults::default());
    let throttled = of_status(429, Some(b"20"), &[], 0);
    world.send.script([throttled, status(204)]);
    world.publish(&webhook("d0", START_MS)).await;
    let only = Running::start(&world);
    eventually("the first is sent", || world.send.sent().len() == 1).await;
    for at in 1..50 {
        world.publish(&webhook(&format!("d{at}"), START_MS)).await;
    }
    eventually("all are delivered", || completed(&world) == 50).await;
    let sent = world.send.sent();
    assert_eq!(sent.len(), 51);
    let back_ms = sent[0].at_ms + 20_000;
    assert!(sent[1..].iter().all(|it| it.at_ms >= back_ms), "{sent:?}");
    assert!(
        sent[1..]
            .iter()
            .all(|it| it.attempt == if it.delivery_id == "d0" { 2 } else { 1 })
    );
    assert!(only.stop().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_of_a_day_keeps_others_out_for_ten_minutes() {
    let world = World::new(1, Faults::default());
    let throttled = of_status(429, Some(b"86400"), &[], 0);
    world.send.script([throttled, status(204)]);
    world.publish(&webhook("d0", START_MS)).await;
    let only = Running::start(&world);
    eventually("the first is sent", || world.send.sent().len() == 1).await;
    world.publish(&webhook("d1", START_MS)).await;
    tokio::time::sleep(Duration::from_secs(590)).await;
    assert_eq!(world.send.sent().len(), 1);
    eventually("the other one is delivered", || completed(&world) == 1).await;
    let sent = world.send.sent();
    let ids: Vec<_> = sent.iter().map(|it| it.delivery_id.as_str()).collect();
    assert_eq!(ids, ["d0", "d1"]);
    let after_ms = sent[1].at_ms - sent[0].at_ms;
    assert!((600_000..1_300_000).contains(&after_ms), "{after_ms}");
    assert!(only.stop().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_rate_holds_in_every_second_and_only_what_waits_too_long_is_put_off() {
    let mut world = World::new(1, Faults::default());
    world.destinations.get_mut("billing").unwrap().rate = Some(RateConfig {
        per_second: 10.0,
        burst: 5,
    });
    for at in 0..60 {
        world.publish(&webhook(&format!("d{at}"), START_MS)).await;
    }
    let only = Running::start(&world);
    eventually("all are delivered", || completed(&world) == 60).await;
    let sent = world.send.sent();
    assert_eq!(sent.len(), 60);
    for (at, first) in sent.iter().enumerate() {
        for (more, last) in sent[at..].iter().enumerate() {
            let most = 5 + (last.at_ms - first.at_ms) / 100;
            assert!(i64::try_from(more + 1).unwrap() <= most, "{at} {more}");
        }
    }
    // The burst, and what has a token within a second.
    let early = sent.iter().filter(|it| it.at_ms < START_MS + 1_500).count();
    assert!((14..=20).contains(&early), "{early}");
    assert!(only.stop().await.is_ok());
}

/// A retry and a first attempt are served in turn, whoever came first.
#[tokio::test(start_paused = true)]
async fn first_attempts_and_retries_share_the_room() {
    let mut world = World::new(1, Faults::default());
    world.destinations.get_mut("billing").unwrap().concurrency = 1;
    world.send.takes(Duration::from_millis(50));
    let path = Arc::new(world.path());
    let mut jobs = Vec::new();
    for at in 0..8 {
        world
            .publish(&webhook(&format!("first{at}"), START_MS))
            .await;
    }
    for record in world.log.inner.records(Topic::Webhooks) {
        jobs.push(start(&world, &path, &record));
    }
    tokio::task::yield_now().await;
    for at in 0..8 {
        let retry = Delivery {
            attempt: 2,
            ..Delivery::first(webhook(&format!("retry{at}"), START_MS), "billing")
        };
        let record = put(&world, &retry).await;
        jobs.push(start(&world, &path, &record));
    }
    for job in jobs {
        assert_eq!(job.await.unwrap(), Ok(Finished::Delivered));
    }
    let sent = world.send.sent();
    assert_eq!(sent.len(), 16);
    for half in [&sent[..8], &sent[8..]] {
        let firsts = half.iter().filter(|it| it.attempt == 1).count();
        assert!((3..=5).contains(&firsts), "{sent:?}");
    }
}

/// Whoever waits for room and is given up leaves nothing behind: neither a place nor a token.
#[tokio::test(start_paused = true)]
async fn who_stops_waiting_is_forgotten() {
    let mut world = World::new(1, Faults::default());
    world.destinations.get_mut("billing").unwrap().concurrency = 1;
    world.send.hold();
    let path = Arc::new(world.path());
    for at in 0..4 {
        world.publish(&webhook(&format!("d{at}"), START_MS)).await;
    }
    let records = world.log.inner.records(Topic::Webhooks);
    let jobs: Vec<_> = records
        .iter()
        .map(|record| start(&world, &path, record))
        .collect();
    eventually("an attempt", || world.send.running() == 1).await;
    for job in &jobs[1..] {
        job.abort();
    }
    tokio::task::yield_now().await;
    world.send.answer(1);
    for (at, job) in jobs.into_iter().enumerate() {
        assert_eq!(job.await.is_ok(), at == 0);
    }
    let again = start(&world, &path, &records[3]);
    world.send.answer(1);
    assert_eq!(again.await.unwrap(), Ok(Finished::Delivered));
}
