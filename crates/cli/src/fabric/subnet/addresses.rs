//! IP addresses of hosts: connection management finds ports by them.
//!
//! On a machine with IPoIB the kernel has such addresses, and finds the GID of another one by ARP.
//! Here the topology says them, or the order of the hosts does, and programs ask the fabric.

use std::collections::BTreeMap;
use std::net::IpAddr;

use feroce_subnet::{Net, NodeKind};

use crate::fabric::pump::address;

/// The addresses of the first ports of hosts.
#[derive(Debug)]
pub(super) struct Addresses {
    by_node: Vec<Option<IpAddr>>,
    nodes: BTreeMap<IpAddr, usize>,
}

impl Addresses {
    /// Hosts without an address of their own get `prefix`.0.1 and so on, by their order.
    pub(super) fn new(net: &Net, prefix: [u8; 2]) -> Self {
        let mut hosts = 0;
        let mut by_node = Vec::new();
        for node in &net.nodes {
            by_node.push(node.address);
            if node.kind == NodeKind::Adapter {
                let default = IpAddr::from(address(prefix, hosts));
                hosts += 1;
                let is_taken = net.nodes.iter().any(|node| node.address == Some(default));
                let default = (!is_taken).then_some(default);
                by_node.last_mut().into_iter().for_each(|own| *own = own.or(default));
            }
        }
        let pairs = (0..).zip(&by_node).filter_map(|(node, own)| Some(((*own)?, node)));
        Self { nodes: pairs.collect(), by_node }
    }

    /// The address of a node.
    pub(super) fn of(&self, node: usize) -> Option<IpAddr> {
        self.by_node.get(node).copied().flatten()
    }

    /// The node with an address.
    pub(super) fn find(&self, address: IpAddr) -> Option<usize> {
        self.nodes.get(&address).copied()
    }
}
