//! Watermarks that were noted, and how far reading has come.

use super::{Inbox, Mark};
use crate::{Position, Watermark};
use schemas::Topic;

// === impl Inbox: watermarks and positions ===

impl Inbox {
    /// Takes a note; watermarks of an epoch that has ended are ignored. The last one counts.
    pub(in crate::kafka) fn note(&mut self, watermarks: &[Watermark]) {
        for watermark in watermarks {
            let partition = &watermark.partition;
            let current = self
                .owned
                .get(partition)
                .or_else(|| self.leaving.get(partition));
            if current != Some(&watermark.epoch) {
                continue;
            }
            let noted = watermark.next_offset;
            self.marks
                .entry((watermark.topic, watermark.partition))
                .and_modify(|mark| mark.noted = noted)
                .or_insert(Mark {
                    epoch: watermark.epoch,
                    noted,
                    sent: None,
                });
        }
    }

    /// What was noted and not given to the broker yet; counts as given from now on.
    pub(in crate::kafka) fn take_commits(&mut self) -> Vec<Watermark> {
        self.commits(|_, _, mark| mark.is_news())
    }

    /// Every watermark of the delay tiers, given before or not: offsets of a group without members expire unless they
    /// are committed again.
    pub(in crate::kafka) fn refresh_delay_commits(&mut self) -> Vec<Watermark> {
        self.commits(|topic, _, _| matches!(topic, Topic::Delay(_)))
    }

    /// Every watermark: what was sent without waiting may have failed.
    pub(in crate::kafka) fn last_commits(&mut self) -> Vec<Watermark> {
        self.commits(|_, _, _| true)
    }

    /// The broker did not take these: they are given again.
    pub(in crate::kafka) fn commit_failed(&mut self, topics: &[(Topic, u32)]) {
        for key in topics {
            if let Some(mark) = self.marks.get_mut(key) {
                mark.sent = None;
            }
        }
    }

    /// What the statistics say: `next_offset` counts until a record was read.
    pub(in crate::kafka) fn hear(
        &mut self,
        topic: Topic,
        partition: u32,
        next_offset: Option<i64>,
        end_offset: Option<i64>,
    ) {
        if !self.owned.contains_key(&partition) {
            return;
        }
        let heard = self.heard.entry((topic, partition)).or_default();
        heard.next_offset = heard.next_offset.or(next_offset);
        heard.end_offset = end_offset.or(heard.end_offset);
    }

    /// How far handing out has come, of what is known.
    pub(in crate::kafka) fn positions(&self) -> Vec<Position> {
        let mut positions = Vec::with_capacity(self.heard.len());
        for (&(topic, partition), heard) in &self.heard {
            let held = match topic {
                Topic::Delay(tier) => self.delayed.get(&(tier, partition)),
                Topic::Webhooks | Topic::DeadLetters => self.main.get(&partition),
            };
            let head = held.and_then(|held| held.records.front());
            let head = head.map(|record| record.offset);
            let Some(next_offset) = head.or(heard.next_offset) else {
                continue;
            };
            // What was read is there, whatever the last statistics said.
            let end_offset = heard.end_offset.max(heard.next_offset);
            positions.push(Position {
                topic,
                partition,
                next_offset,
                end_offset,
            });
        }
        positions
    }

    pub(super) fn commits(&mut self, wanted: impl Fn(Topic, u32, &Mark) -> bool) -> Vec<Watermark> {
        let mut commits = Vec::new();
        for (&(topic, partition), mark) in &mut self.marks {
            if wanted(topic, partition, mark) {
                mark.sent = Some(mark.noted);
                commits.push(Watermark {
                    topic,
                    partition,
                    epoch: mark.epoch,
                    next_offset: mark.noted,
                });
            }
        }
        commits
    }
}
