//! Decides what is wrong with topics as they were found: what breaks a promise, and what merely differs.

use crate::{
    config::KafkaConfig,
    kafka::{
        client::message_bytes_max,
        topics::settings::{delay_retention_ms_min, insync_min, wanted},
    },
};
use schemas::{Topic, TopicNames};
use std::collections::BTreeMap;

/// A topic as the cluster describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) topic: Topic,
    /// 0: the topic is missing.
    pub(super) partitions: u32,
    pub(super) replicas: u32,
    /// Every partition has a leader.
    pub(super) led: bool,
    /// Empty when it may not be described.
    pub(super) settings: BTreeMap<String, String>,
}

/// Something that is not as wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deviation {
    /// Full name of the topic.
    pub name: String,
    /// What is, and what would be right.
    pub message: String,
}

// === impl Found ===

impl Found {
    pub(super) fn exists(&self) -> bool {
        self.partitions > 0
    }
}

/// The number of partitions, or every reason to refuse these topics, in one text.
pub(super) fn verify(
    config: &KafkaConfig,
    names: &TopicNames,
    found: &[Found],
) -> Result<u32, String> {
    let missing: Vec<_> = found
        .iter()
        .filter(|found| !found.exists())
        .map(|found| names.name(found.topic))
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "topics are missing: {}; create them with `fencepost topics ensure`",
            missing.join(", ")
        ));
    }
    let partitions = webhooks_partitions(found);
    let mut reasons = Vec::new();
    for found in found {
        let name = names.name(found.topic);
        if found.partitions != partitions {
            reasons.push(format!(
                "{name} has {} partitions where webhooks has {partitions}: all topics need the same number \
                 (`fencepost topics ensure` with more partitions configured and growing allowed levels them)",
                found.partitions
            ));
        }
        let broken = broken_settings(config, found);
        reasons.extend(broken.into_iter().map(|reason| format!("{name}: {reason}")));
    }
    if reasons.is_empty() {
        Ok(partitions)
    } else {
        Err(format!(
            "topics are not usable: {}; `fencepost topics ensure` lists what differs",
            reasons.join("; ")
        ))
    }
}

/// Everything about existing topics that differs from what they would be created with.
pub(super) fn deviations(
    config: &KafkaConfig,
    names: &TopicNames,
    found: &[Found],
) -> Vec<Deviation> {
    let mut deviations = Vec::new();
    for found in found.iter().filter(|found| found.exists()) {
        let name = names.name(found.topic);
        let mut deviation = |message: String| {
            deviations.push(Deviation {
                name: name.clone(),
                message,
            });
        };
        if found.partitions != config.partitions {
            deviation(format!(
                "has {} partitions, {} are configured",
                found.partitions, config.partitions
            ));
        }
        if found.replicas != u32::from(config.replication_factor) {
            deviation(format!(
                "has {} replicas, {} are configured",
                found.replicas, config.replication_factor
            ));
        }
        if found.settings.is_empty() {
            deviation("its settings can not be read".to_owned());
            continue;
        }
        for (key, wanted) in wanted(found.topic, config) {
            match found.settings.get(key) {
                Some(value) if *value == wanted => {}
                Some(value) => deviation(format!("{key} is {value}, wanted is {wanted}")),
                None => deviation(format!("{key} is not known, wanted is {wanted}")),
            }
        }
    }
    deviations
}

/// Settings under which records could be lost, released early or refused.
fn broken_settings(config: &KafkaConfig, found: &Found) -> Vec<String> {
    let mut broken = Vec::new();
    let setting = |key: &str| found.settings.get(key).map(String::as_str);
    let number = |key: &str| setting(key).and_then(|value| value.parse::<u64>().ok());
    if let Some(kind) = setting("message.timestamp.type")
        && kind != "LogAppendTime"
        && found.topic != Topic::DeadLetters
    {
        broken.push(format!(
            "message.timestamp.type is {kind}, must be LogAppendTime"
        ));
    }
    if let Some(policy) = setting("cleanup.policy")
        && policy != "delete"
    {
        broken.push(format!("cleanup.policy is {policy}, must be delete"));
    }
    let needed = message_bytes_max(found.topic, config.record_bytes_max);
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    if let Some(bytes) = number("max.message.bytes")
        && bytes < needed
    {
        broken.push(format!(
            "max.message.bytes is {bytes}, with this record_bytes_max at least {needed} are needed"
        ));
    }
    if setting("unclean.leader.election.enable") == Some("true") {
        broken.push(
            "unclean.leader.election.enable is true, must be false: acknowledged records could be lost"
                .to_owned(),
        );
    }
    broken.extend(broken_retention(config, found));
    if let Some(insync) = number("min.insync.replicas") {
        let least = u64::from(insync_min(found.replicas));
        if insync < least || insync > u64::from(found.replicas) {
            broken.push(format!(
                "min.insync.replicas is {insync} with {} replicas, wanted is {least}",
                found.replicas
            ));
        }
    }
    broken
}

/// Retention under which records go too early, or stay for too long.
fn broken_retention(config: &KafkaConfig, found: &Found) -> Vec<String> {
    let mut broken = Vec::new();
    let number = |key: &str| found.settings.get(key)?.parse::<i64>().ok();
    // Negative: kept for ever.
    let retention_ms = number("retention.ms").map(|ms| u128::try_from(ms).unwrap_or(u128::MAX));
    let shown = found
        .settings
        .get("retention.ms")
        .map_or("", String::as_str);
    match (found.topic, retention_ms) {
        (Topic::Webhooks, Some(ms)) if ms > config.retention.as_millis() => {
            let most_ms = config.retention.as_millis();
            broken.push(format!(
                "retention.ms is {shown}, at most {most_ms} (`log.retention`) is needed: the claims are kept with \
                 that in mind, an older webhook that is read again would be delivered twice"
            ));
        }
        (Topic::Delay(tier), Some(ms)) if ms < delay_retention_ms_min(tier) => {
            let least_ms = delay_retention_ms_min(tier);
            broken.push(format!(
                "retention.ms is {shown}, at least {least_ms} is needed: deliveries that wait could be deleted"
            ));
        }
        _ => {}
    }
    if found.topic != Topic::DeadLetters
        && let Some(bytes) = number("retention.bytes")
        && bytes >= 0
    {
        broken.push(format!(
            "retention.bytes is {bytes}, must be -1: records could be deleted before anybody has read them"
        ));
    }
    broken
}

fn webhooks_partitions(found: &[Found]) -> u32 {
    let webhooks = found.iter().find(|found| found.topic == Topic::Webhooks);
    webhooks.map_or(0, |webhooks| webhooks.partitions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DERIVED_BYTES_RESERVE, kafka::client::FRAME_BYTES_MAX};

    fn config() -> KafkaConfig {
        KafkaConfig {
            partitions: 4,
            ..KafkaConfig::default()
        }
    }

    fn as_created(config: &KafkaConfig) -> Vec<Found> {
        let found = Topic::ALL.into_iter().map(|topic| Found {
            topic,
            partitions: config.partitions,
            replicas: u32::from(config.replication_factor),
            led: true,
            settings: wanted(topic, config)
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
        });
        found.collect()
    }

    fn refusal(change: impl Fn(&mut Vec<Found>)) -> String {
        let config = config();
        let mut found = as_created(&config);
        change(&mut found);
        verify(&config, &TopicNames::new("p"), &found).expect_err("refused")
    }

    #[test]
    fn what_ensure_creates_passes() {
        let config = config();
        let names = TopicNames::new("p");
        let found = as_created(&config);
        assert_eq!(verify(&config, &names, &found), Ok(4));
        assert_eq!(deviations(&config, &names, &found), []);
    }

    #[test]
    fn two_of_three_replicas_must_have_a_record() {
        assert_eq!([1, 2, 3, 5].map(insync_min), [1, 1, 2, 2]);
        let text = refusal(|found| {
            let settings = &mut found[0].settings;
            settings.insert("min.insync.replicas".into(), "1".into());
        });
        assert!(
            text.contains("p.webhooks: min.insync.replicas is 1"),
            "{text}"
        );
    }

    #[test]
    fn missing_topics_are_named_with_the_command() {
        let text = refusal(|found| found[3].partitions = 0);
        assert!(text.contains("p.delay.2m;"), "{text}");
        assert!(text.contains("fencepost topics ensure"), "{text}");
    }

    #[test]
    fn every_reason_is_told() {
        let text = refusal(|found| {
            found[1].partitions = 3;
            let settings = &mut found[2].settings;
            settings.insert("message.timestamp.type".into(), "CreateTime".into());
            settings.insert("cleanup.policy".into(), "compact".into());
            settings.insert("max.message.bytes".into(), "1000".into());
        });
        for reason in [
            "p.delay.5s has 3 partitions where webhooks has 4",
            "p.delay.30s: message.timestamp.type is CreateTime",
            "p.delay.30s: cleanup.policy is compact",
            "p.delay.30s: max.message.bytes is 1000",
            "fencepost topics ensure",
        ] {
            assert!(text.contains(reason), "{reason}: {text}");
        }
    }

    #[test]
    fn retention_neither_deletes_what_waits_nor_outlives_the_claims() {
        const LEAST_H6: &str = "216000000";
        let with = |at: usize, key: &str, value: &str| {
            let config = config();
            let mut found = as_created(&config);
            found[at].settings.insert(key.into(), value.into());
            verify(&config, &TopicNames::new("p"), &found)
        };
        for (at, key, value, reason) in [
            (
                0,
                "retention.ms",
                "604800001",
                "p.webhooks: retention.ms is 604800001, at most 604800000",
            ),
            (
                0,
                "retention.ms",
                "-1",
                "p.webhooks: retention.ms is -1, at most 604800000",
            ),
            (
                1,
                "retention.ms",
                "86399999",
                "p.delay.5s: retention.ms is 86399999, at least 86400000",
            ),
            (
                6,
                "retention.ms",
                "215999999",
                "p.delay.6h: retention.ms is 215999999, at least 216000000",
            ),
            (
                0,
                "retention.bytes",
                "1000",
                "p.webhooks: retention.bytes is 1000, must be -1",
            ),
            (
                3,
                "retention.bytes",
                "1000",
                "p.delay.2m: retention.bytes is 1000, must be -1",
            ),
            (
                7,
                "unclean.leader.election.enable",
                "true",
                "p.dead-letters: unclean.leader.election.enable is true",
            ),
        ] {
            let text = with(at, key, value).expect_err("refused");
            assert!(text.contains(reason), "{reason}: {text}");
            assert!(text.contains("fencepost topics ensure"), "{text}");
        }
        for (at, key, value) in [
            (0, "retention.ms", "1"),
            (1, "retention.ms", "-1"),
            (6, "retention.ms", LEAST_H6),
            (7, "retention.ms", "-1"),
            (7, "retention.bytes", "1000"),
        ] {
            assert_eq!(with(at, key, value), Ok(4), "{key} = {value}");
        }
    }

    #[test]
    fn a_short_retention_shortens_no_tier() {
        let mut config = config();
        config.retention = std::time::Duration::from_secs(1);
        let found = as_created(&config);
        assert_eq!(verify(&config, &TopicNames::new("p"), &found), Ok(4));
    }

    #[test]
    fn only_webhooks_do_without_the_reserve() {
        let webhook = config().record_bytes_max + FRAME_BYTES_MAX;
        let bytes = webhook.to_string();
        let with = |at: usize| {
            let config = config();
            let mut found = as_created(&config);
            found[at]
                .settings
                .insert("max.message.bytes".into(), bytes.clone());
            verify(&config, &TopicNames::new("p"), &found)
        };
        assert_eq!(with(0), Ok(4));
        for at in [1, 7] {
            let needed = (webhook + DERIVED_BYTES_RESERVE).to_string();
            let text = with(at).expect_err("refused");
            assert!(text.contains(&needed), "{text}");
        }
    }

    #[test]
    fn topics_that_may_not_be_described_are_used() {
        let config = config();
        let mut found = as_created(&config);
        for found in &mut found {
            found.settings.clear();
        }
        assert_eq!(verify(&config, &TopicNames::new("p"), &found), Ok(4));
    }

    #[test]
    fn differences_are_said_in_words() {
        let config = config();
        let mut found = as_created(&config);
        found[0].partitions = 8;
        found[7].settings.insert("retention.ms".into(), "5".into());
        let deviations = deviations(&config, &TopicNames::new("p"), &found);
        let words: Vec<_> = deviations
            .iter()
            .map(|deviation| format!("{} {}", deviation.name, deviation.message))
            .collect();
        assert_eq!(
            words,
            [
                "p.webhooks has 8 partitions, 4 are configured",
                "p.dead-letters retention.ms is 5, wanted is 2592000000",
            ]
        );
    }
}
