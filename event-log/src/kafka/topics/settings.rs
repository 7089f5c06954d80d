//! The settings that topics are created with and checked against.

use crate::{config::KafkaConfig, kafka::client::message_bytes_max};
use schemas::{DelayTier, Topic};

/// Names of every setting that is set or checked.
pub(super) const MATTER: [&str; 8] = [
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.ms",
    "unclean.leader.election.enable",
];

/// Retention works on whole segments: they must be closed often for records to go about when the claims' retention counts
/// on it.
const SEGMENT_MS: u128 = 6 * 3_600 * 1_000;
/// Retention of a delay tier is at least this many times its wait, and at least [`DELAY_RETENTION_MS_MIN`]: a dispatcher
/// may be down for long.
const DELAY_RETENTION_WAITS: u128 = 10;
const DELAY_RETENTION_MS_MIN: u128 = 24 * 3_600 * 1_000;

/// Replicas that must have a record before it is acknowledged.
pub(super) fn insync_min(replicas: u32) -> u32 {
    if replicas >= 3 { 2 } else { 1 }
}

/// Shortest retention under which no record of a tier is deleted before it could be handed out, milliseconds.
pub(super) fn delay_retention_ms_min(tier: DelayTier) -> u128 {
    (tier.wait().as_millis() * DELAY_RETENTION_WAITS).max(DELAY_RETENTION_MS_MIN)
}

/// Settings for creating `topic`.
pub(super) fn wanted(topic: Topic, config: &KafkaConfig) -> Vec<(&'static str, String)> {
    let retention_ms = match topic {
        Topic::Webhooks => config.retention.as_millis(),
        Topic::Delay(tier) => {
            let least_ms = delay_retention_ms_min(tier);
            config.retention.as_millis().max(least_ms)
        }
        Topic::DeadLetters => config.dead_letters_retention.as_millis(),
    };
    let mut settings = vec![
        // Compaction could remove a retry that is still waiting: attempts share their key.
        ("cleanup.policy", "delete".to_owned()),
        (
            "max.message.bytes",
            message_bytes_max(topic, config.record_bytes_max).to_string(),
        ),
        // The broker's clock rules: a tier is released by append time, whatever a producer's clock says.
        ("message.timestamp.type", "LogAppendTime".to_owned()),
        (
            "min.insync.replicas",
            insync_min(u32::from(config.replication_factor)).to_string(),
        ),
        ("retention.ms", retention_ms.to_string()),
        ("unclean.leader.election.enable", "false".to_owned()),
    ];
    if topic != Topic::DeadLetters {
        // Whatever the brokers' default: time alone decides what goes, or a burst would push out what nobody has read.
        settings.push(("retention.bytes", "-1".to_owned()));
        settings.push(("segment.ms", SEGMENT_MS.to_string()));
    }
    settings
}
