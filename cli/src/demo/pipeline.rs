//! The pipeline under demonstration: this binary as `standalone`, in a process of its own.

use super::{
    load::SECRET,
    receivers::{DESTINATIONS, Destination},
};
use crate::{
    child::{Child, free_address, metric},
    ports,
};
use anyhow::bail;
use event_log::{EventLog, config::LogConfig};
use runtime::Clock;
use schemas::{DeadLetter, Topic};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

const PAGE_RECORDS: usize = 500;

/// The running pipeline.
#[derive(Debug)]
pub(crate) struct Pipeline {
    child: Child,
    dir: PathBuf,
    hooks: SocketAddr,
    memory_bytes_max: Option<u64>,
}

/// What the pipeline says of itself, shown for orientation only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub retried: usize,
    pub deferred: usize,
    pub dead_letters: usize,
    in_flight: usize,
    lag: usize,
}

// === impl Pipeline ===

impl Pipeline {
    /// Writes a config into `dir` and starts the pipeline with it.
    pub(crate) async fn start(dir: &Path, receivers: SocketAddr) -> anyhow::Result<Self> {
        let (hooks, admin) = (free_address()?, free_address()?);
        fs::write(dir.join("github-secret"), SECRET)?;
        fs::write(
            dir.join("fencepost.toml"),
            config(dir, hooks, admin, receivers),
        )?;
        let config = dir.join("fencepost.toml");
        let log = dir.join("fencepost.log");
        Ok(Self {
            child: Child::start("standalone", &config, &log, admin).await?,
            dir: dir.to_path_buf(),
            hooks,
            memory_bytes_max: None,
        })
    }

    /// Where webhooks are sent to.
    pub(crate) fn hooks_url(&self) -> String {
        format!("http://{}/hooks/github", self.hooks)
    }

    /// Fails when the process has ended by itself; takes its memory down while it has not.
    pub(crate) fn alive(&mut self) -> anyhow::Result<()> {
        self.child.alive()?;
        let memory = self.child.memory();
        self.memory_bytes_max = memory
            .map(|memory| memory.bytes_max)
            .or(self.memory_bytes_max);
        Ok(())
    }

    /// The largest resident memory of the process, bytes; none where the system does not tell.
    pub(crate) fn memory_bytes_max(&self) -> Option<u64> {
        self.memory_bytes_max
    }

    /// What the pipeline says of itself.
    pub(crate) async fn figures(&self) -> anyhow::Result<Figures> {
        Ok(Figures::read(&self.child.metrics().await?))
    }

    /// Asks the process to stop and waits until it has.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.child.stop().await
    }

    /// Every dead letter, read from the topic after the process has stopped.
    pub(crate) async fn dead_letters(&self, clock: Clock) -> anyhow::Result<Vec<DeadLetter>> {
        let file = self.dir.join("fencepost.toml");
        let loaded =
            crate::config::load(Some(&file)).map_err(|problems| anyhow::anyhow!("{problems:?}"))?;
        let LogConfig::Embedded(_) = &loaded.config.log else {
            bail!("not an embedded log")
        };
        let log = ports::log::open(&loaded.config.log, &loaded.base, clock)
            .await
            .map_err(|failure| anyhow::anyhow!("{failure}"))?;
        let codec = ports::log::codec(&loaded.config.log);
        let mut letters = Vec::new();
        for partition in 0..log.partitions() {
            let mut from_offset = 0;
            loop {
                let page = log
                    .read(Topic::DeadLetters, partition, from_offset, PAGE_RECORDS)
                    .await?;
                for record in &page.records {
                    letters.push(codec.decode_dead_letter(&record.value)?);
                }
                if page.at_end {
                    break;
                }
                from_offset = page.next_offset;
            }
        }
        Ok(letters)
    }
}

// === impl Figures ===

impl Figures {
    /// Nothing is in work and nothing is unread.
    pub(crate) fn quiet(&self) -> bool {
        self.in_flight == 0 && self.lag == 0
    }

    fn read(text: &str) -> Self {
        let sum = |name| metric(text, name);
        Self {
            retried: sum("fencepost_retries_scheduled_total"),
            deferred: sum("fencepost_deliveries_deferred_total"),
            dead_letters: sum("fencepost_dead_letters_total"),
            in_flight: sum("fencepost_in_flight"),
            lag: sum("fencepost_partition_lag"),
        }
    }
}

fn config(dir: &Path, hooks: SocketAddr, admin: SocketAddr, receivers: SocketAddr) -> String {
    let data = dir.join("data");
    let mut text = format!(
        r#"# The config of `fencepost demo`.
[log]
kind = "embedded"
dir = {data:?}
[store]
kind = "embedded"
dir = {data:?}
[ingest]
listen = "{hooks}"
[admin]
listen = "{admin}"
[telemetry]
log = "json"
[sources.github]
scheme = "github"
secrets = [{{ file = "github-secret" }}]
# A repeat that comes after its delivery has failed would open it again; here each shall end once.
reopen = "never"
"#
    );
    for destination in &DESTINATIONS {
        text.push_str(&destination_config(destination, receivers));
    }
    text
}

fn destination_config(destination: &Destination, receivers: SocketAddr) -> String {
    let name = destination.name;
    let patterns: Vec<String> = destination
        .events
        .iter()
        .map(|event| format!("{:?}", format!("{event}.*")))
        .collect();
    let events = if patterns.is_empty() {
        String::new()
    } else {
        format!("events = [{}]\n", patterns.join(", "))
    };
    let attempts_max = if name == "broken" { 2 } else { 12 };
    format!(
        r#"
[destinations.{name}]  # {what}
url = "http://{receivers}/{name}"
allow_http = true
allow_cidrs = ["127.0.0.0/8"]
concurrency = 32
retry = {{ base = "5s", factor = 1.0, attempts_max = {attempts_max} }}
# These receivers fail each delivery for itself, on purpose. Out there it is the destination that is down, and is left alone.
pause = {{ on_gone = false }}
breaker = {{ enabled = false }}
[[routes]]
source = "github"
{events}to = ["{name}"]
"#,
        what = destination.what
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_has_no_mistakes() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("github-secret"), SECRET).unwrap();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let file = dir.path().join("fencepost.toml");
        fs::write(&file, config(dir.path(), at(1), at(2), at(3))).unwrap();
        let loaded = crate::config::load(Some(&file)).unwrap();
        let findings = crate::check::all(&loaded, 0);
        assert!(findings.problems.is_empty(), "{:?}", findings.problems);
    }

    #[test]
    fn figures_are_summed_over_labels() {
        let text = "# HELP x\nfencepost_in_flight 3\nfencepost_in_flight_x 9\n\
                    fencepost_dead_letters_total{a=\"b c\"} 2\nfencepost_dead_letters_total{a=\"d\"} 5\n";
        let figures = Figures::read(text);
        assert_eq!((figures.in_flight, figures.dead_letters), (3, 7));
    }
}
