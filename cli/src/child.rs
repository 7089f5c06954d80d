//! A process of this binary, started and watched by another one: what demo and bench run against.

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
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
    process::{self, Command},
    time::Instant,
};

const READY_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(40);
const ADMIN_DEADLINE: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Lines of the process's log that an error shows.
const TAIL_LINES: usize = 20;

/// A running `standalone`, `ingest` or `dispatcher`. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Child {
    role: &'static str,
    process: process::Child,
    log: PathBuf,
    admin: SocketAddr,
}

/// Resident memory of a process, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The largest so far.
    pub bytes_max: u64,
    /// Now.
    pub bytes: u64,
}

// === impl Child ===

impl Child {
    /// Starts the process with the file `config` and its admin port at `admin`, whatever the config says of that. Its
    /// log goes to the file `log`. Returns once it is ready.
    ///
    /// # Errors
    /// When it does not become ready; with the end of its log.
    pub(crate) async fn start(
        role: &'static str,
        config: &Path,
        log: &Path,
        admin: SocketAddr,
    ) -> anyhow::Result<Self> {
        let to_log = File::create(log)?;
        let process = command()?
            .arg(role)
            .arg("--config")
            .arg(config)
            .env("FENCEPOST_ADMIN__LISTEN", admin.to_string())
            .stdout(Stdio::null())
            .stderr(to_log)
            .spawn()
            .with_context(|| format!("can not start {role}"))?;
        let mut child = Self {
            role,
            process,
            log: log.to_path_buf(),
            admin,
        };
        let deadline = Instant::now() + READY_DEADLINE;
        while !matches!(child.admin("/readyz").await, Ok((200, _))) {
            child.alive()?;
            ensure!(
                Instant::now() < deadline,
                "{role} is not ready in time\n{}",
                child.log_tail()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(child)
    }

    /// What the process is.
    pub(crate) fn role(&self) -> &'static str {
        self.role
    }

    /// Fails when the process has ended by itself.
    pub(crate) fn alive(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.process.try_wait()? {
            bail!(
                "{} ended by itself ({status})\n{}",
                self.role,
                self.log_tail()
            );
        }
        Ok(())
    }

    /// Its metrics, as text.
    pub(crate) async fn metrics(&self) -> anyhow::Result<String> {
        let (status, text) = self.admin("/metrics").await?;
        ensure!(status == 200, "metrics answer {status}");
        Ok(text)
    }

    /// Its resident memory; none where the system does not tell.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()?)).ok()?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib * 1_024)
        };
        Some(Memory {
            bytes_max: bytes("VmHWM:")?,
            bytes: bytes("VmRSS:")?,
        })
    }

    /// Asks the process to stop and waits until it has.
    ///
    /// # Errors
    /// When it does not, or ends with an error.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let role = self.role;
        let id = self.process.id().and_then(|id| i32::try_from(id).ok());
        let pid = id
            .and_then(Pid::from_raw)
            .with_context(|| format!("{role} has ended already"))?;
        kill_process(pid, Signal::TERM)?;
        let status = tokio::time::timeout(STOP_DEADLINE, self.process.wait())
            .await
            .with_context(|| format!("{role} does not stop"))??;
        ensure!(
            status.success(),
            "{role} ended with {status}\n{}",
            self.log_tail()
        );
        Ok(())
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

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

/// This binary again, killed when nobody holds it any more.
///
/// # Errors
/// When the binary can not be found.
pub(crate) fn command() -> anyhow::Result<Command> {
    let binary = std::env::current_exe().context("can not find this binary")?;
    let mut command = Command::new(binary);
    // A group of its own: Ctrl-C is for us, and we stop it in order.
    command
        .stdin(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

/// A port of the loopback that nobody had a moment ago.
///
/// # Errors
/// When there is none.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on the loopback")?;
    Ok(listener.local_addr()?)
}

/// The sum over all labels of the metric `name` in a `/metrics` text.
pub(crate) fn metric(text: &str, name: &str) -> usize {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let labels_or_space = rest.starts_with('{') || rest.starts_with(' ');
        let value: f64 = rest.rsplit(' ').next()?.parse().ok()?;
        labels_or_space.then_some(value)
    };
    let total: f64 = text.lines().filter_map(of).sum();
    format!("{total:.0}").parse().unwrap_or(0)
}
