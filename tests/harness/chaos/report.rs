//! What a run with faults came to, for people.

use crate::chaos::verdict::{Facts, Injected, Verdict, recovery_ms};
use std::{collections::BTreeMap, fmt};

/// Figures of a run.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    /// Webhooks that were sent, and requests that this took.
    pub webhooks: usize,
    pub requests: usize,
    pub injected: Vec<Injected>,
    /// Connections to the store that were cut before an answer.
    pub answers_dropped: usize,
    /// Processes of ours that ended although nobody had ended them.
    pub ended_by_themselves: usize,
    /// For each fault, see [`recovery_ms`].
    pub recoveries_ms: Vec<Option<i64>>,
    /// From the end of the last fault until nothing was owed any more, milliseconds.
    pub drained_ms: i64,
    /// From the first try to post a webhook, when all was mended, to its arrival. Milliseconds; none when it never arrived.
    pub fresh_ms: Option<i64>,
    pub verdict: Verdict,
}

/// One line of the table.
#[derive(Debug, Default)]
struct Row {
    count: usize,
    lasted_ms: i64,
    mended_ms_max: i64,
    recovery_ms_max: Option<i64>,
}

// === impl Report ===

impl Report {
    /// Figures of what was recorded; `path` is the one that no receiver's fault strikes.
    pub fn new(seed: u64, facts: &Facts, injected: Vec<Injected>, path: &str) -> Self {
        let sent = &facts.oracle.sent;
        let ids: std::collections::BTreeSet<_> = sent.iter().map(|it| &it.delivery_id).collect();
        let recoveries_ms = injected
            .iter()
            .map(|injected| recovery_ms(injected, &facts.oracle, path))
            .collect();
        Self {
            seed,
            webhooks: ids.len(),
            requests: sent.len(),
            injected,
            answers_dropped: 0,
            ended_by_themselves: 0,
            recoveries_ms,
            drained_ms: 0,
            fresh_ms: None,
            verdict: facts.judge(),
        }
    }

    fn rows(&self) -> BTreeMap<String, Row> {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for (injected, recovery_ms) in self.injected.iter().zip(&self.recoveries_ms) {
            let row = rows.entry(injected.fault.kind()).or_default();
            row.count += 1;
            row.lasted_ms += injected.ended_ms - injected.from_ms;
            let mended_ms = injected.mended_ms - injected.ended_ms;
            row.mended_ms_max = row.mended_ms_max.max(mended_ms);
            row.recovery_ms_max = row.recovery_ms_max.max(*recovery_ms);
        }
        rows
    }

    /// The longest time from a mended fault to a fresh webhook's arrival, milliseconds.
    pub fn recovery_ms_max(&self) -> i64 {
        let longest = self.recoveries_ms.iter().flatten().max();
        longest.copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |ms: i64| format!("{:.1}", ms as f64 / 1_000.0);
        let heads = ["fault", "times", "lasted s", "mended max s", "fresh max s"];
        let [fault, times, lasted, mended, fresh] = heads;
        writeln!(
            f,
            "| {fault:34} | {times:>5} | {lasted:>8} | {mended:>12} | {fresh:>11} |"
        )?;
        writeln!(
            f,
            "| {:-<34} | {:->4}: | {:->7}: | {:->11}: | {:->10}: |",
            "", "", "", "", ""
        )?;
        for (kind, row) in self.rows() {
            let recovery = row.recovery_ms_max.map_or_else(|| "-".to_owned(), seconds);
            writeln!(
                f,
                "| {kind:34} | {:>5} | {:>8} | {:>12} | {recovery:>11} |",
                row.count,
                seconds(row.lasted_ms),
                seconds(row.mended_ms_max),
            )?;
        }
        let Verdict {
            oracle, explained, ..
        } = &self.verdict;
        for (cause, repeats) in explained {
            writeln!(f, "repeats explained by {cause:?}: {}", repeats.len())?;
        }
        for (name, cases) in self.verdict.faults() {
            writeln!(f, "{name}: {cases}")?;
        }
        writeln!(
            f,
            "webhooks={} requests={} answers_dropped={} ended_by_themselves={} delivered_and_dead_lettered={} drained_ms={} \
             fresh_ms={}",
            self.webhooks,
            self.requests,
            self.answers_dropped,
            self.ended_by_themselves,
            self.verdict.both,
            self.drained_ms,
            self.fresh_ms.unwrap_or(-1),
        )?;
        write!(
            f,
            "chaos: seed={} faults={} obligations={} delivered={} dead_lettered={} lost={} repeats_explained={} \
             repeats_unexplained={} recovery_ms_max={}",
            self.seed,
            self.injected.len(),
            oracle.obligations,
            oracle.delivered,
            oracle.dead_lettered,
            oracle.lost.len(),
            self.verdict.explained_count(),
            self.verdict.unexplained.len(),
            self.recovery_ms_max(),
        )
    }
}
