//! Room for so many connections. When it is used up, those that do nothing give way to new ones: else whoever opens enough
//! connections and sends nothing would keep all others out. Nor does it help to send something all the time: those whose last
//! request was not signed end with their next answer.

use super::life::Life;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

/// A connection may wait this long for its next request before it can be closed for another's sake: a client that sends
/// one webhook after the other is never the one.
const WAITING_MIN: Duration = Duration::from_secs(1);
/// How often it is looked for one that may be closed, while there is none.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(super) struct Room {
    permits: Arc<Semaphore>,
    /// Connections that are served, by number. As many as there are permits at most.
    lives: Arc<Mutex<HashMap<u64, Arc<Life>>>>,
    numbers: Arc<AtomicU64>,
}

/// One connection's place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Room,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

// === impl Room ===

impl Room {
    pub(super) fn new(connections_max: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(connections_max)),
            lives: Arc::default(),
            numbers: Arc::default(),
        }
    }

    /// A place for `life`, as soon as there is one; `closed` is told of each connection that is cut off for it. Cancel-safe.
    pub(super) async fn enter(&self, life: &Arc<Life>, closed: impl Fn()) -> Option<Place> {
        let permits = || Arc::clone(&self.permits);
        loop {
            if let Ok(permit) = permits().try_acquire_owned() {
                return Some(self.take(life, permit));
            }
            if self.make(Instant::now()) {
                closed();
            }
            if let Ok(permit) = timeout(LOOK_EVERY, permits().acquire_owned()).await {
                return Some(self.take(life, permit.ok()?));
            }
        }
    }

    fn take(&self, life: &Arc<Life>, permit: OwnedSemaphorePermit) -> Place {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.lives
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number, Arc::clone(life));
        Place {
            room: self.clone(),
            number,
            _permit: permit,
        }
    }

    /// Tells all that a place is wanted, and cuts off the one that has waited longest, if one has waited long enough.
    fn make(&self, now: Instant) -> bool {
        let lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.values().for_each(|life| life.is_wanted());
        let waiting = lives
            .values()
            .filter(|life| !life.cut.is_cancelled())
            .filter_map(|life| Some((life.waiting_since()?, life)))
            .filter(|(since, _)| *since + WAITING_MIN <= now);
        let Some((_, longest)) = waiting.min_by_key(|(since, _)| *since) else {
            return false;
        };
        longest.cut.cancel();
        true
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        self.room
            .lives
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio_util::sync::CancellationToken;

    fn life(now: Instant) -> Arc<Life> {
        Life::new(now, CancellationToken::new())
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_one_gives_way_and_a_busy_one_never() {
        let room = Room::new(3);
        let closed = AtomicUsize::new(0);
        let count = || {
            closed.fetch_add(1, Ordering::Relaxed);
        };
        let start = Instant::now();
        let lives = [0, 1, 2].map(|ms| life(start + Duration::from_millis(ms)));
        let mut places = Vec::new();
        for life in &lives {
            places.push(room.enter(life, count).await);
        }
        let busy = lives[0].begin();
        // As its task would: a connection that is cut off gives its place back.
        let ended = tokio::spawn({
            let (cut, place) = (lives[1].cut.clone(), places.swap_remove(1));
            async move {
                cut.cancelled().await;
                drop(place);
            }
        });
        let fourth = life(Instant::now());
        let place = timeout(Duration::from_secs(60), room.enter(&fourth, count)).await;
        let place = place.expect("nobody gave way");
        assert!(Instant::now() >= start + WAITING_MIN, "closed at once");
        ended.await.unwrap();
        assert_eq!(closed.load(Ordering::Relaxed), 1);
        assert!(!lives[0].cut.is_cancelled() && !lives[2].cut.is_cancelled());
        drop((places, place, busy));
        assert!(room.lives.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn while_all_are_busy_one_waits() {
        let room = Room::new(1);
        let first = life(Instant::now());
        let place = room.enter(&first, || {}).await;
        let busy = first.begin();
        let second = life(Instant::now());
        let entered = timeout(Duration::from_secs(60), room.enter(&second, || {})).await;
        assert!(entered.is_err());
        assert!(!first.cut.is_cancelled());
        drop((busy, place));
        assert!(room.enter(&second, || {}).await.is_some());
    }
}
