//! One test's own installation: a directory, topics and a keyspace of its own, ports, secrets, and the config of each process.

use crate::{
    process::{self, Finished, Process, Role},
    stack::Stack,
};
use std::{
    fmt::Write as _,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, AtomicUsize, Ordering},
    time::Duration,
};
use tempfile::TempDir;

/// Secret of the one source, `github`.
pub const GITHUB_SECRET: &[u8] = b"It's a Secret to Everybody";
/// Making topics and tables takes seconds on a busy machine.
const TOOL_DEADLINE: Duration = Duration::from_secs(60);

/// What the processes of one test share.
#[derive(Debug)]
pub struct Site {
    dir: TempDir,
    name: String,
    backend: String,
    store: String,
    ingest: String,
    admin: String,
    dispatcher: String,
    destinations: String,
    route: Vec<String>,
    processes: AtomicUsize,
}

/// Retry policy and limits of a destination.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Wait after the first attempt, seconds; at least 5.
    pub base_s: u32,
    /// Growth of the wait.
    pub factor: f64,
    /// Longest wait before jitter, seconds.
    pub cap_s: u32,
    /// Part of the wait that is added at random.
    pub jitter: f64,
    /// Attempts before the delivery is dead-lettered.
    pub attempts_max: u32,
    /// Deadline of an attempt, seconds.
    pub timeout_s: u32,
    /// Attempts at once from one process.
    pub concurrency: u32,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            base_s: 5,
            factor: 2.0,
            cap_s: 21_600,
            jitter: 0.2,
            attempts_max: 8,
            timeout_s: 10,
            concurrency: 64,
        }
    }
}

// === impl Site ===

impl Site {
    /// On Kafka and Cassandra, with `partitions` partitions a topic.
    pub fn on_stack(stack: &Stack, test: &str, partitions: u32) -> Self {
        let nodes = [&stack.kafka, &stack.cql].map(|address| vec![address.clone()]);
        Self::on(&nodes, 1, test, partitions)
    }

    /// On three brokers and three replicas: everything is kept three times.
    pub fn on_three(
        brokers: &[String],
        contact_points: &[String],
        test: &str,
        partitions: u32,
    ) -> Self {
        let nodes = [brokers, contact_points].map(<[String]>::to_vec);
        Self::on(&nodes, 3, test, partitions)
    }

    fn on(
        [brokers, contact_points]: &[Vec<String>; 2],
        replication_factor: u32,
        test: &str,
        partitions: u32,
    ) -> Self {
        let mut site = Self::new(test);
        let name = site.name.clone();
        let keyspace = name.replace('-', "_");
        site.backend = format!(
            r#"
[log]
kind = "kafka"
brokers = {brokers:?}
topic_prefix = "{name}"
group = "{name}"
partitions = {partitions}
replication_factor = {replication_factor}
session_timeout = "6s"

[store]
kind = "cql"
contact_points = {contact_points:?}
keyspace = "{keyspace}"
replication_factor = {replication_factor}
"#
        );
        site
    }

    /// On the embedded log and store, in this test's directory.
    pub fn embedded(test: &str) -> Self {
        let mut site = Self::new(test);
        let dir = site.dir.path().display();
        site.backend = format!(
            "[log]\nkind = \"embedded\"\ndir = \"{dir}/log\"\n[store]\nkind = \"embedded\"\ndir = \"{dir}/store\"\n"
        );
        site
    }

    fn new(test: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("fencepost-")
            .tempdir()
            .expect("a directory");
        std::fs::write(dir.path().join("github.secret"), GITHUB_SECRET).expect("writable");
        let unique = uuid::Uuid::new_v4().simple().to_string();
        let (short, _) = unique.split_at(8);
        Self {
            dir,
            name: format!("e2e-{test}-{short}"),
            backend: String::new(),
            store: String::new(),
            ingest: String::new(),
            admin: String::new(),
            dispatcher: String::new(),
            destinations: String::new(),
            route: Vec::new(),
            processes: AtomicUsize::new(0),
        }
    }

    /// Adds a destination on loopback, to which everything is routed. `{process}` in the URL is the number of the process that
    /// sends, see [`Process::number`].
    pub fn destination(&mut self, name: &str, url: &str, limits: &Limits) {
        let Limits {
            base_s,
            factor,
            cap_s,
            jitter,
            attempts_max,
            timeout_s,
            concurrency,
        } = limits;
        write!(
            self.destinations,
            r#"
[destinations.{name}]
url = "{url}"
allow_http = true
allow_cidrs = ["127.0.0.0/8"]
timeout = "{timeout_s}s"
concurrency = {concurrency}
retry = {{ base = "{base_s}s", factor = {factor:?}, cap = "{cap_s}s", jitter = {jitter:?}, attempts_max = {attempts_max} }}
"#
        )
        .expect("writing to a string");
        self.route.push(format!("{name:?}"));
    }

    /// The destination that was added last is tried for as long as there is something to try, however often it fails.
    pub fn without_breaker(&mut self) {
        self.destinations
            .push_str("breaker = { enabled = false }\n");
    }

    /// Further lines of the section `[store]`.
    pub fn store(&mut self, lines: &str) {
        self.store = lines.to_owned();
    }

    /// Lines of the section `[ingest]`.
    pub fn ingest(&mut self, lines: &str) {
        self.ingest = lines.to_owned();
    }

    /// Lines of the section `[admin]`.
    pub fn admin(&mut self, lines: &str) {
        self.admin = lines.to_owned();
    }

    /// Lines of the section `[dispatcher]`.
    pub fn dispatcher(&mut self, lines: &str) {
        self.dispatcher = lines.to_owned();
    }

    /// Prefix of the topics; also the consumer group.
    pub fn topic_prefix(&self) -> &str {
        &self.name
    }

    /// This test's directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Makes topics and tables with the binary's own commands.
    pub async fn prepare(&self) {
        self.tool(&["topics", "ensure"]).await.assert_success();
        self.tool(&["store", "migrate"]).await.assert_success();
    }

    /// Starts a process and waits until it is ready.
    pub async fn start(&self, role: Role) -> Process {
        let mut process = self.launch(role);
        process.wait_ready().await;
        process
    }

    /// Starts a process.
    pub fn launch(&self, role: Role) -> Process {
        self.launch_on(role, free_port())
    }

    /// Starts a process whose ingest listens on `ingest_port`.
    pub fn launch_on(&self, role: Role, ingest_port: u16) -> Process {
        let admin_port = free_port();
        let (number, config) = self.write_config(ingest_port, admin_port);
        process::launch(role, number, &config, (ingest_port, admin_port))
    }

    /// Runs a command of the binary that ends by itself.
    pub async fn tool(&self, arguments: &[&str]) -> Finished {
        let (_, config) = self.write_config(free_port(), free_port());
        process::run(arguments, &config, TOOL_DEADLINE).await
    }

    fn write_config(&self, ingest_port: u16, admin_port: u16) -> (usize, PathBuf) {
        let number = self.processes.fetch_add(1, Ordering::SeqCst);
        let path = self.dir.path().join(format!("{number}.toml"));
        let text = format!(
            r#"{backend}
{store}
[ingest]
listen = "127.0.0.1:{ingest_port}"
{ingest}

[admin]
listen = "127.0.0.1:{admin_port}"
{admin}

[dispatcher]
{dispatcher}

[sources.github]
scheme = "github"
secrets = [{{ file = "github.secret" }}]
{destinations}
[[routes]]
source = "github"
to = [{route}]
"#,
            backend = self.backend,
            store = self.store,
            ingest = self.ingest,
            admin = self.admin,
            dispatcher = self.dispatcher,
            destinations = self.destinations.replace("{process}", &number.to_string()),
            route = self.route.join(", "),
        );
        std::fs::write(&path, text).expect("writable");
        (number, path)
    }
}

/// A port that nobody listens on, below those that the system hands out to clients, and each one only once a process.
///
/// # Panics
/// When there is none.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test binaries that run at the same time start at different places.
    let start = 10_000 + (std::process::id() % 180) as u16 * 100;
    for _ in 0..1_000 {
        let port = start + NEXT.fetch_add(1, Ordering::SeqCst) % 1_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {start} on");
}
