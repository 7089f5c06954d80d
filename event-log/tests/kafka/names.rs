//! Static membership: a name that stays the same, and two processes that have the same one.

use crate::stand::{DEADLINE, Member, Stand, keys};
use event_log::{
    Consumer as _, LogError,
    config::{GroupProtocol, KafkaConfig},
};
use schemas::Topic;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// Brokers end the older one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_older_of_two_with_one_name_ends() {
    let Some((mut older, newer)) = twins(GroupProtocol::Classic).await else {
        return;
    };
    let newer = tokio::spawn(read_one(newer));
    ends(&mut older).await;
    newer.await.expect("the newer one goes on").close().await;
}

/// Brokers refuse the newer one as long as the older one is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newer_of_two_with_one_name_ends_with_the_consumer_protocol() {
    let Some((older, mut newer)) = twins(GroupProtocol::Consumer).await else {
        return;
    };
    ends(&mut newer).await;
    read_one(older).await.close().await;
}

/// A restart within the session: the others keep what they have, and the same partitions come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_one_name_moves_no_partitions() {
    let Some(zero) = Stand::with(4, |config| {
        named(config, GroupProtocol::Classic, "dispatcher-0")
    })
    .await
    else {
        return;
    };
    let mut config = zero.config.clone();
    config.group_instance_id = Some("dispatcher-1".into());
    let one = Stand::on(config).await;
    let (mut staying, mut restarting) = (zero.member().await, one.member().await);
    let deadline = Instant::now() + DEADLINE;
    while staying.owned.len() != 2 || restarting.owned.len() != 2 {
        assert!(Instant::now() < deadline, "not shared");
        staying.step().await;
        restarting.step().await;
    }
    let before: (BTreeMap<_, _>, Vec<_>) = (
        staying.owned.clone(),
        restarting.owned.keys().copied().collect(),
    );
    restarting.close().await;
    let mut restarted = one.member().await;
    while restarted.owned.len() != 2 {
        assert!(
            Instant::now() < deadline,
            "the partitions did not come back"
        );
        staying.step().await;
        restarted.step().await;
    }
    let after = (
        staying.owned.clone(),
        restarted.owned.keys().copied().collect(),
    );
    assert_eq!(before, after, "the same, and under the same epochs");
    staying.close().await;
    restarted.close().await;
}

/// Two with one name; the first has its partition, the second has just been started.
async fn twins(protocol: GroupProtocol) -> Option<(Member, Member)> {
    let stand = Stand::with(1, |config| named(config, protocol, "dispatcher-0")).await?;
    stand.produce(Topic::Webhooks, 0..1).await;
    let older = read_one(stand.member().await).await;
    let newer = stand.member().await;
    Some((older, newer))
}

fn named(config: &mut KafkaConfig, protocol: GroupProtocol, name: &str) {
    config.group_protocol = protocol;
    config.session_timeout =
        (protocol == GroupProtocol::Classic).then_some(Duration::from_secs(30));
    config.group_instance_id = Some(name.into());
    assert_eq!(config.check("log"), []);
}

/// The record has come, now or before.
async fn read_one(mut member: Member) -> Member {
    let deadline = Instant::now() + DEADLINE;
    while keys(&member.records).is_empty() {
        assert!(Instant::now() < deadline, "reads nothing");
        member.step().await;
    }
    member
}

async fn ends(member: &mut Member) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let next = tokio::time::timeout_at(deadline, member.consumer.next(0)).await;
        match next.expect("goes on beside its twin") {
            Ok(_) => {}
            Err(LogError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(LogError::Fatal(text)) => {
                assert!(text.contains("log.group_instance_id"), "{text}");
                return;
            }
        }
    }
}
