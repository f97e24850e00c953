//! Connection management of a device that speaks iWARP, inside the driver: a connection is a TCP
//! connection on which the two ends have exchanged startup frames (MPA).
//!
//! ```text
//!   connect:  Connecting -> AwaitingReply -> Connected    Established
//!   listen:   half open  -> Requested     -> Connected    Connect request, Established
//! ```
//!
//! Until it is connected a stream is this agent's, and afterwards the queue pair's; what the agent
//! wants done with it are orders, which the driver carries out.

mod calls;
mod conn;
mod counters;

pub(super) use calls::is_iwarp;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use feroce_cm::rdma::{ConnParam, EventKind, PortSpace};
use feroce_engine::iwarp::{
    Begin, HandshakeConfig, Initiator, Reply, Request, Responder, StreamEnd, StreamEvent,
    StreamSetup,
};
use feroce_engine::{Engine, ModifyQpError, QpAttr, QpState};
use feroce_link::LinkCounters;
use feroce_link::tcp::{Deadlines, StreamId, TcpEvent, TcpListenId};
use feroce_mem::Access;
use feroce_train::{GidEntry, Instant};
use feroce_wire::Qpn;

use super::queued::Queued;
use super::service::queue_of;
use super::shared::{Shared, Stage};
use crate::backend::soft::SoftAdapter;
use crate::cm::next_number;
use crate::driver::{Agent, State, StreamInput, StreamOrder, Wakes};
use crate::watch::ConnectionSnapshot;
use conn::{Asking, Conn, HalfOpen, Listening, Phase};
use counters::Counters;

/// How long a peer may take to send its request after it has connected, as in Linux.
const REQUEST_NS: u64 = 5_000_000_000;

/// How long a peer may take to connect, and then to reply, as in Linux.
const REPLY_NS: u64 = 10_000_000_000;

/// How long after its announcement, and then after each reminder, an end that has connected reminds
/// a peer that sends nothing. Linux (`siw`) overlooks a first message that arrives within a moment
/// of its reply, and then never tells its consumer of the connection. A reminder is a WRITE of no
/// bytes, which has no effect on other peers.
const REMIND_NS: [u64; 3] = [20_000_000, 200_000_000, 2_000_000_000];

/// How long an end that has accepted waits for the first message of a peer that has not asked for
/// a connection between peers, and speaks the second revision. Linux does not ask, and its programs
/// let the end that accepts send first all the same. It breaks off if a message arrives together
/// with the reply.
const PATIENCE_NS: u64 = 500_000_000;

/// Peers that have connected and not sent their request yet. The oldest gives way to another.
const MAX_HALF_OPEN: usize = 1024;

/// How long a peer that was rejected may take to close the stream. Linux (`siw`) looks for the end
/// of a stream before it reads what is in front of that, and may not see a rejection that comes
/// with it.
const LEAVE_NS: u64 = 1_000_000_000;

/// Peers that were rejected and have not closed the stream yet. For others, this end closes first.
const MAX_LEAVING: usize = 1024;

/// The connection manager of a device, and the ids that its events concern.
#[derive(Debug)]
pub(super) struct IwarpService {
    config: HandshakeConfig,
    device: Weak<SoftAdapter>,
    conns: BTreeMap<StreamId, Conn>,
    of_qp: BTreeMap<Qpn, StreamId>,
    half_open: BTreeMap<StreamId, HalfOpen>,
    /// Streams of peers that were rejected.
    leaving: BTreeSet<StreamId>,
    /// When peers have to have sent their request or reply or to have left, or are reminded that
    /// they may send.
    due: Deadlines<StreamId>,
    listeners: BTreeMap<TcpListenId, Listening>,
    orders: Vec<StreamOrder>,
    counters: Counters,
    /// The device has lost its addresses, and its ids were told.
    is_gone: bool,
    wakes: Arc<Wakes>,
}

impl Agent for IwarpService {
    fn drive(&mut self, engine: &mut Engine, now: Instant) -> bool {
        while let Some(stream) = self.due.pop(now) {
            if self.leaving.remove(&stream) {
                self.orders.push(StreamOrder::Finish(stream));
            } else if self.half_open.remove(&stream).is_some() {
                self.counters.late += 1;
                self.orders.push(StreamOrder::Finish(stream));
            } else if !self.remind(engine, now, stream) {
                self.counters.late += 1;
                self.fail(engine, now, stream, EventKind::Unreachable, -libc::ETIMEDOUT);
            }
        }
        false
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.due.first()
    }

    /// Data may arrive before the consumer knows of the connection; nothing depends on that.
    fn on_established(&mut self, _: Qpn) {}

    fn on_addresses(&mut self, gids: &[GidEntry]) {
        let is_gone = gids.iter().all(GidEntry::is_empty);
        if is_gone && !self.is_gone {
            let all = self.conns.values().map(|conn| &conn.id);
            let all = all.chain(self.listeners.values().map(|listening| &listening.id));
            let once: BTreeMap<u64, &Arc<Shared>> = all.map(|id| (id.number, id)).collect();
            for id in once.into_values() {
                self.tell(Queued::new(EventKind::DeviceRemoval, id, 0));
            }
        }
        self.is_gone = is_gone;
    }

    /// The kernel closes the streams when the process has exited, and so tells every peer.
    fn leave(&mut self, _: Instant) {}

    fn connections(&self) -> Vec<ConnectionSnapshot> {
        let all = self.conns.values().map(|conn| &conn.id);
        let all = all.chain(self.listeners.values().map(|listening| &listening.id));
        // An id may listen at several addresses.
        let once: BTreeMap<u64, &Arc<Shared>> = all.map(|id| (id.number, id)).collect();
        once.into_values().map(|id| id.snapshot()).collect()
    }

    fn awaits_confirmation(&self) -> bool {
        false
    }

    fn on_stream(&mut self, engine: &mut Engine, now: Instant, event: StreamInput<'_>) {
        match event {
            TcpEvent::Accepted { listener, stream, local, peer, mss } => {
                self.on_accepted(now, listener, stream, (local, peer), mss);
            }
            TcpEvent::Connected { stream, local, mss } => {
                self.on_connected(engine, now, stream, local, mss);
            }
            TcpEvent::Failed { stream, error } => self.on_failed(engine, now, stream, &error),
            TcpEvent::Data { stream, bytes } => self.on_data(engine, now, stream, bytes),
            TcpEvent::Ended { stream, error } => {
                self.on_end(engine, now, stream, error.is_some());
            }
            TcpEvent::Sent { .. } | TcpEvent::Where { .. } | TcpEvent::Landed { .. } => {}
        }
    }

    fn on_stream_end(&mut self, _: Instant, event: StreamEvent) {
        let Some(stream) = self.of_qp.remove(&event.qpn) else { return };
        let Some(conn) = self.take_conn(stream) else { return };
        let mut inner = conn.id.lock();
        (inner.stage, inner.stream) = (Stage::Over, None);
        drop(inner);
        let status = match event.end {
            StreamEnd::Cut => -libc::ECONNRESET,
            StreamEnd::Stalled => -libc::ETIMEDOUT,
            StreamEnd::Terminated(_) | StreamEnd::PeerTerminated(_) | StreamEnd::Closed => 0,
        };
        self.tell(Queued::new(EventKind::Disconnected, &conn.id, status));
    }

    fn counters(&self) -> LinkCounters {
        self.counters.list()
    }

    fn take_stream_orders(&mut self) -> Vec<StreamOrder> {
        std::mem::take(&mut self.orders)
    }
}

/// Events of streams that no queue pair has yet.
impl IwarpService {
    pub(super) fn new(
        config: HandshakeConfig,
        device: Weak<SoftAdapter>,
        wakes: Arc<Wakes>,
    ) -> Self {
        Self {
            config,
            device,
            conns: BTreeMap::new(),
            of_qp: BTreeMap::new(),
            half_open: BTreeMap::new(),
            leaving: BTreeSet::new(),
            due: Deadlines::default(),
            listeners: BTreeMap::new(),
            orders: Vec::new(),
            counters: Counters::default(),
            is_gone: false,
            wakes,
        }
    }

    /// The connection manager of a device and its engine, if the device speaks iWARP and has one.
    pub(super) fn of(state: &mut State) -> Option<(&mut Self, &mut Engine)> {
        state.agent_and_engine()
    }

    /// Removes a connection, and its deadline.
    fn take_conn(&mut self, stream: StreamId) -> Option<Conn> {
        self.due.remove(stream);
        self.conns.remove(&stream)
    }

    /// Removes a peer that has not sent its request, and its deadline.
    fn take_half_open(&mut self, stream: StreamId) -> Option<HalfOpen> {
        self.due.remove(stream);
        self.half_open.remove(&stream)
    }

    /// Appends an event to the queue of its consumer, which is woken after the device's lock is
    /// released.
    fn tell(&self, event: Queued) {
        let queue = queue_of(&event);
        queue.append(event);
        self.wakes.add(queue);
    }

    fn on_accepted(
        &mut self,
        now: Instant,
        listener: TcpListenId,
        stream: StreamId,
        (local, peer): (SocketAddr, SocketAddr),
        mss: usize,
    ) {
        if !self.listeners.contains_key(&listener) {
            return self.orders.push(StreamOrder::Finish(stream));
        }
        if self.half_open.len() >= MAX_HALF_OPEN
            && let Some((oldest, _)) = self.half_open.pop_first()
        {
            self.counters.crowded_out += 1;
            self.due.remove(oldest);
            self.orders.push(StreamOrder::Finish(oldest));
        }
        let responder = Responder::new(self.config.with_mss(mss));
        self.half_open.insert(stream, HalfOpen { listener, local, peer, responder });
        self.due.set(stream, now.plus_nanos(REQUEST_NS));
    }

    fn on_connected(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        stream: StreamId,
        local: SocketAddr,
        mss: usize,
    ) {
        let config = self.config.with_mss(mss);
        let Some(conn) = self.conns.get_mut(&stream) else {
            return self.orders.push(StreamOrder::Finish(stream));
        };
        let Phase::Connecting(asking) = &mut conn.phase else { return };
        let Asking { qpn, ird, ord, private_data } = std::mem::take(asking);
        let config = HandshakeConfig { ird, ord, ..config };
        match Initiator::new(config, &private_data) {
            Ok((initiator, request)) => {
                conn.phase = Phase::AwaitingReply(initiator, qpn);
                self.due.set(stream, now.plus_nanos(REPLY_NS));
                conn.id.lock().local = Some(local);
                self.orders.push(StreamOrder::Send(stream, request));
            }
            // The call that connects has checked the length.
            Err(_) => self.fail(engine, now, stream, EventKind::ConnectError, -libc::EINVAL),
        }
    }

    /// The TCP connection cannot be made.
    fn on_failed(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        stream: StreamId,
        error: &io::Error,
    ) {
        let (kind, status) = event_of(error);
        self.fail(engine, now, stream, kind, status);
    }

    fn on_data(&mut self, engine: &mut Engine, now: Instant, stream: StreamId, mut bytes: &[u8]) {
        if let Some(peer) = self.half_open.get_mut(&stream) {
            match peer.responder.handle(&mut bytes) {
                Ok(None) => {}
                // An initiator waits for the reply before it sends anything else.
                Ok(Some(request)) if bytes.is_empty() => self.on_request(stream, request),
                refused => {
                    match refused {
                        Err(error) => self.counters.refuse(&error),
                        Ok(_) => self.counters.early_data += 1,
                    }
                    self.take_half_open(stream);
                    self.orders.push(StreamOrder::Finish(stream));
                }
            }
            return;
        }
        let Some(conn) = self.conns.get_mut(&stream) else { return };
        let (initiator, qpn) = match &mut conn.phase {
            Phase::AwaitingReply(initiator, qpn) => (initiator, *qpn),
            // The driver has not carried out the order to attach it yet.
            Phase::Connected(qpn) => {
                engine.handle_stream(now, *qpn, bytes);
                return;
            }
            Phase::Connecting(_) | Phase::Requested(..) => return,
        };
        match initiator.handle(&mut bytes) {
            Ok(None) => {}
            Ok(Some(Reply::Accepted { setup, private_data })) => {
                if self.on_reply(engine, now, (stream, qpn), &setup, private_data) {
                    engine.handle_stream(now, qpn, bytes);
                }
            }
            Ok(Some(Reply::Rejected { private_data })) => {
                let (kind, status) = (EventKind::Rejected, -libc::ECONNRESET);
                self.fail_with(engine, now, stream, |id| Queued {
                    private_data,
                    ..Queued::new(kind, id, status)
                });
            }
            Err(e) => {
                self.counters.refuse(&e);
                self.wakes.warn(format_args!("iWARP connection: {e}"));
                self.fail(engine, now, stream, EventKind::ConnectError, -libc::EINVAL);
            }
        }
    }

    /// The peer has accepted. False: the queue pair cannot be brought up; it may have another
    /// stream.
    fn on_reply(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        (stream, qpn): (StreamId, Qpn),
        setup: &StreamSetup,
        private_data: Vec<u8>,
    ) -> bool {
        if let Err(e) = attach(engine, now, qpn, setup) {
            self.wakes.warn(format_args!("{qpn:?} cannot be brought up: {e}"));
            self.fail(engine, now, stream, EventKind::ConnectError, -libc::EINVAL);
            return false;
        }
        self.connected(now, (stream, qpn), setup, private_data);
        true
    }

    /// A connection is there: its stream is the queue pair's from now on.
    fn connected(
        &mut self,
        now: Instant,
        (stream, qpn): (StreamId, Qpn),
        setup: &StreamSetup,
        private_data: Vec<u8>,
    ) {
        self.orders.push(StreamOrder::Attach(stream, qpn));
        self.of_qp.insert(qpn, stream);
        let Some(conn) = self.conns.get_mut(&stream) else { return };
        let has_asked = !matches!(setup.begin, Begin::Await(_));
        conn.phase = Phase::Connected(qpn);
        match REMIND_NS.first().filter(|_| has_asked) {
            Some(ns) => self.due.set(stream, now.plus_nanos(*ns)),
            None => self.due.remove(stream),
        }
        let id = Arc::clone(&conn.id);
        id.lock().stage = Stage::Connected;
        let reads = |n: u16| u8::try_from(n).unwrap_or(u8::MAX);
        let conn = Some(ConnParam {
            private_data: private_data.clone(),
            responder_resources: reads(setup.ird),
            initiator_depth: reads(setup.ord),
            flow_control: false,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: false,
            qpn: Qpn::default(),
        });
        self.tell(Queued { conn, private_data, ..Queued::new(EventKind::Established, &id, 0) });
    }

    /// The peer of a connection is silent: announces this end to it once more if it has connected,
    /// and lets it send if it has accepted. False: the stream is not connected yet.
    fn remind(&mut self, engine: &mut Engine, now: Instant, stream: StreamId) -> bool {
        let Some(conn) = self.conns.get_mut(&stream) else { return false };
        let Phase::Connected(qpn) = conn.phase else { return false };
        engine.stop_waiting(now, qpn);
        let is_silent = engine.announce_again(now, qpn);
        conn.reminders += 1;
        if let Some(ns) = REMIND_NS.get(conn.reminders).filter(|_| is_silent) {
            self.due.set(stream, now.plus_nanos(*ns));
        }
        true
    }

    /// A peer asks for a connection: makes its id, and tells the listener.
    fn on_request(&mut self, stream: StreamId, request: Request) {
        let Some(HalfOpen { listener, local, peer, .. }) = self.take_half_open(stream) else {
            return;
        };
        let Some(listening) = self.listeners.get_mut(&listener) else {
            return self.orders.push(StreamOrder::Finish(stream));
        };
        listening.unanswered += 1;
        if listening.unanswered >= listening.backlog {
            self.orders.push(StreamOrder::Accept(listener, false));
        }
        let asked = Arc::clone(&listening.id);
        let queue = Arc::clone(&asked.lock().queue);
        let id =
            Shared::new(next_number(), (PortSpace::Tcp, false), queue, Weak::clone(&self.device));
        // The first revision of MPA says nothing about READs: the limits of this end apply.
        let (peer_ird, peer_ord) = request.reads().unwrap_or((u16::MAX, u16::MAX));
        let reads = |n: u16| u8::try_from(n).unwrap_or(u8::MAX);
        let private_data = request.private_data().to_vec();
        let offer = ConnParam {
            private_data: private_data.clone(),
            responder_resources: reads(peer_ord.min(self.config.ird)),
            initiator_depth: reads(peer_ird.min(self.config.ord)),
            ..ConnParam::default()
        };
        {
            let mut inner = id.lock();
            inner.stage = Stage::Requested;
            inner.stream = Some(stream);
            (inner.local, inner.peer) = (Some(local), Some(peer));
            inner.offer = Some(offer.clone());
        }
        // What the peer sends before it is accepted waits in TCP.
        self.orders.push(StreamOrder::Read(stream, false));
        let phase = Phase::Requested(request, listener);
        self.conns.insert(stream, Conn { id: Arc::clone(&id), phase, reminders: 0 });
        self.tell(Queued {
            listener: Some((asked, None)),
            conn: Some(offer),
            private_data,
            ..Queued::new(EventKind::ConnectRequest, &id, 0)
        });
    }

    /// The peer has closed the stream before there was a connection, or it broke.
    fn on_end(&mut self, engine: &mut Engine, now: Instant, stream: StreamId, is_broken: bool) {
        if self.leaving.remove(&stream) {
            self.due.remove(stream);
            return self.orders.push(StreamOrder::Finish(stream));
        }
        if self.take_half_open(stream).is_some() {
            self.counters.cut += 1;
            return self.orders.push(StreamOrder::Finish(stream));
        }
        let phase = self.conns.get(&stream).map(|conn| &conn.phase);
        if let Some(Phase::Connected(qpn)) = phase {
            // The driver has not carried out the order to attach it yet.
            return engine.handle_stream_end(now, *qpn, is_broken);
        }
        self.counters.cut += u64::from(matches!(phase, Some(Phase::AwaitingReply(..))));
        self.fail(engine, now, stream, EventKind::Rejected, -libc::ECONNRESET);
    }

    /// A connection does not come about.
    fn fail(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        stream: StreamId,
        kind: EventKind,
        status: i32,
    ) {
        self.fail_with(engine, now, stream, |id| Queued::new(kind, id, status));
    }

    /// The same, with this event: flushes the requests posted on the queue pair.
    fn fail_with(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        stream: StreamId,
        event: impl FnOnce(&Arc<Shared>) -> Queued,
    ) {
        self.orders.push(StreamOrder::Finish(stream));
        let Some(conn) = self.take_conn(stream) else { return };
        self.answered(&conn.phase);
        let mut inner = conn.id.lock();
        (inner.stage, inner.stream) = (Stage::Over, None);
        let qp = inner.qp;
        drop(inner);
        if let Some(qp) = qp {
            let _ = engine.modify_qp(now, qp.qpn, &QpAttr::to(QpState::Err));
        }
        self.tell(event(&conn.id));
    }

    /// A request does not wait any more: its listener may have room again.
    fn answered(&mut self, phase: &Phase) {
        let Phase::Requested(_, listener) = phase else { return };
        let Some(listening) = self.listeners.get_mut(listener) else { return };
        if listening.unanswered == listening.backlog {
            self.orders.push(StreamOrder::Accept(*listener, true));
        }
        listening.unanswered = listening.unanswered.saturating_sub(1);
    }
}

/// The event that tells why a TCP connection could not be made, as Linux tells it.
fn event_of(error: &io::Error) -> (EventKind, i32) {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let kind = match errno {
        libc::ECONNREFUSED | libc::ECONNRESET => EventKind::Rejected,
        libc::ETIMEDOUT => EventKind::Unreachable,
        _ => EventKind::ConnectError,
    };
    (kind, -errno)
}

/// Brings a queue pair up on what two ends have agreed on.
fn attach(
    engine: &mut Engine,
    now: Instant,
    qpn: Qpn,
    setup: &StreamSetup,
) -> Result<(), ModifyQpError> {
    // Atomics are refused before rights are looked at, unless the extensions are configured.
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    engine.modify_qp(now, qpn, &QpAttr::init(access))?;
    engine.attach_stream(now, qpn, setup)
}
