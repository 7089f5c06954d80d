//! Watermarks that were noted, and how far reading has come.

use super::{Inbox, Mark, Reading, Skip, Told};
use crate::{Position, Watermark};
use schemas::{DelayTier, Topic};
use std::collections::BTreeMap;

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
                    unseen: 0,
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

    /// What the statistics say. They are the only word about a commit that nobody waited for: rdkafka 0.39 hands on no answer,
    /// and librdkafka gives such a commit up when it meets a rebalance. `next_offset` counts until a record was read. Returns, once, that the log begins behind what
    /// the group has finished: records were deleted unread, or before they ended.
    pub(in crate::kafka) fn hear(
        &mut self,
        topic: Topic,
        partition: u32,
        told: Told,
    ) -> Option<Skip> {
        if !self.owned.contains_key(&partition) {
            return None;
        }
        let mark = self.marks.get_mut(&(topic, partition));
        let noted = mark.map(|mark| {
            mark.see(told.committed_offset);
            mark.noted
        });
        let heard = self.heard.entry((topic, partition)).or_default();
        heard.next_offset = heard.next_offset.or(told.next_offset);
        heard.end_offset = told.end_offset.or(heard.end_offset);
        heard.drained_to = told.drained_to;
        let committed_offset = told.committed_offset?;
        let begin_offset = told.begin_offset?;
        let skipped = begin_offset > committed_offset.max(noted.unwrap_or(committed_offset));
        if !skipped || heard.skip_told == Some(committed_offset) {
            return None;
        }
        heard.skip_told = Some(committed_offset);
        Some(Skip {
            committed_offset,
            begin_offset,
        })
    }

    /// How reading goes of all that is owned; `main_full`: reading of the webhooks was paused of late.
    pub(in crate::kafka) fn readings(
        &self,
        main_full: bool,
        now_ms: i64,
    ) -> BTreeMap<(Topic, u32), Reading> {
        let mut readings = BTreeMap::new();
        for (&partition, &epoch) in &self.owned {
            let mut add = |topic, full| {
                let heard = self.heard.get(&(topic, partition));
                let reading = Reading {
                    epoch,
                    next_offset: heard.and_then(|heard| heard.next_offset),
                    drained_to: heard.and_then(|heard| heard.drained_to),
                    full,
                };
                readings.insert((topic, partition), reading);
            };
            add(
                Topic::Webhooks,
                main_full || self.pause_main(partition, true),
            );
            for tier in DelayTier::ALL {
                let full = self.pause_delay(tier, partition, true, now_ms);
                add(Topic::Delay(tier), full);
            }
        }
        readings
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
                mark.unseen = 0;
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
