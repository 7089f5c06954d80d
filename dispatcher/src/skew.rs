//! How far this process's clock is from the log's, and whether it jumps: plain values.
//!
//! Claims compare leases, which one dispatcher's clock has set, with another's clock. Nobody can ask the others what time
//! they have, but all read records to which the log has given its time. `now - append time` of a record that was just
//! appended is our clock's lead over the log's plus the way of the record; the least of many has the shortest way. What is
//! below zero proves that our clock is behind, whatever the way was.

use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// The estimate is the least of what was seen within this time, in steps of [`STEP`].
const STEPS: usize = 6;
const STEP: Duration = Duration::from_secs(10);

/// The estimator.
#[derive(Debug, Default)]
pub struct Skew {
    /// Begin and least lead of each step, milliseconds.
    steps: VecDeque<(Instant, i64)>,
    told: bool,
}

/// What changed about a clock that is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Off by more than the margin.
    Off,
    /// Within the margin again.
    Right,
}

/// Finds out when the clock was set: it went on by another amount than time did.
#[derive(Debug, Default)]
pub struct Jumps(Option<(Instant, i64)>);

// === impl Skew ===

impl Skew {
    /// A record that was just appended came in: `lead_ms` is our clock at this moment without its append time.
    pub fn observe(&mut self, now: Instant, lead_ms: i64) {
        match self.steps.back_mut() {
            Some((began, least)) if now.saturating_duration_since(*began) < STEP => {
                *least = lead_ms.min(*least);
            }
            Some(_) | None => self.steps.push_back((now, lead_ms)),
        }
        if self.steps.len() > STEPS {
            self.steps.pop_front();
        }
    }

    /// Our clock's lead over the log's, milliseconds; negative: it is behind. None when nothing was seen of late.
    pub fn lead_ms(&mut self, now: Instant) -> Option<i64> {
        let steps = u32::try_from(STEPS).unwrap_or(u32::MAX);
        let old = |began| now.saturating_duration_since(began) > STEP * steps;
        while self.steps.front().is_some_and(|(began, _)| old(*began)) {
            self.steps.pop_front();
        }
        self.steps.iter().map(|(_, least)| *least).min()
    }

    /// Forgets what was seen: the clock was set.
    pub fn forget(&mut self) {
        self.steps.clear();
    }

    /// Whether `lead_ms` is news to whoever looks after the machine.
    pub fn news(&mut self, lead_ms: i64, margin_ms: i64) -> Option<News> {
        let off = lead_ms.saturating_abs() > margin_ms;
        if off == self.told {
            return None;
        }
        self.told = off;
        Some(if off { News::Off } else { News::Right })
    }
}

// === impl Jumps ===

impl Jumps {
    /// By how much the clock was set since the last look, milliseconds, when that is more than `margin_ms`.
    pub fn look(&mut self, now: Instant, now_ms: i64, margin_ms: i64) -> Option<i64> {
        let (last, last_ms) = self.0.replace((now, now_ms))?;
        let passed = now.saturating_duration_since(last).as_millis();
        let passed_ms = i64::try_from(passed).unwrap_or(i64::MAX);
        let jump_ms = now_ms.saturating_sub(last_ms).saturating_sub(passed_ms);
        (jump_ms.saturating_abs() > margin_ms).then_some(jump_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[tokio::test(start_paused = true)]
    async fn the_least_of_the_last_minute_counts() {
        let mut skew = Skew::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(skew.lead_ms(start), None);
        for (seconds, lead_ms) in [(0, 40), (1, 3), (2, 900)] {
            skew.observe(at(seconds), lead_ms);
        }
        assert_eq!(skew.lead_ms(at(2)), Some(3));
        skew.observe(at(30), 700);
        assert_eq!(skew.lead_ms(at(30)), Some(3), "the others came late");
        assert_eq!(skew.lead_ms(at(61)), Some(700));
        skew.observe(at(62), -20);
        assert_eq!(skew.lead_ms(at(62)), Some(-20), "behind the log's");
        assert_eq!(skew.lead_ms(at(200)), None);
    }

    #[test]
    fn being_off_is_told_once() {
        let mut skew = Skew::default();
        assert_eq!(skew.news(500, 500), None);
        assert_eq!(skew.news(-501, 500), Some(News::Off));
        assert_eq!(skew.news(9_000, 500), None);
        assert_eq!(skew.news(0, 500), Some(News::Right));
        assert_eq!(skew.news(i64::MIN, 500), Some(News::Off));
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_time_does_not_explain_is_a_jump() {
        let mut jumps = Jumps::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(jumps.look(at(0), 1_000_000, 500), None);
        assert_eq!(jumps.look(at(100), 1_000_110, 500), None);
        // Stopped for a minute: both went on.
        assert_eq!(jumps.look(at(60_100), 1_060_100, 500), None);
        assert_eq!(jumps.look(at(60_200), 1_000_000, 500), Some(-60_200));
        assert_eq!(jumps.look(at(60_300), 5_000_000, 500), Some(3_999_900));
        assert_eq!(jumps.look(at(60_400), 5_000_100, 500), None);
    }

    proptest! {
        /// Whatever the ways of the records were: the estimate is never below the truth, and above it only by the shortest
        /// way.
        #[test]
        fn the_estimate_is_off_by_the_shortest_way(
            lead_ms in -10_000_i64..10_000, ways_ms in proptest::collection::vec(0_i64..5_000, 1..50)
        ) {
            let mut skew = Skew::default();
            let start = Instant::now();
            for (at, way_ms) in (0_u64..).zip(&ways_ms) {
                skew.observe(start + Duration::from_secs(at), lead_ms + way_ms);
            }
            let shortest_ms = ways_ms.iter().min().copied().unwrap_or_default();
            prop_assert_eq!(skew.lead_ms(start + Duration::from_secs(50)), Some(lead_ms + shortest_ms));
        }
    }
}
