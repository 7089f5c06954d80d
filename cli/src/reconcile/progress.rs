//! How far a run has come: a bar on a terminal, else nothing but what has to be known.

use crate::output::complain;
use indicatif::{ProgressBar, ProgressStyle};
use std::{io::IsTerminal, time::Duration};

/// A shorter pause is not worth a line.
const PAUSE_TOLD: Duration = Duration::from_secs(5);

/// Clones share the bar.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
}

// === impl Progress ===

impl Progress {
    pub(super) fn start() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {bar:30} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar }
    }

    /// While the length is not known.
    pub(super) fn tell(&self, message: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(message);
        }
    }

    pub(super) fn at(&self, done: u64, of: u64, message: &'static str) {
        if let Some(bar) = &self.bar {
            bar.set_length(of);
            bar.set_position(done);
            bar.set_message(message);
        }
    }

    /// A rate limit is sat out.
    pub(super) fn pausing(&self, pause: Duration) {
        if pause >= PAUSE_TOLD {
            let line = format!("rate limit of GitHub: waiting {} s", pause.as_secs());
            self.aside(|| complain(&line));
        }
    }

    /// Prints while the bar is out of the way.
    pub(super) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
