//! Which process a packet is for: the numbers in the packet decide among the processes at one
//! address.
//!
//! The upper eight bits of a queue pair number name its process. Queue pair 1 exists in every
//! process. Of the packets to it, a request for a service goes to the process that listens for the
//! service, and every other packet to the process whose connection it is about: communication ids
//! begin with the number of the process, as queue pair numbers do. A requester that gives up before
//! it was answered does not know that id, so its message goes to every process.

use feroce_wire::cm::{CmMessage, Recipient};
use feroce_wire::{Bth, Deth, Qpn};

/// Which process a packet is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The process in this slot.
    Slot(u8),
    /// The process that listens for this service.
    Service(u64),
    /// Every process at the address: only the one that it is for knows that.
    All,
    /// No process in particular: any process at the address may handle it.
    Any,
}

/// The slot that a prefix of eight bits names.
fn of_prefix(prefix: u32) -> Target {
    u8::try_from(prefix).ok().and_then(|p| p.checked_sub(1)).map_or(Target::Any, Target::Slot)
}

/// Which process owns a queue pair, other than the numbers that every process has.
#[inline]
pub(super) fn of_qpn(qpn: Qpn) -> Target {
    of_prefix(qpn.get() >> 16)
}

/// Which process a packet is for; `packet` begins with its BTH.
#[inline]
pub fn of_packet(packet: &[u8]) -> Target {
    match Bth::parse(packet) {
        Ok((bth, rest)) if bth.dest_qp == Qpn::QP1 => of_mad(rest),
        Ok((bth, _)) if bth.dest_qp == Qpn::MULTICAST => Target::Any,
        Ok((bth, _)) => of_qpn(bth.dest_qp),
        Err(_) => Target::Any,
    }
}

/// Which process a packet to queue pair 1 is for; `rest` begins with its DETH.
fn of_mad(rest: &[u8]) -> Target {
    let Ok((_, mad)) = Deth::parse(rest) else { return Target::Any };
    let Ok((_, message)) = CmMessage::parse(mad) else { return Target::Any };
    match message.recipient() {
        Recipient::Listener(service) => Target::Service(service.0),
        Recipient::Connection(id) => of_prefix(id.0 >> 24),
        Recipient::Requested(_) => Target::All,
    }
}

#[cfg(test)]
mod tests {
    use feroce_wire::cm::{CommId, Dreq, Rej, RejReason, Rtu, ServiceId, SidrReq, Stage};
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
    fn queue_pairs_begin_with_the_number_of_their_slot() {
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
        for (remote_id, target) in [(remote_id, Target::Slot(2)), (CommId(0), Target::All)] {
            let rej = Rej { local_id, remote_id, ..rejection() };
            assert_eq!(of_packet(&to_qp1(&CmMessage::Rej(rej))), target);
        }
    }

    fn rejection() -> Rej {
        let (local_id, remote_id) = (CommId(0), CommId(0));
        let (stage, reason) = (Stage::Other, RejReason::TIMEOUT);
        let (info, private_data) = ([0; 72], [0; 148]);
        Rej { local_id, remote_id, stage, info_len: 0, reason, info, private_data }
    }

    fn rtu_of(id: u32) -> Rtu {
        Rtu { local_id: CommId(id), remote_id: CommId(id), private_data: [0; 224] }
    }
}
