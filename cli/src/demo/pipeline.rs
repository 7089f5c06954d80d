//! The pipeline under demonstration: this binary as `standalone`, in a process of its own.

use super::{
    load::SECRET,
    receivers::{DESTINATIONS, Destination},
};
use crate::ports;
use anyhow::{Context, bail, ensure};
use event_log::{EventLog, config::LogConfig};
use runtime::Clock;
use rustix::process::{Pid, Signal, kill_process};
use schemas::{DeadLetter, Topic};
use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::{Child, Command},
    time::Instant,
};

const READY_DEADLINE: Duration = Duration::from_secs(30);
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const ADMIN_DEADLINE: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 4 << 20;
const PAGE_RECORDS: usize = 500;

/// The running pipeline.
#[derive(Debug)]
pub(crate) struct Pipeline {
    child: Child,
    dir: PathBuf,
    hooks: SocketAddr,
    admin: SocketAddr,
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
        let log = File::create(dir.join("fencepost.log"))?;
        let binary = std::env::current_exe().context("can not find this binary")?;
        let child = Command::new(binary)
            .arg("standalone")
            .arg("--config")
            .arg(dir.join("fencepost.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("can not start the pipeline")?;
        let mut pipeline = Self {
            child,
            dir: dir.to_path_buf(),
            hooks,
            admin,
            memory_bytes_max: None,
        };
        let deadline = Instant::now() + READY_DEADLINE;
        while !matches!(pipeline.admin("/readyz").await, Ok((200, _))) {
            pipeline.alive()?;
            ensure!(
                Instant::now() < deadline,
                "not ready in time\n{}",
                pipeline.log_tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(pipeline)
    }

    /// Where webhooks are sent to.
    pub(crate) fn hooks_url(&self) -> String {
        format!("http://{}/hooks/github", self.hooks)
    }

    /// Fails when the process has ended by itself; takes its memory down while it has not.
    pub(crate) fn alive(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "the pipeline ended by itself ({status})\n{}",
                self.log_tail()
            );
        }
        self.memory_bytes_max = self.resident_bytes_max().or(self.memory_bytes_max);
        Ok(())
    }

    /// The largest resident memory of the process, bytes; none where the system does not tell.
    pub(crate) fn memory_bytes_max(&self) -> Option<u64> {
        self.memory_bytes_max
    }

    /// What the pipeline says of itself.
    pub(crate) async fn figures(&self) -> anyhow::Result<Figures> {
        let (status, text) = self.admin("/metrics").await?;
        ensure!(status == 200, "metrics answer {status}");
        Ok(Figures::read(&text))
    }

    /// Asks the process to stop and waits until it has.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        kill_process(pid.context("the pipeline has ended already")?, Signal::TERM)?;
        let status = tokio::time::timeout(STOP_DEADLINE, self.child.wait())
            .await
            .context("the pipeline does not stop")??;
        ensure!(
            status.success(),
            "the pipeline ended with {status}\n{}",
            self.log_tail()
        );
        Ok(())
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

    /// One request to the admin port.
    async fn admin(&self, path: &str) -> anyhow::Result<(u16, String)> {
        let exchange = async {
            let mut stream = TcpStream::connect(self.admin).await?;
            let request = format!("GET {path} HTTP/1.0\r\nhost: admin\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream
                .take(ANSWER_BYTES_MAX)
                .read_to_string(&mut answer)
                .await?;
            std::io::Result::Ok(answer)
        };
        let answer = tokio::time::timeout(ADMIN_DEADLINE, exchange).await??;
        let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Ok((status.context("no HTTP status")?, body.to_owned()))
    }

    fn resident_bytes_max(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1_024)
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.dir.join("fencepost.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

// === impl Figures ===

impl Figures {
    /// Nothing is in work and nothing is unread.
    pub(crate) fn quiet(&self) -> bool {
        self.in_flight == 0 && self.lag == 0
    }

    fn read(text: &str) -> Self {
        let sum = |name: &str| -> usize {
            let of = |line: &str| {
                let rest = line.strip_prefix(name)?;
                let labels_or_space = rest.starts_with('{') || rest.starts_with(' ');
                let value: f64 = rest.rsplit(' ').next()?.parse().ok()?;
                labels_or_space.then_some(value)
            };
            let total: f64 = text.lines().filter_map(of).sum();
            format!("{total:.0}").parse().unwrap_or(0)
        };
        Self {
            retried: sum("fencepost_retries_scheduled_total"),
            deferred: sum("fencepost_deliveries_deferred_total"),
            dead_letters: sum("fencepost_dead_letters_total"),
            in_flight: sum("fencepost_in_flight"),
            lag: sum("fencepost_partition_lag"),
        }
    }
}

fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on the loopback")?;
    Ok(listener.local_addr()?)
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
"#
    );
    for destination in &DESTINATIONS {
        // A String takes everything.
        drop(write!(
            text,
            "{}",
            destination_config(destination, receivers)
        ));
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
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let file = dir.path().join("fencepost.toml");
        fs::write(&file, config(dir.path(), address, address, address)).unwrap();
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
