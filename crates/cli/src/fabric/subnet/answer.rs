//! What the fabric answers to requests of programs.

use std::net::IpAddr;

use feroce_subnet::{FileId, Node, Port, PortRef, Programs, Registration, Subnet};
use feroce_umad::{Adapter, AdapterPort, Answer, Request};
use feroce_wire::Gid;
use nix::errno::Errno;

use super::addresses::Addresses;
use super::conn::{ConnId, Reregistrations, Role, Watched};
use super::data::Processes;
use super::issm::IsSm;
use super::members::{Member, Members};

/// A refusal with a number of the C library.
fn refused(errno: Errno) -> Answer {
    Answer::Refused(errno as u32)
}

/// The adapter of a host: the index of its node.
pub(super) fn find_host(subnet: &Subnet, name: &str) -> Option<usize> {
    let is_meant = |node: &Node| node.switch().is_none() && node.is_here() && node.name() == name;
    subnet.nodes().iter().position(is_meant)
}

/// What answers depend on.
pub(super) struct Sources<'a> {
    pub(super) subnet: &'a Subnet,
    pub(super) programs: &'a mut Programs,
    pub(super) processes: &'a mut Processes,
    pub(super) members: &'a mut Members,
    pub(super) addresses: &'a Addresses,
    pub(super) issm: &'a IsSm,
    pub(super) reregistrations: &'a Reregistrations,
}

impl Sources<'_> {
    /// Which port has an IP address.
    fn resolve(&self, address: IpAddr) -> Answer {
        let node = self.addresses.find(address);
        match node.and_then(|node| self.gid(PortRef { node, port: 1 })) {
            Some(gid) => Answer::Port(gid),
            None => refused(Errno::EHOSTUNREACH),
        }
    }

    /// The GID of a port. The prefix is that of the subnet, which the subnet manager tells ports of
    /// this part.
    fn gid(&self, at: PortRef) -> Option<Gid> {
        let port = self.subnet.port(at)?;
        let is_here = |node: &&Node| node.is_here() && node.switch().is_none();
        let own = match self.subnet.part_of(at) {
            None => port,
            Some(_) => self.subnet.nodes().iter().find(is_here).and_then(|node| node.port(1))?,
        };
        let prefix = u128::from(own.info().gid_prefix) << 64;
        Some(Gid((prefix | u128::from(*port.guids().first()?)).to_be_bytes()))
    }

    /// What the fabric says of the adapter of a host.
    fn describe(&self, node: usize) -> Adapter {
        describe(self.subnet, node, self.addresses, self.issm, self.reregistrations)
    }
}

/// Answers a request of a connection. What the connection is for from then on is returned as well.
pub(super) fn answer(conn: ConnId, request: Request, from: Sources<'_>) -> (Answer, Option<Role>) {
    let (subnet, reregistrations) = (from.subnet, from.reregistrations);
    let find_port = |host: &str, port| {
        let at = find_host(subnet, host).map(|node| PortRef { node, port });
        at.filter(|at| subnet.port(*at).is_some())
    };
    let answer = match request {
        Request::Describe { host } => match find_host(subnet, &host) {
            Some(node) => Answer::Adapter(from.describe(node)),
            None => refused(Errno::ENODEV),
        },
        Request::Watch { host } => match find_host(subnet, &host) {
            Some(node) => {
                let adapter = from.describe(node);
                let watch = Role::Watch(Watched::new(subnet, reregistrations, node));
                return (Answer::Adapter(adapter), Some(watch));
            }
            None => refused(Errno::ENODEV),
        },
        Request::Open { host, port } => match find_port(&host, port) {
            Some(at) => {
                let file = from.programs.open(at);
                return (Answer::Done(file.0), Some(Role::Open(file)));
            }
            None => refused(Errno::ENODEV),
        },
        Request::Attach { host, port } => match find_port(&host, port) {
            Some(at) => match from.processes.attach(conn, at, rate_bps(subnet, at)) {
                Some(attached) => return (Answer::Attached(attached), Some(Role::ATTACHED)),
                None => refused(Errno::EBUSY),
            },
            None => refused(Errno::ENODEV),
        },
        Request::Register { file, registration: asked } => {
            let registration = Registration {
                class: asked.class,
                version: asked.version,
                oui: asked.oui,
                methods: asked.methods,
                rmpp_version: asked.rmpp_version,
                has_own_rmpp: asked.has_own_rmpp,
            };
            match from.programs.register(FileId(file), registration) {
                Ok(agent) => Answer::Done(agent),
                Err(_) => refused(Errno::EINVAL),
            }
        }
        Request::Unregister { file, agent } => {
            match from.programs.unregister(FileId(file), agent) {
                true => Answer::Done(agent),
                false => refused(Errno::EINVAL),
            }
        }
        Request::Claim { host, port, slot, service } => match find_port(&host, port) {
            Some(at) => match from.processes.claim(conn, at, slot, service) {
                true => return (Answer::Done(0), Some(Role::Claim)),
                false => refused(Errno::EADDRINUSE),
            },
            None => refused(Errno::ENODEV),
        },
        Request::Join { host, port, group, join_state } => match find_port(&host, port) {
            Some(at) => {
                from.members.add(conn, Member { at, group, join_state });
                return (Answer::Done(0), Some(Role::Member));
            }
            None => refused(Errno::ENODEV),
        },
        Request::Resolve { address } => from.resolve(address),
    };
    (answer, None)
}

/// The rate of the link at a port.
fn rate_bps(subnet: &Subnet, at: PortRef) -> u64 {
    let Some(info) = subnet.port(at).map(Port::info) else { return 0 };
    let width = match info.link_width_active {
        1 => 1,
        4 => 8,
        8 => 12,
        _ => 4,
    };
    width * 2_500_000_000 * u64::from(info.link_speed_active.max(1))
}

/// What a fabric says of the adapter of a host.
pub(super) fn describe(
    subnet: &Subnet,
    node: usize,
    addresses: &Addresses,
    issm: &IsSm,
    reregistrations: &Reregistrations,
) -> Adapter {
    let found = &subnet.nodes()[node];
    let port = |number: u8| {
        let at = PortRef { node, port: number };
        let port = subnet.port(at)?;
        let counters = port.counters();
        Some(AdapterPort {
            info: *port.info(),
            guid: port.guids().first().copied().unwrap_or_default(),
            pkeys: port.pkeys().to_vec(),
            gids: (0..port.guids().len()).filter_map(|index| port.gid(index)).collect(),
            issm: issm.path(at).display().to_string(),
            traffic: [
                [counters.unicast_xmit + counters.multicast_xmit, counters.xmit_words],
                [counters.unicast_rcv + counters.multicast_rcv, counters.rcv_words],
            ],
            reregistrations: reregistrations.get(&at).copied().unwrap_or_default(),
            address: addresses.of(node).filter(|_| number == 1),
        })
    };
    Adapter {
        description: found.name().to_owned(),
        info: *found.info(),
        ports: (1..=found.info().num_ports).filter_map(port).collect(),
    }
}
