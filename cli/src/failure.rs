//! Why a command failed, and the exit code for it.

use dedup_store::StoreError;
use event_log::LogError;
use runtime::Problem;
use std::{fmt, process::ExitCode};

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Mistakes in the config or in an argument: 64 (`EX_USAGE`).
    Config(Vec<Problem>),
    /// Something that the process needs is not there at the start: 69 (`EX_UNAVAILABLE`).
    Unavailable(String),
    /// It ran, and can not go on: 70 (`EX_SOFTWARE`).
    Fatal(String),
}

// === impl Failure ===

impl Failure {
    /// A mistake at one key.
    pub(crate) fn config(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Config(vec![Problem::new(key, message)])
    }

    /// `kind` needs a feature that this binary was built without.
    #[cfg_attr(
        all(feature = "kafka", feature = "cql"),
        expect(dead_code, reason = "this build has every feature")
    )]
    pub(crate) fn not_built(key: &str, kind: &str) -> Self {
        Self::config(
            key,
            format!("this binary was built without the feature `{kind}`"),
        )
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Config(_) => 64,
            Self::Unavailable(_) => 69,
            Self::Fatal(_) => 70,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problems) => {
                for (at, problem) in problems.iter().enumerate() {
                    let end = if at + 1 == problems.len() { "" } else { "\n" };
                    write!(f, "{problem}{end}")?;
                }
                Ok(())
            }
            Self::Unavailable(message) | Self::Fatal(message) => f.write_str(message),
        }
    }
}

impl From<Vec<Problem>> for Failure {
    fn from(problems: Vec<Problem>) -> Self {
        Self::Config(problems)
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Fatal(format!("{error:#}"))
    }
}
