//! The settings that topics are created with and checked against.

use crate::{config::KafkaConfig, kafka::client::message_bytes_max};
use schemas::Topic;

/// Names of every setting that is set or checked.
pub(super) const MATTER: [&str; 7] = [
    "cleanup.policy",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.ms",
    "segment.ms",
    "unclean.leader.election.enable",
];

/// Retention works on whole segments: delay tiers must close theirs often to be cleaned up.
const DELAY_SEGMENT_MS: u128 = 6 * 3_600 * 1_000;
/// Retention of a delay tier is at least this many times its wait: a dispatcher may be down for long.
const DELAY_RETENTION_WAITS: u128 = 10;

/// Replicas that must have a record before it is acknowledged.
pub(super) fn insync_min(replicas: u32) -> u32 {
    if replicas >= 3 { 2 } else { 1 }
}

/// Settings for creating `topic`.
pub(super) fn wanted(topic: Topic, config: &KafkaConfig) -> Vec<(&'static str, String)> {
    let retention_ms = match topic {
        Topic::Webhooks => config.retention.as_millis(),
        Topic::Delay(tier) => {
            let wait_ms = tier.wait().as_millis();
            let least_ms = wait_ms * DELAY_RETENTION_WAITS;
            config.retention.as_millis().max(least_ms)
        }
        Topic::DeadLetters => config.dead_letters_retention.as_millis(),
    };
    let mut settings = vec![
        // Compaction could remove a retry that is still waiting: attempts share their key.
        ("cleanup.policy", "delete".to_owned()),
        (
            "max.message.bytes",
            message_bytes_max(config.record_bytes_max).to_string(),
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
    if matches!(topic, Topic::Delay(_)) {
        settings.push(("segment.ms", DELAY_SEGMENT_MS.to_string()));
    }
    settings
}
