//! What people see of the demo.

use super::{
    load::Plan,
    oracle::Verdict,
    pipeline::Figures,
    receivers::{DESTINATIONS, Destination},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{io::IsTerminal, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// Between two plain lines where no terminal is.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// A live bar on a terminal, a plain line now and then elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    begun: Instant,
    last_line: Mutex<Instant>,
    requests: usize,
}

/// The table at the end.
pub(crate) fn table(
    verdict: &Verdict,
    figures: &Figures,
    elapsed: Duration,
    memory_bytes_max: Option<u64>,
) -> String {
    let mut text = String::from("\n");
    let mut row = |name: &str, value: String| {
        text.push_str(&format!("  {name:<34}{value:>12}\n"));
    };
    row("webhooks accepted", verdict.accepted.to_string());
    row("forgeries refused", verdict.refused.to_string());
    row("repeats absorbed", verdict.duplicates.to_string());
    row("deliveries owed", verdict.owed.to_string());
    row("delivered", verdict.delivered.to_string());
    row("retried", figures.retried.to_string());
    row("deferred for want of room", figures.deferred.to_string());
    for (reason, count) in &verdict.dead {
        row(&format!("dead-lettered: {reason}"), count.to_string());
    }
    row("seconds", format!("{:.1}", elapsed.as_secs_f64()));
    if let Some(bytes) = memory_bytes_max {
        row(
            "resident memory of the pipeline",
            format!("{} MiB", bytes >> 20),
        );
    }
    text.push_str("\n  sent to arrived               p50 ms    p99 ms  deliveries\n");
    for (destination, latencies) in DESTINATIONS.iter().zip(&verdict.latencies_ms) {
        if latencies.is_empty() {
            continue;
        }
        let Destination { name, what, .. } = destination;
        text.push_str(&format!(
            "  {name:<28}{:>8}{:>10}{:>12}   {what}\n",
            percentile(latencies, 50),
            percentile(latencies, 99),
            latencies.len()
        ));
    }
    text.push('\n');
    text
}

/// The line that scripts look for.
pub(crate) fn last_line(verdict: &Verdict) -> String {
    format!(
        "demo: accepted={} refused={} duplicates={} delivered={} dead_lettered={} lost={} doubled={}\n",
        verdict.accepted,
        verdict.refused,
        verdict.duplicates,
        verdict.delivered,
        verdict.dead_lettered(),
        verdict.lost,
        verdict.doubled
    )
}

/// The value below which `percent` of a sorted list lie; 0 of an empty one.
fn percentile(sorted: &[i64], percent: usize) -> i64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0)
}

// === impl Progress ===

impl Progress {
    /// Starts it.
    pub(crate) fn start(plan: &Plan) -> Self {
        let requests = plan.webhooks.len() + plan.repeats() + plan.forged();
        let now = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(requests as u64);
            if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bar:30} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            begun: now,
            last_line: Mutex::new(now),
            requests,
        }
    }

    /// Shows how far it has come.
    pub(crate) fn show(&self, verdict: &Verdict, figures: &Figures) {
        let message = format!(
            "{} of {} sent, {} of {} delivered, {} dead-lettered, {} retried, {} deferred",
            verdict.answered,
            self.requests,
            verdict.delivered,
            verdict.owed,
            figures.dead_letters,
            figures.retried,
            figures.deferred
        );
        if let Some(bar) = &self.bar {
            bar.set_length((self.requests + verdict.owed) as u64);
            let done = verdict.answered + verdict.delivered + figures.dead_letters;
            bar.set_position(done as u64);
            bar.set_message(message);
            return;
        }
        let Ok(mut last_line) = self.last_line.lock() else {
            return;
        };
        if last_line.elapsed() >= LINE_EVERY {
            *last_line = Instant::now();
            let seconds = self.begun.elapsed().as_secs();
            // Progress that can not be shown is no reason to stop.
            drop(crate::output::print(&format!(
                "{seconds:>4} s  {message}\n"
            )));
        }
    }

    /// Ends it; the time that it took.
    pub(crate) fn finish(&self) -> Duration {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.begun.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_short_lists() {
        assert_eq!(percentile(&[], 50), 0);
        assert_eq!(percentile(&[7], 99), 7);
        let hundred: Vec<i64> = (1..=100).collect();
        assert_eq!(
            (percentile(&hundred, 50), percentile(&hundred, 99)),
            (50, 99)
        );
    }

    #[test]
    fn the_last_line_has_its_exact_form() {
        let verdict = Verdict {
            accepted: 2,
            refused: 1,
            duplicates: 3,
            delivered: 4,
            dead: [("gone".to_owned(), 5), ("exhausted".to_owned(), 1)].into(),
            ..Verdict::default()
        };
        assert_eq!(
            last_line(&verdict),
            "demo: accepted=2 refused=1 duplicates=3 delivered=4 dead_lettered=6 lost=0 doubled=0\n"
        );
    }
}
