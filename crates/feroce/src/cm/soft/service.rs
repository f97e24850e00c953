//! Connection management of one device, inside the driver: it handles the datagrams of queue pair
//! 1, brings queue pairs up, and delivers events to ids.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use feroce_cm::rdma::{ConnParam, EventKind, ip_of};
use feroce_cm::{
    Accepts, Cause, Config, ConnId, Event, Incoming, IncomingSidr, ListenError, ListenId, Manager,
    Peer, QpPlan, Serves,
};
use feroce_engine::{Engine, ModifyQpError, QpAttr, QpState};
use feroce_local::Registry;
use feroce_train::{GidEntry, Instant};
use feroce_wire::cm::{IP_CM_LEN, IpCm, RejReason, Rep, Req, ServiceId, SidrRep, SidrStatus};
use feroce_wire::{Lid, Psn, Qpn};

use super::channel::Queue;
use super::gsi::Gsi;
use super::native::IbEnds;
use super::queued::Queued;
use super::shared::{Shared, Stage};
use super::{attr, native, subnet};
use crate::Error;
use crate::backend::soft::SoftAdapter;
use crate::cm::{CmError, UdParam, next_number};
use crate::driver::{Agent, Siblings, State, Wakes};
use crate::watch::ConnectionSnapshot;

/// The connection manager of a device, and the ids that its events concern.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) manager: Manager,
    gsi: Gsi,
    device: Weak<SoftAdapter>,
    /// Interface of link-local addresses.
    scope: u32,
    /// The device has lost its addresses, and its ids were told.
    is_gone: bool,
    /// How many connection requests must have been given up before the next warning.
    flooded: u64,
    /// Peers that have not answered for long, and how many there must be before the next warning.
    silent: (u64, u64),
    ids: BTreeMap<ConnId, Arc<Shared>>,
    listeners: BTreeMap<ListenId, Arc<Shared>>,
    /// What they listen for, and at which addresses.
    services: BTreeMap<ListenId, (ServiceId, Accepts)>,
    qps: BTreeMap<u32, Arc<Shared>>,
    wakes: Arc<Wakes>,
    /// Knows which processes of the host have ended.
    registry: Option<Arc<Registry>>,
    /// The other shards of the device.
    siblings: Siblings,
}

impl Agent for Service {
    /// Handles received datagrams and expired timers, and posts datagrams to send. Returns whether
    /// more datagrams wait than queue pair 1 has room for.
    fn drive(&mut self, engine: &mut Engine, now: Instant) -> bool {
        let manager = &mut self.manager;
        // Before messages are handled: another process may have the place of a dead one already.
        if let Some(registry) = self.registry.as_ref().filter(|registry| registry.has_departures())
        {
            for gone in registry.take_departures() {
                manager.handle_departure(now, |port, id| {
                    id.0 >> 24 == u32::from(gone.prefix) && gone.addresses.contains(&port.gid)
                });
            }
        }
        self.gsi.receive(engine.lid(), |peer, mad| manager.handle_mad(now, peer, mad));
        if self.manager.poll_timeout().is_some_and(|at| at <= now) {
            let Self { manager, ids, siblings, .. } = self;
            manager.handle_timeout_asking(now, |conn, plan| {
                ids.get(&conn).is_some_and(|id| has_data(engine, siblings, id, plan))
            });
        }
        self.report_lost();
        self.report_flood();
        self.report_silence();
        while let Some(event) = self.manager.poll_event() {
            self.on_event(engine, now, event);
        }
        while self.gsi.has_room() {
            let Some(mad) = self.manager.poll_mad() else { return false };
            self.gsi.send(engine, &mad);
        }
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match &self.registry {
            Some(registry) if registry.has_departures() || registry.has_lost_services() => {
                Some(Instant::ZERO)
            }
            _ => self.manager.poll_timeout(),
        }
    }

    /// Data has arrived on a queue pair before the peer's message that it is ready to use (RTU).
    fn on_established(&mut self, qpn: Qpn) {
        let conn = self.qps.get(&qpn.get()).and_then(|id| id.lock().conn);
        // The call fails if the connection does not wait for that message; then there is nothing to
        // do.
        let _ = conn.map(|conn| self.manager.establish(conn));
    }

    /// The addresses of the device have changed. If none is left, its ids get a device removal
    /// event.
    fn on_addresses(&mut self, gids: &[GidEntry]) {
        let is_gone = gids.iter().all(GidEntry::is_empty);
        if is_gone && !self.is_gone {
            let all = self.ids.values().chain(self.listeners.values()).chain(self.qps.values());
            // An id may be in several of these tables.
            let once: BTreeMap<u64, &Arc<Shared>> = all.map(|id| (id.number, id)).collect();
            for id in once.into_values() {
                self.tell(Queued::new(EventKind::DeviceRemoval, id, 0));
            }
        }
        self.is_gone = is_gone;
    }

    /// This process is about to exit and will not answer any more: notifies every peer.
    fn leave(&mut self, now: Instant) {
        for conn in std::mem::take(&mut self.ids).into_keys() {
            self.manager.destroy(now, conn);
        }
    }

    fn connections(&self) -> Vec<ConnectionSnapshot> {
        let all = self.ids.values().chain(self.listeners.values()).chain(self.qps.values());
        // An id may be in several of these tables.
        let once: BTreeMap<u64, &Arc<Shared>> = all.map(|id| (id.number, id)).collect();
        once.into_values().map(|id| id.snapshot()).collect()
    }

    fn awaits_confirmation(&self) -> bool {
        self.manager.awaits_confirmation()
    }
}

impl Service {
    /// The connection manager of a device, if it has one.
    pub(super) fn of(state: &mut State) -> Option<&mut Self> {
        state.agent_mut()
    }

    pub(super) fn new(
        engine: &mut Engine,
        now: Instant,
        psn: Psn,
        config: Config,
        (device, scope): (Weak<SoftAdapter>, u32),
        (wakes, siblings): (Arc<Wakes>, Siblings),
    ) -> Result<Self, Error> {
        let gsi = Gsi::new(engine, now, psn)?;
        let manager = Manager::new(config);
        let (ids, listeners, qps) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            manager,
            gsi,
            device,
            scope,
            is_gone: false,
            flooded: 0,
            silent: (0, 1),
            ids,
            listeners,
            services: BTreeMap::new(),
            qps,
            wakes,
            registry: None,
            siblings,
        })
    }

    /// Changes a queue pair, which may be in another shard than connection management.
    pub(super) fn modify_qp(
        state: &mut State,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
    ) -> Result<(), ModifyQpError> {
        let Some(cm) = Self::of(state) else { return state.engine.modify_qp(now, qpn, attr) };
        let (siblings, wakes) = (cm.siblings.clone(), Arc::clone(&cm.wakes));
        siblings.modify_qp(&mut state.engine, &wakes, now, (qpn, attr))
    }

    /// Brings a queue pair up, which may be in another shard than connection management.
    pub(super) fn bring_up(
        state: &mut State,
        now: Instant,
        qpn: Qpn,
        plan: &QpPlan,
    ) -> Result<(), Error> {
        let cm = Self::of(state).ok_or(CmError::DeviceGone)?;
        let (siblings, wakes) = (cm.siblings.clone(), Arc::clone(&cm.wakes));
        Ok(attr::bring_up(&mut state.engine, (&siblings, &wakes), now, qpn, plan)?)
    }

    /// Ends connections with processes of the host that have ended, as `registry` reports them.
    pub(super) fn among(self, registry: Option<Arc<Registry>>) -> Self {
        if let Some(registry) = &registry {
            registry.want_departures();
        }
        Self { registry, ..self }
    }

    /// Tells listeners whose service another process has now, by an event with `EADDRINUSE`.
    fn report_lost(&mut self) {
        let Some(registry) = self.registry.as_ref().filter(|known| known.has_lost_services())
        else {
            return;
        };
        for (address, lost) in registry.take_lost_services() {
            let ip = address.to_ip();
            tracing::warn!(
                "another process has taken port {} of {ip} while there was no feroce portd: \
                 connection requests of other hosts and users do not arrive here; when that \
                 process has ended, listen again",
                lost & 0xffff
            );
            let is_lost = |(service, accepts): &(ServiceId, Accepts)| {
                service.0 == lost && accepts.takes(address)
            };
            let listeners = self.services.iter().filter(|(_, service)| is_lost(service));
            for id in listeners.filter_map(|(listener, _)| self.listeners.get(listener)) {
                self.tell(Queued::new(EventKind::AddrError, id, -libc::EADDRINUSE));
            }
        }
    }

    /// Warns of requests that were given up for others, once and whenever their number has doubled.
    fn report_flood(&mut self) {
        let counters = self.manager.counters();
        let flooded = counters.half_open_evicted + counters.drop_half_open_full;
        if flooded > self.flooded {
            self.flooded = flooded.saturating_mul(2);
            tracing::warn!(
                "too many connection requests without an answer from the peer: {} gave way to \
                 others, {} were left to the retries of the peer; the addresses may be forged",
                counters.half_open_evicted,
                counters.drop_half_open_full
            );
        }
    }

    /// Tells of peers that do not answer: of the first, and whenever their number has doubled.
    fn report_silence(&mut self) {
        while let Some(peer) = self.manager.poll_silence() {
            self.silent.0 += 1;
            if self.silent.0 < self.silent.1 {
                continue;
            }
            self.silent.1 = self.silent.1.saturating_mul(2);
            let ip = peer.remote.gid.to_ip();
            tracing::warn!(
                "{ip} has not answered a connection request for 3 seconds, and is asked for 100 \
                 seconds in all: is the machine up, does a program use RDMA there, and is UDP port \
                 4791 open in both directions? `feroce doctor {ip}` tries it"
            );
        }
    }

    pub(super) fn listen(
        &mut self,
        now: Instant,
        id: &Arc<Shared>,
        service: ServiceId,
        accepts: Accepts,
        backlog: u32,
    ) -> Result<ListenId, ListenError> {
        let serves = if id.is_datagrams { Serves::Datagrams } else { Serves::Connections };
        let listener = self.manager.listen(now, service, accepts, serves, backlog)?;
        self.listeners.insert(listener, Arc::clone(id));
        self.services.insert(listener, (service, accepts));
        Ok(listener)
    }

    pub(super) fn unlisten(&mut self, listener: ListenId) {
        self.manager.unlisten(listener);
        self.listeners.remove(&listener);
        self.services.remove(&listener);
    }

    pub(super) fn taken(&mut self, listener: ListenId) {
        self.manager.taken(listener);
    }

    /// Events of a connection go to this id.
    pub(super) fn attach(&mut self, conn: ConnId, id: &Arc<Shared>) {
        self.ids.insert(conn, Arc::clone(id));
    }

    /// Datagrams to a port of an InfiniBand subnet have this service level.
    pub(super) fn learn(&mut self, lid: Lid, sl: u8) {
        self.gsi.learn(lid, sl);
    }

    pub(super) fn destroy(&mut self, now: Instant, conn: ConnId) {
        self.manager.destroy(now, conn);
        self.ids.remove(&conn);
    }

    /// A queue pair belongs to an id.
    pub(super) fn use_qp(&mut self, qpn: Qpn, id: &Arc<Shared>) {
        self.qps.insert(qpn.get(), Arc::clone(id));
    }

    /// A queue pair does not belong to an id any more, unless it has passed to another.
    pub(super) fn forget_qp(&mut self, qpn: Qpn, id: &Arc<Shared>) {
        if self.qps.get(&qpn.get()).is_some_and(|owner| Arc::ptr_eq(owner, id)) {
            self.qps.remove(&qpn.get());
        }
    }

    /// Appends an event to the queue of its consumer, which is woken after the device's lock is
    /// released.
    fn tell(&self, event: Queued) {
        let queue = queue_of(&event);
        queue.append(event);
        self.wakes.add(queue);
    }

    fn on_event(&mut self, engine: &mut Engine, now: Instant, event: Event) {
        let conn = event.conn();
        match event {
            Event::Request(incoming) => return self.on_request(&incoming),
            Event::SidrRequest(incoming) => return self.on_sidr_request(&incoming),
            _ => {}
        }
        let Some(id) = self.ids.get(&conn).cloned() else { return };
        match event {
            Event::Request(_) | Event::SidrRequest(_) => {}
            Event::Replied { rep, .. } => self.on_reply(engine, now, &id, conn, &rep),
            Event::Established { .. } => {
                id.lock().stage = Stage::Connected;
                self.tell(Queued::new(EventKind::Established, &id, 0));
            }
            Event::Rejected { rej, .. } => {
                self.end(engine, now, &id, conn);
                let status = i32::from(rej.reason.0);
                let private_data = rej.private_data.to_vec();
                self.tell(Queued { private_data, ..Queued::new(EventKind::Rejected, &id, status) });
            }
            Event::Unreachable { .. } => {
                self.end(engine, now, &id, conn);
                self.tell(Queued::new(EventKind::Unreachable, &id, -libc::ETIMEDOUT));
            }
            Event::Disconnected { cause, .. } => {
                id.lock().stage = Stage::Over;
                let status = if cause == Cause::NoAnswer { -libc::ETIMEDOUT } else { 0 };
                self.tell(Queued::new(EventKind::Disconnected, &id, status));
            }
            Event::TimewaitExit { .. } => {
                self.ids.remove(&conn);
                self.tell(Queued::new(EventKind::TimewaitExit, &id, 0));
            }
            Event::SidrReplied { rep, .. } => self.on_sidr_reply(engine, &id, conn, &rep),
        }
    }

    /// A connection was not established: flushes the requests posted on its queue pair.
    fn end(&mut self, engine: &mut Engine, now: Instant, id: &Arc<Shared>, conn: ConnId) {
        self.ids.remove(&conn);
        let mut inner = id.lock();
        inner.stage = Stage::Over;
        inner.conn = None;
        if let Some(qp) = inner.qp {
            let err = QpAttr::to(QpState::Err);
            let _ = self.siblings.modify_qp(engine, &self.wakes, now, (qp.qpn, &err));
        }
    }

    fn on_reply(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        id: &Arc<Shared>,
        conn: ConnId,
        rep: &Rep,
    ) {
        let qp = id.lock().qp;
        let kind = match (qp, self.manager.plan(conn).copied()) {
            (Some(qp), Some(plan)) => {
                let up = attr::bring_up(engine, (&self.siblings, &self.wakes), now, qp.qpn, &plan);
                if let Err(e) = up {
                    self.wakes.warn(format_args!("{:?} cannot be brought up: {e}", qp.qpn));
                    let reason = RejReason::CONSUMER;
                    let _ = self.manager.reject(now, conn, reason, &[0; 148]);
                    self.end(engine, now, id, conn);
                    return self.tell(Queued::new(EventKind::ConnectError, id, -libc::EINVAL));
                }
                let _ = self.manager.ready(conn);
                id.lock().stage = Stage::Connected;
                EventKind::Established
            }
            _ => {
                id.lock().stage = Stage::Responded;
                EventKind::ConnectResponse
            }
        };
        let private_data = rep.private_data.to_vec();
        let conn = Some(ConnParam {
            private_data: private_data.clone(),
            // From the view of this side: the reads that the peer can hold as a responder are those
            // that this side may have outstanding, and the reverse.
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            flow_control: rep.flow_control,
            retry_count: 0,
            rnr_retry_count: rep.rnr_retry,
            srq: rep.srq,
            qpn: rep.qpn,
        });
        self.tell(Queued { conn, private_data, ..Queued::new(kind, id, 0) });
    }

    fn on_request(&mut self, incoming: &Incoming) {
        let req = &incoming.req;
        let private_data = match incoming.ip {
            Some(_) => req.private_data[IP_CM_LEN..].to_vec(),
            None => req.private_data.to_vec(),
        };
        let offer = offer_of(req, &private_data);
        let from = (incoming.listener, incoming.conn, incoming.peer);
        self.request(from, (req.service_id, Some(req)), incoming.ip, offer, private_data);
        if incoming.peer.is_subnet()
            && let Some(id) = self.ids.get(&incoming.conn)
        {
            id.lock().path = Some(subnet::path_back(req));
        }
    }

    fn on_sidr_request(&mut self, incoming: &IncomingSidr) {
        let req = &incoming.req;
        let private_data = match incoming.ip {
            Some(_) => req.private_data[IP_CM_LEN..].to_vec(),
            None => req.private_data.to_vec(),
        };
        let offer = ConnParam { private_data: private_data.clone(), ..ConnParam::default() };
        let from = (incoming.listener, incoming.conn, incoming.peer);
        self.request(from, (req.service_id, None), incoming.ip, offer, private_data);
    }

    /// Creates the id of a request, and delivers the request to the listener.
    fn request(
        &mut self,
        (listen_id, conn, peer): (ListenId, ConnId, Peer),
        (service, req): (ServiceId, Option<&Req>),
        ip: Option<IpCm>,
        offer: ConnParam,
        private_data: Vec<u8>,
    ) {
        let Some(listener) = self.listeners.get(&listen_id).cloned() else { return };
        let (queue, native) = {
            let inner = listener.lock();
            (Arc::clone(&inner.queue), inner.ib)
        };
        let port = service.as_ip().map_or(0, |(_, port)| port);
        let kind = (listener.space, listener.is_datagrams);
        let id = Shared::new(next_number(), kind, queue, Weak::clone(&self.device));
        {
            let mut inner = id.lock();
            inner.stage = Stage::Requested;
            inner.conn = Some(conn);
            let src_port = ip.map_or(0, |ip| ip.src_port);
            // A port of InfiniBand has a LID, and the request says its IP address.
            let [local, remote] = match ip {
                Some(ip) if peer.is_subnet() => [ip.dst, ip.src],
                _ => [ip_of(peer.local.gid), ip_of(peer.remote.gid)],
            };
            inner.local = Some(with_scope((local, port).into(), self.scope));
            inner.peer = Some(with_scope((remote, src_port).into(), self.scope));
            if let Some(own) = native {
                let ends = IbEnds::of_request(own.local, service, req);
                inner.local = Some(native::shown(ends.local));
                inner.peer = ends.peer.map(native::shown);
                inner.ib = Some(ends);
            }
            inner.offer = Some(offer.clone());
        }
        self.ids.insert(conn, Arc::clone(&id));
        self.tell(Queued {
            listener: Some((listener, Some(listen_id))),
            conn: Some(offer),
            private_data,
            ..Queued::new(EventKind::ConnectRequest, &id, 0)
        });
    }

    fn on_sidr_reply(&mut self, engine: &Engine, id: &Arc<Shared>, conn: ConnId, rep: &SidrRep) {
        self.ids.remove(&conn);
        let private_data = rep.private_data.to_vec();
        let mut inner = id.lock();
        inner.conn = None;
        if rep.status != SidrStatus::SUCCESS {
            inner.stage = Stage::Over;
            drop(inner);
            let status = i32::from(rep.status.0);
            let event = Queued::new(EventKind::Unreachable, id, status);
            return self.tell(Queued { private_data, ..event });
        }
        inner.stage = Stage::Connected;
        let ends = inner.local.zip(inner.peer);
        let (tos, path, framing) = (inner.options.tos, inner.path, inner.framing);
        drop(inner);
        let ud = ends.map(|(local, remote)| {
            let gid = |addr: SocketAddr| feroce_cm::rdma::gid_of(addr.ip());
            let av = match path {
                Some(path) => subnet::vector(engine, subnet::peer(&path), &subnet::params(&path)),
                None => {
                    let peer = Peer { framing, ..Peer::new(gid(local), gid(remote)) };
                    attr::datagram_path(engine.gids(), peer, tos)
                }
            };
            UdParam { av, qpn: rep.qpn, qkey: rep.qkey }
        });
        self.tell(Queued { ud, private_data, ..Queued::new(EventKind::Established, id, 0) });
    }
}

/// Connection parameters that a peer offers, from the view of this side.
fn offer_of(req: &Req, private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.to_vec(),
        responder_resources: req.initiator_depth,
        initiator_depth: req.responder_resources,
        flow_control: req.flow_control,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry,
        srq: req.srq,
        qpn: req.qpn,
    }
}

/// A socket address; a link-local one gets the index of its interface.
pub(super) fn with_scope(mut addr: SocketAddr, scope: u32) -> SocketAddr {
    if let SocketAddr::V6(addr) = &mut addr
        && addr.ip().is_unicast_link_local()
    {
        addr.set_scope_id(scope);
    }
    addr
}

/// Whether the queue pair of an id has received anything since it was brought up.
fn has_data(engine: &Engine, siblings: &Siblings, id: &Shared, plan: &QpPlan) -> bool {
    let qp = id.lock().qp.and_then(|qp| siblings.query_qp(engine, qp.qpn));
    qp.is_some_and(|(attr, _)| attr.rq_psn.is_some_and(|expected| expected != plan.rq_psn))
}

/// Appends an event to the queue of its id; a request, to that of the listener. The caller holds no
/// lock of a device.
pub(super) fn tell(event: Queued) {
    queue_of(&event).push(event);
}

pub(super) fn queue_of(event: &Queued) -> Arc<Queue> {
    match &event.listener {
        Some((listener, _)) => Arc::clone(&listener.lock().queue),
        None => Arc::clone(&event.id.lock().queue),
    }
}
