//! A gate before each destination, so that none harms the others: attempts at once, attempts a second, a circuit breaker,
//! and what an overloaded receiver is owed. A delivery passes it before its claim is made, so whoever is put off has used
//! up no attempt.
//!
//! What decides is in [`door`] and below it: state machines over plain values, without a clock. Here are the lock, the
//! waiting, and what an operator gets to see.

mod breaker;
mod crowd;
mod door;
mod overload;
mod pace;
mod queue;
mod rate;

pub use queue::Class;

use crate::{
    config::{DestinationConfig, DispatcherConfig},
    metrics::Metrics,
    outcome::Outcome,
};
use crowd::{Crowd, Load};
use door::{Answer, Bounds, Door, Pass, Shown};
use queue::Ticket;
use runtime::Clock;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// A Retry-After speaks for its own delivery for as long as `retry_after_max`; for all others of the destination only so long,
/// else one wrong header shuts it for a day.
const ASKED_MAX_MS: i64 = 600_000;

/// The gates of all destinations.
#[derive(Debug)]
pub struct Gates {
    gates: BTreeMap<String, Arc<Gate>>,
    room_wait: Duration,
}

/// Somebody who wants in.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub destination: &'a str,
    pub class: Class,
    /// Memory that he holds while he waits and while he is inside.
    pub bytes: usize,
}

/// The answer of a gate.
#[derive(Debug)]
pub enum Entry {
    Entered(Entered),
    Refused(Refused),
}

/// The delivery is put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub cause: Cause,
    /// Before that there is hardly any sense in coming back, milliseconds.
    pub wait_ms: i64,
}

/// Why a gate lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// As many attempts run as may, and too many wait.
    NoRoom,
    /// As many attempts began as may in a second.
    Rate,
    /// The destination only fails.
    Breaker,
    /// The destination asked to be left alone.
    Overload,
}

/// Room for one attempt, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Entered(Option<Inside>);

#[derive(Debug)]
struct Inside {
    gate: Arc<Gate>,
    pass: Pass,
    bytes: usize,
    /// The attempt has begun: whatever comes of it, the receiver may have seen it.
    begun: AtomicBool,
}

#[derive(Debug)]
struct Gate {
    destination: String,
    state: Mutex<State>,
    /// Shared by all gates. Locked inside of `state`, never the other way round.
    crowd: Arc<Mutex<Crowd>>,
    metrics: Metrics,
}

#[derive(Debug)]
struct State {
    door: Door<Arc<Notify>>,
    /// Of this destination, waiting or inside.
    load: Load,
    /// For [`Crowd::asked`].
    asked: Option<i64>,
    shown: Shown,
}

/// A place in the queue, until it is dropped.
struct Waiting {
    gate: Arc<Gate>,
    ticket: Ticket,
    waker: Arc<Notify>,
    bytes: usize,
    /// Out of the queue.
    out: bool,
}

// === impl Gates ===

impl Gates {
    /// One gate a destination.
    pub fn new(
        destinations: &BTreeMap<String, DestinationConfig>,
        config: &DispatcherConfig,
        metrics: &Metrics,
    ) -> Self {
        let window = Load {
            count: config.in_flight_max,
            bytes: config.in_flight_bytes_max,
        };
        let crowd = Arc::new(Mutex::new(Crowd::new(window)));
        let gate = |(name, destination): (&String, &DestinationConfig)| {
            let door = Door::new(bounds(destination, config));
            let shown = door.shown();
            metrics.gate(name, shown.number, shown.limit);
            let state = State {
                door,
                load: Load::default(),
                asked: None,
                shown,
            };
            let gate = Gate {
                destination: name.clone(),
                state: Mutex::new(state),
                crowd: Arc::clone(&crowd),
                metrics: metrics.clone(),
            };
            (name.clone(), Arc::new(gate))
        };
        Self {
            gates: destinations.iter().map(gate).collect(),
            room_wait: config.room_wait,
        }
    }

    /// Asks for room, and waits for it for at most `room_wait`, when there is hope. A destination that is not configured has
    /// no bounds, since nothing is sent to it.
    pub async fn enter(&self, ask: Ask<'_>, clock: &Clock) -> Entry {
        let Some(gate) = self.gates.get(ask.destination) else {
            return Entry::Entered(Entered::none());
        };
        match gate.arrive(ask, clock.now_ms()) {
            Ok(entry) => entry,
            Err(waiting) => waiting.through(clock, self.room_wait).await,
        }
    }
}

/// The bounds of a destination, from its config.
fn bounds(destination: &DestinationConfig, config: &DispatcherConfig) -> Bounds {
    let breaker = &destination.breaker;
    let settings = breaker.enabled.then(|| {
        let breaking = breaker::Settings {
            window_ms: millis(breaker.window(destination.timeout)),
            failure_rate: breaker.failure_rate,
            attempts_min: breaker.attempts_min(destination.concurrency, destination.timeout),
            consecutive_failures: breaker.consecutive_failures,
            open_ms: millis(breaker.open),
            open_max_ms: millis(breaker.open_max),
        };
        let sparing = overload::Settings {
            concurrency: destination.concurrency,
            penalty_ms: millis(breaker.penalty),
            penalty_max_ms: millis(breaker.open_max),
            retry_after_max_ms: millis(config.retry_after_max).min(ASKED_MAX_MS),
        };
        (breaking, sparing)
    });
    Bounds {
        concurrency: destination.concurrency,
        timeout_ms: millis(destination.timeout),
        room_wait_ms: millis(config.room_wait),
        rate: destination.rate.as_ref().map(rate::Rate::new),
        breaker: settings,
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

// === impl Cause ===

impl Cause {
    /// As metrics and log lines have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::Rate => "rate",
            Self::Breaker => "breaker",
            Self::Overload => "overload",
        }
    }
}

// === impl Entered ===

impl Entered {
    /// For what is not sent.
    pub fn none() -> Self {
        Self(None)
    }

    /// Makes the attempt, and tells the gate what came of it.
    pub async fn attempt(&self, clock: &Clock, attempt: impl Future<Output = Outcome>) -> Outcome {
        let Some(inside) = &self.0 else {
            return attempt.await;
        };
        inside.begun.store(true, Ordering::Relaxed);
        let began_at_ms = clock.now_ms();
        let outcome = attempt.await;
        let now_ms = clock.now_ms();
        let took_ms = now_ms.saturating_sub(began_at_ms);
        inside.gate.change(|state| {
            state.door.ended(&inside.pass, &outcome, took_ms, now_ms);
        });
        outcome
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let begun = self.begun.load(Ordering::Relaxed);
        let (pass, bytes) = (self.pass, self.bytes);
        self.gate.change(|state| {
            state.door.left(&pass, begun);
            state.load.leave(bytes);
            self.gate.crowd().leave(bytes);
        });
    }
}

// === impl Gate ===

impl Gate {
    /// The answer at once, or a place in the queue.
    fn arrive(self: &Arc<Self>, ask: Ask<'_>, now_ms: i64) -> Result<Entry, Waiting> {
        let bytes = ask.bytes;
        self.change(|state| {
            let over = {
                let mut crowd = self.crowd();
                crowd.asked(&mut state.asked, now_ms);
                crowd.is_over(state.load)
            };
            let answer = state.door.arrive(ask.class, over, now_ms);
            if let Answer::Refused(refused) = answer {
                return Ok(Entry::Refused(refused));
            }
            state.load.enter(bytes);
            self.crowd().enter(bytes);
            if let Answer::Enter(pass) = answer {
                return Ok(self.entered(pass, bytes));
            }
            let waker = Arc::new(Notify::new());
            Err(Waiting {
                gate: Arc::clone(self),
                ticket: state.door.queue.push(ask.class, Arc::clone(&waker)),
                waker,
                bytes,
                out: false,
            })
        })
    }

    fn entered(self: &Arc<Self>, pass: Pass, bytes: usize) -> Entry {
        Entry::Entered(Entered(Some(Inside {
            gate: Arc::clone(self),
            pass,
            bytes,
            begun: AtomicBool::new(false),
        })))
    }

    /// Somebody who waits looks.
    fn look(&self, ticket: Ticket, now_ms: i64) -> Answer {
        let mut state = self.lock();
        let answer = state.door.look(ticket, now_ms);
        // Whoever looked in vain must not wake himself.
        self.settle(&mut state, !matches!(answer, Answer::Wait(_)));
        answer
    }

    /// Changes something that others may have waited for.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let answer = change(&mut state);
        self.settle(&mut state, true);
        answer
    }

    /// After every change: the one in front of the queue looks again, and everybody does when the gate has opened or
    /// closed; and an operator learns of it.
    fn settle(&self, state: &mut State, moved: bool) {
        let shown = state.door.shown();
        let before = std::mem::replace(&mut state.shown, shown);
        if shown != before {
            self.tell(before, shown);
        }
        if (shown.state, shown.spared) != (before.state, before.spared) {
            state.door.queue.wakers().for_each(|it| it.notify_one());
        } else if moved && let Some((_, waker)) = state.door.queue.front() {
            waker.notify_one();
        }
    }

    fn tell(&self, before: Shown, after: Shown) {
        let (destination, limit) = (&self.destination, after.limit);
        self.metrics.gate(destination, after.number, limit);
        if before.state != after.state {
            let (from, to) = (before.state, after.state);
            tracing::warn!(destination, from, to, "gate changed");
        }
        if before.spared != after.spared {
            let message = if after.spared {
                "fewer attempts at once: the destination is overloaded"
            } else {
                "as many attempts at once as configured again"
            };
            tracing::warn!(destination, limit, message);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn crowd(&self) -> MutexGuard<'_, Crowd> {
        self.crowd.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Waiting ===

impl Waiting {
    async fn through(mut self, clock: &Clock, room_wait: Duration) -> Entry {
        let deadline = Instant::now() + room_wait;
        loop {
            let look_again = match self.gate.look(self.ticket, clock.now_ms()) {
                Answer::Enter(pass) => {
                    self.out = true;
                    return self.gate.entered(pass, self.bytes);
                }
                Answer::Refused(refused) => return self.refused(refused),
                Answer::Wait(wait_ms) => {
                    let now = Instant::now();
                    if now >= deadline {
                        let now_ms = clock.now_ms();
                        let ticket = self.ticket;
                        let give_up = |state: &mut State| state.door.give_up(ticket, now_ms);
                        let refused = self.gate.change(give_up);
                        return self.refused(refused);
                    }
                    wait_ms.map_or(deadline, |wait_ms| {
                        let wait = Duration::from_millis(wait_ms.unsigned_abs());
                        deadline.min(now + wait)
                    })
                }
            };
            tokio::select! {
                biased;
                () = self.waker.notified() => {}
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    fn refused(self, refused: Refused) -> Entry {
        // Dropped, it gives the place up.
        drop(self);
        Entry::Refused(refused)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.out {
            self.gate.change(|state| {
                state.door.queue.remove(self.ticket);
                state.load.leave(self.bytes);
                self.gate.crowd().leave(self.bytes);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::of_status;

    #[tokio::test(start_paused = true)]
    async fn an_operator_sees_every_step_of_the_limit() {
        let url = "https://billing.example/".parse().unwrap();
        let destinations = BTreeMap::from([("billing".to_owned(), DestinationConfig::to(url))]);
        let gates = Gates::new(&destinations, &DispatcherConfig::default(), &Metrics::new());
        let clock = Clock::manual(0);
        let ask = Ask {
            destination: "billing",
            class: Class::First,
            bytes: 1,
        };
        let mut seen = vec![gates.gates["billing"].lock().shown.limit];
        for status in [429, 429, 204, 204, 204, 204] {
            let Entry::Entered(room) = gates.enter(ask, &clock).await else {
                panic!("the pause is over");
            };
            let outcome = of_status(status, None, &[], 0);
            room.attempt(&clock, async { outcome }).await;
            drop(room);
            seen.push(gates.gates["billing"].lock().shown.limit);
            clock.advance(60_000);
        }
        assert_eq!(seen, [16, 8, 4, 4, 4, 4, 5]);
    }
}
