//! The one consumer of an embedded log: owns every partition from the start.

use super::{
    Inner,
    reader::{ANSWER_BYTES_MAX, Answer, Ask, Request},
    row,
    row::Slot,
};
use crate::{Consumer, Epoch, Event, LogError, Position, Received, Room, Watermark};
use schemas::Topic;
use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    time,
};

/// Records asked of the reader at least: a dispatcher that works at its limit has room for one at a time, and each ask costs
/// a query and two thread switches. Those that do not fit wait in memory, and they are due.
const READ_AHEAD: usize = 64;
/// Longest sleep before the clock is looked at again: it may have been set.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Reads with ownership of every partition.
#[derive(Debug)]
pub struct EmbeddedConsumer {
    inner: Arc<Inner>,
    epoch: Epoch,
    appended: watch::Receiver<u64>,
    /// Ownership that was not told yet.
    assigned: VecDeque<Event>,
    streams: Vec<Stream>,
    /// What the reader works on. Kept here, so that a dropped future loses nothing.
    reading: Option<Reading>,
    /// Read, but there was no room any more, or their partition is full.
    read: VecDeque<Received>,
    turn: usize,
}

/// One topic and partition.
#[derive(Debug)]
struct Stream {
    topic: Topic,
    partition: u32,
    /// Next offset to be read.
    read_offset: i64,
    /// Next offset to be handed out.
    next_offset: i64,
    /// When the record at `read_offset` becomes due, when that is known and lies ahead.
    due_at_ms: Option<i64>,
}

#[derive(Debug)]
struct Reading {
    /// Places in `streams`, in the order of the request.
    asked: Vec<usize>,
    answer: oneshot::Receiver<Result<Answer, LogError>>,
}

// === impl EmbeddedConsumer ===

impl EmbeddedConsumer {
    pub(super) fn new(inner: Arc<Inner>, epoch: Epoch) -> Self {
        let partitions = inner.shared.partitions;
        let consumed = row::all(partitions).filter(|(topic, _)| is_consumed(*topic));
        let streams = consumed.map(|(topic, partition)| {
            let committed = inner
                .shared
                .slot(topic, partition)
                .map_or(0, |slot| slot.committed.load(Ordering::Acquire));
            let due_at_ms = None;
            Stream {
                topic,
                partition,
                read_offset: committed,
                next_offset: committed,
                due_at_ms,
            }
        });
        Self {
            epoch,
            appended: inner.appended.clone(),
            assigned: (0..partitions)
                .map(|partition| Event::Assigned { partition, epoch })
                .collect(),
            streams: streams.collect(),
            reading: None,
            read: VecDeque::new(),
            turn: 0,
            inner,
        }
    }

    /// Asks the reader for what there may be; says when to look again when there can be nothing.
    fn ask(&mut self, room: &Room) -> Result<Option<Duration>, LogError> {
        let now_ms = self.inner.shared.clock.now_ms();
        let mut asked = Vec::new();
        let mut asks = Vec::new();
        let mut main = 0;
        let mut sleep = SLEEP_MAX;
        for (place, stream) in self.streams.iter().enumerate() {
            let end_offset = self.end_offset(stream);
            // A full partition has nothing to wait for here either: whoever makes room asks again.
            if stream.read_offset >= end_offset || room.of(stream.partition) == 0 {
                continue;
            }
            if let Some(due_at_ms) = stream.due_at_ms
                && due_at_ms > now_ms
            {
                sleep = sleep.min(Duration::from_millis(due_at_ms.abs_diff(now_ms)));
                continue;
            }
            let delay_ms = delay_ms(stream.topic);
            main += usize::from(delay_ms.is_none());
            asked.push(place);
            asks.push(Ask {
                topic: stream.topic,
                partition: stream.partition,
                from_offset: stream.read_offset,
                end_offset,
                appended_until_ms: delay_ms.map_or(i64::MAX, |ms| now_ms.saturating_sub(ms)),
                records_max: room.of(stream.partition).max(READ_AHEAD),
            });
        }
        if asks.is_empty() {
            return Ok(Some(sleep));
        }
        let (sender, answer) = oneshot::channel();
        let (turn, epoch) = (self.turn, self.epoch);
        self.turn = turn.wrapping_add(1);
        self.inner.request(Request {
            asks,
            main,
            room: room.records().max(READ_AHEAD),
            turn,
            epoch,
            answer: sender,
        })?;
        self.reading = Some(Reading { asked, answer });
        Ok(None)
    }

    /// Waits for the reader's answer.
    async fn receive(&mut self) -> Result<(), LogError> {
        let Some(reading) = &mut self.reading else {
            return Ok(());
        };
        let answer = (&mut reading.answer).await;
        let asked = mem::take(&mut reading.asked);
        self.reading = None;
        let answer = answer.map_err(|_closed| ended())??;
        for (place, head) in asked.into_iter().zip(answer.heads) {
            let Some(stream) = self.streams.get_mut(place) else {
                continue;
            };
            stream.read_offset = head.next_offset;
            let delay_ms = delay_ms(stream.topic).unwrap_or_default();
            stream.due_at_ms = head.appended_at_ms.map(|ms| ms.saturating_add(delay_ms));
        }
        self.read.extend(answer.records);
        Ok(())
    }

    fn hand_out(&mut self, room: &mut Room) -> Vec<Event> {
        let mut records = Vec::new();
        let mut kept = VecDeque::new();
        while room.records() > 0
            && let Some(record) = self.read.pop_front()
        {
            if room.take(record.partition) {
                records.push(record);
            } else {
                kept.push_back(record);
            }
        }
        if !kept.is_empty() {
            kept.append(&mut self.read);
            self.read = kept;
        }
        for record in &records {
            // The streams stand in the order of all slots: the one topic that is left out comes last there.
            let place = row::index(record.topic, record.partition, self.inner.shared.partitions);
            if let Some(stream) = self.streams.get_mut(place) {
                stream.next_offset = record.offset + 1;
            }
        }
        records.into_iter().map(Event::Record).collect()
    }

    /// Forgets what was read and has no room when it is too much to be kept: it is read again when there is room.
    fn give_back(&mut self) {
        let sizes = self.read.iter();
        let bytes: usize = sizes.map(|it| it.key.len() + it.value.len()).sum();
        if bytes < ANSWER_BYTES_MAX {
            return;
        }
        let partitions = self.inner.shared.partitions;
        for record in self.read.drain(..) {
            let place = row::index(record.topic, record.partition, partitions);
            if let Some(stream) = self.streams.get_mut(place) {
                stream.read_offset = stream.next_offset;
                stream.due_at_ms = None;
            }
        }
    }

    fn end_offset(&self, stream: &Stream) -> i64 {
        let slot = self.inner.shared.slot(stream.topic, stream.partition);
        slot.map_or(0, |slot| slot.end_offset.load(Ordering::Acquire))
    }
}

impl Consumer for EmbeddedConsumer {
    async fn next(&mut self, room: impl Into<Room> + Send) -> Result<Vec<Event>, LogError> {
        let mut room = room.into();
        loop {
            if !self.assigned.is_empty() {
                return Ok(self.assigned.drain(..).collect());
            }
            let records = self.hand_out(&mut room);
            if !records.is_empty() {
                return Ok(records);
            }
            self.appended.borrow_and_update();
            let mut sleep = SLEEP_MAX;
            if room.records() > 0 {
                if self.reading.is_some() {
                    self.receive().await?;
                    continue;
                }
                self.give_back();
                match self.ask(&room)? {
                    Some(longest) => sleep = longest,
                    None => continue,
                }
            }
            tokio::select! {
                changed = self.appended.changed() => changed.map_err(|_closed| ended())?,
                () = time::sleep(sleep) => {}
            }
        }
    }

    fn commit(&self, watermarks: Vec<Watermark>) {
        let partitions = self.inner.shared.partitions;
        let current = watermarks.into_iter().filter(|watermark| {
            watermark.epoch == self.epoch
                && watermark.partition < partitions
                && is_consumed(watermark.topic)
        });
        let noted = current.map(|watermark| {
            (
                Slot::new(watermark.topic, watermark.partition),
                watermark.next_offset,
            )
        });
        self.inner.shared.queue.note(noted);
    }

    fn positions(&self) -> Vec<Position> {
        let positions = self.streams.iter().map(|stream| Position {
            topic: stream.topic,
            partition: stream.partition,
            next_offset: stream.next_offset,
            end_offset: Some(self.end_offset(stream)),
        });
        positions.collect()
    }

    async fn close(self, watermarks: Vec<Watermark>, deadline: Duration) {
        self.commit(watermarks);
        let flushed = self.inner.shared.queue.flush();
        if time::timeout(deadline, flushed).await.is_err() {
            tracing::warn!("the last watermarks were not committed in time; work will be repeated");
        }
    }
}

impl Drop for EmbeddedConsumer {
    fn drop(&mut self) {
        self.inner.consumer_open.store(false, Ordering::Release);
    }
}

// === helpers ===

/// Dead letters belong to other teams; the dispatcher does not read them.
fn is_consumed(topic: Topic) -> bool {
    topic != Topic::DeadLetters
}

fn delay_ms(topic: Topic) -> Option<i64> {
    topic
        .delay()
        .map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX))
}

fn ended() -> LogError {
    LogError::Fatal("the log's threads have ended".into())
}
