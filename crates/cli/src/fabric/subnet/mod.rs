//! An InfiniBand fabric: nodes and their agents in this process, programs behind their ports.
//!
//! [`serve`] is the process: sockets and the clock around `feroce_subnet`. [`answer`] are the
//! requests of programs, [`addresses`] the IP addresses of hosts, [`data`] the packets of queue
//! pairs, [`members`] the processes that are in multicast groups, [`issm`] the files by which
//! subnet managers say that they run, [`manager`] a subnet manager that the fabric starts itself,
//! [`linger`] how the process waits, [`mail`] where it looks for packets, [`report`] what the
//! fabric says of itself, [`taps`] copies of packets for captures. [`meeting`] and [`trunks`] join
//! the processes of a fabric in several parts.

mod absent;
mod addresses;
mod answer;
mod conn;
mod data;
mod issm;
mod linger;
mod mail;
mod manager;
mod meeting;
mod members;
mod report;
mod serve;
mod taps;
mod trunks;

use std::path::Path;

use feroce_subnet::Net;

pub(super) use manager::Manager;
pub(super) use meeting::PartArgs;
pub(super) use report::SubnetStatus;
pub(super) use serve::Server;

/// Whether a file is a topology of InfiniBand: those of Ethernet are in TOML.
pub(super) fn is_net(path: &Path) -> bool {
    path.extension().is_none_or(|extension| extension != "toml")
}

/// Reads a topology.
pub(super) fn read_net(path: &Path) -> Result<Net, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("{name}: {e}"))?;
    Net::parse(&text).map_err(|e| {
        let hint = "a topology in TOML has a name that ends in `.toml`";
        format!("{name}: {e} ({hint})")
    })
}
