//! What to ask for: a plain function over what GitHub lists, what the store has and what was asked before.

use super::answer::Delivery;
use dispatcher::{RouteConfig, routes};
use schemas::event_matches;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

/// Everything listed for a source, one entry a webhook.
#[derive(Debug, Default)]
pub(super) struct Listing {
    by_guid: HashMap<Arc<str>, Listed>,
    /// Few and long; each is kept once.
    event_types: BTreeSet<Arc<str>>,
    /// Attempts of GitHub.
    pub attempts: u64,
}

/// A webhook as GitHub tells it. Redeliveries share its GUID, and so do several hooks that sent the same event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub event_type: Arc<str>,
    pub newest: Attempt,
    pub oldest_at_ms: i64,
    pub any_succeeded: bool,
}

/// One try of GitHub to deliver it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    /// Number of the hook in the config.
    pub hook: usize,
    /// GitHub's id of this try.
    pub id: u64,
    pub at_ms: i64,
    /// What was answered; none, or 0, when there was no answer.
    pub status: Option<i64>,
}

/// What the decision depends on besides the webhook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'a> {
    pub source: &'a str,
    /// The source's allow-list.
    pub events: Option<&'a [String]>,
    pub routes: &'a [RouteConfig],
    /// A younger attempt may still be under way between ingest and the store.
    pub settle_ms: i64,
    /// What was asked for less than this ago is not asked for again.
    pub cool_down_ms: i64,
    /// Rows of ended deliveries are kept at least this long: without a row, an older webhook may have been delivered.
    pub kept_ms: i64,
    /// Leaves out what GitHub counts as delivered.
    pub failed_only: bool,
    /// At most this many.
    pub limit: usize,
}

/// Why a webhook is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Why {
    /// No attempt succeeded, and the store has never seen it.
    Failed,
    /// We answered 2xx, and the store has never seen it.
    Unseen,
}

/// Why a webhook is not asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Skip {
    /// The store has a row of it. Asking would only open an exhausted delivery again.
    Arrived,
    /// The allow-list, or the lack of a route, says that it goes nowhere.
    Ignored,
    /// Its newest attempt is younger than `--settle`.
    Unsettled,
    /// It was asked for within `--cool-down`.
    CoolingDown,
    /// Answered 2xx so long ago that its rows may have expired.
    RowsExpired,
    /// Answered 2xx, and only failures are asked for.
    Succeeded,
    /// Beyond `--limit`.
    Limit,
}

/// A webhook to ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub guid: Arc<str>,
    pub event_type: Arc<str>,
    pub attempt: Attempt,
    pub why: Why,
}

/// What to do, and why not more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The oldest first: GitHub forgets it first.
    pub asks: Vec<Ask>,
    pub skipped: BTreeMap<Skip, u64>,
    /// Webhooks none of whose attempts succeeded, whatever became of them.
    pub failed: u64,
    /// Webhooks that were answered 2xx and of which nothing is known.
    pub unseen: u64,
}

/// Decides. `arrived` has the GUIDs that the store knows at any of their destinations, `asked_at_ms` says when one was last
/// asked for.
pub(super) fn plan(
    listing: &Listing,
    rules: Rules<'_>,
    arrived: &HashSet<Arc<str>>,
    asked_at_ms: impl Fn(&str) -> Option<i64>,
    now_ms: i64,
) -> Plan {
    let mut plan = Plan::default();
    for (guid, listed) in &listing.by_guid {
        plan.failed += u64::from(!listed.any_succeeded);
        let decided = open(listed, rules, asked_at_ms(guid), now_ms)
            .and_then(|_| why(listed, rules, arrived.contains(guid), now_ms));
        match decided {
            Ok(why) => plan.asks.push(Ask {
                guid: Arc::clone(guid),
                event_type: Arc::clone(&listed.event_type),
                attempt: listed.newest,
                why,
            }),
            Err(skip) => *plan.skipped.entry(skip).or_default() += 1,
        }
    }
    plan.unseen = plan
        .asks
        .iter()
        .filter(|ask| ask.why == Why::Unseen)
        .count() as u64;
    // The GUID makes the order the same in every run.
    plan.asks.sort_by(|a, b| {
        let key = |ask: &Ask| (ask.attempt.at_ms, ask.attempt.id);
        key(a).cmp(&key(b)).then_with(|| a.guid.cmp(&b.guid))
    });
    let beyond = plan.asks.len().saturating_sub(rules.limit) as u64;
    if beyond > 0 {
        plan.asks.truncate(rules.limit);
        plan.skipped.insert(Skip::Limit, beyond);
    }
    plan
}

/// The destinations of a webhook that may have to be asked for; whether it arrived has to be looked up at them.
pub(super) fn open<'a>(
    listed: &Listed,
    rules: Rules<'a>,
    asked_at_ms: Option<i64>,
    now_ms: i64,
) -> Result<Vec<&'a str>, Skip> {
    let taken = rules.events.is_none_or(|patterns| {
        patterns
            .iter()
            .any(|pattern| event_matches(pattern, &listed.event_type))
    });
    let destinations = routes::destinations(rules.routes, rules.source, &listed.event_type);
    if !taken || destinations.is_empty() {
        return Err(Skip::Ignored);
    }
    if now_ms.saturating_sub(listed.newest.at_ms) < rules.settle_ms {
        return Err(Skip::Unsettled);
    }
    let cooling = |at_ms: i64| now_ms.saturating_sub(at_ms) < rules.cool_down_ms;
    if asked_at_ms.is_some_and(cooling) {
        return Err(Skip::CoolingDown);
    }
    Ok(destinations)
}

fn why(listed: &Listed, rules: Rules<'_>, arrived: bool, now_ms: i64) -> Result<Why, Skip> {
    if arrived {
        return Err(Skip::Arrived);
    }
    if !listed.any_succeeded {
        return Ok(Why::Failed);
    }
    if rules.failed_only {
        return Err(Skip::Succeeded);
    }
    if now_ms.saturating_sub(listed.oldest_at_ms) >= rules.kept_ms {
        return Err(Skip::RowsExpired);
    }
    Ok(Why::Unseen)
}

// === impl Listing ===

impl Listing {
    /// Adds an attempt, in any order.
    pub(super) fn add(&mut self, hook: usize, delivery: Delivery) {
        self.attempts += 1;
        let attempt = Attempt {
            hook,
            id: delivery.id,
            at_ms: delivery.delivered_at.as_millisecond(),
            status: delivery.status_code,
        };
        let event_type = self.event_type(delivery.event_type());
        let entry = self.by_guid.entry(delivery.guid.into());
        let listed = entry.or_insert_with(|| Listed {
            event_type,
            newest: attempt,
            oldest_at_ms: attempt.at_ms,
            any_succeeded: false,
        });
        if (attempt.at_ms, attempt.id) > (listed.newest.at_ms, listed.newest.id) {
            listed.newest = attempt;
        }
        listed.oldest_at_ms = listed.oldest_at_ms.min(attempt.at_ms);
        listed.any_succeeded |= attempt.succeeded();
    }

    /// Webhooks.
    pub(super) fn len(&self) -> usize {
        self.by_guid.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Listed)> {
        self.by_guid.iter()
    }

    fn event_type(&mut self, name: String) -> Arc<str> {
        if let Some(known) = self.event_types.get(name.as_str()) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.event_types.insert(Arc::clone(&name));
        name
    }
}

// === impl Attempt ===

impl Attempt {
    fn succeeded(self) -> bool {
        self.status
            .is_some_and(|status| (200..300).contains(&status))
    }
}

// === impl Why ===

impl Why {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Unseen => "unseen",
        }
    }
}

// === impl Skip ===

impl Skip {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Arrived => "arrived",
            Self::Ignored => "ignored",
            Self::Unsettled => "unsettled",
            Self::CoolingDown => "cooling_down",
            Self::RowsExpired => "rows_expired",
            Self::Succeeded => "succeeded",
            Self::Limit => "limit",
        }
    }
}

#[cfg(test)]
mod tests;
