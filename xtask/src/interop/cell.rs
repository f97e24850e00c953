//! Running one cell and judging it.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};

use super::cells::{Cell, Ending};
use super::counters;
use super::lab::{End, Lab};
use super::observed;
use crate::{Failure, Outcome};

/// Each cell has a port of its own, because the port of the previous cell may still be in use.
const FIRST_PORT: u16 = 18515;

/// How much longer than its client a server may take.
const GRACE: Duration = Duration::from_secs(20);

/// More than the commands themselves are given.
const LIMIT: Duration = Duration::from_mins(2);

/// The message of a program that received other bytes than were sent.
const WRONG_BYTES: &str = "invalid data";

/// Runs both ends; fails unless both succeed and the counters of the driver are as expected.
/// Returns the observations of the client, then those of the server.
pub(super) fn run(lab: &Lab, cell: &Cell, index: usize) -> Outcome<String> {
    let own = FIRST_PORT + u16::try_from(index).unwrap_or_default();
    let before = lab.counters()?;
    let (client, server) = run_ends(lab, cell, cell.row.family.port.unwrap_or(own))?;
    let mut complaints = counters::complaints(cell.row.counters, &before, &lab.counters()?);
    complaints.extend(judge(cell, &client, &server));
    match complaints.is_empty() {
        true => Ok(observed::lines(&client.output) + &observed::lines(&server.output)),
        false => {
            let mut why = complaints.join("\n");
            if !cell.row.fault.is_empty() {
                why += &format!("\ncaptured: {}", kept(&lab.capture(), index).display());
            }
            Err(Failure::Failed(format!("{why}\nclient: {client}\nserver: {server}")))
        }
    }
}

/// A name for a capture that the next cell does not take.
fn kept(capture: &Path, index: usize) -> PathBuf {
    let name = capture.with_file_name(format!("cell-{}.pcapng", index + 1));
    match fs::rename(capture, &name) {
        Ok(()) => name,
        Err(_) => capture.to_owned(),
    }
}

/// Runs client and server to their ends.
fn run_ends(lab: &Lab, cell: &Cell, port: u16) -> Outcome<(End, End)> {
    let (row, client_side) = (cell.row, cell.server.other());
    let mut server = lab.start(cell.server, &cell.command(cell.server, port), row)?;
    if let Err(Failure::Failed(why) | Failure::Usage(why)) =
        lab.await_server(cell.server, row.ready(), port, &mut server)
    {
        let server = server.finish(Duration::from_secs(1))?;
        return Err(Failure::Failed(format!("{why}\nserver: {server}")));
    }
    let client = lab.start(client_side, &cell.command(client_side, port), row)?;
    let client = client.finish(LIMIT)?;
    let server = match row.ending {
        Ending::Never => server.stop()?,
        Ending::Well | Ending::Killed => server.finish(GRACE)?,
    };
    Ok((client, server))
}

/// What is wrong with how the two ended.
fn judge(cell: &Cell, client: &End, server: &End) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, end) in [("client", client), ("server", server)] {
        let is_stopped = name == "server" && cell.row.ending != Ending::Well;
        if end.is_success() == is_stopped {
            complaints.push(format!("the {name}: {}", end.status));
        }
        if end.output.contains(WRONG_BYTES) {
            complaints.push(format!("the {name} got other bytes than were sent"));
        }
    }
    let words = client.output.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = cell.row.says();
    if !format!(" {words} ").contains(&says) {
        complaints.push(format!("the client does not say `{}`", says.trim()));
    }
    complaints
}
