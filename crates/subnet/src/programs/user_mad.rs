//! A datagram as programs hand it over: the layout of the kernel's `ib_user_mad`, in which fields
//! of the address are in network byte order and all others in that of the machine.

use alloc::vec::Vec;

use feroce_wire::{Gid, Lid};

use crate::packet::{MadPacket, PortRef};
use crate::subnet::Subnet;

/// Where a datagram goes to, or comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MadAddress {
    /// Queue pair of the other end.
    pub qpn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// LID of the other end.
    pub lid: Lid,
    /// Service level.
    pub sl: u8,
    /// Which of its LIDs this end uses.
    pub path_bits: u8,
    /// With a GRH: index of the own GID, and the GID of the other end.
    pub gid: Option<(u8, Gid)>,
    /// Index of the partition.
    pub pkey_index: u16,
}

/// A datagram, or a message of several, with its address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserMad {
    /// The agent that sends it, or that it is for.
    pub agent: u32,
    /// Zero, or why a request has failed: a number of the C library.
    pub status: u32,
    /// How long to wait for a response; zero: none is expected.
    pub timeout_ms: u32,
    /// How often a request is repeated that is not answered.
    pub retries: u32,
    /// The other end.
    pub address: MadAddress,
    /// From the header on.
    pub data: Vec<u8>,
}

impl UserMad {
    /// Bytes in front of the datagram.
    pub const HEADER_LEN: usize = 64;
    /// Status of a request that was not answered (`ETIMEDOUT`).
    pub const TIMED_OUT: u32 = 110;

    /// Reads a message of a program; `None` if it is too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (head, data) = bytes.split_first_chunk::<{ Self::HEADER_LEN }>()?;
        let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        let number = |at| u32::from_ne_bytes(word(at));
        let gid = (head[32] != 0).then(|| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&head[36..52]);
            (head[33], Gid(gid))
        });
        Some(Self {
            agent: number(0),
            status: number(4),
            timeout_ms: number(8),
            retries: number(12),
            address: MadAddress {
                qpn: u32::from_be_bytes(word(20)),
                qkey: u32::from_be_bytes(word(24)),
                lid: Lid(u16::from_be_bytes([head[28], head[29]])),
                sl: head[30],
                path_bits: head[31],
                gid,
                pkey_index: u16::from_ne_bytes([head[56], head[57]]),
            },
            data: data.to_vec(),
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut head = [0; Self::HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        let length = Self::HEADER_LEN + self.data.len();
        put(0, &self.agent.to_ne_bytes());
        put(4, &self.status.to_ne_bytes());
        put(8, &self.timeout_ms.to_ne_bytes());
        put(12, &self.retries.to_ne_bytes());
        put(16, &(length as u32).to_ne_bytes());
        let to = &self.address;
        put(20, &to.qpn.to_be_bytes());
        put(24, &to.qkey.to_be_bytes());
        put(28, &to.lid.0.to_be_bytes());
        put(30, &[to.sl, to.path_bits]);
        if let Some((index, gid)) = to.gid {
            put(32, &[1, index]);
            put(36, &gid.0);
        }
        put(56, &to.pkey_index.to_ne_bytes());
        let mut bytes = head.to_vec();
        bytes.extend_from_slice(&self.data);
        bytes
    }
}

impl MadAddress {
    /// Where a packet that arrived at a port came from.
    pub(super) fn of(subnet: &Subnet, at: PortRef, packet: &MadPacket) -> Self {
        let port = subnet.port(at);
        let keys = port.map(|port| port.pkeys()).unwrap_or_default();
        let pkey_index = keys.iter().position(|key| key.matches(packet.pkey)).unwrap_or(0);
        let lmc = port.map_or(0, |port| port.info().lmc);
        let gid_index = |gid| {
            let has = |index: &u8| port.and_then(|port| port.gid(usize::from(*index))) == Some(gid);
            (0..=u8::MAX).find(has)
        };
        Self {
            qpn: packet.src_qpn.get(),
            qkey: 0,
            lid: packet.slid,
            sl: packet.sl,
            path_bits: (packet.dlid.0 & !(u16::MAX << lmc)) as u8,
            gid: packet.gids.map(|(from, to)| (gid_index(to).unwrap_or(0), from)),
            pkey_index: pkey_index as u16,
        }
    }
}
