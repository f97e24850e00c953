//! `feroce portd`: holds the UDP port of this host, so that other programs can start and end
//! without a gap in reception.
//!
//! Of the processes that share an address, one (the port owner) receives the packets of other hosts
//! and forwards them to the other processes. When it ends, another process takes its place; packets
//! that arrive in between are lost and retransmitted. Any process with an open device can be the
//! port owner. portd does nothing else, and keeps running.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use feroce::{Context, Device, DeviceKind, Settings};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

const EXAMPLES: &str = "\
Examples:
  feroce portd                   every device of this machine, until interrupted
  feroce portd -d eth0 -d eth1   those on two interfaces

Programs find it by themselves, if they are of the same user. Where one of them is there first, this
takes its place when that program ends.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Device, or its interface; may be repeated [default: all]
    #[arg(short = 'd', long = "ib-dev", value_name = "DEV", conflicts_with = "address")]
    device: Vec<String>,
    /// Addresses to use instead of devices.
    #[arg(long, value_delimiter = ',', value_name = "IP")]
    address: Vec<IpAddr>,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    // Signals are caught before portd prints that it is ready: the process that started it may
    // send SIGTERM as soon as it reads that line.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
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

fn devices(args: &Args) -> anyhow::Result<Vec<Device>> {
    if !args.address.is_empty() {
        return Ok(args.address.iter().map(|address| Device::at([*address])).collect());
    }
    if args.device.is_empty() {
        return Ok(Device::list()?);
    }
    Ok(args.device.iter().map(|name| Device::named(name)).collect::<Result<_, _>>()?)
}
