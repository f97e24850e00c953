//! Modify and query, and the ways into error and back to RESET (IBTA vol1 10.3, 11.2.5).

use feroce_mem::RevocationEpoch;
use feroce_train::{Instant, Path};
use feroce_wire::{Lkey, Pkey, Psn, RnrTimer, Service};

use super::qp::Qp;
use super::requester_state::Requester;
use super::responder_state::Responder;
use super::transition::transition;
use crate::hca::attr::{AttrMask, QpAttr};
use crate::hca::cqe::{Cqe, WcStatus};
use crate::hca::error::ModifyQpError;
use crate::hca::event::AsyncEvent;
use crate::hca::qp::RecvSource;
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::Data;
use crate::ib::cc::Controlled;
use crate::ib::destination::DestinationId;
use crate::ib::port::Port;

impl Qp {
    /// Changes attributes and state. Nothing is changed if anything is wrong.
    pub(crate) fn modify(
        &mut self,
        port: &mut Port,
        now: Instant,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        if attr.cur_state.is_some_and(|s| s != self.common.state) {
            return Err(ModifyQpError::NotInState { actual: self.common.state });
        }
        let (from, to) = (self.common.state, attr.state.unwrap_or(self.common.state));
        let (required, optional) = transition(self.common.init.qp_type, from, to)
            .ok_or(ModifyQpError::NoTransition { from, to })?;
        let given = attr.mask();
        let missing = required - given;
        let forbidden = given - required - optional;
        if !missing.is_empty() || !forbidden.is_empty() {
            return Err(ModifyQpError::Attributes { from, to, missing, forbidden });
        }
        check_values(port, attr)?;
        match to {
            QpState::Reset => self.reset(port),
            QpState::Err => self.enter_error(port, now),
            _ => {
                self.apply(port, attr)?;
                self.change_state(port, from, to, attr);
            }
        }
        Ok(())
    }

    /// Takes over the attributes that are given.
    fn apply(&mut self, port: &mut Port, attr: &QpAttr) -> Result<(), ModifyQpError> {
        if self.common.state.receives() && (attr.access.is_some() || attr.av.is_some()) {
            // The peer may lose rights, or another peer may take its place.
            port.hca.revoke_answers();
        }
        if let Some(av) = &attr.av {
            let remote = attr.dest_qpn.unwrap_or_else(|| self.dest_qpn());
            let entropy = Path::entropy_of(self.common.qpn, remote);
            let path = port.hca.path(av, entropy).ok_or(ModifyQpError::BadValue(
                AttrMask::AV,
                "there is no address at that index of the GID table",
            ))?;
            self.path = path;
            // What is in flight while the send queue drains counts at the new destination.
            let cost = self.req.outstanding.cost;
            self.leave_destination(port);
            let peer = port.destinations.join(path.dst, &port.hca.config.window);
            port.destinations.get(peer).sent(cost);
            self.req.outstanding.cost = cost;
            self.destination = Some(peer);
        }
        if let Some(mtu) = attr.path_mtu {
            self.pmtu = mtu.bytes();
        }
        let mine = &mut self.common.attr;
        macro_rules! take {
            ($($field:ident),*) => { $(mine.$field = attr.$field.or(mine.$field);)* };
        }
        take!(
            access,
            pkey_index,
            port,
            qkey,
            av,
            path_mtu,
            timeout,
            retry_cnt,
            rnr_retry,
            rq_psn,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            sq_psn,
            dest_qpn
        );
        self.follow_pkey(port);
        self.max_unrequested = self.unrequested_limit(port);
        self.req.retries_left = self.common.attr.retry_cnt.unwrap_or(0);
        self.req.rnr_left = self.common.attr.rnr_retry.unwrap_or(0);
        Ok(())
    }

    /// Takes the partition key from where the table has it now. A key of zero matches nothing.
    pub(crate) fn follow_pkey(&mut self, port: &Port) {
        if let Some(index) = self.common.attr.pkey_index {
            self.pkey = port.hca.pkey(index).unwrap_or(Pkey(0));
        }
    }

    fn change_state(&mut self, port: &mut Port, from: QpState, to: QpState, attr: &QpAttr) {
        match (from, to) {
            (QpState::Init, QpState::Rtr) => {
                self.rsp = Responder::new(self.common.attr.rq_psn.unwrap_or_default());
                if self.common.init.qp_type == QpType::Ud {
                    self.pmtu = port.hca.config.port_mtu.bytes();
                }
            }
            (QpState::Rtr, QpState::Rts) => self.start_sending(port),
            (QpState::Rts, QpState::Sqd) => {
                self.req.draining = true;
                self.req.drain_notify = attr.sqd_notify.unwrap_or(false);
            }
            (QpState::Sqd, QpState::Rts) => self.req.draining = false,
            _ => {}
        }
        self.common.set_state(to);
        self.check_drained(port);
        port.hca.kicked.push(self.common.slot);
    }

    /// Prepares the requester for the first request.
    fn start_sending(&mut self, port: &Port) {
        let psn = self.common.attr.sq_psn.unwrap_or_default();
        self.req = Requester {
            retries_left: self.common.attr.retry_cnt.unwrap_or(0),
            rnr_left: self.common.attr.rnr_retry.unwrap_or(0),
            ..Requester::new(psn)
        };
        self.cc = match self.common.init.congestion_control {
            true => Controlled::new(&port.hca.config.congestion),
            false => None,
        };
    }

    /// Back to RESET: everything posted is forgotten without completions.
    pub(crate) fn reset(&mut self, port: &mut Port) {
        self.acknowledge_all(port);
        self.common.set_state(QpState::Reset);
        self.leave_destination(port);
        port.hca.mrs.unbind_qp(self.common.qpn);
        port.hca.revoke_answers();
        while self.common.sq.pop().is_some() {}
        self.discard_receives();
        self.req = Requester::default();
        self.common.shared.set_awaits_answer(false);
        self.rsp.early.clear(&mut port.reorder);
        self.rsp = Responder::default();
        self.common.attr = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        self.cc = None;
        self.paced_until = Instant::ZERO;
        self.cnp_again_at = Instant::ZERO;
    }

    /// To ERR: everything posted is flushed, oldest first.
    pub(crate) fn enter_error(&mut self, port: &mut Port, now: Instant) {
        let was = self.common.state;
        if was != QpState::Err {
            self.acknowledge_all(port);
            self.common.set_state(QpState::Err);
            port.hca.revoke_answers();
            self.stop_requester(port);
            port.hca.hold_until_quiet(self.common.qpn, Some(self.dest_qpn()));
            self.rsp.replies.clear();
            self.rsp.inbound = None;
            self.rsp.early.clear(&mut port.reorder);
            if matches!(self.common.rq, RecvSource::Srq(_)) && was != QpState::Reset {
                // Receives are taken one message at a time, so none is left behind.
                port.hca.event(AsyncEvent::LastWqeReached(self.common.qpn));
            }
        }
        self.flush(port, now);
    }

    /// To SQE: a send failed on an unreliable service; what follows it is flushed.
    pub(super) fn enter_send_error(&mut self, port: &mut Port, now: Instant) {
        self.common.set_state(QpState::Sqe);
        self.stop_requester(port);
        self.flush_sends(port, now);
    }

    /// Completes as flushed everything posted on a queue pair in ERR, or posted for sending on one
    /// in SQE.
    pub(crate) fn flush(&mut self, port: &mut Port, now: Instant) {
        if matches!(self.common.state, QpState::Err | QpState::Sqe) {
            self.flush_sends(port, now);
        }
        if self.common.state == QpState::Err {
            self.flush_receives(port, now);
        }
    }

    fn flush_sends(&mut self, port: &mut Port, now: Instant) {
        while let Some(wr) = self.common.sq.pop() {
            let opcode = wr.op.wc_opcode();
            let cqe = Cqe::new(wr.wr_id, self.common.qpn, opcode, WcStatus::Flushed, now);
            self.report_send(port, cqe);
        }
    }

    /// Forgets everything in flight.
    fn stop_requester(&mut self, port: &mut Port) {
        self.revoke(port);
        if let Some(id) = self.destination {
            self.stop_waiting(port, id);
            port.destinations.get(id).release(self.req.outstanding.cost);
            port.wake_next(id);
        }
        self.req = Requester::new(self.req.outstanding.next);
        self.common.shared.set_awaits_answer(false);
    }

    /// The revocation epoch under which the peer may fetch payload. Only on RC, whose answers say
    /// when the peer has fetched it. XRC could do it as well, but runs would have to repeat its
    /// header.
    #[inline]
    pub(super) fn revocation_epoch(&self, port: &Port) -> Option<RevocationEpoch> {
        port.hca
            .host_memory
            .as_ref()
            .filter(|_| self.service() == Service::Rc)
            .map(|l| l.revocation_epoch())
    }

    /// The peer must no longer fetch payload in flight: its memory is about to be given back.
    pub(super) fn revoke(&self, port: &Port) {
        if let Some(host_memory) = &port.hca.host_memory {
            host_memory.revoke_from(self.dest_qpn());
        }
    }

    /// The same, for payload in memory under `key`. A consumer should not invalidate a key that
    /// requests under way use; if it does, the peer must not read what the consumer later puts at
    /// these addresses.
    pub(crate) fn revoke_remote_payload_of(&mut self, port: &Port, key: Lkey) {
        let started =
            if port.hca.host_memory.is_some() { self.req.outstanding.flights.len() } else { 0 };
        let is_used = (0..started).any(|i| match self.common.sq.peek(i).map(|wr| &wr.data) {
            Some(Data::Sges(sges)) => sges.as_slice().iter().any(|sge| sge.lkey == key),
            _ => false,
        });
        if is_used {
            self.revoke(port);
        }
    }

    /// The queue pair leaves its destination.
    pub(crate) fn leave_destination(&mut self, port: &mut Port) {
        self.revoke(port);
        if let Some(id) = self.destination.take() {
            self.stop_waiting(port, id);
            port.destinations.get(id).release(self.req.outstanding.cost);
            self.req.outstanding.cost = 0;
            port.wake_next(id);
            port.destinations.leave(id);
        }
    }

    pub(super) fn stop_waiting(&mut self, port: &mut Port, peer: DestinationId) {
        if self.req.waiting {
            self.req.waiting = false;
            port.destinations.get(peer).stop_waiting(self.common.slot);
        }
    }

    /// What query shows.
    pub(crate) fn query(&self) -> QpAttr {
        let psn = |at: Psn, set: Option<Psn>| set.map(|_| at);
        QpAttr {
            state: Some(self.common.state),
            cur_state: Some(self.common.state),
            rq_psn: psn(self.rsp.expected, self.common.attr.rq_psn),
            sq_psn: psn(self.req.outstanding.next, self.common.attr.sq_psn),
            sqd_notify: Some(self.req.draining),
            ..self.common.attr
        }
    }
}

/// Whether every value given is one that the attribute can have.
fn check_values(port: &Port, attr: &QpAttr) -> Result<(), ModifyQpError> {
    let bad = |mask, why| Err(ModifyQpError::BadValue(mask, why));
    if attr.port.is_some_and(|p| p != 1) {
        return bad(AttrMask::PORT, "the adapter has port 1 only");
    }
    if attr.pkey_index.is_some_and(|i| port.hca.pkey(i).is_none()) {
        return bad(AttrMask::PKEY_INDEX, "no partition key at that index");
    }
    if attr.path_mtu.is_some_and(|m| m > port.hca.config.port_mtu) {
        return bad(AttrMask::PATH_MTU, "greater than the MTU of the port");
    }
    if attr.timeout.is_some_and(|t| t > 31) {
        return bad(AttrMask::TIMEOUT, "at most 31");
    }
    if attr.retry_cnt.is_some_and(|n| n > 7) {
        return bad(AttrMask::RETRY_CNT, "at most 7");
    }
    if attr.rnr_retry.is_some_and(|n| n > 7) {
        return bad(AttrMask::RNR_RETRY, "at most 7");
    }
    if attr.min_rnr_timer.is_some_and(|t| RnrTimer::new(t).get() != t) {
        return bad(AttrMask::MIN_RNR_TIMER, "at most 31");
    }
    let most = port.hca.config.limits.max_rd_atomic;
    if attr.max_rd_atomic.is_some_and(|n| n > most) {
        return bad(AttrMask::MAX_RD_ATOMIC, "more than the adapter can have outstanding");
    }
    if attr.max_dest_rd_atomic.is_some_and(|n| n > most) {
        return bad(AttrMask::MAX_DEST_RD_ATOMIC, "more than the adapter can have outstanding");
    }
    if attr.alt_path.is_some() {
        return bad(AttrMask::ALT_PATH, "alternate paths are not supported");
    }
    let path = attr.av.and_then(|av| port.hca.path(&av, 0));
    if path.is_some_and(|path| !path.is_unicast()) {
        return bad(AttrMask::AV, "the destination must be a unicast address");
    }
    Ok(())
}
