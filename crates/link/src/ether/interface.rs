//! The interface that frames leave from: its address, and its VLAN.

use std::io;
use std::os::fd::OwnedFd;

use crate::rtnetlink::{Message, find, query, u16_at, u32_at};

/// `ARPHRD_ETHER`: the interface has Ethernet frames.
const ETHERNET: u16 = 1;

/// Attributes of an interface.
const IFLA_ADDRESS: u16 = 1;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
/// Inside of `IFLA_LINKINFO`.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
/// Inside of `IFLA_INFO_DATA` of a VLAN.
const IFLA_VLAN_ID: u16 = 1;
const IFLA_VLAN_PROTOCOL: u16 = 5;
/// `ETH_P_8021Q`.
const VLAN_8021Q: u16 = 0x8100;

/// An Ethernet interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interface {
    /// The interface that frames pass: the lower one if this is a VLAN.
    pub(super) index: u32,
    /// Its Ethernet address.
    pub(super) mac: [u8; 6],
    /// Who writes VLAN tags.
    pub(super) tags: Tags,
}

/// Who writes VLAN tags, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tags {
    /// We do: this VLAN, or none if it is zero.
    Own(u16),
    /// The kernel does. The lower interface of the VLAN is in another network namespace, so frames
    /// pass the VLAN's interface, which has its own map of priorities.
    Kernel,
}

/// What the kernel says of an interface.
struct Described {
    kind: u16,
    mac: Option<[u8; 6]>,
    /// VLAN identifier, and the lower interface if it is in this network namespace.
    vlan: Option<(u16, Option<u32>)>,
}

impl Interface {
    /// Asks the kernel for an interface, over a routing socket. It is an error of kind
    /// [`io::ErrorKind::Unsupported`] if it has no Ethernet frames.
    pub(super) fn find(netlink: &OwnedFd, index: u32) -> io::Result<Self> {
        let found = describe(netlink, index)?;
        let Some(mac) = found.mac.filter(|_| found.kind == ETHERNET) else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the interface is not Ethernet",
            ));
        };
        Ok(match found.vlan {
            None => Self { index, mac, tags: Tags::Own(0) },
            Some((vid, Some(lower))) => Self { index: lower, mac, tags: Tags::Own(vid) },
            Some((_, None)) => Self { index, mac, tags: Tags::Kernel },
        })
    }

    /// The same with a VLAN of the user's choice, if there is one.
    pub(super) fn in_vlan(self, vid: Option<u16>) -> Self {
        Self { tags: vid.map_or(self.tags, Tags::Own), ..self }
    }
}

fn describe(netlink: &OwnedFd, index: u32) -> io::Result<Described> {
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend([0; 8]);
    query(netlink, libc::RTM_GETLINK, &body, read)
}

fn read(message: &Message<'_>) -> Option<Described> {
    if message.kind != libc::RTM_NEWLINK {
        return None;
    }
    let attributes = message.body.get(16..)?;
    let mac = find(attributes, IFLA_ADDRESS).and_then(|mac| mac.try_into().ok());
    Some(Described { kind: u16_at(message.body, 2)?, mac, vlan: vlan(attributes) })
}

fn vlan(attributes: &[u8]) -> Option<(u16, Option<u32>)> {
    let info = find(attributes, IFLA_LINKINFO)?;
    let kind = find(info, IFLA_INFO_KIND)?;
    if kind.split(|byte| *byte == 0).next() != Some(b"vlan") {
        return None;
    }
    let data = find(info, IFLA_INFO_DATA)?;
    let vid = find(data, IFLA_VLAN_ID).and_then(|id| u16_at(id, 0))?;
    let protocol = find(data, IFLA_VLAN_PROTOCOL).and_then(|word| word.first_chunk());
    let is_8021q = protocol.is_none_or(|bytes| u16::from_be_bytes(*bytes) == VLAN_8021Q);
    let is_here = find(attributes, IFLA_LINK_NETNSID).is_none() && is_8021q;
    let lower = find(attributes, IFLA_LINK).filter(|_| is_here).and_then(|link| u32_at(link, 0));
    Some((vid, lower))
}
