//! A member of the group in memory.

use super::{
    Shared,
    group::{MemberId, News},
    state::{Head, State},
};
use crate::{
    Consumer, Epoch, Event, LogError, Position, Release, Revoked, Room, Watermark,
    fair::{self, Streams},
};
use schemas::Topic;
use std::{collections::BTreeMap, convert::Infallible, pin::pin, sync::Arc, time::Duration};
use tokio::{sync::oneshot, time};

/// How long a revocation waits for its answer, of tokio's time.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);
/// Longest sleep before the clock is looked at again: it may have been set.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A member of the group. Dropping it without [`Consumer::close`] is a crash.
#[derive(Debug)]
pub struct MemoryConsumer {
    shared: Arc<Shared>,
    member: MemberId,
    owned: BTreeMap<u32, Epoch>,
    /// Next offset to be handed out.
    positions: BTreeMap<(Topic, u32), i64>,
    turn: usize,
}

// === impl MemoryConsumer ===

impl MemoryConsumer {
    pub(super) fn new(shared: Arc<Shared>, member: MemberId) -> Self {
        let (owned, positions) = (BTreeMap::new(), BTreeMap::new());
        Self {
            shared,
            member,
            owned,
            positions,
            turn: 0,
        }
    }

    /// What there is to tell about ownership.
    fn ownership(&mut self, state: &mut State) -> Vec<Event> {
        let news = state.group.take_news(self.member);
        news.into_iter()
            .map(|news| self.tell(state, news))
            .collect()
    }

    fn tell(&mut self, state: &State, news: News) -> Event {
        match news {
            News::Assigned { partition, epoch } => {
                self.owned.insert(partition, epoch);
                for topic in consumed() {
                    let next_offset = state.committed(topic, partition);
                    self.positions.insert((topic, partition), next_offset);
                }
                Event::Assigned { partition, epoch }
            }
            News::Revoked { partitions, lost } => {
                for (partition, _) in &partitions {
                    self.owned.remove(partition);
                    self.positions.retain(|(_, owned), _| owned != partition);
                }
                let (release, answer) = Release::new();
                if !lost {
                    let shared = Arc::clone(&self.shared);
                    // Ends with the answer or after its patience, whichever comes first.
                    drop(tokio::spawn(give_up(shared, partitions.clone(), answer)));
                }
                Event::Revoked(Revoked {
                    partitions,
                    lost,
                    release,
                })
            }
        }
    }

    /// Due records, at most `room`, and when to look again when there are none.
    fn records(&mut self, state: &State, mut room: Room) -> (Vec<Event>, Duration) {
        let now_ms = self.shared.clock.now_ms();
        let (mut main, mut delay) = (Vec::new(), Vec::new());
        let mut sleep = SLEEP_MAX;
        for ((topic, partition), offset) in &self.positions {
            let Some(epoch) = self.owned.get(partition) else {
                continue;
            };
            if room.of(*partition) == 0 || !state.group.keeps(self.member, *partition, *epoch) {
                continue;
            }
            match state.head(*topic, *partition, *offset, now_ms) {
                Head::End => {}
                Head::DueAt(ms) => sleep = sleep.min(Duration::from_millis(ms.abs_diff(now_ms))),
                Head::Ready(_) if topic.delay().is_none() => main.push((*topic, *partition)),
                Head::Ready(_) => delay.push((*topic, *partition)),
            }
        }
        let streams = Streams {
            main: main.len(),
            delay: delay.len(),
        };
        let ready: Vec<_> = main.into_iter().chain(delay).collect();
        let mut events = Vec::new();
        let filled: Result<(), Infallible> =
            fair::fill(room.records(), self.turn, streams, |stream, limit| {
                let Some((topic, partition)) = ready.get(stream).copied() else {
                    return Ok(0);
                };
                let limit = limit.min(room.of(partition));
                let taken = self.take(state, (topic, partition), limit, now_ms, &mut events);
                for _ in 0..taken {
                    room.take(partition);
                }
                Ok(taken)
            });
        filled.unwrap_or_else(|never| match never {});
        if !events.is_empty() {
            self.turn = self.turn.wrapping_add(1);
        }
        (events, sleep)
    }

    fn take(
        &mut self,
        state: &State,
        (topic, partition): (Topic, u32),
        limit: usize,
        now_ms: i64,
        events: &mut Vec<Event>,
    ) -> usize {
        let (Some(epoch), Some(position)) = (
            self.owned.get(&partition),
            self.positions.get_mut(&(topic, partition)),
        ) else {
            return 0;
        };
        let before = events.len();
        while events.len() - before < limit
            && let Head::Ready(record) = state.head(topic, partition, *position, now_ms)
        {
            *position = record.offset + 1;
            let mut record = record.clone();
            record.epoch = *epoch;
            events.push(Event::Record(record));
        }
        events.len() - before
    }
}

impl Consumer for MemoryConsumer {
    async fn next(&mut self, room: impl Into<Room> + Send) -> Result<Vec<Event>, LogError> {
        let room = room.into();
        let shared = Arc::clone(&self.shared);
        loop {
            let mut changed = pin!(shared.changed.notified());
            // From here on nothing is missed, although it is awaited only below.
            changed.as_mut().enable();
            let sleep = {
                let mut state = shared.lock();
                if state.failing_reads > 0 {
                    state.failing_reads -= 1;
                    return Err(LogError::Unavailable("a fault was asked for".into()));
                }
                let events = self.ownership(&mut state);
                if !events.is_empty() {
                    return Ok(events);
                }
                let (events, sleep) = self.records(&state, room.clone());
                if !events.is_empty() {
                    return Ok(events);
                }
                sleep
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = time::sleep(sleep) => {}
            }
        }
    }

    fn commit(&self, watermarks: Vec<Watermark>) {
        self.shared.lock().commit(&watermarks);
    }

    fn positions(&self) -> Vec<Position> {
        let state = self.shared.lock();
        let positions = self
            .positions
            .iter()
            .map(|((topic, partition), next_offset)| Position {
                topic: *topic,
                partition: *partition,
                next_offset: *next_offset,
                end_offset: Some(state.end_offset(*topic, *partition)),
            });
        positions.collect()
    }

    async fn close(self, watermarks: Vec<Watermark>, _deadline: Duration) {
        self.commit(watermarks);
    }
}

impl Drop for MemoryConsumer {
    fn drop(&mut self) {
        self.shared.lock().group.leave(self.member);
        self.shared.rebalance();
    }
}

// === helpers ===

/// Waits for the answer to a revocation, commits it and gives the partitions to somebody else.
async fn give_up(
    shared: Arc<Shared>,
    partitions: Vec<(u32, Epoch)>,
    answer: oneshot::Receiver<Vec<Watermark>>,
) {
    let answer = time::timeout(RELEASE_PATIENCE, answer).await;
    let watermarks = answer.ok().and_then(Result::ok).unwrap_or_default();
    {
        let mut state = shared.lock();
        state.commit(&watermarks);
        for (partition, epoch) in partitions {
            state.group.release(partition, epoch);
        }
    }
    shared.rebalance();
}

/// What the dispatcher reads; dead letters belong to other teams.
fn consumed() -> impl Iterator<Item = Topic> {
    Topic::ALL
        .into_iter()
        .filter(|topic| *topic != Topic::DeadLetters)
}
