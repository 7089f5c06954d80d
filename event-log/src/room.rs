//! How much one answer of a consumer may hand out.

use std::collections::BTreeMap;

/// Room for records, in total and by partition. A plain number is room that any partition may use up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    records: usize,
    /// Partitions that may not use all of it.
    partitions: BTreeMap<u32, usize>,
}

// === impl Room ===

impl Room {
    /// Room for `records`, whatever their partition. 0: for none.
    pub fn new(records: usize) -> Self {
        Self {
            records,
            partitions: BTreeMap::new(),
        }
    }

    /// At most `records` of `partition`, all its topics together. 0: it is full.
    pub fn limit(&mut self, partition: u32, records: usize) {
        self.partitions.insert(partition, records);
    }

    /// Records of all partitions together.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Records of `partition`.
    pub fn of(&self, partition: u32) -> usize {
        let limit = self.partitions.get(&partition).copied();
        limit.map_or(self.records, |limit| limit.min(self.records))
    }

    /// Uses up room for one record of `partition`; false when there is none.
    pub fn take(&mut self, partition: u32) -> bool {
        if self.of(partition) == 0 {
            return false;
        }
        self.records -= 1;
        if let Some(limit) = self.partitions.get_mut(&partition) {
            *limit -= 1;
        }
        true
    }
}

impl From<usize> for Room {
    fn from(records: usize) -> Self {
        Self::new(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_partition_takes_is_taken_of_the_whole() {
        let mut room = Room::new(3);
        room.limit(1, 1);
        room.limit(2, 0);
        room.limit(3, 99);
        assert_eq!(
            [0, 1, 2, 3].map(|partition| room.of(partition)),
            [3, 1, 0, 3]
        );
        assert!(room.take(1) && !room.take(1) && !room.take(2));
        assert!(room.take(0));
        assert_eq!(
            [0, 1, 2, 3].map(|partition| room.of(partition)),
            [1, 0, 0, 1]
        );
        assert!(room.take(3) && !room.take(0));
        assert_eq!(room.records(), 0);
    }
}
