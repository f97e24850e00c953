//! Forged packets that a peer could have sent: right in most fields.

use feroce_engine::QpType;
use feroce_testkit::QKEY;
use feroce_train::{RxMeta, RxTrain};
use feroce_wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Exts, Feth, Ieth, Imm, ImmDt, Msn, Op, Opcode,
    Packet, Psn, Reth, Service, Syndrome, XrcEth,
};

use super::{KINDS, World, remote_addr};
use crate::input::Input;

/// Payloads around every length that matters at an MTU of 256.
const LENGTHS: [usize; 8] = [0, 1, 8, 255, 256, 257, 300, 64];

impl World {
    /// A packet for host `which`, as from its peer.
    pub(super) fn inject(&mut self, which: usize, input: &mut Input<'_>) {
        let index = input.below(KINDS.len());
        let (attr, init) = self.query(which, index);
        let service = match init.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcIni | QpType::XrcTgt => Service::Xrc,
        };
        let op = input.pick(&Op::ALL);
        let service = if op == Op::Cnp { Service::Cnp } else { service };
        // Requests are counted from what is expected, answers from what was sent last.
        let base = if op.is_request() { attr.rq_psn } else { attr.sq_psn };
        let offset = i32::from(input.u8().cast_signed());
        let last = if op.is_request() { 0 } else { -1 };
        let psn = base.unwrap_or_default().get().wrapping_add_signed(last + offset);
        let flags = input.u8();
        let [a, b] = &mut self.sides;
        let (to, from) = if which == 0 { (a, b) } else { (b, a) };
        let qpn = to.slots[index].qpn;
        let bth = Bth {
            solicited: flags & 1 != 0,
            ack_req: flags & 2 == 0,
            becn: flags & 4 != 0,
            fecn: flags & 8 != 0,
            tver: u8::from(flags & 0xf0 == 0xf0),
            ..Bth::new(Opcode::new(service, op), qpn, Psn::new(psn))
        };
        let rkey = input.pick(&to.host.keys.remote());
        let payload = [0x77; 320];
        let payload = &payload[..input.pick(&LENGTHS)];
        let len = match input.below(4) {
            0 | 1 => payload.len() as u32,
            2 => u32::from(input.u16()),
            _ => u32::from(input.u16()) << 16,
        };
        let va = remote_addr(input, len);
        let is = |present: bool| present.then_some(());
        let exts = Exts {
            deth: is(service == Service::Ud)
                .map(|()| Deth { qkey: QKEY, src_qp: from.slots[index].qpn }),
            xrceth: is(service == Service::Xrc && op.is_request())
                .map(|()| XrcEth { srqn: to.host.xrc_srq.number() }),
            cnp: is(op == Op::Cnp).map(|()| Default::default()),
            feth: is(op.has_feth()).map(|()| Feth::parse(&[0, 0, 0, flags >> 4]).expect("four").0),
            reth: is(op.has_reth()).map(|()| Reth { va, rkey, len }),
            atomic: is(op.has_atomic_eth()).map(|()| AtomicEth {
                va,
                rkey,
                swap_add: input.u64(),
                compare: 0,
            }),
            aeth: is(op.has_aeth()).map(|()| Aeth {
                syndrome: Syndrome::from_u8(input.u8()),
                msn: Msn::new(u32::from(input.u8())),
            }),
            atomic_ack: is(op.has_atomic_ack_eth())
                .map(|()| AtomicAckEth { original: u64::from(flags) }),
            imm: is(op.has_imm()).map(|()| ImmDt { imm: Imm(psn) }),
            ieth: is(op.has_ieth()).map(|()| Ieth { rkey }),
        };
        let packet = Packet::new(bth, exts, payload);
        let mut bytes = [0; 512];
        // Some operations do not exist on some services.
        let Ok(len) = packet.emit(&mut bytes) else {
            return;
        };
        let meta = RxMeta {
            src: from.host.base.gid.into(),
            dst: to.host.base.gid.into(),
            ..RxMeta::default()
        };
        to.host.base.engine.handle_rx(self.now, &RxTrain::single(meta, &bytes[..len]));
    }
}
