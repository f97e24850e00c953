//! Connections that the peer may have lost (IBTA vol1 12.9.8.3).

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, CommId, Drep, RejReason, Stage};

use super::Manager;
use crate::conn::{self, Conn, TimeWait};
use crate::event::Cause;
use crate::params::Peer;
use crate::question::Held;

impl Manager {
    /// A REQ or REP names a queue pair of the peer that is in the connection `id`: asks the peer
    /// whether it still has that connection.
    pub(super) fn on_qp_in_use(&mut self, now: Instant, id: CommId, held: Held) {
        let Some(Conn::Established(open)) = self.table.get(id) else {
            // That connection is not established yet, or about to end.
            return self.refuse_stale(now, &held);
        };
        let (times, out) = (&self.times, &mut self.out);
        match self.questions.ask(now, &open.ends, held, times, out) {
            None => self.out.counters.stale_asked += 1,
            // The peer repeats it, and finds the question answered.
            Some(_) => self.out.counters.duplicate += 1,
        }
    }

    /// DREP arrives: true if it answers a question. The peer does not have the connection.
    pub(super) fn on_answer(&mut self, now: Instant, from: Peer, drep: &Drep) -> bool {
        let id = drep.remote_id;
        let ends = match self.table.get(id) {
            Some(Conn::Established(open)) if self.questions.is_about(id) => &open.ends,
            _ => return false,
        };
        if ends.peer != from || ends.remote_id != drep.local_id {
            return false;
        }
        self.out.counters.stale_ended += 1;
        self.change(id, |conn, _, out| match conn {
            Conn::Established(open) => {
                Some(Conn::TimeWait(TimeWait::enter(open.ends, now, Cause::Refused, out)))
            }
            other => Some(other),
        });
        self.go_on_with_held(now, id);
        true
    }

    /// The deadline of a question has passed.
    pub(super) fn on_question_due(&mut self, now: Instant, id: CommId) {
        if !matches!(self.table.get(id), Some(Conn::Established(_))) {
            return self.go_on_with_held(now, id);
        }
        if let Some(held) = self.questions.repeat(now, id, &mut self.out) {
            self.refuse_stale(now, &held);
        }
    }

    /// Handles the message that raised a question about the connection `id`, which has ended.
    pub(super) fn go_on_with_held(&mut self, now: Instant, id: CommId) {
        if matches!(self.table.get(id), Some(Conn::Established(_))) {
            return;
        }
        if let Some(Held { from, transaction, message }) = self.questions.answered(id) {
            self.on_message(now, from, transaction, message);
        }
    }

    /// Refuses a REQ or REP whose queue pair is in another connection.
    fn refuse_stale(&mut self, now: Instant, held: &Held) {
        self.out.counters.refused_stale += 1;
        let (from, transaction) = (held.from, held.transaction);
        match &held.message {
            CmMessage::Req(req) => self.refuse_req(now, from, transaction, req, RejReason::STALE),
            CmMessage::Rep(rep) => {
                self.refuse_rep(now, from, transaction, rep, RejReason::STALE);
                let rej = conn::rej(Stage::Rep, RejReason::STALE);
                self.change(rep.remote_id, |conn, _, out| match conn {
                    Conn::ReqSent(s) if s.ends.peer == from => {
                        s.ends.rejected(&rej, out);
                        None
                    }
                    other => Some(other),
                });
            }
            _ => {}
        }
    }
}
