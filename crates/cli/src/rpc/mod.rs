//! `feroce rpc bench`: calls built from verbs in seven ways, measured.

mod args;
mod measure;
mod report;
mod serve;
mod store;
mod task;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use feroce::Device;
use feroce::cm::Manager;

use crate::{plot, stop};

use args::BenchArgs;
pub(crate) use args::Command;
use report::{Row, Table};
use serve::Child;
use task::Task;

/// Runs a command.
pub(crate) fn run(command: &Command, json: bool) -> anyhow::Result<ExitCode> {
    let Command::Bench(args) = command;
    if let Some(path) = &args.plot {
        plot::prepare(path)?;
    }
    ensure!(args.address.len() <= 1 || args.both, "--address: two addresses are for --both");
    let rows = match &args.host {
        _ if args.both => both(args, json)?,
        Some(host) => {
            let mut found = (host.as_str(), args.port).to_socket_addrs();
            let to = found.as_mut().ok().and_then(Iterator::next);
            let to = to.with_context(|| format!("no address of {host:?} is known"))?;
            client(args, &manager(args.address.first().copied())?, to, json)?
        }
        None => {
            serve::run(args, json)?;
            Vec::new()
        }
    };
    if let Some(path) = args.plot.as_ref().filter(|_| !rows.is_empty()) {
        report::draw(path, &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A connection manager for the device at an address, or for all devices.
fn manager(ip: Option<IpAddr>) -> anyhow::Result<Manager> {
    let Some(ip) = ip else { return Ok(Manager::new()) };
    let context = Device::at([ip]).open().with_context(|| format!("cannot open {ip}"))?;
    Ok(Manager::with([context])?)
}

/// Both ends on this machine: the server is another process, so that each has its processor time.
fn both(args: &BenchArgs, json: bool) -> anyhow::Result<Vec<Row>> {
    let (there, here) = match *args.address {
        [] => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(127, 0, 0, 2).into()),
        [there, here] => (there, here),
        _ => anyhow::bail!("--both needs two addresses: --address SERVER,CLIENT"),
    };
    let server = Child::start(there)?;
    client(args, &manager(Some(here))?, server.addr(), json)
}

/// Measures with a server.
fn client(
    args: &BenchArgs,
    manager: &Manager,
    to: SocketAddr,
    json: bool,
) -> anyhow::Result<Vec<Row>> {
    stop::watch()?;
    let table = Table { json };
    table.head(to);
    let tasks = Task::all(args.sizes());
    let mut rows = Vec::new();
    for pattern in args.patterns() {
        let mut end = measure::connect(manager, to, pattern)?;
        for &task in tasks.iter().take_while(|_| !stop::requested()) {
            let row = measure::run(&mut end, pattern, task, args.amount())?;
            table.row(&row)?;
            rows.push(row);
        }
    }
    table.words(&rows);
    Ok(rows)
}
