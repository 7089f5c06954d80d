//! The command line.

use crate::{bench, demo};
use clap::{Args, Parser, Subcommand};
use humantime_serde::re::humantime;
use std::{path::PathBuf, time::Duration};

/// Webhooks in, verified; deliveries out, claimed, retried and never lost.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version,
    propagate_version = true,
    after_help = "Examples:
  fencepost demo                                    see the whole thing work, without any config
  fencepost check --config my.toml                  explain every mistake in a config
  fencepost standalone --config my.toml             one process, everything in one directory
  fencepost verify --source github --headers h.txt --body b.json    why is this request refused?
  fencepost dlq list --since 2h --destination billing

Exit codes: 0 fine, 1 the answer is no (see the command), 2 wrong command line, 64 mistake in the config, 69 log or store \
unavailable at the start, 70 failed while running.
Every setting can be given as a variable too: FENCEPOST_LOG__KIND=kafka is `kind` in `[log]`."
)]
pub(crate) struct Cli {
    /// Config file [default: ./fencepost.toml when it exists]
    #[arg(long, global = true, value_name = "PATH", env = "FENCEPOST_CONFIG")]
    pub config: Option<PathBuf>,

    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run ingest and dispatcher in one process
    #[command(after_help = "Example:
  GITHUB_SECRET=… fencepost standalone --config fencepost.example.toml")]
    Standalone,
    /// Run the HTTP side: receive, verify, append to the log
    Ingest,
    /// Run the delivering side: read the log, claim, send, retry
    Dispatcher,
    /// Explain every mistake in the config
    #[command(
        after_help = "Prints `key.path: what is wrong` for each mistake and exits 64, or a summary and 0.

Examples:
  fencepost check --config my.toml
  fencepost check --config my.toml --skip-secrets   where the secrets are not at hand, e.g. in CI"
    )]
    Check(CheckArgs),
    /// Explain step by step why a captured request is taken or refused
    #[command(after_help = VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Sign a request as a source's sender does and post it
    #[command(after_help = SEND_HELP)]
    Send(SendArgs),
    /// Create or show the topics of the log
    #[command(subcommand)]
    Topics(TopicsCommand),
    /// Create the store's tables or look a delivery up
    #[command(subcommand)]
    Store(StoreCommand),
    /// Look at dead letters
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// See how destinations stand, pause and resume them
    #[command(subcommand)]
    Destinations(DestinationsCommand),
    /// Ask a sender for webhooks that did not arrive
    #[command(subcommand)]
    Reconcile(ReconcileCommand),
    /// Watch the pipeline work on this machine, with failures on purpose
    Demo(demo::DemoArgs),
    /// Measure throughput and latency
    Bench(bench::BenchArgs),
}

/// `fencepost check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Do not read secrets and certificates
    #[arg(long)]
    pub skip_secrets: bool,
}

const VERIFY_HELP: &str = "FILE of --headers holds lines `Name: value`, as they are or as `curl -v`, a proxy or GitHub's \"Recent \
deliveries\" show them, or a JSON object {\"Name\": \"value\" or [values]}. The bytes of the body must be those that were sent. No \
secret is printed, and nothing is sent anywhere.

Exit codes: 0 it would be answered 2xx, 1 it would be refused, 64 mistake in the source's config or in an argument.

Examples:
  fencepost verify --source github --headers headers.txt --body body.json
  fencepost verify --source stripe --headers headers.json --body body.json --at 2026-11-30T08:00:00Z
  fencepost send --source slack --body body.json --dry-run |
    fencepost verify --source slack --headers - --body body.json";

/// `fencepost verify`.
#[derive(Clone, Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Source, as in `[sources.<name>]`
    #[arg(long, value_name = "NAME")]
    pub source: String,
    /// The request's headers; - reads them from standard input
    #[arg(long, value_name = "FILE")]
    pub headers: PathBuf,
    /// The request's body; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    pub body: PathBuf,
    /// When it arrived: a time (2026-11-30T08:00:00Z) or seconds since 1970 [default: now]
    #[arg(long, value_name = "TIME")]
    pub at: Option<String>,
    /// What stands behind the ? of the URL that was called [default: that of the request line in --headers]
    #[arg(long, value_name = "QUERY")]
    pub query: Option<String>,
    /// HTTP method [default: that of the request line in --headers, else POST]
    #[arg(long)]
    pub method: Option<String>,
    /// The sender's certificate (PEM) where one is needed (PayPal): what paypal-cert-url of the request leads to
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const SEND_HELP: &str = "The URL is that of [ingest] in the config, unless --to says another. Headers are shown as they are sent, \
with a secret token hidden. A sender whose ids, types or times stand in the body sends those of the body.

A signing key is written as the source's secret is (hex, base64, with or without prefix): the 32 bytes of an Ed25519 key, PKCS #8 \
of a P-256 key. On Linux SSL_CERT_FILE=tls.crt makes `send` take a self-signed certificate.

Exit codes: 0 answered 2xx, 1 answered otherwise, 64 mistake in the source's config or in an argument, 69 nobody answers.

Examples:
  fencepost send --source github --body body.json --event push
  fencepost send --source stripe --body body.json --to https://hooks.example.com/hooks/stripe
  fencepost send --source github --body body.json --id 7 --count 2     a repeat, delivered once
  fencepost send --source discord --body body.json --signing-key-file discord.key";

/// `fencepost send`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SendArgs {
    /// Source, as in `[sources.<name>]`
    #[arg(long, value_name = "NAME")]
    pub source: String,
    /// The body; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    pub body: PathBuf,
    /// Where to post it [default: ingest.listen, path_prefix and source]
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,
    /// Event type, where the sender has it in a header [default: ping]
    #[arg(long, value_name = "TYPE")]
    pub event: Option<String>,
    /// Delivery id, where the sender has it in a header [default: a new UUID for each request]
    #[arg(long)]
    pub id: Option<String>,
    /// Which of the source's secrets signs, from 0
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["signing_key_env", "signing_key_file"])]
    pub secret_slot: usize,
    /// Sign with the key in this variable: the private one where the source has the sender's public key
    #[arg(long, value_name = "NAME", conflicts_with = "signing_key_file")]
    pub signing_key_env: Option<String>,
    /// Sign with the key in this file
    #[arg(long, value_name = "FILE")]
    pub signing_key_file: Option<PathBuf>,
    /// Post so many, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: u32,
    /// Print the headers and post nothing; `fencepost verify` reads them
    #[arg(long)]
    pub dry_run: bool,
    /// A further header; may be given several times
    #[arg(long, value_name = "NAME: VALUE")]
    pub header: Vec<String>,
    /// Media type of the body [default: application/json]
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
}

/// `fencepost topics …`.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum TopicsCommand {
    /// Create what is missing and check what is there; safe to repeat, alters and deletes nothing
    Ensure {
        /// Add partitions to existing topics up to `log.partitions`
        #[arg(long)]
        grow: bool,
    },
    /// Show topics, partitions and the settings that matter
    Describe,
}

/// `fencepost store …`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Create keyspace and table when they are missing; safe to repeat
    Migrate,
    /// Show what the store knows of a delivery
    #[command(after_help = "Example:
  fencepost store get github 72d3162e-cc78-11e3-81ab-4c9367dc0958 billing --json")]
    Get(GetArgs),
}

/// `fencepost store get`.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Source, as in `[sources.<name>]`
    pub source: String,
    /// The sender's id of the webhook
    pub delivery_id: String,
    /// Destination, as in `[destinations.<name>]`
    pub destination: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `fencepost dlq …`.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, the latest first
    #[command(after_help = "Examples:
  fencepost dlq list --reason exhausted --since 2h
  fencepost dlq list --destination billing --since 2026-11-30T08:00:00Z --json")]
    List(ListArgs),
}

/// `fencepost dlq list`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ListArgs {
    /// Only this reason: rejected, gone, exhausted, expired, blocked, undecodable, unknown_destination, destination_paused
    #[arg(long)]
    pub reason: Option<String>,
    /// Only this destination
    #[arg(long)]
    pub destination: Option<String>,
    /// Only this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only those given up since then: a time (2026-11-30T08:00:00Z) or an age (2h, 3days)
    #[arg(long, value_name = "TIME|AGE")]
    pub since: Option<String>,
    /// At most this many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// `fencepost destinations …`.
#[derive(Debug, Subcommand)]
pub(crate) enum DestinationsCommand {
    /// Show how each destination stands: active, failing or paused, since when and why
    List {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Send nothing more to a destination until it is resumed, whichever dispatcher it is
    #[command(
        after_help = "What is under way is not stopped. `destinations.<name>.pause.deliveries` says what becomes of deliveries \
meanwhile.

Example:
  fencepost destinations pause billing --note \"moving to the new cluster, ask Kim\""
    )]
    Pause(PauseArgs),
    /// Send to a destination again, and forget since when it fails
    Resume {
        /// Destination, as in `[destinations.<name>]`
        name: String,
    },
}

/// `fencepost destinations pause`.
#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Destination, as in `[destinations.<name>]`
    pub name: String,
    /// Who or why, for those who see it paused: at most 200 characters
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,
}

/// `fencepost reconcile …`.
#[derive(Debug, Subcommand)]
pub(crate) enum ReconcileCommand {
    /// Find what GitHub has given up or we have lost, and ask for it again
    #[command(
        long_about = "Find what GitHub has given up or we have lost, and ask for it again.

GitHub gives each webhook one try and keeps it for 3 days (Enterprise Server: 7). This lists the attempts of the hooks in \
[reconcile.<source>], looks each webhook up in the store at the destinations that the routes send it to, and asks GitHub to \
deliver again what the store has never seen: `failed` when no attempt of GitHub succeeded, `unseen` when one did. The oldest \
are asked for first. Nothing is asked for that goes nowhere, that is younger than --settle or that was asked for within \
--cool-down.",
        after_help = "Exit codes: 0 all that is missing was asked for, 1 not all (refused, unanswered, rate limit), 64 mistake in the \
config, 69 GitHub or the store unavailable.

Examples:
  fencepost reconcile github --dry-run              see what is missing
  fencepost reconcile github --state reconcile.json --json
  fencepost reconcile github --source github --since 6h --failed-only"
    )]
    Github(GithubArgs),
}

/// `fencepost reconcile github`.
#[derive(Clone, Debug, Args)]
pub(crate) struct GithubArgs {
    /// Only this source [default: all with a table in [reconcile]]
    #[arg(long, value_name = "NAME")]
    pub source: Option<String>,
    /// Look at attempts since then: a time (2026-11-30T08:00:00Z) or an age (6h, 3days)
    #[arg(long, value_name = "TIME|AGE", default_value = "3days")]
    pub since: String,
    /// Say what would be asked for; ask for and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Leave out what GitHub counts as delivered although the store has never seen it
    #[arg(long)]
    pub failed_only: bool,
    /// Leave alone what was attempted less than this ago; it may be on its way through the log
    #[arg(long, value_name = "AGE", default_value = "5m", value_parser = humantime::parse_duration)]
    pub settle: Duration,
    /// Leave alone what was asked for less than this ago, as --state remembers it
    #[arg(long, value_name = "AGE", default_value = "1h", value_parser = humantime::parse_duration)]
    pub cool_down: Duration,
    /// Ask for at most this many a minute; GitHub wants a second between two
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=6_000))]
    pub per_minute: u32,
    /// Ask for at most this many in all
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
    /// Remember in this file what was asked for: a run that was killed goes on, and two runs keep apart
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Print JSON lines: one for each webhook asked for, then one for each source
    #[arg(long)]
    pub json: bool,
}
