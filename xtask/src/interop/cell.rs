//! Running one cell and judging it.

use core::time::Duration;

use super::cells::{Cell, Counters};
use super::counters;
use super::lab::{End, Lab, Side};
use crate::{Failure, Outcome};

/// Each cell has a TCP port of its own, for the one before may linger.
const FIRST_PORT: u16 = 18515;

/// How much longer than its client a server may take.
const GRACE: Duration = Duration::from_secs(20);

/// More than the commands themselves are given.
const LIMIT: Duration = Duration::from_mins(2);

/// What a program says that saw other bytes than were sent.
const WRONG_BYTES: &str = "invalid data";

/// Runs both ends; fails unless both are content and so is the driver.
pub(super) fn run(lab: &Lab, cell: &Cell, index: usize) -> Outcome {
    let port = FIRST_PORT + u16::try_from(index).unwrap_or_default();
    let client_side = match cell.server {
        Side::Kernel => Side::Ours,
        Side::Ours => Side::Kernel,
    };
    let before = lab.counters()?;
    let fault = cell.row.fault;
    let mut server = lab.start(cell.server, &cell.command(cell.server, port), fault)?;
    if let Err(Failure::Failed(why) | Failure::Usage(why)) =
        lab.await_port(cell.server, port, &mut server)
    {
        let server = server.finish(Duration::from_secs(1))?;
        return Err(Failure::Failed(format!("{why}\nserver: {server}")));
    }
    let client = lab.start(client_side, &cell.command(client_side, port), fault)?.finish(LIMIT)?;
    let server = server.finish(GRACE)?;
    let after = lab.counters()?;
    let mut complaints = match cell.row.counters {
        Counters::AtRest => counters::complaints(&before, &after),
        Counters::Lossy => counters::refused(&before, &after).into_iter().collect(),
        Counters::Free => Vec::new(),
    };
    complaints.extend(judge(cell, &client, &server));
    match complaints.is_empty() {
        true => Ok(()),
        false => {
            let why = complaints.join("\n");
            Err(Failure::Failed(format!("{why}\nclient: {client}\nserver: {server}")))
        }
    }
}

/// What is wrong with how the two ended.
fn judge(cell: &Cell, client: &End, server: &End) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, end) in [("client", client), ("server", server)] {
        let is_killed = name == "server" && cell.row.kills_server();
        if end.is_success() == is_killed {
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
