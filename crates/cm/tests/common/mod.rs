//! A manager whose peer is a script.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_cm::rdma::{PortSpace, connect_data};
use feroce_cm::{Accept, Accepts, Config, ConnId, Connect, Event, ListenId, Manager, Peer, Serves};
use feroce_train::Instant;
use feroce_wire::cm::{CmMessage, CommId, Rep, Req, ServiceId};
use feroce_wire::{Gid, Psn, Qkey, Qpn};

pub const A: Gid = Gid::from_ipv4([10, 77, 0, 1]);
pub const B: Gid = Gid::from_ipv4([10, 77, 0, 2]);
pub const SERVICE: ServiceId = ServiceId::ip(PortSpace::Tcp, 7471);

/// The peer of the side at `local`.
pub fn peer(local: Gid) -> Peer {
    Peer::new(local, if local == A { B } else { A })
}

/// One manager, its clock, and a script that sends the messages of the other side.
pub struct Side {
    pub manager: Manager,
    pub now: Instant,
    pub gid: Gid,
}

impl Side {
    pub fn new(gid: Gid) -> Self {
        Self::with(gid, Config { seed: 7, ca_guid: 0x1234, ..Config::default() })
    }

    pub fn with(gid: Gid, config: Config) -> Self {
        Self { manager: Manager::new(config), now: Instant::from_nanos(1_000_000_000), gid }
    }

    pub fn listen(&mut self) -> ListenId {
        self.manager.listen(self.now, SERVICE, Accepts::Any, Serves::Connections, 8).unwrap()
    }

    /// Requests a connection and returns the REQ that was sent.
    pub fn connect(&mut self) -> (ConnId, Req) {
        let conn = self.manager.connect(self.now, &connect(self.gid, Qpn::new(0x21)));
        match self.sent().as_slice() {
            [CmMessage::Req(req)] => (conn, *req),
            other => panic!("{other:?}"),
        }
    }

    /// Accepts with queue pair 0x31.
    pub fn accept(&mut self, conn: ConnId) -> Rep {
        let accept = Accept { qpn: Qpn::new(0x31), ..Accept::default() };
        self.manager.accept(self.now, conn, &accept).unwrap();
        match self.sent().as_slice() {
            [CmMessage::Rep(rep)] => *rep,
            other => panic!("{other:?}"),
        }
    }

    pub fn receive(&mut self, message: &CmMessage) {
        self.receive_from(peer(self.gid), message);
    }

    pub fn receive_from(&mut self, from: Peer, message: &CmMessage) {
        self.manager.handle_mad(self.now, from, &message.emit(0x99));
    }

    /// Messages sent since the last call.
    pub fn sent(&mut self) -> Vec<CmMessage> {
        std::iter::from_fn(|| self.manager.poll_mad())
            .map(|mad| CmMessage::parse(&mad.bytes).unwrap().1)
            .collect()
    }

    pub fn names(&mut self) -> Vec<&'static str> {
        self.sent().iter().map(CmMessage::name).collect()
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.manager.poll_event()).collect()
    }

    /// The connection of the request event, which must have been reported.
    pub fn request(&mut self) -> ConnId {
        match self.events().as_slice() {
            [Event::Request(incoming)] => incoming.conn,
            other => panic!("{other:?}"),
        }
    }

    /// Moves time to the next deadline.
    pub fn tick(&mut self) {
        if let Some(at) = self.manager.poll_timeout() {
            self.now = at;
            self.manager.handle_timeout(at);
        }
    }

    /// Advances time until the manager reports an event; returns the events, and the names of the
    /// messages sent meanwhile.
    pub fn until_told(&mut self) -> (Vec<Event>, Vec<&'static str>) {
        let mut sent = Vec::new();
        for _ in 0..1000 {
            let events = self.events();
            if !events.is_empty() {
                return (events, sent);
            }
            sent.extend(self.names());
            self.tick();
        }
        panic!("nothing is told");
    }
}

pub fn connect(local: Gid, qpn: Qpn) -> Connect {
    let ip = feroce_cm::rdma::ip_of;
    let peer = peer(local);
    let (src, dst) = ((ip(peer.local.gid), 40_000).into(), (ip(peer.remote.gid), 7471).into());
    Connect {
        peer,
        service: SERVICE,
        qpn,
        responder_resources: 3,
        initiator_depth: 5,
        private_data: connect_data(src, dst, b"hello").unwrap(),
        ..Connect::default()
    }
}

/// A request as a peer at A sends it.
pub fn req(id: u32, qpn: u32) -> Req {
    let mut side = Side::new(A);
    side.manager.connect(side.now, &connect(A, Qpn::new(qpn)));
    match side.sent().as_slice() {
        [CmMessage::Req(req)] => Req { local_id: CommId(id), ..*req },
        other => panic!("{other:?}"),
    }
}

/// An answer as a peer at B sends it.
pub fn rep(id: u32, to: &Req) -> Rep {
    Rep {
        local_id: CommId(id),
        remote_id: to.local_id,
        qkey: Qkey(0),
        qpn: Qpn::new(0x31),
        eecn: 0,
        psn: Psn::new(77),
        responder_resources: 4,
        initiator_depth: 2,
        target_ack_delay: 15,
        failover: 0,
        flow_control: false,
        rnr_retry: 6,
        srq: false,
        ca_guid: 5,
        private_data: [9; 196],
    }
}
