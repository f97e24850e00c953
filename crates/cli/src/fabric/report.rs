//! What a fabric says about itself.

use std::fmt;

use feroce_fabric::{DropReason, PortName};
use serde::{Deserialize, Serialize};

use super::pace::Pace;
use super::pump::Pump;

/// A host and its processes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct HostStatus {
    pub(super) name: String,
    pub(super) address: std::net::Ipv4Addr,
    pub(super) processes: usize,
    /// Services that a process listens for.
    pub(super) services: usize,
}

/// A multicast group that processes have joined.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct GroupStatus {
    pub(super) group: String,
    pub(super) hosts: Vec<String>,
    pub(super) processes: usize,
}

/// A port and what has left it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct PortStatus {
    pub(super) port: String,
    /// The port at the other end of the link.
    pub(super) peer: String,
    pub(super) is_up: bool,
    pub(super) rate_bps: u64,
    pub(super) loss: f64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) marked: u64,
    pub(super) queued: u64,
    pub(super) queue_max: u64,
    pub(super) pauses: u64,
    pub(super) paused_us: f64,
    /// Packets that were dropped here, by reason; only reasons that there were.
    pub(super) dropped: Vec<(String, u64)>,
}

/// What there is and what happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) name: String,
    pub(super) pid: u32,
    pub(super) seconds: f64,
    /// By which part of that time the fabric was slower than real time.
    pub(super) slowed: f64,
    /// How often it could not keep up.
    pub(super) slowdowns: u64,
    /// Whether switches mark packets.
    pub(super) marks: bool,
    pub(super) hosts: Vec<HostStatus>,
    #[serde(default)]
    pub(super) groups: Vec<GroupStatus>,
    pub(super) ports: Vec<PortStatus>,
    pub(super) delivered: u64,
    /// By reason.
    pub(super) dropped: Vec<(String, u64)>,
}

impl Status {
    pub(super) fn new(name: &str, pump: &Pump, pace: &Pace, now_ns: u64) -> Self {
        let (elapsed_ns, slowed_ns) = pace.elapsed(now_ns);
        let (fabric, topology) = (&pump.fabric, pump.fabric.topology());
        let hosts = pump.hosts.iter().map(|host| HostStatus {
            name: host.name.clone(),
            address: host.address,
            processes: host.slots.len(),
            services: host.services.len(),
        });
        let ports = fabric.port_stats().filter_map(|(node, port, stats)| {
            let link = fabric.link_state(node, port)?;
            Some(PortStatus {
                port: topology.port_name(PortName { node, port }),
                peer: topology.port_name(link.peer),
                is_up: link.is_up,
                rate_bps: link.rate.bps(),
                loss: link.loss,
                packets: stats.sent.packets,
                bytes: stats.sent.bytes,
                marked: stats.marked,
                queued: fabric.queued(node, port).unwrap_or(0),
                queue_max: stats.queue_max,
                pauses: stats.pauses,
                paused_us: stats.paused_ps as f64 / 1e6,
                dropped: DropReason::ALL
                    .iter()
                    .map(|&reason| (word(reason).to_owned(), stats.dropped(reason).packets))
                    .filter(|(_, packets)| *packets > 0)
                    .collect(),
            })
        });
        let groups = pump.groups.all().into_iter().map(|(group, (hosts, processes))| GroupStatus {
            group: group.to_string(),
            hosts: hosts.into_iter().map(|host| pump.hosts[host].name.clone()).collect(),
            processes,
        });
        let totals = fabric.totals();
        let reason = |reason: &DropReason| (word(*reason), totals.dropped(*reason).packets);
        let lost = pump.lost;
        let outside = [
            ("no host", lost.no_host),
            ("no process", lost.no_process),
            ("not read", lost.not_read),
        ];
        let dropped = DropReason::ALL.iter().map(reason).chain(outside);
        Self {
            name: name.to_owned(),
            pid: std::process::id(),
            seconds: elapsed_ns as f64 / 1e9,
            slowed: slowed_ns as f64 / elapsed_ns.max(1) as f64,
            slowdowns: pace.slowdowns(),
            marks: pump.marks,
            hosts: hosts.collect(),
            groups: groups.collect(),
            ports: ports.collect(),
            delivered: totals.delivered.packets,
            dropped: dropped.map(|(word, count)| (word.to_owned(), count)).collect(),
        }
    }
}

fn word(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Buffer => "buffer",
        DropReason::Loss => "loss",
        DropReason::LinkDown => "link down",
        DropReason::NoRoute => "no route",
        DropReason::Watchdog => "watchdog",
        _ => "other",
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, pid, seconds, slowed, slowdowns, .. } = self;
        write!(f, "fabric {name}, process {pid}, {seconds:.1} s")?;
        match slowdowns {
            0 => writeln!(f, ", in real time")?,
            n => writeln!(f, ", slowed by {:.2} % ({n} times too late)", slowed * 100.0)?,
        }
        writeln!(f, "\n{:<12} {:<15} {:>9} {:>8}", "host", "address", "processes", "services")?;
        for HostStatus { name, address, processes, services } in &self.hosts {
            let address = address.to_string();
            writeln!(f, "{name:<12} {address:<15} {processes:>9} {services:>8}")?;
        }
        for GroupStatus { group, hosts, processes } in &self.groups {
            let plural = if *processes == 1 { "" } else { "es" };
            writeln!(f, "group {group}: {processes} process{plural} on {}", hosts.join(", "))?;
        }
        writeln!(
            f,
            "\n{:<12} {:<12} {:>6} {:>8} {:>7} {:>10} {:>13} {:>8} {:>8} {:>9} {:>7} {:>10}",
            "port",
            "to",
            "link",
            "rate",
            "loss",
            "packets",
            "bytes",
            "dropped",
            "marked",
            "queue max",
            "pauses",
            "paused us"
        )?;
        for port in &self.ports {
            let link = if port.is_up { "up" } else { "down" };
            let (rate, loss) = (rate(port.rate_bps), format!("{} %", port.loss * 100.0));
            writeln!(
                f,
                "{:<12} {:<12} {link:>6} {rate:>8} {loss:>7} {:>10} {:>13} {:>8} {:>8} {:>9} \
                 {:>7} {:>10.1}",
                port.port,
                port.peer,
                port.packets,
                port.bytes,
                port.dropped.iter().map(|(_, packets)| packets).sum::<u64>(),
                port.marked,
                port.queue_max,
                port.pauses,
                port.paused_us
            )?;
        }
        let dropped: Vec<String> =
            self.dropped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        writeln!(f, "\n{} packets delivered; dropped: {}", self.delivered, dropped.join(", "))
    }
}

/// A rate as people write it.
fn rate(bps: u64) -> String {
    let steps = [(1_000_000_000, 'G'), (1_000_000, 'M'), (1000, 'K')];
    match steps.iter().find(|(unit, _)| bps >= *unit) {
        Some((unit, letter)) => format!("{}{letter}", bps as f64 / *unit as f64),
        None => bps.to_string(),
    }
}
