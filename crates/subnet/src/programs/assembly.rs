//! Messages of several segments that a program receives.

use alloc::vec::Vec;

use feroce_train::Instant;
use feroce_wire::Lid;
use feroce_wire::mad::{Class, MadHeader, Rmpp, RmppType};

use super::request::after_millis;
use super::transfer::SEGMENT_LEN;
use super::{Programs, RMPP_AT, rmpp};
use crate::packet::{MadPacket, PortRef};
use crate::subnet::Subnet;

/// How long the sender may take for the whole message.
const TOTAL_MS: u32 = 40_000;
/// Segments that the sender may send before the next acknowledgement.
const WINDOW: u32 = 64;
/// Segments of a message at most: 13 MB of records.
const MAX_SEGMENTS: u32 = 1 << 16;
/// Messages of one agent that arrive at a time.
const MAX_ASSEMBLIES: usize = 64;

/// Which message a segment is part of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    /// Upper half of the transactions of the agent.
    pub(super) agent: u32,
    transaction: u64,
    slid: Lid,
    method: u8,
}

#[derive(Debug)]
pub(super) struct Assembly {
    /// From the headers of the first segment on.
    data: Vec<u8>,
    /// Segments that have arrived.
    arrived: u32,
    window: u32,
    /// The last segment before a gap that the sender was told of.
    gap: Option<u32>,
    pub(super) deadline: Instant,
}

impl Programs {
    /// A segment of a message arrives. The last one returns the message.
    pub(super) fn join_segment(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        at: PortRef,
        agent: u32,
        header: &MadHeader,
        packet: &MadPacket,
    ) -> Option<Vec<u8>> {
        let rmpp = rmpp(&packet.mad)?;
        let head = Class(header.class).rmpp_header_len();
        let (transaction, method) = (header.transaction, header.method);
        let key = Key { agent, transaction, slid: packet.slid, method };
        let count = self.assemblies.keys().filter(|key| key.agent == agent).count();
        if rmpp.segment == 1 && rmpp.is_first && count < MAX_ASSEMBLIES {
            let (data, deadline) = (packet.mad[..head].to_vec(), after_millis(now, TOTAL_MS));
            let new = Assembly { data, arrived: 0, window: 1, gap: None, deadline };
            self.assemblies.entry(key).or_insert(new);
        }
        let assembly = self.assemblies.get_mut(&key)?;
        let is_next = rmpp.segment == assembly.arrived + 1 && rmpp.segment <= MAX_SEGMENTS;
        if is_next {
            assembly.arrived = rmpp.segment;
            let unused = match rmpp.is_last {
                true => SEGMENT_LEN.saturating_sub(rmpp.length_or_window as usize),
                false => 0,
            };
            let part = &packet.mad[head..];
            assembly.data.extend_from_slice(&part[..part.len().saturating_sub(unused)]);
        }
        let is_over = rmpp.is_last && assembly.arrived == rmpp.segment;
        // After a loss the sender learns, once, where to begin again.
        let is_gap = rmpp.segment > assembly.arrived && assembly.gap != Some(assembly.arrived);
        if is_gap {
            assembly.gap = Some(assembly.arrived);
        }
        // The acknowledgement of a segment that arrives again was lost.
        let is_late = !is_next && rmpp.segment <= assembly.arrived;
        let is_due = is_over || is_gap || is_late || assembly.arrived >= assembly.window;
        if is_due {
            assembly.window = assembly.window.max(assembly.arrived + WINDOW);
            let (segment, window) = (assembly.arrived, assembly.window);
            subnet.send(now, at, acknowledgement(packet, header, &rmpp, segment, window));
        }
        match is_over {
            true => self.assemblies.remove(&key).map(|assembly| assembly.data),
            false => None,
        }
    }
}

/// The acknowledgement goes the other way, so that the response bit of its method is the opposite.
fn acknowledgement(
    packet: &MadPacket,
    header: &MadHeader,
    rmpp: &Rmpp,
    segment: u32,
    window: u32,
) -> MadPacket {
    let mut mad = packet.mad;
    let header = MadHeader { method: header.method ^ 0x80, ..*header };
    if let Some(out) = mad.first_chunk_mut() {
        header.emit(out);
    }
    let rmpp = Rmpp {
        kind: RmppType::ACK,
        is_first: false,
        is_last: false,
        segment,
        length_or_window: window,
        ..*rmpp
    };
    mad[RMPP_AT..RMPP_AT + Rmpp::LEN].copy_from_slice(&rmpp.to_bytes());
    mad[RMPP_AT + Rmpp::LEN..].fill(0);
    packet.reply(mad)
}
