//! What is asked of the cluster.

use crate::{
    LogError,
    kafka::{
        blocking,
        client::LogContext,
        topics::{Ensured, PartitionDescription, TopicDescription, Topics, check::Found, settings},
    },
};
use rdkafka::{
    Offset, TopicPartitionList,
    admin::{
        AdminOptions, NewPartitions, NewTopic, OwnedResourceSpecifier, ResourceSpecifier,
        TopicReplication,
    },
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, RDKafkaErrorCode},
};
use schemas::Topic;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Until all brokers know a new topic.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(60);
/// For one partition, before all are asked again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const VISIBLE_PAUSE: Duration = Duration::from_millis(50);

// === impl Topics: requests ===

impl Topics {
    /// Partitions, replicas and settings of every topic.
    pub(super) async fn found(&self) -> Result<Vec<Found>, LogError> {
        let topics = self.clone();
        let mut found = blocking(move || topics.metadata()).await?;
        let names: Vec<_> = found
            .iter()
            .filter(|found| found.exists())
            .map(|found| self.name(found.topic))
            .collect();
        if names.is_empty() {
            return Ok(found);
        }
        let resources: Vec<_> = names
            .iter()
            .map(|name| ResourceSpecifier::Topic(name))
            .collect();
        let described = self
            .admin
            .describe_configs(&resources, &options())
            .await
            .map_err(|error| unavailable(&error))?;
        for resource in described {
            let resource = match resource {
                Ok(resource) => resource,
                Err(code) => {
                    // Reading and writing may be allowed where describing is not.
                    tracing::warn!(%code, "settings of a topic can not be checked");
                    continue;
                }
            };
            let OwnedResourceSpecifier::Topic(name) = &resource.specifier else {
                continue;
            };
            let topic = self.clients.names().parse(name);
            if let Some(found) = found.iter_mut().find(|found| Some(found.topic) == topic) {
                let entries = resource.entries.iter();
                found.settings = entries
                    .filter(|entry| settings::MATTER.contains(&entry.name.as_str()))
                    .filter_map(|entry| Some((entry.name.clone(), entry.value.clone()?)))
                    .collect();
            }
        }
        Ok(found)
    }

    fn metadata(&self) -> Result<Vec<Found>, LogError> {
        // Of all topics: asking for a missing one by name could create it.
        let metadata = self
            .admin
            .inner()
            .fetch_metadata(None, REQUEST_TIMEOUT)
            .map_err(|error| unavailable(&error))?;
        let found = Topic::ALL.into_iter().map(|topic| {
            let name = self.name(topic);
            let known = metadata.topics().iter().find(|known| known.name() == name);
            let partitions = known.map_or(&[][..], |known| known.partitions());
            let replicas = partitions.first().map_or(0, |first| first.replicas().len());
            Found {
                topic,
                partitions: u32::try_from(partitions.len()).unwrap_or(u32::MAX),
                replicas: u32::try_from(replicas).unwrap_or(u32::MAX),
                led: partitions.iter().all(|partition| partition.leader() >= 0),
                settings: BTreeMap::new(),
            }
        });
        Ok(found.collect())
    }

    /// False when somebody else was faster.
    pub(super) async fn create(&self, topic: Topic) -> Result<bool, LogError> {
        let config = self.clients.config();
        let name = self.name(topic);
        let settings = settings::wanted(topic, config);
        let partitions = i32::try_from(config.partitions).unwrap_or(i32::MAX);
        let replication = TopicReplication::Fixed(i32::from(
            i16::try_from(config.replication_factor).unwrap_or(i16::MAX),
        ));
        let new = settings.iter().fold(
            NewTopic::new(&name, partitions, replication),
            |new, (key, value)| new.set(key, value),
        );
        let results = self
            .admin
            .create_topics([&new], &options())
            .await
            .map_err(|error| unavailable(&error))?;
        match results.into_iter().next() {
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(false),
            Some(Err((name, code))) => {
                Err(LogError::Fatal(format!("can not create {name}: {code}")))
            }
            Some(Ok(_)) | None => Ok(true),
        }
    }

    pub(super) async fn grow(&self, name: &str, partitions: u32) -> Result<(), LogError> {
        let new = NewPartitions::new(name, usize::try_from(partitions).unwrap_or(usize::MAX));
        let results = self
            .admin
            .create_partitions([&new], &options())
            .await
            .map_err(|error| unavailable(&error))?;
        match results.into_iter().next() {
            Some(Err((name, code))) => Err(LogError::Fatal(format!("can not grow {name}: {code}"))),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    /// Waits until the topics that `asked` chooses, with what was created of them, can be used; returns these.
    pub(super) async fn visible(
        &self,
        ensured: &Ensured,
        asked: impl Fn(Topic) -> bool,
    ) -> Result<Vec<Found>, LogError> {
        let deadline = Instant::now() + VISIBLE_TIMEOUT;
        loop {
            let mut found = self.found().await?;
            found.retain(|found| asked(found.topic));
            let seen = found.iter().all(|found| {
                let name = self.name(found.topic);
                let grown = ensured.grown.iter().find(|(grown, ..)| *grown == name);
                found.exists() && found.led && grown.is_none_or(|(.., to)| found.partitions >= *to)
            });
            let changed = !ensured.created.is_empty() || !ensured.grown.is_empty();
            if seen && (!changed || self.answering(&found).await) {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                let text = "new topics are not visible on the brokers yet";
                return Err(LogError::Unavailable(text.into()));
            }
            tokio::time::sleep(VISIBLE_PAUSE).await;
        }
    }

    /// Whether every partition's leader answers. Metadata can be ahead of the leader, which then refuses records with an
    /// error that the producer does not retry.
    async fn answering(&self, found: &[Found]) -> bool {
        let topics = self.clone();
        let found = found.to_vec();
        let asked = blocking(move || {
            for found in found {
                let name = topics.name(found.topic);
                for partition in 0..i32::try_from(found.partitions).unwrap_or(i32::MAX) {
                    let admin = topics.admin.inner();
                    admin
                        .fetch_watermarks(&name, partition, ANSWER_TIMEOUT)
                        .map_err(|error| unavailable(&error))?;
                }
            }
            Ok(())
        });
        asked
            .await
            .inspect_err(|error| tracing::debug!(%error, "a new partition does not answer yet"))
            .is_ok()
    }

    /// Blocks: asks for the ends of every partition and for what both groups have committed.
    pub(super) fn offsets(&self, found: Vec<Found>) -> Result<Vec<TopicDescription>, LogError> {
        let config = self.clients.config();
        let group = self.observer(&config.group)?;
        let delay_group = self.observer(&self.clients.delay_group())?;
        let mut descriptions = Vec::with_capacity(found.len());
        for found in found {
            let name = self.name(found.topic);
            let committed = match found.topic {
                Topic::Webhooks => committed(&group, &name, found.partitions)?,
                Topic::Delay(_) => committed(&delay_group, &name, found.partitions)?,
                Topic::DeadLetters => BTreeMap::new(),
            };
            let mut partitions = Vec::new();
            for partition in 0..found.partitions {
                let native = i32::try_from(partition).unwrap_or(i32::MAX);
                let (begin_offset, end_offset) = group
                    .fetch_watermarks(&name, native, REQUEST_TIMEOUT)
                    .map_err(|error| unavailable(&error))?;
                partitions.push(PartitionDescription {
                    partition,
                    begin_offset,
                    end_offset,
                    committed_offset: committed.get(&partition).copied(),
                });
            }
            descriptions.push(TopicDescription {
                topic: found.topic,
                name,
                exists: found.exists(),
                replicas: found.replicas,
                settings: found.settings,
                partitions,
            });
        }
        Ok(descriptions)
    }

    fn observer(&self, group: &str) -> Result<BaseConsumer<LogContext>, LogError> {
        self.clients
            .observer(group)?
            .create_with_context(LogContext)
            .map_err(|error| unavailable(&error))
    }
}

// === helpers ===

fn committed(
    observer: &BaseConsumer<LogContext>,
    name: &str,
    partitions: u32,
) -> Result<BTreeMap<u32, i64>, LogError> {
    let mut list = TopicPartitionList::new();
    for partition in 0..i32::try_from(partitions).unwrap_or(i32::MAX) {
        list.add_partition(name, partition);
    }
    if list.count() == 0 {
        return Ok(BTreeMap::new());
    }
    let list = observer
        .committed_offsets(list, REQUEST_TIMEOUT)
        .map_err(|error| unavailable(&error))?;
    let elements = list.elements();
    let offsets = elements.iter().filter_map(|element| {
        let Offset::Offset(offset) = element.offset() else {
            return None;
        };
        Some((u32::try_from(element.partition()).ok()?, offset))
    });
    Ok(offsets.collect())
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(REQUEST_TIMEOUT))
        .operation_timeout(Some(REQUEST_TIMEOUT))
}

fn unavailable(error: &KafkaError) -> LogError {
    LogError::Unavailable(error.to_string())
}
