//! `feroce devices` and `feroce devinfo`.
//!
//! They show what `ibv_devices` and `ibv_devinfo` of rdma-core show, in the same layout. They open
//! no device, so they also work while another process uses all of them.

mod attr;
mod text;

use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use feroce::{Device, DeviceKind};
use serde::Serialize;

use attr::Info;

const LIST_EXAMPLES: &str = "\
Examples:
  feroce devices            every interface with an address is a device
  feroce --json devices     the same for programs, with the interface and the addresses";

const INFO_EXAMPLES: &str = "\
Examples:
  feroce devinfo                  every device in short
  feroce devinfo -l               names only
  feroce devinfo -d eth0 -v       everything about the device of one interface";

/// Options of `devices`.
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub(crate) struct ListArgs {}

/// Options of `devinfo`.
#[derive(Debug, clap::Args)]
#[command(after_help = INFO_EXAMPLES)]
pub(crate) struct InfoArgs {
    /// Device, or its interface [default: all]
    #[arg(short = 'd', long = "ib-dev", visible_alias = "device", value_name = "DEV")]
    device: Option<String>,
    /// Port of the device; every device has one, number 1
    #[arg(short = 'i', long, value_name = "PORT",
          value_parser = clap::value_parser!(u8).range(1..=1))]
    ib_port: Option<u8>,
    /// Names only
    #[arg(short, long)]
    list: bool,
    /// Every attribute
    #[arg(short, long)]
    verbose: bool,
}

/// A device in a list, as JSON.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    node_guid: String,
    interface: Option<String>,
    kind: &'static str,
    active: bool,
    gids: Vec<String>,
}

pub(crate) fn list(_args: &ListArgs, json: bool) -> anyhow::Result<ExitCode> {
    let devices = Device::list()?;
    if json {
        let listed: Vec<Listed> = devices.iter().map(listed).collect();
        println!("{}", serde_json::to_string(&listed)?);
        return Ok(ExitCode::SUCCESS);
    }
    if devices.is_empty() {
        eprintln!(
            "feroce: there is no device: every interface that is up and has an address is one \
             (`ip link set lo up`)"
        );
    }
    // The first two columns are those of ibv_devices.
    let row =
        |name: &str, guid: &str, interface: &str, state: &str, rate: &str, addresses: &str| {
            println!(
                "    {name:<16}\t{guid:<16}\t{interface:<10} {state:<6} {rate:>9}  {addresses}"
            );
        };
    row("device", "   node GUID", "interface", "state", "rate", "addresses");
    row("------", "----------------", "---------", "-----", "----", "---------");
    for device in &devices {
        let gids = device.gids().iter().filter(|gid| !gid.is_zero());
        let addresses: Vec<String> = gids.map(|gid| gid.to_ip().to_string()).collect();
        row(
            device.name(),
            &format!("{:016x}", device.guid()),
            device.interface_name().unwrap_or("-"),
            if device.is_up() { "active" } else { "down" },
            &rate(device),
            &addresses.join(", "),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The rate of the port, if it can be asked for.
fn rate(device: &Device) -> String {
    let info = Info::of(device).ok();
    let port = info.as_ref().and_then(|info| info.ports.first());
    port.map_or_else(|| "-".to_owned(), attr::Port::rate)
}

fn listed(device: &Device) -> Listed {
    Listed {
        name: device.name().to_owned(),
        node_guid: format!("{:016x}", device.guid()),
        interface: device.interface_name().map(str::to_owned),
        kind: match device.kind() {
            DeviceKind::Interface => "interface",
            DeviceKind::Loopback => "loopback",
            DeviceKind::Addresses => "addresses",
            DeviceKind::Kernel => "kernel",
            DeviceKind::Subnet => "subnet",
        },
        active: device.is_up(),
        gids: device.gids().iter().filter(|g| !g.is_zero()).map(ToString::to_string).collect(),
    }
}

pub(crate) fn info(args: &InfoArgs, json: bool) -> anyhow::Result<ExitCode> {
    let devices = match &args.device {
        Some(name) => vec![Device::named(name)?],
        None => Device::list()?,
    };
    ensure!(!devices.is_empty(), "there is no device");
    if args.list {
        return list_names(&devices, json);
    }
    let infos: Vec<Info> = devices
        .iter()
        .map(|device| Info::of(device).with_context(|| format!("cannot query {}", device.name())))
        .collect::<Result<_, _>>()?;
    if json {
        println!("{}", serde_json::to_string(&infos)?);
    } else {
        for info in &infos {
            print!("{}", text::of(info, args.verbose));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list_names(devices: &[Device], json: bool) -> anyhow::Result<ExitCode> {
    let names: Vec<&str> = devices.iter().map(Device::name).collect();
    if json {
        println!("{}", serde_json::to_string(&names)?);
    } else {
        println!("{} HCA{} found:", names.len(), if names.len() == 1 { "" } else { "s" });
        for name in names {
            println!("\t{name}");
        }
        println!();
    }
    Ok(ExitCode::SUCCESS)
}
