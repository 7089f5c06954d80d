//! The memory log, with faults at what the dispatcher appends.

use super::faults::{Faults, Step};
use event_log::{
    Appended, EventLog, LogError, Page, ProduceError, Record,
    memory::{MemoryConsumer, MemoryLog},
};
use schemas::Topic;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct FakeLog {
    pub(crate) inner: MemoryLog,
    pub(crate) faults: Faults,
}

impl EventLog for FakeLog {
    type Consumer = MemoryConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        let step = match record.topic {
            Topic::DeadLetters => Step::Letter,
            Topic::Delay(_) | Topic::Webhooks => Step::Hop,
        };
        let answer = self.faults.around(step, self.inner.produce(record)).await;
        answer.unwrap_or_else(|_| Err(ProduceError::Unacknowledged("a fault".to_owned())))
    }

    async fn consumer(&self) -> Result<MemoryConsumer, LogError> {
        self.inner.consumer().await
    }

    fn partitions(&self) -> u32 {
        self.inner.partitions()
    }

    async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        self.inner.read(topic, partition, from_offset, max).await
    }

    fn ready(&self) -> Result<(), LogError> {
        self.inner.ready()
    }

    async fn flush(&self, deadline: Duration) {
        self.inner.flush(deadline).await;
    }
}
