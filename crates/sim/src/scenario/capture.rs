//! Frames that pass a port, as a capture file has them.

use feroce_fabric::{Passed, PauseEvent, PortName, Time, Topology};
use feroce_wire::Ethernet;

use super::packet::{Body, Routing};

/// A frame that passed a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Captured {
    /// When it began to leave, or when all of it had arrived.
    pub at: Time,
    /// The port.
    pub port: PortName,
    /// The bytes that exist: payload does not.
    pub bytes: Vec<u8>,
    /// Bytes of the whole frame, without preamble and check sequence.
    pub len: u32,
}

/// A pause frame on the link: 64 bytes with its check sequence, 20 for preamble and gap.
const PAUSE_ON_LINK: u32 = 84;
/// Without the check sequence.
const PAUSE_LEN: usize = 60;
/// The group address of MAC control frames, their type, and the operation of priority pauses.
const PAUSE_TO: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 1];
const MAC_CONTROL: u16 = 0x8808;
const PRIORITY_PAUSE: [u8; 2] = [0x01, 0x01];

/// Ports that are captured, and what has passed them.
#[derive(Debug, Default)]
pub(super) struct Captures {
    ports: Vec<Watched>,
    pending: Vec<Captured>,
}

/// A port that is captured.
#[derive(Clone, Copy, Debug)]
struct Watched {
    port: PortName,
    peer: PortName,
    /// From the begin of a pause frame to its arrival.
    lead_ps: u64,
}

impl Captures {
    /// Adds a port; false if there is no such port.
    pub(super) fn add(&mut self, topology: &Topology, port: PortName) -> bool {
        let Some(link) = topology.link_of(port) else { return false };
        let Some(peer) = topology.other_end(link, port) else { return false };
        let link = topology.links()[link];
        let lead_ps = link.delay_ps.saturating_add(link.rate.ps_of(PAUSE_ON_LINK));
        self.ports.push(Watched { port, peer, lead_ps });
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Adds packets.
    pub(super) fn packets(&mut self, passed: Vec<Passed<Body>>, routing: &Routing) {
        for Passed { at, node, port, packet, .. } in passed {
            if let Some((bytes, len)) = packet.body.frame(packet.ecn, routing) {
                self.pending.push(Captured { at, port: PortName { node, port }, bytes, len });
            }
        }
    }

    /// Adds the pause frames that ports have received, which others have sent.
    pub(super) fn pauses(&mut self, events: &[PauseEvent], quanta: u16) {
        for event in events {
            let to = PortName { node: event.node, port: event.port };
            for watched in &self.ports {
                let at = if watched.port == to {
                    event.at
                } else if watched.peer == to {
                    Time::from_ps(event.at.as_ps().saturating_sub(watched.lead_ps))
                } else {
                    continue;
                };
                let from = if watched.port == to { watched.peer } else { watched.port };
                let bytes = pause_frame(from, event.priority, if event.is_on { quanta } else { 0 });
                let len = bytes.len() as u32;
                self.pending.push(Captured { at, port: watched.port, bytes, len });
            }
        }
    }

    /// Takes the frames in the order of their times; without `all`, only those before which no
    /// other can come any more.
    pub(super) fn take(&mut self, now: Time, all: bool) -> Vec<Captured> {
        self.pending.sort_by_key(|frame| frame.at);
        let lead_ps = self.ports.iter().map(|watched| watched.lead_ps).max().unwrap_or(0);
        let is_over = |frame: &Captured| all || frame.at.plus_ps(lead_ps) < now;
        let rest = self.pending.split_off(self.pending.partition_point(is_over));
        core::mem::replace(&mut self.pending, rest)
    }
}

fn pause_frame(from: PortName, priority: u8, quanta: u16) -> Vec<u8> {
    let mut bytes = vec![0; PAUSE_LEN];
    let [_, _, a, b] = (from.node as u32).to_be_bytes();
    let src = [2, 1, a, b, 0, from.port as u8];
    let header = Ethernet { dst: PAUSE_TO, src, vlan: None, ethertype: MAC_CONTROL };
    let written = header.emit(&mut bytes);
    debug_assert!(written.is_ok(), "a frame is longer than its header");
    let body = &mut bytes[Ethernet::MIN_LEN..];
    body[..2].copy_from_slice(&PRIORITY_PAUSE);
    // Which priorities it is about, then a time for each of the eight.
    body[3] = 1 << priority;
    let at = 4 + 2 * usize::from(priority);
    body[at..at + 2].copy_from_slice(&quanta.to_be_bytes());
    bytes
}
