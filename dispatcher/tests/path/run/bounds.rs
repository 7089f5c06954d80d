//! One record and its deliveries; limits of what is in work.

use crate::{
    fakes::{
        faults::Faults,
        send::status,
        world::{START_MS, World, eventually, webhook},
    },
    run::running::{Running, publish, sends, until_committed},
};
use bytes::Bytes;
use dispatcher::RouteConfig;
use event_log::{EventLog, Record};
use schemas::{DelayTier, Reason, Topic};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn a_record_is_finished_when_all_its_deliveries_are() {
    let mut world = World::new(1, Faults::default());
    let billing = world.destinations["billing"].clone();
    for name in ["audit", "search"] {
        world.destinations.insert(name.to_owned(), billing.clone());
        world.routes[0].to.push(name.to_owned());
    }
    world.send.hold();
    publish(&world, "a", 2).await;
    let only = Running::start(&world);
    eventually("attempts run", || world.send.running() == 6).await;
    world.send.answer(5);
    eventually("five have ended", || world.send.running() == 1).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(world.log.inner.committed(Topic::Webhooks, 0) < 2);
    world.send.answer(1);
    until_committed(&world).await;
    assert_eq!(sends(&world.send.sent()).len(), 6);
    assert_eq!(world.send.sent().len(), 6);
    assert!(only.stop().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_no_route_wants_is_finished() {
    let mut world = World::new(1, Faults::default());
    world.routes = vec![RouteConfig {
        source: "github".to_owned(),
        events: Some(vec!["pull_request.*".to_owned()]),
        to: vec!["billing".to_owned()],
    }];
    publish(&world, "a", 3).await;
    let only = Running::start(&world);
    until_committed(&world).await;
    assert_eq!(
        (world.send.sent(), world.store.inner.rows()),
        (vec![], vec![])
    );
    assert!(only.stop().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_is_in_work_has_a_limit() {
    let mut world = World::new(4, Faults::default());
    world.config.in_flight_max = 50;
    world.destinations.get_mut("billing").unwrap().concurrency = 10_000;
    world.send.takes(Duration::from_millis(50));
    publish(&world, "a", 3_000).await;
    let only = Running::start(&world);
    until_committed(&world).await;
    assert!(only.stop().await.is_ok());
    assert_eq!(world.send.sent().len(), 3_000);
    assert!(
        world.send.running_max() <= 50,
        "{}",
        world.send.running_max()
    );
    assert!(
        world.send.running_max() > 25,
        "{}",
        world.send.running_max()
    );
}

/// Fan-out counts: the limit is of deliveries, whatever number of them a record makes.
#[tokio::test(start_paused = true)]
async fn the_limit_holds_with_fan_out() {
    let mut world = World::new(1, Faults::default());
    world.config.in_flight_max = 50;
    let mut billing = world.destinations["billing"].clone();
    billing.concurrency = 10_000;
    for at in 0..10 {
        let name = format!("d{at}");
        world.destinations.insert(name.clone(), billing.clone());
        world.routes[0].to.push(name);
    }
    world.send.takes(Duration::from_millis(50));
    publish(&world, "a", 300).await;
    let only = Running::start(&world);
    until_committed(&world).await;
    assert!(only.stop().await.is_ok());
    assert_eq!(sends(&world.send.sent()).len(), 3_300);
    // The record that passes the limit is taken whole.
    assert!(
        world.send.running_max() < 50 + 11,
        "{}",
        world.send.running_max()
    );
}

#[tokio::test(start_paused = true)]
async fn bodies_in_work_have_a_limit() {
    let mut world = World::new(1, Faults::default());
    world.config.in_flight_bytes_max = 100_000;
    world.destinations.get_mut("billing").unwrap().concurrency = 10_000;
    world.send.takes(Duration::from_millis(50));
    for at in 0..400 {
        let mut webhook = webhook(&format!("a{at}"), START_MS);
        webhook.body = Bytes::from(vec![7; 10_000]);
        world.publish(&webhook).await;
    }
    let only = Running::start(&world);
    until_committed(&world).await;
    assert!(only.stop().await.is_ok());
    assert_eq!(world.send.sent().len(), 400);
    // One record can pass the limit.
    let running_max = world.send.running_max();
    assert!((5..=11).contains(&running_max), "{running_max}");
}

/// An unfinished record holds up its partition when its window is full, and no other.
#[tokio::test(start_paused = true)]
async fn a_full_window_stops_its_partition_alone() {
    let mut world = World::new(2, Faults::default());
    world.config.in_flight_max = 50;
    world.config.partition_window_max = 60;
    publish(&world, "a", 600).await;
    let records = world.log.inner.records(Topic::Webhooks);
    let of = |partition| records.iter().filter(move |it| it.partition == partition);
    let head = of(0).next().unwrap();
    let head = String::from_utf8(head.key.to_vec()).unwrap();
    world.send.hang_at(&head);
    let only = Running::start(&world);
    let end = of(1).last().unwrap().offset + 1;
    eventually("the other partition is worked off", || {
        world.log.inner.committed(Topic::Webhooks, 1) == end
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let keys: Vec<_> = of(0).map(|it| it.key.clone()).collect();
    let sent = world.send.sent();
    let of_first = sent
        .iter()
        .filter(|it| keys.contains(&Bytes::from(it.delivery_id.clone())));
    assert_eq!(of_first.count(), 60);
    assert_eq!(world.log.inner.committed(Topic::Webhooks, 0), 0);
    world.send.answer(1);
    until_committed(&world).await;
    assert_eq!(world.send.sent().len(), 600);
    assert!(only.stop().await.is_ok());
}

/// One partition takes its part of what may be in work; the rest is there when others want it.
#[tokio::test(start_paused = true)]
async fn a_partition_leaves_room_for_the_others() {
    let mut world = World::new(8, Faults::default());
    world.config.in_flight_max = 40;
    world.config.partition_in_flight_max = Some(10);
    world.destinations.get_mut("billing").unwrap().concurrency = 10_000;
    world.send.hold();
    let ids: Vec<_> = (0..1_000).map(|at| format!("a{at}")).collect();
    let in_first = |id: &&String| schemas::partition_for(id.as_bytes(), 8) == 0;
    for id in ids.iter().filter(in_first) {
        world.publish(&webhook(id, START_MS)).await;
    }
    let only = Running::start(&world);
    eventually("its part runs", || world.send.running() == 10).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.send.running(), 10);
    for id in ids.iter().filter(|id| !in_first(id)) {
        world.publish(&webhook(id, START_MS)).await;
    }
    eventually("all that may be runs", || world.send.running() == 40).await;
    world.send.answer(1_000);
    until_committed(&world).await;
    assert_eq!(world.send.running_max(), 40);
    assert!(only.stop().await.is_ok());
}

/// The same for bytes.
#[tokio::test(start_paused = true)]
async fn bytes_of_a_partition_have_a_limit() {
    let mut world = World::new(8, Faults::default());
    world.config.in_flight_bytes_max = 400_000;
    world.config.partition_in_flight_bytes_max = Some(50_000);
    world.destinations.get_mut("billing").unwrap().concurrency = 10_000;
    world.send.takes(Duration::from_millis(50));
    let ids = (0..2_000).map(|at| format!("a{at}"));
    for id in ids.filter(|id| schemas::partition_for(id.as_bytes(), 8) == 0) {
        let mut webhook = webhook(&id, START_MS);
        webhook.body = Bytes::from(vec![7; 10_000]);
        world.publish(&webhook).await;
    }
    let only = Running::start(&world);
    until_committed(&world).await;
    assert!(only.stop().await.is_ok());
    // One record can pass the limit.
    let running_max = world.send.running_max();
    assert!((3..=6).contains(&running_max), "{running_max}");
}

/// One bad record among good ones, retries, and everything committed at last in every topic.
#[tokio::test(start_paused = true)]
async fn a_mixed_load_comes_to_an_end() {
    let world = World::new(2, Faults::default());
    let outcomes: Vec<_> = (0..40).map(|at| status([204, 500, 404][at % 3])).collect();
    world.send.script([outcomes, vec![status(204)]].concat());
    publish(&world, "a", 50).await;
    let bad = Record {
        topic: Topic::Webhooks,
        key: Bytes::from_static(b"bad"),
        value: Bytes::from_static(b"not avro"),
        headers: Vec::new(),
    };
    world.log.inner.produce(bad).await.unwrap();
    let only = Running::start(&world);
    until_committed(&world).await;
    let ended = || {
        let rows = world.store.inner.rows();
        let ended = |row: &dedup_store::Row| row.completed_at_ms.or(row.failed_at_ms).is_some();
        rows.len() == 50 && rows.iter().all(|(_, row)| ended(row))
    };
    eventually("every delivery ends", ended).await;
    let tier = Topic::Delay(DelayTier::S5);
    eventually("the tier is committed", || {
        let records = world.log.inner.records(tier);
        let committed = |partition| world.log.inner.committed(tier, partition);
        records
            .iter()
            .all(|record| record.offset < committed(record.partition))
    })
    .await;
    let reasons = |reason| {
        world
            .letters()
            .iter()
            .filter(|it| it.reason == reason)
            .count()
    };
    assert_eq!(
        (reasons(Reason::Rejected), reasons(Reason::Undecodable)),
        (13, 1)
    );
    assert!(only.stop().await.is_ok());
}
