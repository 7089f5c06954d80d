//! What became of the attackers.

use std::{collections::BTreeMap, fmt};

/// What became of one attack's connections.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Connections.
    pub(crate) made: usize,
    /// Ended by the server without an answer.
    pub(crate) cut: usize,
    /// Left alone by the server, which knew of no connection any more: they had not come beyond the kernel's queue.
    pub(crate) left: usize,
    /// Connections that could not be made.
    pub(crate) refused: usize,
    /// By status, or error of a GOAWAY.
    pub(crate) answers: BTreeMap<String, usize>,
    /// The most bytes that one connection got rid of.
    pub(crate) most_taken: u64,
}

// === impl Tally ===

impl Tally {
    pub(crate) fn ended(&mut self, answers: Vec<String>) {
        self.cut += usize::from(answers.is_empty());
        for answer in answers {
            *self.answers.entry(answer).or_default() += 1;
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.made += other.made;
        self.cut += other.cut;
        self.left += other.left;
        self.refused += other.refused;
        self.most_taken = self.most_taken.max(other.most_taken);
        for (answer, count) in other.answers {
            *self.answers.entry(answer).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections, {} cut, answers {:?}",
            self.made, self.cut, self.answers
        )?;
        if self.left > 0 {
            write!(f, ", {} never accepted", self.left)?;
        }
        if self.refused > 0 {
            write!(f, ", {} not made", self.refused)?;
        }
        if self.most_taken > 0 {
            let mib = self.most_taken as f64 / (1 << 20) as f64;
            write!(f, ", at most {mib:.1} MiB taken of 1024")?;
        }
        Ok(())
    }
}
