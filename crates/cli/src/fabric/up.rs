//! `feroce fabric up` and `feroce fabric down`.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command as Process, ExitCode, Stdio};

use anyhow::{Context as _, bail};
use feroce_sim::scenario::text::read_network;
use feroce_subnet::{Net, NetNode, NodeKind};
use serde_json::json;

use super::control::{Command, Reply};
use super::place::Place;
use super::pump::Pump;
use super::report::HostStatus;
use super::serve::Server;
use super::status::AnyStatus;
use super::subnet::PartArgs;
use super::{refuse, status, subnet};
use crate::limits::raise_descriptors;
use crate::stop;

const UP_EXAMPLES: &str = "\
Examples:
  feroce fabric up lot.toml                  in the background, until `feroce fabric down`
  feroce fabric up --name lab --foreground lot.toml  until interrupted
  feroce fabric up --sm tree.net             an InfiniBand fabric, brought up by opensm
  feroce fabric up --part east --listen 10.0.0.1:7423 tree.net    two parts of one, each on
  feroce fabric up --part west --join 10.0.0.1:7423 tree.net      a machine of its own
  feroce fabric run -n h0 -- ib_write_bw     a server on the first host
  feroce fabric run -n h3 -- ib_write_bw 127.77.0.1

A topology in TOML, as for `feroce sim run`:
  [topology]
  kind = \"parking-lot\"    # or star, ring, leaf-spine, fat-tree, torus, custom, file
  switches = 2
  hosts = 2               # of each switch
  rate = \"1G\"
  delay = \"20us\"

  [switch]
  ecn = \"by-rate\"         # DCQCN is on in programs if switches mark packets

An InfiniBand fabric, in the format of ibsim (the name of the file does not end in `.toml`):
  Switch 8 \"Leaf1\"
  [1] \"Host1\"[1]
  [2] \"Host2\"[1]
  Hca 1 \"Host1\"
  [1] \"Leaf1\"[1]
  Hca 1 \"Host2\"
  [1] \"Leaf1\"[2]
In parts, a line `part=NAME` stands before the nodes of each.
Its links stay in INIT until a subnet manager runs: `--sm`, or `fabric run -n Host1 -- opensm`.

Exit status: 0 it runs, 1 it cannot, 2 the input is wrong.";

const DOWN_EXAMPLES: &str = "\
Examples:
  feroce fabric down                 programs that still run lose their network
  feroce fabric down --name lab";

/// Options of `up`.
#[derive(Debug, clap::Args)]
#[command(after_help = UP_EXAMPLES)]
pub(crate) struct UpArgs {
    /// Topology: in TOML (Ethernet), or in the format of ibsim (InfiniBand).
    topology: PathBuf,
    /// Do not go to the background.
    #[arg(long)]
    foreground: bool,
    /// Begin the addresses of hosts with these two numbers [default: 127.77, or the next free one].
    #[arg(long, value_name = "A.B", value_parser = parse_prefix)]
    addresses: Option<[u8; 2]>,
    /// Random seed: the same seed gives the same run.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Start opensm on a host of an InfiniBand fabric [default: the first], and wait until all
    /// ports are active.
    #[arg(long, value_name = "HOST", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "")]
    sm: Option<String>,
    /// The part of an InfiniBand fabric that runs here: the topology says `part=NAME` above its
    /// nodes.
    #[arg(long, value_name = "NAME")]
    part: Option<String>,
    /// Wait for other parts there. Every machine that can connect can send packets to the fabric.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "part")]
    listen: Option<String>,
    /// Connect with another part, which listens there.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "part")]
    join: Vec<String>,
}

/// Options of `down`.
#[derive(Debug, clap::Args)]
#[command(after_help = DOWN_EXAMPLES)]
pub(crate) struct DownArgs {}

/// The line by which the process in the background says that it runs.
const READY: &str = "ready";

pub(super) fn up(args: &UpArgs, place: &Place, json: bool) -> anyhow::Result<ExitCode> {
    if subnet::is_net(&args.topology) {
        return up_subnet(args, place, json);
    }
    if args.sm.is_some() {
        return Ok(refuse(&"--sm: an Ethernet fabric has no subnet manager"));
    }
    if args.part.is_some() {
        return Ok(refuse(&"--part: an Ethernet fabric runs in one process"));
    }
    let network = match read_network(&args.topology) {
        Ok(network) => network,
        Err(e) => return Ok(refuse(&e)),
    };
    let prefix = match args.addresses {
        Some(prefix) => prefix,
        None => free_prefix()?,
    };
    let config = feroce_fabric::Config { seed: args.seed, ..network.fabric };
    let pump = match Pump::new(network.topology, config, prefix) {
        Ok(pump) => pump,
        Err(e) => return Ok(refuse(&format!("{}: {e}", args.topology.display()))),
    };
    if !args.foreground {
        let [a, b] = prefix;
        return start(args, &["--addresses", &format!("{a}.{b}")], place, json);
    }
    stop::watch()?;
    let taken = place.take()?;
    // Otherwise fewer programs can join.
    let _ = raise_descriptors();
    let mut server = Server::new(place, pump)?;
    println!("{READY}");
    std::io::stdout().flush()?;
    let outcome = server.run();
    drop(taken);
    drop(server);
    outcome.map(|()| ExitCode::SUCCESS)
}

/// The same for an InfiniBand fabric.
fn up_subnet(args: &UpArgs, place: &Place, json: bool) -> anyhow::Result<ExitCode> {
    let net = match subnet::read_net(&args.topology) {
        Ok(net) => net,
        Err(e) => return Ok(refuse(&e)),
    };
    let part = match find_part(args, &net) {
        Ok(part) => part,
        Err(e) => return Ok(refuse(&e)),
    };
    let is_here = |node: &&NetNode| part.as_ref().is_none_or(|part| part.part == node.part);
    let mut hosts = net.nodes.iter().filter(|node| node.kind == NodeKind::Adapter).filter(is_here);
    let on = match args.sm.as_deref() {
        None => None,
        Some("") => hosts.next(),
        Some(name) => hosts.find(|host| host.name == name),
    };
    if let (Some(name), None) = (&args.sm, on) {
        return Ok(refuse(&format!("--sm: the fabric has no host {name}")));
    }
    let prefix = match (args.addresses, &part) {
        (Some(prefix), _) => prefix,
        // All parts must say the same of each other's hosts.
        (None, Some(_)) => [127, FIRST_PREFIX],
        (None, None) => free_prefix()?,
    };
    if !args.foreground {
        let extra = subnet_options(args, prefix);
        let extra: Vec<&str> = extra.iter().map(String::as_str).collect();
        return start(args, &extra, place, json);
    }
    stop::watch()?;
    let taken = place.take()?;
    let mut server = subnet::Server::new(place, &net, prefix, part.as_ref())?;
    let mut manager = match on {
        Some(host) => Some(subnet::Manager::start(place, &host.name)?),
        None => None,
    };
    // Not for the subnet manager. Otherwise fewer programs can join.
    let _ = raise_descriptors();
    if let Some(manager) = &mut manager {
        server.bring_up(manager)?;
    }
    println!("{READY}");
    std::io::stdout().flush()?;
    let outcome = server.run();
    if let Some(manager) = manager {
        server.end(manager)?;
    }
    drop(taken);
    drop(server);
    outcome.map(|()| ExitCode::SUCCESS)
}

/// The part that runs here, and how it finds the others.
fn find_part(args: &UpArgs, net: &Net) -> Result<Option<PartArgs>, String> {
    let names = net.parts.join(", ");
    let Some(name) = &args.part else {
        return match net.parts.is_empty() {
            true => Ok(None),
            false => Err(format!("the fabric has parts: say --part with one of {names}")),
        };
    };
    let part =
        net.parts.iter().position(|part| part == name).ok_or_else(|| match names.as_str() {
            "" => {
                "--part: the fabric has none: write `part=NAME` above the nodes of each".to_owned()
            }
            _ => format!("--part: the fabric has no part {name}: {names}"),
        })?;
    if args.listen.is_none() && args.join.is_empty() {
        return Err("--part: say how it meets the others: --listen, or --join".to_owned());
    }
    Ok(Some(PartArgs { part, listen: args.listen.clone(), join: args.join.clone() }))
}

/// The options by which the process in the background is to run the same.
fn subnet_options(args: &UpArgs, [a, b]: [u8; 2]) -> Vec<String> {
    let mut extra = vec!["--addresses".to_owned(), format!("{a}.{b}")];
    extra.extend(args.sm.as_ref().map(|name| match name.as_str() {
        "" => "--sm".to_owned(),
        name => format!("--sm={name}"),
    }));
    extra.extend(args.part.as_ref().map(|name| format!("--part={name}")));
    extra.extend(args.listen.as_ref().map(|address| format!("--listen={address}")));
    extra.extend(args.join.iter().map(|address| format!("--join={address}")));
    extra
}

/// Starts this command again in the background, and waits until it runs.
fn start(args: &UpArgs, extra: &[&str], place: &Place, json: bool) -> anyhow::Result<ExitCode> {
    place.create()?;
    let mut log = File::options().create(true).read(true).append(true).open(place.log())?;
    let own = std::env::current_exe().context("cannot tell where this command is")?;
    let mut command = Process::new(own);
    command.args(["fabric", "--name", place.name(), "up", "--foreground"]);
    command.args(extra).arg("--seed").arg(args.seed.to_string());
    command.arg(&args.topology).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(log.try_clone()?);
    // An interrupt at the terminal is not meant for it.
    command.process_group(0);
    let mut child = command.spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim_end() != READY {
        let status = child.wait()?;
        // It has removed the file with all others that it made.
        let mut said = String::new();
        let _ = log.rewind().and_then(|()| log.read_to_string(&mut said));
        let last = said.lines().next_back().unwrap_or_default();
        bail!("{} ({status})", last.trim_start_matches("feroce: "));
    }
    let status = match status::fetch_any(place)? {
        AnyStatus::Ethernet(status) => status,
        AnyStatus::InfiniBand(status) => {
            if json {
                println!(
                    "{}",
                    json!({ "name": status.name, "pid": status.pid,
                    "hosts": status.hosts().collect::<Vec<_>>(),
                    "addresses": status.host_nodes().map(|host| host.address).collect::<Vec<_>>() })
                );
            } else {
                println!("InfiniBand fabric {} runs, process {}", status.name, status.pid);
                status.parts.iter().for_each(|part| println!("{part}"));
                for host in status.host_nodes() {
                    let address = host.address.map(|ip| ip.to_string()).unwrap_or_default();
                    println!("{:<12} {address}", host.name);
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
    };
    if json {
        println!("{}", json!({ "name": status.name, "pid": status.pid, "hosts": status.hosts }));
        return Ok(ExitCode::SUCCESS);
    }
    println!("fabric {} runs, process {}", status.name, status.pid);
    for HostStatus { name, address, .. } in &status.hosts {
        println!("{name:<12} {address}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends a fabric.
pub(super) fn down(place: &Place) -> anyhow::Result<ExitCode> {
    let (Reply::Done, mut rest) = place.command(&Command::Down)? else {
        bail!("the fabric {} does not end", place.name());
    };
    // The connection ends when the files of the fabric are gone.
    let mut end = String::new();
    let _ = rest.read_line(&mut end);
    Ok(ExitCode::SUCCESS)
}

/// The beginning of addresses that no other fabric of the user has.
fn free_prefix() -> anyhow::Result<[u8; 2]> {
    let mut taken = Vec::new();
    for place in Place::all()? {
        match status::fetch_any(&place) {
            Ok(AnyStatus::Ethernet(status)) => {
                taken.extend(status.hosts.first().map(|host| host.address.octets()[1]));
            }
            Ok(AnyStatus::InfiniBand(status)) => {
                taken.extend(status.host_nodes().filter_map(|host| match host.address? {
                    IpAddr::V4(ip) if ip.is_loopback() => Some(ip.octets()[1]),
                    _ => None,
                }));
            }
            Err(_) => {}
        }
    }
    let free = (FIRST_PREFIX..=u8::MAX).find(|second| !taken.contains(second));
    free.map(|second| [127, second]).context("too many fabrics run")
}

/// Hosts of the first fabric are at 127.77.x.y.
const FIRST_PREFIX: u8 = 77;

fn parse_prefix(word: &str) -> Result<[u8; 2], String> {
    let wrong = || "two numbers below 256, the first of them 127: 127.77".to_owned();
    let (a, b) = word.split_once('.').ok_or_else(wrong)?;
    match (a.parse(), b.parse()) {
        (Ok(127), Ok(b)) => Ok([127, b]),
        _ => Err(wrong()),
    }
}
