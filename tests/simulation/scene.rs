//! What all parts of a run share: the true time, the log, the store, the weather, the oracle.

use crate::{
    lot::Lot,
    oracle::Oracle,
    plan::{DISPATCHERS_MAX, LogWeather, Mood, Plan, StoreWeather},
};
use dedup_store::{Retention, memory::MemoryStore};
use event_log::memory::MemoryLog;
use runtime::Clock;
use schemas::Codec;
use std::{
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// When every run begins.
pub(crate) const START_MS: i64 = 1_800_000_000_000;
const DAY_MS: i64 = 86_400_000;
/// A process that stands still is looked at again after this time.
const FREEZE_LOOK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) plan: Plan,
    /// The true time, which the log has.
    pub(crate) clock: Clock,
    pub(crate) log: MemoryLog,
    pub(crate) store: MemoryStore,
    pub(crate) codec: Codec,
    /// For what happens on the way.
    pub(crate) lot: Lot,
    weather: Mutex<Weather>,
    oracle: Mutex<Oracle>,
}

/// The faults of now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) store: StoreWeather,
    pub(crate) log: LogWeather,
    /// The dispatchers, by number, that do not reach the store.
    pub(crate) cut: [bool; DISPATCHERS_MAX],
    /// Instead of the destinations' own moods.
    pub(crate) mood: Option<Mood>,
}

/// One life of one process.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Number over all processes.
    number: usize,
    /// Number of the dispatcher; none: ingest.
    dispatcher: Option<usize>,
    name: String,
    /// The machine's clock; goes on over restarts.
    clock: Clock,
    /// Cancelled when it dies.
    dies: CancellationToken,
    dead: AtomicBool,
    /// Steps until it dies; 0: it does not.
    steps_left: AtomicUsize,
    /// It stands still until then.
    frozen_until: Mutex<Option<Instant>>,
}

// === impl Scene ===

impl Scene {
    pub(crate) fn new(plan: Plan) -> Arc<Self> {
        let clock = Clock::going(START_MS);
        let retention = Retention {
            open_ms: DAY_MS,
            failed_ms: 14 * DAY_MS,
            completed_ms: 30 * DAY_MS,
        };
        Arc::new(Self {
            log: MemoryLog::new(plan.partitions, clock.clone()),
            store: MemoryStore::new(retention),
            codec: Codec::default(),
            lot: Lot::new(plan.seed, 3),
            weather: Mutex::default(),
            oracle: Mutex::new(Oracle::new(plan.clone())),
            plan,
            clock,
        })
    }

    /// Milliseconds since the start, true time.
    pub(crate) fn at_ms(&self) -> i64 {
        self.clock.now_ms() - START_MS
    }

    pub(crate) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().expect("the oracle does not panic")
    }

    pub(crate) fn weather(&self) -> Weather {
        *self.weather.lock().expect("nothing panics")
    }

    pub(crate) fn set_weather(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather.lock().expect("nothing panics"));
    }

    /// One line of the trace.
    pub(crate) fn tell(&self, who: &str, what: &str) {
        let at_ms = self.at_ms();
        self.oracle().trace.add(at_ms, who, what);
    }
}

// === impl Life ===

impl Life {
    pub(crate) fn new(
        number: usize,
        name: String,
        dispatcher: Option<usize>,
        clock: Clock,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                number,
                dispatcher,
                name,
                clock,
                dies: CancellationToken::new(),
                dead: AtomicBool::new(false),
                steps_left: AtomicUsize::new(0),
                frozen_until: Mutex::default(),
            }),
        }
    }

    pub(crate) fn number(&self) -> usize {
        self.inner.number
    }

    pub(crate) fn dispatcher(&self) -> Option<usize> {
        self.inner.dispatcher
    }

    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub(crate) fn died(&self) -> &CancellationToken {
        &self.inner.dies
    }

    /// It dies at this step from now on; 0: at once.
    pub(crate) fn die_after(&self, steps: usize) {
        if steps == 0 {
            self.die();
        } else {
            self.inner.steps_left.store(steps, Ordering::SeqCst);
        }
    }

    /// It stands still for this time from now on.
    pub(crate) fn freeze(&self, time: Duration) {
        *self.inner.frozen_until.lock().expect("nothing panics") = Some(Instant::now() + time);
    }

    /// When to look again whether it goes on; none: it does.
    pub(crate) fn stands_still(&self) -> Option<Instant> {
        let now = Instant::now();
        let until = *self.inner.frozen_until.lock().expect("nothing panics");
        let until = until.filter(|until| *until > now)?;
        Some(until.min(now + FREEZE_LOOK))
    }

    /// A place where a process can die or stand still: before or after something that others can see. The dead go no
    /// further.
    pub(crate) async fn step(&self) {
        while let Some(until) = self.stands_still() {
            sleep_until(until).await;
        }
        let left = self.inner.steps_left.load(Ordering::SeqCst);
        if left > 0 {
            self.inner.steps_left.store(left - 1, Ordering::SeqCst);
            if left == 1 {
                self.die();
            }
        }
        if self.inner.dead.load(Ordering::SeqCst) {
            pending::<()>().await;
        }
    }

    fn die(&self) {
        self.inner.dead.store(true, Ordering::SeqCst);
        self.inner.dies.cancel();
    }
}
