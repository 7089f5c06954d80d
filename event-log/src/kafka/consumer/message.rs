//! Between librdkafka's words and ours: errors, records, offsets.

use crate::{Epoch, LogError, Received, Watermark};
use bytes::Bytes;
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext},
    error::{KafkaError, RDKafkaErrorCode},
    message::{BorrowedMessage, Headers as _},
};
use schemas::{Topic, TopicNames};

/// What the dispatcher must hear of; none: the client heals it by itself.
pub(super) fn poll_error(error: &KafkaError) -> Option<LogError> {
    if let KafkaError::MessageConsumptionFatal(code) = error {
        return Some(LogError::Fatal(fatal_text(error, *code)));
    }
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::Fatal) => Some(LogError::Fatal(error.to_string())),
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownPartition
            | RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::SaslAuthenticationFailed
            | RDKafkaErrorCode::Authentication,
        ) => Some(LogError::Unavailable(error.to_string())),
        Some(_) | None => None,
    }
}

/// What ends the process, with what there is to be done.
fn fatal_text(error: &KafkaError, code: RDKafkaErrorCode) -> String {
    let same_name = matches!(
        code,
        RDKafkaErrorCode::FencedInstanceId | RDKafkaErrorCode::UnreleasedInstanceId
    );
    if same_name {
        // Brokers end the older member with the classic protocol, the newer one with `consumer`.
        format!(
            "another process is in the group with the same log.group_instance_id, each needs one of its own: {error}"
        )
    } else {
        error.to_string()
    }
}

/// Copies a record out of the client's buffer: the copy that lets the buffer go.
pub(in crate::kafka) fn received(
    message: &BorrowedMessage<'_>,
    topic: Topic,
    epoch: Epoch,
    now_ms: i64,
) -> Option<Received> {
    let headers = message.headers().map(|headers| {
        headers
            .iter()
            .map(|header| {
                (
                    header.key.to_owned(),
                    Bytes::copy_from_slice(header.value.unwrap_or_default()),
                )
            })
            .collect()
    });
    Some(Received {
        topic,
        partition: u32::try_from(message.partition()).ok()?,
        offset: message.offset(),
        epoch,
        // A log without append times can not say when a record was appended: now at the earliest, so it is never early.
        appended_at_ms: message.timestamp().to_millis().unwrap_or(now_ms),
        key: Bytes::copy_from_slice(message.key().unwrap_or_default()),
        value: Bytes::copy_from_slice(message.payload().unwrap_or_default()),
        headers: headers.unwrap_or_default(),
    })
}

/// The one way from watermarks to offsets: an offset in the list is the next one to be read, as it is.
pub(super) fn offsets(
    names: &TopicNames,
    watermarks: &[Watermark],
    delay: bool,
) -> Option<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for watermark in watermarks {
        if matches!(watermark.topic, Topic::Delay(_)) != delay {
            continue;
        }
        let Ok(partition) = i32::try_from(watermark.partition) else {
            continue;
        };
        let name = names.name(watermark.topic);
        let offset = Offset::Offset(watermark.next_offset);
        if let Err(error) = list.add_partition_offset(&name, partition, offset) {
            tracing::warn!(%error, ?watermark, "watermark can not be committed");
        }
    }
    (list.count() > 0).then_some(list)
}

/// Commits and logs a failure; never panics: a failed commit repeats work and loses nothing.
pub(super) fn commit<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    offsets: Option<&TopicPartitionList>,
    mode: CommitMode,
) -> bool {
    let Some(offsets) = offsets else { return true };
    match client.commit(offsets, mode) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, ?mode, "commit failed");
            false
        }
    }
}
