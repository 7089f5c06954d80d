//! Promises of the delay tiers.

use super::member::{Harness, Member, produce_in_order};
use crate::{Consumer as _, EventLog as _};
use schemas::{DelayTier, Topic};
use std::time::Duration;
use tokio::time::Instant;

const TIER: DelayTier = DelayTier::SMALLEST;
const STEP_MS: u64 = 100;

/// A record of a tier comes when its wait has passed: not before, and in the order in which records were appended.
pub async fn delay_is_never_early_and_fifo<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let topic = Topic::Delay(TIER);
    produce_in_order(&log, topic, "key", 3).await;
    // The first three are met shortly before they are due, the others as soon as they are written.
    harness
        .pass(u64::try_from(TIER.wait_ms()).expect("positive") - 8 * STEP_MS)
        .await;
    let mut member = Member::join_alone(harness, &log).await;
    let deadline = Instant::now() + harness.patience();
    let (mut seen, mut late) = (0, false);
    while member.records.len() < 6 {
        assert!(
            Instant::now() < deadline,
            "{} of 6 came",
            member.records.len()
        );
        member.step(10, Duration::from_millis(50)).await;
        let now_ms = harness.now_ms();
        for record in &member.records[seen..] {
            let waited_ms = now_ms - record.appended_at_ms;
            assert!(
                waited_ms >= TIER.wait_ms(),
                "handed out after {waited_ms} ms"
            );
        }
        seen = member.records.len();
        if seen >= 3 && !late {
            produce_in_order(&log, topic, "key", 3).await;
            late = true;
        }
        harness.pass(STEP_MS).await;
    }
    let offsets: Vec<_> = member.records.iter().map(|record| record.offset).collect();
    assert!(offsets.is_sorted(), "{offsets:?}");
    // A record that is not due yet is there all the same.
    let page = log
        .read(topic, member.records[0].partition, 0, 10)
        .await
        .expect("a page");
    assert_eq!(page.records.len(), 6);
}

/// A backlog of main records does not starve due delay records, nor the other way round.
pub async fn main_and_delay_share_the_room<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let topics = [Topic::Webhooks, Topic::Delay(TIER)];
    let mut partition = 0;
    for topic in topics {
        partition = produce_in_order(&log, topic, "key", 100).await;
    }
    harness.pass(TIER.wait().as_secs() * 1_000 + STEP_MS).await;
    let mut member = Member::join_alone(harness, &log).await;
    // Both have heard of what there is, so that neither has a head start.
    let deadline = Instant::now() + harness.patience();
    while !topics.iter().all(|topic| {
        let positions = member.consumer().positions();
        positions.iter().any(|position| {
            (position.topic, position.partition) == (*topic, partition)
                && position.end_offset == Some(100)
        })
    }) {
        assert!(Instant::now() < deadline, "positions never told the ends");
        member.step(0, Duration::from_millis(50)).await;
    }
    member.receive(4, 200).await;
    let first: Vec<_> = member.records.iter().take(100).collect();
    let main = first
        .iter()
        .filter(|record| record.topic == Topic::Webhooks)
        .count();
    assert!(
        (20..=80).contains(&main),
        "{main} of the first 100 were main records"
    );
}
