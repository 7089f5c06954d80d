//! Which records of an owned partition are finished: the watermark that may be committed (invariant 3).
//!
//! Offsets are tracked as they were received, since gaps are normal (transactions, compaction, retention). One tracker
//! lives as long as one epoch of one topic and partition; a late completion of an older epoch has no tracker to reach.

use std::collections::VecDeque;

/// Received and unfinished records of one topic and partition, in one epoch.
#[derive(Debug, Default)]
pub struct Offsets {
    /// Offset and deliveries still open, in offset order. The front is always unfinished.
    window: VecDeque<(i64, u32)>,
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
        {
            *open = open.saturating_sub(1);
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
