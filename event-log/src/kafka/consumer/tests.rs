//! On librdkafka's mock of a cluster: real clients, injected faults, no broker.

mod churn;
mod idle;
mod stalls;

use super::{message::offsets, *};
use crate::{Epoch, Revoked, config::KafkaConfig};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::RDKafkaErrorCode,
    mocking::MockCluster,
    producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _},
    types::{RDKafkaApiKey, RDKafkaRespErr},
};
use schemas::Topic;
use std::path::Path;
use tokio::time::Instant;

fn watermark(topic: Topic, partition: u32, next_offset: i64) -> Watermark {
    Watermark {
        topic,
        partition,
        epoch: Epoch(1),
        next_offset,
    }
}

#[test]
fn offsets_are_committed_as_they_are() {
    let names = TopicNames::new("p");
    let delay = Topic::Delay(schemas::DelayTier::S5);
    let watermarks = [watermark(Topic::Webhooks, 0, 3), watermark(delay, 1, 8)];
    for (is_delay, name, partition, offset) in
        [(false, "p.webhooks", 0, 3), (true, "p.delay.5s", 1, 8)]
    {
        let list = offsets(&names, &watermarks, is_delay).expect("one");
        let elements = list.elements();
        assert_eq!(elements.len(), 1);
        assert_eq!(elements[0].topic(), name);
        assert_eq!(elements[0].partition(), partition);
        assert_eq!(elements[0].offset(), Offset::Offset(offset));
    }
    assert!(offsets(&names, &[], false).is_none());
}

#[test]
fn next_sleeps_until_the_next_record_is_due() {
    let ms = Duration::from_millis;
    assert_eq!(wait_for_due(Some(120), 100), Some(ms(20)));
    assert_eq!(wait_for_due(Some(90), 100), Some(ms(0)));
    assert_eq!(wait_for_due(Some(99_999), 0), Some(DUE_WAIT_MAX));
    assert_eq!(wait_for_due(None, 0), None);
}

#[test]
fn only_what_does_not_heal_is_told() {
    let fatal = KafkaError::MessageConsumptionFatal(RDKafkaErrorCode::UnknownMemberId);
    assert!(matches!(poll_error(&fatal), Some(LogError::Fatal(_))));
    for code in [
        RDKafkaErrorCode::FencedInstanceId,
        RDKafkaErrorCode::UnreleasedInstanceId,
    ] {
        let told = poll_error(&KafkaError::MessageConsumptionFatal(code));
        let Some(LogError::Fatal(text)) = told else {
            panic!("{told:?}")
        };
        assert!(text.contains("log.group_instance_id"), "{text}");
    }
    let code = |code| poll_error(&KafkaError::MessageConsumption(code));
    assert!(matches!(
        code(RDKafkaErrorCode::UnknownTopicOrPartition),
        Some(LogError::Unavailable(_))
    ));
    assert_eq!(code(RDKafkaErrorCode::BrokerTransportFailure), None);
    assert_eq!(code(RDKafkaErrorCode::PollExceeded), None);
}

// === on librdkafka's mock of a cluster ===

const DEADLINE: Duration = Duration::from_secs(30);

struct Stand {
    cluster: MockCluster<'static, DefaultProducerContext>,
    clients: Clients,
}

fn stand() -> Stand {
    stand_with(1, |_| {})
}

fn stand_with(partitions: i32, change: impl FnOnce(&mut KafkaConfig)) -> Stand {
    let cluster = MockCluster::new(1).expect("mock cluster");
    let names = TopicNames::new("p");
    for topic in Topic::ALL {
        cluster
            .create_topic(&names.name(topic), partitions, 1)
            .expect("topic");
    }
    let mut config = KafkaConfig {
        brokers: vec![cluster.bootstrap_servers()],
        topic_prefix: "p".into(),
        session_timeout: Some(Duration::from_secs(6)),
        ..KafkaConfig::default()
    };
    change(&mut config);
    let clients = Clients::open(&config, Path::new(".")).expect("no secrets");
    Stand { cluster, clients }
}

impl Stand {
    fn consumer(&self) -> KafkaConsumer {
        self.consumer_telling(&Arc::default())
    }

    fn consumer_telling(&self, unreadable: &Arc<OnceLock<LogError>>) -> KafkaConsumer {
        let unreadable = Arc::clone(unreadable);
        KafkaConsumer::start(&self.clients, Clock::system(), Arc::default(), unreadable)
            .expect("consumer")
    }

    /// Into partition 0.
    fn produce(&self, count: usize) {
        self.produce_to(&vec![0; count], 1);
    }

    /// A record of `bytes` to each of these partitions.
    fn produce_to(&self, partitions: &[i32], bytes: usize) {
        let producer: BaseProducer = self
            .clients
            .producer(crate::kafka::client::MESSAGE_TIMEOUT_MS)
            .expect("built")
            .create()
            .expect("producer");
        // Does not compress, so that the mock's limit of a partition can be reached.
        let mut state = 1_u32;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        });
        let payload: Vec<_> = noise.take(bytes).collect();
        for (at, &partition) in partitions.iter().enumerate() {
            if at % 5_000 == 4_999 {
                producer.flush(DEADLINE).expect("acknowledged");
            }
            let record = BaseRecord::to("p.webhooks")
                .key("k")
                .payload(&payload)
                .partition(partition);
            producer.send(record).expect("queued");
        }
        producer.flush(DEADLINE).expect("acknowledged");
    }

    fn observer(&self) -> BaseConsumer {
        let group = &self.clients.config().group;
        let observer = self.clients.observer(group).expect("built");
        observer.create().expect("observer")
    }

    /// Committed offset of the webhooks' first partition.
    fn committed(&self) -> Offset {
        let mut list = TopicPartitionList::new();
        list.add_partition("p.webhooks", 0);
        let list = self.observer().committed_offsets(list, DEADLINE);
        list.expect("answered").elements()[0].offset()
    }

    /// Committed offsets of the webhooks' partitions, 0 where there is none.
    fn committed_by(&self, observer: &BaseConsumer, partitions: u32) -> Vec<i64> {
        let mut list = TopicPartitionList::new();
        for partition in 0..i32::try_from(partitions).expect("few") {
            list.add_partition("p.webhooks", partition);
        }
        let list = observer
            .committed_offsets(list, DEADLINE)
            .expect("answered");
        let offsets = list
            .elements()
            .into_iter()
            .map(|element| match element.offset() {
                Offset::Offset(offset) => offset,
                Offset::Invalid
                | Offset::Beginning
                | Offset::End
                | Offset::Stored
                | Offset::OffsetTail(_) => 0,
            });
        offsets.collect()
    }
}

/// The next event, with room for `room` records. One answer may hold an assignment and a record: who waits for the one leaves no
/// room for the other.
async fn event(consumer: &mut KafkaConsumer, room: usize) -> Event {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let events = tokio::time::timeout_at(deadline, consumer.next(room)).await;
        let mut events = events.expect("in time").expect("events");
        assert!(events.len() <= 1, "more than was asked for: {events:?}");
        if let Some(event) = events.pop() {
            return event;
        }
    }
}

async fn assigned(consumer: &mut KafkaConsumer) -> Epoch {
    let event = event(consumer, 0).await;
    let Event::Assigned {
        partition: 0,
        epoch,
    } = event
    else {
        panic!("no assignment: {event:?}")
    };
    epoch
}

async fn received_offset(consumer: &mut KafkaConsumer) -> i64 {
    let event = event(consumer, 1).await;
    let Event::Record(record) = event else {
        panic!("no record: {event:?}")
    };
    record.offset
}

/// The group throws the member out in the middle of its work. What its tasks finish later must not be committed: the
/// records before it are being worked on again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_assignment_takes_no_watermark_and_is_read_again() {
    let stand = stand();
    stand.produce(10);
    let mut consumer = stand.consumer();
    let old = assigned(&mut consumer).await;
    for offset in 0..10 {
        assert_eq!(received_offset(&mut consumer).await, offset);
    }
    stand.cluster.request_errors(
        RDKafkaApiKey::Heartbeat,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID],
    );
    let Event::Revoked(Revoked {
        partitions,
        lost,
        release,
    }) = event(&mut consumer, 0).await
    else {
        panic!("not revoked");
    };
    assert_eq!((partitions, lost), (vec![(0, old)], true));
    release.done(vec![Watermark {
        epoch: old,
        ..watermark(Topic::Webhooks, 0, 10)
    }]);
    let new = assigned(&mut consumer).await;
    assert!(new > old);
    consumer.commit(vec![Watermark {
        epoch: old,
        ..watermark(Topic::Webhooks, 0, 10)
    }]);
    assert_eq!(received_offset(&mut consumer).await, 0);
    let closing = consumer.close(Vec::new(), DEADLINE);
    tokio::time::timeout(DEADLINE, closing)
        .await
        .expect("closed");
    assert_eq!(stand.committed(), Offset::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_brokers_closing_keeps_to_its_deadline() {
    let stand = stand();
    let mut consumer = stand.consumer();
    let epoch = assigned(&mut consumer).await;
    stand.cluster.broker_down(1).expect("down");
    let last = Watermark {
        epoch,
        ..watermark(Topic::Webhooks, 0, 1)
    };
    let closing = consumer.close(vec![last], Duration::from_millis(200));
    // The session of 6 s is what librdkafka itself would wait for.
    tokio::time::timeout(Duration::from_secs(4), closing)
        .await
        .expect("in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_waited_out() {
    let stand = stand();
    stand.produce(1);
    let mut consumer = stand.consumer();
    assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
    stand.cluster.broker_down(1).expect("down");
    let nothing = tokio::time::timeout(Duration::from_secs(2), consumer.next(1)).await;
    assert!(nothing.is_err(), "{nothing:?}");
    stand.cluster.broker_up(1).expect("up");
    stand.produce(1);
    assert_eq!(received_offset(&mut consumer).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_ends_is_told_to_readiness_and_to_next() {
    let stand = stand();
    let unreadable = Arc::new(OnceLock::new());
    let mut consumer = stand.consumer_telling(&unreadable);
    assigned(&mut consumer).await;
    consumer
        .shared
        .fail(LogError::Unavailable("passing".into()));
    assert_eq!(unreadable.get(), None, "heals by itself");
    let thread = spawn("ends", &consumer.shared, || {}).expect("a thread");
    thread.join().expect("no panic");
    let told = unreadable.get().cloned();
    assert!(matches!(told, Some(LogError::Fatal(_))), "{told:?}");
    let next = tokio::time::timeout(DEADLINE, consumer.next(1)).await;
    assert_eq!(next.expect("in time").err(), told);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_is_no_failure() {
    let stand = stand();
    let unreadable = Arc::new(OnceLock::new());
    let mut consumer = stand.consumer_telling(&unreadable);
    assigned(&mut consumer).await;
    consumer.close(Vec::new(), DEADLINE).await;
    assert_eq!(unreadable.get(), None);
}
