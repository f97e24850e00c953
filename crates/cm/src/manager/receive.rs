//! Received messages.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{
    CmError, CmMessage, CommId, Drep, Dreq, IpCm, Lap, Mra, Rej, RejReason, Rep, Req, Rtu, SidrRep,
    SidrReq, SidrStatus, Stage,
};

use super::Manager;
use crate::conn::{
    self, Conn, DreqSent, Ends, Established, Kind, RepRcvd, RepSent, ReqRcvd, ReqSent, TimeWait,
    answer_dreq,
};
use crate::conn::{SidrRcvd, empty_sidr_rep};
use crate::early::Early;
use crate::event::{Cause, Event, Incoming, IncomingSidr};
use crate::listen::Serves;
use crate::params::{ConnId, PathParams, Peer, QpPlan, Transport};
use crate::question::Held;
use crate::retry::{ack_timeout, code_ns};

impl Manager {
    /// Handles a datagram that queue pair 1 received, without the GRH in front of it.
    pub fn handle_mad(&mut self, now: Instant, from: Peer, bytes: &[u8]) {
        let counters = &mut self.out.counters;
        counters.received += 1;
        let (transaction, message) = match CmMessage::parse(bytes) {
            Ok(parsed) => parsed,
            Err(e) => {
                *match e {
                    CmError::Truncated => &mut counters.drop_truncated,
                    CmError::NotCm => &mut counters.drop_not_cm,
                    CmError::UnknownAttribute(_) => &mut counters.drop_unknown_attribute,
                } += 1;
                return;
            }
        };
        self.on_message(now, from, transaction, message);
    }

    pub(super) fn on_message(&mut self, now: Instant, from: Peer, transaction: u64, m: CmMessage) {
        match m {
            CmMessage::Req(req) => self.on_req(now, from, transaction, &req),
            CmMessage::Mra(mra) => self.on_mra(now, from, &mra),
            CmMessage::Rej(rej) => self.on_rej(now, from, &rej),
            CmMessage::Rep(rep) => self.on_rep(now, from, transaction, &rep),
            CmMessage::Rtu(rtu) => self.on_rtu(from, &rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(now, from, transaction, &dreq),
            CmMessage::Drep(drep) => self.on_drep(now, from, &drep),
            CmMessage::SidrReq(req) => self.on_sidr_req(now, from, transaction, &req),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(from, &rep),
            CmMessage::Lap(lap) => self.on_lap(from, transaction, &lap),
            // The manager never sends LAP, so no APR is expected.
            CmMessage::Apr(_) => self.out.counters.drop_unexpected += 1,
        }
    }

    fn on_req(&mut self, now: Instant, from: Peer, transaction: u64, req: &Req) {
        let key = (Kind::Connection, from.remote, req.local_id);
        if let Some(id) = self.table.find_remote(key) {
            return self.on_duplicate_req(now, from, transaction, id, req);
        }
        if let Some(id) = self.table.find_qp(from.remote, req.qpn) {
            let message = CmMessage::Req(*req);
            return self.on_qp_in_use(now, id, Held { from, transaction, message });
        }
        let Some(listener) = self.listeners.find(req.service_id, from.local.gid) else {
            return self.on_early(now, from, transaction, CmMessage::Req(*req));
        };
        if !self.listeners.serves(listener, Serves::Connections) {
            self.out.counters.refused_invalid += 1;
            return self.refuse_req(now, from, transaction, req, RejReason::INVALID_TRANSPORT);
        }
        let has_ip = self.listeners.has_addresses(listener);
        let (plan, ip) = match self.read_req(from, req, has_ip) {
            Ok(read) => read,
            Err(reason) => {
                self.out.counters.refused_invalid += 1;
                return self.refuse_req(now, from, transaction, req, reason);
            }
        };
        let Some(opened) = self.open(from.remote, listener) else { return };
        if !self.listeners.admit(listener) {
            // Left to the peer's retries: the consumer may have taken a request by then.
            self.out.counters.drop_backlog_full += 1;
            return;
        }
        let id = self.new_id();
        let ends = Ends {
            id,
            remote_id: req.local_id,
            peer: from,
            transaction,
            own_transaction: self.transaction(id),
            plan,
            qpn: None,
            answers_left: (!self.table.is_confirmed(from.remote))
                .then_some(self.config.max_answers),
            opened: Some(opened),
            is_silent: false,
        };
        let response_ns = code_ns(req.local_cm_timeout);
        self.put(Conn::ReqRcvd(ReqRcvd {
            ends: Box::new(ends),
            flow_control: req.flow_control,
            response_ns,
            asked_for_time: false,
        }));
        let incoming = Incoming { listener, conn: ConnId(id), peer: from, req: *req, ip };
        self.out.tell(false, Event::Request(Box::new(incoming)));
    }

    /// Keeps a request for a service without a listener for `patience_ns`, or refuses it.
    fn on_early(&mut self, now: Instant, from: Peer, transaction: u64, message: CmMessage) {
        let may_wait = self.config.patience_ns > 0 && self.early.len() < self.config.max_early;
        if self.early.has(from, &message) {
            self.out.counters.duplicate += 1;
        } else if may_wait {
            let until = now.plus_nanos(self.config.patience_ns);
            self.early.keep(Early { from, transaction, message, until });
        } else {
            self.refuse_early(now, &Early { from, transaction, message, until: now });
        }
    }

    /// Refuses a request for which no listener appeared in time.
    pub(super) fn refuse_early(&mut self, now: Instant, early: &Early) {
        self.out.counters.refused_no_listener += 1;
        let (from, transaction) = (early.from, early.transaction);
        match &early.message {
            CmMessage::Req(req) => {
                self.refuse_req(now, from, transaction, req, RejReason::INVALID_SERVICE_ID);
            }
            CmMessage::SidrReq(req) => {
                self.refuse_sidr(now, from, transaction, req, SidrStatus::UNSUPPORTED);
            }
            _ => {}
        }
    }

    /// The parameters that a REQ asks for, or the reason to reject it.
    fn read_req(
        &mut self,
        from: Peer,
        req: &Req,
        has_ip: bool,
    ) -> Result<(QpPlan, Option<IpCm>), RejReason> {
        let code = req.service;
        let transport = Transport::from_code(code).ok_or(RejReason::INVALID_TRANSPORT)?;
        let mtu = req.path_mtu().ok_or(RejReason::INVALID_MTU)?;
        // Our packets go to the address in the request, which therefore must be that of its sender:
        // the GID on Ethernet, the LID on InfiniBand.
        let primary = &req.primary;
        let is_subnet = from.is_subnet();
        if is_subnet {
            if (primary.local_lid, primary.remote_lid) != (from.remote.lid, from.local.lid) {
                return Err(RejReason::INVALID_LID);
            }
        } else if (primary.local_gid, primary.remote_gid) != (from.remote.gid, from.local.gid) {
            return Err(RejReason::INVALID_GID);
        }
        let ip = if has_ip { Some(ip_header(&req.private_data)?) } else { None };
        let packet_life_time = req.primary.ack_timeout.saturating_sub(1);
        let path = PathParams {
            mtu,
            flow_label: req.primary.flow_label,
            traffic_class: req.primary.traffic_class,
            hop_limit: req.primary.hop_limit,
            sl: req.primary.sl,
            packet_life_time: Some(packet_life_time),
            gids: is_subnet.then_some([req.primary.remote_gid, req.primary.local_gid]),
        };
        let plan = QpPlan {
            peer: from,
            transport,
            path,
            remote_qpn: Some(req.qpn),
            rq_psn: feroce_wire::Psn::new(self.random()),
            sq_psn: req.psn,
            max_dest_rd_atomic: req.initiator_depth,
            max_rd_atomic: req.responder_resources,
            timeout: ack_timeout(self.config.ack_delay, packet_life_time),
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry,
            min_rnr_timer: 0,
            remote_srq: req.srq,
        };
        Ok((plan, ip))
    }

    fn on_duplicate_req(
        &mut self,
        now: Instant,
        from: Peer,
        transaction: u64,
        id: CommId,
        req: &Req,
    ) {
        let mut is_stale = false;
        self.change(id, |conn, times, out| {
            Some(match conn {
                Conn::ReqRcvd(s) => Conn::ReqRcvd(s.on_duplicate_req(times, out)),
                Conn::RepSent(s) => Conn::RepSent(s.on_duplicate_req(out)),
                Conn::Answered(s) => Conn::Answered(s.on_duplicate(now, times, out)),
                over @ (Conn::TimeWait(_) | Conn::DreqSent(_)) => {
                    is_stale = true;
                    over
                }
                other => {
                    out.counters.duplicate += 1;
                    other
                }
            })
        });
        if is_stale {
            self.out.counters.refused_stale += 1;
            self.refuse_req(now, from, transaction, req, RejReason::STALE);
        }
    }

    /// Rejects a REQ without keeping any state for it.
    pub(super) fn refuse_req(
        &mut self,
        now: Instant,
        from: Peer,
        transaction: u64,
        req: &Req,
        reason: RejReason,
    ) {
        if self.may_answer(now) {
            let rej = Rej { remote_id: req.local_id, ..conn::rej(Stage::Req, reason) };
            self.out.send(from, transaction, &CmMessage::Rej(rej));
        }
    }

    fn on_rep(&mut self, now: Instant, from: Peer, transaction: u64, rep: &Rep) {
        let Some(id) = self.find(rep.remote_id, from) else {
            if !self.table.contains(rep.remote_id) {
                self.out.counters.drop_unknown_connection += 1;
                self.refuse_rep(now, from, transaction, rep, RejReason::INVALID_COMM_ID);
            }
            return;
        };
        let is_first = matches!(self.table.get(id), Some(Conn::ReqSent(_)));
        if is_first && let Some(old) = self.table.find_qp(from.remote, rep.qpn) {
            let message = CmMessage::Rep(*rep);
            return self.on_qp_in_use(now, old, Held { from, transaction, message });
        }
        self.change(id, |conn, times, out| {
            Some(match conn {
                Conn::ReqSent(s) => Conn::RepRcvd(s.on_rep(transaction, rep, out)),
                Conn::RepRcvd(s) if s.ends.remote_id == rep.local_id => {
                    Conn::RepRcvd(s.on_duplicate_rep(times, out))
                }
                Conn::Established(s) if s.ends.remote_id == rep.local_id => {
                    Conn::Established(s.on_duplicate_rep(out))
                }
                other => {
                    out.counters.drop_unexpected += 1;
                    other
                }
            })
        });
    }

    /// Rejects a REP that no connection expects.
    pub(super) fn refuse_rep(
        &mut self,
        now: Instant,
        from: Peer,
        transaction: u64,
        rep: &Rep,
        reason: RejReason,
    ) {
        if self.may_answer(now) {
            let (local_id, remote_id) = (rep.remote_id, rep.local_id);
            let rej = Rej { local_id, remote_id, ..conn::rej(Stage::Rep, reason) };
            self.out.send(from, transaction, &CmMessage::Rej(rej));
        }
    }

    fn on_rtu(&mut self, from: Peer, rtu: &Rtu) {
        self.with_remote(rtu.remote_id, rtu.local_id, from, |conn, out| {
            Some(match conn {
                Conn::RepSent(s) => Conn::Established(s.establish(out)),
                other => {
                    out.counters.duplicate += 1;
                    other
                }
            })
        });
    }

    fn on_mra(&mut self, now: Instant, from: Peer, mra: &Mra) {
        let Some(id) = self.find(mra.remote_id, from) else {
            self.out.counters.drop_unknown_connection += 1;
            return;
        };
        self.change(id, |conn, _, out| {
            Some(match (conn, mra.stage) {
                (Conn::ReqSent(s), Stage::Req) => Conn::ReqSent(s.on_mra(now, mra)),
                (Conn::RepSent(s), Stage::Rep) => Conn::RepSent(s.on_mra(now, mra)),
                (other, _) => {
                    out.counters.drop_unexpected += 1;
                    other
                }
            })
        });
    }

    fn on_rej(&mut self, now: Instant, from: Peer, rej: &Rej) {
        // A peer that gives up before it received an answer does not know our communication ID, so
        // its REJ names only its own. Any other REJ names both, except one that answers REQ: its
        // sender may keep no state of the request and have no ID for it.
        let key = (Kind::Connection, from.remote, rej.local_id);
        let named = match rej.remote_id {
            CommId(0) => self.table.find_remote(key).unwrap_or_default(),
            id => id,
        };
        let is_of = |conn: &Conn| match conn {
            Conn::ReqSent(_) => true,
            Conn::ReqRcvd(s) => s.ends.remote_id == rej.local_id,
            Conn::RepSent(s) => s.ends.remote_id == rej.local_id,
            _ => {
                let known = conn.ends().map(|ends| ends.remote_id);
                known == Some(rej.local_id) && rej.remote_id != CommId(0)
            }
        };
        let Some(id) = self.find(named, from).filter(|&id| self.table.get(id).is_some_and(is_of))
        else {
            self.out.counters.drop_unknown_connection += 1;
            return;
        };
        self.change(id, |conn, _, out| {
            match conn {
                // The peer rejects the connection, or withdraws its REQ or REP.
                Conn::ReqSent(ReqSent { ends, .. })
                | Conn::RepRcvd(RepRcvd { ends, .. })
                | Conn::ReqRcvd(ReqRcvd { ends, .. })
                | Conn::RepSent(RepSent { ends, .. }) => {
                    ends.rejected(rej, out);
                    None
                }
                // The peer does not know the connection any more.
                Conn::Established(Established { ends, .. })
                | Conn::DreqSent(DreqSent { ends, .. }) => {
                    Some(Conn::TimeWait(TimeWait::enter(ends, now, Cause::Refused, out)))
                }
                other => {
                    out.counters.drop_unexpected += 1;
                    Some(other)
                }
            }
        });
        self.go_on_with_held(now, id);
    }

    fn on_dreq(&mut self, now: Instant, from: Peer, transaction: u64, dreq: &Dreq) {
        if !self.table.contains(dreq.remote_id) {
            // The connection no longer exists here; a DREP stops the retries of the peer.
            self.out.counters.drop_unknown_connection += 1;
            if self.may_answer(now) {
                answer_dreq(from, transaction, dreq, &mut self.out);
            }
            return;
        }
        self.with_remote(dreq.remote_id, dreq.local_id, from, |conn, out| {
            let names_our_qp = conn.ends().is_some_and(|ends| ends.qpn == Some(dreq.remote_qpn));
            let ends = match conn {
                // In time-wait the answer is the same whichever queue pair the peer names.
                Conn::TimeWait(s) => {
                    return Some(Conn::TimeWait(s.on_duplicate_dreq(transaction, dreq, out)));
                }
                other if !names_our_qp => {
                    out.counters.drop_wrong_qp += 1;
                    return Some(other);
                }
                // In RepRcvd the consumer is not ready yet; in RepSent the RTU was lost; in
                // DreqSent both sides sent DREQ at the same time.
                Conn::RepRcvd(RepRcvd { ends, .. })
                | Conn::RepSent(RepSent { ends, .. })
                | Conn::Established(Established { ends, .. })
                | Conn::DreqSent(DreqSent { ends, .. }) => ends,
                other => {
                    out.counters.drop_unexpected += 1;
                    return Some(other);
                }
            };
            Some(Conn::TimeWait(TimeWait::after_dreq(ends, now, transaction, dreq, out)))
        });
        self.go_on_with_held(now, dreq.remote_id);
    }

    fn on_drep(&mut self, now: Instant, from: Peer, drep: &Drep) {
        if self.on_answer(now, from, drep) {
            return;
        }
        self.with_remote(drep.remote_id, drep.local_id, from, |conn, out| {
            Some(match conn {
                Conn::DreqSent(s) => Conn::TimeWait(s.on_drep(now, out)),
                other => {
                    out.counters.duplicate += 1;
                    other
                }
            })
        });
    }

    fn on_sidr_req(&mut self, now: Instant, from: Peer, transaction: u64, req: &SidrReq) {
        if let Some(id) = self.table.find_remote((Kind::Sidr, from.remote, req.request_id)) {
            return self.change(id, |conn, times, out| {
                Some(match conn {
                    Conn::Answered(s) => Conn::Answered(s.on_duplicate(now, times, out)),
                    other => {
                        out.counters.duplicate += 1;
                        other
                    }
                })
            });
        }
        let Some(listener) = self.listeners.find(req.service_id, from.local.gid) else {
            return self.on_early(now, from, transaction, CmMessage::SidrReq(*req));
        };
        if !self.listeners.serves(listener, Serves::Datagrams) {
            self.out.counters.refused_invalid += 1;
            return self.refuse_sidr(now, from, transaction, req, SidrStatus::UNSUPPORTED);
        }
        let ip = match ip_header(&req.private_data) {
            _ if !self.listeners.has_addresses(listener) => None,
            Ok(ip) => Some(ip),
            Err(_) => {
                self.out.counters.refused_invalid += 1;
                return self.refuse_sidr(now, from, transaction, req, SidrStatus::REJECTED);
            }
        };
        let Some(opened) = self.open(from.remote, listener) else { return };
        if !self.listeners.admit(listener) {
            self.out.counters.refused_backlog += 1;
            return self.refuse_sidr(now, from, transaction, req, SidrStatus::REJECTED);
        }
        let id = self.new_id();
        self.put(Conn::SidrRcvd(SidrRcvd {
            id,
            peer: from,
            request_id: req.request_id,
            transaction,
            service: req.service_id,
            opened,
        }));
        let incoming = IncomingSidr { listener, conn: ConnId(id), peer: from, req: *req, ip };
        self.out.tell(false, Event::SidrRequest(Box::new(incoming)));
    }

    fn refuse_sidr(
        &mut self,
        now: Instant,
        from: Peer,
        transaction: u64,
        req: &SidrReq,
        status: SidrStatus,
    ) {
        if self.may_answer(now) {
            let rep = empty_sidr_rep(req.request_id, req.service_id, status);
            self.out.send(from, transaction, &CmMessage::SidrRep(rep));
        }
    }

    fn on_sidr_rep(&mut self, from: Peer, rep: &SidrRep) {
        let Some(id) = self.find(rep.request_id, from) else {
            self.out.counters.drop_unknown_connection += 1;
            return;
        };
        self.change(id, |conn, _, out| match conn {
            Conn::SidrSent(s) => {
                s.on_rep(rep, out);
                None
            }
            other => {
                out.counters.drop_unexpected += 1;
                Some(other)
            }
        });
    }

    fn on_lap(&mut self, from: Peer, transaction: u64, lap: &Lap) {
        self.with_remote(lap.remote_id, lap.local_id, from, |conn, out| {
            Some(match conn {
                Conn::Established(s) => Conn::Established(s.on_lap(transaction, lap, out)),
                other => {
                    out.counters.drop_unexpected += 1;
                    other
                }
            })
        });
    }

    /// Applies a transition if the message names the communication IDs of both sides correctly.
    fn with_remote(
        &mut self,
        id: CommId,
        remote_id: CommId,
        from: Peer,
        f: impl FnOnce(Conn, &mut crate::out::Out) -> Option<Conn>,
    ) {
        let found = self.find(id, from).filter(|&id| {
            let ends = self.table.get(id).and_then(Conn::ends);
            ends.is_some_and(|ends| ends.remote_id == remote_id)
        });
        match found {
            Some(id) => self.change(id, |conn, _, out| f(conn, out)),
            None => self.out.counters.drop_unknown_connection += 1,
        }
    }
}

/// Parses the IP addressing header in front of the private data of a request to a port (annex A11).
fn ip_header(private_data: &[u8]) -> Result<IpCm, RejReason> {
    match IpCm::parse(private_data) {
        Ok(Some(ip)) if ip.version == 0 => Ok(ip),
        _ => Err(RejReason::UNSUPPORTED),
    }
}
