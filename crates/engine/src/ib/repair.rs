//! Selective repeat: the requester sends again only the packet that the peer misses.
//!
//! A NAK names one missing packet, and says nothing of those behind it: the peer may have discarded
//! them (go-back-N), or keep them as our [responder](super::reorder_queue) does. The requester goes
//! back, and learns from the answer: if the peer acknowledges packets that were not sent again, it
//! has kept them. From then on, a NAK makes the requester send one packet, and go on where it was.
//! A NAK for the packet right behind that one looks like a peer that discards: the requester goes
//! back again, and learns anew.

use feroce_train::{Instant, LinkCaps, Train};
use feroce_wire::Psn;

use super::outstanding::Kind;
use super::port::Port;
use super::qp::Qp;

impl Qp {
    /// The peer misses `psn`, and has everything before. False: to send that one packet again is
    /// not enough, as far as is known.
    pub(super) fn repair(&mut self, port: &mut Port, now: Instant, psn: Psn) -> bool {
        let outstanding = &self.req.outstanding;
        let oldest = outstanding.flights.iter().find(|flight| flight.reaches(psn));
        let is_request = oldest.is_some_and(|flight| flight.kind == Kind::Acked);
        let repair = &mut self.req.repair;
        if !port.hca.config.selective_repeat || !repair.peer_keeps || !is_request {
            return false;
        }
        if repair.last.is_some_and(|last| psn == last || psn == last.next()) {
            repair.peer_keeps = false;
            return false;
        }
        if outstanding.cursor_psn().is_after(psn) {
            (repair.due, repair.last) = (Some(psn), Some(psn));
            // A round trip that includes a retransmission is ambiguous (Karn's algorithm).
            self.req.timed = None;
            if let Some(peer) = self.destination {
                let window = port.hca.config.window;
                port.destinations.get(peer).lost_one(now, &window);
                // It goes even if the window is full.
                self.stop_waiting(port, peer);
            }
        }
        true
    }

    /// Puts the packet that the peer misses into `out`. What is in flight stays as it is.
    #[cold]
    pub(super) fn send_repair(
        &mut self,
        port: &mut Port,
        now: Instant,
        caps: &LinkCaps,
        out: &mut Option<Train>,
    ) {
        let Some(psn) = self.req.repair.due.take() else { return };
        let outstanding = &mut self.req.outstanding;
        if psn != outstanding.una || !outstanding.cursor_psn().is_after(psn) {
            // It has been acknowledged since.
            return;
        }
        let (cursor, end) = (outstanding.cursor_psn(), psn.next());
        outstanding.move_cursor(psn);
        let built = self.build_train(port, 1, caps, out);
        self.req.outstanding.move_cursor(cursor);
        match (built, out) {
            (Ok(_), Some(train)) => train.bth.ack_req = true,
            // The memory is gone: the ordinary way reports it.
            _ => return self.go_back(port, psn),
        }
        let unrequested = self.req.ack_requests.unrequested;
        self.note_ack_request(end);
        self.req.ack_requests.unrequested = unrequested;
        self.start_timers(port, now);
    }
}
