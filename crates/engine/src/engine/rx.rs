//! Receive path: checks packets and hands them to their queue pairs.

use core::hint::cold_path;

use feroce_train::{Instant, Packets, RemotePayload, RxMeta, RxTrain};
use feroce_wire::{Bth, BthView, Deth, Op, Qpn, Service};

use super::Engine;
use super::transport::Transport;
use crate::hca::counters::Drop;
use crate::hca::state::QpType;
use crate::ib::grh::header_area;
use crate::ib::rx_payload::RxPacket;

/// How many bytes of two packets must be equal for the checks before the queue pair to have the
/// same outcome for both: opcode, flags, partition, congestion and destination.
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
        if let Some(remote) = &train.remote {
            return self.receive_remote(now, train, remote);
        }
        let mut packets = train.packets();
        while let Some(packet) = packets.next() {
            self.port.hca.count_received(1, packet.len());
            self.handle_packet(now, &train.meta, packet, &mut packets, None);
        }
    }

    /// Takes in a run of packets whose payload is elsewhere.
    #[inline(never)]
    fn receive_remote(&mut self, now: Instant, train: &RxTrain<'_>, remote: &RemotePayload<'_>) {
        // Every packet of the run has a BTH; the first may have more.
        let headers = train.bytes.len() + remote.packets.saturating_sub(1) as usize * Bth::LEN;
        self.port.hca.count_received(remote.packets, headers + remote.len);
        let none = &mut Packets::default();
        self.handle_packet(now, &train.meta, train.bytes, none, Some(remote));
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
        remote: Option<&RemotePayload<'_>>,
    ) {
        let port = &mut self.port;
        let Ok((bth, bytes)) = Bth::parse(packet) else { return port.hca.drop(Drop::Truncated) };
        let Some((service, op)) = bth.opcode.decode() else {
            return port.hca.drop(Drop::BadOpcode);
        };
        if bth.tver != 0 {
            return port.hca.drop(Drop::BadVersion);
        }
        if !packet.len().is_multiple_of(4) || usize::from(bth.pad) > bytes.len() {
            return port.hca.drop(Drop::BadPadding);
        }
        let bytes = &bytes[..bytes.len() - usize::from(bth.pad)];
        if remote.is_some() && (service != Service::Rc || bth.pad != 0) {
            return port.hca.drop(Drop::BadOpcode);
        }
        if bth.dest_qp == Qpn::MULTICAST {
            cold_path();
            return self.handle_multicast(now, meta, &bth, (service, op), (packet, bytes));
        }
        if !port.hca.is_own(&meta.dst, meta.framing) {
            return port.hca.drop(Drop::BadAddress);
        }
        let Some(Transport::Ib(qp)) = self.qps.get(bth.dest_qp) else {
            return port.hca.drop(Drop::UnknownQp);
        };
        if service == Service::Cnp {
            cold_path();
            return qp.on_cnp(port, now, meta).unwrap_or_else(|reason| port.hca.drop(reason));
        }
        if qp.common.init.qp_type == QpType::Ud {
            // Building a GRH costs more than the branch.
            cold_path();
            let grh = header_area(meta, packet.len());
            if let Err(reason) =
                qp.accept_datagram(port, now, &bth, (service, op), bytes, (&grh, meta))
            {
                return port.hca.drop(reason);
            }
        } else {
            if let Err(reason) = qp.check(meta, &bth, service) {
                return port.hca.drop(reason);
            }
            let (psn, ack_req, solicited) = (bth.psn, bth.ack_req, bth.solicited);
            let mut rest = RxPacket { op, psn, ack_req, solicited, bytes, remote };
            loop {
                qp.accept(port, now, meta, &rest);
                let Some(next) = behind.next_like(packet, ALIKE) else { break };
                // Favour the single packet: its sender probably waits for the reply.
                cold_path();
                port.hca.count_received(1, next.len());
                let Ok(view) = BthView::new_checked(next) else { break };
                (rest.psn, rest.ack_req) = (view.psn(), view.ack_req());
                // It is as long as the first, and padded like it.
                rest.bytes = &next[Bth::LEN..][..bytes.len()];
            }
        }
        if !qp.common.queued && qp.may_have_more() {
            qp.common.queued = true;
            port.hca.ready.push_back(qp.common.slot);
        }
        // The timer that a request makes necessary is armed when its answer is sent.
        if !op.is_request()
            && let Some(deadline) = qp.deadline(now)
        {
            port.hca.timers.arm(qp.common.slot, &mut qp.common.armed, deadline);
        }
    }

    /// A copy for every member on this port (IBTA vol1 10.5).
    fn handle_multicast(
        &mut self,
        now: Instant,
        meta: &RxMeta,
        bth: &Bth,
        what: (Service, Op),
        bytes: (&[u8], &[u8]),
    ) {
        let (packet, rest) = bytes;
        if what.0 != Service::Ud || !meta.dst.gid.is_multicast() {
            return self.port.hca.drop(Drop::BadAddress);
        }
        let members = self.port.groups.of(meta.dst.gid).len();
        if members == 0 {
            return self.port.hca.drop(Drop::NoMember);
        }
        let Ok((deth, _)) = Deth::parse(rest) else { return self.port.hca.drop(Drop::Truncated) };
        let is_ours = self.port.hca.is_own(&meta.src, meta.framing);
        let grh = header_area(meta, packet.len());
        for i in 0..members {
            let Some(&qpn) = self.port.groups.of(meta.dst.gid).get(i) else {
                break;
            };
            let Some(Transport::Ib(qp)) = self.qps.get(qpn) else {
                continue;
            };
            if is_ours && deth.src_qp == qpn && !qp.common.init.hears_itself {
                continue;
            }
            let port = &mut self.port;
            if let Err(reason) = qp.accept_datagram(port, now, bth, what, rest, (&grh, meta)) {
                port.hca.drop(reason);
            }
        }
    }
}
