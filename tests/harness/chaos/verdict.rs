//! Judges a run with faults by what was recorded.
//!
//! [`Oracle`] says what was lost, altered or foreign. Here is said which repeats the faults explain, and whether each attempt
//! kept to what is promised. The rules stand in `docs/reliability.md`.

use crate::{
    chaos::plan::Fault,
    oracle::{Delivery, Oracle, Report},
    receiver::Arrival,
};
use std::collections::{BTreeMap, BTreeSet};

/// An attempt that was answered so short a time before its dispatcher died may not have been noted as completed. Milliseconds.
const NOTED_MS: i64 = 3_000;
/// What a dispatcher had written before it died or stopped may be read by the receiver a little later. Milliseconds.
const ON_THE_WIRE_MS: i64 = 1_000;
/// A store that is whole again has calls in work that began before; as long as one call may take. Milliseconds.
const STORE_AFTER_MS: i64 = 10_000;
/// An answer that came so close to the attempt's deadline may have come behind it. Milliseconds.
const LATE_MARGIN_MS: i64 = 1_500;
/// How long a dispatcher that was frozen may have held what it then did: a claim's lease and a margin. Milliseconds.
const LEASE_MS: i64 = 20_000;

/// Why a delivery that was accepted may have been attempted once more. The narrowest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The receiver answered when the attempt was nearly or already given up.
    Late,
    /// The dispatcher that had sent it was killed before it had noted the answer.
    Killed,
    /// The dispatcher that had sent it stood still, so that its claim was taken over.
    Frozen,
    /// The store could not be told that it was accepted, or the answer got lost.
    Store,
}

/// A time in which a fault may have touched an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub cause: Cause,
    /// The one process that was struck; none: any.
    pub instance: Option<usize>,
    /// Milliseconds since the Unix epoch.
    pub from_ms: i64,
    pub to_ms: i64,
}

/// A fault as it was really done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    pub fault: Fault,
    /// Milliseconds since the Unix epoch: when it began,
    pub from_ms: i64,
    /// when it was ended or mending began,
    pub ended_ms: i64,
    /// and when what was struck was whole again.
    pub mended_ms: i64,
}

/// What is promised of attempts.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Deadline of an attempt, milliseconds.
    pub timeout_ms: i64,
    pub attempts_max: u32,
    /// Shortest wait after an attempt that failed, milliseconds,
    pub base_ms: i64,
    /// and after a 429, as its Retry-After said.
    pub retry_after_ms: i64,
}

/// Everything that was recorded.
#[derive(Debug)]
pub struct Facts {
    pub oracle: Oracle,
    pub touches: Vec<Touch>,
    pub terms: Terms,
}

/// An attempt after one that had been accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    pub delivery: Delivery,
    /// Attempt, dispatcher, and milliseconds since the Unix epoch, of the one that was accepted
    pub first: (u32, Option<usize>, i64),
    /// and of the next one.
    pub second: (u32, Option<usize>, i64),
}

/// The judgement.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Lost, altered, foreign, renamed; its `doubled` are the repeats that are judged here.
    pub oracle: Report,
    /// Repeats that faults explain, by the narrowest cause.
    pub explained: BTreeMap<Cause, Vec<Repeat>>,
    /// Repeats that nothing explains.
    pub unexplained: Vec<Repeat>,
    /// One attempt, by its number, that arrived twice.
    pub same_attempt: Vec<Repeat>,
    /// Attempts sooner than the wait after the one before, that nothing explains.
    pub early: Vec<Repeat>,
    /// Attempts beyond the highest number.
    pub too_many: Vec<Delivery>,
    /// Dead letters whose reason nobody has given.
    pub unjust: Vec<Delivery>,
    /// Accepted and dead-lettered too: the answer was not noted, and no attempt was left.
    pub both: usize,
}

// === impl Facts ===

impl Facts {
    /// Looks at everything.
    pub fn judge(&self) -> Verdict {
        let mut verdict = Verdict {
            oracle: self.oracle.judge(),
            ..Verdict::default()
        };
        for (delivery, mut arrivals) in self.oracle.by_delivery() {
            arrivals.sort_by_key(|arrival| arrival.at_ms);
            self.judge_delivery(&delivery, &arrivals, &mut verdict);
        }
        self.judge_letters(&mut verdict);
        verdict
    }

    fn judge_delivery(&self, delivery: &Delivery, arrivals: &[&Arrival], verdict: &mut Verdict) {
        let mut numbers = BTreeMap::new();
        for arrival in arrivals {
            if let Some(earlier) = numbers.insert(arrival.attempt, *arrival) {
                verdict
                    .same_attempt
                    .push(Repeat::of(delivery, earlier, arrival));
            }
            if arrival.attempt > self.terms.attempts_max {
                verdict.too_many.push(delivery.clone());
            }
        }
        for pair in arrivals.windows(2) {
            let [first, second] = pair else { continue };
            let repeat = Repeat::of(delivery, first, second);
            if first.accepted() {
                match self.cause(first) {
                    Some(cause) => verdict.explained.entry(cause).or_default().push(repeat),
                    None => verdict.unexplained.push(repeat),
                }
            } else if self.is_early(first, second) {
                verdict.early.push(repeat);
            }
        }
    }

    /// Why another attempt may follow on `first`, although it was accepted.
    fn cause(&self, first: &Arrival) -> Option<Cause> {
        let answered_ms = first.answered_at_ms.unwrap_or(first.at_ms);
        let late = answered_ms - first.at_ms >= self.terms.timeout_ms - LATE_MARGIN_MS;
        let touched = self.touches.iter().filter_map(|touch| {
            let after_ms = match touch.cause {
                Cause::Store => STORE_AFTER_MS,
                Cause::Late | Cause::Killed | Cause::Frozen => ON_THE_WIRE_MS,
            };
            let meets = touch.from_ms <= answered_ms + NOTED_MS
                && touch.to_ms + after_ms >= first.at_ms
                && (touch.instance.is_none() || touch.instance == first.sent_by);
            meets.then_some(touch.cause)
        });
        late.then_some(Cause::Late).into_iter().chain(touched).min()
    }

    /// Whether `second` came sooner than the answer to `first` allows. A dispatcher that stood still sends what it had claimed
    /// before, and a store without answers leaves claims to those who come later.
    fn is_early(&self, first: &Arrival, second: &Arrival) -> bool {
        let (Some(status), Some(answered_ms)) = (first.status, first.answered_at_ms) else {
            return false;
        };
        let least_ms = match status {
            429 => self.terms.retry_after_ms,
            _ => self.terms.base_ms,
        };
        let disturbed = self.touches.iter().any(|touch| {
            touch.from_ms <= second.at_ms
                && touch.to_ms >= first.at_ms - LEASE_MS
                && (touch.instance.is_none()
                    || [first.sent_by, second.sent_by].contains(&touch.instance))
        });
        second.at_ms - answered_ms < least_ms && !disturbed
    }

    fn judge_letters(&self, verdict: &mut Verdict) {
        let arrivals = self.oracle.by_delivery();
        let mut seen = BTreeSet::new();
        for letter in &self.oracle.dead_letters {
            let named = &self.oracle.destinations;
            let Some((_, path)) = named.iter().find(|(name, _)| *name == letter.destination) else {
                verdict
                    .unjust
                    .push((letter.destination.clone(), letter.delivery_id.clone()));
                continue;
            };
            let delivery = (path.clone(), letter.delivery_id.clone());
            let all = arrivals
                .get(&delivery)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let answered = |status: u16| all.iter().any(|it| it.status == Some(status));
            let just = match letter.reason.as_str() {
                "gone" => answered(410),
                "rejected" => all
                    .iter()
                    .any(|it| it.status.is_some_and(|status| (400..500).contains(&status))),
                "exhausted" => letter.field("attempts") == self.terms.attempts_max,
                _ => false,
            };
            if !just {
                verdict.unjust.push(delivery.clone());
            }
            let accepted = all.iter().any(|arrival| arrival.accepted());
            verdict.both += usize::from(accepted && seen.insert(delivery));
        }
    }
}

/// From the time when a fault was mended to the arrival at `path` of the first webhook that was acknowledged after it,
/// milliseconds. None when no such webhook came.
pub fn recovery_ms(injected: &Injected, oracle: &Oracle, path: &str) -> Option<i64> {
    let mut acknowledged: BTreeMap<&str, i64> = BTreeMap::new();
    for sent in oracle.sent.iter().filter(|sent| sent.acknowledged()) {
        let first_ms = acknowledged.entry(&sent.delivery_id).or_insert(sent.at_ms);
        *first_ms = sent.at_ms.min(*first_ms);
    }
    let fresh = |arrival: &&Arrival| {
        let acknowledged_ms = acknowledged.get(arrival.delivery_id.as_str());
        arrival.path == path
            && arrival.accepted()
            && acknowledged_ms.is_some_and(|at_ms| *at_ms >= injected.mended_ms)
    };
    let arrived = oracle.arrivals.iter().filter(fresh);
    arrived
        .map(|arrival| (arrival.at_ms - injected.mended_ms).max(0))
        .min()
}

// === impl Repeat ===

impl Repeat {
    fn of(delivery: &Delivery, first: &Arrival, second: &Arrival) -> Self {
        let seen = |arrival: &Arrival| (arrival.attempt, arrival.sent_by, arrival.at_ms);
        Self {
            delivery: delivery.clone(),
            first: seen(first),
            second: seen(second),
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// What is against the promises, by name; empty when nothing is.
    pub fn faults(&self) -> Vec<(&'static str, String)> {
        let shown = |cases: &[Delivery]| format!("{} {:?}", cases.len(), first_five(cases));
        let repeats = |cases: &[Repeat]| format!("{} {:#?}", cases.len(), first_five(cases));
        [
            (
                "lost",
                self.oracle.lost.is_empty(),
                shown(&self.oracle.lost),
            ),
            (
                "altered",
                self.oracle.altered.is_empty(),
                shown(&self.oracle.altered),
            ),
            (
                "foreign",
                self.oracle.foreign.is_empty(),
                shown(&self.oracle.foreign),
            ),
            (
                "renamed",
                self.oracle.renamed.is_empty(),
                shown(&self.oracle.renamed),
            ),
            (
                "too many attempts",
                self.too_many.is_empty(),
                shown(&self.too_many),
            ),
            (
                "unjust dead letters",
                self.unjust.is_empty(),
                shown(&self.unjust),
            ),
            (
                "repeats unexplained",
                self.unexplained.is_empty(),
                repeats(&self.unexplained),
            ),
            (
                "one attempt twice",
                self.same_attempt.is_empty(),
                repeats(&self.same_attempt),
            ),
            ("too early", self.early.is_empty(), repeats(&self.early)),
        ]
        .into_iter()
        .filter(|(_, clean, _)| !clean)
        .map(|(name, _, cases)| (name, cases))
        .collect()
    }

    /// Ids of the first deliveries that something is wrong with.
    pub fn suspects(&self) -> BTreeSet<String> {
        let mut ids = BTreeSet::new();
        let Report {
            lost,
            altered,
            renamed,
            ..
        } = &self.oracle;
        for cases in [lost, altered, renamed, &self.too_many, &self.unjust] {
            ids.extend(first_five(cases).iter().map(|(_, id)| id.clone()));
        }
        for cases in [&self.unexplained, &self.same_attempt, &self.early] {
            ids.extend(first_five(cases).iter().map(|case| case.delivery.1.clone()));
        }
        ids
    }

    /// Repeats that faults explain.
    pub fn explained_count(&self) -> usize {
        self.explained.values().map(Vec::len).sum()
    }
}

fn first_five<T>(all: &[T]) -> &[T] {
    all.get(..5).unwrap_or(all)
}

#[cfg(test)]
mod tests;
