//! Whether a server is ready: the client must not start before that, nor wait for a server that has
//! ended.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::cells::Network;
use super::lab::Side;
use crate::shell::ask;

/// What shows that a server is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    /// Its TCP port is listened on.
    Port,
    /// It listens for connections, at whatever the connection manager calls a port.
    Listener,
    /// It is a member of its [`group`].
    Member,
}

/// The multicast group of a cell, derived from the port of the cell. Each cell has its own, because
/// the kernel does not always show at once that an earlier cell has left its group.
pub(super) fn group(network: Network, port: u16) -> String {
    let [high, low] = port.to_be_bytes();
    match network {
        Network::V4 => format!("239.91.{high}.{low}"),
        Network::V6 => format!("ff0e::5b:{port:x}"),
    }
}

/// The MAC address of the IPv4 group of a port: the standard one on our side; on the kernel's side
/// the one of Soft-RoCE, which treats every group as an IPv6 group.
fn group_mac(side: Side, port: u16) -> String {
    match side {
        Side::Ours => format!("01005e5b{port:04x}"),
        Side::Kernel => format!("3333ef5b{port:04x}"),
    }
}

/// A feroce listener locks a byte of the registry file that processes share; this is the first byte
/// for listeners.
const FIRST_LISTENER: u64 = 1 << 62;

impl Ready {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Port, "port"), (Self::Listener, "listener"), (Self::Member, "member")];

    /// Its name in commands to the agent in the guest.
    pub(super) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(ready, _)| *ready == self).map_or("", |(_, name)| name)
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, other)| *other == name).map(|(ready, _)| ready)
    }

    /// Whether the server is ready in the namespaces of this process, which belong to `side`.
    pub(super) fn is_reached(self, side: Side, port: u16) -> bool {
        match (self, side) {
            (Self::Port, _) => is_listened_on(port),
            (Self::Listener, Side::Kernel) => {
                let ids = ask(Command::new("rdma").args(["resource", "show", "cm_id"]));
                ids.is_some_and(|ids| ids.lines().any(|line| is_listener(line, port)))
            }
            (Self::Listener, Side::Ours) => locks().any(|line| is_lock_of_listener(&line)),
            (Self::Member, side) => has_joined(&group_mac(side, port)),
        }
    }
}

/// Whether a TCP port is listened on in the namespace of this process.
fn is_listened_on(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).is_ok_and(|table| table.lines().any(|line| listens(line, port)))
    })
}

/// A line has a number, the local address, the remote one and a state, of which 0A is LISTEN.
fn listens(line: &str, port: u16) -> bool {
    let words: Vec<&str> = line.split_whitespace().take(4).collect();
    matches!(*words, [_, local, _, "0A"] if local.ends_with(&format!(":{port:04X}")))
}

/// A line of `rdma resource show cm_id` has names and values in turn.
fn is_listener(line: &str, port: u16) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let has = |name: &str, is: &dyn Fn(&str) -> bool| {
        words.windows(2).any(|pair| pair[0] == name && is(pair[1]))
    };
    let port = format!(":{port}");
    has("state", &|state| state == "LISTEN") && has("src-addr", &|at| at.ends_with(&port))
}

/// Every line about a lock on an open file of a process in our namespace.
fn locks() -> impl Iterator<Item = String> {
    let list = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let files = list("/proc".into()).flat_map(move |process| list(process.path().join("fdinfo")));
    let texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
}

/// A line ends with the first and the last byte that are locked.
fn is_lock_of_listener(line: &str) -> bool {
    let first = line.split_whitespace().rev().nth(1).and_then(|word| word.parse::<u64>().ok());
    line.starts_with("lock:") && first.is_some_and(|first| first >= FIRST_LISTENER)
}

fn has_joined(mac: &str) -> bool {
    let table = fs::read_to_string("/proc/net/dev_mcast").unwrap_or_default();
    table.split_whitespace().any(|word| word == mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_of_that_port_count() {
        let line = "   0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000";
        assert!(listens(line, 0x4853));
        assert!(!listens(line, 0x4854));
        assert!(!listens(&line.replace(" 0A ", " 01 "), 0x4853));
        assert!(!listens("  sl  local_address rem_address   st tx_queue rx_queue tr", 0));
    }

    #[test]
    fn listeners_of_the_connection_manager_are_seen() {
        let line = "link rxe0/- cm-idn 0 state LISTEN ps TCP pid 178 comm x src-addr 0.0.0.0:7777";
        assert!(is_listener(line, 7777));
        assert!(!is_listener(line, 777));
        assert!(!is_listener(&line.replace("LISTEN", "CONNECT"), 7777));
        let line =
            "lock:\t1: OFDLCK ADVISORY  WRITE -1 00:1b:3 4611686018427387909 4611686018427387909";
        assert!(is_lock_of_listener(line));
        assert!(!is_lock_of_listener(&line.replace("4611686018427387909", "17")));
        assert!(!is_lock_of_listener("flags:\t02100002"));
    }

    #[test]
    fn names_are_understood() {
        for (ready, _) in Ready::ALL {
            assert_eq!(Ready::named(ready.name()), Some(ready));
        }
    }
}
