//! Coalescing of short messages.
//!
//! A train of one short packet costs as much to make, to pass on and to send as a long one. If the
//! send queue holds more short messages whose packets have the same length, the requester writes
//! their packets behind the first. All of them are then one train: one pass through the engine, one
//! call of the link.

use alloc::vec;

use feroce_train::{Instant, LinkCaps, Payload, Train};
use feroce_wire::{Bth, Opcode};

use super::account::Sent;
use super::buffers::gather_into;
use super::outstanding::Kind;
use super::qp::Qp;
use super::requester::Start;
use super::train_layout::OnlyPacket;
use crate::hca::state::QpState;
use crate::hca::wr::{SendFlags, SendWr};
use crate::ib::destination::PACKET_COST;
use crate::ib::port::Port;

/// Longest packet that is coalesced. Copying more costs more than a train of its own.
const SHORT: usize = 256;

/// Most packets that are coalesced, even if the link takes more: other queue pairs want a turn.
const MOST: u32 = 64;

impl Qp {
    /// Adds the messages that come next to a train that is one short message, as long as their
    /// packets are as long as its own and they need not wait.
    #[inline]
    pub(super) fn coalesce(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        let outstanding = &self.req.outstanding;
        // Retransmissions, probes and paced packets are not coalesced.
        let is_new = outstanding.cursor == outstanding.flights.len();
        let may_start = self.common.state == QpState::Rts && !self.req.halted;
        if let Some(train) = out
            && is_new
            && may_start
            && self.cc.is_none()
            && !self.req.unanswered
            && train.count == 1
            && caps.max_packets > 1
        {
            let len = train.packet_len(0);
            let is_short = |wr: &SendWr| wr.data.len() <= len as u64;
            if len <= SHORT && self.common.sq.peek(outstanding.cursor).is_some_and(is_short) {
                self.coalesce_into(port, now, caps, train, len);
            }
        }
    }

    fn coalesce_into(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        train: &mut Train,
        len: usize,
    ) {
        let Some(peer) = self.destination else { return };
        let (service, pd) = (self.service(), self.common.init.pd);
        let waiting = self.common.sq.len() - self.req.outstanding.cursor;
        let most = (caps.packets_of(len).min(MOST) as usize).min(1 + waiting);
        let room = port.destinations.get(peer).room();
        let (mut count, mut cost) = (1, 0);
        // The ends of the first and the last packet that request an acknowledgement, and the cost
        // of what follows.
        let (mut asked, mut unrequested) = (None, 0);
        let mut bytes = vec![0; len * most];
        let mut packets = bytes.chunks_exact_mut(len);
        if let Some(first) = packets.next() {
            train.emit(0, first);
        }
        for packet in packets {
            let (Some(wr), Some((head, rest))) = (
                self.common.sq.peek(self.req.outstanding.flights.len()),
                packet.split_first_chunk_mut(),
            ) else {
                break;
            };
            // Other requests are not started here; one that fails does so in the general path.
            let Some(only) = OnlyPacket::of(wr, wr.data.len()) else { break };
            let Some((data, pad)) = only.emit(rest) else { break };
            let (takes_receive, flags) = (wr.op.consumes_receive(), wr.flags);
            let its_cost = u64::from(only.payload) + PACKET_COST;
            if flags.contains(SendFlags::FENCE)
                || cost + its_cost > room
                || gather_into(&port.hca.mrs, pd, &wr.data, data).is_err()
            {
                break;
            }
            let (kind, packets, len) = (Kind::Acked, 1, only.payload);
            let request = Start { kind, packets, len, takes_receive, flags };
            if self.start(port, request).is_err() {
                break;
            }
            let Some(&flight) = self.req.outstanding.flights.back() else { break };
            let bth = Bth {
                opcode: Opcode::new(service, only.op),
                psn: flight.first,
                solicited: flags.contains(SendFlags::SOLICITED),
                pad: pad.len() as u8,
                ack_req: flight.requests_ack,
                ..train.bth
            };
            bth.emit(head);
            count += 1;
            cost += its_cost;
            unrequested += its_cost;
            if flight.requests_ack {
                let end = flight.end();
                let first = asked.map_or(end, |(first, _)| first);
                (asked, unrequested) = (Some((first, end)), 0);
            }
        }
        if count == 1 {
            return;
        }
        let psns = count as u32 - 1;
        let ack_requests = asked;
        self.account_sent(port, || now, Sent { psns, cost, ack_requests, unrequested });
        bytes.truncate(len * count);
        train.count = count as u32;
        train.payload = Payload::Packets { bytes, len };
    }
}
