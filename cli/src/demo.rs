//! `fencepost demo`.

use std::process::ExitCode;

/// `fencepost demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {}

/// Not built yet.
///
/// # Errors
/// Always.
#[expect(clippy::unused_async, reason = "the real one awaits")]
pub(crate) async fn run(_args: DemoArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
