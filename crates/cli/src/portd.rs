//! `feroce portd`: holds the UDP port of this host, so that other programs can start and end
//! without a gap in reception.
//!
//! Of the processes that share an address, one (the port owner) receives the packets of other hosts
//! and forwards them to the other processes. When it ends, another process takes its place; packets
//! that arrive in between are lost and retransmitted. Any process with an open device can be the
//! port owner. portd does nothing else, and keeps running.
//!
//! With `--all-users`, it receives for the processes of every user ([`feroce_local::Portd`]).

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use feroce::{Context, Device, DeviceKind, Settings};
use feroce_link::UdpConfig;
use feroce_local::Portd;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::limits::raise_descriptors;

const EXAMPLES: &str = "\
Examples:
  feroce portd                   every device of this machine, until interrupted
  feroce portd -d eth0 -d eth1   those on two interfaces
  sudo feroce portd --all-users  all addresses, for the programs of every user

Programs find it by themselves, if they are of the same user. Where one of them is there first, this
takes its place when that program ends.

With --all-users, programs of every user find it, and use the same addresses at the same time. It
sees what arrives for all of them, so they trust it only if it runs as root, as their own user, or
as a user that they name (FEROCE_PORTD). Start it before the programs: a program that has an address
already keeps it, and other users wait until it ends.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Device, or its interface; may be repeated [default: all]
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "DEV")]
    #[arg(conflicts_with = "address")]
    device: Vec<String>,
    /// Addresses to use instead of devices.
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    address: Vec<IpAddr>,
    /// Receive for the programs of every user.
    #[arg(long)]
    all_users: bool,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    // Signals are caught before portd prints that it is ready: the process that started it may
    // send SIGTERM as soon as it reads that line.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if args.all_users {
        return all_users(args, json, &mut signals);
    }
    let devices = devices(args)?;
    ensure!(!devices.is_empty(), "this machine has no interface with an address");
    ensure!(Settings::load()?.shared, "shared = off: no process shares addresses; set it to on");
    let is_ours = |device: &Device| device.kind() != DeviceKind::Kernel;
    ensure!(devices.iter().all(is_ours), "the kernel's drivers have no port to hold");
    let open =
        |device: &Device| device.open().with_context(|| format!("cannot open {}", device.name()));
    let contexts = devices.iter().map(open).collect::<Result<Vec<Context>, _>>()?;
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    if json {
        println!("{}", json!({ "receiving": names }));
    } else {
        println!("receiving for everybody at {}", names.join(", "));
    }
    // The driver threads of the devices forward the packets.
    signals.forever().next();
    for (context, name) in contexts.iter().zip(names) {
        let counters = context.link_counters();
        let count = |name| counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
        let (forwarded, lost) = (count("shm_forwarded"), count("shm_forward_lost"));
        if json {
            println!("{}", json!({ "device": name, "forwarded": forwarded, "lost": lost }));
        } else {
            println!("{name}: handed on {forwarded} trains of packets, {lost} were lost");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Receives for the programs of every user, at any address unless the arguments name some.
#[expect(clippy::disallowed_methods, reason = "portd has no driver, and needs a clock of its own")]
fn all_users(args: &Args, json: bool, signals: &mut Signals) -> anyhow::Result<ExitCode> {
    let settings = Settings::load()?;
    let is_limited = !args.device.is_empty() || !args.address.is_empty();
    let only = if is_limited {
        Some(devices(args)?.iter().flat_map(|device| device.gids().to_vec()).collect())
    } else {
        None
    };
    raise_descriptors()?;
    let config = UdpConfig { gro: settings.gro, rcvbuf: settings.rcvbuf, ..UdpConfig::default() };
    let root = Path::new("/dev/shm");
    let mut portd = Portd::new(config, only, root).context("cannot receive for all users")?;
    if json {
        println!("{}", json!({ "receiving": "all users" }));
    } else {
        println!("receiving for the programs of all users");
    }
    let start = std::time::Instant::now();
    let (stop, stopped) = io::pipe()?;
    let handle = signals.handle();
    std::thread::scope(|scope| {
        // The thread ends with the first signal; closing the pipe ends the loop below.
        scope.spawn(|| {
            signals.forever().next();
            drop(stopped);
        });
        let outcome = receive_until(&mut portd, &stop, start);
        handle.close();
        outcome
    })?;
    let counters = portd.counters();
    let count = |name| counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
    let (forwarded, lost) = (count("forwarded"), count("lost"));
    if json {
        println!("{}", json!({ "forwarded": forwarded, "lost": lost }));
    } else {
        println!("handed on {forwarded} trains of packets, {lost} were lost");
    }
    Ok(ExitCode::SUCCESS)
}

/// Drives a portd until the other end of a pipe is closed.
fn receive_until(
    portd: &mut Portd,
    stop: &io::PipeReader,
    start: std::time::Instant,
) -> anyhow::Result<()> {
    loop {
        let ends = [portd.wait_fd(), stop.as_fd()];
        let mut fds = ends.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        if fds[1].any() == Some(true) {
            return Ok(());
        }
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        portd.turn(feroce_train::Instant::from_nanos(ns))?;
    }
}

fn devices(args: &Args) -> anyhow::Result<Vec<Device>> {
    if !args.address.is_empty() {
        return Ok(args.address.iter().map(|address| Device::at([*address])).collect());
    }
    if args.device.is_empty() {
        return Ok(Device::list()?);
    }
    Ok(args.device.iter().map(|name| Device::named(name)).collect::<Result<_, _>>()?)
}
