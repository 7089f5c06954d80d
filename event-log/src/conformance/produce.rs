//! Promises of produce.

use super::member::{Harness, produce_all, record};
use crate::{DERIVED_BYTES_RESERVE, Epoch, EventLog as _, ProduceError, Record};
use bytes::Bytes;
use futures::{FutureExt as _, future::join_all};
use schemas::{DelayTier, Topic, partition_for};
use std::time::Duration;

const S5: Topic = Topic::Delay(DelayTier::S5);

/// What is acknowledged stands at the offset that was named, in every topic.
pub async fn acknowledged_is_readable<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let before_ms = harness.now_ms();
    for topic in Topic::ALL {
        let sent = record(topic, "key", topic.suffix());
        let appended = log.produce(sent.clone()).await.expect("acknowledged");
        let page = log
            .read(topic, appended.partition, appended.offset, 1)
            .await
            .expect("a page");
        let [received] = page.records.as_slice() else {
            panic!("one record in {page:?}")
        };
        assert_eq!(
            (received.topic, received.partition),
            (topic, appended.partition)
        );
        assert_eq!(
            (received.offset, received.epoch),
            (appended.offset, Epoch(0))
        );
        assert_eq!((&received.key, &received.value), (&sent.key, &sent.value));
        let appended_at_ms = received.appended_at_ms;
        assert!(
            (before_ms..=harness.now_ms()).contains(&appended_at_ms),
            "{appended_at_ms}"
        );
    }
}

/// Key, value and headers are bytes, and come back as they were: also empty, also large, headers in order and repeated.
pub async fn any_bytes_come_back<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let large: Vec<u8> = (0..1_048_576_u32)
        .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let header = |name: &str, value: &'static [u8]| (name.to_owned(), Bytes::from_static(value));
    let headers = vec![
        header("a", &[0, 255, 10]),
        header("b", b""),
        header("a", b"again"),
    ];
    for value in [Vec::new(), vec![0], (0..=255).collect(), large] {
        let key = Bytes::from_static(&[0, 159, 146, 150]);
        let sent = Record {
            topic: Topic::Webhooks,
            key,
            value: value.into(),
            headers: headers.clone(),
        };
        let appended = log.produce(sent.clone()).await.expect("acknowledged");
        let page = log
            .read(sent.topic, appended.partition, appended.offset, 1)
            .await;
        let received = page
            .expect("a page")
            .records
            .into_iter()
            .next()
            .expect("a record");
        let same = received.value == sent.value;
        assert!(
            same,
            "{} bytes came back as {}",
            sent.value.len(),
            received.value.len()
        );
        assert_eq!((received.key, received.headers), (sent.key, sent.headers));
    }
}

/// The partition is the one that every tool would choose.
pub async fn key_decides_the_partition<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    for topic in [Topic::Webhooks, S5, Topic::DeadLetters] {
        for n in 0..20 {
            let key = format!("delivery-{n}");
            let expected = partition_for(key.as_bytes(), log.partitions());
            let appended = log
                .produce(record(topic, &key, "x"))
                .await
                .expect("acknowledged");
            assert_eq!(appended.partition, expected, "{key}");
        }
    }
}

/// A record above the limit is refused and not written; one below it is taken.
pub async fn too_large_is_refused<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let max = harness.record_bytes_max();
    let refused = log
        .produce(record(Topic::Webhooks, "key", vec![7; max + 1]))
        .await;
    assert!(
        matches!(refused, Err(ProduceError::TooLarge { bytes }) if bytes > max),
        "{refused:?}"
    );
    let appended = log
        .produce(record(Topic::Webhooks, "key", vec![7; max - 1_024]))
        .await;
    let appended = appended.expect("just small enough");
    let page = log
        .read(Topic::Webhooks, appended.partition, 0, 10)
        .await
        .expect("a page");
    assert_eq!(
        page.records.len(),
        1,
        "nothing was written of the refused one"
    );
}

/// What is made of the largest webhook fits into every other topic, and no more than the reserve for it.
pub async fn derived_records_have_a_reserve<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    let key = "key";
    let largest = harness.record_bytes_max() + DERIVED_BYTES_RESERVE - key.len();
    let others = Topic::ALL.into_iter().filter(|t| *t != Topic::Webhooks);
    for topic in others {
        // Does not compress: the limit of a topic on the broker counts compressed bytes.
        let mut state = 1_u32;
        let noise = (0..largest).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        });
        let mut sent = record(topic, key, noise.collect::<Vec<u8>>());
        let appended = log.produce(sent.clone()).await.expect("fits");
        let page = log
            .read(topic, appended.partition, appended.offset, 1)
            .await
            .expect("a page");
        let read = page.records.first().map(|read| &read.value);
        assert!(read == Some(&sent.value), "{topic:?}");
        sent.value = vec![7; largest + 1].into();
        let refused = log.produce(sent).await;
        assert!(
            matches!(refused, Err(ProduceError::TooLarge { .. })),
            "{refused:?}"
        );
    }
}

/// A full queue answers at once, takes nothing, loses nothing of what it took, and has room again later.
pub async fn busy_is_said_at_once<H: Harness>(harness: &H) {
    let Some((count, bytes)) = harness.burst() else {
        return;
    };
    let log = harness.fresh().await;
    let value = Bytes::from(vec![7; bytes]);
    let burst = (0..count).map(|n| {
        let key = Bytes::from(n.to_string());
        let value = value.clone();
        log.produce(Record {
            topic: Topic::Webhooks,
            key,
            value,
            headers: Vec::new(),
        })
    });
    let answers = join_all(burst).await;
    let busy = answers
        .iter()
        .filter(|answer| **answer == Err(ProduceError::Busy))
        .count();
    let taken = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(busy + taken, count, "nothing else goes wrong");
    assert!(
        busy > 0 && taken > 0,
        "{busy} of {count} were told that there is no room"
    );
    let mut written = 0;
    for partition in 0..log.partitions() {
        let mut next_offset = 0;
        loop {
            let page = log
                .read(Topic::Webhooks, partition, next_offset, 100)
                .await
                .expect("a page");
            written += page.records.len();
            next_offset = page.next_offset;
            if page.at_end {
                break;
            }
        }
    }
    assert_eq!(written, taken);
    log.produce(record(Topic::Webhooks, "key", "later"))
        .await
        .expect("room again");
}

/// Whoever stops waiting for an acknowledgement stops nobody else.
pub async fn dropped_produce_harms_nothing<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    for n in 0..20 {
        let given_up = log
            .produce(record(Topic::Webhooks, "key", n.to_string()))
            .now_or_never();
        drop(given_up);
    }
    produce_all(
        &log,
        (0..20)
            .map(|n| record(Topic::Webhooks, "key", n.to_string()))
            .collect(),
    )
    .await;
    assert_eq!(log.ready(), Ok(()));
}

/// A log that works says so, and a flush of nothing ends.
pub async fn ready_and_flush<H: Harness>(harness: &H) {
    let log = harness.fresh().await;
    produce_all(&log, vec![record(Topic::Webhooks, "key", "value")]).await;
    assert_eq!(log.ready(), Ok(()));
    let flushed =
        tokio::time::timeout(harness.patience(), log.flush(Duration::from_secs(600))).await;
    assert_eq!(
        flushed,
        Ok(()),
        "a flush ends when there is nothing left to acknowledge"
    );
}
