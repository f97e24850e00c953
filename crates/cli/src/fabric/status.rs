//! `feroce fabric status`.

use std::process::ExitCode;

use anyhow::bail;

use super::control::{Command, Reply};
use super::place::Place;
use super::report::Status;

const EXAMPLES: &str = "\
Examples:
  feroce fabric status               hosts, links, queues, drops
  feroce fabric status --name lab    of the fabric with that name
  feroce --json fabric status        the same for programs

`slowed` is by how much the fabric ran slower than real time because the processor could not keep
up: rates were lower and delays longer by as much.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

pub(super) fn run(place: &Place, json: bool) -> anyhow::Result<ExitCode> {
    let status = fetch(place)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print!("{status}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the fabric.
pub(super) fn fetch(place: &Place) -> anyhow::Result<Status> {
    match place.command(&Command::Status)?.0 {
        Reply::Status(status) => Ok(*status),
        other => bail!("the fabric answers {other:?}"),
    }
}
