//! Answers to messages of connection managers that no process is there for.
//!
//! The kernel of a host has a connection manager whether or not programs run: it rejects requests
//! for services without a listener, and confirms the end of connections that it does not know.

use feroce_link::port::Record;
use feroce_link::{Covered, ICRC_LEN};
use feroce_train::RxMeta;
use feroce_wire::cm::{CmMessage, CommId, Drep, Rej, RejReason, SidrRep, SidrStatus, Stage};
use feroce_wire::mad::MAD_LEN;
use feroce_wire::{Bth, Deth, Qkey, Qpn};

/// Bytes of a datagram of management, from BTH to ICRC.
const LEN: usize = Bth::LEN + Deth::LEN + MAD_LEN + ICRC_LEN;

/// An answer, and what its packet says of itself.
pub(super) struct Answer {
    meta: RxMeta,
    bytes: [u8; LEN],
}

impl Answer {
    /// What the kernel of the host answers; `None` if it says nothing.
    pub(super) fn to(record: &Record<'_>) -> Option<Self> {
        let (bth, rest) =
            Bth::parse(record.bytes).ok().filter(|(bth, _)| bth.dest_qp == Qpn::QP1)?;
        let (deth, mad) = Deth::parse(rest).ok()?;
        let (transaction, message) = CmMessage::parse(mad).ok()?;
        let answer = answer(&message)?.emit(transaction);
        let meta = RxMeta { src: record.meta.dst, dst: record.meta.src, ..record.meta };
        let mut bytes = [0; LEN];
        let (packet, icrc) = bytes.split_at_mut(LEN - ICRC_LEN);
        let (head, rest) = packet.split_first_chunk_mut()?;
        Bth { dest_qp: deth.src_qp, ..bth }.emit(head);
        let (head, rest) = rest.split_first_chunk_mut()?;
        Deth { src_qp: Qpn::QP1, ..deth }.emit(head);
        rest.copy_from_slice(&answer);
        let RxMeta { framing, src, dst, udp_sport, sl, .. } = meta;
        let covered = Covered { framing, src, dst, udp_sport, sl };
        icrc.copy_from_slice(&covered.prefix(packet.len()).seal(packet));
        Some(Self { meta, bytes })
    }

    /// The packet, to be sent at a time.
    pub(super) fn record(&self, at_ns: u64) -> Record<'_> {
        Record { at_ns, meta: self.meta, stride: LEN, bytes: &self.bytes }
    }
}

fn answer(message: &CmMessage) -> Option<CmMessage> {
    match message {
        CmMessage::Req(req) => Some(CmMessage::Rej(Rej {
            local_id: CommId(0),
            remote_id: req.local_id,
            stage: Stage::Req,
            info_len: 0,
            reason: RejReason::INVALID_SERVICE_ID,
            info: [0; 72],
            private_data: [0; 148],
        })),
        CmMessage::SidrReq(req) => Some(CmMessage::SidrRep(SidrRep {
            request_id: req.request_id,
            status: SidrStatus::UNSUPPORTED,
            info_len: 0,
            qpn: Qpn::QP0,
            service_id: req.service_id,
            qkey: Qkey(0),
            info: [0; 72],
            private_data: [0; 136],
        })),
        CmMessage::Dreq(dreq) => Some(CmMessage::Drep(Drep {
            local_id: dreq.remote_id,
            remote_id: dreq.local_id,
            private_data: [0; 224],
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use feroce_train::{Framing, PortAddr};
    use feroce_wire::cm::Dreq;
    use feroce_wire::{Gid, Lid, Op, Opcode, Psn, Service};

    use super::*;

    /// Linux answers a DREQ for a connection that it does not know, too (`cm_issue_drep`).
    #[test]
    fn the_end_of_an_unknown_connection_is_confirmed() {
        let dreq = CmMessage::Dreq(Dreq {
            local_id: CommId(7),
            remote_id: CommId(9),
            remote_qpn: Qpn::new(0x1234),
            private_data: [0; 220],
        });
        let opcode = Opcode::new(Service::Ud, Op::SendOnly);
        let mut bytes = [0; LEN];
        let (head, rest) = bytes.split_first_chunk_mut().expect("room");
        Bth::new(opcode, Qpn::QP1, Psn::new(5)).emit(head);
        let (head, rest) = rest.split_first_chunk_mut().expect("room");
        Deth { qkey: Qkey(0x8001_0000), src_qp: Qpn::QP1 }.emit(head);
        rest[..MAD_LEN].copy_from_slice(&dreq.emit(77));
        let at = |lid| PortAddr { gid: Gid::ZERO, lid: Lid(lid) };
        let framing = Framing::InfiniBand;
        let meta = RxMeta { src: at(1), dst: at(8), framing, sl: 3, ..RxMeta::default() };
        let record = Record { at_ns: 0, meta, stride: LEN, bytes: &bytes };
        let answer = Answer::to(&record).expect("an answer");
        let record = answer.record(1);
        assert_eq!((record.meta.src, record.meta.dst, record.meta.sl), (at(8), at(1), 3));
        let (bth, rest) = Bth::parse(record.bytes).expect("whole");
        let (deth, mad) = Deth::parse(rest).expect("whole");
        assert_eq!((bth.dest_qp, deth.src_qp), (Qpn::QP1, Qpn::QP1));
        let drep = Drep { local_id: CommId(9), remote_id: CommId(7), private_data: [0; 224] };
        assert_eq!(CmMessage::parse(mad).expect("a message"), (77, CmMessage::Drep(drep)));
        // A confirmation is not answered in turn.
        assert!(Answer::to(&record).is_none());
    }
}
