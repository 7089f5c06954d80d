//! How long a connection may go on.
//!
//! The state is plain and so are the decisions over it. It is shared because the requests of an HTTP/2 connection run in tasks
//! of their own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// What bounds each connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// From the first byte of a head to its last.
    pub(super) head: Duration,
    /// Without a request.
    pub(super) idle: Duration,
    /// From an answer to when the client has taken it.
    pub(super) answer: Duration,
    /// From the accept to when it is asked to end.
    pub(super) age: Duration,
    /// Requests until it is asked to end.
    pub(super) requests_max: usize,
    /// From when it is asked to end to when it is cut off.
    pub(super) closing: Duration,
}

/// One connection. Whoever holds it may read it and cut it off.
#[derive(Debug)]
pub(super) struct Life {
    state: Mutex<State>,
    /// The connection's task should look at the state again.
    changed: Notify,
    pub(super) cut: CancellationToken,
}

#[derive(Debug)]
struct State {
    opened: Instant,
    /// Since when no request has been under way.
    waiting_since: Instant,
    /// Since when a head has been coming in. The first one is expected from the beginning on.
    head_since: Option<Instant>,
    requests: usize,
    under_way: usize,
    /// The request that ended last was signed by nobody whom we know, or given up before that could be seen.
    strange: bool,
    /// It was strange when another connection waited for a place: it ends with its next answer.
    asked_to_end: bool,
    /// Answers that wait to be taken, by the number of the request.
    answers: BTreeMap<usize, Instant>,
}

/// A request under way, until its answer is taken or given up.
#[derive(Debug)]
pub(super) struct UnderWay {
    life: Arc<Life>,
    number: usize,
    signed: bool,
}

// === impl Life ===

impl Life {
    pub(super) fn new(now: Instant, cut: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::new(now)),
            changed: Notify::new(),
            cut,
        })
    }

    /// A request's head is there.
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        let number = self.state().begin();
        UnderWay {
            life: Arc::clone(self),
            number,
            signed: false,
        }
    }

    /// Bytes have come in. Of interest is the first of a head.
    pub(super) fn has_read(&self, now: Instant) {
        if self.state().read(now) {
            self.changed.notify_one();
        }
    }

    /// The connection's task is to look at the state.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether it has served as long, or as much, as it may.
    pub(super) fn is_spent(&self, limits: &Limits, now: Instant) -> bool {
        self.state().is_spent(limits, now)
    }

    pub(super) fn opened_at(&self) -> Instant {
        self.state().opened
    }

    pub(super) fn has_served(&self) -> bool {
        self.state().requests > 0
    }

    /// When it is to be ended unless something happens; see [`State::ends_at`].
    pub(super) fn ends_at(&self, limits: &Limits) -> Option<Instant> {
        self.state().ends_at(limits)
    }

    /// When an answer will have waited too long to be taken.
    pub(super) fn untaken_at(&self, limits: &Limits) -> Option<Instant> {
        self.state().untaken_at(limits)
    }

    /// Since when it has been waiting for a request.
    pub(super) fn waiting_since(&self) -> Option<Instant> {
        let state = self.state();
        (state.under_way == 0).then_some(state.waiting_since)
    }

    /// Another connection waits for a place: who has shown no signature last ends with the next answer.
    pub(super) fn is_wanted(&self) {
        if self.state().is_wanted() {
            self.changed.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl UnderWay ===

impl UnderWay {
    /// The answer is known; the client has to take it. `signed`: by a source's sender.
    pub(super) fn answered(&mut self, now: Instant, signed: bool) {
        self.signed = signed;
        self.life.state().answers.insert(self.number, now);
        self.life.changed.notify_one();
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // Another request's end moves the connection's end further away only: nobody has to look.
        let mut state = self.life.state();
        state.end(self.number, self.signed, Instant::now());
    }
}

// === impl State ===

impl State {
    fn new(now: Instant) -> Self {
        Self {
            opened: now,
            waiting_since: now,
            head_since: Some(now),
            requests: 0,
            under_way: 0,
            strange: false,
            asked_to_end: false,
            answers: BTreeMap::new(),
        }
    }

    fn begin(&mut self) -> usize {
        self.requests += 1;
        self.under_way += 1;
        self.head_since = None;
        self.requests
    }

    /// Whether this is the beginning of a head. What comes while a request is under way belongs to it, or waits.
    fn read(&mut self, now: Instant) -> bool {
        let begins = self.under_way == 0 && self.head_since.is_none();
        if begins {
            self.head_since = Some(now);
        }
        begins
    }

    fn end(&mut self, number: usize, signed: bool, now: Instant) {
        self.answers.remove(&number);
        self.strange = !signed;
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            self.waiting_since = now;
        }
    }

    /// Whether this is news to it.
    fn is_wanted(&mut self) -> bool {
        let news = self.strange && !self.asked_to_end;
        self.asked_to_end |= news;
        news
    }

    fn is_spent(&self, limits: &Limits, now: Instant) -> bool {
        self.asked_to_end || self.requests >= limits.requests_max || now >= self.opened + limits.age
    }

    /// While no request is under way: when the time for a head, or for doing nothing, is over.
    fn ends_at(&self, limits: &Limits) -> Option<Instant> {
        if self.under_way > 0 {
            return None;
        }
        Some(match self.head_since {
            Some(since) => since + limits.head,
            None => self.waiting_since + limits.idle,
        })
    }

    fn untaken_at(&self, limits: &Limits) -> Option<Instant> {
        self.answers
            .values()
            .min()
            .map(|since| *since + limits.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        head: Duration::from_secs(1),
        idle: Duration::from_secs(10),
        answer: Duration::from_secs(2),
        age: Duration::from_secs(100),
        requests_max: 2,
        closing: Duration::from_secs(20),
    };

    #[tokio::test(start_paused = true)]
    async fn a_head_has_less_time_than_an_idle_connection_and_a_request_has_its_own() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        assert_eq!(state.ends_at(&LIMITS), Some(at(1)), "the first head");
        assert!(!state.read(at(0)));
        let number = state.begin();
        assert_eq!(state.ends_at(&LIMITS), None);
        assert!(!state.read(at(1)), "its body");
        state.end(number, true, at(5));
        assert_eq!(state.ends_at(&LIMITS), Some(at(15)));
        assert!(state.read(at(14)));
        assert_eq!(state.ends_at(&LIMITS), Some(at(15)), "a head from 14 on");
        assert!(!state.read(at(15)), "its next byte gains nothing");
        assert_eq!(state.ends_at(&LIMITS), Some(at(15)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_answer_that_is_not_taken_counts() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = State::new(start);
        let (one, two) = (state.begin(), state.begin());
        assert_eq!(state.untaken_at(&LIMITS), None);
        state.answers.insert(two, at(1));
        state.answers.insert(one, at(2));
        assert_eq!(state.untaken_at(&LIMITS), Some(at(3)));
        state.end(two, true, at(2));
        assert_eq!(state.untaken_at(&LIMITS), Some(at(4)));
        assert_eq!(state.ends_at(&LIMITS), None);
        state.end(one, true, at(3));
        assert_eq!(state.untaken_at(&LIMITS), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_spent_by_requests_or_by_age() {
        let start = Instant::now();
        let mut state = State::new(start);
        assert!(!state.is_spent(&LIMITS, start + Duration::from_secs(99)));
        assert!(state.is_spent(&LIMITS, start + Duration::from_secs(100)));
        state.begin();
        assert!(!state.is_spent(&LIMITS, start));
        state.begin();
        assert!(state.is_spent(&LIMITS, start));
    }

    #[tokio::test(start_paused = true)]
    async fn where_another_waits_it_ends_unless_it_was_signed_for() {
        let start = Instant::now();
        let mut state = State::new(start);
        assert!(!state.is_wanted(), "it has asked nothing yet");
        for (signed, ends) in [(true, false), (false, true), (true, true)] {
            let number = state.begin();
            state.end(number, signed, start);
            assert_eq!(state.is_wanted(), !signed);
            let limits = Limits {
                requests_max: 9,
                ..LIMITS
            };
            assert_eq!(state.is_spent(&limits, start), ends, "{signed}");
        }
    }
}
