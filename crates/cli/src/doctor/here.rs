//! Checks of this machine.

use std::fs;

use feroce::{Device, Settings};
use feroce_local::portd_users;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::Finding;
use crate::dropin;

/// Where processes of a user share memory.
const SHARED: &str = "/dev/shm";

/// Below this much free memory there, rings to other processes may not fit.
const LITTLE_SHARED: u64 = 16 << 20;

/// Below so many descriptors, a program with many peers runs out of them.
const FEW_DESCRIPTORS: u64 = 1024;

/// The first kernel that segments UDP packets (UDP_SEGMENT).
const KERNEL: (u32, u32) = (4, 18);

/// Runs all checks.
pub(super) fn check(show: &mut impl FnMut(Finding)) {
    show(kernel(&read("/proc/sys/kernel/osrelease").unwrap_or_default()));
    let settings = match Settings::load() {
        Ok(settings) => {
            show(Finding::ok("the settings in file and environment are valid"));
            settings
        }
        Err(e) => {
            show(Finding::bad(format!("settings: {e}"), "no device can be opened before that"));
            return;
        }
    };
    show(shared_memory());
    devices(&settings, show);
    let own = nix::unistd::geteuid().as_raw();
    portd_users().into_iter().for_each(|user| show(portd(user, own, settings.portd.as_deref())));
    show(scope(read("/proc/sys/kernel/yama/ptrace_scope").as_deref()));
    if let Some(most) = read("/proc/sys/net/core/rmem_max").and_then(|text| text.parse().ok()) {
        show(receive_buffer(most, settings.rcvbuf as u64));
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        show(descriptors(soft));
    }
    show(match dropin::library() {
        Ok(path) => Finding::ok(format!("`feroce run` uses {}", path.display())),
        Err(e) => Finding::note(
            "`feroce run` does not find its library; the other commands need none",
            e.to_string().replace('\n', "\n      "),
        ),
    });
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    };
    let what = format!("Linux {release}");
    if version >= KERNEL {
        return Finding::ok(what);
    }
    Finding::note(
        what,
        "segmentation offload for UDP needs Linux 4.18; packets are sent one by one",
    )
}

fn shared_memory() -> Finding {
    let free = match statvfs(SHARED) {
        Ok(stat) if stat.flags().contains(FsFlags::ST_RDONLY) => {
            return Finding::bad(
                format!("{SHARED} is read-only"),
                "no two processes can use one address; mount it writable",
            );
        }
        Ok(stat) => stat.blocks_available().saturating_mul(stat.fragment_size()),
        Err(e) => {
            return Finding::bad(
                format!("{SHARED}: {e}"),
                "no two processes can use one address; mount a tmpfs there",
            );
        }
    };
    let what = format!("{SHARED} has {} MiB free", free >> 20);
    if free >= LITTLE_SHARED {
        return Finding::ok(what);
    }
    Finding::note(
        what,
        "rings to other processes may not fit, and packets to them then take UDP; containers have \
         an option for its size (`--shm-size`)",
    )
}

/// Opens every device, which shows whether its addresses and its UDP port can be used.
fn devices(settings: &Settings, show: &mut impl FnMut(Finding)) {
    let devices = match Device::list_with(settings) {
        Ok(devices) => devices,
        Err(e) => return show(Finding::bad(format!("devices: {e}"), "none can be opened")),
    };
    if devices.is_empty() {
        show(Finding::bad(
            "there is no device",
            "every interface that is up and has an address is one (`ip link set lo up`)",
        ));
    }
    for device in devices {
        let gids = device.gids().iter().filter(|gid| !gid.is_zero());
        let addresses: Vec<String> = gids.map(|gid| gid.to_ip().to_string()).collect();
        let what = format!(
            "{} on {}: {}",
            device.name(),
            device.interface_name().unwrap_or("addresses"),
            addresses.join(", ")
        );
        show(match device.open() {
            Ok(_) if device.is_up() => Finding::ok(what),
            Ok(_) => Finding::note(what, "the interface is down"),
            Err(e) => Finding::bad(what, format!("cannot be opened: {e}")),
        });
    }
}

/// A portd of `user` serves all users; processes of `own` trust those of root, of themselves and
/// of the users in `trusted`, or none.
fn portd(user: u32, own: u32, trusted: Option<&[u32]>) -> Finding {
    let what = format!("`feroce portd --all-users` of user {user} receives for every user here");
    match trusted {
        None => Finding::note(what, "but the setting `portd` is `off`, so programs do not ask it"),
        Some(trusted) if user == 0 || user == own || trusted.contains(&user) => Finding::ok(what),
        Some(_) => Finding::note(
            what,
            format!(
                "but programs of this user do not trust it; if they should: FEROCE_PORTD={user}"
            ),
        ),
    }
}

fn scope(scope: Option<&str>) -> Finding {
    match scope {
        None | Some("0") => Finding::ok("processes of a user may read each other's memory"),
        Some(scope) => Finding::note(
            format!("kernel.yama.ptrace_scope is {scope}"),
            "processes may not read each other's memory: long messages inside the host are copied \
             twice; FEROCE_READABLE=1 lifts that where it is 1",
        ),
    }
}

fn receive_buffer(most: u64, wanted: u64) -> Finding {
    let what = format!("receive buffers of sockets have up to {} KiB", most >> 10);
    if most >= wanted {
        return Finding::ok(what);
    }
    let advice = format!(
        "the adapter asks for {} KiB; fast senders on other hosts lose packets, which are sent \
         again: `sysctl -w net.core.rmem_max={wanted}`",
        wanted >> 10
    );
    Finding::note(what, advice)
}

fn descriptors(soft: u64) -> Finding {
    let what = format!("a process may open {soft} files");
    if soft >= FEW_DESCRIPTORS {
        return Finding::ok(what);
    }
    Finding::note(what, "every peer process on this host takes some: `ulimit -n 4096`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Grade;

    #[test]
    fn figures_are_judged() {
        let grades = |good: Finding, bad: Finding| {
            assert_eq!((good.grade, bad.grade), (Grade::Ok, Grade::Note), "{good:?} {bad:?}");
            assert!(bad.advice.is_some());
        };
        grades(kernel("6.1.0-44-cloud-amd64"), kernel("4.9.0"));
        grades(kernel("4.18.2"), kernel("who knows"));
        grades(scope(Some("0")), scope(Some("1")));
        grades(scope(None), scope(Some("2")));
        grades(receive_buffer(8 << 20, 8 << 20), receive_buffer(212_992, 8 << 20));
        grades(descriptors(1024), descriptors(256));
        grades(portd(0, 1000, Some(&[])), portd(1001, 1000, Some(&[])));
        grades(portd(1001, 1000, Some(&[1001])), portd(0, 1000, None));
    }
}
