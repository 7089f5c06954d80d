//! From the spool to the log.
//!
//! The order of effects: 1 read from the spool, 2 acknowledged by the log (or kept aside on the disk), 3 the watermark is
//! noted, 4 it is committed and the record deleted. A crash between any two of them produces again and loses nothing.

use super::{ASIDE, Shared, Spool, WAITING, bytes_of, level::Ended};
use crate::app::App;
use event_log::{
    Consumer, Event, EventLog, LogError, ProduceError, Received, Record, Watermark,
    embedded::EmbeddedConsumer,
};
use futures::future::join_all;
use schemas::Topic;
use std::{future::Future, time::Duration};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Records taken from the spool at once. The embedded log bounds their bytes: 16 MiB, or one record.
const BATCH_RECORDS_MAX: usize = 256;
/// One record's way to the log. Longer than the log's own patience (Kafka's is 8 s): whoever gives up first may have the
/// record written twice.
const PRODUCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between tries of a log that does not take anything: doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// At the end, what is on its way to the log is waited for so long.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// At the end, the watermark is committed within this time.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// Moves what is in the spool to the log. One for each spool.
#[derive(Debug)]
pub struct Drain {
    spool: Spool,
    consumer: EmbeddedConsumer,
}

/// Records of one look into the spool that are not finished, in order.
struct Batch {
    open: Vec<Received>,
    /// One for each topic of the batch: as it stands when nothing of it is open any more.
    ends: Vec<Watermark>,
}

/// What became of a record that was offered to the log.
enum Offered {
    Acknowledged,
    /// Never to be taken as it is.
    TooLarge {
        bytes: usize,
    },
    Failed(String),
}

// === impl Drain ===

impl Drain {
    pub(super) fn new(spool: Spool, consumer: EmbeddedConsumer) -> Self {
        Self { spool, consumer }
    }

    /// Drains into the log of `app` until `stop`; what is left stays for the next start.
    ///
    /// # Errors
    /// When the spool can not be read any more.
    pub async fn run<L: EventLog>(
        mut self,
        app: App<L>,
        stop: CancellationToken,
    ) -> Result<(), LogError> {
        let mut pause = PAUSE_MIN;
        loop {
            let read = self.consumer.next(BATCH_RECORDS_MAX);
            let events = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                events = read => events,
            };
            let batch = match events {
                Ok(events) => Batch::new(events),
                Err(error @ LogError::Fatal(_)) => return Err(error),
                Err(LogError::Unavailable(error)) => {
                    tracing::warn!(error, "the spool can not be read, trying again");
                    if !paused(&mut pause, &stop).await {
                        break;
                    }
                    continue;
                }
            };
            pause = PAUSE_MIN;
            if !self.empty(batch, &app, &stop).await {
                break;
            }
        }
        self.consumer.close(Vec::new(), CLOSE_DEADLINE).await;
        Ok(())
    }

    /// Brings a batch to its end, however long that takes. False: stopped before.
    async fn empty<L: EventLog>(
        &self,
        mut batch: Batch,
        app: &App<L>,
        stop: &CancellationToken,
    ) -> bool {
        let mut pause = PAUSE_MIN;
        // After a failure one record tries the log, not all of them.
        let mut width = batch.open.len();
        while let Some(first) = batch.open.first() {
            if stop.is_cancelled() {
                return false;
            }
            if first.topic == WAITING {
                self.spool.shared.level().oldest_ms = Some(first.appended_at_ms);
            }
            let mut failed = true;
            if app.inner().log.ready().is_ok() {
                let round = self.round(&batch, width, app);
                let Some(finished) = until_stopped(round, stop).await else {
                    return false;
                };
                failed = finished.contains(&false);
                batch.finish(&finished);
                self.consumer.commit(batch.watermarks());
            }
            if !failed {
                pause = PAUSE_MIN;
                width = batch.open.len();
                continue;
            }
            width = 1;
            if !paused(&mut pause, stop).await {
                return false;
            }
        }
        true
    }

    /// Offers the first `width` records to the log, in order and without waiting in between. Says which are finished.
    async fn round<L: EventLog>(&self, batch: &Batch, width: usize, app: &App<L>) -> Vec<bool> {
        let shared = &self.spool.shared;
        let offers = batch.open.iter().take(width).map(|record| async move {
            match offer(app, record).await {
                Offered::Acknowledged => shared.left(record, true),
                Offered::TooLarge { bytes } => {
                    if !shared.keep_aside(record, bytes).await {
                        return false;
                    }
                    shared.left(record, false);
                }
                Offered::Failed(error) => {
                    tracing::debug!(error, "a spooled webhook was not acknowledged");
                    return false;
                }
            }
            true
        });
        join_all(offers).await
    }
}

// === impl Batch ===

impl Batch {
    fn new(events: Vec<Event>) -> Self {
        let records = events.into_iter().filter_map(|event| match event {
            Event::Record(record) => Some(record),
            Event::Assigned { .. } | Event::Revoked(_) => None,
        });
        let open: Vec<Received> = records.collect();
        let mut ends: Vec<Watermark> = Vec::new();
        for record in &open {
            ends.retain(|end| end.topic != record.topic);
            ends.push(Watermark {
                topic: record.topic,
                partition: record.partition,
                epoch: record.epoch,
                next_offset: record.offset + 1,
            });
        }
        Self { open, ends }
    }

    /// Takes out what is finished, by place.
    fn finish(&mut self, finished: &[bool]) {
        let mut finished = finished.iter().copied();
        self.open.retain(|_| !finished.next().unwrap_or(false));
    }

    /// Never beyond a record that is open.
    fn watermarks(&self) -> Vec<Watermark> {
        let watermark = |end: &Watermark| {
            let open = self.open.iter().filter(|record| record.topic == end.topic);
            let first = open.map(|record| record.offset).min();
            Watermark {
                next_offset: first.unwrap_or(end.next_offset),
                ..*end
            }
        };
        self.ends.iter().map(watermark).collect()
    }
}

// === impl Shared ===

impl Shared {
    /// Keeps a record that the log will not take as it is. True: it is on the disk.
    async fn keep_aside(&self, record: &Received, bytes: usize) -> bool {
        tracing::error!(
            bytes,
            "a spooled webhook is larger than the log takes: it is kept in the spool and tried again in an hour"
        );
        self.metrics.set_aside.add(1, &[]);
        let kept = self.log.produce(to_record(record, ASIDE)).await;
        if let Err(error) = &kept {
            tracing::warn!(%error, "the spool can not be written, trying again");
        }
        kept.is_ok()
    }

    /// A record has left its place: for the log, or for where those stand that are kept aside.
    fn left(&self, record: &Received, to_log: bool) {
        let bytes = bytes_of(&record.key, &record.value, &record.headers);
        let now_ms = self.clock.now_ms();
        if to_log {
            self.metrics.drained.add(1, &[]);
        }
        let mut level = self.level();
        let ended = match (record.topic == WAITING, to_log) {
            (true, true) => level.drained(bytes, now_ms),
            (true, false) => level.set_aside(bytes, now_ms),
            (false, true) => {
                level.aside.subtract(bytes);
                None
            }
            (false, false) => None,
        };
        drop(level);
        if let Some(Ended { drained, lasted_ms }) = ended {
            tracing::info!(drained, lasted_ms, "the spool is empty again");
        }
    }
}

// === helpers ===

async fn offer<L: EventLog>(app: &App<L>, record: &Received) -> Offered {
    let inner = app.inner();
    let produced = inner.log.produce(to_record(record, Topic::Webhooks));
    match timeout(PRODUCE_TIMEOUT, produced).await {
        Ok(Ok(_)) => {
            inner.outage.acknowledged(Instant::now());
            Offered::Acknowledged
        }
        Ok(Err(ProduceError::TooLarge { bytes })) => Offered::TooLarge { bytes },
        Ok(Err(error)) => Offered::Failed(error.to_string()),
        Err(_) => Offered::Failed("no answer in time".to_owned()),
    }
}

fn to_record(record: &Received, topic: Topic) -> Record {
    Record {
        topic,
        key: record.key.clone(),
        value: record.value.clone(),
        headers: record.headers.clone(),
    }
}

/// Waits for `work`, at the end only a little longer. None: given up.
async fn until_stopped<T>(work: impl Future<Output = T>, stop: &CancellationToken) -> Option<T> {
    let patience = async {
        stop.cancelled().await;
        sleep(STOP_PATIENCE).await;
    };
    tokio::select! {
        done = work => Some(done),
        () = patience => None,
    }
}

/// Waits for `pause` and doubles it. False: asked to stop.
async fn paused(pause: &mut Duration, stop: &CancellationToken) -> bool {
    let going_on = tokio::select! {
        biased;
        () = stop.cancelled() => false,
        () = sleep(*pause) => true,
    };
    *pause = (*pause * 2).min(PAUSE_MAX);
    going_on
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use event_log::Epoch;

    fn record(topic: Topic, offset: i64) -> Event {
        Event::Record(Received {
            topic,
            partition: 0,
            offset,
            epoch: Epoch(3),
            appended_at_ms: 0,
            key: Bytes::new(),
            value: Bytes::new(),
            headers: Vec::new(),
        })
    }

    #[test]
    fn the_watermark_never_passes_an_open_record() {
        let assigned = Event::Assigned {
            partition: 0,
            epoch: Epoch(3),
        };
        let events = [
            assigned,
            record(WAITING, 7),
            record(ASIDE, 2),
            record(WAITING, 8),
            record(WAITING, 12),
        ];
        let mut batch = Batch::new(events.into());
        let next = |batch: &Batch| {
            let next = |topic| {
                let watermarks = batch.watermarks().into_iter();
                let mut of_topic = watermarks.filter(|watermark| watermark.topic == topic);
                let next = of_topic.next().map(|watermark| watermark.next_offset);
                assert!(of_topic.next().is_none());
                next.expect("one of each topic")
            };
            (next(WAITING), next(ASIDE))
        };
        assert_eq!(next(&batch), (7, 2));
        batch.finish(&[false, true, true]);
        assert_eq!(next(&batch), (7, 3), "8 is finished, 7 is not");
        batch.finish(&[true]);
        assert_eq!(next(&batch), (12, 3));
        batch.finish(&[true]);
        assert_eq!(next(&batch), (13, 3));
        assert!(batch.watermarks().iter().all(|w| w.epoch == Epoch(3)));
        assert!(batch.open.is_empty());
    }
}
