//! Reading that yields nothing although there is something to read.

use super::*;
use crate::kafka::watch::{Pace, Patience};

/// Faster than in production; still long enough for a busy machine to answer in.
const PACE: Pace = Pace {
    look: Duration::from_millis(100),
    levels: Duration::from_secs(60),
    patience: Patience {
        suspect_ms: 200,
        warn_ms: 1_000,
        stall_ms: 3_000,
    },
};

impl Stand {
    fn watched(&self, unreadable: &Arc<OnceLock<LogError>>) -> KafkaConsumer {
        let unreadable = Arc::clone(unreadable);
        KafkaConsumer::start_with(
            &self.clients,
            Clock::system(),
            Arc::default(),
            unreadable,
            PACE,
        )
        .expect("consumer")
    }

    /// Every fetch fails from now on; everything else works.
    fn break_fetches(&self) {
        let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_REQUEST;
        self.cluster
            .request_errors(RDKafkaApiKey::Fetch, &[error; 10_000]);
    }

    fn mend_fetches(&self) {
        self.cluster.clear_request_errors(RDKafkaApiKey::Fetch);
    }
}

/// The next revocation of partition 0, answered with everything before `next_offset` finished.
async fn revoked(consumer: &mut KafkaConsumer, epoch: Epoch, next_offset: i64) -> bool {
    let event = event(consumer, 0).await;
    let Event::Revoked(revoked) = event else {
        panic!("not revoked: {event:?}")
    };
    assert_eq!(revoked.partitions, vec![(0, epoch)]);
    revoked.release.done(vec![Watermark {
        epoch,
        ..watermark(Topic::Webhooks, 0, next_offset)
    }]);
    revoked.lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_still_is_replaced_and_goes_on_behind_its_watermark() {
    let stand = stand();
    stand.produce(1);
    let unreadable = Arc::default();
    let mut consumer = stand.watched(&unreadable);
    let old = assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
    stand.break_fetches();
    stand.produce(1);
    assert!(!revoked(&mut consumer, old, 1).await, "given up, not lost");
    stand.mend_fetches();
    let new = assigned(&mut consumer).await;
    assert!(new > old);
    assert_eq!(received_offset(&mut consumer).await, 1);
    assert_eq!(unreadable.get(), None);
    // The commits go on with the new client.
    consumer
        .close(
            vec![Watermark {
                epoch: new,
                ..watermark(Topic::Webhooks, 0, 2)
            }],
            DEADLINE,
        )
        .await;
    assert_eq!(stand.committed(), Offset::Offset(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_that_does_not_help_ends_with_a_clear_message() {
    let stand = stand();
    stand.produce(1);
    let unreadable = Arc::default();
    let mut consumer = stand.watched(&unreadable);
    let old = assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
    stand.break_fetches();
    stand.produce(1);
    revoked(&mut consumer, old, 1).await;
    assigned(&mut consumer).await;
    let end = tokio::time::timeout(DEADLINE, consumer.next(1)).await;
    let Ok(Err(LogError::Fatal(text))) = end else {
        panic!("went on: {end:?}")
    };
    assert!(
        text.contains("reading stands still") && text.contains("p.webhooks[0] at offset 1 of 2"),
        "{text}"
    );
    assert_eq!(unreadable.get(), Some(&LogError::Fatal(text)));
}

/// Longer away than the patience with a partition that stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_no_stall() {
    // No revocation comes meanwhile: the session outlives the outage, whenever its last heartbeat was.
    let stand = stand_with(1, |config| {
        config.session_timeout = Some(Duration::from_secs(30))
    });
    stand.produce(1);
    let unreadable = Arc::default();
    let mut consumer = stand.watched(&unreadable);
    assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
    stand.break_fetches();
    stand.produce(1);
    stand.cluster.broker_down(1).expect("down");
    stand.mend_fetches();
    let nothing = tokio::time::timeout(Duration::from_secs(5), consumer.next(1)).await;
    assert!(nothing.is_err(), "{nothing:?}");
    assert!(!consumer.shared.replace.load(Ordering::Relaxed));
    stand.cluster.broker_up(1).expect("up");
    assert_eq!(received_offset(&mut consumer).await, 1);
    assert_eq!(unreadable.get(), None);
}

/// The group's consumer is not polled for longer than it may (KIP-848): it is thrown out and comes back, or the process ends
/// and starts anew (librdkafka 5541); it does not stay there without partitions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_poll_for_long_comes_back_or_ends() {
    let mut stand = stand_with(1, |config| {
        config.group_protocol = crate::config::GroupProtocol::Consumer;
        config.session_timeout = None;
    });
    stand.clients.poll_interval_max = Duration::from_secs(1);
    stand.produce(2);
    let mut consumer = stand.consumer();
    let old = assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
    hold_up(&consumer, Duration::from_secs(3));
    let deadline = Instant::now() + DEADLINE;
    let mut lost = false;
    loop {
        let next = tokio::time::timeout_at(deadline, consumer.next(1)).await;
        let Ok(events) = next.expect("neither came back nor ended") else {
            return;
        };
        for event in events {
            match event {
                Event::Revoked(revoked) => lost = revoked.lost,
                Event::Assigned { epoch, .. } => assert!(lost && epoch > old),
                Event::Record(record) if record.epoch > old => {
                    assert_eq!(record.offset, 0, "nothing was committed");
                    return;
                }
                Event::Record(_) => {}
            }
        }
    }
}

/// Both reading threads wait for the inbox.
fn hold_up(consumer: &KafkaConsumer, time: Duration) {
    let _inbox = consumer.shared.inbox();
    thread::sleep(time);
}
