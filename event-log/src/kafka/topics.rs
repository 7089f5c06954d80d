//! Creates, checks and describes the topics.
//!
//! Existing topics are never altered, shrunk or deleted: what differs is said in words, and partitions are added only
//! when asked for. Adding some changes which partition a key has; claims, not affinity, keep deliveries apart.

mod check;
mod requests;
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
use rdkafka::{admin::AdminClient, error::KafkaError};
use schemas::Topic;
use std::{collections::BTreeMap, path::Path, sync::Arc};

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

    /// Creates what is missing; with `grow`, adds partitions up to the configured number. Webhooks come last, when all
    /// others can be used. Doing it again changes nothing.
    ///
    /// # Errors
    /// [`LogError::Unavailable`] when the cluster does not answer, [`LogError::Fatal`] when it refuses.
    pub async fn ensure(&self, grow: bool) -> Result<Ensured, LogError> {
        let mut ensured = Ensured::default();
        let (webhooks, behind): (Vec<_>, Vec<_>) = self
            .found()
            .await?
            .into_iter()
            .partition(|found| found.topic == Topic::Webhooks);
        self.ensure_some(&behind, grow, &mut ensured).await?;
        // A dispatcher that runs owns a new partition at once: everything behind it must be there by then.
        self.visible(&ensured, |topic| topic != Topic::Webhooks)
            .await?;
        self.ensure_some(&webhooks, grow, &mut ensured).await?;
        let after = self.visible(&ensured, |_| true).await?;
        ensured.deviations = check::deviations(self.clients.config(), self.clients.names(), &after);
        Ok(ensured)
    }

    async fn ensure_some(
        &self,
        before: &[Found],
        grow: bool,
        ensured: &mut Ensured,
    ) -> Result<(), LogError> {
        let wanted = self.clients.config().partitions;
        for found in before {
            let name = self.name(found.topic);
            if !found.exists() {
                if self.create(found.topic).await? {
                    ensured.created.push(name);
                }
            } else if grow && found.partitions < wanted {
                self.grow(&name, wanted).await?;
                ensured.grown.push((name, found.partitions, wanted));
            }
        }
        Ok(())
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
