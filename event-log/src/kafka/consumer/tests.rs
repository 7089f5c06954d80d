use super::*;
use crate::Epoch;

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
    assert_eq!(wait_for_due(1, Some(120), 100), Some(ms(20)));
    assert_eq!(wait_for_due(1, Some(90), 100), Some(ms(0)));
    assert_eq!(wait_for_due(1, Some(99_999), 0), Some(DUE_WAIT_MAX));
    assert_eq!(wait_for_due(1, None, 0), None);
    assert_eq!(wait_for_due(0, Some(90), 100), None, "would spin");
}

#[test]
fn only_what_does_not_heal_is_told() {
    let fatal = KafkaError::MessageConsumptionFatal(RDKafkaErrorCode::UnknownMemberId);
    assert!(matches!(poll_error(&fatal), Some(LogError::Fatal(_))));
    let code = |code| poll_error(&KafkaError::MessageConsumption(code));
    assert!(matches!(
        code(RDKafkaErrorCode::UnknownTopicOrPartition),
        Some(LogError::Unavailable(_))
    ));
    assert_eq!(code(RDKafkaErrorCode::BrokerTransportFailure), None);
    assert_eq!(code(RDKafkaErrorCode::PollExceeded), None);
}
