//! Messages of unknown senders cost bounded memory and do not disturb connections.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use crate::common;
use crate::common::{A, B, Side, rep, req};
use feroce_cm::{Accepts, Config, Event, Peer, Serves};
use feroce_wire::Gid;
use feroce_wire::cm::{CmMessage, CommId, Dreq, RejReason, Req, Rtu, ServiceId};
use feroce_wire::{Qpn, mad::MAD_LEN};

/// A REQ from the unknown sender number `n`.
fn stranger(n: u32) -> (Peer, Req) {
    let gid = Gid::from_ipv4((0xac10_0000 | n >> 4).to_be_bytes());
    let mut req = req(n + 1, n + 2);
    req.primary.local_gid = gid;
    (Peer::new(B, gid), req)
}

#[test]
fn a_request_beyond_the_backlog_is_left_to_retries() {
    let mut side = Side::new(B);
    let listener = side
        .manager
        .listen(side.now, common::SERVICE, Accepts::Any, Serves::Connections, 2)
        .unwrap();
    for n in 0..3 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
    }
    assert_eq!(side.events().len(), 2);
    assert_eq!(side.sent(), []);
    assert_eq!(side.manager.counters().drop_backlog_full, 1);
    // When the consumer has taken one request, the backlog has room for the peer's next try.
    side.manager.taken(listener);
    let (from, req) = stranger(2);
    side.receive_from(from, &CmMessage::Req(req));
    assert_eq!(side.events().len(), 1);
}

#[test]
fn requests_that_nobody_confirms_are_bounded() {
    let config = Config { max_half_open: 50, answers_per_second: 100, ..Config::default() };
    let mut side = Side::with(B, config);
    side.manager
        .listen(side.now, common::SERVICE, Accepts::Any, Serves::Connections, u32::MAX)
        .unwrap();
    for n in 0..1000 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
    }
    assert_eq!(side.manager.len(), 50);
    assert_eq!(side.events().len(), 50);
    assert_eq!(side.manager.counters().drop_half_open_full, 950);
}

/// A flood of REQs, each from another address, to a consumer that accepts all of them.
struct Flood {
    side: Side,
    random: fastrand::Rng,
    sent: u32,
}

impl Flood {
    fn new(config: Config) -> Self {
        let mut side = Side::with(B, Config { probe_ns: 200_000_000, ..config });
        side.manager
            .listen(side.now, common::SERVICE, Accepts::Any, Serves::Connections, u32::MAX)
            .unwrap();
        Self { side, random: fastrand::Rng::with_seed(6), sent: 0 }
    }

    /// One millisecond with three forged REQs from `source`, or from anywhere.
    fn millisecond(&mut self, source: Option<Gid>) {
        self.side.now = self.side.now.plus_nanos(1_000_000);
        self.side.manager.handle_timeout(self.side.now);
        for _ in 0..3 {
            self.sent += 1;
            let (from, req) = forged(source, self.sent, &mut self.random);
            self.side.receive_from(from, &CmMessage::Req(req));
        }
        self.serve();
    }

    /// The consumer accepts what there is. Returns what was sent.
    fn serve(&mut self) -> Vec<feroce_cm::Transmit> {
        for event in self.side.events() {
            if let Event::Request(incoming) = event {
                self.side.manager.taken(incoming.listener);
                let accept = feroce_cm::Accept { qpn: Qpn::new(0x31), ..Default::default() };
                self.side.manager.accept(self.side.now, incoming.conn, &accept).unwrap();
            }
        }
        std::iter::from_fn(|| self.side.manager.poll_mad()).collect()
    }

    /// Whether a client that exists connects, given 20 ms for REP and RTU.
    fn client_connects(&mut self, n: u32, source: Option<Gid>) -> bool {
        let gid = Gid::from_ipv4([10, 77, 1, n as u8]);
        let mut request = req(n + 1, n + 2);
        request.primary.local_gid = gid;
        let from = Peer::new(B, gid);
        self.side.receive_from(from, &CmMessage::Req(request));
        let is_rep = |mad: &feroce_cm::Transmit| match CmMessage::parse(&mad.bytes).unwrap().1 {
            CmMessage::Rep(rep) if mad.peer.remote.gid == gid => Some(rep.local_id),
            _ => None,
        };
        let Some(remote_id) = self.serve().iter().find_map(is_rep) else { return false };
        (0..20).for_each(|_| self.millisecond(source));
        let rtu = Rtu { local_id: request.local_id, remote_id, private_data: [0; 224] };
        self.side.receive_from(from, &CmMessage::Rtu(rtu));
        let established = |event: &Event| match event {
            Event::Established { conn } => conn.comm_id() == remote_id,
            _ => false,
        };
        self.side.events().iter().any(established)
    }
}

/// A forged REQ from `source`, or from anywhere.
fn forged(source: Option<Gid>, n: u32, random: &mut fastrand::Rng) -> (Peer, Req) {
    let gid = source
        .unwrap_or_else(|| Gid::from_ipv4((0xac10_0000 | random.u32(..1 << 20)).to_be_bytes()));
    let mut req = *TEMPLATE.get_or_init(|| req(1, 2));
    (req.local_id, req.qpn) = (CommId(0x10_0000 + n), Qpn::new(random.u32(2..)));
    req.primary.local_gid = gid;
    (Peer::new(B, gid), req)
}

static TEMPLATE: std::sync::OnceLock<Req> = std::sync::OnceLock::new();

/// 3000 forged REQs per second, as long as it takes until all places are taken several times.
#[test]
fn clients_connect_during_a_flood() {
    for source in [None, Some(Gid::from_ipv4([10, 66, 6, 6]))] {
        let mut flood = Flood::new(Config::default());
        (0..4000).for_each(|_| flood.millisecond(source));
        let connected = (0..20).filter(|&n| {
            (0..100).for_each(|_| flood.millisecond(source));
            flood.client_connects(n, source)
        });
        assert_eq!(connected.count(), 20);
        let limits = flood.side.manager.config();
        let most = match source {
            None => limits.max_half_open_per_listener,
            Some(_) => limits.max_half_open_per_source,
        };
        assert!(flood.side.manager.len() <= most + 20, "{}", flood.side.manager.len());
        let counters = flood.side.manager.counters();
        assert!(counters.half_open_evicted > 0 && counters.answers_withheld == 0);
    }
}

/// Requests from one address do not take the places of others, and requests for one listener do not
/// take those of other listeners.
#[test]
fn a_flood_leaves_room_for_other_listeners_and_sources() {
    let limits = Config {
        max_half_open: 60,
        max_half_open_per_listener: 50,
        max_half_open_per_source: 10,
        ..Config::default()
    };
    let mut flood = Flood::new(limits);
    // None of the forged requests is old enough to make room.
    let one = Some(Gid::from_ipv4([10, 66, 6, 6]));
    (0..20).for_each(|_| flood.millisecond(one));
    assert!(flood.client_connects(0, one), "one source does not take all places");
    (0..20).for_each(|_| flood.millisecond(None));
    let counters = *flood.side.manager.counters();
    assert!(counters.drop_half_open_full > 0 && counters.half_open_evicted == 0);
    assert!(!flood.client_connects(1, None), "all places of the listener are taken");
    let other = ServiceId(common::SERVICE.0 ^ 1);
    flood.side.manager.listen(flood.side.now, other, Accepts::Any, Serves::Connections, 8).unwrap();
    let (from, req) = forged(None, 0, &mut flood.random);
    flood.side.receive_from(from, &CmMessage::Req(Req { service_id: other, ..req }));
    assert!(matches!(flood.side.events().as_slice(), [Event::Request(_)]));
}

/// What the manager sends to an address from which one forged REQ came, for ever.
fn answers(config: Config, consumer: impl Fn(&mut Side, feroce_cm::ConnId)) -> usize {
    let mut side = Side::with(B, config);
    side.listen();
    let (from, req) = stranger(5);
    side.receive_from(from, &CmMessage::Req(req));
    let conn = side.request();
    consumer(&mut side, conn);
    let mut sent = side.sent().len();
    while side.manager.poll_timeout().is_some() {
        side.tick();
        sent += side.sent().len();
        let events = side.events();
        // The consumer destroys what has ended.
        for event in events.iter().filter(|event| event.is_final()) {
            side.manager.destroy(side.now, event.conn());
        }
    }
    assert!(side.manager.is_empty());
    sent
}

#[test]
fn one_forged_request_draws_three_answers_at_most() {
    let accept = |side: &mut Side, conn| {
        let accept = feroce_cm::Accept { qpn: Qpn::new(0x31), ..Default::default() };
        side.manager.accept(side.now, conn, &accept).unwrap();
    };
    for probe_ns in [0, 200_000_000] {
        let config = || Config { probe_ns, ..Config::default() };
        assert_eq!(answers(config(), accept), 3);
        let late = |side: &mut Side, conn| {
            accept(side, conn);
            (0..2).for_each(|_| side.tick());
        };
        let disconnects = |side: &mut Side, conn| {
            late(side, conn);
            side.manager.disconnect(side.now, conn).unwrap();
        };
        assert_eq!(answers(config(), disconnects), 3);
        let destroys = |side: &mut Side, conn| {
            late(side, conn);
            side.manager.destroy(side.now, conn);
        };
        assert_eq!(answers(config(), destroys), 3);
        let at_once = |side: &mut Side, conn| {
            accept(side, conn);
            side.manager.disconnect(side.now, conn).unwrap();
        };
        assert_eq!(answers(config(), at_once), 3);
        let rejects = |side: &mut Side, conn| {
            side.manager.reject(side.now, conn, RejReason::CONSUMER, &[0; 148]).unwrap();
        };
        assert_eq!(answers(config(), rejects), 1);
    }
}

/// Several requests in the name of one address draw no more, each, than one does; a copy of a
/// request draws one answer.
#[test]
fn answers_are_in_proportion_to_what_was_forged() {
    const REQUESTS: u32 = 10;
    const COPIES: usize = 4;
    let mut side = Side::with(B, Config { probe_ns: 200_000_000, ..Config::default() });
    side.manager
        .listen(side.now, common::SERVICE, Accepts::Any, Serves::Connections, u32::MAX)
        .unwrap();
    let (from, first) = stranger(5);
    let mut sent = 0;
    for n in 0..REQUESTS {
        let (local_id, qpn) = (CommId(0x100 + n), Qpn::new(0x100 + n));
        for copy in 0..=COPIES {
            side.receive_from(from, &CmMessage::Req(Req { local_id, qpn, ..first }));
            if copy == 0 {
                let conn = side.request();
                let accept = feroce_cm::Accept { qpn: Qpn::new(0x31), ..Default::default() };
                side.manager.accept(side.now, conn, &accept).unwrap();
            }
            sent += side.sent().len();
        }
    }
    assert_eq!(sent, REQUESTS as usize * (1 + COPIES));
    while side.manager.poll_timeout().is_some() {
        side.tick();
        sent += side.sent().len();
        let events = side.events();
        for event in events.iter().filter(|event| event.is_final()) {
            side.manager.destroy(side.now, event.conn());
        }
    }
    assert_eq!(sent, REQUESTS as usize * (3 + COPIES));
}

/// A peer that repeats its REQ gets an answer each time, and one that has answered is not limited.
#[test]
fn peers_that_exist_get_their_answers() {
    let mut side = Side::new(B);
    side.listen();
    let (from, req) = stranger(5);
    side.receive_from(from, &CmMessage::Req(req));
    let conn = side.request();
    side.accept(conn);
    (0..6).for_each(|_| side.tick());
    assert_eq!(side.names(), ["REP", "REP"]);
    for _ in 0..5 {
        side.receive_from(from, &CmMessage::Req(req));
        assert_eq!(side.names(), ["REP"]);
    }
    let (local_id, remote_id) = (req.local_id, conn.comm_id());
    side.receive_from(from, &CmMessage::Rtu(Rtu { local_id, remote_id, private_data: [0; 224] }));
    side.events();
    side.receive_from(
        from,
        &CmMessage::Req(Req { local_id: CommId(77), qpn: Qpn::new(77), ..req }),
    );
    let second = side.request();
    side.accept(second);
    (0..6).for_each(|_| side.tick());
    assert_eq!(side.names(), ["REP"; 6]);
}

#[test]
fn answers_to_strangers_are_rationed() {
    let config = Config { answers_per_second: 1000, ..Config::default() };
    let mut side = Side::with(B, config);
    for n in 0..5000 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
    }
    let sent = side.sent();
    assert_eq!(sent.len(), 100);
    assert!(sent.iter().all(|m| m.name() == "REJ"));
    assert_eq!(side.manager.counters().drop_answer_rate, 4900);
    assert_eq!(side.manager.counters().refused_no_listener, 5000);
    assert!(side.manager.is_empty());
}

#[test]
fn what_is_remembered_is_bounded_and_its_end_is_told() {
    let config = Config { max_remembered: 10, ..Config::default() };
    let mut side = Side::with(B, config);
    side.manager
        .listen(side.now, common::SERVICE, Accepts::Any, Serves::Connections, u32::MAX)
        .unwrap();
    let mut ended = Vec::new();
    for n in 0..30 {
        let (from, req) = stranger(n);
        side.receive_from(from, &CmMessage::Req(req));
        let conn = side.request();
        side.accept(conn);
        let (local_id, remote_id) = (req.local_id, conn.comm_id());
        let (remote_qpn, private_data) = (Qpn::new(0x31), [0; 220]);
        let dreq = Dreq { local_id, remote_id, remote_qpn, private_data };
        side.receive_from(from, &CmMessage::Dreq(dreq));
        assert_eq!(side.names(), ["DREP"]);
        for event in side.events() {
            match event {
                Event::Disconnected { conn: over, .. } => assert_eq!(over, conn),
                Event::TimewaitExit { conn } => ended.push(conn),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((side.manager.len(), ended.len()), (10, 20));
    assert_eq!(side.manager.counters().forgotten_early, 20);
}

#[test]
fn a_flood_leaves_connections_alone() {
    let mut side = Side::new(A);
    side.manager.listen(side.now, ServiceId(9), Accepts::Any, Serves::Connections, 4).unwrap();
    let (conn, request) = side.connect();
    side.receive(&CmMessage::Rep(rep(0x55, &request)));
    side.manager.ready(conn).unwrap();
    let (_, _) = (side.sent(), side.events());
    let mut random = fastrand::Rng::with_seed(5);
    let mut bytes = [0; MAD_LEN];
    for round in 0..20_000_u32 {
        random.fill(&mut bytes);
        // All have a valid header, and every third names the connection.
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, 0x10 + (round % 11) as u8]);
        if round % 3 == 0 {
            bytes[28..32].copy_from_slice(&request.local_id.0.to_be_bytes());
        }
        let stranger = Peer::new(A, Gid::from_ipv4([10, 0, 0, round as u8]));
        side.manager.handle_mad(side.now, stranger, &bytes);
        // The peer itself sends messages whose communication IDs are not those of the connection.
        if CommId(u32::from_be_bytes(bytes[24..28].try_into().unwrap())) != CommId(0x55)
            && bytes[17] != 0x12
            && bytes[17] != 0x16
        {
            side.manager.handle_mad(side.now, common::peer(A), &bytes);
        }
        side.manager.handle_mad(side.now, stranger, &bytes[..round as usize % MAD_LEN]);
    }
    assert_eq!(side.manager.state(conn), Some("Established"));
    assert_eq!(side.manager.len(), 1);
    assert_eq!(side.events(), []);
    let counters = side.manager.counters();
    let answered = counters.sent + counters.drop_answer_rate + counters.drop_queue_full;
    assert!(answered < counters.received);
}
