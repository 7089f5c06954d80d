//! What happens in a run: set-up, webhooks and faults, all drawn from the seed before it begins.

#[path = "plan/draw.rs"]
mod draw;

use dispatcher::{DestinationConfig, DispatcherConfig, RouteConfig, config::SourcePolicy};
use std::{collections::BTreeMap, time::Duration};

/// How long the work of the store may take, as the dispatcher is told.
pub(crate) const STORE_DEADLINE: Duration = Duration::from_secs(2);
/// Most dispatchers of a run.
pub(crate) const DISPATCHERS_MAX: usize = 4;
/// The destination that never fails; every webhook of the source [`CANARY`] goes there and nowhere else.
pub(crate) const ALWAYS: &str = "always";
/// The source whose webhooks show that fresh ones get through.
pub(crate) const CANARY: &str = "canary";
/// The other sources.
pub(crate) const SOURCES: [&str; 2] = ["github", "standard"];

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// No faults but those that receivers and the group make.
    pub(crate) calm: bool,
    /// Goes on for long, with receivers that never mend.
    pub(crate) long: bool,
    pub(crate) partitions: u32,
    pub(crate) dispatchers: usize,
    pub(crate) config: DispatcherConfig,
    pub(crate) destinations: BTreeMap<String, DestinationConfig>,
    pub(crate) moods: BTreeMap<String, Mood>,
    pub(crate) routes: Vec<RouteConfig>,
    pub(crate) policies: BTreeMap<String, SourcePolicy>,
    /// Difference of each dispatcher's clock to the log's, milliseconds.
    pub(crate) skews_ms: Vec<i64>,
    pub(crate) webhooks: Vec<Planned>,
    /// By time.
    pub(crate) faults: Vec<(u64, Fault)>,
    /// When all faults have ended, milliseconds from the start.
    pub(crate) heal_at_ms: u64,
}

/// A webhook and when it is posted, milliseconds from the start.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) source: &'static str,
    pub(crate) delivery_id: String,
    pub(crate) event_type: &'static str,
    pub(crate) body: Vec<u8>,
    /// Each one is a post with tries of its own.
    pub(crate) at_ms: Vec<u64>,
}

/// How a destination behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Good,
    /// Fails about every second time, in every way there is.
    Flaky,
    /// Asks to come again later, often.
    Throttling,
    /// Answers nothing within its timeout, often.
    Hanging,
    Dead,
    /// Refuses for good, sometimes.
    Refusing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A dispatcher dies at the `steps`-th step of its jobs from now on, and starts again.
    Crash {
        dispatcher: usize,
        steps: usize,
        down_ms: u64,
    },
    /// A dispatcher is asked to stop, and starts again.
    Stop {
        dispatcher: usize,
        down_ms: u64,
    },
    /// A dispatcher stands still; with `lost` the group has given all partitions to whoever is there by the time it goes on.
    Freeze {
        dispatcher: usize,
        for_ms: u64,
        lost: bool,
    },
    /// A dispatcher does not reach the store; with `lost` the group takes all partitions away from everybody meanwhile.
    Cut {
        dispatcher: usize,
        for_ms: u64,
        lost: bool,
    },
    /// Ingest dies with all requests, and starts again.
    CrashIngest,
    /// The group takes a partition from its owner.
    Revoke {
        partition: u32,
        lost: bool,
    },
    Store {
        weather: StoreWeather,
        for_ms: u64,
    },
    Log {
        weather: LogWeather,
        for_ms: u64,
    },
    /// Reading fails.
    Reads {
        count: usize,
    },
    /// Offsets that hold no record.
    Gap {
        partition: u32,
        count: i64,
    },
    /// A record that is no webhook.
    Garbage {
        number: u64,
    },
    /// A dispatcher's clock is set, within the margin.
    Skew {
        dispatcher: usize,
        skew_ms: i64,
    },
    /// A dispatcher's clock jumps far beyond the margin, and is set right when the faults end.
    Jump {
        dispatcher: usize,
        by_ms: i64,
    },
    /// Every destination but [`ALWAYS`] is like this for a time.
    Receivers {
        mood: Mood,
        for_ms: u64,
    },
}

/// Probabilities for one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreWeather {
    /// Nothing happens, and the caller is told that it is not known.
    pub(crate) unavailable: f64,
    /// It happens, and the answer is lost.
    pub(crate) answer_lost: f64,
    /// It happens, and the answer comes late.
    pub(crate) answer_late: f64,
    /// The answer is lost, and it happens after seconds, with or without having happened at once.
    pub(crate) copy_late: f64,
}

/// Probabilities for one produce.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogWeather {
    /// Not acknowledged, not written.
    pub(crate) lost: f64,
    /// Written, not acknowledged.
    pub(crate) unacknowledged: f64,
    pub(crate) busy: f64,
    /// Acknowledged late.
    pub(crate) late: f64,
    /// Never answers; written or not.
    pub(crate) hangs: f64,
}

// === impl Plan ===

impl Plan {
    /// The destinations of a webhook: said again here, so that the product's routes are not judged by themselves.
    pub(crate) fn destinations_of(source: &str, event_type: &str) -> &'static [&'static str] {
        match (source, event_type) {
            (CANARY, _) => &[ALWAYS],
            ("github", "push") => &["one", "two"],
            ("github", _) => &["one"],
            ("standard", "push") => &["three", "two"],
            _ => &[],
        }
    }

    /// Whether some clock was further away than the margin.
    pub(crate) fn jumps(&self) -> bool {
        let jump = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Jump { .. });
        self.faults.iter().any(jump)
    }
}
