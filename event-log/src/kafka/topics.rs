//! Creates, checks and describes the topics.
//!
//! Existing topics are never altered, shrunk or deleted: what differs is said in words, and partitions are added only
//! when asked for. Adding some changes which partition a key has; claims, not affinity, keep deliveries apart.

mod check;
mod settings;

pub use check::Deviation;

use crate::{
    LogError,
    config::KafkaConfig,
    kafka::{
        blocking,
        client::{Clients, LogContext},
    },
};
use check::Found;
use rdkafka::{
    Offset, TopicPartitionList,
    admin::{
        AdminClient, AdminOptions, NewPartitions, NewTopic, OwnedResourceSpecifier,
        ResourceSpecifier, TopicReplication,
    },
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, RDKafkaErrorCode},
};
use schemas::Topic;
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use tokio::time::Instant;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Until all brokers know a new topic.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(20);
const VISIBLE_PAUSE: Duration = Duration::from_millis(50);

/// The topics of one prefix on one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Topics {
    admin: Arc<AdminClient<LogContext>>,
    clients: Clients,
}

/// What [`Topics::ensure`] did and found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ensured {
    /// Full names of the topics that were created.
    pub created: Vec<String>,
    /// Full names of the topics that got more partitions, with the number before and after.
    pub grown: Vec<(String, u32, u32)>,
    /// Settings of existing topics that are not as wanted. They were not touched.
    pub deviations: Vec<Deviation>,
}

/// A topic as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    pub topic: Topic,
    /// Full name.
    pub name: String,
    /// False: the topic is missing, everything below is empty.
    pub exists: bool,
    /// Replicas of the first partition.
    pub replicas: u32,
    /// Names and values of the settings that matter here.
    pub settings: BTreeMap<String, String>,
    pub partitions: Vec<PartitionDescription>,
}

/// A partition as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    pub partition: u32,
    /// Offset of the first record that is still there.
    pub begin_offset: i64,
    /// Offset after the last record.
    pub end_offset: i64,
    /// What the dispatchers' group has committed (delay tiers: the delay group); none: nothing, or nobody reads it.
    pub committed_offset: Option<i64>,
}

// === impl Topics ===

impl Topics {
    /// For the cluster and prefix of `config`; relative paths start at `secrets_base`. Connects when first used.
    ///
    /// # Errors
    /// [`LogError::Fatal`] when a secret can not be read or a setting is refused.
    pub fn connect(config: &KafkaConfig, secrets_base: &Path) -> Result<Self, LogError> {
        Self::open(Clients::open(config, secrets_base)?)
    }

    pub(super) fn open(clients: Clients) -> Result<Self, LogError> {
        let admin = clients
            .admin()?
            .create_with_context(LogContext)
            .map_err(|error: KafkaError| LogError::Fatal(format!("no client: {error}")))?;
        Ok(Self {
            admin: Arc::new(admin),
            clients,
        })
    }

    /// Creates what is missing; with `grow`, adds partitions up to the configured number. Doing it again changes nothing.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when the cluster does not answer, [`LogError::Fatal`] when it refuses.
    pub async fn ensure(&self, grow: bool) -> Result<Ensured, LogError> {
        let mut ensured = Ensured::default();
        let before = self.found().await?;
        let missing = before.iter().filter(|found| !found.exists());
        for found in missing {
            if self.create(found.topic).await? {
                ensured.created.push(self.name(found.topic));
            }
        }
        if grow {
            let wanted = self.clients.config().partitions;
            for found in before.iter().filter(|found| found.exists()) {
                if found.partitions < wanted {
                    let name = self.name(found.topic);
                    self.grow(&name, wanted).await?;
                    ensured.grown.push((name, found.partitions, wanted));
                }
            }
        }
        let after = self.visible(&ensured).await?;
        ensured.deviations = check::deviations(self.clients.config(), self.clients.names(), &after);
        Ok(ensured)
    }

    /// Whether the topics are such that no promise breaks; returns the number of partitions.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when the cluster does not answer; [`LogError::Fatal`] with every reason to refuse.
    pub async fn verify(&self) -> Result<u32, LogError> {
        let found = self.found().await?;
        check::verify(self.clients.config(), self.clients.names(), &found).map_err(LogError::Fatal)
    }

    /// Every topic as it is.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when the cluster does not answer.
    pub async fn describe(&self) -> Result<Vec<TopicDescription>, LogError> {
        let found = self.found().await?;
        let topics = self.clone();
        blocking(move || topics.offsets(found)).await
    }

    fn name(&self, topic: Topic) -> String {
        self.clients.names().name(topic)
    }
}

impl std::fmt::Debug for Topics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Topics").finish_non_exhaustive()
    }
}

// === impl Topics: requests ===

impl Topics {
    /// Partitions, replicas and settings of every topic.
    async fn found(&self) -> Result<Vec<Found>, LogError> {
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
    async fn create(&self, topic: Topic) -> Result<bool, LogError> {
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

    async fn grow(&self, name: &str, partitions: u32) -> Result<(), LogError> {
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

    /// Waits until what was created can be used.
    async fn visible(&self, ensured: &Ensured) -> Result<Vec<Found>, LogError> {
        let deadline = Instant::now() + VISIBLE_TIMEOUT;
        loop {
            let found = self.found().await?;
            let seen = found.iter().all(|found| {
                let name = self.name(found.topic);
                let grown = ensured.grown.iter().find(|(grown, ..)| *grown == name);
                found.exists() && found.led && grown.is_none_or(|(.., to)| found.partitions >= *to)
            });
            if seen {
                return Ok(found);
            }
            if Instant::now() >= deadline {
                let text = "new topics are not visible on the brokers yet";
                return Err(LogError::Unavailable(text.into()));
            }
            tokio::time::sleep(VISIBLE_PAUSE).await;
        }
    }

    /// Blocks: asks for the ends of every partition and for what both groups have committed.
    fn offsets(&self, found: Vec<Found>) -> Result<Vec<TopicDescription>, LogError> {
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

// === impl PartitionDescription ===

impl PartitionDescription {
    /// Records that the group has not finished; without a commit: all that are there.
    pub fn lag(&self) -> i64 {
        let from = self.committed_offset.unwrap_or(self.begin_offset);
        self.end_offset
            .saturating_sub(from.max(self.begin_offset))
            .max(0)
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
