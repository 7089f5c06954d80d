//! Promises of next and read.

use super::member::{
    Harness, Member, key_of_each_partition, produce_all, produce_in_order, record,
};
use crate::{Consumer as _, EventLog as _, Position, Room};
use futures::FutureExt as _;
use schemas::{DelayTier, Topic};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::{self, Instant};

/// Everything comes once, in the order of the offsets, across batches, while records are still being added; and the
/// order of the offsets is the order in which a producer that waits had its acknowledgements.
pub async fn order_and_no_loss<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let records = |from: u32| {
        (from..from + 150).map(|n| record(Topic::Webhooks, &format!("k{}", n % 20), n.to_string()))
    };
    produce_all(&log, records(0).collect()).await;
    let mut member = Member::join_alone(harness, &log).await;
    produce_all(&log, vec![record(Topic::DeadLetters, "k1", "dead")]).await;
    member.receive(7, 40).await;
    produce_all(&log, records(150).collect()).await;
    let partition = produce_in_order(&log, Topic::Webhooks, "ordered", 10).await;
    member.receive(7, 310).await;
    let values: BTreeSet<_> = member
        .records
        .iter()
        .map(|record| record.value.clone())
        .collect();
    assert_eq!(
        (values.len(), member.records.len()),
        (300, 310),
        "10 values come twice by intent"
    );
    let ordered = member
        .records
        .iter()
        .filter(|record| record.key == "ordered");
    let ordered: Vec<_> = ordered.map(|record| record.value.clone()).collect();
    let expected: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    assert_eq!(ordered, expected, "partition {partition}");
}

/// Never more records than there is room for; ownership comes without room, records do not.
pub async fn room_is_respected<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    produce_in_order(&log, Topic::Webhooks, "key", 20).await;
    let mut member = Member::join_alone(harness, &log).await;
    for _ in 0..5 {
        member.step(0, Duration::from_millis(50)).await;
    }
    assert_eq!(member.records, [], "no room, no records");
    member.receive(1, 3).await;
    member.receive(3, 10).await;
    member.step(0, Duration::from_millis(50)).await;
    member.receive(1_000, 20).await;
    let offsets: BTreeSet<_> = member.records.iter().map(|record| record.offset).collect();
    assert_eq!(offsets.len(), 20, "nothing twice");
}

/// A partition that is full gets nothing, the others go on meanwhile, and it goes on itself when there is room again.
pub async fn a_full_partition_waits_alone<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let keys = key_of_each_partition(log.partitions());
    let others = (keys.len() - 1) * 100;
    let records = (0..100).flat_map(|n: u32| {
        let of_each = keys.iter();
        of_each.map(move |key| record(Topic::Webhooks, key, n.to_string()))
    });
    produce_all(&log, records.collect()).await;
    let mut member = Member::join_alone(harness, &log).await;
    let of_first = |member: &Member<_>| {
        let first = member.records.iter();
        first.filter(|record| record.partition == 0).count()
    };
    // Some of it is handed out, so that more of it may be read already.
    let mut room = Room::new(20);
    room.limit(0, 3);
    member
        .until(room.clone(), "records of the first partition", |member| {
            of_first(member) > 0
        })
        .await;
    let before = of_first(&member);
    room.limit(0, 0);
    member
        .until(room.clone(), "every record of the others", |member| {
            member.records.len() - of_first(member) == others
        })
        .await;
    assert_eq!(of_first(&member), before, "it was full");
    member.step(room.clone(), Duration::from_millis(50)).await;
    assert_eq!(of_first(&member), before, "it is full");
    room.limit(0, 7);
    member.receive(room, others + 100).await;
    let offsets: BTreeSet<_> = member
        .records
        .iter()
        .map(|record| (record.partition, record.offset))
        .collect();
    assert_eq!(offsets.len(), others + 100, "nothing twice");
}

/// Dropping the future of next at any point loses nothing and repeats nothing.
pub async fn dropping_next_loses_nothing<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let mut member = Member::join_alone(harness, &log).await;
    let deadline = Instant::now() + harness.patience();
    let mut produced = 0;
    while member.records.len() < 200 {
        assert!(
            Instant::now() < deadline,
            "lost some: {} of 200 came",
            member.records.len()
        );
        if produced < 200 {
            produce_in_order(&log, Topic::Webhooks, &format!("k{produced}"), 4).await;
            produced += 4;
        }
        // Once is the least that a future can be polled; the others are dropped somewhere in the middle.
        if let Some(Ok(events)) = member.consumer().next(5).now_or_never() {
            member.take(events, 5);
        }
        tokio::task::yield_now().await;
        // A smaller room than the one that the dropped future had.
        member
            .step(2, Duration::from_micros(produced % 7 * 300))
            .await;
    }
    let places = member
        .records
        .iter()
        .map(|record| (record.partition, record.offset));
    assert_eq!(places.collect::<BTreeSet<_>>().len(), 200, "nothing twice");
}

/// Positions say what comes next and how much there is.
pub async fn positions<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let partition = produce_in_order(&log, Topic::Webhooks, "key", 5).await;
    let tier = Topic::Delay(DelayTier::H6);
    produce_in_order(&log, tier, "key", 2).await;
    let mut member = Member::join_alone(harness, &log).await;
    member.receive(3, 3).await;
    let received = i64::try_from(member.records.len()).expect("few");
    let expected = [
        Position {
            topic: Topic::Webhooks,
            partition,
            next_offset: received,
            end_offset: Some(5),
        },
        Position {
            topic: tier,
            partition,
            next_offset: 0,
            end_offset: Some(2),
        },
    ];
    let deadline = Instant::now() + harness.patience();
    loop {
        let positions = member.consumer().positions();
        if expected.iter().all(|expected| positions.contains(expected)) {
            break;
        }
        assert!(Instant::now() < deadline, "{expected:?} in {positions:?}");
        member.step(0, Duration::from_millis(50)).await;
        time::sleep(Duration::from_millis(5)).await;
    }
}

/// Pages cover a topic without gaps and repeats, whether due or not, and stay within what there is.
pub async fn pages<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    for topic in [
        Topic::Webhooks,
        Topic::Delay(DelayTier::H6),
        Topic::DeadLetters,
    ] {
        let partition = produce_in_order(&log, topic, "key", 10).await;
        let mut values = BTreeMap::new();
        let mut next_offset = -5;
        loop {
            let page = log
                .read(topic, partition, next_offset, 3)
                .await
                .expect("a page");
            assert!(
                page.records.len() <= 3 && page.next_offset >= next_offset,
                "{page:?}"
            );
            assert!(
                page.at_end || page.next_offset > next_offset,
                "a page goes on: {page:?}"
            );
            values.extend(
                page.records
                    .into_iter()
                    .map(|record| (record.offset, record.value)),
            );
            next_offset = page.next_offset;
            if page.at_end {
                break;
            }
        }
        let expected: Vec<_> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(values.into_values().collect::<Vec<_>>(), expected);
        let behind = log
            .read(topic, partition, 1_000_000, 3)
            .await
            .expect("a page");
        assert!(behind.records.is_empty() && behind.at_end, "{behind:?}");
        assert_eq!(
            behind.next_offset, next_offset,
            "the end, not what was asked for"
        );
        let empty = log
            .read(topic, (partition + 1) % log.partitions(), 0, 3)
            .await;
        assert!(empty.expect("a page").at_end);
    }
}
