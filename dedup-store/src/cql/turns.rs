//! The limit on statements in flight.
//!
//! Conditional writes without a limit take a server's memory and end as timeouts, whose outcome is unknown, whose repeat
//! is more load (scylladb commit 8e293cd5e8). So a process has a number of turns, first come, first served; waiting for one
//! counts against the call's deadline and sends nothing.

use super::issue::TooLate;
use crate::{Load, StoreError};
use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

/// The part of a call's deadline that must be left when its turn comes: a statement that is sent at the last moment is
/// work for the server whose answer nobody waits for, and puts the outcome in doubt for nothing.
const LEFT_PART: u32 = 10;

/// Turns to send a statement.
#[derive(Debug)]
pub(super) struct Turns {
    permits: Semaphore,
    in_flight_max: usize,
    left_min: Duration,
    waiting: AtomicUsize,
    reissued: AtomicU64,
}

/// Counts one that waits, for as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

// === impl Turns ===

impl Turns {
    /// At most `in_flight_max` at once; calls take `deadline` at most.
    pub(super) fn new(in_flight_max: usize, deadline: Duration) -> Self {
        let in_flight_max = in_flight_max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            permits: Semaphore::new(in_flight_max),
            in_flight_max,
            left_min: deadline / LEFT_PART,
            waiting: AtomicUsize::new(0),
            reissued: AtomicU64::new(0),
        }
    }

    /// Waits for the right to send a statement; it ends with the permit.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when too little of the time until `deadline` is left first. Waiting sends nothing: what
    /// is in doubt is what `last` says.
    pub(super) async fn next(
        &self,
        deadline: Instant,
        last: &TooLate,
    ) -> Result<Option<SemaphorePermit<'_>>, StoreError> {
        if let Ok(permit) = self.permits.try_acquire() {
            return Ok(Some(permit));
        }
        let _waiting = Waiting::new(&self.waiting);
        let latest = deadline.checked_sub(self.left_min).unwrap_or(deadline);
        match tokio::time::timeout_at(latest, self.permits.acquire()).await {
            // Never closed; were it, the statement would go out without a limit, and be right all the same.
            Ok(permit) => Ok(permit.ok()),
            Err(_elapsed) => Err(last.clone().without_turn().unavailable()),
        }
    }

    /// A statement is sent again.
    pub(super) fn again(&self) {
        self.reissued.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> Load {
        Load {
            in_flight: self.in_flight_max
                - self.permits.available_permits().min(self.in_flight_max),
            waiting: self.waiting.load(Ordering::Relaxed),
            reissued: self.reissued.load(Ordering::Relaxed),
        }
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;
    use crate::{StoreError, cql::issue::TooLate};
    use std::{
        sync::{Arc, Mutex},
        time::Duration,
    };
    use tokio::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn waiting_for_a_turn_puts_nothing_in_doubt() {
        let turns = Turns::new(1, DEADLINE);
        let mut last = TooLate::of("writing");
        let held = turns.next(Instant::now(), &last).await;
        assert!(held.as_ref().is_ok_and(Option::is_some), "{held:?}");
        let message = async |last: &TooLate| match turns.next(Instant::now(), last).await {
            Err(StoreError::Unavailable(message)) => message,
            other => panic!("{other:?}"),
        };
        let told = message(&last).await;
        assert!(told.contains("nothing was sent"), "{told}");
        assert!(!told.contains("may have happened"), "{told}");

        // What an earlier statement left in doubt stays so.
        last.in_doubt();
        last.note(&"no answer");
        let told = message(&last).await;
        assert!(told.contains("(it may have happened): no answer"), "{told}");
        assert_eq!(turns.load().waiting, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_waits_is_the_first_to_go() {
        let turns = Arc::new(Turns::new(1, DEADLINE));
        let last = TooLate::of("writing");
        let deadline = Instant::now() + DEADLINE;
        let held = turns.next(deadline, &last).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for number in 0..5 {
            let (turns, order, last) = (Arc::clone(&turns), Arc::clone(&order), last.clone());
            waiting.push(tokio::spawn(async move {
                let _turn = turns.next(deadline, &last).await.expect("a turn");
                order.lock().expect("no panic").push(number);
                // The next one goes only when this one's statement is answered.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }));
            tokio::task::yield_now().await;
        }
        let load = turns.load();
        assert_eq!((load.in_flight, load.waiting), (1, 5));
        drop(held);
        for one in waiting {
            one.await.expect("no panic");
        }
        assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4]);
        let load = turns.load();
        assert_eq!((load.in_flight, load.waiting), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_comes_too_late_for_an_answer_is_not_taken() {
        let turns = Arc::new(Turns::new(1, DEADLINE));
        let last = TooLate::of("writing");
        let deadline = Instant::now() + DEADLINE;
        let held = turns.next(deadline, &last).await;
        let releaser = async {
            tokio::time::sleep(DEADLINE - Duration::from_millis(500)).await;
            drop(held);
        };
        let (turn, ()) = tokio::join!(turns.next(deadline, &last), releaser);
        assert!(turn.is_err(), "{turn:?}");
        assert!(Instant::now() < deadline);
    }
}
