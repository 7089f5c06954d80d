//! Decides what is wrong with topics as they were found: what breaks a promise, and what merely differs.

use crate::{
    config::KafkaConfig,
    kafka::{
        client::message_bytes_max,
        topics::settings::{insync_min, wanted},
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
    let needed = u64::try_from(message_bytes_max(config.record_bytes_max)).unwrap_or(u64::MAX);
    if let Some(bytes) = number("max.message.bytes")
        && bytes < needed
    {
        broken.push(format!(
            "max.message.bytes is {bytes}, records of record_bytes_max need {needed}"
        ));
    }
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

fn webhooks_partitions(found: &[Found]) -> u32 {
    let webhooks = found.iter().find(|found| found.topic == Topic::Webhooks);
    webhooks.map_or(0, |webhooks| webhooks.partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

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
