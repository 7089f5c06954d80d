//! Members that come and go while everything is committed all the time.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

const PARTITIONS: u32 = 12;

/// Members, and what was read so far.
struct Group<'a> {
    stand: &'a Stand,
    members: Vec<Member>,
    /// Offsets read of each partition.
    read: BTreeMap<u32, BTreeSet<i64>>,
    /// What was committed at a quiet moment.
    committed: BTreeMap<u32, i64>,
    /// Records that came again.
    again: usize,
    produced: usize,
}

struct Member {
    consumer: KafkaConsumer,
    owned: BTreeMap<u32, (Epoch, Option<i64>)>,
}

// === impl Group ===

impl Group<'_> {
    fn join(&mut self, count: usize) {
        for _ in 0..count {
            self.members.push(Member {
                consumer: self.stand.consumer(),
                owned: BTreeMap::new(),
            });
        }
    }

    fn produce(&mut self) {
        let partitions: Vec<_> = (0..120).map(|n| n % 12).collect();
        self.stand.produce_to(&partitions, 1);
        self.produced += partitions.len();
    }

    async fn step(&mut self) {
        for at in 0..self.members.len() {
            let next = self.members[at].consumer.next(50);
            let Ok(events) = tokio::time::timeout(Duration::from_millis(5), next).await else {
                continue;
            };
            for event in events.expect("no member fails") {
                self.take(at, event);
            }
        }
    }

    fn take(&mut self, at: usize, event: Event) {
        let member = &mut self.members[at];
        match event {
            Event::Assigned { partition, epoch } => {
                member.owned.insert(partition, (epoch, None));
            }
            Event::Revoked(revoked) => {
                let mut last = Vec::new();
                for (partition, epoch) in revoked.partitions {
                    let (owned, next_offset) = member.owned.remove(&partition).expect("owned");
                    assert_eq!(owned, epoch);
                    last.extend(next_offset.map(|next_offset| Watermark {
                        epoch,
                        ..watermark(Topic::Webhooks, partition, next_offset)
                    }));
                }
                revoked.release.done(last);
            }
            Event::Record(record) => {
                let owned = member.owned.get_mut(&record.partition).expect("owned");
                assert_eq!(owned.0, record.epoch);
                owned.1 = Some(record.offset + 1);
                let fresh = self
                    .read
                    .entry(record.partition)
                    .or_default()
                    .insert(record.offset);
                // What is committed never comes again. What is not yet may: a commit can meet a rebalance.
                let committed = self.committed.get(&record.partition);
                assert!(
                    committed.is_none_or(|committed| record.offset >= *committed),
                    "{record:?} is behind the commit"
                );
                self.again += usize::from(!fresh);
                member.consumer.commit(vec![Watermark {
                    epoch: record.epoch,
                    ..watermark(Topic::Webhooks, record.partition, record.offset + 1)
                }]);
            }
        }
    }

    /// Until every partition has one owner, nobody has too many, all is read, and all is committed.
    async fn settle(&mut self) {
        let deadline = Instant::now() + 3 * DEADLINE;
        let fair = PARTITIONS as usize / self.members.len() + 1;
        loop {
            let owned: Vec<_> = self
                .members
                .iter()
                .map(|member| member.owned.len())
                .collect();
            let read: usize = self.read.values().map(BTreeSet::len).sum();
            if owned.iter().sum::<usize>() == PARTITIONS as usize
                && owned.iter().all(|owned| (1..=fair).contains(owned))
                && read == self.produced
            {
                let observer = self.stand.observer();
                let committed = self.stand.committed_by(&observer, PARTITIONS);
                if committed.iter().sum::<i64>() == i64::try_from(self.produced).expect("few") {
                    self.committed = (0..).zip(committed).collect();
                    return;
                }
            }
            assert!(
                Instant::now() < deadline,
                "{owned:?} owned, {read} of {} read",
                self.produced
            );
            self.step().await;
        }
    }
}

/// Ten members at most. Each change comes into the middle of what the one before has set off. At the end the group
/// converges, everything was read and committed, and nothing that was committed came again, let alone everything from the
/// start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_converge_and_repeat_nothing() {
    let stand = stand_with(12, |_| {});
    let mut group = Group {
        stand: &stand,
        members: Vec::new(),
        read: BTreeMap::new(),
        committed: BTreeMap::new(),
        again: 0,
        produced: 0,
    };
    group.produce();
    group.join(3);
    group.settle().await;
    group.join(7);
    group.produce();
    for _ in 0..10 {
        group.step().await;
    }
    for at in [8, 5, 2, 0] {
        let member = group.members.swap_remove(at);
        let owned = member.owned.into_iter();
        let last = owned.filter_map(|(partition, (epoch, next_offset))| {
            Some(Watermark {
                epoch,
                ..watermark(Topic::Webhooks, partition, next_offset?)
            })
        });
        let last = last.collect();
        member.consumer.close(last, DEADLINE).await;
        group.step().await;
    }
    group.join(3);
    group.produce();
    group.settle().await;
    group.produce();
    group.settle().await;
    println!("{} of {} came again", group.again, group.produced);
}
