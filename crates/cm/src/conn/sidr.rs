//! Service ID resolution (SIDR): which queue pair offers a datagram service (IBTA vol1 12.11).
//!
//! ```text
//!     ask ---> SidrSent ---SIDR_REP---> gone: SidrReplied
//!              repeats SIDR_REQ
//!
//!     SIDR_REQ, listener found ---> SidrRcvd ---reply, refuse---> Answered
//! ```

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, CommId, ServiceId, SidrRep, SidrStatus};
use feroce_wire::{Qkey, Qpn};

use crate::conn::{Answered, Kind, RemoteKey, Times};
use crate::event::Event;
use crate::half_open::Opened;
use crate::out::Out;
use crate::params::{ConnId, Peer, Reply};
use crate::retry::Retry;

/// SIDR_REQ is sent; the manager waits for SIDR_REP.
#[derive(Debug)]
pub(crate) struct SidrSent {
    pub(crate) id: CommId,
    pub(crate) peer: Peer,
    pub(crate) retry: Retry,
}

impl SidrSent {
    /// The SIDR_REP of the peer arrives.
    pub(crate) fn on_rep(self, rep: &SidrRep, out: &mut Out) {
        let event = Event::SidrReplied { conn: ConnId(self.id), rep: Box::new(*rep) };
        out.tell(false, event);
    }

    /// No SIDR_REP arrives in time: the manager sends SIDR_REQ again, or gives up.
    pub(crate) fn on_timeout(mut self, now: Instant, out: &mut Out) -> Option<Self> {
        if self.retry.again(now) {
            out.repeat(self.peer, &self.retry.bytes);
            return Some(self);
        }
        out.tell(false, Event::Unreachable { conn: ConnId(self.id) });
        None
    }
}

/// SIDR_REQ is received; the consumer decides whether to answer or to reject it.
#[derive(Debug)]
pub(crate) struct SidrRcvd {
    pub(crate) id: CommId,
    pub(crate) peer: Peer,
    pub(crate) request_id: CommId,
    pub(crate) transaction: u64,
    pub(crate) service: ServiceId,
    pub(crate) opened: Opened,
}

impl SidrRcvd {
    pub(crate) fn key(&self) -> RemoteKey {
        (Kind::Sidr, self.peer.remote, self.request_id)
    }

    /// The consumer answers with its queue pair.
    pub(crate) fn reply(
        self,
        now: Instant,
        reply: &Reply,
        times: &Times,
        out: &mut Out,
    ) -> Answered {
        let rep = SidrRep {
            qpn: reply.qpn,
            qkey: reply.qkey,
            private_data: reply.private_data,
            ..empty_sidr_rep(self.request_id, self.service, SidrStatus::SUCCESS)
        };
        self.answer(now, rep, times, out)
    }

    /// The consumer rejects the request.
    pub(crate) fn reject(
        self,
        now: Instant,
        private_data: [u8; 136],
        times: &Times,
        out: &mut Out,
    ) -> Answered {
        let rep = empty_sidr_rep(self.request_id, self.service, SidrStatus::REJECTED);
        self.answer(now, SidrRep { private_data, ..rep }, times, out)
    }

    /// The consumer destroyed the request without an answer: the manager rejects it.
    pub(crate) fn refuse(self, now: Instant, times: &Times, out: &mut Out) -> Answered {
        self.reject(now, [0; 136], times, out)
    }

    fn answer(self, now: Instant, rep: SidrRep, times: &Times, out: &mut Out) -> Answered {
        let bytes = out.send(self.peer, self.transaction, &CmMessage::SidrRep(rep));
        Answered {
            id: self.id,
            peer: self.peer,
            key: self.key(),
            bytes: Box::new(bytes),
            until: now.plus_nanos(times.remember_ns),
        }
    }
}

/// A SIDR_REP without a queue pair.
pub(crate) fn empty_sidr_rep(
    request_id: CommId,
    service_id: ServiceId,
    status: SidrStatus,
) -> SidrRep {
    SidrRep {
        request_id,
        status,
        info_len: 0,
        qpn: Qpn::QP0,
        service_id,
        qkey: Qkey(0),
        info: [0; 72],
        private_data: [0; 136],
    }
}
