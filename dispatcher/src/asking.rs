//! How many claims are asked of the store at once.
//!
//! A call of the store has a deadline. When a store that was away comes back, everything in work asks at once, each call
//! waits for its turn behind all others, and its deadline passes when it has just got it: nothing is decided any more
//! although the store works. So a claim waits here, before its deadline begins, and each call that comes to nothing
//! halves how many may ask; each answer lets one more ask, which doubles them from round to round (the slow start of
//! RFC 5681). Transitions and renewals do not wait: they end work that is under way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So many may always ask, else nobody would find out that the store is back.
const ASKING_MIN: usize = 4;

/// Who may ask.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    turns: Arc<Semaphore>,
    limit: Arc<Mutex<Limit>>,
}

/// The right to ask once; given back when it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    asking: Asking,
    answered: Option<bool>,
}

/// The limit, and the permits that there are, free or taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    most: usize,
    now: usize,
    permits: usize,
}

// === impl Asking ===

impl Asking {
    /// At most `most` at once.
    pub(crate) fn new(most: usize) -> Self {
        let most = most.clamp(ASKING_MIN, Semaphore::MAX_PERMITS);
        Self {
            turns: Arc::new(Semaphore::new(most)),
            limit: Arc::new(Mutex::new(Limit {
                most,
                now: most,
                permits: most,
            })),
        }
    }

    /// Waits for a turn, first come first served. Whoever calls ends the waiting.
    pub(crate) async fn turn(&self) -> Turn {
        Turn {
            // The semaphore is never closed.
            permit: Arc::clone(&self.turns).acquire_owned().await.ok(),
            asking: self.clone(),
            answered: None,
        }
    }

    /// How many may ask at once now.
    pub(crate) fn limit(&self) -> usize {
        self.lock().now
    }

    /// Whether so many calls came to nothing that nothing is decided at all.
    pub(crate) fn is_store_away(&self) -> bool {
        let limit = *self.lock();
        limit.now == ASKING_MIN && limit.most > ASKING_MIN
    }

    fn lock(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Turn ===

impl Turn {
    /// Gives the turn back, with what came of it: whether the store has answered.
    pub(crate) fn done(mut self, answered: bool) {
        self.answered = Some(answered);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else {
            return;
        };
        let mut limit = self.asking.lock();
        limit.learn(self.answered);
        if limit.permits > limit.now {
            permit.forget();
            limit.permits -= 1;
            // Those that nobody has are withdrawn as well; those that somebody has when they come back.
            let over = limit.permits.saturating_sub(limit.now);
            limit.permits -= self.asking.turns.forget_permits(over);
        } else {
            drop(permit);
            self.asking.turns.add_permits(limit.now - limit.permits);
            limit.permits = limit.now;
        }
    }
}

// === impl Limit ===

impl Limit {
    /// A permit comes back. Nothing is learned from one that was given up before an answer.
    fn learn(&mut self, answered: Option<bool>) {
        self.now = match answered {
            Some(true) => self.now.saturating_add(1).min(self.most),
            Some(false) => (self.now / 2).max(ASKING_MIN),
            None => self.now,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[tokio::test]
    async fn calls_that_come_to_nothing_lower_it_and_answers_raise_it_again() {
        let asking = Asking::new(64);
        let mut all = Vec::new();
        for _ in 0..64 {
            all.push(asking.turn().await);
        }
        all.drain(..).for_each(|turn| turn.done(false));
        assert_eq!(asking.limit(), ASKING_MIN);
        assert!(asking.is_store_away());
        assert_eq!(asking.turns.available_permits(), ASKING_MIN);
        let mut rounds = Vec::new();
        while asking.limit() < 64 {
            let mut round = Vec::new();
            while asking.turns.available_permits() > 0 {
                round.push(asking.turn().await);
            }
            rounds.push(round.len());
            round.drain(..).for_each(|turn| turn.done(true));
        }
        assert_eq!(rounds, [4, 8, 16, 32]);
        assert!(!asking.is_store_away());
        assert_eq!(asking.turns.available_permits(), 64);
    }

    #[tokio::test]
    async fn a_turn_that_is_given_up_goes_to_the_next() {
        let asking = Asking::new(4);
        let mut turns = Vec::new();
        for _ in 0..4 {
            turns.push(asking.turn().await);
        }
        let next = tokio::spawn({
            let asking = asking.clone();
            async move { asking.turn().await }
        });
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        turns.pop();
        next.await.unwrap().done(true);
        assert_eq!(asking.limit(), 4);
    }

    proptest! {
        #[test]
        fn permits_are_as_many_as_may_ask_once_all_are_back(
            most in 1_usize..200,
            steps in proptest::collection::vec((any::<bool>(), proptest::option::of(any::<bool>())), 0..400),
        ) {
            let asking = Asking::new(most);
            let mut taken = VecDeque::new();
            for (take, answered) in steps {
                if take && let Ok(permit) = Arc::clone(&asking.turns).try_acquire_owned() {
                    taken.push_back(Turn { permit: Some(permit), asking: asking.clone(), answered: None });
                } else if let Some(mut turn) = taken.pop_front() {
                    turn.answered = answered;
                }
                let limit = *asking.lock();
                prop_assert!((ASKING_MIN..=limit.most).contains(&limit.now));
                prop_assert_eq!(limit.permits, taken.len() + asking.turns.available_permits());
            }
            taken.clear();
            let limit = *asking.lock();
            prop_assert_eq!(asking.turns.available_permits(), limit.now);
        }
    }
}
