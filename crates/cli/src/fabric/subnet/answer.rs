//! What the fabric answers to requests of programs.

use feroce_subnet::{FileId, Node, PortRef, Programs, Registration, Subnet};
use feroce_umad::{Adapter, AdapterPort, Answer, Request};
use nix::errno::Errno;

use super::issm::IsSm;

/// A refusal with a number of the C library.
fn refused(errno: Errno) -> Answer {
    Answer::Refused(errno as u32)
}

/// The adapter of a host: the index of its node.
pub(super) fn find_host(subnet: &Subnet, name: &str) -> Option<usize> {
    let is_meant = |node: &Node| node.switch().is_none() && node.name() == name;
    subnet.nodes().iter().position(is_meant)
}

/// Answers a request. A port that was opened is returned as well.
pub(super) fn answer(
    request: Request,
    subnet: &Subnet,
    programs: &mut Programs,
    issm: &IsSm,
) -> (Answer, Option<FileId>) {
    let answer = match request {
        Request::Describe { host } => match find_host(subnet, &host) {
            Some(node) => Answer::Adapter(describe(subnet, node, issm)),
            None => refused(Errno::ENODEV),
        },
        Request::Open { host, port } => {
            let at = find_host(subnet, &host).map(|node| PortRef { node, port });
            match at.filter(|at| subnet.port(*at).is_some()) {
                Some(at) => {
                    let file = programs.open(at);
                    return (Answer::Done(file.0), Some(file));
                }
                None => refused(Errno::ENODEV),
            }
        }
        Request::Register { file, registration: asked } => {
            let registration = Registration {
                class: asked.class,
                version: asked.version,
                oui: asked.oui,
                methods: asked.methods,
                rmpp_version: asked.rmpp_version,
                has_own_rmpp: asked.has_own_rmpp,
            };
            match programs.register(FileId(file), registration) {
                Ok(agent) => Answer::Done(agent),
                Err(_) => refused(Errno::EINVAL),
            }
        }
        Request::Unregister { file, agent } => match programs.unregister(FileId(file), agent) {
            true => Answer::Done(agent),
            false => refused(Errno::EINVAL),
        },
    };
    (answer, None)
}

fn describe(subnet: &Subnet, node: usize, issm: &IsSm) -> Adapter {
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
        })
    };
    Adapter {
        description: found.name().to_owned(),
        info: *found.info(),
        ports: (1..=found.info().num_ports).filter_map(port).collect(),
    }
}
