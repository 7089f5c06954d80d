//! Which fault when: data, made from a seed.
//!
//! Faults run in [`Lane`]s. Within a lane one fault is over, and what it struck is whole again, before the next one begins; the
//! lanes overlap as they like. So one broker and one node of the store may be away at the same time, but never two of a
//! kind, unless the fault is such an outage, and that is short.

use crate::random::SplitMix;
use std::fmt;

/// Dispatchers of a run.
pub const DISPATCHERS: usize = 3;
/// Ingests of a run.
pub const INGESTS: usize = 2;
/// Brokers, and nodes of the store.
pub const NODES: usize = 3;
/// Longest time for which the log or the store has no quorum, milliseconds.
pub const OUTAGE_MS_MAX: u64 = 15_000;
/// At the end, nothing new begins: what was struck last shall be whole when the time is up. Milliseconds.
const LAST_MS: u64 = 10_000;

/// What is done to a process of ours, a broker, or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// kill -9, and a new start.
    Kill,
    /// SIGSTOP, and SIGCONT: sockets stay open, nothing is answered.
    Freeze,
    /// SIGTERM, and a new start.
    Stop,
}

/// What a receiver does for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mood {
    /// Answers after a second or two.
    Slow,
    /// Answers so late that the attempt is given up just before, or just not.
    Late,
    /// Answers 503.
    Failing,
    /// Never answers.
    Hanging,
    /// Answers 429 with Retry-After.
    Throttling,
    /// Takes the request and closes the connection without an answer.
    Cutting,
    /// Answers 200 and closes the connection in mid-body.
    Stammering,
    /// Refuses connections.
    Down,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A dispatcher, by its place.
    Dispatcher(usize, Harm),
    /// All dispatchers are restarted, one after the other.
    RollingRestart,
    /// A further dispatcher comes and goes, so many times.
    RebalanceStorm(u32),
    /// An ingest, by its place.
    Ingest(usize, Harm),
    /// A broker.
    Broker(usize, Harm),
    /// Two of three brokers are frozen: the log takes nothing.
    LogOutage(usize),
    /// A broker can not write to its disk any more.
    DiskFull(usize),
    /// A node of the store.
    Node(usize, Harm),
    /// Two of three nodes are frozen: no claim is decided.
    StoreOutage(usize),
    /// Connections to the store are cut after the request has passed and before its answer.
    DroppedAnswers,
    /// The receiver that faults are made for.
    Receiver(Mood),
}

/// Faults of a lane follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Dispatchers,
    Ingests,
    Log,
    Store,
    Answers,
    Receivers,
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// From the begin of the run, milliseconds. Later when the fault before it takes longer to mend.
    pub at_ms: u64,
    /// How long it lasts before mending begins, milliseconds.
    pub length_ms: u64,
    pub fault: Fault,
}

/// A kind of fault in a lane's deck: what, and from how long to how long it lasts.
type Card = (Kind, u64, u64);

/// A fault whose victim is not chosen yet.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Dispatcher(Harm),
    RollingRestart,
    RebalanceStorm,
    Ingest(Harm),
    Broker(Harm),
    LogOutage,
    DiskFull,
    Node(Harm),
    StoreOutage,
    DroppedAnswers,
    Receiver(Mood),
}

/// Everything that is done in `duration_ms`, by time. The same seed gives the same plan.
pub fn plan(seed: u64, duration_ms: u64) -> Vec<Step> {
    let mut steps: Vec<Step> = Lane::ALL
        .iter()
        .flat_map(|lane| deal(*lane, seed, duration_ms))
        .collect();
    steps.sort_by_key(|step| (step.at_ms, step.fault));
    steps
}

/// One lane's faults: its deck is shuffled and dealt again and again, so that each kind comes before any comes twice.
fn deal(lane: Lane, seed: u64, duration_ms: u64) -> Vec<Step> {
    // Lanes draw from streams of their own: a change in one leaves the others as they were.
    let mut random = SplitMix::new(seed ^ ((lane as u64 + 1) << 56));
    let (rest_min, rest_max) = lane.rest_ms();
    let mut steps = Vec::new();
    let mut deck = Vec::new();
    let mut at_ms = random.between(2_000, rest_max);
    loop {
        if deck.is_empty() {
            deck = lane.deck().to_vec();
            random.shuffle(&mut deck);
        }
        let Some((kind, length_min, length_max)) = deck.pop() else {
            return steps;
        };
        let length_ms = random.between(length_min, length_max);
        if at_ms + length_ms + LAST_MS > duration_ms {
            return steps;
        }
        let fault = kind.against(&mut random);
        steps.push(Step {
            at_ms,
            length_ms,
            fault,
        });
        at_ms += length_ms + random.between(rest_min, rest_max);
    }
}

// === impl Lane ===

impl Lane {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Dispatchers,
        Self::Ingests,
        Self::Log,
        Self::Store,
        Self::Answers,
        Self::Receivers,
    ];

    /// Freezes are shorter and longer than what notices them: the group's session (6 s), the brokers' (9 s), a lease (15 s).
    fn deck(self) -> &'static [Card] {
        match self {
            Self::Dispatchers => &[
                (Kind::Dispatcher(Harm::Kill), 0, 3_000),
                (Kind::Dispatcher(Harm::Freeze), 2_000, 5_000),
                (Kind::Dispatcher(Harm::Freeze), 17_000, 22_000),
                (Kind::Dispatcher(Harm::Kill), 6_000, 10_000),
                (Kind::RollingRestart, 0, 0),
                (Kind::RebalanceStorm, 0, 0),
            ],
            Self::Ingests => &[
                (Kind::Ingest(Harm::Kill), 0, 2_000),
                (Kind::Ingest(Harm::Freeze), 2_000, 12_000),
                (Kind::Ingest(Harm::Stop), 0, 1_000),
            ],
            Self::Log => &[
                (Kind::Broker(Harm::Kill), 1_000, 8_000),
                (Kind::Broker(Harm::Freeze), 3_000, 6_000),
                (Kind::Broker(Harm::Freeze), 12_000, 18_000),
                (Kind::Broker(Harm::Stop), 0, 2_000),
                (Kind::LogOutage, 4_000, OUTAGE_MS_MAX),
                (Kind::DiskFull, 5_000, 10_000),
            ],
            Self::Store => &[
                (Kind::Node(Harm::Kill), 1_000, 8_000),
                (Kind::Node(Harm::Freeze), 4_000, 15_000),
                (Kind::StoreOutage, 4_000, OUTAGE_MS_MAX),
                (Kind::Node(Harm::Stop), 0, 2_000),
            ],
            Self::Answers => &[(Kind::DroppedAnswers, 3_000, 8_000)],
            Self::Receivers => &[
                (Kind::Receiver(Mood::Slow), 5_000, 10_000),
                (Kind::Receiver(Mood::Late), 6_000, 10_000),
                (Kind::Receiver(Mood::Failing), 3_000, 12_000),
                (Kind::Receiver(Mood::Hanging), 3_000, 8_000),
                (Kind::Receiver(Mood::Throttling), 3_000, 8_000),
                (Kind::Receiver(Mood::Cutting), 3_000, 8_000),
                (Kind::Receiver(Mood::Stammering), 3_000, 8_000),
                (Kind::Receiver(Mood::Down), 3_000, 12_000),
            ],
        }
    }

    /// From the planned end of a fault to the next one, milliseconds.
    fn rest_ms(self) -> (u64, u64) {
        match self {
            Self::Dispatchers => (8_000, 15_000),
            Self::Ingests => (10_000, 20_000),
            Self::Log => (10_000, 20_000),
            Self::Store => (12_000, 20_000),
            Self::Answers => (20_000, 40_000),
            Self::Receivers => (2_000, 6_000),
        }
    }
}

// === impl Kind ===

impl Kind {
    fn against(self, random: &mut SplitMix) -> Fault {
        match self {
            Self::Dispatcher(harm) => Fault::Dispatcher(random.below(DISPATCHERS), harm),
            Self::RollingRestart => Fault::RollingRestart,
            Self::RebalanceStorm => Fault::RebalanceStorm(2 + random.below(2) as u32),
            Self::Ingest(harm) => Fault::Ingest(random.below(INGESTS), harm),
            Self::Broker(harm) => Fault::Broker(random.below(NODES), harm),
            Self::LogOutage => Fault::LogOutage(random.below(NODES)),
            Self::DiskFull => Fault::DiskFull(random.below(NODES)),
            Self::Node(harm) => Fault::Node(random.below(NODES), harm),
            Self::StoreOutage => Fault::StoreOutage(random.below(NODES)),
            Self::DroppedAnswers => Fault::DroppedAnswers,
            Self::Receiver(mood) => Fault::Receiver(mood),
        }
    }
}

// === impl Fault ===

impl Fault {
    /// Where it runs.
    pub fn lane(self) -> Lane {
        match self {
            Self::Dispatcher(..) | Self::RollingRestart | Self::RebalanceStorm(_) => {
                Lane::Dispatchers
            }
            Self::Ingest(..) => Lane::Ingests,
            Self::Broker(..) | Self::LogOutage(_) | Self::DiskFull(_) => Lane::Log,
            Self::Node(..) | Self::StoreOutage(_) => Lane::Store,
            Self::DroppedAnswers => Lane::Answers,
            Self::Receiver(_) => Lane::Receivers,
        }
    }

    /// What it is called in the report, whoever it strikes.
    pub fn kind(self) -> String {
        match self {
            Self::Dispatcher(_, harm) => format!("dispatcher: {harm}"),
            Self::RollingRestart => "dispatchers: rolling restart".into(),
            Self::RebalanceStorm(_) => "dispatchers: rebalance storm".into(),
            Self::Ingest(_, harm) => format!("ingest: {harm}"),
            Self::Broker(_, harm) => format!("broker: {harm}"),
            Self::LogOutage(_) => "two brokers: SIGSTOP".into(),
            Self::DiskFull(_) => "broker: disk full".into(),
            Self::Node(_, harm) => format!("store node: {harm}"),
            Self::StoreOutage(_) => "two store nodes: SIGSTOP".into(),
            Self::DroppedAnswers => "store: answers dropped".into(),
            Self::Receiver(mood) => format!("receiver: {mood}"),
        }
    }

    /// Whether the log or the store lacks a quorum meanwhile.
    pub fn is_outage(self) -> bool {
        matches!(self, Self::LogOutage(_) | Self::StoreOutage(_))
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill -9",
            Self::Freeze => "SIGSTOP",
            Self::Stop => "SIGTERM",
        })
    }
}

impl fmt::Display for Mood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slow => "slow",
            Self::Late => "late",
            Self::Failing => "503",
            Self::Hanging => "no answer",
            Self::Throttling => "429",
            Self::Cutting => "closes before the answer",
            Self::Stammering => "closes in mid-answer",
            Self::Down => "refuses connections",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// What the short version in `make test` runs.
    const SHORT_MS: u64 = 180_000;

    fn lanes(steps: &[Step]) -> BTreeMap<Lane, Vec<Step>> {
        let mut lanes: BTreeMap<Lane, Vec<Step>> = BTreeMap::new();
        for step in steps {
            lanes.entry(step.fault.lane()).or_default().push(*step);
        }
        lanes
    }

    proptest! {
        #[test]
        fn faults_of_a_lane_follow_each_other_and_heal_in_time(seed: u64, minutes in 1_u64..60) {
            let duration_ms = minutes * 60_000;
            let steps = plan(seed, duration_ms);
            prop_assert_eq!(&steps, &plan(seed, duration_ms));
            prop_assert!(steps.is_sorted_by_key(|step| step.at_ms));
            for (lane, steps) in lanes(&steps) {
                for pair in steps.windows(2) {
                    let end_ms = pair[0].at_ms + pair[0].length_ms;
                    prop_assert!(end_ms + lane.rest_ms().0 <= pair[1].at_ms);
                }
                for step in steps {
                    prop_assert!(step.at_ms + step.length_ms + LAST_MS <= duration_ms);
                    if step.fault.is_outage() {
                        prop_assert!(step.length_ms <= OUTAGE_MS_MAX);
                    }
                }
            }
        }

        #[test]
        fn victims_exist(seed: u64) {
            for step in plan(seed, 30 * 60_000) {
                let (victim, count) = match step.fault {
                    Fault::Dispatcher(place, _) => (place, DISPATCHERS),
                    Fault::Ingest(place, _) => (place, INGESTS),
                    Fault::Broker(node, _) | Fault::Node(node, _) => (node, NODES),
                    Fault::LogOutage(node) | Fault::StoreOutage(node) => (node, NODES),
                    Fault::DiskFull(node) => (node, NODES),
                    Fault::RollingRestart
                    | Fault::RebalanceStorm(_)
                    | Fault::DroppedAnswers
                    | Fault::Receiver(_) => continue,
                };
                prop_assert!(victim < count);
            }
        }

        #[test]
        fn every_lane_has_something_to_do_in_the_short_version(seed: u64) {
            let lanes = lanes(&plan(seed, SHORT_MS));
            prop_assert_eq!(lanes.len(), Lane::ALL.len());
            prop_assert!(lanes.values().all(|steps| steps.len() >= 3));
        }
    }

    #[test]
    fn ten_minutes_have_every_kind() {
        let kinds = |steps: Vec<Step>| -> BTreeSet<String> {
            steps.iter().map(|step| step.fault.kind()).collect()
        };
        let known = kinds(plan(0, 100 * 60_000));
        assert_eq!(known.len(), 25, "{known:#?}");
        for seed in 0..50 {
            assert_eq!(kinds(plan(seed, 10 * 60_000)), known, "seed {seed}");
        }
    }

    #[test]
    fn another_seed_is_another_plan() {
        let plans: BTreeSet<String> = (0..20)
            .map(|seed| format!("{:?}", plan(seed, SHORT_MS)))
            .collect();
        assert_eq!(plans.len(), 20);
    }
}
