//! A queue pair of the InfiniBand transport: its state, and what it does in turn.

use alloc::boxed::Box;

use feroce_train::{Ecn, Hop, Instant, LinkCaps, Path, RxMeta, Train};
use feroce_wire::{Bth, Op, Opcode, Pkey, Pmtu, Psn, Qkey, Qpn, Service};

use crate::hca::counters::Drop;
use crate::ib::cc::Controlled;
use crate::ib::destination::DestinationId;
use crate::ib::grh::GRH_LEN;
use crate::ib::port::Port;

use super::requester_state::{Requester, earliest};
use super::responder_state::Responder;
use super::rx_payload::RxPacket;
use crate::hca::qp::QpCommon;
use crate::hca::state::QpType;

/// A queue pair of the InfiniBand transport: the machines that count PSNs.
#[derive(Debug)]
pub(crate) struct Qp {
    /// What every queue pair has.
    pub(crate) common: QpCommon,
    pub(super) req: Requester,
    pub(super) rsp: Responder,
    /// Where connected packets go; of no meaning before RTR.
    pub(super) path: Path,
    /// The destination whose window a connected queue pair shares.
    pub(super) destination: Option<DestinationId>,
    pub(super) pmtu: usize,
    pub(super) pkey: Pkey,
    /// Most messages in a row that do not request an acknowledgement.
    pub(super) max_unrequested: usize,
    /// Congestion control, and when it lets the next train go.
    pub(super) cc: Option<Box<Controlled>>,
    pub(super) paced_until: Instant,
    /// No congestion notification before this time.
    pub(super) cnp_again_at: Instant,
    /// An acknowledgement has let a train of requests go first; the acknowledgement goes next.
    pub(super) stepped_aside: bool,
}

impl Qp {
    pub(crate) fn new(common: QpCommon) -> Self {
        Self {
            common,
            req: Requester::default(),
            rsp: Responder::default(),
            path: Path::default(),
            destination: None,
            pmtu: Pmtu::B256.bytes(),
            pkey: Pkey::DEFAULT,
            max_unrequested: 0,
            cc: None,
            paced_until: Instant::ZERO,
            cnp_again_at: Instant::ZERO,
            stepped_aside: false,
        }
    }

    pub(super) fn dest_qpn(&self) -> Qpn {
        self.common.attr.dest_qpn.unwrap_or_default()
    }

    /// The path to the peer of a connected queue pair, and the number of the peer's queue pair.
    #[inline]
    pub(crate) fn peer_end(&self) -> (Path, Qpn) {
        (self.path, self.dest_qpn())
    }

    /// The destination whose window it shares.
    pub(crate) fn destination(&self) -> Option<DestinationId> {
        self.destination
    }

    pub(super) fn qkey(&self) -> Qkey {
        self.common.attr.qkey.unwrap_or_default()
    }

    /// The service in the opcodes of this queue pair.
    #[inline]
    pub(super) fn service(&self) -> Service {
        match self.common.init.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcIni | QpType::XrcTgt => Service::Xrc,
        }
    }

    /// BTH of a packet to the connected peer.
    #[inline]
    pub(super) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth { pkey: self.pkey, ..Bth::new(opcode, self.dest_qpn(), psn) }
    }

    /// Puts the next train into `out`, which is empty. Answers go first, but a bare
    /// acknowledgement lets one train of requests go before it: the link can then send it as the
    /// shorter last packet of the same call.
    #[inline]
    pub(crate) fn poll_transmit(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        let steps_aside = self.rsp.replies.is_bare_ack() && self.requests_wait();
        self.stepped_aside = steps_aside && !self.stepped_aside;
        if self.stepped_aside {
            self.poll_own(port, now, caps, out);
        }
        if out.is_none() {
            self.poll_answer(port, now, caps, out);
        }
        if out.is_none() && !self.stepped_aside {
            self.poll_own(port, now, caps, out);
        }
    }

    /// Puts the next train of answers into `out`.
    #[inline]
    fn poll_answer(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        // Answers to reads are paced like requests; what is short goes at once.
        let is_read = self.rsp.replies.starts_with_read();
        if !is_read || now >= self.paced_until {
            self.poll_reply(port, now, caps, out);
        }
        if let Some(train) = out
            && is_read
        {
            self.pace(port, now, train);
        }
    }

    /// Puts the next train of requests or datagrams into `out`.
    #[inline]
    fn poll_own(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        match self.common.init.qp_type {
            QpType::Rc | QpType::XrcIni => {
                self.poll_request(port, now, caps, out);
                if let (Some(peer), false) = (self.destination, self.req.waiting) {
                    port.wake_next(peer);
                }
            }
            QpType::Uc | QpType::Ud => *out = self.poll_unreliable(port, now, caps),
            QpType::XrcTgt => {}
        }
        if let Some(train) = out {
            self.pace(port, now, train);
        }
    }

    /// Counts a train for congestion control, which says when the next may go.
    #[inline]
    fn pace(&mut self, port: &Port, now: Instant, train: &Train) {
        let in_flight = match self.cc {
            Some(_) => self.bytes_in_flight(&port.hca.config),
            None => return,
        };
        if let Some(cc) = self.cc.as_mut() {
            let overhead = u64::from(port.hca.config.packet_overhead) * u64::from(train.count);
            self.paced_until = cc.sent(now, train.total_len() as u64 + overhead);
            cc.in_flight = in_flight;
        }
    }

    /// Whether requests wait to be sent.
    #[inline]
    pub(super) fn requests_wait(&self) -> bool {
        self.req.may_send(self.common.sq.len())
    }

    /// Whether something waits that congestion control may hold back.
    #[inline]
    fn has_paced_work(&self) -> bool {
        self.requests_wait() || self.rsp.replies.starts_with_read()
    }

    /// Whether all it has to send is an acknowledgement, which might go with something else soon.
    #[inline]
    pub(crate) fn only_acknowledges(&self) -> bool {
        self.rsp.replies.is_bare_ack() && !self.requests_wait() && !self.stepped_aside
    }

    /// Whether a call of [`Qp::poll_transmit`] might give more right away.
    #[inline]
    pub(crate) fn may_have_more(&self) -> bool {
        self.rsp.has_replies() || self.requests_wait()
    }

    /// When this queue pair wants to be called, if at all.
    #[inline]
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let paced = (self.paced_until > now && self.has_paced_work()).then_some(self.paced_until);
        earliest(self.req.deadline(), paced)
    }

    /// Whether something is due at `now` that was not before `since`.
    pub(crate) fn is_due(&self, since: Instant, now: Instant) -> bool {
        let paced = (since..=now).contains(&self.paced_until);
        (paced && self.has_paced_work())
            || self.req.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// A doorbell was rung, a timer ran out, or something else may have made work possible.
    #[inline]
    pub(crate) fn on_kick(&mut self, port: &mut Port, now: Instant) {
        self.flush(port, now);
    }

    /// The window of the destination has opened. A queue pair that has nothing to send any more
    /// lets the next one that waits try.
    pub(crate) fn on_window_open(&mut self, port: &mut Port) {
        self.req.waiting = false;
        if let (Some(peer), false) = (self.destination, self.req.may_send(self.common.sq.len())) {
            port.wake_next(peer);
        }
    }

    /// Checks a packet for a connected queue pair by its header and its source address.
    #[inline]
    pub(crate) fn check(&self, meta: &RxMeta, bth: &Bth, service: Service) -> Result<(), Drop> {
        self.check_header(bth, service)?;
        self.check_address(meta)
    }

    /// A packet for a connected queue pair arrived that passes [`Qp::check`].
    #[inline]
    pub(crate) fn accept(
        &mut self,
        port: &mut Port,
        now: Instant,
        meta: &RxMeta,
        rest: &RxPacket<'_>,
    ) {
        // An earlier packet of the same train may have changed the state.
        if !self.common.state.receives() {
            return port.hca.drop(Drop::BadState);
        }
        if meta.ecn == Ecn::Congested {
            self.notify_congestion(port, now);
        }
        match (self.common.init.qp_type, rest.op.is_request()) {
            (QpType::Rc | QpType::XrcIni, false) => self.handle_response(port, now, rest),
            (QpType::Rc | QpType::XrcTgt, true) => {
                self.note_established(port);
                self.handle_request(port, now, rest);
            }
            (QpType::Uc, true) if rest.remote.is_none() => {
                self.note_established(port);
                self.handle_unreliable(port, now, rest);
            }
            _ => port.hca.drop(Drop::BadOpcode),
        }
    }

    /// A packet for a datagram queue pair arrived; `grh` goes in front of its payload.
    pub(crate) fn accept_datagram(
        &mut self,
        port: &mut Port,
        now: Instant,
        bth: &Bth,
        what: (Service, Op),
        rest: &[u8],
        grh: (&[u8; GRH_LEN], &RxMeta),
    ) -> Result<(), Drop> {
        let (service, op) = what;
        self.check_header(bth, service)?;
        if grh.1.ecn == Ecn::Congested {
            self.notify_congestion(port, now);
        }
        self.handle_datagram(port, now, bth, op, rest, grh)
    }

    /// State, service and partition (IBTA vol1 9.6.1).
    #[inline]
    fn check_header(&self, bth: &Bth, service: Service) -> Result<(), Drop> {
        if !self.common.state.receives() {
            return Err(Drop::BadState);
        }
        if service != self.service() {
            return Err(Drop::BadOpcode);
        }
        if !bth.pkey.matches(self.pkey) {
            return Err(Drop::BadPkey);
        }
        Ok(())
    }

    /// A connected queue pair accepts packets from its peer only (IBTA vol1 9.6.1): those that have
    /// the framing of its path, and the path's addresses in the other direction. On RoCE that
    /// compares GIDs; on InfiniBand LIDs, and GIDs too if packets of the path have a GRH.
    #[inline]
    fn check_address(&self, meta: &RxMeta) -> Result<(), Drop> {
        let Path { src, dst, framing, .. } = &self.path;
        if meta.src != *dst || meta.dst != *src || meta.framing != *framing {
            return Err(Drop::BadAddress);
        }
        Ok(())
    }

    /// A congestion notification arrived.
    #[cold]
    pub(crate) fn on_cnp(
        &mut self,
        port: &mut Port,
        now: Instant,
        meta: &RxMeta,
    ) -> Result<(), Drop> {
        if !self.common.state.receives() {
            return Err(Drop::BadState);
        }
        if self.common.init.qp_type.is_connected() {
            self.check_address(meta)?;
        }
        match self.cc.as_mut() {
            Some(cc) => {
                cc.control.on_cnp(now);
                port.hca.counters.rp_cnp_handled += 1;
            }
            None => port.hca.counters.rp_cnp_ignored += 1,
        }
        Ok(())
    }

    /// Switches have written something into a packet of ours that the peer received.
    pub(crate) fn on_telemetry(&mut self, now: Instant, hops: &[Hop]) {
        if let Some(cc) = self.cc.as_mut() {
            cc.control.on_telemetry(now, hops);
        }
    }

    /// A packet arrived with congestion experienced: notifies the sender, but not more often than
    /// the configured interval allows.
    #[cold]
    fn notify_congestion(&mut self, port: &mut Port, now: Instant) {
        port.hca.counters.np_ecn_marked_roce_packets += 1;
        if !self.common.init.qp_type.is_connected() || now < self.cnp_again_at {
            return;
        }
        self.cnp_again_at = now.plus_nanos(port.hca.config.cnp_interval_ns);
        let cnp = super::port::cnp(self.path, self.dest_qpn(), self.pkey);
        if port.post_out(cnp) {
            port.hca.counters.np_cnp_sent += 1;
        }
    }
}
