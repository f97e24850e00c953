//! Devices that speak iWARP: connections by TCP and MPA, and what a queue pair does on them.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use feroce::cm::{
    CmError, CmId, ConnParam, Connection, Connector, Event, EventChannel, EventKind, Listener,
    Manager, PortSpace, RejReason,
};
use feroce::{
    Access, Cqe, Device, Error, FaultConfig, Mr, QpCap, QpState, Remote, SendOp, SendWr, Settings,
    TransportKind, WcOpcode, WcStatus,
};

fn settings(crc: bool) -> Settings {
    let mut settings = Settings::default();
    settings.set("transport", "iwarp").unwrap();
    settings.mpa_crc = crc;
    settings
}

/// A manager with one device at this address.
fn manager(ip: IpAddr, crc: bool) -> Manager {
    Manager::with([Device::at([ip]).open_with(settings(crc)).unwrap()]).unwrap()
}

fn host(net: u8, number: u8) -> (Manager, IpAddr) {
    let ip = Ipv4Addr::new(127, net, 0, number).into();
    (manager(ip, true), ip)
}

/// Two ends of a connection between two managers, and the private data that each got.
fn pair_of(server: &Manager, client: &Manager, ip: IpAddr) -> (Connection, Connection) {
    let listener = Listener::bind(server, (ip, 0).into()).unwrap();
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let request = listener.accept().unwrap();
            assert_eq!(request.private_data(), b"hello");
            let param = ConnParam { private_data: b"welcome".to_vec(), ..ConnParam::default() };
            request.param(param).cap(QpCap::new(64, 64)).accept().unwrap()
        });
        let connector = Connector::new(client).private_data(b"hello").cap(QpCap::new(64, 64));
        let near = connector.connect(to).unwrap();
        assert_eq!(near.private_data(), b"welcome");
        (accepted.join().unwrap(), near)
    })
}

fn pair(net: u8) -> (Connection, Connection) {
    let ((server, ip), (client, _)) = (host(net, 1), host(net, 2));
    pair_of(&server, &client, ip)
}

fn done(cq: &feroce::Cq) -> Cqe {
    let cqe = cq.wait().unwrap();
    assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
    cqe
}

fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

fn filled(connection: &Connection, len: usize, salt: u8) -> Mr {
    let mr = connection.pd().alloc_mr(len, all_rights()).unwrap();
    mr.write_at(0, &pattern(len, salt)).unwrap();
    mr
}

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ salt).collect()
}

fn bytes_of(mr: &Mr, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    mr.read_at(0, &mut bytes).unwrap();
    bytes
}

fn remote(mr: &Mr) -> Remote {
    Remote { addr: mr.addr(), rkey: mr.rkey() }
}

#[test]
fn sends_writes_and_reads_of_every_length_both_ways() {
    let (far, near) = pair(140);
    every_length_both_ways(far, near);
}

/// Payload that no CRC covers is sent from memory, and long payload is received there.
#[test]
fn sends_writes_and_reads_of_every_length_without_checksums() {
    let ip: IpAddr = Ipv4Addr::new(127, 198, 0, 1).into();
    let (far, near) = pair_of(&manager(ip, false), &manager(ip, false), ip);
    every_length_both_ways(far, near);
}

/// FPDUs that are longer than a TCP segment.
#[test]
fn sends_writes_and_reads_of_every_length_in_long_fpdus() {
    for crc in [false, true] {
        let ip: IpAddr = Ipv4Addr::new(127, 197, 0, 1).into();
        let with = Settings { mpa_long_fpdus: true, ..settings(crc) };
        let open = || Device::at([ip]).open_with(with.clone()).unwrap();
        let [server, client] = [(); 2].map(|()| Manager::with([open()]).unwrap());
        let (far, near) = pair_of(&server, &client, ip);
        every_length_both_ways(far, near);
    }
}

fn every_length_both_ways(mut far: Connection, mut near: Connection) {
    for len in [0, 1, 3, 64, 1442, 65_536, 1_000_003, 4 << 20] {
        for _ in 0..2 {
            let (source, target) = (filled(&near, len.max(1), 7), filled(&far, len.max(1), 0));
            far.post_recv([target.recv(1, 0..len)]).unwrap();
            near.post_send([SendWr::new(2, SendOp::Send, source.data(0..len))]).unwrap();
            assert_eq!(done(near.send_cq()).opcode, WcOpcode::Send);
            assert_eq!(done(far.recv_cq()).byte_len as usize, len);
            assert_eq!(bytes_of(&target, len), pattern(len, 7));
            // A WRITE, and a SEND behind it that tells so.
            let (source, target) = (filled(&near, len.max(1), 9), filled(&far, len.max(1), 0));
            far.post_recv([target.recv(3, 0..0)]).unwrap();
            let write = SendOp::Write(remote(&target));
            near.post_send([SendWr::new(4, write, source.data(0..len))]).unwrap();
            near.post_send([SendWr::new(5, SendOp::Send, source.data(0..0))]).unwrap();
            assert_eq!(done(near.send_cq()).opcode, WcOpcode::Write);
            assert_eq!(done(near.send_cq()).wr_id, 5);
            assert_eq!(done(far.recv_cq()).wr_id, 3);
            assert_eq!(bytes_of(&target, len), pattern(len, 9));
            let (sink, origin) = (filled(&near, len.max(1), 0), filled(&far, len.max(1), 11));
            let read = SendOp::Read(remote(&origin));
            near.post_send([SendWr::new(6, read, sink.data(0..len))]).unwrap();
            assert_eq!(done(near.send_cq()).byte_len as usize, len);
            assert_eq!(bytes_of(&sink, len), pattern(len, 11));
            std::mem::swap(&mut far, &mut near);
        }
    }
    near.disconnect().unwrap();
    far.wait_disconnected().unwrap();
}

#[test]
fn the_listening_end_may_send_first() {
    let (mut far, mut near) = pair(141);
    let (source, target) = (filled(&far, 64, 1), filled(&near, 64, 0));
    near.post_recv([target.recv(1, 0..64)]).unwrap();
    far.post_send([SendWr::new(2, SendOp::Send, source.data(0..64))]).unwrap();
    done(far.send_cq());
    done(near.recv_cq());
    assert_eq!(bytes_of(&target, 64), pattern(64, 1));
}

#[test]
fn connections_over_ipv6_and_without_checksums() {
    let ip: IpAddr = "::1".parse().unwrap();
    let (server, client) = (manager(ip, false), manager(ip, false));
    let (mut far, mut near) = pair_of(&server, &client, ip);
    let (source, target) = (filled(&near, 100_000, 5), filled(&far, 100_000, 0));
    far.post_recv([target.recv(1, 0..100_000)]).unwrap();
    near.post_send([SendWr::new(2, SendOp::Send, source.data(0..100_000))]).unwrap();
    done(far.recv_cq());
    assert_eq!(bytes_of(&target, 100_000), pattern(100_000, 5));
}

#[test]
fn completions_keep_the_order_of_the_queue() {
    let (far, mut near) = pair(142);
    let (local, origin) = (filled(&near, 1 << 20, 0), filled(&far, 1 << 20, 3));
    for i in 0..32 {
        let op = match i % 2 {
            0 => SendOp::Read(remote(&origin)),
            _ => SendOp::Write(remote(&origin)),
        };
        let len = if i % 2 == 0 { 1 << 20 } else { 8 };
        near.post_send([SendWr::new(i, op, local.data(0..len))]).unwrap();
    }
    for i in 0..32 {
        assert_eq!(done(near.send_cq()).wr_id, i);
    }
}

#[test]
fn a_listener_rejects_and_a_port_without_listener_refuses() {
    let ((server, ip), (client, _)) = (host(143, 1), host(143, 2));
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let to = listener.local_addr();
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| listener.accept().unwrap().reject(b"not today").unwrap());
        Connector::new(&client).connect(to).unwrap_err()
    });
    let Error::Cm(CmError::Rejected { reason, private_data }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((reason, &*private_data), (RejReason::CONSUMER, &b"not today"[..]));
    drop(listener);
    match Connector::new(&client).connect(to).unwrap_err() {
        Error::Cm(CmError::Rejected { reason, .. }) => {
            assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
        }
        e => panic!("{e:?}"),
    }
}

#[test]
fn the_port_is_that_of_tcp() {
    let (server, ip) = host(144, 1);
    let taken = TcpListener::bind((ip, 0)).unwrap();
    let refused = Listener::bind(&server, taken.local_addr().unwrap()).unwrap_err();
    assert!(matches!(refused, Error::Cm(CmError::Port(_))), "{refused:?}");
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    TcpStream::connect(listener.local_addr()).unwrap();
}

/// A TCP server has the port at one of the addresses: the id listens at the other one neither, and
/// may try again.
#[test]
fn listening_at_all_addresses_fails_as_a_whole() {
    let addresses = [1, 2].map(|last| IpAddr::from(Ipv4Addr::new(127, 201, 0, last)));
    let device = Device::at(addresses).open_with(settings(true)).unwrap();
    let server = Manager::with([device]).unwrap();
    let taken = TcpListener::bind((addresses[1], 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let channel = server.event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.bind((Ipv4Addr::UNSPECIFIED, port).into()).unwrap();
    let refused = id.listen(4).unwrap_err();
    assert!(matches!(refused, Error::Cm(CmError::Port(_))), "{refused:?}");
    TcpStream::connect((addresses[0], port)).unwrap_err();
    drop(taken);
    id.listen(4).unwrap();
    for address in addresses {
        TcpStream::connect((address, port)).unwrap();
    }
}

#[test]
fn what_iwarp_has_not_is_refused() {
    let context = Device::at([Ipv4Addr::new(127, 145, 0, 1).into()]).open_with(settings(true));
    let context = context.unwrap();
    let attr = context.attr();
    assert_eq!((attr.transport, attr.max_sge_rd), (TransportKind::Iwarp, 1));
    assert_eq!((attr.limits.max_ah, attr.max_pkeys), (0, 0));
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    assert!(pd.ud_qp(&cq, &cq, QpCap::new(1, 1)).create().is_err());
    assert!(pd.uc_qp(&cq, &cq, QpCap::new(1, 1)).create().is_err());
    let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(1, 1)).create().unwrap();
    qp.modify(&feroce::QpAttr::init(Access::empty())).unwrap();
    let why = qp.modify(&feroce::QpAttr::to(QpState::Rtr)).unwrap_err().to_string();
    assert!(why.contains("connection manager"), "{why}");
    let fault: FaultConfig = "loss=1%".parse().unwrap();
    let lossy = Settings { fault: Some(fault), ..settings(true) };
    let why = Device::at([Ipv4Addr::LOCALHOST.into()]).open_with(lossy).unwrap_err().to_string();
    assert!(why.contains("loss, dup and reorder concern packets"), "{why}");
}

#[test]
fn a_peer_that_goes_away_ends_the_connection_and_flushes() {
    let (mut far, near) = pair(146);
    let target = filled(&far, 64, 0);
    far.post_recv([target.recv(1, 0..64)]).unwrap();
    drop(near);
    far.wait_disconnected().unwrap();
    let cqe = far.recv_cq().wait().unwrap();
    assert_eq!((cqe.wr_id, cqe.status), (1, WcStatus::Flushed));
}

#[test]
fn an_access_that_is_not_allowed_ends_the_connection_at_both_ends() {
    let (far, mut near) = pair(147);
    let source = filled(&near, 64, 1);
    let closed = far.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let write = SendOp::Write(remote(&closed));
    near.post_send([SendWr::new(1, write, source.data(0..64))]).unwrap();
    near.wait_disconnected().unwrap();
    far.wait_disconnected().unwrap();
    assert_eq!(bytes_of(&closed, 64), [0; 64]);
}

#[test]
fn a_full_stream_holds_up_no_other() {
    let ((server, ip), (client, _)) = (host(148, 1), host(148, 2));
    // A peer that speaks MPA and then reads nothing.
    let deaf = TcpListener::bind((ip, 0)).unwrap();
    let to = deaf.local_addr().unwrap();
    let (mut stuck, _peer) = std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut peer, _) = deaf.accept().unwrap();
            let mut request = [0; 24];
            peer.read_exact(&mut request).unwrap();
            peer.write_all(b"MPA ID Rep Frame\x40\x01\0\0").unwrap();
            peer
        });
        (Connector::new(&client).connect(to).unwrap(), peer.join().unwrap())
    });
    let much = filled(&stuck, 16 << 20, 1);
    for i in 0..4 {
        let write = SendOp::Write(Remote { addr: 0, rkey: feroce::Rkey(1) });
        stuck.post_send([SendWr::new(i, write, much.data(0..16 << 20))]).unwrap();
    }
    let (mut far, mut near) = pair_of(&server, &client, ip);
    let (source, target) = (filled(&near, 1 << 20, 7), filled(&far, 1 << 20, 0));
    for i in 0..20 {
        far.post_recv([target.recv(i, 0..1 << 20)]).unwrap();
        near.post_send([SendWr::new(i, SendOp::Send, source.data(0..1 << 20))]).unwrap();
        done(near.send_cq());
        done(far.recv_cq());
    }
    assert_eq!(bytes_of(&target, 1 << 20), pattern(1 << 20, 7));
    let mut taken = Vec::new();
    assert!(stuck.send_cq().poll(&mut taken) < 4, "TCP has no room for all: {taken:?}");
}

/// The next event, which must be of this kind.
fn expect(channel: &EventChannel, kind: EventKind) -> Event {
    let event = channel.wait_event(Some(20_000)).unwrap().expect("an event in time");
    assert_eq!(event.kind, kind, "{event:?}");
    event
}

fn listening(manager: &Manager, ip: IpAddr, backlog: u32) -> (EventChannel, CmId) {
    let channel = manager.event_channel().unwrap();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    id.bind((ip, 0).into()).unwrap();
    id.listen(backlog).unwrap();
    (channel, id)
}

/// What the listener does with these bytes: it closes, and says nothing before.
fn closes(to: SocketAddr, bytes: &[u8]) {
    let mut peer = TcpStream::connect(to).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // It may have closed already.
    let _ = peer.write_all(bytes);
    let mut answer = Vec::new();
    let end = peer.read_to_end(&mut answer);
    assert!(end.is_ok_and(|len| len == 0) || answer.is_empty(), "{answer:?}");
}

#[test]
fn listeners_survive_everything_that_is_not_a_request() {
    let (server, ip) = host(149, 1);
    let (channel, id) = listening(&server, ip, 4);
    let to = id.local_addr().unwrap();
    closes(to, b"GET / HTTP/1.1\r\n\r\n");
    closes(to, b"MPA ID Rep Frame\x40\x01\0\0");
    closes(to, b"MPA ID Req Frame\x40\x07\0\0");
    closes(to, b"MPA ID Req Frame\x50\x02\0\x02ab");
    closes(to, b"MPA ID Req Frame\x40\x01\xff\xff");
    closes(to, b"MPA ID Req Frame\x40\x01\0\0and more than that");
    for len in [0, 1, 16, 19] {
        let mut peer = TcpStream::connect(to).unwrap();
        peer.write_all(&b"MPA ID Req Frame\x40\x01\0\0"[..len]).unwrap();
    }
    assert!(channel.wait_event(Some(50)).unwrap().is_none());
    let counters = || server.contexts()[0].link_counters();
    // Those that sent a part of a frame have closed; the device learns it by and by.
    while !counters().contains(&("mpa_refused_cut", 4)) {
        std::thread::yield_now();
    }
    let counters = counters();
    let counted: Vec<_> =
        counters.iter().filter(|(name, n)| name.starts_with("mpa_") && *n > 0).collect();
    let expected = [
        ("mpa_refused_not_mpa", 2),
        ("mpa_refused_private_data", 1),
        ("mpa_refused_revision", 1),
        ("mpa_refused_no_setup", 1),
        ("mpa_refused_early_data", 1),
        ("mpa_refused_cut", 4),
    ];
    assert_eq!(counted, expected.iter().collect::<Vec<_>>());
    // A peer of the first revision, byte by byte.
    let mut peer = TcpStream::connect(to).unwrap();
    for byte in b"MPA ID Req Frame\x40\x01\0\x02hi" {
        peer.write_all(&[*byte]).unwrap();
    }
    let request = expect(&channel, EventKind::ConnectRequest);
    assert_eq!(request.private_data, b"hi");
    request.id.reject(b"no").unwrap();
    let mut answer = Vec::new();
    peer.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"MPA ID Rep Frame\x20\x01\0\x02no");
}

#[test]
fn requests_beyond_the_backlog_wait() {
    let (server, ip) = host(150, 1);
    let (channel, id) = listening(&server, ip, 2);
    let to = id.local_addr().unwrap();
    let mut peers: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(to).unwrap()).collect();
    for peer in &mut peers {
        peer.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
    }
    let mut seen = 0;
    while let Some(event) = channel.wait_event(Some(200)).unwrap() {
        assert_eq!(event.kind, EventKind::ConnectRequest);
        seen += 1;
        event.id.reject(&[]).unwrap();
    }
    assert_eq!(seen, 5);
}

#[test]
fn a_peer_that_leaves_before_it_is_accepted_is_told_of() {
    let (server, ip) = host(151, 1);
    let (channel, id) = listening(&server, ip, 2);
    let mut peer = TcpStream::connect(id.local_addr().unwrap()).unwrap();
    peer.write_all(b"MPA ID Req Frame\x40\x01\0\0").unwrap();
    let request = expect(&channel, EventKind::ConnectRequest);
    drop(peer);
    let event = expect(&channel, EventKind::Rejected);
    assert_eq!((event.id, event.status), (request.id.clone(), -libc::ECONNRESET));
    assert!(request.id.accept(&Default::default()).is_err());
}

#[test]
fn a_reply_that_is_none_fails_the_connection() {
    let (client, ip) = host(152, 1);
    let answers: [(&[u8], EventKind, i32); 3] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", EventKind::ConnectError, -libc::EINVAL),
        (b"MPA ID Rep Frame\x40\x09\0\0", EventKind::ConnectError, -libc::EINVAL),
        (b"", EventKind::Rejected, -libc::ECONNRESET),
    ];
    for (answer, kind, status) in answers {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let channel = client.event_channel().unwrap();
        let id = channel.create_id(PortSpace::Tcp).unwrap();
        id.resolve_addr(None, listener.local_addr().unwrap(), 1000).unwrap();
        expect(&channel, EventKind::AddrResolved);
        id.resolve_route(1000).unwrap();
        expect(&channel, EventKind::RouteResolved);
        let context = id.context().unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap();
        id.use_qp(&qp).unwrap();
        id.connect(&Default::default()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut request = [0; 24];
        peer.read_exact(&mut request).unwrap();
        peer.write_all(answer).unwrap();
        drop(peer);
        let event = expect(&channel, kind);
        assert_eq!(event.status, status);
    }
}

/// Reads an FPDU without a CRC and returns its ULPDU.
fn fpdu(peer: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 2];
    peer.read_exact(&mut len).unwrap();
    let len = usize::from(u16::from_be_bytes(len));
    let mut rest = vec![0; (2 + len).next_multiple_of(4) - 2 + 4];
    peer.read_exact(&mut rest).unwrap();
    rest.truncate(len);
    rest
}

/// Linux (siw) loses the message that lets it send if that arrives together with its own reply.
#[test]
fn a_peer_that_lets_the_announcement_pass_is_reminded() {
    let ip = Ipv4Addr::new(127, 154, 0, 1).into();
    let client = manager(ip, false);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let (_near, mut peer) = std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut peer, _) = listener.accept().unwrap();
            peer.read_exact(&mut [0; 24]).unwrap();
            // Between peers, with a WRITE to announce the other end.
            peer.write_all(b"MPA ID Rep Frame\x10\x02\0\x04\x80\x04\x80\x04").unwrap();
            peer
        });
        (Connector::new(&client).connect(to).unwrap(), peer.join().unwrap())
    });
    let (announcement, reminder) = (fpdu(&mut peer), fpdu(&mut peer));
    assert_eq!(announcement, [&[0xc1, 0x40][..], &[0; 12]].concat());
    assert_eq!(reminder, announcement);
}

/// Linux (siw) asks for no connection between peers, and its programs let the listener send first.
#[test]
fn a_listener_sends_first_to_a_peer_that_keeps_silent() {
    let ip = Ipv4Addr::new(127, 155, 0, 1).into();
    let server = manager(ip, false);
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr()).unwrap();
    peer.write_all(b"MPA ID Req Frame\x10\x02\0\x04\0\x04\0\x04").unwrap();
    let mut far = listener.accept().unwrap().cap(QpCap::new(4, 4)).accept().unwrap();
    let source = filled(&far, 8, 1);
    far.post_send([SendWr::new(1, SendOp::Send, source.data(0..8))]).unwrap();
    peer.read_exact(&mut [0; 24]).unwrap();
    let message = fpdu(&mut peer);
    assert_eq!(message[18..], pattern(8, 1));
    done(far.send_cq());
}
