//! A log and a store of their own, with a config file, and the processes that run on them.

use super::load::SECRET;
use crate::{
    args::TopicsCommand,
    child::{Child, free_address},
    config::{self, Loaded},
    store, topics,
};
use anyhow::{Context, anyhow};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// The source of all webhooks.
pub(crate) const SOURCE: &str = "github";
/// Where all of them go.
pub(crate) const DESTINATION: &str = "receiver";

/// Where rigs are put up.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub setup: Setup,
    /// Keeps topics and keyspaces of runs apart: letters and digits.
    pub run: String,
    /// Configs, logs of the processes, data of the embedded set-up.
    pub dir: PathBuf,
}

/// On what a rig stands.
#[derive(Clone, Debug)]
pub(crate) enum Setup {
    Embedded,
    Kafka {
        brokers: Vec<String>,
        contact_points: Vec<String>,
    },
}

/// What differs from rig to rig.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knobs {
    /// Where the webhooks are routed to; nowhere without.
    pub receiver: Option<SocketAddr>,
    /// Attempts at once, from each dispatcher.
    pub concurrency: usize,
    /// Records in work at once, in each dispatcher.
    pub in_flight_max: usize,
}

/// A log and a store, empty at the start.
#[derive(Debug)]
pub(crate) struct Rig {
    name: &'static str,
    dir: PathBuf,
    hooks: SocketAddr,
    loaded: Loaded,
    embedded: bool,
    children: u32,
}

// === impl Setup ===

impl Setup {
    /// As the command line has it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Kafka { .. } => "kafka",
        }
    }
}

// === impl Rig ===

impl Rig {
    /// Makes topics and tables, or the directory of the embedded ones, and a config.
    ///
    /// # Errors
    /// When Kafka or the store can not be reached.
    pub(crate) async fn new(
        ground: &Ground,
        name: &'static str,
        knobs: Knobs,
    ) -> anyhow::Result<Self> {
        Self::with(ground, name, |dir, hooks| {
            text(ground, name, dir, hooks, knobs)
        })
        .await
    }

    /// The same with a config of its own, made from the directory and from where ingest shall listen. The secret of its
    /// sources is in the file `github-secret`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) async fn with(
        ground: &Ground,
        name: &'static str,
        text: impl FnOnce(&Path, SocketAddr) -> String,
    ) -> anyhow::Result<Self> {
        let dir = ground.dir.join(name);
        fs::create_dir(&dir).with_context(|| format!("can not create {}", dir.display()))?;
        let hooks = free_address()?;
        let file = dir.join("fencepost.toml");
        fs::write(dir.join("github-secret"), SECRET)?;
        fs::write(&file, text(&dir, hooks))?;
        let loaded = config::load(Some(&file)).map_err(|problems| anyhow!("{problems:?}"))?;
        let embedded = matches!(ground.setup, Setup::Embedded);
        if !embedded {
            let ensure = TopicsCommand::Ensure { grow: false };
            topics::run(ensure, &loaded.config.log, &loaded.base)
                .await
                .map_err(|failure| anyhow!("{failure}"))?;
            store::migrate(&loaded.config.store, &loaded.base)
                .await
                .map_err(|failure| anyhow!("{failure}"))?;
        }
        Ok(Self {
            name,
            dir,
            hooks,
            loaded,
            embedded,
            children: 0,
        })
    }

    /// The config.
    pub(crate) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// The config's file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("fencepost.toml")
    }

    /// Where webhooks are sent to.
    pub(crate) fn hooks(&self) -> SocketAddr {
        self.hooks
    }

    /// Starts what receives webhooks: on the embedded set-up that is everything in one process.
    pub(crate) async fn ingest(&mut self) -> anyhow::Result<Child> {
        self.child("ingest").await
    }

    /// Starts what delivers them: on the embedded set-up that is everything in one process.
    pub(crate) async fn dispatcher(&mut self) -> anyhow::Result<Child> {
        self.child("dispatcher").await
    }

    /// Starts the whole pipeline: one process on the embedded set-up, two on the other.
    pub(crate) async fn pipeline(&mut self) -> anyhow::Result<Vec<Child>> {
        let mut children = vec![self.ingest().await?];
        if !self.embedded {
            children.push(self.dispatcher().await?);
        }
        Ok(children)
    }

    async fn child(&mut self, role: &'static str) -> anyhow::Result<Child> {
        self.children += 1;
        let log = self.dir.join(format!("{role}-{}.log", self.children));
        let role = if self.embedded { "standalone" } else { role };
        Child::start(role, &self.file(), &log, free_address()?)
            .await
            .with_context(|| format!("rig {}", self.name))
    }
}

fn text(ground: &Ground, name: &str, dir: &Path, hooks: SocketAddr, knobs: Knobs) -> String {
    let mut text = match &ground.setup {
        Setup::Embedded => {
            let data = dir.join("data");
            format!(
                "[log]\nkind = \"embedded\"\ndir = {data:?}\n\
                 [store]\nkind = \"embedded\"\ndir = {data:?}\n"
            )
        }
        Setup::Kafka {
            brokers,
            contact_points,
        } => format!(
            "[log]\nkind = \"kafka\"\nbrokers = {brokers:?}\ntopic_prefix = \"bench-{run}-{name}\"\n\
             group = \"bench-{run}-{name}\"\nreplication_factor = 1\n\
             [store]\nkind = \"cql\"\ncontact_points = {contact_points:?}\n\
             keyspace = \"bench_{run}_{name}\"\nreplication_factor = 1\n",
            run = ground.run
        ),
    };
    let in_flight_max = knobs.in_flight_max;
    text += &format!(
        "[ingest]\nlisten = \"{hooks}\"\n[dispatcher]\nin_flight_max = {in_flight_max}\n\
         [telemetry]\nlog = \"json\"\n\
         [sources.{SOURCE}]\nscheme = \"github\"\nsecrets = [{{ file = \"github-secret\" }}]\n"
    );
    if let Some(receiver) = knobs.receiver {
        let concurrency = knobs.concurrency;
        text += &format!(
            "[destinations.{DESTINATION}]\nurl = \"http://{receiver}/\"\nallow_http = true\n\
             allow_cidrs = [\"127.0.0.0/8\"]\nconcurrency = {concurrency}\n\
             [[routes]]\nsource = \"{SOURCE}\"\nto = [\"{DESTINATION}\"]\n"
        );
    }
    text
}

// === impl Knobs ===

impl Knobs {
    /// Room for `concurrency` attempts, and in memory for four times as many records: enough that no attempt waits for
    /// the log, few enough that no record waits so long for room that it is deferred.
    pub(crate) fn new(receiver: Option<SocketAddr>, concurrency: usize) -> Self {
        Self {
            receiver,
            concurrency,
            in_flight_max: concurrency * 4,
        }
    }
}

/// How long a slice may go on, for the processes that are not told otherwise.
pub(crate) const GRACE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configs_have_no_mistakes() {
        let setups = [
            Setup::Embedded,
            Setup::Kafka {
                brokers: vec!["127.0.0.1:9".to_owned()],
                contact_points: vec!["127.0.0.1:9".to_owned()],
            },
        ];
        // A binary without Kafka and CQL calls the second one a mistake.
        let both = cfg!(all(feature = "kafka", feature = "cql"));
        for setup in setups.into_iter().take(if both { 2 } else { 1 }) {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("github-secret"), SECRET).unwrap();
            let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
            let ground = Ground {
                setup,
                run: "0a1b".to_owned(),
                dir: dir.path().to_path_buf(),
            };
            let file = dir.path().join("fencepost.toml");
            let knobs = Knobs::new(Some(address), 16);
            fs::write(&file, text(&ground, "x", dir.path(), address, knobs)).unwrap();
            let loaded = config::load(Some(&file)).unwrap();
            let problems = crate::check::all(&loaded, 0).problems;
            assert!(problems.is_empty(), "{problems:?}");
        }
    }
}
