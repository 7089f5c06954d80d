//! Who owns which partition: plain values, no waiting.
//!
//! A partition moves in two steps, as in Kafka's cooperative protocol: its owner is told and keeps it until it has
//! answered; only then it goes to the next owner, under a new epoch.

use crate::Epoch;
use std::collections::{BTreeMap, VecDeque};

/// A member of the group; never used again after it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberId(u64);

/// Something that a member must be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    Assigned {
        partition: u32,
        epoch: Epoch,
    },
    Revoked {
        partitions: Vec<(u32, Epoch)>,
        lost: bool,
    },
}

/// The members and what they own.
#[derive(Debug)]
pub(super) struct Group {
    /// By partition.
    owners: Vec<Option<Owner>>,
    news: BTreeMap<MemberId, VecDeque<News>>,
    members_ever: u64,
    epochs_ever: u64,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    member: MemberId,
    epoch: Epoch,
    /// Told to give it back.
    leaving: bool,
}

// === impl Group ===

impl Group {
    pub(super) fn new(partitions: u32) -> Self {
        let owners = vec![None; partitions as usize];
        Self {
            owners,
            news: BTreeMap::new(),
            members_ever: 0,
            epochs_ever: 0,
        }
    }

    /// A new member; [`Self::rebalance`] gives it its share.
    pub(super) fn join(&mut self) -> MemberId {
        self.members_ever += 1;
        let member = MemberId(self.members_ever);
        self.news.insert(member, VecDeque::new());
        member
    }

    /// Takes everything from a member that has closed or crashed.
    pub(super) fn leave(&mut self, member: MemberId) {
        self.news.remove(&member);
        for owner in &mut self.owners {
            owner.take_if(|owner| owner.member == member);
        }
    }

    /// Takes a partition from its owner; lost ones are gone at once.
    pub(super) fn revoke(&mut self, partition: u32, lost: bool) {
        let Some(place) = self.owners.get_mut(partition as usize) else {
            return;
        };
        let Some(owner) = place else { return };
        if owner.leaving && !lost {
            return;
        }
        let (member, epoch) = (owner.member, owner.epoch);
        if lost {
            *place = None;
        } else {
            owner.leaving = true;
        }
        self.tell(
            member,
            News::Revoked {
                partitions: vec![(partition, epoch)],
                lost,
            },
        );
    }

    /// Ends an ownership whose owner has answered; nothing when it has ended already.
    pub(super) fn release(&mut self, partition: u32, epoch: Epoch) {
        if let Some(owner) = self.owners.get_mut(partition as usize) {
            owner.take_if(|owner| owner.epoch == epoch);
        }
    }

    /// Gives free partitions to those who own least, and asks those who own too much for some back.
    pub(super) fn rebalance(&mut self) {
        if self.news.is_empty() {
            return;
        }
        for partition in 0..u32::try_from(self.owners.len()).unwrap_or(u32::MAX) {
            if self
                .owners
                .get(partition as usize)
                .is_some_and(Option::is_none)
            {
                self.assign(partition);
            }
        }
        let most = self.owners.len().div_ceil(self.news.len());
        let least = self.owners.len() / self.news.len();
        loop {
            let kept = self.kept();
            let poor = kept.values().filter(|count| **count < least).count();
            let rich = kept
                .iter()
                .max_by_key(|(member, count)| (**count, **member));
            let Some((rich, count)) = rich.map(|(member, count)| (*member, *count)) else {
                return;
            };
            let pending = self
                .owners
                .iter()
                .flatten()
                .filter(|owner| owner.leaving)
                .count();
            let missing: usize = kept
                .values()
                .map(|count| least.saturating_sub(*count))
                .sum();
            if count <= most && (poor == 0 || pending >= missing || count <= least) {
                return;
            }
            let place = self.owners.iter().rposition(|owner| {
                owner.is_some_and(|owner| owner.member == rich && !owner.leaving)
            });
            let Some(place) = place.and_then(|place| u32::try_from(place).ok()) else {
                return;
            };
            self.revoke(place, false);
        }
    }

    /// What a member must be told, once.
    pub(super) fn take_news(&mut self, member: MemberId) -> VecDeque<News> {
        self.news
            .get_mut(&member)
            .map(std::mem::take)
            .unwrap_or_default()
    }

    /// Whether a member owns a partition and was not told to give it back.
    pub(super) fn keeps(&self, member: MemberId, partition: u32, epoch: Epoch) -> bool {
        let owner = self.owners.get(partition as usize).copied().flatten();
        owner.is_some_and(|owner| owner.member == member && owner.epoch == epoch && !owner.leaving)
    }

    /// Epoch of the current ownership.
    pub(super) fn epoch(&self, partition: u32) -> Option<Epoch> {
        self.owners
            .get(partition as usize)
            .copied()
            .flatten()
            .map(|owner| owner.epoch)
    }

    fn assign(&mut self, partition: u32) {
        let kept = self.kept();
        let Some(member) = kept
            .iter()
            .min_by_key(|(member, count)| (**count, **member))
        else {
            return;
        };
        let member = *member.0;
        self.epochs_ever += 1;
        let epoch = Epoch(self.epochs_ever);
        if let Some(place) = self.owners.get_mut(partition as usize) {
            *place = Some(Owner {
                member,
                epoch,
                leaving: false,
            });
            self.tell(member, News::Assigned { partition, epoch });
        }
    }

    /// Partitions of each member that it was not told to give back.
    fn kept(&self) -> BTreeMap<MemberId, usize> {
        let mut kept: BTreeMap<_, _> = self.news.keys().map(|member| (*member, 0)).collect();
        for owner in self.owners.iter().flatten().filter(|owner| !owner.leaving) {
            *kept.entry(owner.member).or_default() += 1;
        }
        kept
    }

    fn tell(&mut self, member: MemberId, news: News) {
        if let Some(queue) = self.news.get_mut(&member) {
            queue.push_back(news);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers every revocation, until nobody has any.
    fn settle(group: &mut Group) {
        for _ in 0..100 {
            group.rebalance();
            let members: Vec<_> = group.news.keys().copied().collect();
            let news = members
                .into_iter()
                .flat_map(|member| group.take_news(member));
            let mut ended = Vec::new();
            for news in news.collect::<Vec<_>>() {
                if let News::Revoked {
                    partitions,
                    lost: false,
                } = news
                {
                    ended.extend(partitions);
                }
            }
            if ended.is_empty() {
                return;
            }
            for (partition, epoch) in ended {
                group.release(partition, epoch);
            }
        }
        panic!("never settles: {group:?}");
    }

    fn counts(group: &Group) -> Vec<usize> {
        group.kept().into_values().collect()
    }

    #[test]
    fn members_share_evenly_and_keep_what_they_can() {
        let mut group = Group::new(5);
        let one = group.join();
        settle(&mut group);
        assert_eq!(counts(&group), [5]);
        let before: Vec<_> = (0..5).map(|partition| group.epoch(partition)).collect();
        let two = group.join();
        settle(&mut group);
        assert_eq!(counts(&group), [3, 2]);
        let moved = (0..5)
            .filter(|p| group.epoch(*p) != before[*p as usize])
            .count();
        assert_eq!(moved, 2, "only what must move has a new epoch");
        for _ in 0..4 {
            group.join();
        }
        settle(&mut group);
        assert_eq!(counts(&group), [1, 1, 1, 1, 1, 0]);
        group.leave(one);
        group.leave(two);
        settle(&mut group);
        assert_eq!(counts(&group).iter().sum::<usize>(), 5);
    }

    #[test]
    fn a_partition_waits_for_its_owners_answer_unless_it_is_lost() {
        let mut group = Group::new(1);
        let one = group.join();
        group.rebalance();
        let epoch = group.epoch(0).expect("owned");
        group.revoke(0, false);
        group.rebalance();
        assert_eq!(group.epoch(0), Some(epoch), "still the old one");
        assert!(!group.keeps(one, 0, epoch));
        group.revoke(0, true);
        group.rebalance();
        assert!(group.epoch(0).expect("owned") > epoch);
        group.release(0, epoch);
        assert!(group.epoch(0).is_some(), "a late answer ends nothing new");
    }
}
