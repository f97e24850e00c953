//! Traps (IBTA vol1 13.4.9, 14.3.11): notices to the subnet manager, repeated until it represses
//! them.

use feroce_train::Instant;
use feroce_wire::mad::{
    Attribute, Class, MadHeader, Method, NodeType, Notice, SMP_DATA_LEN, Smp, TrapNumber,
};
use feroce_wire::{Lid, Pkey, Qkey, Qpn};

use crate::node::Node;
use crate::packet::MadPacket;

/// The least time between two traps of a node, unless the subnet timeout is longer: 4.096 us times
/// two to this power, 268 ms.
const LEAST_INTERVAL: u8 = 16;
/// Security: a key was wrong.
pub(crate) const KIND_SECURITY: u8 = 2;
/// Subnet management: something has changed.
pub(crate) const KIND_MANAGEMENT: u8 = 3;
/// Urgent: a link.
pub(crate) const KIND_URGENT: u8 = 1;

impl Node {
    /// Has something to tell the subnet manager. Nothing is told before a subnet manager has said
    /// where it is: it will look at everything.
    pub(crate) fn notify(
        &mut self,
        now: Instant,
        port: u8,
        kind: u8,
        trap: TrapNumber,
        details: [u8; 54],
    ) {
        let Some(info) = self.port(port).map(|port| port.info) else {
            return;
        };
        if info.sm_lid == Lid(0) || info.lid == Lid(0) {
            return;
        }
        let producer = match self.info.node_type {
            NodeType::SWITCH => 2,
            _ => 1,
        };
        let notice = Notice {
            is_generic: true,
            kind,
            producer,
            trap,
            issuer_lid: info.lid,
            toggle: false,
            count: 0,
            details,
        };
        self.traps.add(now, notice);
    }

    /// The next trap that is due, with the port that sends it. It is due again after a while.
    pub(crate) fn poll_trap(&mut self, now: Instant) -> Option<(u8, MadPacket)> {
        let issuer = self.traps.due(now)?.notice.issuer_lid;
        // The port may have another LID by now; any port of the node can tell.
        let ports = || (0..).zip(&self.ports).map(|(number, port)| (number, port.info));
        let (number, info) = ports()
            .find(|(_, info)| info.lid == issuer)
            .or_else(|| ports().find(|(_, info)| info.lid != Lid(0)))?;
        let exponent = info.subnet_timeout.max(LEAST_INTERVAL);
        let pending = self.traps.due(now)?;
        pending.next_at = now.plus_nanos(4096 << exponent);
        pending.notice.issuer_lid = info.lid;
        let mut header = MadHeader::request(Class::SUBNET_LID, Method::TRAP, Attribute::NOTICE);
        header.transaction = pending.transaction;
        let data: [u8; SMP_DATA_LEN] = pending.notice.to_bytes();
        let smp = Smp { m_key: info.m_key, data, ..Smp::by_lid(header) };
        let packet = MadPacket {
            slid: info.lid,
            dlid: info.sm_lid,
            sl: info.sm_sl,
            pkey: Pkey::DEFAULT,
            src_qpn: Qpn::QP0,
            dst_qpn: Qpn::QP0,
            qkey: Qkey(0),
            gids: None,
            mad: smp.to_bytes(),
        };
        Some((number, packet))
    }
}
