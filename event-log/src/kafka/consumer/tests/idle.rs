//! Long waits, much backlog, ends in the middle of things.

use super::*;

/// Statistics come while nothing is read, and the record after them wakes whoever waits (rust-rdkafka 638, 665).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_after_statistics_wakes_who_waits() {
    let stand = stand();
    stand.produce(1);
    let mut consumer = stand.consumer();
    assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
    let deadline = Instant::now() + DEADLINE;
    while consumer
        .positions()
        .iter()
        .all(|told| told.end_offset != Some(1))
    {
        assert!(Instant::now() < deadline, "no statistics");
        let nothing = tokio::time::timeout(Duration::from_millis(50), consumer.next(1)).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }
    let produce = async {
        tokio::task::yield_now().await;
        tokio::task::block_in_place(|| stand.produce(1));
    };
    let (offset, ()) = tokio::join!(received_offset(&mut consumer), produce);
    assert_eq!(offset, 1);
}

/// Ten times what may be held comes through one pause after the other: nothing twice, nothing left out, and no more pauses
/// than what is held asks for (each costs a refetch, librdkafka 5343).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_backlog_comes_in_order_with_few_pauses() {
    const COUNT: usize = 20_000;
    let stand = stand();
    stand.produce(COUNT);
    let mut consumer = stand.consumer();
    assigned(&mut consumer).await;
    let (mut expected, mut held_max) = (0, 0);
    let deadline = Instant::now() + 2 * DEADLINE;
    while expected < 20_000 {
        // As much as is held, before anything is taken.
        let full = LIMITS
            .main_records
            .min(COUNT - usize::try_from(expected).expect("small"));
        while consumer.shared.inbox().held_main() < full {
            assert!(
                Instant::now() < deadline,
                "reading does not go on at {expected}"
            );
            let nothing = tokio::time::timeout(Duration::from_millis(5), consumer.next(0)).await;
            assert!(nothing.is_err(), "{nothing:?}");
        }
        held_max = held_max.max(consumer.shared.inbox().held_main());
        for event in consumer.next(1_900).await.expect("events") {
            let Event::Record(record) = event else {
                panic!("no record: {event:?}")
            };
            assert_eq!(record.offset, expected);
            expected += 1;
        }
    }
    assert!(
        held_max <= LIMITS.main_records + BATCH_RECORDS_MAX,
        "{held_max}"
    );
    let pauses = consumer.shared.pauses();
    let most = COUNT / (LIMITS.main_records - LIMITS.main_records / 4) + 2;
    assert!(pauses > 0 && pauses <= most as u64, "{pauses} pauses");
}

/// Ends before its first assignment, while the group is forming (rust-rdkafka 509, 517); the next one joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_ends_in_mid_rebalance_is_gone() {
    let stand = stand();
    stand.produce(1);
    drop(stand.consumer());
    let closing = stand.consumer().close(Vec::new(), DEADLINE);
    let closed = tokio::time::timeout(DEADLINE, closing).await;
    closed.expect("closed in time");
    let mut consumer = stand.consumer();
    assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
}

/// The commit lies before what the log still has: reading goes on at the first record there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_before_the_log_s_begin_goes_on_at_the_first_record() {
    let stand = stand();
    stand.produce(3);
    let mut consumer = stand.consumer();
    let epoch = assigned(&mut consumer).await;
    assert_eq!(received_offset(&mut consumer).await, 0);
    let first = Watermark {
        epoch,
        ..watermark(Topic::Webhooks, 0, 1)
    };
    consumer.close(vec![first], DEADLINE).await;
    assert_eq!(stand.committed(), Offset::Offset(1));
    // The mock keeps 5 MB of a partition.
    stand.produce_to(&[0; 8], 900_000);
    let mut consumer = stand.consumer();
    assigned(&mut consumer).await;
    let offset = received_offset(&mut consumer).await;
    assert!(offset > 1, "{offset}: nothing was deleted");
    let mut next = offset;
    while next < 10 {
        next += 1;
        assert_eq!(received_offset(&mut consumer).await, next);
    }
}
