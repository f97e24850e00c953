//! Many connections, and peers that take too long.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use feroce::cm::{Connection, Connector, EventKind, Listener, Manager, PortSpace};
use feroce::{Access, Device, QpCap, Remote, Rkey, SendOp, SendWr, Settings, WcStatus};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

fn manager(net: u8, number: u8) -> (Manager, IpAddr) {
    let ip = Ipv4Addr::new(127, net, 0, number).into();
    let mut settings = Settings::default();
    settings.set("transport", "iwarp").unwrap();
    (Manager::with([Device::at([ip]).open_with(settings).unwrap()]).unwrap(), ip)
}

/// Connections that the limit of descriptors allows, up to 500, or as many as
/// `FEROCE_TEST_CONNECTIONS` says: each end has a socket, and a channel of its id.
fn most() -> usize {
    let asked = std::env::var("FEROCE_TEST_CONNECTIONS").ok().map(|n| n.parse().unwrap());
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let wanted = hard.min(asked.map_or(10_000, |n: usize| n as u64 * 8 + 200));
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).unwrap();
    }
    let connections = usize::try_from(wanted.max(soft)).unwrap().saturating_sub(200) / 8;
    assert!(connections >= 50, "the limit of descriptors is too low for this test");
    asked.inspect(|n| assert!(connections >= *n, "descriptors for {connections} connections only"));
    connections.min(asked.unwrap_or(500))
}

/// All of them are there at the same time, carry data, and end.
#[test]
fn hundreds_of_connections_live_side_by_side() {
    let ((server, ip), (client, _)) = (manager(181, 1), manager(181, 2));
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let (to, most, cap) = (listener.local_addr(), most(), QpCap::new(4, 4));
    let (mut far, mut near): (Vec<Connection>, Vec<Connection>) = std::thread::scope(|scope| {
        let accepts = scope.spawn(|| {
            (0..most).map(|_| listener.accept().unwrap().cap(cap).accept().unwrap()).collect()
        });
        let near = (0..most).map(|_| Connector::new(&client).cap(cap).connect(to).unwrap());
        let near = near.collect();
        (accepts.join().unwrap(), near)
    });
    // Connections are accepted in the order in which they were asked for.
    for (i, (far, near)) in far.iter_mut().zip(&mut near).enumerate() {
        let source = near.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
        let target = far.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
        source.write_at(0, &[i as u8; 64]).unwrap();
        far.post_recv([target.recv(1, 0..64)]).unwrap();
        near.post_send([SendWr::new(2, SendOp::Send, source.data(0..64))]).unwrap();
        assert_eq!(far.recv_cq().wait().unwrap().status, WcStatus::Success);
        let mut bytes = [0; 64];
        target.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [i as u8; 64], "connection {i}");
    }
    drop(near);
    far.iter().for_each(|far| far.wait_disconnected().unwrap());
}

/// A peer that connects and says nothing is not kept: its place is for others. One that is asked
/// and does not answer is unreachable.
#[test]
fn peers_that_say_nothing_are_given_up() {
    let ((server, ip), (client, _)) = (manager(182, 1), manager(182, 2));
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let mut mute = TcpStream::connect(listener.local_addr()).unwrap();
    mute.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let deaf = TcpListener::bind((ip, 0)).unwrap();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(mute.read(&mut [0; 9]).unwrap(), 0, "the listener closes");
            assert!(begin.elapsed() >= Duration::from_secs(5));
        });
        let events = client.event_channel().unwrap();
        let id = events.create_id(PortSpace::Tcp).unwrap();
        let next = || events.wait_event(Some(60_000)).unwrap().unwrap();
        id.resolve_addr(None, deaf.local_addr().unwrap(), 1000).unwrap();
        assert_eq!(next().kind, EventKind::AddrResolved);
        id.resolve_route(1000).unwrap();
        assert_eq!(next().kind, EventKind::RouteResolved);
        let context = id.context().unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(1, 1)).create().unwrap();
        id.use_qp(&qp).unwrap();
        id.connect(&feroce::cm::ConnParam::default()).unwrap();
        let event = next();
        assert_eq!((event.kind, event.status), (EventKind::Unreachable, -libc::ETIMEDOUT));
        assert!(begin.elapsed() >= Duration::from_secs(10));
    });
    // The listener works on.
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let accepts =
            scope.spawn(|| listener.accept().unwrap().cap(QpCap::new(1, 1)).accept().unwrap());
        Connector::new(&client).cap(QpCap::new(1, 1)).connect(to).unwrap();
        accepts.join().unwrap();
    });
}

/// A peer that reads nothing, with a window of zero, does not keep the socket and the bytes of a
/// connection that has ended.
#[test]
fn a_peer_that_reads_nothing_is_given_up_when_the_connection_has_ended() {
    let (client, ip) = manager(199, 1);
    let deaf = TcpListener::bind((ip, 0)).unwrap();
    let to = deaf.local_addr().unwrap();
    let (mut stuck, _peer) = std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut peer, _) = deaf.accept().unwrap();
            peer.read_exact(&mut [0; 24]).unwrap();
            peer.write_all(b"MPA ID Rep Frame\x40\x01\0\0").unwrap();
            peer
        });
        (Connector::new(&client).connect(to).unwrap(), peer.join().unwrap())
    });
    let context = stuck.pd().context().clone();
    let counter = |name: &str| {
        let counters = context.link_counters();
        counters.iter().find(|(counter, _)| *counter == name).unwrap().1
    };
    let much = stuck.pd().alloc_mr(16 << 20, Access::LOCAL_WRITE).unwrap();
    let write = SendOp::Write(Remote { addr: 0, rkey: Rkey(1) });
    stuck.post_send([SendWr::new(1, write, much.data(0..16 << 20))]).unwrap();
    while counter("tcp_full") == 0 {
        std::thread::yield_now();
    }
    stuck.disconnect().unwrap();
    let begin = Instant::now();
    while counter("tcp_not_closed_by_peer") == 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "the stream stays");
        std::thread::sleep(Duration::from_millis(100));
    }
}
