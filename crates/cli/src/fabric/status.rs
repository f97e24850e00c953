//! `feroce fabric status`.

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::bail;

use super::control::{Command, Reply};
use super::place::Place;
use super::report::Status;
use super::subnet::SubnetStatus;
use serde::Serialize;
use serde_json::{Value, json};

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
    match fetch_any(place)? {
        AnyStatus::Ethernet(status) => print(&status, json)?,
        AnyStatus::InfiniBand(status) => print(&status, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print<T: Display + Serialize>(status: &T, json: bool) -> anyhow::Result<()> {
    match json {
        true => println!("{}", serde_json::to_string_pretty(status)?),
        false => print!("{status}"),
    }
    Ok(())
}

/// What a fabric of either kind says.
pub(super) enum AnyStatus {
    Ethernet(Box<Status>),
    InfiniBand(Box<SubnetStatus>),
}

/// What every fabric of this user that runs says, as JSON: `kind` is `ethernet` or `infiniband`,
/// and `status` what `feroce --json fabric status` prints. For one that does not answer, `error`
/// says why.
pub(crate) fn all() -> Vec<Value> {
    let places = Place::all().unwrap_or_default().into_iter().filter(Place::is_running);
    let found = places.map(|place| match fetch_any(&place) {
        Ok(AnyStatus::Ethernet(status)) => json!({ "kind": "ethernet", "status": status }),
        Ok(AnyStatus::InfiniBand(status)) => json!({ "kind": "infiniband", "status": status }),
        Err(e) => json!({ "kind": "unknown", "name": place.name(), "error": format!("{e:#}") }),
    });
    found.collect()
}

/// Asks the fabric.
pub(super) fn fetch_any(place: &Place) -> anyhow::Result<AnyStatus> {
    match place.command(&Command::Status)?.0 {
        Reply::Status(status) => Ok(AnyStatus::Ethernet(status)),
        Reply::Subnet(status) => Ok(AnyStatus::InfiniBand(status)),
        other => bail!("the fabric answers {other:?}"),
    }
}
