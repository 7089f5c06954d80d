//! `fencepost topics ensure | describe`.

use crate::{args::TopicsCommand, failure::Failure};
use event_log::config::{EmbeddedConfig, LogConfig};
use schemas::{Topic, TopicNames};
use std::path::Path;

/// What there is, after making it with `ensure`.
///
/// # Errors
/// When the log can not be reached, or refuses.
#[cfg_attr(
    not(feature = "kafka"),
    expect(clippy::unused_async, reason = "only Kafka is awaited")
)]
pub(crate) async fn run(
    command: TopicsCommand,
    config: &LogConfig,
    base: &Path,
) -> Result<String, Failure> {
    match config {
        LogConfig::Embedded(embedded) => Ok(embedded_text(embedded)),
        #[cfg(feature = "kafka")]
        LogConfig::Kafka(kafka) => kafka::run(command, kafka, base).await,
        #[cfg(not(feature = "kafka"))]
        LogConfig::Kafka(_) => {
            let _: (TopicsCommand, &Path) = (command, base);
            Err(Failure::not_built("log.kind", "kafka"))
        }
    }
}

/// The embedded log needs nobody to make its topics.
fn embedded_text(config: &EmbeddedConfig) -> String {
    let state = if config.dir.is_dir() {
        "there"
    } else {
        "made by the first start"
    };
    let mut text = format!(
        "embedded log in {} ({state}), {} partitions each:\n",
        config.dir.display(),
        config.partitions
    );
    let names = TopicNames::new("fencepost");
    for topic in Topic::ALL {
        text += &format!("  {}\n", names.name(topic));
    }
    text
}

#[cfg(feature = "kafka")]
mod kafka {
    use super::{Failure, Path, TopicsCommand};
    use event_log::{
        config::KafkaConfig,
        kafka::topics::{Ensured, TopicDescription, Topics},
    };

    pub(super) async fn run(
        command: TopicsCommand,
        config: &KafkaConfig,
        base: &Path,
    ) -> Result<String, Failure> {
        let topics = Topics::connect(config, base)?;
        match command {
            TopicsCommand::Ensure { grow } => {
                let ensured = topics.ensure(grow).await?;
                let text = ensured_text(&ensured);
                if ensured.deviations.is_empty() {
                    // Says why when processes would refuse to start.
                    topics.verify().await?;
                }
                Ok(text)
            }
            TopicsCommand::Describe => Ok(described_text(&topics.describe().await?)),
        }
    }

    fn ensured_text(ensured: &Ensured) -> String {
        let mut text = String::new();
        for name in &ensured.created {
            text += &format!("created {name}\n");
        }
        for (name, before, after) in &ensured.grown {
            text += &format!("grown {name}: {before} -> {after} partitions\n");
        }
        for deviation in &ensured.deviations {
            text += &format!("differs {}: {}\n", deviation.name, deviation.message);
        }
        if text.is_empty() {
            text.push_str("nothing to do\n");
        }
        text
    }

    fn described_text(topics: &[TopicDescription]) -> String {
        let mut text = String::new();
        for topic in topics {
            if !topic.exists {
                text += &format!("{}: missing; see `fencepost topics ensure`\n", topic.name);
                continue;
            }
            let settings: Vec<_> = topic
                .settings
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            text += &format!(
                "{}: {} partitions, {} replicas, {}\n",
                topic.name,
                topic.partitions.len(),
                topic.replicas,
                settings.join(" ")
            );
            for partition in &topic.partitions {
                let committed = partition
                    .committed_offset
                    .map_or("-".to_owned(), |offset| offset.to_string());
                text += &format!(
                    "  {:>4}  offsets {}..{}  committed {committed}  lag {}\n",
                    partition.partition,
                    partition.begin_offset,
                    partition.end_offset,
                    partition.lag()
                );
            }
        }
        text
    }
}
