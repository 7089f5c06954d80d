//! The log as one process sees it: the memory log behind a network that loses and delays.

use crate::scene::{Life, Scene};
use event_log::{
    Appended, Consumer, Event, EventLog, LogError, Page, Position, ProduceError, Record, Room,
    Watermark, memory::MemoryConsumer,
};
use schemas::Topic;
use std::{future::pending, sync::Arc, time::Duration};

#[derive(Clone, Debug)]
pub(crate) struct SimLog {
    pub(crate) scene: Arc<Scene>,
    pub(crate) life: Life,
}

#[derive(Debug)]
pub(crate) struct SimConsumer {
    inner: MemoryConsumer,
    scene: Arc<Scene>,
    life: Life,
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Lost,
    Unacknowledged,
    Busy,
    Late(Duration),
    Hangs { written: bool },
}

// === impl SimLog ===

impl SimLog {
    /// Appends, and shows the oracle the record. Nothing comes between.
    async fn append(&self, record: Record) -> Result<Appended, ProduceError> {
        let appended = self.scene.log.produce(record.clone()).await?;
        let at_ms = self.scene.at_ms();
        let mut oracle = self.scene.oracle();
        let what = oracle.appended(&self.scene.codec, appended, &record);
        oracle.trace.add(at_ms, self.life.name(), &what);
        Ok(appended)
    }

    fn trouble(&self) -> Option<Trouble> {
        let (lot, weather) = (&self.scene.lot, self.scene.weather().log);
        if lot.chance(weather.lost) {
            Some(Trouble::Lost)
        } else if lot.chance(weather.unacknowledged) {
            Some(Trouble::Unacknowledged)
        } else if lot.chance(weather.busy) {
            Some(Trouble::Busy)
        } else if lot.chance(weather.late) {
            let late_ms = lot.pick(&[50, 500, 4_000]);
            Some(Trouble::Late(Duration::from_millis(late_ms)))
        } else if lot.chance(weather.hangs) {
            let written = lot.chance(0.5);
            Some(Trouble::Hangs { written })
        } else {
            None
        }
    }
}

impl EventLog for SimLog {
    type Consumer = SimConsumer;

    async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        self.life.step().await;
        let round_trip = Duration::from_millis(self.scene.lot.below(6) as u64);
        tokio::time::sleep(round_trip).await;
        let trouble = self.trouble();
        if let Some(trouble) = trouble {
            let what = format!("log: {trouble:?} {}", record.topic.suffix());
            self.scene.tell(self.life.name(), &what);
        }
        let not_known = || Err(ProduceError::Unacknowledged("simulated".to_owned()));
        let answer = match trouble {
            None => self.append(record).await,
            Some(Trouble::Lost) => not_known(),
            Some(Trouble::Unacknowledged) => {
                self.append(record).await?;
                not_known()
            }
            Some(Trouble::Busy) => Err(ProduceError::Busy),
            Some(Trouble::Late(late)) => {
                tokio::time::sleep(late).await;
                self.append(record).await
            }
            Some(Trouble::Hangs { written }) => {
                if written {
                    self.append(record).await?;
                }
                pending().await
            }
        };
        self.life.step().await;
        answer
    }

    async fn consumer(&self) -> Result<SimConsumer, LogError> {
        Ok(SimConsumer {
            inner: self.scene.log.consumer().await?,
            scene: Arc::clone(&self.scene),
            life: self.life.clone(),
        })
    }

    fn partitions(&self) -> u32 {
        self.scene.log.partitions()
    }

    async fn read(
        &self,
        topic: Topic,
        partition: u32,
        from_offset: i64,
        max: usize,
    ) -> Result<Page, LogError> {
        self.scene
            .log
            .read(topic, partition, from_offset, max)
            .await
    }

    fn ready(&self) -> Result<(), LogError> {
        self.scene.log.ready()
    }

    async fn flush(&self, _deadline: Duration) {}
}

// === impl SimConsumer ===

impl SimConsumer {
    fn look(&self) {
        let at_ms = self.scene.at_ms();
        self.scene.oracle().look_at_commits(at_ms, &self.scene.log);
    }
}

impl Consumer for SimConsumer {
    async fn next(&mut self, room: impl Into<Room> + Send) -> Result<Vec<Event>, LogError> {
        self.life.step().await;
        let mut room = room.into();
        let events = self.inner.next(room.clone()).await?;
        self.look();
        let mut beyond = 0;
        for event in &events {
            let what = match event {
                Event::Assigned { partition, epoch } => format!("owns {partition}, {epoch:?}"),
                Event::Revoked(revoked) => {
                    format!("gives up {:?}, lost {}", revoked.partitions, revoked.lost)
                }
                Event::Record(record) => {
                    beyond += usize::from(!room.take(record.partition));
                    let now_ms = self.scene.clock.now_ms();
                    self.scene.oracle().handed_out(now_ms, record)
                }
            };
            self.scene.tell(self.life.name(), &what);
        }
        if beyond > 0 {
            let what = format!("{beyond} records more than there was room for");
            self.scene.oracle().violated(7, what, None);
        }
        Ok(events)
    }

    fn commit(&self, watermarks: Vec<Watermark>) {
        self.inner.commit(watermarks);
        self.look();
    }

    fn positions(&self) -> Vec<Position> {
        self.inner.positions()
    }

    async fn close(self, watermarks: Vec<Watermark>, deadline: Duration) {
        self.life.step().await;
        let scene = Arc::clone(&self.scene);
        self.inner.close(watermarks, deadline).await;
        let at_ms = scene.at_ms();
        scene.oracle().look_at_commits(at_ms, &scene.log);
    }
}
