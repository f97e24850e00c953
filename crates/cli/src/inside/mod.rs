//! `feroce stat`, `ps`, `top` and `web`: what the adapters of this user do, in all processes of
//! this network namespace. The processes tell it themselves (`feroce::watch`).

mod json;
mod packets;
mod ps;
mod stat;
mod top;
mod units;
mod web;

use std::collections::BTreeMap;

use feroce::watch::{self, QpSnapshot, Snapshot};

pub(crate) use ps::{Args as PsArgs, run as ps};
pub(crate) use stat::{Args as StatArgs, run as stat};
pub(crate) use top::{Args as TopArgs, run as top};
pub(crate) use web::{Args as WebArgs, run as web};

/// What was seen at one moment.
struct Look {
    devices: Vec<Snapshot>,
    /// The names of the programs, by process.
    programs: BTreeMap<u32, String>,
    /// Processes that have a device open and did not answer in time.
    silent: Vec<u32>,
}

impl Look {
    /// Looks into the devices that are meant: those whose process, program, name or address is one
    /// of `wanted`, or all. Says which processes do not answer.
    fn now(wanted: &[String]) -> anyhow::Result<Self> {
        let seen = watch::look()?;
        for pid in &seen.silent {
            let name = program(*pid);
            eprintln!("feroce: process {pid} ({name}) does not answer: is it stopped?");
        }
        Ok(Self::at(seen, wanted))
    }

    /// The same without a word.
    fn quiet(wanted: &[String]) -> anyhow::Result<Self> {
        Ok(Self::at(watch::look()?, wanted))
    }

    fn at(seen: watch::Seen, wanted: &[String]) -> Self {
        let programs: BTreeMap<u32, String> =
            seen.devices.iter().map(|device| (device.pid, program(device.pid))).collect();
        let is_meant = |device: &Snapshot| {
            let (pid, program) = (device.pid.to_string(), &programs[&device.pid]);
            let is_named = |name: &String| {
                *name == pid
                    || name == program
                    || *name == device.device
                    || device.addresses.iter().any(|gid| gid.to_ip().to_string() == *name)
            };
            wanted.is_empty() || wanted.iter().any(is_named)
        };
        let devices = seen.devices.into_iter().filter(is_meant).collect();
        Self { devices, programs, silent: seen.silent }
    }

    fn program(&self, device: &Snapshot) -> &str {
        self.programs.get(&device.pid).map_or("", String::as_str)
    }
}

/// The name of a program, as `ps` shows it.
fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match name.trim_end() {
        "" => "?".to_owned(),
        name => name.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
    }
}

/// What to say where no device is open, or none that is meant.
fn say_nothing_found(wanted: &[String]) {
    if wanted.is_empty() {
        eprintln!(
            "feroce: no process of this user has a device open in this network namespace; start \
             one, such as `feroce rc-pingpong --both -n 1000000`"
        );
    } else {
        eprintln!("feroce: no open device matches {}", wanted.join(", "));
    }
}

/// The peer of a queue pair.
fn peer(qp: &QpSnapshot) -> String {
    qp.peer
        .map_or_else(|| "-".to_owned(), |(gid, qpn)| format!("{} {:#08x}", gid.to_ip(), qpn.get()))
}

fn qp_state(qp: &QpSnapshot) -> String {
    format!("{:?}", qp.state).to_uppercase()
}

fn qp_type(qp: &QpSnapshot) -> &'static str {
    match qp.qp_type {
        feroce::QpType::Rc => "RC",
        feroce::QpType::Uc => "UC",
        feroce::QpType::Ud => "UD",
        feroce::QpType::XrcIni => "XRC_INI",
        feroce::QpType::XrcTgt => "XRC_TGT",
    }
}

/// The sum of the counters of dropped packets.
fn drops(device: &Snapshot) -> u64 {
    device.drops.values().sum()
}

/// Completions with an error.
fn errors(device: &Snapshot) -> u64 {
    let of = |name: &str| device.counters.get(name).copied().unwrap_or(0);
    of("req_cqe_error") + of("resp_cqe_error")
}
