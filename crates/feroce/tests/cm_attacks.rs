//! What a host on the network cannot do to the connections of others, though it may send packets
//! with any address.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::net::Ipv4Addr;

use crate::netns::{Cable, ip, with_cable};
use crate::warnings;
use feroce::QpState;
use feroce::cm::{ConnParam, Connection, EventChannel, EventKind, Listener, Manager};
use feroce_cm::rdma::{PortSpace, connect_data};
use feroce_cm::{Cause, Config, ConnId, Connect, Event, Peer};
use feroce_link::{Carrier, IcrcPolicy, UdpConfig, UdpLink, Verified};
use feroce_train::{Instant, Path, Single};
use feroce_wire::cm::{CmMessage, ServiceId};
use feroce_wire::{
    Bth, Deth, Exts, Gid, Op, Opcode, Packet, Psn, Qkey, Qpn, Service, mad::MAD_LEN,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const QKEY: Qkey = Qkey(0x8001_0000);

/// A host without an adapter: a connection manager that sends and receives its datagrams itself.
struct Script {
    link: Verified<UdpLink>,
    manager: feroce_cm::Manager,
    /// Advances with every step.
    now: Instant,
}

impl Script {
    /// One at `addr`.
    fn new(addr: Gid, seed: u64) -> Self {
        Self::with(UdpConfig::default(), &[addr], seed)
    }

    /// One that only sends: an attacker with the addresses of others.
    fn attacker(addresses: &[Gid], seed: u64) -> Self {
        Self::with(UdpConfig { listen: false, flows: 1, ..UdpConfig::default() }, addresses, seed)
    }

    fn with(config: UdpConfig, addresses: &[Gid], seed: u64) -> Self {
        let link = UdpLink::new(config, addresses).unwrap();
        // It gives up long before a request that was answered in vain does.
        let config = Config { seed, probe_ns: 200_000_000, max_retries: 2, ..Config::default() };
        Self {
            link: Verified::new(link, IcrcPolicy::Strict),
            manager: feroce_cm::Manager::new(config),
            now: Instant::from_nanos(1),
        }
    }

    /// The host is restarted: it has forgotten its connections.
    fn restart(&mut self, seed: u64) {
        self.manager = feroce_cm::Manager::new(Config { seed, ..self.manager.config().clone() });
    }

    /// Requests a connection of queue pair `qpn` to a port.
    fn connect(&mut self, from: [u8; 4], to: [u8; 4], port: u16, qpn: u32) -> ConnId {
        let peer = Peer::new(Gid::from_ipv4(from), Gid::from_ipv4(to));
        let (src, dst) = ((Ipv4Addr::from(from), 40_000).into(), (Ipv4Addr::from(to), port).into());
        let service = ServiceId::ip(PortSpace::Tcp, port);
        let private_data = connect_data(src, dst, b"hello").unwrap();
        let qpn = Qpn::new(qpn);
        let connect = Connect { peer, service, qpn, private_data, ..Connect::default() };
        let conn = self.manager.connect(self.now, &connect);
        self.send();
        conn
    }

    /// Sends what the manager wants to send.
    fn send(&mut self) {
        while let Some(mad) = self.manager.poll_mad() {
            let bth = Bth::new(Opcode::new(Service::Ud, Op::SendOnly), Qpn::QP1, Psn::new(0));
            let exts = Exts { deth: Some(Deth { qkey: QKEY, src_qp: Qpn::QP1 }), ..Exts::NONE };
            let mut bytes = [0; Bth::LEN + Deth::LEN + MAD_LEN];
            let len = Packet::new(bth, exts, &mad.bytes).emit(&mut bytes).unwrap();
            let (src, dst) = (mad.peer.local, mad.peer.remote);
            let path = Path { src, dst, hop_limit: 64, ..Path::default() };
            let packet = Single { path: &path, dest: Qpn::QP1, bytes: &bytes[..len] };
            assert!(self.link.send_single(packet));
        }
    }

    /// Receives and sends until an event of the manager satisfies `is_wanted`.
    fn until(&mut self, mut is_wanted: impl FnMut(&Event) -> bool) -> Event {
        loop {
            self.step();
            while let Some(event) = self.manager.poll_event() {
                if is_wanted(&event) {
                    return event;
                }
            }
        }
    }

    /// Waits a while for something to do, receives and sends. Returns what was received.
    fn step(&mut self) -> Vec<CmMessage> {
        self.now = self.now.plus_nanos(10_000_000);
        let (now, mut messages) = (self.now, Vec::new());
        let Self { link, manager, .. } = self;
        if link.arm(now) {
            let mut fds = [PollFd::new(link.wait_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::from(10_u8)).unwrap();
        }
        link.receive(now, 64, &mut |train| {
            let peer = Peer::new(train.meta.dst.gid, train.meta.src.gid);
            for packet in train.packets() {
                let packet = Packet::parse(packet).unwrap();
                if packet.bth.dest_qp == Qpn::QP1 {
                    messages.push(CmMessage::parse(packet.payload).unwrap().1);
                    manager.handle_mad(now, peer, packet.payload);
                }
            }
        })
        .unwrap();
        if manager.poll_timeout().is_some_and(|at| at <= now) {
            manager.handle_timeout(now);
        }
        self.send();
        messages
    }
}

/// A listener on all addresses of `b`.
fn listen(cable: &Cable, manager: &Manager) -> Listener {
    let any = (Ipv4Addr::UNSPECIFIED, 0).into();
    cable.in_b(|| Listener::bind(manager, any)).unwrap()
}

/// Connects queue pair `qpn` of the script at `a` with a listener in `b`.
fn connect(
    cable: &Cable,
    script: &mut Script,
    listener: &Listener,
    qpn: u32,
) -> (ConnId, Connection) {
    let port = listener.local_addr().port();
    let conn = script.connect(Cable::A4, Cable::B4, port, qpn);
    std::thread::scope(|threads| {
        let accepting = threads.spawn(|| cable.in_b(|| listener.accept()?.accept()).unwrap());
        script.until(|event| matches!(event, Event::Replied { conn: c, .. } if *c == conn));
        script.manager.ready(conn).unwrap();
        script.send();
        (conn, accepting.join().unwrap())
    })
}

const QPN: u32 = 0x4321;

#[test]
fn a_forged_request_with_the_peers_queue_pair_ends_nothing() {
    with_cable(1500, |cable| {
        let manager = Manager::new();
        let listener = listen(cable, &manager);
        let port = listener.local_addr().port();
        let mut peer = cable.in_a(|| Script::new(Cable::a4(), 1));
        let (conn, accepted) = connect(cable, &mut peer, &listener, QPN);
        // The attacker has the address of the peer, and knows its queue pair and the port.
        let mut attacker = cable.in_a(|| Script::attacker(&[Cable::a4()], 2));
        attacker.connect(Cable::A4, Cable::B4, port, QPN);
        // The peer is asked; it has the connection, and keeps silent.
        while !peer.step().iter().any(|m| matches!(m, CmMessage::Dreq(_))) {}
        assert_eq!(peer.manager.poll_event(), None);
        // Both ends still have it, and can end it.
        let (_, other) = connect(cable, &mut peer, &listener, QPN + 1);
        assert_eq!(peer.manager.state(conn), Some("Established"));
        peer.manager.disconnect(peer.now, conn).unwrap();
        let agreed = Event::Disconnected { conn, cause: Cause::Agreed };
        peer.until(|event| *event == agreed);
        accepted.wait_disconnected().unwrap();
        assert_eq!(other.state(), QpState::Rts);
    });
}

#[test]
fn a_peer_that_was_restarted_connects_with_the_same_queue_pair() {
    with_cable(1500, |cable| {
        let manager = Manager::new();
        let listener = listen(cable, &manager);
        let mut peer = cable.in_a(|| Script::new(Cable::a4(), 1));
        let (_, before) = connect(cable, &mut peer, &listener, QPN);
        peer.restart(3);
        let (_, after) = connect(cable, &mut peer, &listener, QPN);
        before.wait_disconnected().unwrap();
        assert_eq!(after.state(), QpState::Rts);
    });
}

/// Accepts every request until `wanted` connections are established.
fn accept_all(channel: &EventChannel, wanted: usize) {
    let (mut established, mut ids) = (0, Vec::new());
    while established < wanted {
        let event = channel.wait_event(None).unwrap().unwrap();
        match event.kind {
            EventKind::ConnectRequest => {
                let qpn = Qpn::new(ids.len() as u32 + 2);
                event.id.accept(&ConnParam { qpn, ..event.id.offered().unwrap() }).unwrap();
                ids.push(event.id);
            }
            EventKind::Established => established += 1,
            EventKind::Unreachable => {}
            other => panic!("{other:?}"),
        }
    }
}

/// 12,000 forged requests from 100 addresses, more than a listener has places.
#[test]
fn clients_connect_during_a_flood() {
    with_cable(1500, |cable| {
        // All of these are addresses of the attacker, who answers nothing that is sent to them.
        cable.in_a(|| ip("route add local 10.9.0.128/25 dev lo"));
        let sources: Vec<[u8; 4]> = (130..230).map(|n| [10, 9, 0, n]).collect();
        let gids: Vec<Gid> = sources.iter().map(|&source| Gid::from_ipv4(source)).collect();
        let mut attacker = cable.in_a(|| Script::attacker(&gids, 2));
        let mut client = cable.in_a(|| Script::new(Cable::a4(), 1));
        let channel = Manager::new().event_channel().unwrap();
        let listener = channel.create_id(PortSpace::Tcp).unwrap();
        cable.in_b(|| listener.bind((Ipv4Addr::from(Cable::B4), 0).into())).unwrap();
        cable.in_b(|| listener.listen(100_000)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::scope(|threads| {
            let server = threads.spawn(|| cable.in_b(|| accept_all(&channel, 20)));
            for round in 0..20 {
                for n in 0..600 {
                    let source = sources[n as usize % sources.len()];
                    attacker.connect(source, Cable::B4, port, 0x1_0000 + round * 600 + n);
                }
                let conn = client.connect(Cable::A4, Cable::B4, port, QPN + round);
                let answer = client.until(|event| event.conn() == conn);
                assert!(matches!(answer, Event::Replied { .. }), "{round}: {answer:?}");
                client.manager.ready(conn).unwrap();
                client.send();
            }
            server.join().unwrap();
        });
    });
}

/// How often a flood of requests was reported to the user.
fn reports() -> usize {
    let said = warnings::of_all_threads();
    let text = "too many connection requests without an answer";
    said.iter().filter(|said| said.contains(text)).count()
}

#[test]
fn a_flood_of_requests_is_reported() {
    with_cable(1500, |cable| {
        let before = reports();
        let mut attacker = cable.in_a(|| Script::attacker(&[Cable::a4()], 2));
        let channel = Manager::new().event_channel().unwrap();
        let listener = channel.create_id(PortSpace::Tcp).unwrap();
        cable.in_b(|| listener.bind((Ipv4Addr::from(Cable::B4), 0).into())).unwrap();
        cable.in_b(|| listener.listen(100_000)).unwrap();
        let port = listener.local_addr().unwrap().port();
        // More than one address may have, many times: the kernel drops what comes too fast.
        let is_heard = (0..200_000).any(|n| {
            attacker.connect(Cable::A4, Cable::B4, port, 0x1_0000 + n);
            n % 64 == 0 && reports() > before
        });
        assert!(is_heard);
    });
}

/// Communication identifiers and PSNs of managers that were started in the same way.
#[test]
fn answers_of_two_managers_have_nothing_in_common() {
    with_cable(1500, |cable| {
        let mut client = cable.in_a(|| Script::new(Cable::a4(), 1));
        let mut replies = (0..8).map(|n| {
            let manager = Manager::new();
            let listener = listen(cable, &manager);
            let port = listener.local_addr().port();
            let conn = client.connect(Cable::A4, Cable::B4, port, QPN + n);
            std::thread::scope(|threads| {
                threads.spawn(|| cable.in_b(|| listener.accept()?.accept()).unwrap());
                let replied = client.until(|event| event.conn() == conn);
                let Event::Replied { rep, .. } = replied else { panic!("{replied:?}") };
                client.manager.ready(conn).unwrap();
                client.send();
                (rep.local_id.0 & 0xff_ffff, rep.psn.get())
            })
        });
        let (ids, psns): (Vec<_>, Vec<_>) = replies.by_ref().unzip();
        crate::unpredictable::assert_differ("communication identifiers", &ids);
        crate::unpredictable::assert_differ("PSNs", &psns);
    });
}
