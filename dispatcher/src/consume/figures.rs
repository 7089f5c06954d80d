//! What is told of a running loop, about once a second: lags, loads, who holds up a partition, how the clock goes.

use super::Open;
use crate::{
    metrics::PartitionFigures,
    partitions::Partitions,
    process::Path,
    skew::{self, Jumps, Skew},
    window::{Bounds, Heads, News},
};
use event_log::{Position, Received};
use schemas::Topic;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;

/// What was told, and what was seen since.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Lag by topic and partition, as told last.
    lags: BTreeMap<(Topic, u32), i64>,
    /// Partitions of which something was told last.
    told: BTreeSet<u32>,
    heads: Heads,
    /// Least of our clock without the append time, by partition, of the webhooks since the last look, of partitions that had no
    /// backlog then.
    leads_ms: BTreeMap<u32, i64>,
    skew: Skew,
    jumps: Jumps,
}

// === impl Figures ===

impl Figures {
    /// A record came in.
    pub(super) fn received(&mut self, record: &Received, now_ms: i64) {
        // What came in with a backlog was not just appended, its last record neither.
        if record.topic == Topic::Webhooks && self.has_no_backlog(record.partition) {
            let lead_ms = now_ms.saturating_sub(record.appended_at_ms);
            let least = self.leads_ms.entry(record.partition).or_insert(lead_ms);
            *least = lead_ms.min(*least);
        }
    }

    /// Looks whether the clock was set.
    pub(super) fn tick<L, S, H>(&mut self, path: &Path<L, S, H>, now: Instant) {
        let margin_ms = millis(path.config.skew_margin);
        if let Some(jump_ms) = self.jumps.look(now, path.clock.now_ms(), margin_ms) {
            path.metrics.clock_jumped();
            self.skew.forget();
            self.leads_ms.clear();
            tracing::warn!(jump_ms, "the clock was set");
        }
    }

    /// Lags, and what they say of the clock: a record was just appended when there was none behind it, nor before it.
    pub(super) fn lags<L, S, H>(&mut self, path: &Path<L, S, H>, positions: &[Position]) {
        let mut lags = BTreeMap::new();
        for position in positions {
            if let Some(end_offset) = position.end_offset {
                let lag = end_offset.saturating_sub(position.next_offset).max(0);
                lags.insert((position.topic, position.partition), lag);
            }
        }
        // A gauge keeps its last value: what is somebody else's now must not look like our backlog.
        for &(topic, partition) in self.lags.keys().filter(|key| !lags.contains_key(key)) {
            path.metrics.lag(topic, partition, 0);
        }
        for (&(topic, partition), &lag) in &lags {
            path.metrics.lag(topic, partition, lag);
        }
        self.lags = lags;
    }

    /// How far our clock is from the log's.
    pub(super) fn clock<L, S, H>(&mut self, path: &Path<L, S, H>, now: Instant) {
        for (partition, lead_ms) in std::mem::take(&mut self.leads_ms) {
            if self.has_no_backlog(partition) {
                self.skew.observe(now, lead_ms);
            }
        }
        let Some(lead_ms) = self.skew.lead_ms(now) else {
            return;
        };
        path.metrics.clock_skew(seconds(lead_ms));
        match self.skew.news(lead_ms, millis(path.config.skew_margin)) {
            Some(skew::News::Off) => tracing::warn!(
                lead_ms,
                "our clock and the log's differ by more than dispatcher.skew_margin"
            ),
            Some(skew::News::Right) => tracing::info!(lead_ms, "our clock agrees with the log's"),
            None => {}
        }
    }

    /// Loads and windows of the owned partitions; what there is to tell of those who hold one up.
    pub(super) fn partitions<L, S, H>(
        &mut self,
        path: &Path<L, S, H>,
        partitions: &Partitions,
        bounds: &Bounds,
        now: Instant,
    ) -> Vec<News> {
        let news = self.heads.look(now, &partitions.windows(), bounds);
        let mut told = BTreeSet::new();
        for (partition, load, window) in partitions.loads() {
            let (age, blocked) = self.heads.of(partition, now);
            let figures = PartitionFigures {
                load,
                window,
                head_age_seconds: age.as_secs_f64(),
                blocked,
            };
            path.metrics.partition(partition, figures);
            told.insert(partition);
        }
        for partition in self.told.difference(&told) {
            path.metrics
                .partition(*partition, PartitionFigures::default());
        }
        self.told = told;
        news
    }

    /// As seen at the last look; false when it was not seen.
    fn has_no_backlog(&self, partition: u32) -> bool {
        self.lags.get(&(Topic::Webhooks, partition)) == Some(&0)
    }
}

/// One line when a record begins to hold up its partition, and one when it is over.
pub(super) fn tell<'a>(news: News, open: impl Iterator<Item = &'a Open>) {
    match news {
        News::Blocks {
            topic,
            partition,
            window,
            age,
        } => {
            let offset = window.first_offset;
            let ours = |open: &&Open| {
                let ticket = open.ticket;
                (ticket.topic, ticket.partition, ticket.offset) == (topic, partition, offset)
            };
            // None: it has ended without being finished, and is tried again when somebody owns the partition anew.
            let open = open.into_iter().find(ours);
            tracing::warn!(
                topic = topic.suffix(),
                partition,
                offset,
                delivery_id = open.map_or("", |open| &open.delivery_id),
                destination = open.map_or("", |open| &open.destination),
                waits_for =
                    open.map_or("a new owner of its partition", |open| open.waiting.as_str()),
                age_seconds = age.as_secs(),
                records = window.records,
                finished = window.finished,
                "a record holds up its partition"
            );
        }
        News::Over {
            topic,
            partition,
            offset,
            age,
        } => tracing::info!(
            topic = topic.suffix(),
            partition,
            offset,
            age_seconds = age.as_secs(),
            "a record holds up its partition no more"
        ),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a metric; 2^53 ms are far away")]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DispatcherConfig, process::Parts};
    use event_log::Epoch;
    use runtime::{Clock, Dice};
    use schemas::{Codec, TopicNames};

    fn path() -> Path<(), (), ()> {
        Path::new(Parts {
            log: (),
            store: (),
            send: (),
            codec: Codec::default(),
            clock: Clock::manual(0),
            dice: Dice::system(),
            names: TopicNames::new("fencepost"),
            config: DispatcherConfig::default(),
            destinations: BTreeMap::new(),
            routes: Vec::new(),
            sources: BTreeMap::new(),
            store_deadline: Duration::from_secs(2),
        })
    }

    fn record(offset: i64, appended_at_ms: i64) -> Received {
        Received {
            topic: Topic::Webhooks,
            partition: 0,
            offset,
            epoch: Epoch(1),
            appended_at_ms,
            key: "d1".into(),
            value: "{}".into(),
            headers: Vec::new(),
        }
    }

    fn at(next_offset: i64, end_offset: i64) -> [Position; 1] {
        [Position {
            topic: Topic::Webhooks,
            partition: 0,
            next_offset,
            end_offset: Some(end_offset),
        }]
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_record_of_a_backlog_says_nothing_of_the_clock() {
        let (path, now) = (path(), Instant::now());
        let mut figures = Figures::default();
        // After a start, before anything is known; and after a look that saw it.
        for (offset, seen) in [(0, None), (1, Some(at(1, 2)))] {
            if let Some(seen) = seen {
                figures.lags(&path, &seen);
            }
            figures.received(&record(offset, 0), 600_000);
            figures.lags(&path, &at(offset + 1, offset + 1));
            figures.clock(&path, now);
            assert_eq!(figures.skew.lead_ms(now), None);
        }
        figures.received(&record(2, 700_000), 700_004);
        figures.lags(&path, &at(3, 3));
        figures.clock(&path, now);
        assert_eq!(figures.skew.lead_ms(now), Some(4));
    }
}
