//! Which member a packet is for: the numbers in the packet decide among the members at one address.
//!
//! The upper eight bits of a queue pair number name its member. Queue pair 1 exists in every
//! member. Of the packets to it, a request for a service goes to the member that listens for the
//! service, and every other packet to the member whose connection it is about: communication ids
//! begin with the number of the member, as queue pair numbers do.

use feroce_wire::cm::{CmMessage, CommId};
use feroce_wire::{Bth, Deth, Qpn};

/// Which member a packet is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// The member in this slot.
    Slot(u8),
    /// The member that listens for this service.
    Service(u64),
    /// No member in particular: any member at the address may handle it.
    Any,
}

/// The slot that a prefix of eight bits names.
fn of_prefix(prefix: u32) -> Target {
    u8::try_from(prefix).ok().and_then(|p| p.checked_sub(1)).map_or(Target::Any, Target::Slot)
}

/// Which member owns a queue pair, other than the numbers that every member has.
#[inline]
pub(super) fn of_qpn(qpn: Qpn) -> Target {
    of_prefix(qpn.get() >> 16)
}

/// Which member a packet is for; `packet` begins with its BTH.
#[inline]
pub(super) fn of_packet(packet: &[u8]) -> Target {
    match Bth::parse(packet) {
        Ok((bth, rest)) if bth.dest_qp == Qpn::QP1 => of_mad(rest),
        Ok((bth, _)) if bth.dest_qp == Qpn::MULTICAST => Target::Any,
        Ok((bth, _)) => of_qpn(bth.dest_qp),
        Err(_) => Target::Any,
    }
}

/// Which member a packet to queue pair 1 is for; `rest` begins with its DETH.
fn of_mad(rest: &[u8]) -> Target {
    let Ok((_, mad)) = Deth::parse(rest) else { return Target::Any };
    let of_id = |id: CommId| of_prefix(id.0 >> 24);
    match CmMessage::parse(mad) {
        Ok((_, CmMessage::Req(m))) => Target::Service(m.service_id.0),
        Ok((_, CmMessage::SidrReq(m))) => Target::Service(m.service_id.0),
        Ok((_, CmMessage::Mra(m))) => of_id(m.remote_id),
        Ok((_, CmMessage::Rej(m))) => of_id(m.remote_id),
        Ok((_, CmMessage::Rep(m))) => of_id(m.remote_id),
        Ok((_, CmMessage::Rtu(m))) => of_id(m.remote_id),
        Ok((_, CmMessage::Dreq(m))) => of_id(m.remote_id),
        Ok((_, CmMessage::Drep(m))) => of_id(m.remote_id),
        Ok((_, CmMessage::SidrRep(m))) => of_id(m.request_id),
        Ok((_, CmMessage::Lap(m))) => of_id(m.remote_id),
        Ok((_, CmMessage::Apr(m))) => of_id(m.remote_id),
        Err(_) => Target::Any,
    }
}

#[cfg(test)]
mod tests {
    use feroce_wire::cm::{Dreq, Rtu, ServiceId, SidrReq};
    use feroce_wire::{Op, Opcode, Pkey, Psn, Qkey, Service};

    use super::*;

    fn to_qp1(message: &CmMessage) -> Vec<u8> {
        let opcode = Opcode::new(Service::Ud, Op::SendOnly);
        let mut head = [0; Bth::LEN];
        Bth::new(opcode, Qpn::QP1, Psn::new(0)).emit(&mut head);
        let mut deth = [0; Deth::LEN];
        Deth { qkey: Qkey(0x8001_0000), src_qp: Qpn::QP1 }.emit(&mut deth);
        [&head[..], &deth, &message.emit(1)].concat()
    }

    #[test]
    fn queue_pairs_begin_with_the_number_of_their_member() {
        assert_eq!(of_qpn(Qpn::new(0x01_0000)), Target::Slot(0));
        assert_eq!(of_qpn(Qpn::new(0xff_fffe)), Target::Slot(254));
        assert_eq!(of_qpn(Qpn::new(0x00_1234)), Target::Any);
    }

    #[test]
    fn packets_name_their_queue_pair() {
        let mut packet = [0; Bth::LEN];
        let opcode = Opcode::new(Service::Rc, Op::SendOnly);
        Bth::new(opcode, Qpn::new(0x07_0001), Psn::new(0)).emit(&mut packet);
        assert_eq!(of_packet(&packet), Target::Slot(6));
        Bth::new(opcode, Qpn::MULTICAST, Psn::new(0)).emit(&mut packet);
        assert_eq!(of_packet(&packet), Target::Any);
        assert_eq!(of_packet(&packet[..5]), Target::Any);
    }

    #[test]
    fn requests_go_by_service_and_all_else_by_connection() {
        let request = SidrReq {
            request_id: CommId(0x0500_0001),
            pkey: Pkey::DEFAULT,
            service_id: ServiceId(0x0106_1234),
            private_data: [0; 216],
        };
        assert_eq!(of_packet(&to_qp1(&CmMessage::SidrReq(request))), Target::Service(0x0106_1234));
        let (local_id, remote_id) = (CommId(0x0500_0001), CommId(0x0300_0002));
        let rtu = Rtu { local_id, remote_id, private_data: [0; 224] };
        assert_eq!(of_packet(&to_qp1(&CmMessage::Rtu(rtu))), Target::Slot(2));
        let remote_qpn = Qpn::new(9);
        let dreq = Dreq { local_id, remote_id: CommId(7), remote_qpn, private_data: [0; 220] };
        assert_eq!(of_packet(&to_qp1(&CmMessage::Dreq(dreq))), Target::Any);
        assert_eq!(of_packet(&to_qp1(&CmMessage::Rtu(rtu_of(0)))[..40]), Target::Any);
    }

    fn rtu_of(id: u32) -> Rtu {
        Rtu { local_id: CommId(id), remote_id: CommId(id), private_data: [0; 224] }
    }
}
