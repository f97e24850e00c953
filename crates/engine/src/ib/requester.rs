//! The requester: from send work requests to trains (IBTA vol1 9.7.3).

use feroce_train::{Instant, LinkCaps, Payload, Train, TrainOps};
use feroce_wire::{Bth, Opcode};

use super::account::Sent;
use super::buffers::gather;
use super::direct_access;
use super::outstanding::{Flight, Kind};
use super::qp::Qp;
use super::train_layout::{Piece, TrainLayout};
use crate::hca::cqe::WcStatus;
use crate::hca::local::execute_local;
use crate::hca::state::QpState;
use crate::hca::wr::{MAX_MESSAGE, SendFlags, SendOp, SendWr};
use crate::ib::destination::{Destination, PACKET_COST};
use crate::ib::port::Port;

/// Why nothing can be sent although there is work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocked {
    /// No work request, or one that must wait for an answer that is on its way.
    NoWork,
    /// The window of the destination is full.
    Window,
    /// The window of congestion control is full: the next answer opens it.
    Congestion,
}

/// A request that can be started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) kind: Kind,
    /// PSNs that it needs.
    pub(super) packets: u32,
    /// Bytes of the message.
    pub(super) len: u32,
    /// Whether the peer needs a receive for it.
    pub(super) takes_receive: bool,
    pub(super) flags: SendFlags,
}

impl Qp {
    /// Puts the next train of requests on a reliable service into `out`.
    #[inline]
    pub(super) fn poll_request(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        let mut passed = 0;
        loop {
            let sends = matches!(self.common.state, QpState::Rts | QpState::Sqd);
            if !sends || now < self.paced_until {
                return;
            }
            if self.req.repair.is_due() {
                // It goes even if the window is full: what fills that waits for it.
                self.send_repair(port, now, caps, out);
                if out.is_some() {
                    return;
                }
            }
            if self.req.is_held() {
                return;
            }
            self.req.outstanding.skip_local();
            if self.req.outstanding.cursor == self.req.outstanding.flights.len() {
                match self.start_next(port) {
                    Ok(()) if self.req.outstanding.cursor < self.req.outstanding.flights.len() => {}
                    Ok(()) => {
                        let last = self.req.outstanding.flights.back();
                        passed += last.map_or(0, |flight| u64::from(flight.len));
                        self.retire(port, now);
                        if passed >= direct_access::MOST {
                            // Other queue pairs want a turn.
                            return self.common.shared.ring();
                        }
                        continue;
                    }
                    Err(_) => return self.request_ack_if_waiting(now),
                }
            }
            return match self.send_from_cursor(port, now, caps, out) {
                Ok(()) => self.coalesce(port, now, caps, out),
                Err(Blocked::Window) => {
                    self.req.waiting = true;
                    if let Some(peer) = self.destination {
                        port.destinations.get(peer).wait(self.common.slot);
                    }
                }
                Err(Blocked::Congestion) => {}
                Err(Blocked::NoWork) => self.retire(port, now),
            };
        }
    }

    /// Starts the next work request of the send queue: executes it if it is local, gives it PSNs
    /// if it is not.
    #[inline]
    pub(super) fn start_next(&mut self, port: &mut Port) -> Result<(), Blocked> {
        let waits = port.hca.revocations.concern(self.common.qpn);
        if self.common.state != QpState::Rts || self.req.halted || waits {
            return Err(Blocked::NoWork);
        }
        let index = self.req.outstanding.flights.len();
        let pmtu = self.pmtu as u64;
        let (op, len, flags) = match self.common.sq.peek(index) {
            Some(wr) => (wr.op, message_len(wr), wr.flags),
            None => return Err(Blocked::NoWork),
        };
        let is_fenced = match op {
            // An earlier request may have to be sent again with what the key names (IBTA vol1
            // 10.6.5.1; the fence is not left to the consumer).
            SendOp::LocalInv(_) => index > 0,
            _ => flags.contains(SendFlags::FENCE) && !self.req.outstanding.resources.is_empty(),
        };
        let has_room = self.req.outstanding.has_room();
        if is_fenced || !has_room || self.waits_for_direct(port, index, len) {
            return Err(Blocked::NoWork);
        }
        if index == 0 && self.try_direct_oldest(port) {
            self.req.outstanding.start(Kind::Local, 0, len as u32, false);
            self.req.outstanding.cursor += 1;
            return Ok(());
        }
        if op.is_local() {
            let kind = match execute_local(&mut port.hca, &self.common, &op) {
                Ok(()) => Kind::Local,
                Err(status) => self.halt(status),
            };
            self.req.outstanding.start_local(kind);
            self.req.outstanding.cursor += 1;
            return Ok(());
        }
        let failure = match op.needs_responder_resource() && self.max_rd_atomic() == 0 {
            true => Some(WcStatus::LocalQpOperation),
            false => (len > MAX_MESSAGE).then_some(WcStatus::LocalLength),
        };
        if let Some(status) = failure {
            let kind = self.halt(status);
            self.req.outstanding.start_local(kind);
            return Ok(());
        }
        let kind = if op.needs_responder_resource() { Kind::Fetched } else { Kind::Acked };
        // The branch avoids a division, which would dominate this function.
        let packets = if len <= pmtu { 1 } else { len.div_ceil(pmtu) as u32 };
        let (len, takes_receive) = (len as u32, op.consumes_receive());
        self.start(port, Start { kind, packets, len, takes_receive, flags })
    }

    /// Gives the next request of the send queue its PSNs, if it need not wait for an answer.
    #[inline]
    pub(super) fn start(&mut self, port: &mut Port, request: Start) -> Result<(), Blocked> {
        let Start { packets, takes_receive, flags, .. } = request;
        if !self.req.may_start(packets, takes_receive) {
            return Err(Blocked::NoWork);
        }
        let requests_ack = self.wants_ack(takes_receive, flags);
        self.give_psns(port, request, requests_ack);
        Ok(())
    }

    /// Gives a request its PSNs; with `requests_ack`, its last packet requests an acknowledgement.
    #[inline]
    pub(super) fn give_psns(&mut self, port: &mut Port, request: Start, requests_ack: bool) {
        let Start { kind, packets, len, takes_receive, .. } = request;
        self.req.count_request(takes_receive);
        self.req.ack_requests.count_message(requests_ack);
        self.req.outstanding.start(kind, packets, len, requests_ack);
        self.common.counters.start(len);
        port.hca.counters.rdma_sends += 1;
    }

    /// Stops sending: the request that is being started cannot be executed.
    pub(super) fn halt(&mut self, status: WcStatus) -> Kind {
        self.req.halted = true;
        Kind::Failed(status)
    }

    /// Makes the train at the cursor and moves the cursor past it.
    #[inline]
    fn send_from_cursor(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) -> Result<(), Blocked> {
        let outstanding = &self.req.outstanding;
        let (index, from) = (outstanding.cursor, outstanding.cursor_packet);
        let flight = outstanding.flights[index];
        if !matches!(flight.kind, Kind::Acked | Kind::Fetched) {
            return Err(Blocked::NoWork);
        }
        let mut room = self.room(port, &flight, from, caps)?;
        if self.cc.is_some() {
            room = match self.packets_allowed(&port.hca.config) {
                0 => return Err(Blocked::Congestion),
                allowed => room.min(allowed),
            };
        }
        let op = self.common.sq.peek(index).ok_or(Blocked::NoWork)?.op;
        let takes_resource = op.needs_responder_resource();
        if takes_resource {
            // A read that was started under a higher limit must still make progress.
            let limit = self.max_rd_atomic().max(1);
            if self.req.outstanding.resources.len() >= limit {
                return Err(Blocked::NoWork);
            }
            let psn = flight.first.wrapping_add(from);
            room = match self.req.outstanding.until_piece_end(psn) {
                // A retransmitted read keeps the extent that it had, even if the window has shrunk:
                // a responder may remember only the part that it saw last, and then would not
                // answer for what comes before it. (Soft-RoCE does so.)
                Some(rest) => rest.min(flight.packets - from),
                None => room.min((port.hca.config.read_chunk / self.pmtu as u64).max(1) as u32),
            };
        }
        let psns = match self.build_train(port, room, caps, out) {
            Ok(psns) => psns,
            Err(status) => {
                port.hca.counters.send_err += 1;
                let kind = self.halt(status);
                self.req.outstanding.flights[index].kind = kind;
                return Err(Blocked::NoWork);
            }
        };
        let psn = flight.first.wrapping_add(from);
        let cost = flight.cost(from, from + psns, self.pmtu);
        let ends = from + psns == flight.packets;
        let mut requests_ack =
            (ends && flight.requests_ack) || takes_resource || self.req.unanswered;
        requests_ack |= port.hca.config.ack_every_packet;
        if self.cc.is_some() {
            requests_ack |= self.window_wants_ack(&port.hca.config, psns, cost);
        }
        if let Some(id) = self.destination {
            let peer = port.destinations.get(id);
            // A train that fills the window requests an acknowledgement as well: other queue pairs
            // may have to wait for it.
            let is_full = peer.room_after(cost) < self.pmtu as u64 + PACKET_COST;
            requests_ack |=
                is_full || self.req.ack_requests.unrequested + cost >= peer.window() / 4;
        }
        if requests_ack && let Some(train) = out {
            train.bth.ack_req = true;
        }
        let end = psn.wrapping_add(psns);
        if takes_resource {
            self.req.outstanding.resources.push_back(end);
            if flight.packets > 1 {
                self.req.outstanding.note_piece(end);
            }
            if from > 0 && !psn.is_before(self.req.outstanding.high) {
                // The responder counts every piece of a read as a request.
                self.req.count_request(false);
            }
        }
        self.account_sent(port, || now, Sent::train(psns, cost, requests_ack, end));
        Ok(())
    }

    /// Makes the train at the cursor, of at most `room` packets. Returns how many PSNs it covers.
    #[inline]
    pub(super) fn build_train(
        &mut self,
        port: &Port,
        room: u32,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) -> Result<u32, WcStatus> {
        let outstanding = &self.req.outstanding;
        let (index, from) = (outstanding.cursor, outstanding.cursor_packet);
        let flight = outstanding.flights[index];
        let (service, dest, pkey) = (self.service(), self.dest_qpn(), self.pkey);
        let wr = self.common.sq.peek(index).ok_or(WcStatus::LocalQpOperation)?;
        let piece = Piece { flight: &flight, from, room, pmtu: self.pmtu };
        let layout = TrainLayout::new(wr, piece, caps);
        let offset = u64::from(from) * self.pmtu as u64;
        let payload = match layout.payload {
            0 => Payload::Empty,
            len => gather(&port.hca.mrs, self.common.init.pd, &wr.data, offset, len)?,
        };
        let opcode = |op| Opcode::new(service, op);
        let ops = TrainOps {
            first: opcode(layout.first),
            middle: opcode(layout.middle),
            last: opcode(layout.last),
        };
        let ends = from + layout.psns == flight.packets;
        let solicited = ends && wr.flags.contains(SendFlags::SOLICITED);
        let psn = flight.first.wrapping_add(from);
        *out = Some(Train {
            path: self.path,
            bth: Bth { solicited, pkey, ..Bth::new(ops.first, dest, psn) },
            ops,
            count: layout.count,
            stride: self.pmtu,
            payload_len: layout.payload,
            head: layout.head,
            body: layout.body,
            tail: layout.tail,
            revocation_epoch: if payload.is_memory() { self.revocation_epoch(port) } else { None },
            payload,
        });
        Ok(layout.psns)
    }

    /// How many packets of `flight`, from packet `from` on, may go in one train: what the
    /// destination's window has room for, and no more than may go without a request for an
    /// acknowledgement, which is in the last packet of a train.
    ///
    /// If the room is less than a good train and an answer is awaited, the requester waits for more
    /// room. Otherwise each acknowledgement would open room for one more short train, for ever
    /// (silly window syndrome).
    #[inline]
    fn room(
        &self,
        port: &mut Port,
        flight: &Flight,
        from: u32,
        caps: &LinkCaps,
    ) -> Result<u32, Blocked> {
        let Some(id) = self.destination else {
            return Err(Blocked::NoWork);
        };
        let peer = port.destinations.get(id);
        let left = flight.packets - from;
        let is_in_repair = self.req.repair.is_under_way(self.req.outstanding.una);
        let room = if is_in_repair { peer.room_in_repair() } else { peer.room() };
        let full = self.pmtu as u64 + PACKET_COST;
        // A whole small message needs no division.
        let fits = match flight.cost(from, flight.packets, self.pmtu) <= room {
            true => left,
            false => left.min((room / full) as u32),
        };
        match fits {
            // One packet more, if no acknowledgement was requested for what fills the window: the
            // window may have shrunk since that was sent.
            0 if peer.is_idle() || self.req.ack_requests.unrequested > 0 => Ok(1),
            0 => Err(Blocked::Window),
            // The responder forms the trains of a read response.
            n if flight.kind == Kind::Fetched => Ok(n),
            n if n < left.min(self.good_train(peer, caps)) && self.req.awaits_ack() => {
                Err(Blocked::Window)
            }
            1 => Ok(1),
            _ if self.req.unanswered => Ok(1),
            n => {
                let unrequested =
                    (peer.window() / 4).saturating_sub(self.req.ack_requests.unrequested);
                Ok(unrequested.div_ceil(full).clamp(1, u64::from(n)) as u32)
            }
        }
    }

    /// How many packets are a good train: what the link takes, as far as that is no more than an
    /// eighth of the window.
    fn good_train(&self, peer: &Destination, caps: &LinkCaps) -> u32 {
        let eighth = peer.window() / 8 / (self.pmtu as u64 + PACKET_COST);
        caps.packets_of(Bth::LEN + self.pmtu).min(u32::try_from(eighth).unwrap_or(u32::MAX))
    }

    /// Reads and atomics that may be outstanding.
    #[inline]
    pub(super) fn max_rd_atomic(&self) -> usize {
        usize::from(self.common.attr.max_rd_atomic.unwrap_or(0))
    }
}

/// Bytes of a message: for flushes the range is not payload.
fn message_len(wr: &SendWr) -> u64 {
    match wr.op {
        SendOp::Flush { .. } => 0,
        _ => wr.data.len(),
    }
}
