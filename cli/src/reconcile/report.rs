//! What a run says: a line for each webhook that is asked for, and the figures of each source.

use super::plan::{Ask, Plan, Skip};
use crate::output::{plain, time};
use serde_json::json;
use std::collections::BTreeMap;

/// What became of a webhook that should be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// GitHub has agreed.
    Asked,
    /// A dry run.
    WouldAsk,
    /// GitHub will not.
    Refused,
    /// The request was sent and not answered; it counts as asked for until `--cool-down` has passed.
    Unanswered,
    /// Not tried: a limit, or GitHub is down.
    Left,
}

/// The figures of one source.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub attempts: u64,
    pub webhooks: u64,
    pub failed: u64,
    pub unseen: u64,
    pub skipped: BTreeMap<Skip, u64>,
    pub asked: BTreeMap<Fate, u64>,
    /// The list was longer than what a run reads.
    pub cut_short: bool,
}

// === impl Figures ===

impl Figures {
    pub(super) fn planned(&mut self, plan: &Plan) {
        self.failed = plan.failed;
        self.unseen = plan.unseen;
        self.skipped = plan.skipped.clone();
    }

    pub(super) fn count(&mut self, fate: Fate) {
        *self.asked.entry(fate).or_default() += 1;
    }

    /// Whether all that should be asked for was.
    pub(super) fn complete(&self) -> bool {
        let missed = [Fate::Refused, Fate::Unanswered, Fate::Left];
        !self.cut_short && missed.iter().all(|missed| !self.asked.contains_key(missed))
    }

    pub(super) fn text(&self, source: &str, since_ms: i64) -> String {
        let mut text = format!(
            "{source}: {} attempts of {} webhooks since {}\n",
            self.attempts,
            self.webhooks,
            time(since_ms)
        );
        let mut row = |name: &str, count: u64, what: &str| {
            text += &format!("  {name:<14}{count:>8}  {what}\n");
        };
        row("failed", self.failed, "no attempt of GitHub succeeded");
        row(
            "unseen",
            self.unseen,
            "answered 2xx, and the store knows nothing of it",
        );
        for (skip, count) in &self.skipped {
            row(skip.as_str(), *count, skip.meaning());
        }
        for (fate, count) in &self.asked {
            row(fate.as_str(), *count, fate.meaning());
        }
        if self.cut_short {
            text += "  GitHub lists more than a run reads; older deliveries were not looked at, see --since\n";
        }
        text
    }

    pub(super) fn json(&self, source: &str, since_ms: i64) -> String {
        let named =
            |counts: Vec<(&'static str, u64)>| -> serde_json::Map<String, serde_json::Value> {
                let pairs = counts.into_iter();
                pairs
                    .map(|(name, count)| (name.to_owned(), count.into()))
                    .collect()
            };
        let skipped = self
            .skipped
            .iter()
            .map(|(skip, count)| (skip.as_str(), *count));
        let asked = self
            .asked
            .iter()
            .map(|(fate, count)| (fate.as_str(), *count));
        let figures = json!({
            "source": source,
            "since": time(since_ms),
            "attempts": self.attempts,
            "webhooks": self.webhooks,
            "failed": self.failed,
            "unseen": self.unseen,
            "skipped": named(skipped.collect()),
            "results": named(asked.collect()),
            "cut_short": self.cut_short,
        });
        format!("{figures}\n")
    }
}

/// One webhook as text.
pub(super) fn ask_text(source: &str, hook: &str, ask: &Ask, fate: Fate, cause: &str) -> String {
    let status = ask.attempt.status.filter(|status| *status > 0);
    let status = status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
    let end = if cause.is_empty() {
        String::new()
    } else {
        format!("  {cause}")
    };
    let line = format!(
        "{:<10}  {source}  {}  {}  {} ({status})  {}  {hook}{end}",
        fate.as_str(),
        ask.guid,
        ask.event_type,
        ask.why.as_str(),
        time(ask.attempt.at_ms),
    );
    plain(&line) + "\n"
}

/// One webhook as JSON.
pub(super) fn ask_json(source: &str, hook: &str, ask: &Ask, fate: Fate, cause: &str) -> String {
    let line = json!({
        "source": source,
        "delivery_id": &*ask.guid,
        "event_type": &*ask.event_type,
        "why": ask.why.as_str(),
        "result": fate.as_str(),
        "hook": hook,
        "attempt_id": ask.attempt.id,
        "attempted_at": time(ask.attempt.at_ms),
        "status": ask.attempt.status,
        "cause": (!cause.is_empty()).then_some(cause),
    });
    format!("{line}\n")
}

// === impl Fate ===

impl Fate {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::WouldAsk => "would_ask",
            Self::Refused => "refused",
            Self::Unanswered => "unanswered",
            Self::Left => "left",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Asked => "GitHub sends it again",
            Self::WouldAsk => "dry run: nothing was asked for",
            Self::Refused => "GitHub does not send it again",
            Self::Unanswered => "asked for without an answer, again after --cool-down",
            Self::Left => "not tried any more, run again",
        }
    }
}

// === impl Skip ===

impl Skip {
    fn meaning(self) -> &'static str {
        match self {
            Self::Arrived => "the store knows it",
            Self::Ignored => "no route, or not in the source's events",
            Self::Unsettled => "younger than --settle",
            Self::CoolingDown => "asked for within --cool-down",
            Self::RowsExpired => "answered 2xx so long ago that its rows may be gone",
            Self::Succeeded => "answered 2xx, with --failed-only",
            Self::Limit => "beyond --limit, run again",
        }
    }
}
