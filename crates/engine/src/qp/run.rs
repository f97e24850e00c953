//! Runs of short messages.
//!
//! A train of one short packet costs as much to make, to hand on and to send as a long one. Where
//! more of the same kind wait in the send queue, they are written out behind it here, so that all
//! of them are one train: one walk through the engine, one call of the link.

use alloc::vec;

use feroce_train::{Instant, LinkCaps, Payload, Train};
use feroce_wire::{Bth, Opcode};

use super::Qp;
use super::buffers::gather_into;
use super::shape::only;
use super::window::Kind;
use crate::hca::Core;
use crate::wr::SendFlags;

/// Longest packet in a run. Copying more than that costs more than a train does.
const SHORT: usize = 256;

/// Most packets in a run, whatever the link takes: others want a turn.
const MOST: u32 = 64;

impl Qp {
    /// Adds the messages that come next to a train that is one short message, as long as their
    /// packets are as long as its own and they need not wait.
    #[inline]
    pub(super) fn extend_run(
        &mut self,
        core: &mut Core,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        let window = &self.req.window;
        // What is sent again, paced or a probe goes alone.
        let is_new = window.cursor == window.flights.len() && self.sq.len() > window.cursor;
        if let Some(train) = out
            && is_new
            && self.cc.is_none()
            && !self.req.unanswered
            && train.count == 1
            && caps.max_packets > 1
        {
            let len = train.packet_len(0);
            if len <= SHORT {
                self.add_to_run(core, now, caps, train, len);
            }
        }
    }

    fn add_to_run(
        &mut self,
        core: &mut Core,
        now: Instant,
        caps: &LinkCaps,
        train: &mut Train,
        len: usize,
    ) {
        let Some(peer) = self.peer else { return };
        let (service, pmtu, pd) = (self.service(), self.pmtu, self.init.pd);
        let most = caps.packets_of(len).min(MOST);
        let mut bytes = vec![];
        let mut count = 1;
        while count < most && self.start_next(core).is_ok() {
            let index = self.req.window.cursor;
            let Some(&flight) = self.req.window.flights.get(index) else { break };
            let cost = flight.cost(0, 1, pmtu);
            let is_short = flight.kind == Kind::Acked && flight.packets == 1;
            if !is_short || core.peers.get(peer).room() < cost {
                break;
            }
            let Some(wr) = self.sq.peek(index) else { break };
            let Some((op, ext)) = only(wr, flight.len) else { break };
            let (ext, payload) = (ext.as_slice(), flight.len as usize);
            let padded = payload.next_multiple_of(4);
            if Bth::LEN + ext.len() + padded != len {
                break;
            }
            if bytes.is_empty() {
                bytes.reserve_exact(len * most as usize);
                bytes.resize(len, 0);
                train.emit(0, &mut bytes);
            }
            let start = bytes.len();
            bytes.resize(start + len, 0);
            let bth = Bth {
                opcode: Opcode::new(service, op),
                psn: flight.first,
                solicited: wr.flags.contains(SendFlags::SOLICITED),
                pad: (padded - payload) as u8,
                ack_req: flight.asks,
                ..train.bth
            };
            let (head, rest) = bytes[start..].split_at_mut(Bth::LEN);
            if let Some(head) = head.first_chunk_mut() {
                bth.emit(head);
            }
            let (ext_out, rest) = rest.split_at_mut(ext.len());
            ext_out.copy_from_slice(ext);
            if gather_into(&core.mrs, pd, &wr.data, &mut rest[..payload]).is_err() {
                // It fails when it is sent alone.
                bytes.truncate(start);
                break;
            }
            count += 1;
            core.peers.get(peer).sent(cost);
            self.count_asked(flight.asks, cost, flight.end());
            if self.req.timed.is_none() && flight.asks {
                self.req.timed = Some((flight.end(), now));
            }
            self.req.window.sent(1, cost);
        }
        if count > 1 {
            train.count = count;
            train.payload = Payload::Packets { bytes, len };
        }
    }
}
