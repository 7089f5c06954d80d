//! Reading without ownership, for tools: one short-lived client a page.

use crate::{
    Epoch, LogError, Page,
    kafka::{
        client::{Clients, LogContext},
        consumer::received,
    },
};
use rdkafka::{
    Message, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    error::KafkaError,
};
use schemas::Topic;
use std::time::Duration;
use tokio::time::Instant;

const WATERMARKS_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// A page ends at this many bytes of values, whatever was asked for.
const PAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) topic: Topic,
    pub(super) partition: u32,
    pub(super) from_offset: i64,
    pub(super) max: usize,
}

/// Blocks; up to [`PAGE_TIMEOUT`] when the brokers are slow.
pub(super) fn read(clients: &Clients, range: Range, now_ms: i64) -> Result<Page, LogError> {
    let client: BaseConsumer<LogContext> = clients
        .reader()?
        .create_with_context(LogContext)
        .map_err(unavailable)?;
    let name = clients.names().name(range.topic);
    let partition = i32::try_from(range.partition)
        .map_err(|_too_large| LogError::Unavailable(format!("no partition {}", range.partition)))?;
    let (low, high) = client
        .fetch_watermarks(&name, partition, WATERMARKS_TIMEOUT)
        .map_err(unavailable)?;
    let from = range.from_offset.clamp(low, high);
    if from >= high || range.max == 0 {
        return Ok(Page {
            records: Vec::new(),
            next_offset: from,
            at_end: from >= high,
        });
    }
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&name, partition, Offset::Offset(from))
        .map_err(unavailable)?;
    client.assign(&list).map_err(unavailable)?;
    collect(&client, range, Span { from, high }, now_ms)
}

/// Offsets to be read: `high` is the first one behind.
#[derive(Clone, Copy)]
struct Span {
    from: i64,
    high: i64,
}

fn collect(
    client: &BaseConsumer<LogContext>,
    range: Range,
    span: Span,
    now_ms: i64,
) -> Result<Page, LogError> {
    let deadline = Instant::now() + PAGE_TIMEOUT;
    let mut page = Page {
        next_offset: span.from,
        ..Page::default()
    };
    let mut bytes = 0;
    while page.records.len() < range.max && bytes < PAGE_BYTES_MAX {
        match client.poll(POLL_TIMEOUT) {
            Some(Ok(message)) if message.offset() >= page.next_offset => {
                page.next_offset = message.offset().saturating_add(1);
                bytes += message.payload_len();
                page.records
                    .extend(received(&message, range.topic, Epoch(0), now_ms));
            }
            // Behind the last record; the last offsets may be gaps.
            Some(Err(KafkaError::PartitionEOF(_))) => {
                page.next_offset = page.next_offset.max(span.high);
            }
            Some(Err(error)) => return Err(unavailable(error)),
            Some(Ok(_)) | None => {}
        }
        if page.next_offset >= span.high {
            break;
        }
        if Instant::now() >= deadline {
            return Err(LogError::Unavailable("reading took too long".into()));
        }
    }
    page.at_end = page.next_offset >= span.high;
    Ok(page)
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err wants")]
fn unavailable(error: KafkaError) -> LogError {
    LogError::Unavailable(error.to_string())
}
