//! The Kafka log on a real broker: what only brokers, groups and killed processes can get wrong.
//!
//! `FENCEPOST_TEST_KAFKA=host:port` names a broker; every test has its own topics and group there. Without it the tests
//! say so and pass, unless `FENCEPOST_TEST_STACK=required`.
#![cfg(feature = "kafka")]

mod growth;
mod names;
mod stand;
#[cfg(feature = "conformance")]
mod suite;

use event_log::{
    Consumer as _, Epoch, EventLog as _, LogError, ProduceError, Record, Watermark,
    config::{GroupProtocol, KafkaConfig},
    kafka::{
        KafkaLog,
        topics::{Ensured, Topics},
    },
};
use futures::future::join_all;
use runtime::Clock;
use schemas::{DelayTier, Topic, partition_for};
use stand::{
    CHILD, DEADLINE, Killed, Member, Stand, brokers, child, config, fresh_name, key, keys, record,
    watermark,
};
use std::{collections::BTreeMap, path::Path, time::Duration};
use tokio::time::Instant;

const S5: Topic = Topic::Delay(DelayTier::S5);

// === records ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_come_back_as_they_were_from_the_partition_of_their_key() {
    let Some(stand) = Stand::new(4).await else {
        return;
    };
    let mut by_partition: BTreeMap<u32, Vec<(i64, Record)>> = BTreeMap::new();
    let records: Vec<_> = (0..200).map(|n| record(Topic::Webhooks, n)).collect();
    let produced = join_all(
        records
            .iter()
            .map(|record| stand.log.produce(record.clone())),
    )
    .await;
    for (record, appended) in records.into_iter().zip(produced) {
        let appended = appended.expect("acknowledged");
        assert_eq!(appended.partition, partition_for(&record.key, 4));
        let partition = by_partition.entry(appended.partition).or_default();
        partition.push((appended.offset, record));
    }
    for (partition, mut records) in by_partition {
        records.sort_by_key(|(offset, _)| *offset);
        let mut read = Vec::new();
        let mut from = -5;
        loop {
            let page = stand.log.read(Topic::Webhooks, partition, from, 20).await;
            let page = page.expect("a page");
            assert!(page.records.len() <= 20);
            read.extend(page.records);
            from = page.next_offset;
            if page.at_end {
                break;
            }
        }
        assert_eq!(read.len(), records.len());
        for (read, (offset, record)) in read.iter().zip(&records) {
            assert_eq!((read.offset, read.epoch), (*offset, Epoch(0)));
            assert_eq!((&read.key, &read.value), (&record.key, &record.value));
            assert_eq!(read.headers, record.headers);
        }
        let end = stand
            .log
            .read(Topic::Webhooks, partition, i64::MAX, 20)
            .await;
        let end = end.expect("a page");
        assert!(end.at_end && end.records.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_record_fits_and_a_larger_one_is_refused() {
    let Some(stand) = Stand::with(1, |config| config.record_bytes_max = 8 * 1024 * 1024).await
    else {
        return;
    };
    let mut large = record(Topic::Webhooks, 0);
    // Does not compress.
    let mut state = 1_u32;
    let noise = (0..8 * 1024 * 1024 - 100).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    });
    large.value = noise.collect::<Vec<_>>().into();
    stand
        .log
        .produce(large.clone())
        .await
        .expect("acknowledged");
    let mut member = stand.member().await;
    let received = member.take(1).await;
    assert!(received[0].value == large.value);
    large.value = vec![0; 8 * 1024 * 1024].into();
    let refused = stand.log.produce(large).await;
    assert!(matches!(refused, Err(ProduceError::TooLarge { .. })));
    member.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delay_records_come_when_due_and_go_on_behind_their_commit() {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    let mut member = stand.member().await;
    stand.produce(S5, 0..40).await;
    stand.produce(Topic::Webhooks, 0..5).await;
    let received = member.take(45).await;
    let last_main = received
        .iter()
        .rposition(|record| record.topic == Topic::Webhooks);
    assert_eq!(last_main, Some(4), "webhooks do not wait for delay records");
    // `take` looks at the clock for each record: see there.
    for partition in 0..2 {
        let offsets: Vec<_> = received
            .iter()
            .filter(|record| record.topic == S5 && record.partition == partition)
            .map(|record| record.offset)
            .collect();
        assert!(offsets.is_sorted());
    }
    for record in &received {
        member.finish(record, record.offset + 1);
    }
    stand.produce(S5, 40..43).await;
    member.close().await;
    let mut member = stand.member().await;
    let rest = member.take(3).await;
    assert_eq!(keys(&rest), (40..43).map(key).collect());
    member.close().await;
}

// === ownership ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classic_members_hand_partitions_over_at_their_watermarks() {
    hand_over(GroupProtocol::Classic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_protocol_members_hand_partitions_over_at_their_watermarks() {
    hand_over(GroupProtocol::Consumer).await;
}

/// What the first member finished in its last moment, told only in answer to the revocation, does not come again.
async fn hand_over(protocol: GroupProtocol) {
    let change = |config: &mut KafkaConfig| {
        config.group_protocol = protocol;
        if protocol == GroupProtocol::Consumer {
            // Sessions are the broker's.
            config.session_timeout = None;
        }
    };
    let Some(stand) = Stand::with(4, change).await else {
        return;
    };
    let mut first = stand.member().await;
    stand.produce(Topic::Webhooks, 0..100).await;
    let received = first.take(100).await;
    for record in &received {
        first.release_with(record, record.offset + 1);
    }
    let mut second = stand.member().await;
    let deadline = Instant::now() + DEADLINE;
    while second.owned.is_empty() || first.owned.len() == 4 {
        assert!(Instant::now() < deadline, "no hand-over: {:?}", first.owned);
        first.step().await;
        second.step().await;
    }
    stand.produce(Topic::Webhooks, 100..200).await;
    while first.records.len() + second.records.len() < 100 {
        assert!(Instant::now() < deadline, "records missing");
        first.step().await;
        second.step().await;
    }
    assert!(!first.records.is_empty() && !second.records.is_empty());
    let all: Vec<_> = first
        .records
        .drain(..)
        .chain(second.records.drain(..))
        .collect();
    assert_eq!(keys(&all), (100..200).map(key).collect());
    assert_eq!(all.len(), 100, "something came twice");
    second.close().await;
    while first.owned.len() < 4 {
        assert!(Instant::now() < deadline, "partitions did not come back");
        first.step().await;
    }
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_does_not_outlive_the_partition_it_was_meant_for() {
    pause_and_hand_over(Topic::Webhooks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_a_tier_does_not_outlive_the_partition_it_was_meant_for() {
    pause_and_hand_over(S5).await;
}

async fn pause_and_hand_over(topic: Topic) {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    // More than the inbox takes: the first member pauses, as nobody takes from it.
    stand.produce(topic, 0..6_000).await;
    let mut first = stand.member().await;
    first.room = 0;
    let deadline = Instant::now() + DEADLINE;
    // The statistics come every second: by then as much was read as is going to be.
    while first.end_offsets(topic) == 0 {
        assert!(Instant::now() < deadline, "no end offsets");
        first.step().await;
    }
    let mut second = stand.member().await;
    second.room = 0;
    while first.owned.len() != 1 || second.owned.len() != 1 {
        assert!(Instant::now() < deadline, "no hand-over");
        first.step().await;
        second.step().await;
    }
    second.close().await;
    first.room = 500;
    let all = first.take(6_000).await;
    assert_eq!(keys(&all).len(), 6_000);
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watermark_of_an_old_epoch_changes_nothing() {
    let Some(stand) = Stand::new(1).await else {
        return;
    };
    stand.produce(Topic::Webhooks, 0..10).await;
    let mut member = stand.member().await;
    let received = member.take(10).await;
    member.finish(&received[2], 3);
    let last = &received[9];
    member.consumer.commit(vec![Watermark {
        epoch: Epoch(last.epoch.0 - 1),
        ..watermark(last, 10)
    }]);
    stand.until_committed(Topic::Webhooks, 0, 3).await;
    member.close().await;
    let mut member = stand.member().await;
    assert_eq!(member.take(7).await[0].offset, 3);
    member.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_dropped_leaves_its_group() {
    let Some(stand) = Stand::with(1, |config| {
        config.session_timeout = Some(Duration::from_secs(60))
    })
    .await
    else {
        return;
    };
    stand.produce(Topic::Webhooks, 0..3).await;
    let mut member = stand.member().await;
    let received = member.take(3).await;
    member.finish(&received[1], 2);
    drop(member);
    // Long before the session of the first is over.
    let mut member = stand.member().await;
    assert_eq!(member.take(1).await[0].offset, 2);
    member.close().await;
}

// === a killed process ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_another_goes_on_at_the_commit() {
    let Some(stand) = Stand::new(2).await else {
        return;
    };
    stand.produce(Topic::Webhooks, 0..50).await;
    let mut child = Killed(child(&stand.config));
    for partition in 0..2 {
        stand.until_committed(Topic::Webhooks, partition, 5).await;
    }
    child.0.kill().expect("killed");
    child.0.wait().expect("dead");
    let started = Instant::now();
    let mut member = stand.member().await;
    let rest = member.take(40).await;
    assert!(
        rest.iter().all(|record| record.offset >= 5),
        "read again from before the commit"
    );
    println!("taken over {:?} after the kill", started.elapsed());
    member.close().await;
}

/// Not a test of its own: the process that the test above kills. Commits 5 of each partition, then holds them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_that_is_killed() {
    let Some(prefix) = std::env::var_os(CHILD) else {
        return;
    };
    let Some(brokers) = brokers() else { return };
    let config = config(&brokers, prefix.to_str().expect("UTF-8"), 2);
    let log = KafkaLog::connect(&config, Path::new("."), Clock::system()).await;
    let consumer = log.expect("connected").consumer().await;
    let mut member = Member::new(consumer.expect("a consumer"));
    for record in member.take(50).await {
        if record.offset == 4 {
            member.finish(&record, 5);
        }
    }
    // Ends by itself should the parent fail to kill it.
    tokio::time::sleep(DEADLINE).await;
}

// === topics ===

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_made_once_checked_and_described() {
    let Some(brokers) = brokers() else { return };
    let mut config = config(&brokers, &fresh_name(), 2);
    let refused = KafkaLog::connect(&config, Path::new("."), Clock::system()).await;
    let Err(LogError::Fatal(text)) = refused else {
        panic!("connected without topics")
    };
    assert!(text.contains("fencepost topics ensure"), "{text}");
    let topics = Topics::connect(&config, Path::new(".")).expect("a client");
    let made = topics.ensure(false).await.expect("made");
    assert_eq!((made.created.len(), made.deviations), (8, vec![]));
    let webhooks = format!("{}.webhooks", config.topic_prefix);
    assert_eq!(made.created.last(), Some(&webhooks));
    let again = topics.ensure(false).await.expect("unchanged");
    assert_eq!(again, Ensured::default());
    let stand = Stand::on(config.clone()).await;
    stand.produce(Topic::Webhooks, 0..10).await;
    let described = topics.describe().await.expect("described");
    assert_eq!(
        described
            .iter()
            .map(|topic| topic.topic)
            .collect::<Vec<_>>(),
        Topic::ALL
    );
    let lag: i64 = described[0]
        .partitions
        .iter()
        .map(|partition| partition.lag())
        .sum();
    assert_eq!(
        (lag, described[0].partitions[0].committed_offset),
        (10, None)
    );
    assert_eq!(
        described[1].settings["message.timestamp.type"],
        "LogAppendTime"
    );
    config.partitions = 3;
    config.retention = Duration::from_secs(700_000);
    let topics = Topics::connect(&config, Path::new(".")).expect("a client");
    let differs = topics.ensure(false).await.expect("checked");
    assert!(differs.created.is_empty() && differs.grown.is_empty());
    let text = format!("{:?}", differs.deviations);
    assert!(
        text.contains("has 2 partitions, 3 are configured"),
        "{text}"
    );
    assert!(text.contains("retention.ms is 604800000"), "{text}");
    let grown = topics.ensure(true).await.expect("grown");
    assert_eq!(grown.grown.len(), 8);
    assert_eq!(grown.grown.last(), Some(&(webhooks, 2, 3)));
    assert_eq!(topics.verify().await, Ok(3));
    config.retention = Duration::from_secs(200_000);
    let topics = Topics::connect(&config, Path::new(".")).expect("a client");
    let Err(LogError::Fatal(text)) = topics.verify().await else {
        panic!("webhooks outlive their claims")
    };
    let reason = format!(
        "{}.webhooks: retention.ms is 604800000, at most 200000000",
        config.topic_prefix
    );
    assert!(text.contains(&reason), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_broker_is_told_in_time() {
    let mut config = config("127.0.0.1:1", "nobody", 1);
    config.brokers = vec!["127.0.0.1:1".into()];
    let refused = KafkaLog::connect(&config, Path::new("."), Clock::system());
    let refused = tokio::time::timeout(DEADLINE, refused)
        .await
        .expect("in time");
    assert!(
        matches!(refused, Err(LogError::Unavailable(_))),
        "{refused:?}"
    );
}
