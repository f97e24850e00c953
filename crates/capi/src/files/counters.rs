//! The files with the counters of a port. Their values are those of all processes of the user that
//! have the device open now, at the moment when a program opens the file.

use std::ffi::CString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _};

use feroce::watch::{self, Snapshot};
use feroce::{Counters, Device, DropCounters};
use feroce_umad::Adapter;

use crate::umad;

/// What a file counts, in all devices that were seen.
type Value = fn(&Snapshot) -> u64;

/// The counters that every port has (IBTA vol1 16.1.3.5), with the kernel's names. The kernel gives
/// data in bytes divided by four.
const PORT: &[(&str, Value)] = &[
    ("VL15_dropped", |_| 0),
    ("excessive_buffer_overrun_errors", |_| 0),
    ("link_downed", |seen| counter(seen, "link_downed")),
    ("link_error_recovery", |_| 0),
    ("local_link_integrity_errors", |_| 0),
    ("port_rcv_constraint_errors", |_| 0),
    ("port_rcv_data", |seen| counter(seen, "rcvd_bytes") / 4),
    ("port_rcv_errors", |seen| {
        ["drop_truncated", "drop_bad_opcode", "drop_bad_version", "drop_bad_padding"]
            .iter()
            .map(|name| drops(seen, name))
            .sum::<u64>()
            + seen.link.get("rx_icrc_encapsulated").copied().unwrap_or(0)
    }),
    ("port_rcv_packets", |seen| counter(seen, "rcvd_pkts")),
    ("port_rcv_remote_physical_errors", |_| 0),
    ("port_rcv_switch_relay_errors", |_| 0),
    ("port_xmit_constraint_errors", |_| 0),
    ("port_xmit_data", |seen| counter(seen, "sent_bytes") / 4),
    ("port_xmit_discards", |_| 0),
    ("port_xmit_packets", |seen| counter(seen, "sent_pkts")),
    ("port_xmit_wait", |_| 0),
    ("symbol_error", |_| 0),
];

fn counter(seen: &Snapshot, name: &str) -> u64 {
    seen.counters.get(name).copied().unwrap_or(0)
}

fn drops(seen: &Snapshot, name: &str) -> u64 {
    seen.drops.get(name).copied().unwrap_or(0)
}

/// The names of the counters of our own.
fn own_names() -> impl Iterator<Item = &'static str> {
    let counters = Counters::default().iter().chain(DropCounters::default().iter());
    counters.map(|(name, _)| name)
}

/// The files, from the directory of a port.
pub(super) fn paths() -> impl Iterator<Item = String> {
    let port = PORT.iter().map(|(name, _)| format!("counters/{name}"));
    port.chain(own_names().map(|name| format!("hw_counters/{name}")))
}

/// The device, the directory and the name in the path of such a file.
fn parse(path: &[u8]) -> Option<(&str, &str, &str)> {
    let path = std::str::from_utf8(path).ok()?.strip_prefix("/sys/class/infiniband/")?;
    let mut names = path.split('/').filter(|name| !name.is_empty());
    let device = names.next()?;
    let is_port = names.next() == Some("ports") && names.next() == Some("1");
    let (folder, name) = (names.next()?, names.next()?);
    (is_port && names.next().is_none()).then_some((device, folder, name))
}

/// A file with the value of the counter at this path, and a path that leads to it as long as the
/// file is open. `None`: it is no counter.
pub(super) fn open(path: &[u8]) -> Option<(File, CString)> {
    let (device, folder, name) = parse(path)?;
    if let Some(host) = umad::host().filter(|_| folder == "counters") {
        return file_with(of_adapter(&host.describe().ok()?, name)?);
    }
    let value: &dyn Fn(&Snapshot) -> u64 = match folder {
        "counters" => &PORT.iter().find(|(found, _)| *found == name)?.1,
        "hw_counters" => {
            own_names().find(|found| *found == name)?;
            &|seen: &Snapshot| counter(seen, name) + drops(seen, name)
        }
        _ => return None,
    };
    let device = Device::named(device).ok()?;
    let is_it = |seen: &&Snapshot| seen.addresses.iter().any(|gid| device.gids().contains(gid));
    // Processes that do not answer do not count.
    let seen = watch::look().unwrap_or_default();
    let total: u64 = seen.devices.iter().filter(is_it).map(value).sum();
    file_with(total)
}

/// What the port of a host of an InfiniBand fabric has counted.
fn of_adapter(adapter: &Adapter, name: &str) -> Option<u64> {
    let [[sent, sent_words], [received, received_words]] = adapter.ports.first()?.traffic;
    match name {
        "port_xmit_packets" => Some(sent),
        "port_xmit_data" => Some(sent_words),
        "port_rcv_packets" => Some(received),
        "port_rcv_data" => Some(received_words),
        _ => None,
    }
}

fn file_with(value: u64) -> Option<(File, CString)> {
    let mut file = unnamed()?;
    writeln!(file, "{value}").ok()?;
    let link = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    Some((file, link))
}

/// A file without a name, in memory.
fn unnamed() -> Option<File> {
    // SAFETY: the name is a string that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"feroce-counter".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: memfd_create(2) has just made the descriptor, which has no other owner.
    (fd >= 0).then(|| unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_of_the_port_are_made() {
        let path = b"/sys/class/infiniband/fe0/ports/1/counters/port_xmit_data";
        assert_eq!(parse(path), Some(("fe0", "counters", "port_xmit_data")));
        assert_eq!(parse(b"/sys/class/infiniband/fe0/ports/1/state"), None);
        assert_eq!(parse(b"/sys/class/infiniband/fe0/ports/2/counters/link_downed"), None);
        assert_eq!(parse(b"/sys/class/infiniband/fe0/ports/1/counters/link_downed/x"), None);
        assert!(paths().any(|path| path == "hw_counters/rcvd_rnr_err"));
    }
}
