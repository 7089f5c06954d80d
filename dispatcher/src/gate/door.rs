//! One destination's gate as a state machine over plain values: what the four bounds say together.

use super::{
    Cause, Refused,
    breaker::{self, Breaker, Lets},
    overload::{self, Overload, Sign},
    pace::{Pace, millis},
    queue::{Class, Queue, Ticket},
    rate::Rate,
};
use crate::outcome::Outcome;
use schemas::OutcomeKind;

/// For want of room a record is put off for at most so long at once: how fast a destination is, is a guess, and it may
/// heal at any time.
const ROOM_BOOKED_MAX_MS: i64 = 120_000;
/// For want of tokens: their rate is no guess.
const RATE_BOOKED_MAX_MS: i64 = 600_000;

/// The bounds of one destination, resolved.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) concurrency: usize,
    /// An attempt that took this long and has no status ran into its deadline.
    pub(super) timeout_ms: i64,
    pub(super) room_wait_ms: i64,
    pub(super) rate: Option<Rate>,
    pub(super) breaker: Option<(breaker::Settings, overload::Settings)>,
}

/// One destination's gate. `W` wakes somebody who waits.
#[derive(Debug)]
pub(super) struct Door<W> {
    bounds: Bounds,
    rate: Option<Rate>,
    breaker: Option<Breaker>,
    overload: Option<Overload>,
    pub(super) queue: Queue<W>,
    pace: Pace,
    running: usize,
}

/// Leave to make one attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    breaker: Option<breaker::Passed>,
    cuts: u64,
}

/// The answer to somebody who wants in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Enter(Pass),
    /// Look again after this time, or when woken.
    Wait(Option<i64>),
    Refused(Refused),
}

/// What an operator sees of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) state: &'static str,
    pub(super) number: u64,
    /// Attempts at once.
    pub(super) limit: usize,
    /// Fewer of them than configured.
    pub(super) spared: bool,
}

// === impl Door ===

impl<W> Door<W> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            rate: bounds.rate.clone(),
            breaker: bounds.breaker.map(|(settings, _)| Breaker::new(settings)),
            overload: bounds.breaker.map(|(_, settings)| Overload::new(settings)),
            bounds,
            queue: Queue::new(),
            pace: Pace::default(),
            running: 0,
        }
    }

    /// Somebody comes. He enters, is refused, or may wait: then the caller puts him into the queue. `over`: the destination
    /// has its share of the window already.
    pub(super) fn arrive(&mut self, class: Class, over: bool, now_ms: i64) -> Answer {
        if let Some(refused) = self.closed(now_ms) {
            return Answer::Refused(refused);
        }
        if self.queue.is_empty()
            && let Ok(pass) = self.pass(now_ms)
        {
            return Answer::Enter(pass);
        }
        let (mine, other) = self.queue.lengths(class);
        // The lines are served in turn.
        let ahead = mine.saturating_add(other.min(mine + 1));
        let (slots, of_breaker) = self.slots();
        let room_ms =
            self.pace.each_ms(slots, now_ms) * u32::try_from(ahead + 1).map_or(f64::MAX, f64::from);
        let rate_ms = self
            .rate
            .as_ref()
            .map_or(0, |rate| rate.wait_ms(ahead, now_ms));
        if rate_ms > self.bounds.room_wait_ms {
            return Answer::Refused(self.put_off(Cause::Rate, now_ms));
        }
        // A line that is much shorter than the other may grow on, so that a full window does not shut it out.
        let shut_out = mine.saturating_mul(4) < other;
        // A few may always wait: a pause of the whole process looks like a destination that hangs, and like a flood after it.
        let few = mine.saturating_add(other) < slots;
        let slow = millis(room_ms) > self.bounds.room_wait_ms;
        if !few && (slow || (over && !shut_out)) {
            let cause = if of_breaker {
                Cause::Breaker
            } else {
                Cause::NoRoom
            };
            return Answer::Refused(self.put_off(cause, now_ms));
        }
        Answer::Wait(None)
    }

    /// Somebody who waits looks whether it is his turn. Who is answered but with [`Answer::Wait`], is out of the queue.
    pub(super) fn look(&mut self, ticket: Ticket, now_ms: i64) -> Answer {
        if let Some(refused) = self.closed(now_ms) {
            self.queue.remove(ticket);
            return Answer::Refused(refused);
        }
        if self.queue.front().is_none_or(|(front, _)| front != ticket) {
            return Answer::Wait(None);
        }
        match self.pass(now_ms) {
            Ok(pass) => {
                self.queue.serve(ticket);
                Answer::Enter(pass)
            }
            Err(wait_ms) => Answer::Wait(wait_ms),
        }
    }

    /// Somebody has waited for as long as one may.
    pub(super) fn give_up(&mut self, ticket: Ticket, now_ms: i64) -> Refused {
        self.queue.remove(ticket);
        if let Some(refused) = self.closed(now_ms) {
            return refused;
        }
        let no_token = |rate: &Rate| rate.wait_ms(0, now_ms) > 0;
        let cause = if self.slots().1 {
            Cause::Breaker
        } else if self.rate.as_ref().is_some_and(no_token) {
            Cause::Rate
        } else {
            Cause::NoRoom
        };
        self.put_off(cause, now_ms)
    }

    /// An attempt has ended; what it says about the destination.
    pub(super) fn ended(&mut self, pass: &Pass, outcome: &Outcome, took_ms: i64, now_ms: i64) {
        self.pace.ended(took_ms, now_ms);
        let timed_out = outcome.status.is_none() && took_ms >= self.bounds.timeout_ms;
        let (failed, sign) = match outcome.kind {
            OutcomeKind::Delivered | OutcomeKind::Rejected | OutcomeKind::Gone => {
                (Some(false), Sign::Fine)
            }
            OutcomeKind::Throttled => {
                let wished = outcome.retry_after.map(|wished| wished.as_millis());
                let wished_ms = wished.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
                (Some(true), Sign::Throttled(wished_ms))
            }
            OutcomeKind::Failed if timed_out => (Some(true), Sign::TimedOut),
            OutcomeKind::Failed => (Some(true), Sign::None),
            // Nothing was sent, so nothing was learnt.
            OutcomeKind::Blocked | OutcomeKind::Interrupted | OutcomeKind::Unknown => {
                (None, Sign::None)
            }
        };
        let room = self.limit();
        if let (Some(breaker), Some(passed), Some(failed)) =
            (&mut self.breaker, pass.breaker, failed)
        {
            breaker.ended(passed, failed, room, now_ms);
        }
        if let Some(overload) = &mut self.overload {
            overload.ended(pass.cuts, sign, now_ms);
        }
    }

    /// Somebody leaves; `begun`: he made an attempt.
    pub(super) fn left(&mut self, pass: &Pass, begun: bool) {
        self.running = self.running.saturating_sub(1);
        if let (Some(breaker), Some(passed)) = (&mut self.breaker, pass.breaker) {
            breaker.left(passed);
        }
        if let Some(rate) = self.rate.as_mut().filter(|_| !begun) {
            rate.give_back();
        }
    }

    /// What an operator sees.
    pub(super) fn shown(&self) -> Shown {
        let step = self.breaker.as_ref().map_or(0, Breaker::step);
        let asked = self.overload.as_ref().is_some_and(Overload::is_closed);
        let (state, number) = match step {
            2 => ("open", 2),
            _ if asked => ("overload", 3),
            1 => ("half_open", 1),
            _ => ("closed", 0),
        };
        Shown {
            state,
            number,
            limit: self.limit(),
            spared: self.limit() < self.bounds.concurrency,
        }
    }

    /// Attempts at once, as far as the destination's load goes.
    pub(super) fn limit(&self) -> usize {
        let limit = self.overload.as_ref().map(Overload::limit);
        limit.unwrap_or(self.bounds.concurrency)
    }

    /// Why nobody may enter at all.
    fn closed(&mut self, now_ms: i64) -> Option<Refused> {
        if let Some(wait_ms) = self.overload.as_mut().and_then(|it| it.closed_ms(now_ms)) {
            let cause = Cause::Overload;
            return Some(Refused { cause, wait_ms });
        }
        match self.breaker.as_mut().map(|breaker| breaker.lets(now_ms)) {
            Some(Lets::Nothing(wait_ms)) => Some(Refused {
                cause: Cause::Breaker,
                wait_ms,
            }),
            Some(Lets::Everything | Lets::Probes(_)) | None => None,
        }
    }

    /// Takes room and a token, when both are there; else how long until there is a token.
    fn pass(&mut self, now_ms: i64) -> Result<Pass, Option<i64>> {
        let probes = self.breaker.as_mut().map(|breaker| breaker.lets(now_ms));
        let full = match probes {
            Some(Lets::Nothing(_) | Lets::Probes(0)) => true,
            Some(Lets::Everything | Lets::Probes(_)) | None => false,
        };
        if full || self.running >= self.limit() {
            return Err(None);
        }
        if let Some(rate) = &mut self.rate {
            let wait_ms = rate.wait_ms(0, now_ms);
            if wait_ms > 0 {
                return Err(Some(wait_ms));
            }
            rate.take(now_ms);
        }
        self.running += 1;
        self.pace.began(now_ms);
        Ok(Pass {
            breaker: self.breaker.as_mut().map(Breaker::pass),
            cuts: self.overload.as_ref().map_or(0, Overload::cuts),
        })
    }

    /// Attempts at once now, and whether it is the breaker that bounds them.
    fn slots(&self) -> (usize, bool) {
        let limit = self.limit();
        match self.breaker.as_ref().and_then(Breaker::probes) {
            Some(probes) if probes < limit => (probes, true),
            _ => (limit, false),
        }
    }

    fn put_off(&mut self, cause: Cause, now_ms: i64) -> Refused {
        // Probing is over soon, one way or the other: not the probes are the pace.
        let mut each_ms = self.pace.each_ms(self.limit(), now_ms);
        if let Some(rate) = &self.rate {
            each_ms = each_ms.max(rate.interval_ms());
        }
        let max_ms = match cause {
            Cause::Rate => RATE_BOOKED_MAX_MS,
            Cause::NoRoom | Cause::Breaker | Cause::Overload => ROOM_BOOKED_MAX_MS,
        };
        let wait_ms = self.pace.book(each_ms, max_ms, now_ms);
        Refused { cause, wait_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::RateConfig,
        outcome::{of_status, without_answer},
    };
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const BREAKING: breaker::Settings = breaker::Settings {
        window_ms: 60_000,
        failure_rate: 0.5,
        attempts_min: 20,
        consecutive_failures: 5,
        open_ms: 5_000,
        open_max_ms: 20_000,
    };
    const SPARING: overload::Settings = overload::Settings {
        concurrency: 4,
        penalty_ms: 1_000,
        penalty_max_ms: 20_000,
        retry_after_max_ms: 60_000,
    };

    fn door(rate: Option<(f64, u32)>) -> Door<()> {
        let rate = rate.map(|(per_second, burst)| Rate::new(&RateConfig { per_second, burst }));
        Door::new(Bounds {
            concurrency: 4,
            timeout_ms: 10_000,
            room_wait_ms: 1_000,
            rate,
            breaker: Some((BREAKING, SPARING)),
        })
    }

    fn enter(door: &mut Door<()>, now_ms: i64) -> Pass {
        match door.arrive(Class::First, false, now_ms) {
            Answer::Enter(pass) => pass,
            other @ (Answer::Wait(_) | Answer::Refused(_)) => panic!("{other:?}"),
        }
    }

    fn refused(answer: Answer) -> Refused {
        match answer {
            Answer::Refused(refused) => refused,
            other @ (Answer::Wait(_) | Answer::Enter(_)) => panic!("{other:?}"),
        }
    }

    fn end(door: &mut Door<()>, pass: &Pass, outcome: &Outcome, took_ms: i64, now_ms: i64) {
        door.ended(pass, outcome, took_ms, now_ms);
        door.left(pass, true);
    }

    #[test]
    fn a_hanging_destination_is_known_before_its_first_attempt_ends() {
        let mut door = door(None);
        for _ in 0..4 {
            enter(&mut door, 0);
        }
        assert!(matches!(
            door.arrive(Class::First, false, 100),
            Answer::Wait(None)
        ));
        for _ in 0..4 {
            assert!(matches!(
                door.arrive(Class::First, true, 4_004),
                Answer::Wait(None)
            ));
            door.queue.push(Class::First, ());
        }
        let late = refused(door.arrive(Class::First, false, 4_004));
        assert_eq!(late.cause, Cause::NoRoom);
    }

    #[test]
    fn a_full_window_shuts_no_line_out() {
        let mut door = door(None);
        for _ in 0..4 {
            enter(&mut door, 0);
        }
        for _ in 0..20 {
            door.queue.push(Class::First, ());
        }
        let over = refused(door.arrive(Class::First, true, 0));
        assert_eq!(over.cause, Cause::NoRoom);
        for _ in 0..5 {
            assert!(matches!(
                door.arrive(Class::Retry, true, 0),
                Answer::Wait(None)
            ));
            door.queue.push(Class::Retry, ());
        }
        assert_eq!(
            refused(door.arrive(Class::Retry, true, 0)).cause,
            Cause::NoRoom
        );
    }

    #[test]
    fn what_no_token_comes_for_in_time_is_put_off_one_behind_the_other() {
        let mut door = door(Some((1.0, 1)));
        enter(&mut door, 0);
        // The next token comes within `room_wait`, the one after it does not.
        assert!(matches!(
            door.arrive(Class::First, false, 0),
            Answer::Wait(_)
        ));
        door.queue.push(Class::First, ());
        let waits = [0; 3].map(|_| {
            let refused = refused(door.arrive(Class::First, false, 0));
            assert_eq!(refused.cause, Cause::Rate);
            refused.wait_ms
        });
        assert_eq!(waits, [0, 1_000, 2_000]);
    }

    #[test]
    fn who_made_no_attempt_uses_up_neither_token_nor_probe() {
        let mut door = door(Some((1.0, 1)));
        for _ in 0..5 {
            let pass = enter(&mut door, 0);
            door.left(&pass, false);
        }
        let pass = enter(&mut door, 0);
        door.left(&pass, true);
        assert!(matches!(
            door.arrive(Class::First, false, 0),
            Answer::Wait(_)
        ));
    }

    #[test]
    fn answers_are_no_failures_and_what_was_not_sent_is_nothing() {
        let mut door = door(None);
        for status in [404, 410, 422, 301] {
            for _ in 0..50 {
                let pass = enter(&mut door, 0);
                end(&mut door, &pass, &of_status(status, None, &[], 0), 5, 0);
            }
        }
        let blocked = without_answer(OutcomeKind::Blocked, "loopback");
        for _ in 0..50 {
            let pass = enter(&mut door, 0);
            end(&mut door, &pass, &blocked, 5, 0);
        }
        assert_eq!(door.shown().state, "closed");
        assert!(!door.shown().spared);
    }

    #[test]
    fn an_open_breaker_and_a_429_refuse_with_the_time_that_is_left() {
        let mut door = door(None);
        let throttled = of_status(429, Some(b"7"), &[], 0);
        let pass = enter(&mut door, 0);
        end(&mut door, &pass, &throttled, 5, 0);
        let expected = |cause, wait_ms| Refused { cause, wait_ms };
        let first = refused(door.arrive(Class::First, false, 1_000));
        assert_eq!(first, expected(Cause::Overload, 6_000));
        assert_eq!(door.shown().state, "overload");
        for _ in 0..4 {
            let pass = enter(&mut door, 7_000);
            end(&mut door, &pass, &of_status(500, None, &[], 0), 5, 7_000);
        }
        let second = refused(door.arrive(Class::Retry, false, 8_000));
        assert_eq!(second, expected(Cause::Breaker, 4_000));
        assert_eq!(door.shown().state, "open");
        enter(&mut door, 12_000);
        assert_eq!(door.shown().state, "half_open");
        // Only a timeout says that it is overloaded.
        assert_eq!(door.limit(), 2);
    }

    #[test]
    fn timeouts_cut_the_limit_and_refused_connections_do_not() {
        let outcome = without_answer(OutcomeKind::Failed, "…");
        for (took_ms, limit) in [(9_999, 4), (10_000, 2)] {
            let mut door = door(None);
            let pass = enter(&mut door, 0);
            end(&mut door, &pass, &outcome, took_ms, took_ms);
            assert_eq!(door.limit(), limit, "{took_ms}");
        }
    }

    proptest! {
        /// Never more inside than configured; whoever is in front enters as soon as nothing speaks against it; and when the
        /// destination is well for long enough, everybody enters.
        #[test]
        fn it_is_never_too_full_and_never_stuck(
            rated in any::<bool>(),
            steps in proptest::collection::vec((0_u8..8, 0_i64..2_000), 0..300),
        ) {
            let mut door = door(rated.then_some((20.0, 3)));
            let mut now_ms = 0;
            let mut inside: VecDeque<Pass> = VecDeque::new();
            let mut waiting: Vec<Ticket> = Vec::new();
            for (step, wait_ms) in steps {
                now_ms += wait_ms;
                let class = if step == 0 { Class::First } else { Class::Retry };
                match step {
                    0 | 1 => match door.arrive(class, wait_ms % 7 == 0, now_ms) {
                        Answer::Enter(pass) => {
                            prop_assert!(waiting.is_empty(), "nobody is overtaken");
                            inside.push_back(pass);
                        }
                        Answer::Wait(_) => waiting.push(door.queue.push(class, ())),
                        Answer::Refused(refused) => prop_assert!(refused.wait_ms >= 0),
                    },
                    2 => {
                        if let Some(ticket) = waiting.pop() {
                            door.give_up(ticket, now_ms);
                        }
                    }
                    _ => {
                        let outcome = match step {
                            3 | 4 => of_status(204, None, &[], 0),
                            5 => of_status(500, None, &[], 0),
                            6 => of_status(429, (wait_ms % 2 == 0).then_some(b"3"), &[], 0),
                            _ => without_answer(OutcomeKind::Failed, "timeout"),
                        };
                        if let Some(pass) = inside.pop_front() {
                            end(&mut door, &pass, &outcome, wait_ms * 10, now_ms);
                        }
                    }
                }
                while let Some((front, ())) = door.queue.front() {
                    match door.look(front, now_ms) {
                        Answer::Enter(pass) => inside.push_back(pass),
                        Answer::Wait(_) => break,
                        Answer::Refused(_) => {}
                    }
                    waiting.retain(|ticket| *ticket != front);
                }
                prop_assert!(inside.len() <= 4);
                prop_assert_eq!(door.running, inside.len());
            }
            for pass in inside.drain(..) {
                end(&mut door, &pass, &of_status(204, None, &[], 0), 5, now_ms);
            }
            now_ms += 60_000;
            for _ in 0..100 {
                now_ms += 50;
                // Who still waits goes first.
                let front = door.queue.front().map(|(ticket, ())| ticket);
                let answer = match front {
                    Some(front) => door.look(front, now_ms),
                    None => door.arrive(Class::First, false, now_ms),
                };
                let Answer::Enter(pass) = answer else {
                    return Err(TestCaseError::fail(format!("{answer:?}")));
                };
                end(&mut door, &pass, &of_status(204, None, &[], 0), 5, now_ms);
            }
            prop_assert_eq!(door.limit(), 4);
            prop_assert_eq!(door.shown().state, "closed");
        }
    }
}
