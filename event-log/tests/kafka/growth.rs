//! Partitions that are added under load, and topics that differ in their partitions meanwhile.

use crate::{
    S5,
    stand::{DEADLINE, Member, Stand, key, keys, record},
};
use event_log::{EventLog as _, kafka::topics::Topics};
use schemas::Topic;
use std::{collections::BTreeSet, path::Path};
use tokio::time::Instant;

/// The webhooks first, by hand: retries crowd into the tiers' old partitions for a while. Then the tiers, whose new
/// partitions are owned already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_the_tiers_have_later_are_read_without_a_restart() {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    let mut member = stand.member().await;
    stand.produce(Topic::Webhooks, 0..20).await;
    member.take(20).await;
    stand.grow(Topic::Webhooks, 4).await;
    own(&mut member, 4).await;
    stand.produce(Topic::Webhooks, 20..60).await;
    stand.produce(S5, 60..80).await;
    let received = member.take(60).await;
    assert_eq!(keys(&received), (20..80).map(key).collect());
    stand.produce_until(Topic::Webhooks, 2, 100).await;
    let mut config = stand.config.clone();
    config.partitions = 4;
    let topics = Topics::connect(&config, Path::new(".")).expect("a client");
    topics.ensure(true).await.expect("level");
    let produced = stand.produce_until(S5, 2, 1_000).await;
    until_keys(&mut member, &produced).await;
    member.close().await;
}

/// The tiers first, as `topics ensure` does it: what lands in partitions that nobody owns yet waits there, and is not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_the_tiers_have_earlier_lose_nothing() {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    let mut member = stand.member().await;
    own(&mut member, 2).await;
    stand.grow(S5, 4).await;
    let produced = stand.produce_until(S5, 2, 0).await;
    stand.grow(Topic::Webhooks, 4).await;
    own(&mut member, 4).await;
    until_keys(&mut member, &produced).await;
    let text = Topics::connect(&stand.config, Path::new("."))
        .expect("a client")
        .verify()
        .await
        .expect_err("five tiers have two");
    assert!(
        text.to_string().contains("fencepost topics ensure"),
        "{text}"
    );
    member.close().await;
}

impl Stand {
    /// Produces records numbered from `from` on until one has landed in partition `at` or behind it; gives the numbers.
    async fn produce_until(&self, topic: Topic, at: u32, from: u32) -> BTreeSet<u32> {
        let deadline = Instant::now() + DEADLINE;
        let mut numbers = BTreeSet::new();
        for number in from.. {
            let appended = self.log.produce(record(topic, number)).await;
            numbers.insert(number);
            if appended.expect("acknowledged").partition >= at {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "the producer sees no new partition"
            );
        }
        numbers
    }
}

async fn own(member: &mut Member, count: usize) {
    let deadline = Instant::now() + DEADLINE;
    while member.owned.len() < count {
        assert!(Instant::now() < deadline, "owns {:?}", member.owned);
        member.step().await;
    }
}

async fn until_keys(member: &mut Member, numbers: &BTreeSet<u32>) {
    let deadline = Instant::now() + DEADLINE;
    let wanted: BTreeSet<_> = numbers.iter().copied().map(key).collect();
    loop {
        let come = keys(&member.records);
        if wanted.is_subset(&come) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{} of {} are missing",
            wanted.difference(&come).count(),
            wanted.len()
        );
        member.step().await;
    }
}
