//! What happened, line by line, and its hash.

use std::collections::VecDeque;

/// Lines kept for a failure's report.
const LINES_MAX: usize = 50_000;

#[derive(Debug)]
pub(crate) struct Trace {
    lines: VecDeque<String>,
    hash: u64,
    count: usize,
}

// === impl Trace ===

impl Trace {
    pub(crate) fn new() -> Self {
        Self {
            lines: VecDeque::new(),
            // FNV-1a.
            hash: 0xcbf2_9ce4_8422_2325,
            count: 0,
        }
    }

    pub(crate) fn add(&mut self, at_ms: i64, who: &str, what: &str) {
        let line = format!("{:>8}.{:03} {who:<8} {what}", at_ms / 1_000, at_ms % 1_000);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.count += 1;
        if self.lines.len() >= LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// The last lines that have any of these words in them.
    pub(crate) fn about(&self, words: &[&str], count: usize) -> Vec<&str> {
        let about = |line: &&str| words.iter().any(|word| line.contains(word));
        let mut found: Vec<_> = self.lines().filter(about).collect();
        found.drain(..found.len().saturating_sub(count));
        found
    }
}
