//! How a destination stands, whoever works for it: since when it fails, and whether it is paused.
//!
//! One small row for each destination, shared by all dispatchers and by the operator's tools. Every write says which
//! revision it follows, so of any number of writers that have seen the same row one gets its way, and the others look
//! again. A destination that nothing was ever noted of stands as [`Standing::default`].

use std::collections::BTreeMap;

/// Characters kept of a note.
pub const NOTE_CHARS_MAX: usize = 200;

/// Destinations that a listing shows: far more than a config names.
pub const STANDINGS_MAX: usize = 10_000;

/// Every destination that something was noted of, by name.
pub type Standings = BTreeMap<String, Standing>;

/// How a destination stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Counts the writes; 0: nothing was ever noted.
    pub revision: i64,
    /// The first failure after which nothing was delivered, milliseconds since the Unix epoch; none: it takes deliveries.
    pub failing_since_ms: Option<i64>,
    /// Nothing is sent to it until it is resumed.
    pub paused: Option<Paused>,
    /// When it was resumed last, milliseconds since the Unix epoch: what was seen before counts no more.
    pub resumed_at_ms: Option<i64>,
}

/// A pause, and what led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    /// When, milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// What for.
    pub cause: PauseCause,
    /// Who or why, for people: one line of at most [`NOTE_CHARS_MAX`] characters.
    pub note: String,
}

/// What a destination is paused for. The string form is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// Nothing but failures for too long.
    Failing,
    /// It answered 410.
    Gone,
    /// Somebody asked for it.
    Manual,
}

/// Whether a destination stands as was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It does.
    Written,
    /// It stood otherwise than the writer has seen: look again.
    Outdated,
}

/// What a write finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The row is the one that the write follows.
    Write,
    /// Nothing is left to write.
    Answer(Noted),
}

/// Decides the write of `new` on the row as it stands (`None`: absent). A row that is `new` already was written by an
/// earlier issue of the same call, whose answer was lost, or by somebody who wanted the same.
pub fn turn(row: Option<&Standing>, new: &Standing) -> Turn {
    if row == Some(new) {
        return Turn::Answer(Noted::Written);
    }
    if row.map_or(0, |row| row.revision) == new.follows() {
        Turn::Write
    } else {
        Turn::Answer(Noted::Outdated)
    }
}

// === impl Standing ===

impl Standing {
    /// The revision that a write of this one replaces.
    pub fn follows(&self) -> i64 {
        self.revision.saturating_sub(1)
    }

    /// The same with another begin of failing, or none.
    #[must_use]
    pub fn failing(&self, since_ms: Option<i64>) -> Self {
        Self {
            revision: self.revision.saturating_add(1),
            failing_since_ms: since_ms,
            ..self.clone()
        }
    }

    /// The same, paused.
    #[must_use]
    pub fn pause(&self, at_ms: i64, cause: PauseCause, note: &str) -> Self {
        Self {
            revision: self.revision.saturating_add(1),
            paused: Some(Paused {
                at_ms,
                cause,
                note: line(note),
            }),
            ..self.clone()
        }
    }

    /// Resumed: what it did before is forgotten.
    #[must_use]
    pub fn resume(&self, at_ms: i64) -> Self {
        Self {
            revision: self.revision.saturating_add(1),
            failing_since_ms: None,
            paused: None,
            resumed_at_ms: Some(at_ms),
        }
    }
}

// === impl PauseCause ===

impl PauseCause {
    /// Every cause.
    pub const ALL: [Self; 3] = [Self::Failing, Self::Gone, Self::Manual];

    /// Stable name, in the store, in logs and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::Gone => "gone",
            Self::Manual => "manual",
        }
    }

    /// Reverse of [`Self::as_str`]. A cause that this version does not know counts as manual: it stays until somebody
    /// resumes the destination, as all do.
    pub fn parse(name: &str) -> Self {
        Self::ALL
            .into_iter()
            .find(|cause| cause.as_str() == name)
            .unwrap_or(Self::Manual)
    }
}

fn line(note: &str) -> String {
    let plain = note.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(NOTE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_follows_the_revision_it_has_seen() {
        let first = Standing::default().failing(Some(5));
        assert_eq!(turn(None, &first), Turn::Write);
        assert_eq!(turn(Some(&first), &first), Turn::Answer(Noted::Written));
        let other = Standing::default().failing(Some(6));
        assert_eq!(turn(Some(&other), &first), Turn::Answer(Noted::Outdated));
        let paused = first.pause(9, PauseCause::Gone, "410");
        assert_eq!(turn(Some(&first), &paused), Turn::Write);
        assert_eq!(turn(None, &paused), Turn::Answer(Noted::Outdated));
        assert_eq!(turn(Some(&paused), &first), Turn::Answer(Noted::Outdated));
    }

    #[test]
    fn a_resumed_destination_begins_anew() {
        let paused = Standing::default()
            .failing(Some(5))
            .pause(9, PauseCause::Failing, "x");
        assert_eq!((paused.revision, paused.failing_since_ms), (2, Some(5)));
        let resumed = paused.resume(12);
        let expected = Standing {
            revision: 3,
            resumed_at_ms: Some(12),
            ..Standing::default()
        };
        assert_eq!(resumed, expected);
    }

    #[test]
    fn a_note_is_one_short_line() {
        let long = format!("a\nb\u{1b}[2J{}", "é".repeat(300));
        let paused = Standing::default().pause(1, PauseCause::Manual, &long);
        let note = paused.paused.unwrap().note;
        assert!(note.starts_with("a b [2Jé"), "{note}");
        assert_eq!(note.chars().count(), NOTE_CHARS_MAX);
    }

    #[test]
    fn causes_have_stable_names() {
        for cause in PauseCause::ALL {
            assert_eq!(PauseCause::parse(cause.as_str()), cause);
        }
        assert_eq!(PauseCause::parse("melted"), PauseCause::Manual);
    }
}
