//! The partitions that this process owns, and what is in flight of each: who may still finish what.

use crate::{
    offsets::Offsets,
    window::{Load, Window},
};
use event_log::{Epoch, Received, Revoked, Watermark};
use schemas::Topic;
use std::collections::BTreeMap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Owned partitions, and those that are on their way out.
#[derive(Debug, Default)]
pub struct Partitions {
    owned: BTreeMap<u32, Owned>,
    leaving: Vec<Leaving>,
}

/// What a job's record needs to be finished: outlives the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub topic: Topic,
    pub partition: u32,
    pub offset: i64,
    pub epoch: Epoch,
    /// Memory that the job holds.
    pub bytes: usize,
}

#[derive(Debug)]
struct Owned {
    epoch: Epoch,
    token: CancellationToken,
    offsets: BTreeMap<Topic, Offsets>,
    in_flight: Load,
}

#[derive(Debug)]
struct Leaving {
    revoked: Revoked,
    patience_until: Instant,
}

// === impl Partitions ===

impl Partitions {
    /// Ownership begins.
    pub fn assign(&mut self, partition: u32, epoch: Epoch) {
        let owned = Owned {
            epoch,
            token: CancellationToken::new(),
            offsets: BTreeMap::new(),
            in_flight: Load::default(),
        };
        if let Some(former) = self.owned.insert(partition, owned) {
            former.token.cancel();
        }
    }

    /// Ownership ends: waiting ends at once, attempts that run may end until `patience_until`. A lost ownership is gone
    /// already, so nothing is waited for and nothing committed.
    pub fn revoke(&mut self, revoked: Revoked, patience_until: Instant) {
        for (partition, epoch) in &revoked.partitions {
            if let Some(owned) = self.of(*partition, *epoch) {
                owned.token.cancel();
                if revoked.lost {
                    self.owned.remove(partition);
                }
            }
        }
        if !revoked.lost {
            self.leaving.push(Leaving {
                revoked,
                patience_until,
            });
        }
    }

    /// Answers the revocations whose attempts have ended, or whose patience has. True when some are left.
    pub fn release(&mut self, now: Instant) -> bool {
        for leaving in std::mem::take(&mut self.leaving) {
            let busy = leaving.revoked.partitions.iter().any(|(partition, epoch)| {
                self.of(*partition, *epoch)
                    .is_some_and(|owned| owned.in_flight.deliveries > 0)
            });
            if busy && now < leaving.patience_until {
                self.leaving.push(leaving);
                continue;
            }
            let mut watermarks = Vec::new();
            for (partition, epoch) in &leaving.revoked.partitions {
                if self.of(*partition, *epoch).is_some()
                    && let Some(owned) = self.owned.remove(partition)
                {
                    watermarks.extend(owned.watermarks(*partition));
                }
            }
            leaving.revoked.release.done(watermarks);
        }
        !self.leaving.is_empty()
    }

    /// A record was read. None when it is of another epoch or was received before; else the token that ends with the
    /// ownership. `open` jobs of `bytes` each finish the record.
    pub fn receive(
        &mut self,
        record: &Received,
        open: u32,
        bytes: usize,
    ) -> Option<CancellationToken> {
        let owned = self.of(record.partition, record.epoch)?;
        let fresh = owned
            .offsets
            .entry(record.topic)
            .or_default()
            .receive(record.offset, open);
        if !fresh || owned.token.is_cancelled() {
            return None;
        }
        let open = usize::try_from(open).unwrap_or(usize::MAX);
        owned.in_flight.deliveries += open;
        owned.in_flight.bytes += open.saturating_mul(bytes);
        Some(owned.token.clone())
    }

    /// A job ended. Its record counts as finished only when the job says so, and only in the epoch that it was read in.
    pub fn end(&mut self, ticket: Ticket, finished: bool) {
        if let Some(owned) = self.of(ticket.partition, ticket.epoch) {
            let ended = Load {
                deliveries: 1,
                bytes: ticket.bytes,
            };
            owned.in_flight = owned.in_flight.without(ended);
            if finished && let Some(offsets) = owned.offsets.get_mut(&ticket.topic) {
                offsets.finish_one(ticket.offset);
            }
        }
    }

    /// The watermarks that have moved since they were taken last.
    pub fn take_moved(&mut self) -> Vec<Watermark> {
        let mut moved = Vec::new();
        for (partition, owned) in &mut self.owned {
            for (topic, offsets) in &mut owned.offsets {
                if let Some(next_offset) = offsets.take_moved() {
                    moved.push(Watermark {
                        topic: *topic,
                        partition: *partition,
                        epoch: owned.epoch,
                        next_offset,
                    });
                }
            }
        }
        moved
    }

    /// Ends all waiting: the process shuts down.
    pub fn cancel_all(&self) {
        for owned in self.owned.values() {
            owned.token.cancel();
        }
    }

    /// Every watermark, for the end.
    pub fn watermarks(&self) -> Vec<Watermark> {
        self.owned
            .iter()
            .flat_map(|(partition, owned)| owned.watermarks(*partition))
            .collect()
    }

    /// What of each owned partition is in work, and the most records that any of its topics has from the first unfinished
    /// one on.
    pub fn loads(&self) -> impl Iterator<Item = (u32, Load, usize)> {
        self.owned.iter().map(|(partition, owned)| {
            let windows = owned.offsets.values().map(Offsets::len);
            (*partition, owned.in_flight, windows.max().unwrap_or(0))
        })
    }

    /// The windows of all topics and partitions that have an unfinished record.
    pub fn windows(&self) -> BTreeMap<(Topic, u32), Window> {
        let mut windows = BTreeMap::new();
        for (partition, owned) in &self.owned {
            for (topic, offsets) in &owned.offsets {
                if let Some(window) = offsets.window() {
                    windows.insert((*topic, *partition), window);
                }
            }
        }
        windows
    }

    /// Partitions owned.
    pub fn count(&self) -> usize {
        self.owned.len()
    }

    fn of(&mut self, partition: u32, epoch: Epoch) -> Option<&mut Owned> {
        self.owned
            .get_mut(&partition)
            .filter(|owned| owned.epoch == epoch)
    }
}

// === impl Owned ===

impl Owned {
    fn watermarks(&self, partition: u32) -> Vec<Watermark> {
        let of = |(topic, offsets): (&Topic, &Offsets)| {
            Some(Watermark {
                topic: *topic,
                partition,
                epoch: self.epoch,
                next_offset: offsets.watermark()?,
            })
        };
        self.offsets.iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use event_log::Release;

    fn record(epoch: u64, offset: i64) -> Received {
        Received {
            topic: Topic::Webhooks,
            partition: 3,
            offset,
            epoch: Epoch(epoch),
            appended_at_ms: 0,
            key: Bytes::new(),
            value: Bytes::new(),
            headers: Vec::new(),
        }
    }

    fn ticket(epoch: u64, offset: i64) -> Ticket {
        Ticket {
            topic: Topic::Webhooks,
            partition: 3,
            offset,
            epoch: Epoch(epoch),
            bytes: 10,
        }
    }

    /// The stale completion: records of an old ownership end after the partition came back (librdkafka fences nothing).
    #[tokio::test]
    async fn a_late_end_of_an_old_epoch_moves_nothing() {
        let mut partitions = Partitions::default();
        partitions.assign(3, Epoch(1));
        for offset in 0..10 {
            assert!(partitions.receive(&record(1, offset), 1, 10).is_some());
        }
        partitions.assign(3, Epoch(2));
        assert!(partitions.receive(&record(2, 0), 1, 10).is_some());
        assert!(partitions.receive(&record(1, 10), 1, 10).is_none());
        for offset in 0..10 {
            partitions.end(ticket(1, offset), true);
        }
        assert_eq!(partitions.watermarks()[0].next_offset, 0);
        partitions.end(ticket(2, 0), true);
        assert_eq!(partitions.watermarks()[0].next_offset, 1);
    }

    #[tokio::test]
    async fn what_is_in_work_is_counted_by_partition() {
        let mut partitions = Partitions::default();
        partitions.assign(2, Epoch(1));
        partitions.assign(3, Epoch(2));
        partitions.receive(&record(2, 5), 2, 10).unwrap();
        partitions.receive(&record(2, 6), 1, 10).unwrap();
        let loads = |partitions: &Partitions| {
            let loads = partitions.loads();
            loads
                .map(|(partition, load, window)| (partition, load.deliveries, load.bytes, window))
                .collect::<Vec<_>>()
        };
        assert_eq!(loads(&partitions), [(2, 0, 0, 0), (3, 3, 30, 2)]);
        partitions.end(ticket(2, 6), true);
        partitions.end(ticket(2, 5), false);
        // Of an ownership that has ended.
        partitions.end(ticket(1, 5), true);
        assert_eq!(loads(&partitions), [(2, 0, 0, 0), (3, 1, 10, 2)]);
        partitions.assign(3, Epoch(3));
        assert_eq!(loads(&partitions), [(2, 0, 0, 0), (3, 0, 0, 0)]);
    }

    #[tokio::test]
    async fn a_revocation_waits_for_attempts_and_not_for_ever() {
        let mut partitions = Partitions::default();
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(2);
        for (epoch, ends, answered_at) in [(1, true, now), (2, false, later)] {
            partitions.assign(3, Epoch(epoch));
            let token = partitions.receive(&record(epoch, 5), 1, 10).unwrap();
            partitions.receive(&record(epoch, 6), 1, 10).unwrap();
            partitions.end(ticket(epoch, 5), true);
            let (release, mut answer) = Release::new();
            let revoked = Revoked {
                partitions: vec![(3, Epoch(epoch))],
                lost: false,
                release,
            };
            partitions.revoke(revoked, later);
            assert!(token.is_cancelled());
            assert!(partitions.receive(&record(epoch, 7), 1, 10).is_none());
            assert!(partitions.release(now));
            partitions.end(ticket(epoch, 6), ends);
            if !ends {
                // It ended without finishing its record: the watermark stays below it.
                assert_eq!(partitions.watermarks()[0].next_offset, 6);
            }
            assert!(!partitions.release(answered_at));
            let watermarks = answer.try_recv().unwrap();
            assert_eq!(watermarks[0].next_offset, if ends { 7 } else { 6 });
            assert_eq!(partitions.count(), 0);
        }
    }

    #[tokio::test]
    async fn a_lost_ownership_commits_nothing() {
        let mut partitions = Partitions::default();
        partitions.assign(3, Epoch(1));
        partitions.receive(&record(1, 5), 0, 10).unwrap();
        let (release, mut answer) = Release::new();
        let revoked = Revoked {
            partitions: vec![(3, Epoch(1))],
            lost: true,
            release,
        };
        partitions.revoke(revoked, Instant::now());
        assert!(answer.try_recv().is_err());
        assert_eq!(partitions.count(), 0);
        assert!(partitions.take_moved().is_empty());
    }
}
