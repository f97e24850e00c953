//! The requester's record of requests in flight.
//!
//! Entry `i` describes the `i`-th oldest work request in the send queue; requests leave both
//! together, oldest first. PSNs are given out when a request is started and never change, so a
//! retransmission is only a matter of moving the cursor back (I-1: a retired PSN never comes
//! back).

use alloc::collections::VecDeque;

use feroce_wire::Psn;

use crate::hca::cqe::WcStatus;
use crate::ib::destination::PACKET_COST;

/// How a started request ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Done when it is acknowledged.
    Acked,
    /// Done when its own answer has arrived; an acknowledgement alone shows that it is lost.
    Fetched,
    /// Executed here; it only waits for its turn to complete.
    Local,
    /// Cannot be executed; fails when its turn comes.
    Failed(WcStatus),
}

/// A started request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) kind: Kind,
    /// First PSN.
    pub(crate) first: Psn,
    /// PSNs that belong to it: of the request, or of the answer to a read. Zero if local.
    pub(crate) packets: u32,
    /// Bytes of the message.
    pub(crate) len: u32,
    /// Its last packet requests an acknowledgement.
    pub(crate) requests_ack: bool,
}

impl Flight {
    /// The PSN after the last.
    #[inline]
    pub(crate) fn end(&self) -> Psn {
        self.first.wrapping_add(self.packets)
    }

    /// Whether one of its PSNs is `psn` or comes after. A message may have 2^23 PSNs, half of all
    /// there are, so the first is told apart from the end.
    #[inline]
    pub(crate) fn reaches(&self, psn: Psn) -> bool {
        self.packets > 0 && (psn == self.first || self.end().is_after(psn))
    }

    /// What all of it counts against the window of the destination.
    #[inline]
    fn whole_cost(&self) -> u64 {
        u64::from(self.len) + u64::from(self.packets) * PACKET_COST
    }

    /// What packets `from..to` of it count against the window of the destination.
    #[inline]
    pub(crate) fn cost(&self, from: u32, to: u32, pmtu: usize) -> u64 {
        let len = u64::from(self.len);
        let bytes_before = |packet: u32| (u64::from(packet) * pmtu as u64).min(len);
        bytes_before(to) - bytes_before(from) + u64::from(to - from) * PACKET_COST
    }
}

/// Started requests, oldest first, and how far sending and acknowledgement have come.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    pub(crate) flights: VecDeque<Flight>,
    /// Index of the request that is being sent; all before it have been sent completely.
    pub(crate) cursor: usize,
    /// How many of its packets have been sent.
    pub(crate) cursor_packet: u32,
    /// PSN of the next request to be started.
    pub(crate) next: Psn,
    /// Oldest PSN not acknowledged or answered.
    pub(crate) una: Psn,
    /// One past the highest PSN that was ever sent.
    pub(crate) high: Psn,
    /// What is in flight between `una` and the cursor, as counted at the destination.
    pub(crate) cost: u64,
    /// Ends of the requests in flight that occupy a resource of the responder, oldest first.
    pub(crate) resources: VecDeque<Psn>,
    /// Ends of the pieces in which reads were requested and that are not answered, oldest first.
    /// Going back keeps them: the responder remembers each piece as it arrived, and answers a
    /// duplicate only if it lies inside one.
    pieces: VecDeque<Psn>,
}

impl Outstanding {
    /// Empty, starting with `psn`.
    pub(crate) fn new(psn: Psn) -> Self {
        Self { next: psn, una: psn, high: psn, ..Self::default() }
    }

    /// Whether `packets` more PSNs can be given out so that all in flight can be told apart.
    #[inline]
    pub(crate) fn has_psns(&self, packets: u32) -> bool {
        self.next == self.una || self.next.since(self.una) + packets < 1 << 23
    }

    /// Whether there is memory to remember one more request. The first always is remembered: the
    /// answers to those in flight are what a requester can wait for.
    #[inline]
    pub(crate) fn has_room(&mut self) -> bool {
        let (len, most) = (self.flights.len(), self.flights.capacity());
        len < most || len == 0 || self.flights.try_reserve(1).is_ok()
    }

    /// Remembers a request that is being started and gives it its PSNs.
    #[inline]
    pub(crate) fn start(&mut self, kind: Kind, packets: u32, len: u32, requests_ack: bool) {
        self.flights.push_back(Flight { kind, first: self.next, packets, len, requests_ack });
        self.next = self.next.wrapping_add(packets);
    }

    /// Remembers a request that sends nothing.
    pub(crate) fn start_local(&mut self, kind: Kind) {
        self.start(kind, 0, 0, false);
    }

    /// The PSN that would be sent next.
    #[inline]
    pub(crate) fn cursor_psn(&self) -> Psn {
        match self.flights.get(self.cursor) {
            Some(flight) => flight.first.wrapping_add(self.cursor_packet),
            None => self.next,
        }
    }

    /// Whether anything sent is not acknowledged yet.
    #[inline]
    pub(crate) fn has_unacked(&self) -> bool {
        self.cursor_psn() != self.una
    }

    /// Moves the cursor past `psns` PSNs that were sent, of one request or of several. Only
    /// [`Qp::account_sent`](super::qp::Qp::account_sent) calls this for a reliable service.
    #[inline]
    pub(crate) fn sent(&mut self, psns: u32, cost: u64) {
        self.cost += cost;
        self.cursor_packet += psns;
        while self.cursor_packet > 0
            && let Some(flight) = self.flights.get(self.cursor)
            && self.cursor_packet >= flight.packets
        {
            self.cursor_packet -= flight.packets;
            self.cursor += 1;
        }
        let sent = self.cursor_psn();
        if sent.is_after(self.high) {
            self.high = sent;
        }
    }

    /// How many PSNs from `psn` on one request covered earlier, if one did.
    pub(crate) fn until_piece_end(&self, psn: Psn) -> Option<u32> {
        let end = self.pieces.iter().find(|end| end.is_after(psn));
        end.map(|end| end.since(psn))
    }

    /// Remembers that a piece of a read ends at `end`.
    pub(crate) fn note_piece(&mut self, end: Psn) {
        let at = self.pieces.iter().rposition(|e| !e.is_after(end)).map_or(0, |i| i + 1);
        if at == 0 || self.pieces.get(at - 1) != Some(&end) {
            self.pieces.insert(at, end);
        }
    }

    /// Whether the oldest piece of a read that is not answered yet ends at `end`.
    pub(crate) fn is_piece_end(&self, end: Psn) -> bool {
        self.pieces.front() == Some(&end)
    }

    /// Moves the cursor past requests that send nothing.
    #[inline]
    pub(crate) fn skip_local(&mut self) {
        while self.flights.get(self.cursor).is_some_and(|f| f.kind == Kind::Local) {
            self.cursor += 1;
        }
    }

    /// The first request whose answer brings data and has not come completely, if `psn` or an
    /// earlier PSN belongs to it: its index and the PSN of the answer that is missing.
    pub(crate) fn missing_fetch(&self, psn: Psn) -> Option<(usize, Psn)> {
        self.flights
            .iter()
            .enumerate()
            .take_while(|(_, f)| !f.first.is_after(psn))
            .find(|(_, f)| f.kind == Kind::Fetched && f.reaches(self.una))
            .map(|(i, f)| (i, if f.first.is_after(self.una) { f.first } else { self.una }))
    }

    /// Everything before `psn` is acknowledged. Returns what that frees at the destination.
    pub(crate) fn acknowledge(&mut self, psn: Psn, pmtu: usize) -> u64 {
        let before = self.cursor_psn();
        let mut freed = 0;
        for (i, flight) in self.flights.iter().enumerate() {
            if !flight.first.is_before(psn) || i > self.cursor {
                break;
            }
            // Most were sent and are acknowledged as a whole.
            if i < self.cursor && !flight.end().is_after(psn) && !self.una.is_after(flight.first) {
                freed += flight.whole_cost();
                continue;
            }
            // Only what lies before the cursor is counted as in flight; after going back, an old
            // acknowledgement may run ahead of it.
            let sent = if i < self.cursor { flight.packets } else { self.cursor_packet };
            let from = self.una.diff(flight.first).max(0).cast_unsigned().min(sent);
            let to = psn.diff(flight.first).max(0).cast_unsigned().min(sent);
            freed += flight.cost(from, to.max(from), pmtu);
        }
        self.una = psn;
        self.cost -= freed;
        while self.resources.front().is_some_and(|end| !end.is_after(psn)) {
            self.resources.pop_front();
        }
        while self.pieces.front().is_some_and(|end| !end.is_after(psn)) {
            self.pieces.pop_front();
        }
        if before.is_before(psn) {
            self.move_cursor(psn);
        }
        freed
    }

    /// Goes back to `psn`, so that everything from there on is sent again. Returns what that frees
    /// at the destination. Does nothing if the cursor is not beyond `psn`.
    pub(crate) fn go_back(&mut self, psn: Psn, pmtu: usize) -> u64 {
        if !self.cursor_psn().is_after(psn) {
            return 0;
        }
        self.move_cursor(psn);
        while self.resources.back().is_some_and(|end| end.is_after(psn)) {
            self.resources.pop_back();
        }
        let mut kept = 0;
        for (i, flight) in self.flights.iter().enumerate().take(self.cursor + 1) {
            let sent = if i < self.cursor { flight.packets } else { self.cursor_packet };
            let from = self.una.diff(flight.first).max(0).cast_unsigned().min(sent);
            kept += flight.cost(from, sent, pmtu);
        }
        let freed = self.cost - kept;
        self.cost = kept;
        freed
    }

    /// Puts the cursor on `psn`.
    pub(crate) fn move_cursor(&mut self, psn: Psn) {
        self.cursor =
            self.flights.iter().position(|f| f.reaches(psn)).unwrap_or(self.flights.len());
        self.cursor_packet =
            self.flights.get(self.cursor).map_or(0, |f| psn.diff(f.first).max(0).cast_unsigned());
    }

    /// Forgets the oldest request.
    pub(crate) fn retire(&mut self) {
        self.flights.pop_front();
        match self.cursor {
            0 => self.cursor_packet = 0,
            _ => self.cursor -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(n: u32) -> Psn {
        Psn::new(n)
    }

    /// Three messages of 2, 1 and 3 packets of 10 bytes, all sent.
    fn three_messages() -> Outstanding {
        let mut w = Outstanding::new(psn(0xff_fffe));
        for (packets, len) in [(2, 20), (1, 5), (3, 30)] {
            w.start(Kind::Acked, packets, len, true);
            let cost = w.flights[w.cursor].cost(0, packets, 10);
            w.sent(packets, cost);
        }
        w
    }

    #[test]
    fn psns_wrap_and_costs_come_back() {
        let mut w = three_messages();
        assert_eq!(w.cursor_psn(), psn(4));
        assert_eq!(w.cost, 55 + 6 * PACKET_COST);
        let freed = w.acknowledge(psn(0), 10);
        assert_eq!(freed, 20 + 2 * PACKET_COST);
        w.retire();
        assert_eq!(w.cursor, 2);
        assert_eq!(w.go_back(psn(2), 10), 20 + 2 * PACKET_COST);
        assert_eq!((w.cursor, w.cursor_packet), (1, 1));
        assert_eq!(w.acknowledge(psn(4), 10), 15 + 2 * PACKET_COST);
        assert_eq!(w.cost, 0);
        assert_eq!(w.cursor_psn(), psn(4));
    }

    #[test]
    fn the_longest_message_is_not_done_before_it_began() {
        let mut w = Outstanding::new(psn(5));
        w.start(Kind::Acked, 1 << 23, 1 << 31, true);
        assert!(w.flights[0].reaches(w.una));
        assert!(!w.has_psns(1));
        let cost = w.flights[0].cost(0, 10, 256);
        w.sent(10, cost);
        w.acknowledge(psn(6), 256);
        assert!(w.flights[0].reaches(w.una));
        assert!(!w.has_psns(1));
        w.acknowledge(psn(7), 256);
        assert!(w.has_psns(1));
    }

    #[test]
    fn an_acknowledgement_may_run_ahead_of_a_cursor_that_went_back() {
        let mut w = three_messages();
        w.go_back(w.una, 10);
        assert_eq!(w.cost, 0);
        assert_eq!(w.acknowledge(psn(1), 10), 0);
        assert_eq!(w.cursor_psn(), psn(1));
    }
}
