//! Processes that take part in multicast groups.
//!
//! The subnet manager knows ports and not processes. A process joins a group by itself, through
//! subnet administration; the fabric, as the kernel does on other hosts, knows how many processes
//! take part, and has the port leave the group after the last of them, even if that was killed.

use std::collections::BTreeMap;

use feroce_subnet::{MadPacket, Port, PortRef, Subnet};
use feroce_wire::mad::{
    BASE_VERSION, Class, MadHeader, McMemberRecord, Method, SA_DATA_LEN, SaAttribute, SaMad,
};
use feroce_wire::{Gid, Lid, Pkey, Qkey, Qpn};

use super::conn::ConnId;

/// Version of the class of subnet administration.
const CLASS_VERSION: u8 = 2;
/// The well-known queue key of queue pair 1.
const QKEY: Qkey = Qkey(0x8001_0000);
/// Components of the record that name a membership: group, port and how it takes part.
const COMPONENTS: u64 = 1 << 0 | 1 << 1 | 1 << 16;

/// How a process takes part in a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) at: PortRef,
    pub(super) group: Gid,
    pub(super) join_state: u8,
}

/// The processes that take part in groups.
#[derive(Debug, Default)]
pub(super) struct Members(BTreeMap<ConnId, Member>);

impl Members {
    pub(super) fn add(&mut self, conn: ConnId, member: Member) {
        self.0.insert(conn, member);
    }

    /// A connection has ended. Returns the membership of a port that ends with it.
    pub(super) fn remove(&mut self, conn: ConnId) -> Option<Member> {
        let member = self.0.remove(&conn)?;
        let is_last = !self.0.values().any(|other| *other == member);
        is_last.then_some(member)
    }
}

impl Member {
    /// The datagram by which the port leaves the group; `None` if it has no subnet manager.
    pub(super) fn leave(&self, subnet: &Subnet, transaction: u32) -> Option<MadPacket> {
        let port: &Port = subnet.port(self.at)?;
        let info = port.info();
        let header = MadHeader {
            base_version: BASE_VERSION,
            class: Class::SUBNET_ADMINISTRATION.0,
            class_version: CLASS_VERSION,
            method: Method::DELETE.0,
            transaction: transaction.into(),
            attribute: SaAttribute::MC_MEMBER.0,
            ..MadHeader::default()
        };
        let (mgid, join_state) = (self.group, self.join_state);
        let record = McMemberRecord {
            mgid,
            port_gid: port.gid(0)?,
            join_state,
            ..McMemberRecord::default()
        };
        let mut data = [0; SA_DATA_LEN];
        data[..McMemberRecord::LEN].copy_from_slice(&record.to_bytes());
        let mad = SaMad { header, component_mask: COMPONENTS, data, ..SaMad::default() };
        (info.sm_lid != Lid(0)).then(|| MadPacket {
            slid: info.lid,
            dlid: info.sm_lid,
            sl: info.sm_sl,
            pkey: Pkey::DEFAULT,
            src_qpn: Qpn::QP1,
            dst_qpn: Qpn::QP1,
            qkey: QKEY,
            gids: None,
            mad: mad.to_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_leaves_with_the_last_member() {
        let at = PortRef { node: 1, port: 1 };
        let member = Member { at, group: Gid([0xff; 16]), join_state: 1 };
        let sender = Member { join_state: 8, ..member };
        let mut members = Members::default();
        for (conn, member) in [(1, member), (2, sender), (3, member)] {
            members.add(conn, member);
        }
        assert_eq!(members.remove(1), None);
        assert_eq!(members.remove(2), Some(sender));
        assert_eq!(members.remove(3), Some(member));
        assert_eq!(members.remove(3), None);
    }
}
