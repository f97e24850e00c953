//! `feroce fabric run`.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::ensure;
use feroce::Settings;

use super::place::Place;
use super::status::AnyStatus;
use super::subnet::SubnetStatus;
use super::{refuse, status};
use crate::dropin::{self, SettingArgs};

const EXAMPLES: &str = "\
Examples:
  feroce fabric run -n h0 -- ib_write_bw
  feroce fabric run -n h3 -- ib_write_bw 127.77.0.1
  feroce fabric run -n h1 -- rping -s -a 127.77.0.2
  feroce fabric run -n h1 --pcap h1.pcapng -- ./my-program
  feroce fabric run -n h2 -- bash             every program of that shell
  feroce fabric run -n Host1 -- ibnetdiscover  programs of an InfiniBand fabric

In an Ethernet fabric, the program has one device, with the address of the host. DCQCN is on if the
switches mark packets; FEROCE_CONGESTION chooses another algorithm, or none. In an InfiniBand
fabric, programs of libibumad and libibverbs see the adapter of the host. The exit status is the
program's.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The host that it runs on.
    #[arg(short = 'n', long = "host", value_name = "HOST")]
    host: String,
    /// End the program when the process ends that started it.
    #[arg(long, hide = true)]
    end_with_parent: bool,
    #[command(flatten)]
    settings: SettingArgs,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub(super) fn run(args: &Args, place: &Place) -> anyhow::Result<ExitCode> {
    ensure!(!args.settings.has_addresses(), "--address: the host has its address already");
    if args.end_with_parent {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)?;
    }
    let status = match status::fetch_any(place)? {
        AnyStatus::Ethernet(status) => status,
        AnyStatus::InfiniBand(status) => return run_in_subnet(args, place, &status),
    };
    let Some(host) = status.hosts.iter().find(|host| host.name == args.host) else {
        let names: Vec<&str> = status.hosts.iter().map(|host| host.name.as_str()).collect();
        let (host, names) = (&args.host, names.join(", "));
        return Ok(refuse(&format!("no host {host} in the fabric {}: {names}", status.name)));
    };
    let mut variables = vec![
        (Settings::variable("fabric"), place.port_socket().into_os_string()),
        (Settings::variable("address"), host.address.to_string().into()),
    ];
    let is_chosen = |name: &&str| std::env::var_os(Settings::variable(name)).is_some();
    if status.marks && !["congestion", "dcqcn"].iter().any(is_chosen) {
        variables.push((Settings::variable("congestion"), "dcqcn".into()));
    }
    dropin::exec(&args.command, &args.settings, variables)
}

/// Runs a program on a host of an InfiniBand fabric.
fn run_in_subnet(args: &Args, place: &Place, status: &SubnetStatus) -> anyhow::Result<ExitCode> {
    if !status.hosts().any(|host| host == args.host) {
        if let Some(part) = status.part_of(&args.host) {
            let why = format!("{} is in part {part}: run it where that part runs", args.host);
            return Ok(refuse(&why));
        }
        let (host, names) = (&args.host, status.hosts().collect::<Vec<_>>().join(", "));
        return Ok(refuse(&format!("no host {host} in the fabric {}: {names}", status.name)));
    }
    let variables = vec![
        (Settings::variable("subnet"), place.subnet_socket().into_os_string()),
        (Settings::variable("host"), args.host.clone().into()),
    ];
    dropin::exec(&args.command, &args.settings, variables)
}
