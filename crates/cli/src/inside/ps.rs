//! `feroce ps`: processes, their devices, and what they have made on them.

use std::process::ExitCode;

use feroce::watch::{ConnectionSnapshot, Snapshot};

use super::stat::print_columns;
use super::units::{bytes, count, duration};
use super::{Look, json, peer, qp_state, qp_type, say_nothing_found};
use crate::style::{Ink, Style};

const EXAMPLES: &str = "\
Examples:
  feroce ps                every process of this user that has a device open
  feroce ps ib_write_bw    one program, by name; or by process number, device or address
  feroce --json ps         for programs

A queue pair has a number, a service and a state, the address and number of its peer, requests that
are not complete (SQ), the round trip time to its peer, and how many bytes may be in flight. A
device that was opened with the setting `fault` shows the faults that it injects now.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Processes, programs, devices or addresses to show [default: all]
    #[arg(value_name = "WHAT")]
    what: Vec<String>,
}

pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let look = Look::now(&args.what)?;
    if json {
        println!("{}", json::all(&look));
        return Ok(ExitCode::SUCCESS);
    }
    if look.devices.is_empty() {
        say_nothing_found(&args.what);
    }
    let style = Style::for_stdout(false);
    let mut pid = None;
    for device in &look.devices {
        if pid.replace(device.pid) != Some(device.pid) {
            let title = format!("{} {}", device.pid, look.program(device));
            println!("{}  {}", style.paint(Ink::Bold, &title), command_line(device.pid));
        }
        show(device);
    }
    Ok(ExitCode::SUCCESS)
}

/// The arguments of a process.
fn command_line(pid: u32) -> String {
    let raw = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&raw);
    let words = text.split('\0').filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn show(device: &Snapshot) {
    let addresses: Vec<String> = device
        .addresses
        .iter()
        .filter(|gid| !gid.is_zero())
        .map(|g| g.to_ip().to_string())
        .collect();
    let (age, mr_bytes) = (duration(device.age_ns), bytes(device.mr_bytes));
    println!("  {}  {}, open for {age}", device.device, addresses.join(", "));
    println!(
        "    {}, {} ({mr_bytes}B), {}, {}, {}, {}",
        plural(device.qps.len() as u64, "QP"),
        plural(device.mrs, "MR"),
        plural(device.cqs.len() as u64, "CQ"),
        plural(device.srqs, "SRQ"),
        plural(device.pds, "PD"),
        plural(device.ahs, "AH"),
    );
    if let Some(fault) = &device.fault {
        println!("    faults {fault}");
    }
    let mut rows = Vec::new();
    for qp in &device.qps {
        let number = match qp.qpn.get() {
            1 => "    QP 1 (GSI)".to_owned(),
            number => format!("    QP {number:#08x}"),
        };
        rows.push(vec![
            number,
            qp_type(qp).to_owned(),
            qp_state(qp),
            peer(qp),
            format!("SQ {}", qp.waiting),
            format!("rtt {}", duration(qp.rtt_ns)),
            format!("window {}", if qp.window == 0 { "-".to_owned() } else { bytes(qp.window) }),
            format!("out {}", count(qp.counters.requests)),
            format!("in {}", count(qp.counters.served)),
        ]);
    }
    print_columns(&rows, 9);
    let cqs = device.cqs.iter().map(|cq| {
        vec![
            format!("    CQ {}", cq.number),
            format!("depth {}", cq.depth),
            format!("{} waiting", cq.waiting),
            format!("used by {}", plural(cq.users, "queue")),
        ]
    });
    print_columns(&cqs.collect::<Vec<_>>(), 4);
    for connection in &device.connections {
        println!("    {}", describe(connection));
    }
}

fn describe(connection: &ConnectionSnapshot) -> String {
    let local = connection.local.map_or_else(|| "-".to_owned(), |addr| addr.to_string());
    let mut text = format!("connection {local}");
    text.extend(connection.peer.map(|peer| format!(" -> {peer}")));
    text.push_str(&format!(" {}", connection.state));
    text.extend(connection.qpn.map(|qpn| format!(", QP {:#08x}", qpn.get())));
    text
}

fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
