//! Topics, delay tiers and the rule that maps a key to a partition.

use std::time::Duration;

/// A topic of the pipeline, without its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Received webhooks.
    Webhooks,
    /// Deliveries that wait.
    Delay(DelayTier),
    /// Deliveries that ended without success.
    DeadLetters,
}

/// A topic whose records become due a fixed time after they were appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DelayTier {
    /// 5 seconds.
    S5,
    /// 30 seconds.
    S30,
    /// 2 minutes.
    M2,
    /// 10 minutes.
    M10,
    /// 1 hour.
    H1,
    /// 6 hours.
    H6,
}

/// Full topic names under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicNames {
    prefix: String,
}

/// The partition of a key: `murmur2(key) & 0x7fffffff % partitions`, as the Java client and librdkafka's
/// `murmur2_random` do it, so that foreign tools agree with us. 0 when `partitions` is 0.
pub fn partition_for(key: &[u8], partitions: u32) -> u32 {
    if partitions == 0 {
        0
    } else {
        (murmur2(key) & 0x7fff_ffff) % partitions
    }
}

// === impl Topic ===

impl Topic {
    /// Every topic, in the order in which a delivery meets them.
    pub const ALL: [Self; 8] = [
        Self::Webhooks,
        Self::Delay(DelayTier::S5),
        Self::Delay(DelayTier::S30),
        Self::Delay(DelayTier::M2),
        Self::Delay(DelayTier::M10),
        Self::Delay(DelayTier::H1),
        Self::Delay(DelayTier::H6),
        Self::DeadLetters,
    ];

    /// Name without the prefix, e.g. `delay.5s`.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Webhooks => "webhooks",
            Self::Delay(DelayTier::S5) => "delay.5s",
            Self::Delay(DelayTier::S30) => "delay.30s",
            Self::Delay(DelayTier::M2) => "delay.2m",
            Self::Delay(DelayTier::M10) => "delay.10m",
            Self::Delay(DelayTier::H1) => "delay.1h",
            Self::Delay(DelayTier::H6) => "delay.6h",
            Self::DeadLetters => "dead-letters",
        }
    }

    /// The wait of a delay tier; none for the other topics.
    pub fn delay(self) -> Option<Duration> {
        match self {
            Self::Delay(tier) => Some(tier.wait()),
            Self::Webhooks | Self::DeadLetters => None,
        }
    }
}

// === impl DelayTier ===

impl DelayTier {
    /// Every tier, shortest first.
    pub const ALL: [Self; 6] = [Self::S5, Self::S30, Self::M2, Self::M10, Self::H1, Self::H6];
    /// The shortest tier; a remainder below its wait is held in memory.
    pub const SMALLEST: Self = Self::S5;

    /// How long a record waits in this tier, counted from its append time.
    pub fn wait(self) -> Duration {
        Duration::from_secs(match self {
            Self::S5 => 5,
            Self::S30 => 30,
            Self::M2 => 120,
            Self::M10 => 600,
            Self::H1 => 3_600,
            Self::H6 => 21_600,
        })
    }

    /// [`Self::wait`] in milliseconds.
    pub fn wait_ms(self) -> i64 {
        i64::try_from(self.wait().as_millis()).unwrap_or(i64::MAX)
    }

    /// The largest tier that does not overshoot `remaining_ms`; none when even the smallest would.
    pub fn for_remaining(remaining_ms: i64) -> Option<Self> {
        Self::ALL
            .into_iter()
            .rev()
            .find(|tier| tier.wait_ms() <= remaining_ms)
    }
}

// === impl TopicNames ===

impl TopicNames {
    /// Names under `prefix`, e.g. `fencepost` gives `fencepost.webhooks`.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
        }
    }

    /// Full name of a topic.
    pub fn name(&self, topic: Topic) -> String {
        format!("{}.{}", self.prefix, topic.suffix())
    }

    /// Reverse of [`Self::name`].
    pub fn parse(&self, name: &str) -> Option<Topic> {
        let suffix = name.strip_prefix(self.prefix.as_str())?.strip_prefix('.')?;
        Topic::ALL
            .into_iter()
            .find(|topic| topic.suffix() == suffix)
    }
}

/// MurmurHash2, 32 bits, with the seed of Kafka's Java client.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut chunks = data.chunks_exact(4);
    for chunk in &mut chunks {
        let mut k = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = chunks.remainder();
    for (at, byte) in rest.iter().enumerate().rev() {
        h ^= u32::from(*byte) << (8 * at);
    }
    if !rest.is_empty() {
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Kafka's own UtilsTest (`testMurmur2`), which librdkafka checks too.
    #[test]
    fn murmur2_agrees_with_kafka() {
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
    }

    #[test]
    fn names_go_both_ways() {
        let names = TopicNames::new("a.b");
        for topic in Topic::ALL {
            assert_eq!(names.parse(&names.name(topic)), Some(topic));
        }
        assert_eq!(names.parse("a.webhooks"), None);
        assert_eq!(names.parse("a.bwebhooks"), None);
    }

    #[test]
    fn a_tier_never_overshoots() {
        assert_eq!(DelayTier::for_remaining(4_999), None);
        assert_eq!(DelayTier::for_remaining(5_000), Some(DelayTier::S5));
        assert_eq!(DelayTier::for_remaining(47_000), Some(DelayTier::S30));
        assert_eq!(DelayTier::for_remaining(i64::MAX), Some(DelayTier::H6));
        assert_eq!(DelayTier::for_remaining(-1), None);
    }
}
