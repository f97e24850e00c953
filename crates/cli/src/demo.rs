//! `feroce demo`.

use std::process::ExitCode;

/// Options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, _json: bool) -> anyhow::Result<ExitCode> {
    anyhow::bail!("demo is not there yet")
}
