//! Unreliable services: connections (UC) and datagrams (UD) (IBTA vol1 9.8).
//!
//! The sender keeps no record of packets that it has sent: a request completes when the link has
//! its last packet. A receiver drops a packet with an error without an answer.

use feroce_train::{Ext, Framing, Instant, LinkCaps, Path, Payload, RxMeta, Train, TrainOps};
use feroce_wire::{Bth, Deth, ImmDt, Op, Opcode, Qkey, Qpn, Service};

use super::buffers::gather;
use super::execute::take_imm;
use super::outstanding::Kind;
use super::qp::Qp;
use super::responder::Refusal;
use super::rx_payload::{RxPacket, RxPayload};
use crate::hca::counters::Drop;
use crate::hca::cqe::{Cqe, WcFlags, WcOpcode, WcStatus};
use crate::hca::local::execute_local;
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::{Dest, SendFlags, SendOp};
use crate::ib::grh::GRH_LEN;
use crate::ib::port::Port;

impl Qp {
    /// The next train of an unreliable service.
    pub(super) fn poll_unreliable(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
    ) -> Option<Train> {
        loop {
            let sends = matches!(self.common.state, QpState::Rts | QpState::Sqd);
            if !sends || now < self.paced_until {
                return None;
            }
            if self.req.outstanding.flights.is_empty() {
                self.start_unreliable(port).ok()?;
            }
            let train = match self.common.init.qp_type {
                QpType::Ud => self.datagram(port),
                _ => self.unreliable_train(port, caps),
            };
            match train {
                Ok(train) => {
                    port.unread |= train.is_some();
                    let done = self.req.outstanding.cursor == self.req.outstanding.flights.len();
                    if done {
                        self.req.outstanding.una = self.req.outstanding.next;
                    }
                    self.retire(port, now);
                    if train.is_some() {
                        return train;
                    }
                }
                Err(status) => {
                    port.hca.counters.send_err += 1;
                    self.fail_oldest(port, now, status);
                }
            }
        }
    }

    /// Gives the next work request its PSNs. `Err`: there is none, or it may not start.
    fn start_unreliable(&mut self, port: &mut Port) -> Result<(), ()> {
        if self.common.state != QpState::Rts || port.hca.revocations.concern(self.common.qpn) {
            return Err(());
        }
        let Some(wr) = self.common.sq.peek(0) else {
            return Err(());
        };
        let (op, len) = (wr.op, wr.data.len());
        if op.is_local() {
            let kind = execute_local(&mut port.hca, &self.common, &op)
                .map_or_else(Kind::Failed, |()| Kind::Local);
            self.req.outstanding.start_local(kind);
            return Ok(());
        }
        let longest = match self.common.init.qp_type {
            QpType::Ud => self.pmtu as u64,
            _ => crate::hca::wr::MAX_MESSAGE,
        };
        if len > longest {
            self.req.outstanding.start_local(Kind::Failed(WcStatus::LocalLength));
            return Ok(());
        }
        let packets = len.div_ceil(self.pmtu as u64).max(1) as u32;
        self.req.outstanding.start(Kind::Acked, packets, len as u32, false);
        self.common.counters.start(len as u32);
        port.hca.counters.rdma_sends += 1;
        Ok(())
    }

    /// The train at the cursor of an unreliable connection. `Ok(None)`: the request was local.
    fn unreliable_train(
        &mut self,
        port: &mut Port,
        caps: &LinkCaps,
    ) -> Result<Option<Train>, WcStatus> {
        match self.req.outstanding.flights.front().map(|f| f.kind) {
            Some(Kind::Failed(status)) => Err(status),
            Some(Kind::Local) => {
                self.req.outstanding.skip_local();
                Ok(None)
            }
            _ => {
                let mut train = None;
                let psns = self.build_train(port, u32::MAX, caps, &mut train)?;
                self.req.outstanding.sent(psns, 0);
                Ok(train)
            }
        }
    }

    /// The datagram of the oldest request.
    fn datagram(&mut self, port: &mut Port) -> Result<Option<Train>, WcStatus> {
        let Some(flight) = self.req.outstanding.flights.front().copied() else {
            return Ok(None);
        };
        if let Kind::Failed(status) = flight.kind {
            return Err(status);
        }
        let (own_qkey, pd, qpn, pkey) =
            (self.qkey(), self.common.init.pd, self.common.qpn, self.pkey);
        let wr = self.common.sq.peek(0).ok_or(WcStatus::LocalQpOperation)?;
        let Dest::Ud { ah, qpn: dest, qkey } = wr.dest else {
            return Err(WcStatus::LocalQpOperation);
        };
        let qkey = if qkey.is_privileged() { own_qkey } else { qkey };
        let av = port.hca.ah(ah, pd).ok_or(WcStatus::LocalQpOperation)?.av;
        let entropy = Path::entropy_of(qpn, dest);
        let path = port.hca.path(&av, entropy).ok_or(WcStatus::LocalQpOperation)?;
        let payload = match flight.len {
            0 => Payload::Empty,
            len => gather(&port.hca.mrs, pd, &wr.data, 0, len as usize)?,
        };
        let mut head = Ext::NONE.with(|out| Deth { qkey, src_qp: qpn }.emit(out));
        let op = match wr.op {
            SendOp::SendImm(imm) => {
                head = head.with(|out| ImmDt { imm }.emit(out));
                Op::SendOnlyImm
            }
            _ => Op::SendOnly,
        };
        let opcode = Opcode::new(Service::Ud, op);
        let solicited = wr.flags.contains(SendFlags::SOLICITED);
        self.req.outstanding.sent(1, 0);
        Ok(Some(Train {
            path,
            bth: Bth { pkey, solicited, ..Bth::new(opcode, dest, flight.first) },
            ops: TrainOps::all(opcode),
            count: 1,
            stride: 0,
            payload_len: flight.len as usize,
            head,
            body: Ext::NONE,
            tail: Ext::NONE,
            payload,
            revocation_epoch: None,
        }))
    }

    /// A packet of an unreliable connection arrived (IBTA vol1 9.8.2).
    #[inline(never)]
    pub(super) fn handle_unreliable(&mut self, port: &mut Port, now: Instant, rest: &RxPacket<'_>) {
        let op = rest.op;
        let in_sequence = rest.psn == self.rsp.expected;
        self.rsp.expected = rest.psn.next();
        if !in_sequence || (op.starts() && self.rsp.inbound.is_some()) {
            self.abandon_inbound();
        }
        if !op.starts() && self.rsp.inbound.is_none() {
            return port.hca.drop(Drop::BadSequence);
        }
        let result = match self.take_apart(port, rest) {
            Ok(request) => self.execute(port, now, &request),
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = result {
            match refusal {
                Refusal::Protection => self.fail_receive(port, now, WcStatus::LocalProtection),
                Refusal::TooLong => {
                    port.hca.counters.resp_local_length_error += 1;
                    self.fail_receive(port, now, WcStatus::LocalLength);
                }
                _ => {}
            }
            self.abandon_inbound();
            port.hca.drop(match refusal {
                Refusal::Truncated => Drop::Truncated,
                Refusal::Invalid => Drop::BadSequence,
                Refusal::Access | Refusal::Protection => Drop::AccessDenied,
                Refusal::TooLong => Drop::TooLong,
                Refusal::NotReady => Drop::NoReceive,
                Refusal::Gone => Drop::PayloadGone,
            });
        }
    }

    /// The memory of the receive is not accessible or too short: it completes in error, and the
    /// queue pair stops.
    fn fail_receive(&mut self, port: &mut Port, now: Instant, status: WcStatus) {
        if let Some(receive) = self.rsp.take_receive() {
            let cqe = receive.completion(self.common.qpn, WcOpcode::Recv, status, now);
            port.hca.complete_recv(receive.cq(), Cqe { byte_len: 0, ..cqe });
        }
        self.enter_error(port, now);
    }

    /// Abandons the message in progress; the next message reuses its receive.
    fn abandon_inbound(&mut self) {
        self.rsp.inbound = None;
        if let Some(receive) = self.rsp.receive.as_mut() {
            receive.rewind();
        }
    }

    /// A datagram arrived (IBTA vol1 9.8.3). `grh` goes in front of it.
    pub(super) fn handle_datagram(
        &mut self,
        port: &mut Port,
        now: Instant,
        bth: &Bth,
        op: Op,
        rest: &[u8],
        grh: (&[u8; GRH_LEN], &RxMeta),
    ) -> Result<(), Drop> {
        let (grh, meta) = grh;
        let (deth, rest) = Deth::parse(rest).map_err(|_| Drop::Truncated)?;
        let (imm, data) = take_imm(op, rest).map_err(|_| Drop::Truncated)?;
        let own = if self.common.qpn == Qpn::QP1 { GSI_QKEY } else { self.qkey() };
        if deth.qkey != own {
            return Err(Drop::BadQkey);
        }
        if data.len() > port.hca.config.port_mtu.bytes() {
            return Err(Drop::TooLong);
        }
        // A receive that was too short for one datagram is kept for the next.
        let mut receive = match self.rsp.take_receive() {
            Some(receive) => receive,
            None => self.take_receive(port, None).map_err(|_| {
                port.hca.counters.ud_out_of_buffer += 1;
                Drop::NoReceive
            })?,
        };
        if !receive.has_room((GRH_LEN + data.len()) as u64) {
            self.rsp.receive = Some(receive);
            return Err(Drop::TooLong);
        }
        let (grh, data) = (RxPayload::Here(grh), RxPayload::Here(data));
        if receive
            .fill(&port.hca.mrs, grh)
            .and_then(|()| receive.fill(&port.hca.mrs, data))
            .is_err()
        {
            self.rsp.receive = Some(receive);
            self.fail_receive(port, now, WcStatus::LocalProtection);
            return Err(Drop::AccessDenied);
        }
        let mut cqe = receive.completion(self.common.qpn, WcOpcode::Recv, WcStatus::Success, now);
        cqe.flags = if meta.has_grh() { WcFlags::GRH } else { WcFlags::empty() };
        if let Some(imm) = imm {
            cqe.flags |= WcFlags::WITH_IMM;
            cqe.imm = imm;
        }
        cqe.src_qp = deth.src_qp;
        cqe.solicited = bth.solicited;
        match meta.framing {
            Framing::InfiniBand => {
                (cqe.slid, cqe.sl) = (meta.src.lid, meta.sl);
                // A group has no path bits.
                let is_unicast = !meta.dst.lid.is_multicast();
                let bits = if is_unicast { meta.dst.lid.0 & port.hca.path_bits() } else { 0 };
                cqe.dlid_path_bits = bits as u8;
            }
            Framing::RoceV1 => cqe.sl = meta.sl,
            Framing::RoceV2 if meta.dst.gid.as_ipv4().is_some() => cqe.sl = NETWORK_IPV4,
            Framing::RoceV2 => {}
        }
        self.common.counters.served += 1;
        self.common.counters.served_bytes += data.len() as u64;
        port.hca.counters.rdma_recvs += 1;
        port.hca.complete_recv(receive.cq(), cqe);
        Ok(())
    }
}

/// The well-known queue key of QP1.
const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// What mlx5 adapters report in the service level of a datagram that came over IPv4; UCX looks
/// for it.
const NETWORK_IPV4: u8 = 2;
