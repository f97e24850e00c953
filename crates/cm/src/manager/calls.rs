//! The calls of consumers.

use alloc::boxed::Box;

use feroce_train::Instant;
use feroce_wire::cm::{
    CmMessage, CommId, PathInfo, Rej, RejReason, Req, ServiceId, SidrReq, Stage,
};
use feroce_wire::{Lid, Pkey, Psn, Qkey};

use super::{CallError, Manager};
use crate::conn::{Conn, Ends, ReqSent, SidrSent, Times};
use crate::listen::{Accepts, ListenError, ListenId, Serves};
use crate::out::Out;
use crate::params::{Accept, Ask, ConnId, Connect, Peer, QpPlan, Reply};
use crate::retry::{Retry, ack_timeout, code_ns};

impl Manager {
    /// Listens for requests of a kind; at most `backlog` wait until the consumer takes them.
    /// Requests for the service that arrived shortly before this call and still wait for a listener
    /// come first.
    pub fn listen(
        &mut self,
        now: Instant,
        service: ServiceId,
        accepts: Accepts,
        serves: Serves,
        backlog: u32,
    ) -> Result<ListenId, ListenError> {
        let listener = self.listeners.add(service, accepts, serves, backlog)?;
        for early in self.early.take(service) {
            self.on_message(now, early.from, early.transaction, early.message);
        }
        Ok(listener)
    }

    /// Stops listening. Requests that the manager has already reported stay.
    pub fn unlisten(&mut self, listener: ListenId) {
        self.listeners.remove(listener);
    }

    /// The consumer has taken a request, which frees its place in the backlog.
    pub fn taken(&mut self, listener: ListenId) {
        self.listeners.taken(listener);
    }

    /// Requests a connection (REQ). Final events: rejected, unreachable, disconnected.
    pub fn connect(&mut self, now: Instant, connect: &Connect) -> ConnId {
        let id = self.new_id();
        let path = connect.path;
        let life_time = path.packet_life_time.unwrap_or(self.config.packet_life_time) & 31;
        let plan = QpPlan {
            peer: connect.peer,
            transport: connect.transport,
            path,
            remote_qpn: None,
            rq_psn: Psn::new(self.random()),
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: connect.responder_resources,
            max_rd_atomic: connect.initiator_depth,
            timeout: life_time + 1,
            retry_count: connect.retry_count & 7,
            rnr_retry: connect.rnr_retry & 7,
            min_rnr_timer: 0,
            remote_srq: false,
        };
        let req = self.req(id, connect, &plan);
        let transaction = self.transaction(id);
        let bytes = self.out.send(connect.peer, transaction, &CmMessage::Req(req));
        let interval_ns = 2 * code_ns(life_time) + self.times.response_ns;
        let retry = Retry::new(now, bytes, interval_ns, self.config.max_retries)
            .probing(now, self.config.probe_ns);
        let ends = Ends {
            id,
            remote_id: CommId(0),
            peer: connect.peer,
            transaction,
            own_transaction: transaction,
            plan,
            qpn: Some(connect.qpn),
            answers_left: None,
            opened: None,
            is_silent: false,
        };
        let ca_guid = self.config.ca_guid;
        self.put(Conn::ReqSent(ReqSent { ends: Box::new(ends), retry, ca_guid }));
        ConnId(id)
    }

    fn req(&self, id: CommId, connect: &Connect, plan: &QpPlan) -> Req {
        let path = connect.path;
        let life_time = plan.timeout - 1;
        let Peer { local, remote, .. } = connect.peer;
        // The permissive LID, because Ethernet has no LIDs.
        let [local_lid, remote_lid] = match connect.peer.is_subnet() {
            true => [local.lid, remote.lid],
            false => [Lid::PERMISSIVE; 2],
        };
        let [local_gid, remote_gid] = path.gids.unwrap_or([local.gid, remote.gid]);
        Req {
            local_id: id,
            service_id: connect.service,
            ca_guid: self.config.ca_guid,
            qkey: Qkey(0),
            qpn: connect.qpn,
            responder_resources: connect.responder_resources,
            initiator_depth: connect.initiator_depth,
            eecn: (0, 0),
            remote_cm_timeout: self.config.response_timeout & 31,
            service: connect.transport.code(),
            flow_control: connect.flow_control,
            psn: plan.rq_psn,
            local_cm_timeout: self.config.response_timeout & 31,
            retry_count: connect.retry_count & 7,
            pkey: Pkey::DEFAULT,
            mtu_code: path.mtu.code(),
            rdc_exists: false,
            rnr_retry: connect.rnr_retry & 7,
            max_cm_retries: self.config.max_retries & 15,
            srq: connect.srq,
            extended_service: 0,
            primary: PathInfo {
                local_lid,
                remote_lid,
                local_gid,
                remote_gid,
                flow_label: path.flow_label & 0xf_ffff,
                rate: 0,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                sl: path.sl & 15,
                subnet_local: path.hop_limit <= 1,
                ack_timeout: ack_timeout(self.config.ack_delay, life_time),
            },
            alternate: PathInfo::default(),
            private_data: connect.private_data,
        }
    }

    /// Accepts a request for a connection (REP).
    pub fn accept(&mut self, now: Instant, conn: ConnId, accept: &Accept) -> Result<(), CallError> {
        let identity = (self.config.ca_guid, self.config.ack_delay & 31);
        self.call(conn, |conn, times, out| match conn {
            Conn::ReqRcvd(s) => {
                Ok(Some(Conn::RepSent(s.accept(now, accept, identity, times, out))))
            }
            other => Err(other),
        })
    }

    /// Rejects a REQ, a REP or a SIDR_REQ; no event follows.
    pub fn reject(
        &mut self,
        now: Instant,
        conn: ConnId,
        reason: RejReason,
        private_data: &[u8; 148],
    ) -> Result<(), CallError> {
        let with_data = |rej: Rej| Rej { private_data: *private_data, ..rej };
        self.call(conn, |conn, times, out| match conn {
            Conn::ReqRcvd(s) => {
                let rej = with_data(s.ends.rej(Stage::Req, reason));
                Ok(Some(Conn::Answered(s.reject(now, rej, times, out))))
            }
            Conn::RepRcvd(s) => {
                let rej = with_data(s.ends.rej(Stage::Rep, reason));
                s.reject(&rej, out);
                Ok(None)
            }
            Conn::SidrRcvd(s) => {
                let mut data = [0; 136];
                data.copy_from_slice(&private_data[..136]);
                Ok(Some(Conn::Answered(s.reject(now, data, times, out))))
            }
            other => Err(other),
        })
    }

    /// The consumer's queue pair of a connection that the peer accepted is up: sends RTU, after
    /// which the peer may send.
    pub fn ready(&mut self, conn: ConnId) -> Result<(), CallError> {
        self.call(conn, |conn, _, out| match conn {
            Conn::RepRcvd(s) => Ok(Some(Conn::Established(s.ready(out)))),
            other => Err(other),
        })
    }

    /// Data has arrived on a connection that the consumer accepted: the peer is ready, even if its
    /// RTU is late or lost. Fails if the manager knows that already.
    pub fn establish(&mut self, conn: ConnId) -> Result<(), CallError> {
        if matches!(self.table.get(conn.0), Some(Conn::Established(_))) {
            return Err(CallError::Established);
        }
        self.call(conn, |conn, _, out| match conn {
            Conn::RepSent(s) => Ok(Some(Conn::Established(s.establish(out)))),
            other => Err(other),
        })
    }

    /// Ends a connection (DREQ). Succeeds without effect if the connection is already ending.
    pub fn disconnect(&mut self, now: Instant, conn: ConnId) -> Result<(), CallError> {
        self.call(conn, |conn, times, out| match conn {
            Conn::Established(s) => Ok(Some(Conn::DreqSent(s.disconnect(now, times, out)))),
            Conn::RepSent(s) => Ok(Some(Conn::DreqSent(s.disconnect(now, times, out)))),
            over @ (Conn::DreqSent(_) | Conn::TimeWait(_)) => Ok(Some(over)),
            other => Err(other),
        })
    }

    /// Requests the queue pair of a datagram service (SIDR_REQ). Final events: answered,
    /// unreachable.
    pub fn ask(&mut self, now: Instant, ask: &Ask) -> ConnId {
        let id = self.new_id();
        let req = SidrReq {
            request_id: id,
            pkey: Pkey::DEFAULT,
            service_id: ask.service,
            private_data: ask.private_data,
        };
        let bytes = self.out.send(ask.peer, self.transaction(id), &CmMessage::SidrReq(req));
        let retry = Retry::new(now, bytes, self.times.response_ns, self.config.max_retries)
            .probing(now, self.config.probe_ns);
        self.put(Conn::SidrSent(SidrSent { id, peer: ask.peer, retry }));
        ConnId(id)
    }

    /// Answers a request for a datagram service (SIDR_REP).
    pub fn reply(&mut self, now: Instant, conn: ConnId, reply: &Reply) -> Result<(), CallError> {
        self.call(conn, |conn, times, out| match conn {
            Conn::SidrRcvd(s) => Ok(Some(Conn::Answered(s.reply(now, reply, times, out)))),
            other => Err(other),
        })
    }

    /// Destroys a connection or request: no event of it follows, and events that wait are
    /// discarded. The manager sends the peer the message that ends it there, and still answers
    /// duplicates of the peer's messages.
    pub fn destroy(&mut self, now: Instant, conn: ConnId) {
        self.change(conn.0, |conn, times, out| conn.on_destroy(now, times, out));
        self.out.events.retain(|event| event.conn() != conn);
    }

    /// Applies a transition; if the connection is in a state without this transition, puts it back
    /// unchanged and fails.
    fn call(
        &mut self,
        conn: ConnId,
        f: impl FnOnce(Conn, &Times, &mut Out) -> Result<Option<Conn>, Conn>,
    ) -> Result<(), CallError> {
        let old = self.table.take(conn.0).ok_or(CallError::Unknown)?;
        match f(old, &self.times, &mut self.out) {
            Ok(next) => {
                if let Some(next) = next {
                    self.put(next);
                }
                Ok(())
            }
            Err(old) => {
                self.put(old);
                Err(CallError::WrongState)
            }
        }
    }
}
