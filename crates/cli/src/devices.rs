//! `feroce devices` and `feroce devinfo`.

use std::process::ExitCode;

/// Options of `devices`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {}

/// Options of `devinfo`.
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {}

pub(crate) fn list(_args: &ListArgs, _json: bool) -> anyhow::Result<ExitCode> {
    anyhow::bail!("devices is not there yet")
}

pub(crate) fn info(_args: &InfoArgs, _json: bool) -> anyhow::Result<ExitCode> {
    anyhow::bail!("devinfo is not there yet")
}
