//! `feroce stat`: counters.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use feroce::watch::Snapshot;

use super::units::{bit_rate, bytes, count, rate};
use super::{Look, drops, errors, json, say_nothing_found};

const EXAMPLES: &str = "\
Examples:
  feroce stat                 every open device of this user, and what it did so far
  feroce stat -w              the same as rates, every second, until interrupted
  feroce stat -v ib_write_bw  every counter of one program that is not zero
  feroce stat --json -w 0.1   for programs: a line of JSON every tenth of a second

OUT is what the program asked for (SEND, WRITE, READ, atomics), IN what its adapter executed for
peers; bytes are payload. DIRECT is the part of OUT that was copied between processes of this host
without a packet; the target of such a copy does not count it. Counters of the kernel's drivers are
in /sys/class/infiniband.";

/// Options.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Processes, programs, devices or addresses to show [default: all]
    #[arg(value_name = "WHAT")]
    what: Vec<String>,
    /// Show rates again and again, every SECONDS
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = seconds)]
    watch: Option<Duration>,
    /// Every counter that is not zero
    #[arg(short, long)]
    verbose: bool,
}

/// An interval in seconds.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 1 or 0.1".to_owned())?;
    match seconds {
        s if (0.01..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("expected between 0.01 and 86400 seconds".to_owned()),
    }
}

#[expect(clippy::disallowed_methods, reason = "rates take time")]
pub(crate) fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let mut look = Look::now(&args.what)?;
    let Some(interval) = args.watch else {
        if json {
            println!("{}", json::all(&look));
        } else if look.devices.is_empty() {
            say_nothing_found(&args.what);
        } else {
            table(&look, None);
            if args.verbose {
                look.devices.iter().for_each(|device| counters(&look, device));
            }
        }
        return Ok(ExitCode::SUCCESS);
    };
    if !json && look.devices.is_empty() {
        say_nothing_found(&args.what);
    }
    loop {
        std::thread::sleep(interval);
        let next = Look::now(&args.what)?;
        if json {
            println!("{}", json::all(&next));
        } else {
            table(&next, Some(&look));
            println!();
        }
        look = next;
    }
}

const HEADINGS: [&str; 13] = [
    "PID", "PROGRAM", "DEVICE", "QPS", "OUT", "OUT-B", "DIRECT", "IN", "IN-B", "PKTS-OUT",
    "PKTS-IN", "RETRANS", "DROP/ERR",
];

/// Prints a table: totals, or rates since another look.
fn table(look: &Look, before: Option<&Look>) {
    let mut headings = HEADINGS.map(str::to_owned).to_vec();
    if before.is_some() {
        for (at, name) in [(4, "OUT/s"), (5, "OUT-bit/s"), (6, "DIRECT/s"), (7, "IN/s")] {
            name.clone_into(&mut headings[at]);
        }
        for (at, name) in [(8, "IN-bit/s"), (9, "PKTS-OUT/s"), (10, "PKTS-IN/s")] {
            name.clone_into(&mut headings[at]);
        }
    }
    let mut rows = vec![headings];
    for device in &look.devices {
        let same = |other: &&Snapshot| other.pid == device.pid && other.device == device.device;
        let then = before.map(|look| look.devices.iter().find(same));
        rows.push(match then {
            None => totals(look, device),
            Some(then) => rates(look, device, then),
        });
    }
    print_columns(&rows, 3);
}

/// Prints rows in columns; the first `left` of them are text.
pub(super) fn print_columns(rows: &[Vec<String>], left: usize) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| {
            if at > 0 && at < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn counter(device: &Snapshot, name: &str) -> u64 {
    device.counters.get(name).copied().unwrap_or(0)
}

fn names(look: &Look, device: &Snapshot) -> Vec<String> {
    let program = look.program(device).to_owned();
    vec![device.pid.to_string(), program, device.device.clone(), device.qps.len().to_string()]
}

fn totals(look: &Look, device: &Snapshot) -> Vec<String> {
    let totals = &device.totals;
    let mut row = names(look, device);
    row.extend([
        count(totals.requests),
        bytes(totals.request_bytes),
        count(totals.direct_requests),
        count(totals.served),
        bytes(totals.served_bytes),
        count(counter(device, "sent_pkts")),
        count(counter(device, "rcvd_pkts")),
        count(totals.retransmissions),
        format!("{}/{}", count(drops(device)), count(errors(device))),
    ]);
    row
}

/// Rates since an earlier snapshot of the same device; since it was opened if there is none.
fn rates(look: &Look, device: &Snapshot, then: Option<&Snapshot>) -> Vec<String> {
    let opened = Snapshot::default();
    let then = then.filter(|then| then.age_ns <= device.age_ns).unwrap_or(&opened);
    let seconds = (device.age_ns - then.age_ns) as f64 / 1e9;
    let (now, was) = (&device.totals, &then.totals);
    let since = |of: fn(&Snapshot) -> u64| of(device).saturating_sub(of(then));
    let packets = |name: &str| counter(device, name).saturating_sub(counter(then, name));
    let mut row = names(look, device);
    row.extend([
        rate(now.requests.saturating_sub(was.requests), seconds),
        bit_rate(now.request_bytes.saturating_sub(was.request_bytes), seconds),
        rate(now.direct_requests.saturating_sub(was.direct_requests), seconds),
        rate(now.served.saturating_sub(was.served), seconds),
        bit_rate(now.served_bytes.saturating_sub(was.served_bytes), seconds),
        rate(packets("sent_pkts"), seconds),
        rate(packets("rcvd_pkts"), seconds),
        count(now.retransmissions.saturating_sub(was.retransmissions)),
        format!("{}/{}", count(since(drops)), count(since(errors))),
    ]);
    row
}

/// Prints every counter of a device that is not zero.
fn counters(look: &Look, device: &Snapshot) {
    println!("\n{} {} {}", device.pid, look.program(device), device.device);
    for counters in [&device.counters, &device.drops, &device.link] as [&BTreeMap<_, _>; 3] {
        for (name, value) in counters.iter().filter(|(_, value)| **value > 0) {
            println!("  {name:<32} {value}");
        }
    }
}
