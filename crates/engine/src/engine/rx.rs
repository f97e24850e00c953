//! Packets in.

use feroce_train::{Instant, Lent, Packets, RxMeta, RxTrain};
use feroce_wire::{Bth, BthView, Deth, Op, Qpn, Service};

use super::Engine;
use crate::counters::Drop;
use crate::grh::header_area;
use crate::qp::{QpType, Rest};

/// How much of two packets must be equal for what comes before any queue pair is asked to be equal
/// for both: opcode, flags, partition, congestion and destination.
const ALIKE: usize = 8;

impl Engine {
    /// Takes in a train of packets whose ICRC the link has verified.
    pub fn handle_rx(&mut self, now: Instant, train: &RxTrain<'_>) {
        self.now = now;
        self.receive(now, train);
        self.finish();
    }

    #[inline]
    pub(super) fn receive(&mut self, now: Instant, train: &RxTrain<'_>) {
        if let Some(lent) = train.lent {
            // Every packet of the run has a BTH; the first may have more.
            let headers = train.bytes.len() + lent.packets.saturating_sub(1) as usize * Bth::LEN;
            self.core.count_received(lent.packets, headers + lent.len);
            let none = &mut Packets::default();
            if let Err(reason) = self.handle_packet(now, &train.meta, train.bytes, none, Some(lent))
            {
                self.core.drop(reason);
            }
            return;
        }
        let mut packets = train.packets();
        while let Some(packet) = packets.next() {
            self.core.count_received(1, packet.len());
            let handled = self.handle_packet(now, &train.meta, packet, &mut packets, None);
            if let Err(reason) = handled {
                self.core.drop(reason);
            }
        }
    }

    /// Checks that come before any queue pair is asked (IBTA vol1 9.6.1), then the queue pair.
    /// Takes packets from `behind` as long as those checks would have the same outcome.
    #[inline]
    fn handle_packet(
        &mut self,
        now: Instant,
        meta: &RxMeta,
        packet: &[u8],
        behind: &mut Packets<'_>,
        lent: Option<Lent<'_>>,
    ) -> Result<(), Drop> {
        let (mut bth, rest) = Bth::parse(packet).map_err(|_| Drop::Truncated)?;
        let (service, op) = bth.opcode.decode().ok_or(Drop::BadOpcode)?;
        if bth.tver != 0 {
            return Err(Drop::BadVersion);
        }
        if !packet.len().is_multiple_of(4) || usize::from(bth.pad) > rest.len() {
            return Err(Drop::BadPadding);
        }
        let mut rest = &rest[..rest.len() - usize::from(bth.pad)];
        if lent.is_some() && (service != Service::Rc || bth.pad != 0) {
            return Err(Drop::BadOpcode);
        }
        if bth.dest_qp == Qpn::MULTICAST {
            return self.handle_multicast(now, meta, &bth, (service, op), (packet, rest));
        }
        if !self.core.is_own_gid(meta.dst) {
            return Err(Drop::BadAddress);
        }
        let (core, qp) = (&mut self.core, self.qps.get(bth.dest_qp).ok_or(Drop::UnknownQp)?);
        if service == Service::Cnp {
            return qp.on_cnp(core, now, meta);
        }
        if qp.init.qp_type == QpType::Ud {
            let grh = header_area(meta, packet.len());
            qp.accept_datagram(core, now, &bth, (service, op), rest, (&grh, meta))?;
        } else {
            qp.check(meta, &bth, service)?;
            loop {
                if let Err(reason) =
                    qp.accept(core, now, meta, &bth, op, Rest { bytes: rest, lent })
                {
                    core.drop(reason);
                }
                let Some(next) = behind.next_like(packet, ALIKE) else { break };
                core.count_received(1, next.len());
                let Ok(view) = BthView::new_checked(next) else { break };
                (bth.psn, bth.ack_req) = (view.psn(), view.ack_req());
                // It is as long as the first, and padded like it.
                rest = &next[Bth::LEN..][..rest.len()];
            }
        }
        if !qp.queued && qp.may_have_more() {
            qp.queued = true;
            core.ready.push_back(qp.slot);
        }
        if let Some(deadline) = qp.deadline(now) {
            core.timers.arm(qp.slot, &mut qp.armed, deadline);
        }
        Ok(())
    }

    /// A copy for every member on this port (IBTA vol1 10.5).
    fn handle_multicast(
        &mut self,
        now: Instant,
        meta: &RxMeta,
        bth: &Bth,
        what: (Service, Op),
        bytes: (&[u8], &[u8]),
    ) -> Result<(), Drop> {
        let (packet, rest) = bytes;
        if what.0 != Service::Ud || !meta.dst.is_multicast() {
            return Err(Drop::BadAddress);
        }
        let members = self.core.groups.of(meta.dst).len();
        if members == 0 {
            return Err(Drop::NoMember);
        }
        let (deth, _) = Deth::parse(rest).map_err(|_| Drop::Truncated)?;
        let is_ours = self.core.is_own_gid(meta.src);
        let grh = header_area(meta, packet.len());
        for i in 0..members {
            let Some(&qpn) = self.core.groups.of(meta.dst).get(i) else {
                break;
            };
            let Some(qp) = self.qps.get(qpn) else {
                continue;
            };
            if is_ours && deth.src_qp == qpn && !qp.init.hears_itself {
                continue;
            }
            let core = &mut self.core;
            if let Err(reason) = qp.accept_datagram(core, now, bth, what, rest, (&grh, meta)) {
                core.drop(reason);
            }
        }
        Ok(())
    }
}
