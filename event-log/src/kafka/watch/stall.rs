//! When reading of a partition stands still although there is something to read: decided from what was seen, without a
//! client and without a clock.
//!
//! A client can lose a partition silently: a wake-up that got lost, a pause that outlived its reason, a fetch that is never
//! sent again (rust-rdkafka 840, librdkafka 5111, vector 26438). Heartbeats go on meanwhile, so the group sees nothing. What
//! shows it is another client, which sees that there are more records than were read.
//!
//! Time counts only while that other client is answered: an outage of the brokers is no fault of the reader, and begins
//! every count again.

use crate::{Epoch, kafka::inbox::Reading};
use schemas::Topic;
use std::collections::BTreeMap;

pub(super) type Key = (Topic, u32);

/// How long reading may stand still, milliseconds.
#[derive(Clone, Copy, Debug)]
pub(in crate::kafka) struct Patience {
    /// Without a new record for this long, the end of the partition is asked for.
    pub(in crate::kafka) suspect_ms: u64,
    /// Behind the end for this long: a warning.
    pub(in crate::kafka) warn_ms: u64,
    /// Behind the end for this long: the consumer is replaced, and if that was done before, given up.
    pub(in crate::kafka) stall_ms: u64,
}

/// First and next offset of a partition, as the brokers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begin: Option<i64>,
    pub(super) end: i64,
}

/// A partition that is read no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    pub(super) key: Key,
    /// Next offset to be read; none: nothing was ever read.
    pub(super) next_offset: Option<i64>,
    pub(super) end_offset: i64,
    pub(super) for_ms: u64,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    Warn(Vec<Stall>),
    /// Replace the consumer.
    Replace(Vec<Stall>),
    /// A new consumer stands still at the same partition.
    GiveUp(Vec<Stall>),
}

/// What was seen so far.
#[derive(Debug)]
pub(super) struct Stalls {
    patience: Patience,
    watched: BTreeMap<Key, Watched>,
    /// Partitions for whose sake the consumer was replaced, until something was read of them.
    replaced_for: Vec<Key>,
}

#[derive(Debug)]
struct Watched {
    epoch: Epoch,
    next_offset: Option<i64>,
    drained_to: Option<i64>,
    unmoved_since_ms: u64,
    behind_since_ms: Option<u64>,
    warned: bool,
}

// === impl Stalls ===

impl Stalls {
    pub(super) fn new(patience: Patience) -> Self {
        Self {
            patience,
            watched: BTreeMap::new(),
            replaced_for: Vec::new(),
        }
    }

    /// Takes in how far reading has come; returns the partitions whose spans are needed for [`Self::decide`], with those
    /// of which nothing was read yet marked.
    pub(super) fn look(
        &mut self,
        now_ms: u64,
        readings: &BTreeMap<Key, Reading>,
    ) -> Vec<(Key, bool)> {
        self.watched.retain(|key, _| readings.contains_key(key));
        let mut suspects = Vec::new();
        for (&key, reading) in readings {
            let watched = self
                .watched
                .entry(key)
                .or_insert_with(|| Watched::new(reading, now_ms));
            let moved =
                watched.epoch != reading.epoch || watched.next_offset != reading.next_offset;
            if moved && watched.has_read(reading) {
                self.replaced_for
                    .retain(|replaced_for| *replaced_for != key);
            }
            if moved || reading.full {
                *watched = Watched::new(reading, now_ms);
            }
            watched.drained_to = reading.drained_to;
            let unmoved_ms = now_ms.saturating_sub(watched.unmoved_since_ms);
            if unmoved_ms >= self.patience.suspect_ms {
                suspects.push((key, watched.next_offset.is_none()));
            }
        }
        suspects
    }

    /// Judges the suspects. One without a span was not answered for: its brokers are away, and its time begins anew.
    pub(super) fn decide(
        &mut self,
        now_ms: u64,
        suspects: &[(Key, bool)],
        spans: &BTreeMap<Key, Span>,
    ) -> Verdict {
        let (mut behind, mut stalled) = (Vec::new(), Vec::new());
        for (key, _) in suspects {
            let Some(watched) = self.watched.get_mut(key) else {
                continue;
            };
            let Some(span) = spans.get(key) else {
                watched.begin_again(now_ms);
                continue;
            };
            if span.end <= watched.read_to(*span) {
                watched.behind_since_ms = None;
                watched.warned = false;
                self.replaced_for.retain(|replaced_for| replaced_for != key);
                continue;
            }
            let since_ms = *watched.behind_since_ms.get_or_insert(now_ms);
            let stall = Stall {
                key: *key,
                next_offset: watched.next_offset,
                end_offset: span.end,
                for_ms: now_ms.saturating_sub(since_ms),
            };
            if stall.for_ms >= self.patience.stall_ms {
                stalled.push(stall);
            } else if stall.for_ms >= self.patience.warn_ms && !watched.warned {
                watched.warned = true;
                behind.push(stall);
            }
        }
        self.judge(now_ms, behind, stalled)
    }

    fn judge(&mut self, now_ms: u64, behind: Vec<Stall>, stalled: Vec<Stall>) -> Verdict {
        if stalled.is_empty() {
            return if behind.is_empty() {
                Verdict::Fine
            } else {
                Verdict::Warn(behind)
            };
        }
        if stalled
            .iter()
            .any(|stall| self.replaced_for.contains(&stall.key))
        {
            return Verdict::GiveUp(stalled);
        }
        self.replaced_for
            .extend(stalled.iter().map(|stall| stall.key));
        for watched in self.watched.values_mut() {
            watched.begin_again(now_ms);
        }
        Verdict::Replace(stalled)
    }
}

// === impl Watched ===

impl Watched {
    fn new(reading: &Reading, now_ms: u64) -> Self {
        Self {
            epoch: reading.epoch,
            next_offset: reading.next_offset,
            drained_to: reading.drained_to,
            unmoved_since_ms: now_ms,
            behind_since_ms: None,
            warned: false,
        }
    }

    fn begin_again(&mut self, now_ms: u64) {
        self.unmoved_since_ms = now_ms;
        self.behind_since_ms = None;
        self.warned = false;
    }

    /// Whether a record came under the same ownership: where a new one starts is no progress.
    fn has_read(&self, reading: &Reading) -> bool {
        let further = match (self.next_offset, reading.next_offset) {
            (Some(before), Some(now)) => now > before,
            (None, _) | (_, None) => false,
        };
        self.epoch == reading.epoch && further
    }

    /// Where everything that there is to hand on is read. The client knows of gaps at the end (control records), which
    /// bring no record; but only what it does not hold back itself counts.
    fn read_to(&self, span: Span) -> i64 {
        let next = self.next_offset.or(span.begin).unwrap_or(span.end);
        next.max(self.drained_to.unwrap_or(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        suspect_ms: 15_000,
        warn_ms: 30_000,
        stall_ms: 60_000,
    };
    const KEY: Key = (Topic::Webhooks, 3);

    fn reading(epoch: u64, next_offset: Option<i64>) -> Reading {
        Reading {
            epoch: Epoch(epoch),
            next_offset,
            drained_to: None,
            full: false,
        }
    }

    /// One look with what the brokers say, if they say something.
    fn step(stalls: &mut Stalls, now_ms: u64, reading: Reading, end: Option<i64>) -> Verdict {
        let suspects = stalls.look(now_ms, &BTreeMap::from([(KEY, reading)]));
        let span = |end| Span {
            begin: Some(0),
            end,
        };
        let spans = end.map(|end| (KEY, span(end))).into_iter().collect();
        stalls.decide(now_ms, &suspects, &spans)
    }

    fn name(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Fine => "fine",
            Verdict::Warn(_) => "warn",
            Verdict::Replace(_) => "replace",
            Verdict::GiveUp(_) => "give up",
        }
    }

    /// Looks every ten seconds at the same reading; the first verdicts that are not fine, with their seconds.
    fn verdicts(
        reading: impl Fn(u64) -> Reading,
        end: impl Fn(u64) -> Option<i64>,
    ) -> Vec<(u64, &'static str)> {
        let mut stalls = Stalls::new(PATIENCE);
        let mut found = Vec::new();
        for at_s in (0..=300).step_by(10) {
            let verdict = step(&mut stalls, at_s * 1_000, reading(at_s), end(at_s));
            if verdict != Verdict::Fine {
                found.push((at_s, name(&verdict)));
            }
            if matches!(verdict, Verdict::GiveUp(_)) {
                break;
            }
        }
        found
    }

    #[test]
    fn what_stands_still_behind_the_end_is_replaced_then_given_up() {
        // Suspected at 20 s, the first look after 15; the count begins there.
        let all = [
            (50, "warn"),
            (80, "replace"),
            (130, "warn"),
            (160, "give up"),
        ];
        assert_eq!(verdicts(|_| reading(1, Some(5)), |_| Some(9)), all);
        assert_eq!(
            verdicts(|_| reading(1, None), |_| Some(9)),
            all,
            "never began"
        );
        // A new ownership that begins at the same place is no progress.
        let renewed = |at_s| reading(if at_s < 90 { 1 } else { 2 }, Some(5));
        let found = verdicts(renewed, |_| Some(9));
        assert_eq!(found[1], (80, "replace"));
        assert_eq!(found.last(), Some(&(170, "give up")));
    }

    #[test]
    fn idle_moving_and_full_are_fine() {
        assert_eq!(verdicts(|_| reading(1, Some(9)), |_| Some(9)), []);
        assert_eq!(verdicts(|_| reading(1, None), |_| Some(0)), [], "empty");
        let moving = |at_s: u64| reading(1, i64::try_from(at_s / 40).ok());
        assert_eq!(verdicts(moving, |_| Some(1_000)), []);
        let full = |_| Reading {
            full: true,
            ..reading(1, Some(5))
        };
        assert_eq!(verdicts(full, |_| Some(1_000)), [], "no room was offered");
        // Two control records stand at the end.
        let drained = |_| Reading {
            drained_to: Some(9),
            ..reading(1, Some(7))
        };
        assert_eq!(verdicts(drained, |_| Some(9)), []);
        assert_eq!(verdicts(drained, |_| Some(10))[1].1, "replace", "one more");
    }

    #[test]
    fn an_outage_counts_for_nothing() {
        assert_eq!(verdicts(|_| reading(1, Some(5)), |_| None), []);
        // Away again and again, never up for long enough.
        let flapping = |at_s: u64| (!at_s.is_multiple_of(60)).then_some(9);
        let found = verdicts(|_| reading(1, Some(5)), flapping);
        assert!(found.iter().all(|(_, name)| *name == "warn"), "{found:?}");
        // Up for good at 100 s.
        let found = verdicts(|_| reading(1, Some(5)), |at_s| (at_s >= 100).then_some(9));
        assert_eq!(found[1].1, "replace");
        assert!(found[1].0 >= 100 + 60, "{found:?}");
    }

    #[test]
    fn a_replacement_that_helped_is_forgotten() {
        // Stands still until 80 s, reads one record after it, and stands still again.
        let reading = |at_s| match at_s {
            0..=80 => reading(1, Some(5)),
            90 => reading(2, Some(5)),
            _ => reading(2, Some(6)),
        };
        let found = verdicts(reading, |_| Some(9));
        let names: Vec<_> = found.iter().map(|(_, name)| *name).collect();
        assert_eq!(names[..4], ["warn", "replace", "warn", "replace"]);
    }

    #[test]
    fn another_partition_does_not_pay_for_it() {
        let mut stalls = Stalls::new(PATIENCE);
        let other = (Topic::Webhooks, 4);
        let span = |end| Span { begin: None, end };
        for at_ms in (0..=200_000).step_by(10_000) {
            let moving = reading(1, i64::try_from(at_ms).ok());
            let readings = [(KEY, reading(1, Some(5))), (other, moving)].into();
            let suspects = stalls.look(at_ms, &readings);
            assert!(suspects.iter().all(|(key, _)| *key == KEY));
            let spans = [(KEY, span(9)), (other, span(i64::MAX))].into();
            if let Verdict::GiveUp(stalled) = stalls.decide(at_ms, &suspects, &spans) {
                let expected = Stall {
                    key: KEY,
                    next_offset: Some(5),
                    end_offset: 9,
                    for_ms: 60_000,
                };
                assert_eq!(stalled, [expected]);
                return;
            }
        }
        panic!("never given up");
    }
}
