//! The official libraries of senders and receivers as peers: they sign and verify in programs of their own languages
//! (`tests/foreign/peers.mjs` and `peers.py`), which know nothing of the product's code.

use crate::{
    process::{end, ended},
    stack::{cache, root, variable},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize, Serializer};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::PathBuf,
    process::Command,
    time::Duration,
};

/// Time for all questions of one run. They take a second or two; a busy machine needs longer to load the libraries.
const DEADLINE: Duration = Duration::from_secs(120);

/// A program with the libraries of one language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    JavaScript,
    Python,
}

/// What a library is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    Sign,
    Verify,
}

/// One line to a program.
#[derive(Clone, Debug, Serialize)]
pub struct Question {
    /// Name of the package.
    pub library: &'static str,
    #[serde(rename = "do")]
    pub task: Task,
    pub secret: String,
    /// Id of the delivery, for libraries that sign one.
    pub id: String,
    /// Lower-case names; empty when it is to sign.
    pub headers: BTreeMap<String, String>,
    #[serde(rename = "body_base64", serialize_with = "base64")]
    pub body: Vec<u8>,
    /// What the library shall take for the time, seconds since the Unix epoch.
    pub now_s: i64,
}

/// One line from a program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// What it has signed, lower-case names; none when it refused to, or was to verify.
    #[serde(default)]
    pub headers: Option<BTreeMap<String, String>>,
    /// Whether it accepts.
    #[serde(default)]
    pub ok: bool,
    /// What the library said when it refused.
    #[serde(default)]
    pub why: String,
}

/// Whether `tests/setup data` has installed the libraries as they are pinned now. When it has not, the test says so and
/// ends, as tests do that need Kafka.
///
/// # Panics
/// When they are not and `FENCEPOST_TEST_STACK=required`.
#[expect(
    clippy::print_stderr,
    reason = "the test runner shows it with --nocapture"
)]
pub fn installed() -> bool {
    let foreign = root().join("tests/foreign");
    let same = |pinned: &str, done: &str| {
        let done = fs::read(cache().join(done));
        done.is_ok_and(|done| fs::read(foreign.join(pinned)).is_ok_and(|pinned| pinned == done))
    };
    let installed = same("package-lock.json", "node/complete.json")
        && same("requirements.txt", "python/complete.txt");
    if !installed {
        let message = format!(
            "no official libraries, or old ones, in {}: run tests/setup data",
            cache().display()
        );
        let required = variable("FENCEPOST_TEST_STACK").as_deref() == Some("required");
        assert!(!required, "{message}");
        eprintln!("{message}");
    }
    installed
}

/// Asks everything in one run of the language's program. Answers are in the order of the questions.
///
/// # Panics
/// With what the program says, when it fails or takes too long.
pub async fn ask(language: Language, questions: &[Question]) -> Vec<Answer> {
    let dir = tempfile::tempdir().expect("a directory");
    let [input, output, errors] = ["in", "out", "err"].map(|name| dir.path().join(name));
    let lines: String = questions.iter().map(line).collect();
    fs::write(&input, lines).expect("the questions can be written");
    let create = |path: &PathBuf| File::create(path).expect("the answers can be written");
    let mut child = language
        .command()
        .env_clear()
        .env("PATH", variable("PATH").unwrap_or_default())
        .stdin(File::open(&input).expect("the questions can be read"))
        .stdout(create(&output))
        .stderr(create(&errors))
        .spawn()
        .unwrap_or_else(|error| panic!("{language:?}: {error}; run tests/setup test"));
    let status = ended(&mut child, DEADLINE).await;
    if status.is_none() {
        end(&mut child);
    }
    let [output, errors] =
        [output, errors].map(|path| fs::read_to_string(path).unwrap_or_default());
    let status =
        status.unwrap_or_else(|| panic!("{language:?}: not within {DEADLINE:?}\n{errors}"));
    assert!(status.success(), "{language:?}: {status}\n{errors}");
    let answers: Vec<Answer> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert_eq!(answers.len(), questions.len(), "{language:?}: {errors}");
    answers
}

// === impl Language ===

impl Language {
    fn command(self) -> Command {
        let foreign = root().join("tests/foreign");
        let (program, script) = match self {
            Self::JavaScript => (PathBuf::from("node"), "peers.mjs"),
            Self::Python => (cache().join("python/bin/python"), "peers.py"),
        };
        let mut command = Command::new(program);
        command.arg(foreign.join(script));
        if self == Self::JavaScript {
            command.arg(cache().join("node"));
        }
        command
    }
}

fn line(question: &Question) -> String {
    let json = serde_json::to_string(question).expect("a question is JSON");
    format!("{json}\n")
}

fn base64<S: Serializer>(body: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64_STANDARD.encode(body))
}
