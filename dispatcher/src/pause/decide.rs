//! When a destination is paused, as plain functions over what one process has seen and what all have noted.
//!
//! What is seen costs nothing and is forgotten with the process. What is noted is written rarely: the begin of a streak of
//! failures only when it has lasted a while, its end only when its begin was noted; and a streak that somebody else has
//! ended begins anew. So a destination that fails now and then causes few writes, however many processes there are.

use crate::config::PauseConfig;
use dedup_store::{PauseCause, Standing};
use schemas::OutcomeKind;

/// A streak of failures is noted when it is this old; a hundredth of `pause.after` when that is shorter.
const SETTLE_MS: i64 = 60_000;

/// What came of one process's attempts at a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The last delivery.
    delivered_ms: Option<i64>,
    /// Failures since then.
    streak: Option<Streak>,
    /// A 410, and what an operator shall read of it.
    gone: Option<String>,
}

/// Failures without a delivery in between.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Streak {
    first_ms: i64,
    last_ms: i64,
    /// What came of the last one.
    detail: String,
}

/// What follows from how a destination stands and what was seen of it: what shall be noted next, if anything. Never
/// resumes.
pub(super) fn next(
    standing: &Standing,
    seen: &Seen,
    config: &PauseConfig,
    now_ms: i64,
) -> Option<Standing> {
    if standing.paused.is_some() {
        return None;
    }
    if let Some(detail) = seen.gone.as_ref().filter(|_| config.on_gone()) {
        return Some(standing.pause(now_ms, PauseCause::Gone, detail));
    }
    let after_ms = i64::try_from(config.after.as_millis()).unwrap_or(i64::MAX);
    let Some(since_ms) = standing.failing_since_ms else {
        let first_ms = seen.streak.as_ref()?.first_ms;
        let settled = now_ms.saturating_sub(first_ms) >= SETTLE_MS.min(after_ms / 100);
        return settled.then(|| standing.failing(Some(first_ms)));
    };
    if seen.delivered_ms.is_some_and(|at_ms| at_ms >= since_ms) {
        return Some(standing.failing(None));
    }
    // Silence is no failure: the last one has to be that much later than the first.
    let streak = seen.streak.as_ref()?;
    (streak.last_ms.saturating_sub(since_ms) >= after_ms)
        .then(|| standing.pause(now_ms, PauseCause::Failing, &streak.detail))
}

// === impl Seen ===

impl Seen {
    /// Takes in what came of an attempt.
    pub(super) fn add(&mut self, kind: OutcomeKind, detail: &str, at_ms: i64) {
        match kind {
            OutcomeKind::Delivered => {
                self.delivered_ms = self.delivered_ms.max(Some(at_ms));
                self.streak = None;
            }
            // Not the destination's doing.
            OutcomeKind::Interrupted | OutcomeKind::Unknown => {}
            OutcomeKind::Rejected
            | OutcomeKind::Gone
            | OutcomeKind::Throttled
            | OutcomeKind::Failed
            | OutcomeKind::Blocked => {
                let first_ms = self.streak.as_ref().map_or(at_ms, |streak| streak.first_ms);
                self.streak = Some(Streak {
                    first_ms,
                    last_ms: at_ms,
                    detail: detail.to_owned(),
                });
                if kind == OutcomeKind::Gone {
                    self.gone.get_or_insert_with(|| detail.to_owned());
                }
            }
        }
    }

    /// Hears how the destination stands (`row`), after it was known to stand otherwise (`known`), and forgets what that
    /// makes void.
    pub(super) fn hear(&mut self, known: &Standing, row: &Standing) {
        if row.paused.is_some() || row.resumed_at_ms != known.resumed_at_ms {
            // What was seen before it was resumed counts no more.
            *self = Self::default();
        } else if row.failing_since_ms.is_none() && row.revision > known.revision {
            // Somebody has delivered.
            self.streak = None;
        }
    }

    /// A 410 was seen.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const DAY_MS: i64 = 86_400_000;
    const HOUR_MS: i64 = 3_600_000;
    /// What an hour of `after` makes of [`SETTLE_MS`].
    const SETTLED_MS: i64 = 36_000;

    fn hour() -> PauseConfig {
        PauseConfig {
            after: Duration::from_secs(3_600),
            ..PauseConfig::default()
        }
    }

    fn seen(outcomes: &[(OutcomeKind, i64)]) -> Seen {
        let mut seen = Seen::default();
        for (kind, at_ms) in outcomes {
            seen.add(*kind, "http status 500", *at_ms);
        }
        seen
    }

    #[test]
    fn a_streak_is_noted_when_it_has_lasted_and_cleared_by_a_delivery() {
        let config = hour();
        let fresh = Standing::default();
        let failing = seen(&[(OutcomeKind::Failed, 1_000)]);
        assert_eq!(
            next(&fresh, &failing, &config, 1_000 + SETTLED_MS - 1),
            None
        );
        let noted = next(&fresh, &failing, &config, 1_000 + SETTLED_MS);
        assert_eq!(noted, Some(fresh.failing(Some(1_000))));
        let noted = fresh.failing(Some(1_000));
        assert_eq!(next(&noted, &failing, &config, DAY_MS), None, "silence");
        // Somebody else has delivered before we noted ours: his delivery is later than its begin.
        let well = seen(&[(OutcomeKind::Delivered, 1_000)]);
        assert_eq!(
            next(&noted, &well, &config, 2_000),
            Some(noted.failing(None))
        );
        let earlier = seen(&[(OutcomeKind::Delivered, 999)]);
        assert_eq!(next(&noted, &earlier, &config, 2_000), None);
        assert_eq!(
            next(&fresh, &well, &config, DAY_MS),
            None,
            "nothing to clear"
        );
        // By default a minute.
        let at = |now_ms| next(&fresh, &failing, &PauseConfig::default(), now_ms);
        assert_eq!(at(60_999), None);
        assert!(at(61_000).is_some());
    }

    #[test]
    fn only_failures_for_long_enough_pause() {
        let config = hour();
        let noted = Standing::default().failing(Some(1_000));
        let at = |last_ms| {
            let seen = seen(&[
                (OutcomeKind::Failed, 900_000),
                (OutcomeKind::Rejected, last_ms),
            ]);
            next(&noted, &seen, &config, last_ms + 5)
        };
        assert_eq!(at(1_000 + HOUR_MS - 1), None);
        let paused = noted.pause(1_005 + HOUR_MS, PauseCause::Failing, "http status 500");
        assert_eq!(at(1_000 + HOUR_MS), Some(paused));
        // One failure and a long silence.
        let once = seen(&[(OutcomeKind::Failed, 1_000)]);
        assert_eq!(next(&noted, &once, &config, DAY_MS), None);
    }

    #[test]
    fn a_410_pauses_at_once_unless_it_shall_not() {
        let gone = seen(&[(OutcomeKind::Gone, 5), (OutcomeKind::Delivered, 6)]);
        let paused = next(&Standing::default(), &gone, &hour(), 7);
        let expected = Standing::default().pause(7, PauseCause::Gone, "http status 500");
        assert_eq!(paused, Some(expected.clone()));
        assert_eq!(next(&expected, &gone, &hour(), 8), None, "once");
        let off = PauseConfig {
            on_gone: Some(false),
            ..hour()
        };
        assert_eq!(next(&Standing::default(), &gone, &off, 7), None);
        // It still is a failure.
        let gone = seen(&[(OutcomeKind::Gone, 5)]);
        let noted = next(&Standing::default(), &gone, &off, HOUR_MS);
        assert_eq!(noted, Some(Standing::default().failing(Some(5))));
    }

    #[test]
    fn a_streak_that_somebody_else_has_ended_begins_anew() {
        let mut seen = seen(&[(OutcomeKind::Failed, 1_000)]);
        let noted = Standing::default().failing(Some(1_000));
        seen.hear(&Standing::default(), &noted);
        assert!(seen.streak.is_some());
        let cleared = noted.failing(None);
        seen.hear(&noted, &cleared);
        assert_eq!(next(&cleared, &seen, &hour(), DAY_MS), None);
        // And what was seen before a resume is void, whatever it was.
        seen.add(OutcomeKind::Gone, "http status 410", 2_000);
        seen.hear(&cleared, &cleared);
        assert!(next(&cleared, &seen, &hour(), 2_001).is_some());
        let resumed = cleared.pause(2_002, PauseCause::Gone, "").resume(2_003);
        seen.hear(&cleared, &resumed);
        assert_eq!(seen, Seen::default());
    }

    #[test]
    fn what_is_not_the_destinations_doing_counts_for_nothing() {
        let none = seen(&[(OutcomeKind::Interrupted, 5), (OutcomeKind::Unknown, 6)]);
        assert_eq!(none, Seen::default());
    }

    fn kind() -> impl Strategy<Value = OutcomeKind> {
        prop_oneof![
            Just(OutcomeKind::Delivered),
            Just(OutcomeKind::Failed),
            Just(OutcomeKind::Rejected),
            Just(OutcomeKind::Throttled),
            Just(OutcomeKind::Blocked),
            Just(OutcomeKind::Interrupted),
        ]
    }

    proptest! {
        /// Several processes look at one row now and again, each with outcomes of its own.
        #[test]
        fn a_pause_is_earned_and_stays(
            history in proptest::collection::vec((0_usize..3, kind(), 1_i64..400_000), 1..200),
        ) {
            let config = hour();
            let mut processes = vec![(Standing::default(), Seen::default()); 3];
            let mut standing = Standing::default();
            let events = history.len();
            let (mut now_ms, mut delivered_ms, mut failed_first_ms) = (1_000_i64, 0_i64, None);
            let mut writes = 0_u32;
            for (process, kind, wait_ms) in history {
                now_ms += wait_ms;
                processes[process].1.add(kind, "x", now_ms);
                if kind == OutcomeKind::Delivered {
                    (delivered_ms, failed_first_ms) = (now_ms, None);
                } else if kind != OutcomeKind::Interrupted {
                    failed_first_ms.get_or_insert(now_ms);
                }
                // Every process looks, in some order, as often as there is something to write.
                for _ in 0..3 {
                    for (known, seen) in &mut processes {
                        seen.hear(known, &standing);
                        *known = standing.clone();
                        let Some(new) = next(&standing, seen, &config, now_ms) else { continue };
                        prop_assert!(standing.paused.is_none(), "written to a paused one");
                        prop_assert_eq!(new.follows(), standing.revision);
                        prop_assert_ne!((&new.failing_since_ms, &new.paused), (&standing.failing_since_ms, &standing.paused));
                        writes += 1;
                        standing = new;
                        seen.hear(known, &standing);
                        *known = standing.clone();
                    }
                }
                if standing.paused.is_some() {
                    let since_ms = standing.failing_since_ms.unwrap_or(i64::MAX);
                    // Nobody has delivered since, and the streak is old enough.
                    prop_assert!(delivered_ms < since_ms);
                    prop_assert!(now_ms - since_ms >= HOUR_MS);
                    prop_assert!(failed_first_ms.is_some_and(|first_ms| first_ms <= since_ms));
                    break;
                }
            }
            // A begin and its end for an event at most, however often the processes look.
            prop_assert!(writes as usize <= 2 * events, "{writes} writes for {events} events");
        }
    }
}
