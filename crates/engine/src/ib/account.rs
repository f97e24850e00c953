//! Accounting of the packets that the requester has sent: window, ACK requests and timers.

use feroce_train::Instant;
use feroce_wire::Psn;

use super::port::Port;
use super::qp::Qp;

/// The packets that the requester hands to the link in one go, from the cursor on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// PSNs that it covers.
    pub(super) psns: u32,
    /// What it counts against the window of the destination.
    pub(super) cost: u64,
    /// Where the first and the last packet end that request an acknowledgement.
    pub(super) ack_requests: Option<(Psn, Psn)>,
    /// What follows the last ACK request, as part of `cost`; all of it if there is none.
    pub(super) unrequested: u64,
}

impl Sent {
    /// One train, or one packet, up to `end`. If it requests an acknowledgement, its last packet
    /// does.
    #[inline]
    pub(super) fn train(psns: u32, cost: u64, requests_ack: bool, end: Psn) -> Self {
        let (ack_requests, unrequested) =
            if requests_ack { (Some((end, end)), 0) } else { (None, cost) };
        Self { psns, cost, ack_requests, unrequested }
    }
}

impl Qp {
    /// Accounts for packets that leave, and moves the cursor past them. Every way of sending on a
    /// reliable service (`requester`, `coalesce`, `fast_path`) calls this exactly once for what it
    /// hands over, after the requests have their PSNs. Retransmissions are accounted like the rest:
    /// going back has taken them out of the accounts before.
    ///
    /// Invariants that hold afterwards, and that `acknowledge`, `go_back` and leaving the
    /// destination rely on:
    ///
    /// - the bytes in flight at the destination are the sum of `outstanding.cost` of its queue
    ///   pairs: both grow here by the same cost, and shrink together there;
    /// - `outstanding.cost` is the cost of the PSNs from `una` to the cursor, and `high` is not
    ///   before the cursor;
    /// - `ack_requests.until` is the end of the newest packet that requests an acknowledgement, and
    ///   `ack_requests.unrequested` the cost of what was sent after it;
    /// - the consumer's side of the queue knows that an answer is awaited while `until` is after
    ///   `una`;
    /// - at most one round trip is measured, of new packets that request an acknowledgement: the
    ///   answer to a retransmission may belong to the packet before it;
    /// - the timers that watch for an answer run.
    ///
    /// Asks for the time only if one of the last two needs it, and returns it then: the deadline
    /// of the queue pair may have changed.
    #[inline]
    pub(super) fn account_sent(
        &mut self,
        port: &mut Port,
        now: impl FnOnce() -> Instant,
        sent: Sent,
    ) -> Option<Instant> {
        if let Some(id) = self.destination {
            port.destinations.get(id).sent(sent.cost);
        }
        let outstanding = &mut self.req.outstanding;
        let is_new = !outstanding.cursor_psn().is_before(outstanding.high);
        outstanding.sent(sent.psns, sent.cost);
        if let Some((_, last)) = sent.ack_requests {
            self.note_ack_request(last);
        }
        self.req.ack_requests.unrequested += sent.unrequested;
        let requests = sent.ack_requests.filter(|_| is_new && self.req.timed.is_none());
        let timers_run = self.req.ack_deadline.is_some() && self.req.probe_deadline.is_some();
        if requests.is_none() && timers_run {
            return None;
        }
        let now = now();
        if let Some((first, _)) = requests {
            self.req.timed = Some((first, now));
        }
        self.start_timers(port, now);
        Some(now)
    }
}
