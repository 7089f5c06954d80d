//! The circuit breaker: a destination that only fails is left alone for a while, then tried with one attempt, two, four, …
//!
//! It trips on failures in a row, which a dead destination shows soonest, or on the part of failures in a window, which a
//! broken one behind a balancer shows. What ends after the breaker tripped and began before says nothing new.

use std::collections::VecDeque;

/// Parts of the window; the oldest one is forgotten as a whole.
const PARTS: i64 = 10;

/// When the breaker trips and for how long, resolved for one destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) window_ms: i64,
    pub(super) failure_rate: f64,
    pub(super) attempts_min: u32,
    pub(super) consecutive_failures: u32,
    pub(super) open_ms: i64,
    pub(super) open_max_ms: i64,
}

/// The breaker of one destination.
#[derive(Clone, Debug)]
pub(super) struct Breaker {
    settings: Settings,
    state: State,
    /// Goes up each time the breaker trips.
    trips: u64,
    /// How long it was open last, and when it closed again.
    opened_ms: i64,
    closed_at_ms: i64,
}

#[derive(Clone, Debug)]
enum State {
    Closed { window: Window, in_a_row: u32 },
    Open { since_ms: i64, for_ms: i64 },
    HalfOpen(Probing),
}

/// Attempts that find out whether the destination is back.
#[derive(Clone, Copy, Debug, Default)]
struct Probing {
    /// Attempts of this step, and at once.
    allowed: u32,
    running: u32,
    ended: u32,
    failed: u32,
}

/// What the breaker lets through now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lets {
    Everything,
    /// So many probes more.
    Probes(u32),
    /// Nothing, for so many milliseconds.
    Nothing(i64),
}

/// An attempt that the breaker let through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    trips: u64,
    probe: bool,
}

#[derive(Clone, Debug, Default)]
struct Window {
    /// (number of the part, attempts, failures), oldest first.
    parts: VecDeque<(i64, u32, u32)>,
    last_failure_ms: Option<i64>,
}

// === impl Breaker ===

impl Breaker {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::closed(),
            trips: 0,
            opened_ms: 0,
            closed_at_ms: i64::MIN,
        }
    }

    /// What may pass now. When the open time is over, the first who asks begins the probing.
    pub(super) fn lets(&mut self, now_ms: i64) -> Lets {
        if let State::Open { since_ms, for_ms } = &mut self.state {
            // Set back, the clock must not make it longer.
            *since_ms = (*since_ms).min(now_ms);
            let left_ms = since_ms.saturating_add(*for_ms).saturating_sub(now_ms);
            if left_ms > 0 {
                return Lets::Nothing(left_ms);
            }
            self.state = State::HalfOpen(Probing {
                allowed: 1,
                ..Probing::default()
            });
        }
        match &self.state {
            State::HalfOpen(probing) => {
                Lets::Probes(probing.allowed.saturating_sub(probing.running))
            }
            State::Closed { .. } | State::Open { .. } => Lets::Everything,
        }
    }

    /// Lets an attempt through.
    pub(super) fn pass(&mut self) -> Passed {
        let mut probe = false;
        if let State::HalfOpen(probing) = &mut self.state {
            probing.running = probing.running.saturating_add(1);
            probe = true;
        }
        Passed {
            trips: self.trips,
            probe,
        }
    }

    /// An attempt that was let through is over or was not made.
    pub(super) fn left(&mut self, passed: Passed) {
        if let State::HalfOpen(probing) = &mut self.state
            && passed.probe
            && passed.trips == self.trips
        {
            probing.running = probing.running.saturating_sub(1);
        }
    }

    /// An attempt has shown that the destination works or that it does not. `room` is how many attempts may run at once
    /// otherwise: more probes than that prove nothing.
    pub(super) fn ended(&mut self, passed: Passed, failed: bool, room: usize, now_ms: i64) {
        if passed.trips != self.trips {
            return;
        }
        let settings = self.settings;
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        match &mut self.state {
            State::Open { .. } => {}
            State::Closed { window, in_a_row } => {
                let quiet = window.note(failed, settings.window_ms, now_ms);
                *in_a_row = match (failed, quiet) {
                    (false, _) => 0,
                    (true, true) => 1,
                    (true, false) => in_a_row.saturating_add(1),
                };
                let (attempts, failures) = window.sum();
                let often = attempts >= settings.attempts_min
                    && f64::from(failures) >= settings.failure_rate * f64::from(attempts);
                if failed && (*in_a_row >= settings.consecutive_failures || often) {
                    let again = now_ms.saturating_sub(self.closed_at_ms) < settings.window_ms;
                    self.trip(again, now_ms);
                }
            }
            State::HalfOpen(probing) => {
                probing.ended = probing.ended.saturating_add(1);
                probing.failed = probing.failed.saturating_add(u32::from(failed));
                let too_many =
                    f64::from(probing.failed) >= settings.failure_rate * f64::from(probing.allowed);
                if failed && too_many {
                    self.trip(true, now_ms);
                } else if probing.ended >= probing.allowed {
                    if probing.allowed >= room {
                        self.closed_at_ms = now_ms;
                        self.state = State::closed();
                    } else {
                        probing.allowed = probing.allowed.saturating_mul(2);
                        (probing.ended, probing.failed) = (0, 0);
                    }
                }
            }
        }
    }

    /// How many probes may run at once, while it is half-open.
    pub(super) fn probes(&self) -> Option<usize> {
        match self.state {
            State::HalfOpen(probing) => usize::try_from(probing.allowed).ok(),
            State::Closed { .. } | State::Open { .. } => None,
        }
    }

    /// 0 closed, 1 half-open, 2 open.
    pub(super) fn step(&self) -> u8 {
        match self.state {
            State::Closed { .. } => 0,
            State::HalfOpen(_) => 1,
            State::Open { .. } => 2,
        }
    }

    fn trip(&mut self, again: bool, now_ms: i64) {
        let settings = self.settings;
        self.opened_ms = if again && self.opened_ms > 0 {
            self.opened_ms.saturating_mul(2).min(settings.open_max_ms)
        } else {
            settings.open_ms
        };
        self.trips += 1;
        self.state = State::Open {
            since_ms: now_ms,
            for_ms: self.opened_ms,
        };
    }
}

// === impl State ===

impl State {
    fn closed() -> Self {
        Self::Closed {
            window: Window::default(),
            in_a_row: 0,
        }
    }
}

// === impl Window ===

impl Window {
    /// Notes how an attempt ended. Says whether the failure before is longer ago than the window.
    fn note(&mut self, failed: bool, window_ms: i64, now_ms: i64) -> bool {
        let part = now_ms.div_euclid((window_ms / PARTS).max(1));
        // Parts of the future: the clock was set back.
        self.parts
            .retain(|(number, ..)| (part - PARTS + 1..=part).contains(number));
        match self.parts.back_mut() {
            Some((number, attempts, failures)) if *number == part => {
                *attempts = attempts.saturating_add(1);
                *failures = failures.saturating_add(u32::from(failed));
            }
            _ => self.parts.push_back((part, 1, u32::from(failed))),
        }
        if !failed {
            return false;
        }
        let before_ms = self.last_failure_ms.replace(now_ms);
        before_ms.is_some_and(|before_ms| now_ms.saturating_sub(before_ms) > window_ms)
    }

    fn sum(&self) -> (u32, u32) {
        let add = |(a, b): (u32, u32), (_, attempts, failures): &(i64, u32, u32)| {
            (a.saturating_add(*attempts), b.saturating_add(*failures))
        };
        self.parts.iter().fold((0, 0), add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: Settings = Settings {
        window_ms: 60_000,
        failure_rate: 0.5,
        attempts_min: 20,
        consecutive_failures: 10,
        open_ms: 5_000,
        open_max_ms: 30_000,
    };

    fn attempt(breaker: &mut Breaker, failed: bool, now_ms: i64) {
        let passed = breaker.pass();
        breaker.ended(passed, failed, 4, now_ms);
        breaker.left(passed);
    }

    fn tripped() -> Breaker {
        let mut breaker = Breaker::new(SETTINGS);
        for _ in 0..10 {
            attempt(&mut breaker, true, 0);
        }
        breaker
    }

    #[test]
    fn failures_in_a_row_trip_it() {
        let mut breaker = Breaker::new(SETTINGS);
        for now_ms in 0..9 {
            attempt(&mut breaker, true, now_ms);
        }
        attempt(&mut breaker, false, 9);
        for now_ms in 10..19 {
            attempt(&mut breaker, true, now_ms);
            assert_eq!(breaker.lets(now_ms), Lets::Everything);
        }
        attempt(&mut breaker, true, 19);
        assert_eq!(breaker.lets(19), Lets::Nothing(5_000));
        assert_eq!(breaker.lets(5_018), Lets::Nothing(1));
        assert_eq!(breaker.lets(5_019), Lets::Probes(1));
    }

    #[test]
    fn failures_far_apart_are_not_in_a_row() {
        let mut breaker = Breaker::new(SETTINGS);
        for at in 0..100 {
            attempt(&mut breaker, true, at * 60_001);
        }
        assert_eq!(breaker.step(), 0);
    }

    #[test]
    fn the_part_of_failures_trips_it_once_there_are_enough_attempts() {
        let mut breaker = Breaker::new(SETTINGS);
        for at in 0..19 {
            attempt(&mut breaker, at % 2 == 0, at);
        }
        assert_eq!(breaker.step(), 0);
        attempt(&mut breaker, true, 19);
        assert_eq!(breaker.step(), 2);

        // The same, but the first half is forgotten by then.
        let mut breaker = Breaker::new(SETTINGS);
        for at in 0..19 {
            attempt(&mut breaker, at % 2 == 0, at * 6_000);
        }
        assert_eq!(breaker.step(), 0);
    }

    #[test]
    fn probes_grow_until_it_is_closed() {
        let mut breaker = tripped();
        assert_eq!(breaker.lets(5_000), Lets::Probes(1));
        let probe = breaker.pass();
        assert_eq!(breaker.lets(5_000), Lets::Probes(0));
        breaker.ended(probe, false, 4, 5_000);
        breaker.left(probe);
        assert_eq!(breaker.lets(5_000), Lets::Probes(2));
        for _ in 0..2 {
            attempt(&mut breaker, false, 5_000);
        }
        assert_eq!(breaker.lets(5_000), Lets::Probes(4));
        // One failure of four is below the rate.
        attempt(&mut breaker, true, 5_000);
        for _ in 0..3 {
            attempt(&mut breaker, false, 5_000);
        }
        assert_eq!(breaker.lets(5_000), Lets::Everything);
    }

    #[test]
    fn a_failing_probe_doubles_the_time_up_to_the_cap() {
        let mut breaker = tripped();
        let mut now_ms = 5_000;
        for open_ms in [10_000, 20_000, 30_000, 30_000] {
            assert_eq!(breaker.lets(now_ms), Lets::Probes(1));
            attempt(&mut breaker, true, now_ms);
            assert_eq!(breaker.lets(now_ms), Lets::Nothing(open_ms));
            now_ms += open_ms;
        }
    }

    #[test]
    fn it_remembers_for_a_window_that_it_tripped() {
        let trip_again = |after_ms: i64| {
            let mut breaker = tripped();
            assert_eq!(breaker.lets(5_000), Lets::Probes(1));
            for _ in 0..7 {
                attempt(&mut breaker, false, 5_000);
            }
            assert_eq!(breaker.lets(5_000), Lets::Everything);
            for _ in 0..10 {
                attempt(&mut breaker, true, 5_000 + after_ms);
            }
            breaker.lets(5_000 + after_ms)
        };
        assert_eq!(trip_again(59_999), Lets::Nothing(10_000));
        assert_eq!(trip_again(60_000), Lets::Nothing(5_000));
    }

    #[test]
    fn what_began_before_it_tripped_says_nothing() {
        let mut breaker = Breaker::new(SETTINGS);
        let early: Vec<Passed> = (0..20).map(|_| breaker.pass()).collect();
        for passed in &early[..10] {
            breaker.ended(*passed, true, 4, 0);
            breaker.left(*passed);
        }
        assert_eq!(breaker.lets(5_000), Lets::Probes(1));
        for passed in &early[10..] {
            breaker.ended(*passed, true, 4, 5_000);
            breaker.left(*passed);
        }
        assert_eq!(breaker.lets(5_000), Lets::Probes(1));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_keep_it_open() {
        let mut breaker = tripped();
        assert_eq!(breaker.lets(-1_000_000), Lets::Nothing(5_000));
        assert_eq!(breaker.lets(-995_000), Lets::Probes(1));
    }

    proptest! {
        /// Whatever happens, it never stays open for longer than the cap, never lets more probes run than the step
        /// allows, and is closed by enough successes.
        #[test]
        fn it_always_comes_back(
            history in proptest::collection::vec((0_i64..3_000, any::<bool>(), any::<bool>()), 0..400),
        ) {
            let mut breaker = Breaker::new(SETTINGS);
            let mut now_ms = 0;
            let mut running: VecDeque<Passed> = VecDeque::new();
            for (step, ends, failed) in history {
                now_ms += step;
                match breaker.lets(now_ms) {
                    Lets::Nothing(left_ms) => prop_assert!(left_ms <= SETTINGS.open_max_ms),
                    Lets::Probes(0) => {}
                    Lets::Probes(_) | Lets::Everything => running.push_back(breaker.pass()),
                }
                if ends && let Some(passed) = running.pop_front() {
                    breaker.ended(passed, failed, 4, now_ms);
                    breaker.left(passed);
                }
            }
            for passed in running {
                breaker.left(passed);
            }
            now_ms += SETTINGS.open_max_ms;
            for _ in 0..20 {
                prop_assert!(!matches!(breaker.lets(now_ms), Lets::Nothing(_) | Lets::Probes(0)));
                attempt(&mut breaker, false, now_ms);
            }
            prop_assert_eq!(breaker.lets(now_ms), Lets::Everything);
        }
    }
}
