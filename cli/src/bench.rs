//! `fencepost bench`.

use std::process::ExitCode;

/// `fencepost bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {}

/// Not built yet.
///
/// # Errors
/// Always.
#[expect(clippy::unused_async, reason = "the real one awaits")]
pub(crate) async fn run(_args: BenchArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
