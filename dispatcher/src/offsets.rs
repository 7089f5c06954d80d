//! Which records of an owned partition are finished: the watermark that may be committed (invariant 3).
//!
//! Offsets are tracked as they were received, since gaps are normal (transactions, compaction, retention). One tracker
//! lives as long as one epoch of one topic and partition; a late completion of an older epoch has no tracker to reach.

use crate::window::Window;
use std::collections::VecDeque;

/// Records for which memory is kept when a window has become small again.
const KEPT_MIN: usize = 1_024;

/// Received and unfinished records of one topic and partition, in one epoch.
#[derive(Debug, Default)]
pub struct Offsets {
    /// Offset and deliveries still open, in offset order. The front is always unfinished.
    window: VecDeque<(i64, u32)>,
    /// Records in the window that are finished.
    finished: usize,
    /// First offset that is not known to be finished; none before the first record.
    next_offset: Option<i64>,
    committed: Option<i64>,
}

// === impl Offsets ===

impl Offsets {
    /// A record was received; it is finished after `open` calls of [`Self::finish_one`] (at once when 0). An offset that
    /// does not lie behind all others is a repeat of the log's and changes nothing: false.
    pub fn receive(&mut self, offset: i64, open: u32) -> bool {
        let newest = self.window.back().map(|(offset, _)| *offset);
        let floor = newest.or(self
            .next_offset
            .map(|next_offset| next_offset.saturating_sub(1)));
        if floor.is_some_and(|floor| offset <= floor) {
            return false;
        }
        self.window.push_back((offset, open));
        self.finished += usize::from(open == 0);
        if self.next_offset.is_none() {
            self.next_offset = Some(offset);
        }
        self.advance();
        true
    }

    /// One delivery made of the record at `offset` is finished.
    pub fn finish_one(&mut self, offset: i64) {
        if let Ok(at) = self
            .window
            .binary_search_by_key(&offset, |(offset, _)| *offset)
            && let Some((_, open)) = self.window.get_mut(at)
            && *open > 0
        {
            *open -= 1;
            self.finished += usize::from(*open == 0);
        }
        self.advance();
    }

    /// Everything below this is finished; none before the first record.
    pub fn watermark(&self) -> Option<i64> {
        self.next_offset
    }

    /// The watermark, when it has moved since it was taken last.
    pub fn take_moved(&mut self) -> Option<i64> {
        if self.next_offset == self.committed {
            return None;
        }
        self.committed = self.next_offset;
        self.next_offset
    }

    /// What is held back by the first unfinished record; none when every received record is finished.
    pub fn window(&self) -> Option<Window> {
        let (first_offset, _) = self.window.front()?;
        Some(Window {
            first_offset: *first_offset,
            records: self.window.len(),
            finished: self.finished,
        })
    }

    /// Records that are not finished, or are behind one that is not.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// True when every received record is finished.
    pub fn is_empty(&self) -> bool {
        self.window.is_empty()
    }

    fn advance(&mut self) {
        while let Some((offset, 0)) = self.window.front() {
            self.next_offset = Some(offset.saturating_add(1));
            self.window.pop_front();
            self.finished -= 1;
        }
        // A window that was long once must not hold its memory for ever.
        let kept = self.window.len().saturating_mul(4).max(KEPT_MIN);
        if self.window.capacity() > kept.saturating_mul(2) {
            self.window.shrink_to(kept);
        }
        if let Some((offset, _)) = self.window.front() {
            // A gap before the first unfinished record is finished by nature.
            self.next_offset = Some(*offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_slow_head_holds_the_watermark() {
        let mut offsets = Offsets::default();
        assert_eq!(offsets.take_moved(), None);
        for offset in [10, 11, 15] {
            assert!(offsets.receive(offset, 1));
        }
        assert_eq!(offsets.take_moved(), Some(10));
        offsets.finish_one(15);
        offsets.finish_one(11);
        assert_eq!(offsets.take_moved(), None);
        offsets.finish_one(10);
        assert_eq!(offsets.take_moved(), Some(16));
        assert!(offsets.is_empty());
    }

    #[test]
    fn a_long_window_gives_its_memory_back() {
        let mut offsets = Offsets::default();
        for offset in 0..100_000 {
            offsets.receive(offset, 1);
        }
        for offset in 1..100_000 {
            offsets.finish_one(offset);
        }
        let window = offsets.window().unwrap();
        assert_eq!((window.records, window.finished), (100_000, 99_999));
        assert!(offsets.window.capacity() < 300_000);
        offsets.finish_one(0);
        assert_eq!(offsets.window(), None);
        assert!(offsets.window.capacity() <= 2 * KEPT_MIN);
    }

    #[test]
    fn a_record_without_deliveries_is_finished_at_once_and_repeats_are_ignored() {
        let mut offsets = Offsets::default();
        assert!(offsets.receive(3, 0));
        assert_eq!(offsets.watermark(), Some(4));
        assert!(!offsets.receive(3, 1));
        assert!(offsets.receive(7, 2));
        assert!(!offsets.receive(5, 1));
        assert_eq!(offsets.watermark(), Some(7));
        offsets.finish_one(7);
        assert_eq!(offsets.watermark(), Some(7));
        offsets.finish_one(7);
        offsets.finish_one(7);
        assert_eq!(offsets.watermark(), Some(8));
    }

    proptest! {
        /// Invariant 3 against a model: the watermark never passes an unfinished record, and reaches the end.
        #[test]
        fn never_past_an_unfinished_record(
            steps in proptest::collection::vec((1_i64..4, 0_u32..4, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut offsets = Offsets::default();
            let mut model: BTreeMap<i64, u32> = BTreeMap::new();
            let mut next = 0;
            for (gap, open, pick) in steps {
                next += gap;
                prop_assert!(offsets.receive(next, open));
                if open > 0 { model.insert(next, open); }
                if !model.is_empty() {
                    let offset = *model.keys().nth(pick.index(model.len())).unwrap();
                    offsets.finish_one(offset);
                    let left = model.get_mut(&offset).unwrap();
                    *left -= 1;
                    if *left == 0 { model.remove(&offset); }
                }
                let first_open = model.keys().next().copied();
                let expected = first_open.unwrap_or(next + 1);
                prop_assert_eq!(offsets.watermark(), Some(expected));
                let window = offsets.window();
                prop_assert_eq!(window.map(|it| it.first_offset), first_open);
                let unfinished = window.map_or(0, |it| it.records - it.finished);
                prop_assert_eq!(unfinished, model.len());
                // What is committed is what was seen to be safe, once.
                if let Some(moved) = offsets.take_moved() {
                    prop_assert_eq!(moved, expected);
                }
                prop_assert_eq!(offsets.take_moved(), None);
            }
            for (offset, open) in model {
                for _ in 0..open { offsets.finish_one(offset); }
            }
            prop_assert_eq!(offsets.watermark(), Some(next + 1));
            prop_assert!(offsets.is_empty());
        }
    }
}
