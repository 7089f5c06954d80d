//! A log that does as it is told.

use event_log::{
    Appended, Consumer, Event, EventLog, LogError, Page, Position, ProduceError, Record, Room,
    Watermark,
};
use schemas::Topic;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::watch;

#[derive(Clone, Debug)]
pub(crate) struct FakeLog {
    state: Arc<Mutex<State>>,
    /// Records that wait to be acknowledged stand behind this.
    open: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    error: Option<ProduceError>,
    not_ready: bool,
    asked: Vec<Record>,
    acknowledged: usize,
    flushed: usize,
}

/// Ingest has none.
#[derive(Debug)]
pub(crate) enum NoConsumer {}

impl FakeLog {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            open: watch::Sender::new(true),
        }
    }

    pub(crate) fn failing(error: ProduceError) -> Self {
        let log = Self::new();
        log.state.lock().unwrap().error = Some(error);
        log
    }

    pub(crate) fn not_ready() -> Self {
        let log = Self::new();
        log.state.lock().unwrap().not_ready = true;
        log
    }

    /// Acknowledges nothing until [`Self::release`].
    pub(crate) fn holding() -> Self {
        let log = Self::new();
        log.open.send_replace(false);
        log
    }

    pub(crate) fn release(&self) {
        self.open.send_replace(true);
    }

    pub(crate) fn asked(&self) -> Vec<Record> {
        self.state.lock().unwrap().asked.clone()
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.state.lock().unwrap().acknowledged
    }

    pub(crate) fn flushed(&self) -> usize {
        self.state.lock().unwrap().flushed
    }
}

impl EventLog for FakeLog {
    type Consumer = NoConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        let error = {
            let mut state = self.state.lock().unwrap();
            state.asked.push(record);
            state.error.clone()
        };
        self.open.subscribe().wait_for(|open| *open).await.unwrap();
        if let Some(error) = error {
            return Err(error);
        }
        self.state.lock().unwrap().acknowledged += 1;
        Ok(Appended {
            partition: 0,
            offset: 0,
        })
    }

    async fn consumer(&self) -> Result<NoConsumer, LogError> {
        Err(LogError::Fatal("none".to_owned()))
    }

    fn partitions(&self) -> u32 {
        1
    }

    async fn read(&self, _: Topic, _: u32, _: i64, _: usize) -> Result<Page, LogError> {
        Ok(Page::default())
    }

    fn ready(&self) -> Result<(), LogError> {
        if self.state.lock().unwrap().not_ready {
            return Err(LogError::Unavailable("no broker".to_owned()));
        }
        Ok(())
    }

    async fn flush(&self, _: Duration) {
        self.state.lock().unwrap().flushed += 1;
    }
}

impl Consumer for NoConsumer {
    async fn next(&mut self, _: impl Into<Room> + Send) -> Result<Vec<Event>, LogError> {
        match *self {}
    }

    fn commit(&self, _: Vec<Watermark>) {
        match *self {}
    }

    fn positions(&self) -> Vec<Position> {
        match *self {}
    }

    async fn close(self, _: Vec<Watermark>, _: Duration) {
        match self {}
    }
}
