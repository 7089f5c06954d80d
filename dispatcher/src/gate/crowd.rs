//! How the process's window of records in work is shared by the destinations: whoever waits in it, takes it from others.

/// A destination counts as one that wants a share for at least this long after it was last asked for.
const SPAN_MS: i64 = 10_000;

/// Records and their body bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

/// Everything inside of the gates of this process, waiting or under way.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    max: Load,
    all: Load,
    /// Destinations that were asked for in this span of time, and in the one before.
    span: i64,
    now: usize,
    before: usize,
}

// === impl Crowd ===

impl Crowd {
    /// A window as large as `max`.
    pub(super) fn new(max: Load) -> Self {
        Self {
            max,
            all: Load::default(),
            span: i64::MIN,
            now: 0,
            before: 0,
        }
    }

    /// A destination is asked for. `seen` is its own memory of the last time.
    pub(super) fn asked(&mut self, seen: &mut Option<i64>, now_ms: i64) {
        let span = now_ms.div_euclid(SPAN_MS);
        if span != self.span {
            let next = span == self.span.saturating_add(1);
            self.before = if next { self.now } else { 0 };
            self.now = 0;
            self.span = span;
        }
        if *seen != Some(span) {
            *seen = Some(span);
            self.now += 1;
        }
    }

    /// Whether a destination that has `mine` inside should take no more. It may have as much as an equal share of the
    /// window, or as much as is left free: one that is alone may fill the window, several that are equally busy too, and
    /// one that is busier than others leaves them room.
    pub(super) fn is_over(&self, mine: Load) -> bool {
        let destinations = self.now.max(self.before).max(1);
        let over = |mine: usize, all: usize, max: usize| {
            mine >= (max / destinations).max(max.saturating_sub(all)).max(1)
        };
        over(mine.count, self.all.count, self.max.count)
            || over(mine.bytes, self.all.bytes, self.max.bytes)
    }

    pub(super) fn enter(&mut self, bytes: usize) {
        self.all.enter(bytes);
    }

    pub(super) fn leave(&mut self, bytes: usize) {
        self.all.leave(bytes);
    }
}

// === impl Load ===

impl Load {
    pub(super) fn enter(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) fn leave(&mut self, bytes: usize) {
        self.count = self.count.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of the destinations takes one after the other for as long as it may; what they end up with.
    fn fill(hungers: &[usize]) -> Vec<usize> {
        let mut crowd = Crowd::new(Load {
            count: 120,
            bytes: 1_000_000,
        });
        let mut mine = vec![Load::default(); hungers.len()];
        let mut seen = vec![None; hungers.len()];
        for seen in &mut seen {
            crowd.asked(seen, 0);
        }
        loop {
            let mut taken = false;
            for (mine, hunger) in mine.iter_mut().zip(hungers) {
                let full = crowd.all.count == crowd.max.count;
                if !full && mine.count < *hunger && !crowd.is_over(*mine) {
                    crowd.enter(10);
                    mine.enter(10);
                    taken = true;
                }
            }
            if !taken {
                return mine.iter().map(|mine| mine.count).collect();
            }
        }
    }

    #[test]
    fn alone_it_fills_the_window() {
        assert_eq!(fill(&[1_000]), [120]);
    }

    #[test]
    fn equally_busy_ones_fill_it_together() {
        assert_eq!(fill(&[1_000, 1_000]), [60, 60]);
        assert_eq!(fill(&[1_000, 1_000, 1_000]), [40, 40, 40]);
    }

    #[test]
    fn a_busy_one_leaves_others_room() {
        assert_eq!(fill(&[1_000, 3]), [60, 3]);
        assert_eq!(fill(&[1_000, 1_000, 3]), [40, 40, 3]);
        // A short burst among many that are quiet is no harm.
        let mut quiet = vec![1; 20];
        quiet.insert(0, 40);
        assert_eq!(fill(&quiet)[0], 40);
    }

    #[test]
    fn large_bodies_count_by_their_bytes() {
        let mut crowd = Crowd::new(Load {
            count: 1_000,
            bytes: 32,
        });
        let (mut hot, mut seen) = (Load::default(), [None, None]);
        for seen in &mut seen {
            crowd.asked(seen, 0);
        }
        while !crowd.is_over(hot) {
            crowd.enter(1);
            hot.enter(1);
        }
        assert_eq!(hot.bytes, 16);
    }

    #[test]
    fn who_is_not_asked_for_any_more_has_no_share() {
        let mut crowd = Crowd::new(Load {
            count: 10,
            bytes: 1_000,
        });
        let (mut hot, mut rare) = (None, None);
        let mine = Load { count: 5, bytes: 5 };
        crowd.all = mine;
        crowd.asked(&mut rare, 0);
        for now_ms in [9_000, 10_000, 19_999] {
            crowd.asked(&mut hot, now_ms);
            crowd.asked(&mut hot, now_ms);
            assert!(crowd.is_over(mine), "{now_ms}");
        }
        crowd.asked(&mut hot, 20_000);
        assert!(!crowd.is_over(mine));
        // A clock that jumps, either way, forgets all.
        crowd.asked(&mut rare, -5_000_000);
        assert!(!crowd.is_over(mine));
    }
}
