//! The judge. It sees every write of the store, every record and commit of the log and every attempt as they happen, and
//! says which invariant of the design was violated first. It knows nothing of what the dispatcher thinks.

#[path = "oracle/claims.rs"]
mod claims;
#[path = "oracle/end.rs"]
mod end;
#[path = "oracle/records.rs"]
mod records;
#[path = "oracle/sends.rs"]
mod sends;

use crate::{plan::Plan, trace::Trace};
use dedup_store::{Row, Status};
use dispatcher::outcome::Outcome;
use schemas::{DeliveryKey, Reason, Topic};
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

#[derive(Debug)]
pub(crate) struct Oracle {
    plan: Plan,
    pub(crate) trace: Trace,
    violation: Option<Violation>,
    /// What senders have posted, by source and delivery id.
    posted: BTreeMap<(String, String), Posted>,
    rows: BTreeMap<DeliveryKey, Row>,
    /// When each row came to its last end.
    ended_at_ms: BTreeMap<DeliveryKey, i64>,
    claims: BTreeMap<Uuid, Claimed>,
    /// Tokens of the attempts of a delivery, in order.
    sends: BTreeMap<DeliveryKey, Vec<Uuid>>,
    entries: BTreeMap<Place, Entry>,
    /// Records of each delivery.
    carriers: BTreeMap<DeliveryKey, Vec<Carrier>>,
    /// Dead letters by generation.
    letters: BTreeMap<DeliveryKey, BTreeMap<u32, Reason>>,
    /// Of records that could not be decoded: partition and offset.
    raw_letters: BTreeSet<(u32, i64)>,
    committed: BTreeMap<(Topic, u32), i64>,
    /// The number of the last trouble with the store's answers about a delivery.
    troubles: BTreeMap<DeliveryKey, usize>,
    /// Lives of processes that have ended.
    over: BTreeSet<usize>,
    /// Until when each process stood still last, milliseconds from the start.
    frozen_until_ms: BTreeMap<usize, i64>,
    load: BTreeMap<usize, Load>,
    pub(crate) tally: Tally,
}

/// What went wrong first.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// Number of the invariant in the design.
    pub(crate) invariant: u8,
    pub(crate) what: String,
    /// Whose lines of the trace tell more.
    pub(crate) about: Option<DeliveryKey>,
}

/// How often what happened, so that a run that tests nothing is noticed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(BTreeMap<&'static str, u64>);

/// Topic, partition, offset.
type Place = (Topic, u32, i64);

#[derive(Clone, Debug)]
struct Posted {
    event_type: String,
    body: Vec<u8>,
    acknowledged: bool,
}

/// A claim that the store has granted.
#[derive(Clone, Debug)]
struct Claimed {
    key: DeliveryKey,
    life: usize,
    /// Troubles before it explain nothing after it.
    number: usize,
    /// True time, milliseconds from the start; so are the others.
    at_ms: i64,
    generation: u32,
    /// Where the row stood before.
    from: Option<Status>,
    lease_ends_ms: i64,
    /// When its owner last called the store about it, whatever came of it.
    called_ms: i64,
    sent: bool,
    answer: Option<Answered>,
}

#[derive(Clone, Debug)]
struct Answered {
    outcome: Outcome,
    /// By the clock of the process.
    now_ms: i64,
}

#[derive(Clone, Debug)]
enum Entry {
    Deliveries(Vec<DeliveryKey>),
    Garbage,
}

#[derive(Clone, Debug)]
struct Carrier {
    place: Place,
    fence: Option<Uuid>,
}

#[derive(Clone, Debug, Default)]
struct Load {
    attempts: usize,
    bytes: usize,
    by_destination: BTreeMap<String, usize>,
}

// === impl Oracle ===

impl Oracle {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            trace: Trace::new(),
            violation: None,
            posted: BTreeMap::new(),
            rows: BTreeMap::new(),
            ended_at_ms: BTreeMap::new(),
            claims: BTreeMap::new(),
            sends: BTreeMap::new(),
            entries: BTreeMap::new(),
            carriers: BTreeMap::new(),
            letters: BTreeMap::new(),
            raw_letters: BTreeSet::new(),
            committed: BTreeMap::new(),
            troubles: BTreeMap::new(),
            over: BTreeSet::new(),
            frozen_until_ms: BTreeMap::new(),
            load: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    /// Keeps the first violation: what comes after it often follows from it.
    pub(crate) fn violated(&mut self, invariant: u8, what: String, about: Option<&DeliveryKey>) {
        if self.violation.is_none() {
            self.violation = Some(Violation {
                invariant,
                what,
                about: about.cloned(),
            });
        }
    }

    /// A sender posts this, for the first time or again.
    pub(crate) fn posts(&mut self, source: &str, delivery_id: &str, event_type: &str, body: &[u8]) {
        let posted = Posted {
            event_type: event_type.to_owned(),
            body: body.to_vec(),
            acknowledged: false,
        };
        self.posted
            .entry((source.to_owned(), delivery_id.to_owned()))
            .or_insert(posted);
    }

    /// It was answered 2xx: an obligation.
    pub(crate) fn acknowledged(&mut self, source: &str, delivery_id: &str) {
        let key = (source.to_owned(), delivery_id.to_owned());
        self.tally.count("acknowledged");
        if let Some(posted) = self.posted.get_mut(&key) {
            posted.acknowledged = true;
        }
        self.check_carried();
    }

    /// The store's answer about a delivery was lost, late or none.
    pub(crate) fn trouble(&mut self, key: &DeliveryKey) {
        self.tally.count("store troubles");
        self.troubles.insert(key.clone(), self.trace.count());
    }

    /// The owner of a claim calls the store about it.
    pub(crate) fn called(&mut self, at_ms: i64, token: Uuid) {
        if let Some(claimed) = self.claims.get_mut(&token) {
            claimed.called_ms = at_ms;
        }
    }

    /// A process has died or ended.
    pub(crate) fn life_over(&mut self, life: usize) {
        self.over.insert(life);
    }

    /// A process stands still.
    pub(crate) fn froze(&mut self, life: usize, until_ms: i64) {
        self.tally.count("freezes");
        self.frozen_until_ms.insert(life, until_ms);
    }

    /// Whether the owner of a claim has stood still since.
    fn has_frozen(&self, claimed: &Claimed) -> bool {
        let until_ms = self.frozen_until_ms.get(&claimed.life);
        until_ms.is_some_and(|until_ms| *until_ms >= claimed.at_ms)
    }

    /// Whether what `earlier` did may be done again without the dispatcher being to blame: its process is over, clocks are
    /// far off, it stood still, or the store did not take what its owner has told it again and again.
    fn excused(&self, earlier: &Claimed) -> bool {
        if self.over.contains(&earlier.life) || self.plan.jumps() || self.has_frozen(earlier) {
            return true;
        }
        let troubled = self.troubles.get(&earlier.key);
        let config = &self.plan.config;
        // A lease is renewed when a third of it has passed, for as long as somebody cares.
        let renewed_by = config.lease * 2 / 3 + config.skew_margin;
        let renewed_by_ms = i64::try_from(renewed_by.as_millis()).expect("short");
        troubled.is_some_and(|number| *number >= earlier.number)
            && earlier.called_ms >= earlier.lease_ends_ms - renewed_by_ms
    }
}

// === impl Tally ===

impl Tally {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "{count:>9} {what}")?;
        }
        Ok(())
    }
}
