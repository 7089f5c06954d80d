//! On librdkafka's own mock of a cluster: real client, injected faults, no broker.

use super::*;
use crate::config::KafkaConfig;
use bytes::Bytes;
use rdkafka::{
    mocking::MockCluster,
    producer::DefaultProducerContext,
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use schemas::Topic;
use std::path::Path;
use tokio::time::Instant;

const DEADLINE: Duration = Duration::from_secs(30);

struct Stand {
    cluster: MockCluster<'static, DefaultProducerContext>,
    producer: Producer,
}

fn stand(change: impl FnOnce(&mut KafkaConfig)) -> Stand {
    stand_with(PATIENCE, change)
}

fn stand_with(patience: Patience, change: impl FnOnce(&mut KafkaConfig)) -> Stand {
    let cluster = MockCluster::new(1).expect("mock cluster");
    cluster.create_topic("p.webhooks", 4, 1).expect("topic");
    let mut config = KafkaConfig {
        brokers: vec![cluster.bootstrap_servers()],
        topic_prefix: "p".into(),
        ..KafkaConfig::default()
    };
    change(&mut config);
    let clients = Clients::open(&config, Path::new(".")).expect("no secrets");
    let producer = Producer::start_with(clients, patience).expect("producer");
    Stand { cluster, producer }
}

fn record(key: &str, bytes: usize) -> Record {
    Record {
        topic: Topic::Webhooks,
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::from(vec![b'x'; bytes]),
        headers: vec![("h".into(), Bytes::from_static(b"v"))],
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Produces until it is acknowledged.
async fn produce_in_the_end(producer: &Producer) -> Appended {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match producer.produce(record("again", 10)).await {
            Ok(appended) => return appended,
            Err(error) => assert!(Instant::now() < deadline, "still failing: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fatal_error_costs_the_record_in_flight_and_a_new_producer() {
    let stand = stand(|_| {});
    stand
        .producer
        .produce(record("a", 10))
        .await
        .expect("acknowledged");
    stand.cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER],
    );
    let failed = stand.producer.produce(record("b", 10)).await;
    assert!(
        matches!(failed, Err(ProduceError::Unacknowledged(_))),
        "{failed:?}"
    );
    produce_in_the_end(&stand.producer).await;
    let inner = &stand.producer.0;
    assert_eq!(generation(&stand.producer), 1);
    assert_eq!(stand.producer.ready(), Ok(()));
    assert_eq!(inner.load.records(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unusable_producer_is_not_ready() {
    let stand = stand(|_| {});
    assert_eq!(stand.producer.ready(), Ok(()));
    stand.producer.0.health.fail(0, "out of order");
    assert!(stand.producer.ready().is_err());
}

#[test]
fn what_a_former_producer_says_changes_nothing() {
    let health = Health::default();
    let broken = || {
        let current = lock(&health.current);
        current.broken.as_ref().map(|broken| broken.generation)
    };
    health.fail(0, "a");
    health.fail(1, "the next one, before it is in use");
    health.replaced(1);
    assert_eq!(broken(), Some(1), "it needs one more");
    health.replaced(2);
    assert_eq!(broken(), None);
    health.fail(1, "late");
    assert_eq!(broken(), None, "nobody would ever clear it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_fails_in_time_and_ends_with_the_broker() {
    let stand = stand(|_| {});
    stand
        .producer
        .produce(record("a", 10))
        .await
        .expect("acknowledged");
    stand.cluster.broker_down(1).expect("down");
    let failed = tokio::time::timeout(DEADLINE, stand.producer.produce(record("b", 10))).await;
    assert!(
        matches!(failed, Ok(Err(ProduceError::Unacknowledged(_)))),
        "{failed:?}"
    );
    until("not ready", || stand.producer.ready().is_err()).await;
    stand.cluster.broker_up(1).expect("up");
    // Without traffic: an ingest that is not ready gets none.
    until("ready again", || stand.producer.ready().is_ok()).await;
    produce_in_the_end(&stand.producer).await;
}

fn generation(producer: &Producer) -> u64 {
    producer.0.native.read().expect("lock").generation
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_acknowledges_nothing_is_replaced() {
    let patience = Patience {
        message_timeout_ms: 2_000,
        stuck_ms: 3_000,
    };
    let stand = stand_with(patience, |_| {});
    let producer = &stand.producer;
    produce_in_the_end(producer).await;
    stand.cluster.broker_down(1).expect("down");
    let deadline = Instant::now() + DEADLINE;
    while generation(producer) == 0 {
        assert!(Instant::now() < deadline, "never replaced");
        let failed = tokio::join!(
            producer.produce(record("b", 10)),
            producer.produce(record("c", 10)),
        );
        assert!(
            matches!(
                failed,
                (
                    Err(ProduceError::Unacknowledged(_)),
                    Err(ProduceError::Unacknowledged(_))
                )
            ),
            "{failed:?}"
        );
    }
    stand.cluster.broker_up(1).expect("up");
    produce_in_the_end(producer).await;
    until("ready", || producer.ready().is_ok()).await;
    until("nothing waits", || producer.0.load.records() == 0).await;
}

/// Requests on their way for longer than their records may take (librdkafka 3584, 4438): all are answered, and what comes
/// after them is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_beyond_their_timeout_wedge_nothing() {
    let patience = Patience {
        message_timeout_ms: 1_000,
        ..PATIENCE
    };
    let stand = stand_with(patience, |_| {});
    let producer = &stand.producer;
    produce_in_the_end(producer).await;
    let slow = Duration::from_secs(4);
    stand.cluster.broker_round_trip_time(1, slow).expect("slow");
    let waiting = (0..5).map(|n| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.produce(record(&format!("k{n}"), 10)).await })
    });
    for waiting in waiting.collect::<Vec<_>>() {
        let answer = tokio::time::timeout(DEADLINE, waiting).await;
        let answer = answer.expect("in time").expect("no panic");
        assert!(
            matches!(answer, Err(ProduceError::Unacknowledged(_))),
            "{answer:?}"
        );
    }
    stand
        .cluster
        .broker_round_trip_time(1, Duration::ZERO)
        .expect("fast");
    produce_in_the_end(producer).await;
    until("nothing waits", || producer.0.load.records() == 0).await;
    assert_eq!(producer.ready(), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_producer_answers_what_it_still_had() {
    let patience = Patience {
        message_timeout_ms: 600_000,
        ..PATIENCE
    };
    let stand = stand_with(patience, |_| {});
    let producer = &stand.producer;
    stand.cluster.broker_down(1).expect("down");
    let waiting = producer.enqueue(&record("a", 10)).expect("room");
    // Whoever flushes holds the former producer: that must not keep it from answering.
    let flushing = producer.clone();
    let flushed = tokio::task::spawn_blocking(move || flushing.flush(2 * DEADLINE));
    assert!(producer.0.health.fail(0, "as if stuck"));
    call_supervisor(&producer.0.failures);
    let answer = tokio::time::timeout(DEADLINE, waiting).await;
    let answer = answer.expect("in time").expect("answered");
    assert!(
        matches!(answer, Err(ProduceError::Unacknowledged(_))),
        "{answer:?}"
    );
    let flushed = tokio::time::timeout(DEADLINE, flushed).await;
    flushed.expect("in time").expect("flushed");
    until("replaced", || generation(producer) == 1).await;
    until("nothing waits", || producer.0.load.records() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_answers_at_once_and_drains() {
    let stand = stand(|config| config.queue_records_max = 2);
    stand.cluster.broker_down(1).expect("down");
    let first = stand.producer.enqueue(&record("a", 10)).expect("room");
    // Whoever stops waiting frees nothing that is still queued.
    drop(stand.producer.enqueue(&record("b", 10)).expect("room"));
    let third = stand.producer.enqueue(&record("c", 10));
    assert_eq!(third.err(), Some(ProduceError::Busy));
    stand.cluster.broker_up(1).expect("up");
    let answer = tokio::time::timeout(DEADLINE, first).await;
    answer
        .expect("in time")
        .expect("answered")
        .expect("acknowledged");
    produce_in_the_end(&stand.producer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_bounded_too() {
    let stand = stand(|config| {
        config.record_bytes_max = 4_000;
        config.queue_bytes_max = 4_000;
    });
    let large = stand.producer.produce(record("a", 4_000)).await;
    assert_eq!(large, Err(ProduceError::TooLarge { bytes: 4_003 }));
    stand.cluster.broker_down(1).expect("down");
    drop(stand.producer.enqueue(&record("a", 3_000)).expect("room"));
    let more = stand.producer.enqueue(&record("b", 3_000));
    assert_eq!(more.err(), Some(ProduceError::Busy));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_waits_for_acknowledgements_and_not_beyond_its_deadline() {
    let stand = stand(|_| {});
    let mut answers: Vec<_> = (0..50)
        .map(|_| stand.producer.enqueue(&record("a", 10)).expect("room"))
        .collect();
    let producer = stand.producer.clone();
    let flushed = tokio::task::spawn_blocking(move || producer.flush(DEADLINE));
    flushed.await.expect("flushed");
    for answer in &mut answers {
        let answer = tokio::time::timeout(DEADLINE, answer).await;
        answer
            .expect("in time")
            .expect("answered")
            .expect("acknowledged");
    }
    stand.cluster.broker_down(1).expect("down");
    drop(stand.producer.enqueue(&record("a", 10)).expect("room"));
    let producer = stand.producer.clone();
    let flushed = tokio::task::spawn_blocking(move || producer.flush(Duration::from_millis(50)));
    let flushed = tokio::time::timeout(DEADLINE, flushed).await;
    flushed.expect("in time").expect("flushed");
}
