//! How much of one partition may be in work, and which record holds its watermark: plain values.
//!
//! Three bounds keep one partition from taking everything: deliveries in work, their bytes, and the records from the first
//! unfinished one on. A partition that has reached one of them is full: nothing more of it is handed out, the others go on.

use crate::config::DispatcherConfig;
use schemas::Topic;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// Beyond the longest attempt, how long a record may be the first unfinished one before somebody is told.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// What is in work, or held: deliveries and the bytes of their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub deliveries: usize,
    pub bytes: usize,
}

/// Records of one topic and partition from the first unfinished one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Offset of the first unfinished record.
    pub first_offset: i64,
    pub records: usize,
    /// How many of them are finished.
    pub finished: usize,
}

/// Bounds of each partition of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub load: Load,
    /// Records of one topic from the first unfinished one on.
    pub window_max: usize,
    /// Longest time for which a record may be the first unfinished one and nobody is told.
    pub head_age_max: Duration,
}

/// How large records are, for how many more fit.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Deliveries that one record makes, at most. Above 0.
    pub fan_out_max: usize,
    /// Bytes of a large one. Above 0.
    pub bytes: usize,
}

/// The first unfinished records of all owned topics and partitions, and since when they are that.
#[derive(Debug, Default)]
pub struct Heads(BTreeMap<(Topic, u32), Head>);

/// A first unfinished record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub offset: i64,
    since: Instant,
    told: bool,
}

/// Something that an operator should know of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It holds up its partition.
    Blocks {
        topic: Topic,
        partition: u32,
        window: Window,
        age: Duration,
    },
    /// It has ended, or its partition has left this process.
    Over {
        topic: Topic,
        partition: u32,
        offset: i64,
        age: Duration,
    },
}

// === impl Bounds ===

impl Bounds {
    /// Bounds of a process that owns `owned` partitions and whose longest attempt takes `timeout_max`. A partition always
    /// gets its equal share of the process's bounds, so that a process with few partitions uses all it may.
    pub fn new(config: &DispatcherConfig, owned: usize, timeout_max: Duration) -> Self {
        let owned = owned.max(1);
        let share = config.in_flight_max.div_ceil(owned);
        let bytes_share = config.in_flight_bytes_max.div_ceil(owned);
        let of_one = config.partition_in_flight_max;
        let bytes_of_one = config.partition_in_flight_bytes_max;
        Self {
            load: Load {
                deliveries: of_one.unwrap_or(config.in_flight_max / 2).max(share),
                bytes: bytes_of_one
                    .unwrap_or(config.in_flight_bytes_max / 2)
                    .max(bytes_share),
            },
            window_max: config.partition_window_max,
            head_age_max: HEAD_PATIENCE.saturating_add(timeout_max),
        }
    }

    /// How many more records of a partition may be handed out, when `load` of it is in work and its longest window has
    /// `window` records. Any record may make the most deliveries. The last one is taken whole, so that one always gets
    /// through.
    pub fn spare(&self, load: Load, window: usize, size: Size) -> usize {
        spare(self.load, load, size).min(self.window_max.saturating_sub(window))
    }

    /// Whether the first unfinished record holds up its partition: it has been that for long, or most of the window is used
    /// up and nearly all of it is finished (the rule of uForwarder's detector of head-of-line blockers).
    pub fn is_blocked(&self, window: Window, age: Duration) -> bool {
        let nearly_full = window.records.saturating_mul(10) > self.window_max.saturating_mul(9);
        let nearly_done = window.finished.saturating_mul(100) > window.records.saturating_mul(98);
        age > self.head_age_max || (nearly_full && nearly_done)
    }
}

/// How many more records fit below `max` with `load` in work.
pub fn spare(max: Load, load: Load, size: Size) -> usize {
    let deliveries = max.deliveries.saturating_sub(load.deliveries);
    let bytes = max.bytes.saturating_sub(load.bytes);
    deliveries
        .div_ceil(size.fan_out_max.max(1))
        .min(bytes.div_ceil(size.bytes.max(1)))
}

// === impl Load ===

impl Load {
    /// What is left of it without `other`.
    pub fn without(self, other: Self) -> Self {
        Self {
            deliveries: self.deliveries.saturating_sub(other.deliveries),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

// === impl Heads ===

impl Heads {
    /// Looks at all windows that have an unfinished record: what has begun or ended to hold up its partition.
    pub fn look(
        &mut self,
        now: Instant,
        windows: &BTreeMap<(Topic, u32), Window>,
        bounds: &Bounds,
    ) -> Vec<News> {
        let mut news = Vec::new();
        self.0.retain(|&(topic, partition), head| {
            let window = windows.get(&(topic, partition));
            let stays = window.is_some_and(|window| window.first_offset == head.offset);
            if !stays && head.told {
                news.push(News::Over {
                    topic,
                    partition,
                    offset: head.offset,
                    age: head.age(now),
                });
            }
            stays
        });
        for (&(topic, partition), &window) in windows {
            let head = self.0.entry((topic, partition)).or_insert(Head {
                offset: window.first_offset,
                since: now,
                told: false,
            });
            let age = head.age(now);
            if !head.told && bounds.is_blocked(window, age) {
                head.told = true;
                news.push(News::Blocks {
                    topic,
                    partition,
                    window,
                    age,
                });
            }
        }
        news
    }

    /// For how long the oldest head of a partition has been that, and whether one holds it up.
    pub fn of(&self, partition: u32, now: Instant) -> (Duration, bool) {
        let heads = self.0.iter().filter(|((_, of), _)| *of == partition);
        heads.fold((Duration::ZERO, false), |(age, blocked), (_, head)| {
            (age.max(head.age(now)), blocked || head.told)
        })
    }
}

impl Head {
    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds {
        load: Load {
            deliveries: 10,
            bytes: 1_000,
        },
        window_max: 100,
        head_age_max: Duration::from_secs(40),
    };

    fn load(deliveries: usize, bytes: usize) -> Load {
        Load { deliveries, bytes }
    }

    #[test]
    fn the_tightest_bound_counts_and_one_always_gets_through() {
        let size = Size {
            fan_out_max: 3,
            bytes: 250,
        };
        assert_eq!(BOUNDS.spare(load(0, 0), 0, size), 4);
        assert_eq!(BOUNDS.spare(load(5, 0), 0, size), 2);
        assert_eq!(BOUNDS.spare(load(9, 0), 0, size), 1);
        assert_eq!(BOUNDS.spare(load(10, 0), 0, size), 0);
        assert_eq!(BOUNDS.spare(load(0, 999), 0, size), 1);
        assert_eq!(BOUNDS.spare(load(0, 1_000), 0, size), 0);
        assert_eq!(BOUNDS.spare(load(0, 0), 99, size), 1);
        assert_eq!(BOUNDS.spare(load(0, 0), 100, size), 0);
        let huge = Size {
            fan_out_max: usize::MAX,
            bytes: usize::MAX,
        };
        assert_eq!(BOUNDS.spare(load(0, 0), 0, huge), 1);
    }

    #[test]
    fn a_partition_has_its_equal_share_at_least() {
        let config = DispatcherConfig::default();
        let of = |owned| Bounds::new(&config, owned, Duration::ZERO).load;
        assert_eq!(
            of(0),
            load(config.in_flight_max, config.in_flight_bytes_max)
        );
        assert_eq!(of(1), of(0));
        assert_eq!(of(2), load(512, 16 << 20));
        for owned in [4, 12, 1_000] {
            assert_eq!(of(owned), load(512, 16 << 20), "{owned}");
        }
        let config = DispatcherConfig {
            partition_in_flight_max: Some(700),
            partition_in_flight_bytes_max: Some(1),
            ..config
        };
        let of_many = Bounds::new(&config, 8, Duration::ZERO).load;
        assert_eq!(of_many, load(700, 4 << 20));
    }

    proptest! {
        /// However the bounds are: what one partition may have never keeps an empty one from its first record.
        #[test]
        fn an_empty_partition_has_room(
            owned in 0_usize..100, in_flight in 1_usize..2_000, own in 1_usize..2_000, fan_out_max in 1_usize..20,
        ) {
            let config = DispatcherConfig { in_flight_max: in_flight, partition_in_flight_max: Some(own), ..Default::default() };
            let bounds = Bounds::new(&config, owned, Duration::ZERO);
            let size = Size { fan_out_max, bytes: 1 << 30 };
            let spare = bounds.spare(Load::default(), 0, size);
            prop_assert!(spare >= 1);
        }
    }

    #[test]
    fn a_window_that_is_nearly_full_and_done_is_blocked() {
        let blocked = |records, finished, seconds| {
            let window = Window {
                first_offset: 0,
                records,
                finished,
            };
            BOUNDS.is_blocked(window, Duration::from_secs(seconds))
        };
        assert!(!blocked(90, 89, 0), "a tenth is free");
        assert!(blocked(91, 90, 0));
        assert!(!blocked(100, 98, 0), "two may still be at work");
        assert!(!blocked(1, 0, 40));
        assert!(blocked(1, 0, 41), "old, however little is behind it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_is_told_once_when_it_blocks_and_once_when_it_is_over() {
        let key = (Topic::Webhooks, 3);
        let window = |first_offset| Window {
            first_offset,
            records: 5,
            finished: 4,
        };
        let mut heads = Heads::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut look = |seconds, first_offset| {
            heads.look(
                at(seconds),
                &BTreeMap::from([(key, window(first_offset))]),
                &BOUNDS,
            )
        };
        assert_eq!(look(0, 7), []);
        // Another head: its age starts anew.
        assert_eq!(look(30, 8), []);
        assert_eq!(look(60, 8), []);
        let news = look(71, 8);
        assert!(
            matches!(news[..], [News::Blocks { partition: 3, window, age, .. }]
                if window.first_offset == 8 && age == Duration::from_secs(41)),
            "{news:?}"
        );
        assert_eq!(look(80, 8), []);
        assert_eq!(heads.of(3, at(90)), (Duration::from_secs(60), true));
        assert_eq!(heads.of(4, at(90)), (Duration::ZERO, false));
        let news = heads.look(at(91), &BTreeMap::new(), &BOUNDS);
        assert!(
            matches!(
                news[..],
                [News::Over {
                    partition: 3,
                    offset: 8,
                    ..
                }]
            ),
            "{news:?}"
        );
        assert_eq!(heads.look(at(92), &BTreeMap::new(), &BOUNDS), []);
        assert_eq!(heads.of(3, at(92)), (Duration::ZERO, false));
    }
}
