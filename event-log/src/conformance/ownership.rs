//! Promises of ownership and commits.

use super::member::{
    Harness, Member, key_of_each_partition, produce_all, produce_in_order, record,
};
use crate::{Consumer, Epoch, EventLog, Watermark};
use schemas::{DelayTier, Topic};
use std::{collections::BTreeSet, time::Duration};
use tokio::time::Instant;

const TIER: DelayTier = DelayTier::SMALLEST;
const STEP: Duration = Duration::from_millis(50);

/// Every assignment has a new epoch, and records carry it.
pub async fn epochs_grow<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    produce_in_order(&log, Topic::Webhooks, "key", 3).await;
    let mut last = Epoch(0);
    for _ in 0..3 {
        let mut member = Member::join_alone(harness, &log).await;
        let lowest = member.owned.values().min().copied().expect("partitions");
        assert!(lowest > last, "{lowest:?} after {last:?}");
        last = member.owned.values().max().copied().expect("partitions");
        // The member checks that the records carry the epoch of their partition.
        member.receive(10, 3).await;
        member.close(Vec::new()).await;
    }
}

/// Without a commit, reading starts at the first record, also of what was produced before anybody read.
pub async fn never_starts_at_the_end<H: Harness>(harness: &H) {
    let mut log = harness.fresh().await;
    produce_in_order(&log, Topic::Webhooks, "key", 5).await;
    for _ in 0..2 {
        let mut member = Member::join_alone(harness, &log).await;
        member.receive(10, 5).await;
        assert_eq!(member.records[0].offset, 0);
        member.close(Vec::new()).await;
        log = harness.reopen(log).await;
    }
}

/// Another consumer, in this process or after a restart, goes on exactly at the committed watermark.
pub async fn goes_on_at_the_watermark<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let partition = produce_in_order(&log, Topic::Webhooks, "key", 10).await;
    let mut member = Member::join_alone(harness, &log).await;
    member.receive(10, 10).await;
    // The last note of a topic and partition counts.
    for next_offset in [2, 7, 4] {
        let epoch = member.owned[&partition];
        let watermark = Watermark {
            topic: Topic::Webhooks,
            partition,
            epoch,
            next_offset,
        };
        member.consumer().commit(vec![watermark]);
    }
    member.close(Vec::new()).await;
    let mut member = Member::join_alone(harness, &log).await;
    member.receive(10, 6).await;
    assert_eq!(member.records[0].offset, 4);
    let epoch = member.owned[&partition];
    let watermark = Watermark {
        topic: Topic::Webhooks,
        partition,
        epoch,
        next_offset: 6,
    };
    member.close(vec![watermark]).await;
    let log = harness.reopen(log).await;
    let mut member = Member::join_alone(harness, &log).await;
    member.receive(10, 4).await;
    assert_eq!(member.records[0].offset, 6);
}

/// What close is given is committed when it returns.
pub async fn committed_at_close<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let keys = key_of_each_partition(log.partitions());
    let count = keys.len();
    produce_all(
        &log,
        keys.iter()
            .map(|key| record(Topic::Webhooks, key, "old"))
            .collect(),
    )
    .await;
    produce_all(
        &log,
        keys.iter()
            .map(|key| record(Topic::Delay(TIER), key, "old"))
            .collect(),
    )
    .await;
    let mut member = Member::join_alone(harness, &log).await;
    harness.pass(TIER.wait().as_secs() * 1_000 + 100).await;
    member.receive(10, 2 * count).await;
    let watermarks = member.watermarks();
    assert_eq!(watermarks.len(), 2 * count);
    member.close(watermarks).await;
    let log = harness.reopen(log).await;
    let mut member = Member::join_alone(harness, &log).await;
    produce_all(
        &log,
        keys.iter()
            .map(|key| record(Topic::Webhooks, key, "new"))
            .collect(),
    )
    .await;
    member.receive(10, count).await;
    assert!(
        member.records.iter().all(|record| record.value == "new"),
        "{:?}",
        member.records
    );
}

/// A watermark of an ownership that has ended changes nothing.
pub async fn old_epochs_commit_nothing<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let partition = produce_in_order(&log, Topic::Webhooks, "key", 10).await;
    let watermark = |epoch, next_offset| Watermark {
        topic: Topic::Webhooks,
        partition,
        epoch,
        next_offset,
    };
    let mut member = Member::join_alone(harness, &log).await;
    member.receive(10, 10).await;
    let old = member.owned[&partition];
    member.close(vec![watermark(old, 4)]).await;
    let mut member = Member::join_alone(harness, &log).await;
    member.receive(10, 6).await;
    member.consumer().commit(vec![watermark(old, 10)]);
    member.close(vec![watermark(old, 9)]).await;
    let mut member = Member::join_alone(harness, &log).await;
    member.receive(10, 6).await;
    assert_eq!(member.records[0].offset, 4);
}

/// Where only one consumer may be, a second one is refused as long as the first is there.
pub async fn one_consumer_where_only_one_may<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    if harness.peer(&log).await.is_some() {
        return;
    }
    let member = Member::join_alone(harness, &log).await;
    assert!(
        log.consumer().await.is_err(),
        "a second consumer was let in"
    );
    drop(member);
    Member::join_alone(harness, &log)
        .await
        .close(Vec::new())
        .await;
}

/// Whoever owns a partition of the webhooks reads that partition of the tiers, and nobody else does.
pub async fn delay_follows_ownership<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let Some(peer) = harness.peer(&log).await else {
        return;
    };
    let keys = key_of_each_partition(log.partitions());
    let mut one = Member::join_alone(harness, &log).await;
    let mut two = Member::join(harness, &peer).await;
    share(harness, &mut one, &mut two, log.partitions()).await;
    for topic in [Topic::Delay(TIER), Topic::Webhooks] {
        produce_all(
            &log,
            keys.iter().map(|key| record(topic, key, "x")).collect(),
        )
        .await;
    }
    harness.pass(TIER.wait().as_secs() * 1_000 + 100).await;
    let deadline = Instant::now() + harness.patience();
    while one.records.len() + two.records.len() < 2 * keys.len() {
        assert!(
            Instant::now() < deadline,
            "{} + {}",
            one.records.len(),
            two.records.len()
        );
        // The members check that they own what they are given.
        tokio::join!(one.step(10, STEP), two.step(10, STEP));
    }
    for member in [&one, &two] {
        let partitions = |delay: bool| {
            let records = member.records.iter();
            let of_kind = records.filter(move |record| record.topic.delay().is_some() == delay);
            of_kind
                .map(|record| record.partition)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(partitions(true), partitions(false));
    }
}

/// What a revocation is answered with is committed before somebody else reads; and when one leaves, the other takes over.
pub async fn committed_at_revocation<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let Some(peer) = harness.peer(&log).await else {
        return;
    };
    let keys = key_of_each_partition(log.partitions());
    let records = |value: &str| -> Vec<_> {
        keys.iter()
            .map(|key| record(Topic::Webhooks, key, value))
            .collect()
    };
    produce_all(&log, records("old")).await;
    let mut one = Member::join_alone(harness, &log).await;
    one.receive(10, keys.len()).await;
    let mut two = Member::join(harness, &peer).await;
    share(harness, &mut one, &mut two, log.partitions()).await;
    produce_all(&log, records("new")).await;
    let moved = two.owned.len();
    let deadline = Instant::now() + harness.patience();
    while two.records.len() < moved {
        assert!(
            Instant::now() < deadline,
            "{} of {moved} came",
            two.records.len()
        );
        tokio::join!(one.step(10, STEP), two.step(10, STEP));
    }
    assert!(
        two.records.iter().all(|record| record.value == "new"),
        "{:?}",
        two.records
    );
    let watermarks = two.watermarks();
    two.close(watermarks).await;
    let all = keys.len();
    one.until(10, "everything to come back", |one| one.owned.len() == all)
        .await;
    produce_all(&log, records("last")).await;
    let before = one.records.len();
    one.until(10, "the last records", |one| {
        one.records[before..]
            .iter()
            .filter(|record| record.value == "last")
            .count()
            == all
    })
    .await;
}

/// Steps both until they share the partitions.
async fn share<H: Harness, C: Consumer>(
    harness: &H,
    one: &mut Member<C>,
    two: &mut Member<C>,
    partitions: u32,
) {
    let deadline = Instant::now() + harness.patience();
    let shared = |one: &Member<C>, two: &Member<C>| {
        let together: BTreeSet<_> = one.owned.keys().chain(two.owned.keys()).collect();
        together.len() == partitions as usize
            && one.owned.len() + two.owned.len() == partitions as usize
            && !one.owned.is_empty()
            && !two.owned.is_empty()
    };
    while !shared(one, two) {
        assert!(
            Instant::now() < deadline,
            "{:?} and {:?}",
            one.owned,
            two.owned
        );
        tokio::join!(one.step(0, STEP), two.step(0, STEP));
    }
}
