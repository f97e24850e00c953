//! What a peer of iWARP may do that programs rarely do, in both roles: long FPDUs, markers, empty
//! READs, private data to the limit, replies of every kind, and ends at any moment.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "two ends that block need two threads")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use feroce::cm::{
    CmError, ConnParam, Connection, Connector, EventKind, Listener, Manager, PortSpace,
};
use feroce::{Access, Device, Error, QpCap, Remote, SendOp, SendWr, Settings, WcStatus};
use feroce_wire::Rkey;
use feroce_wire::iwarp::ddp::{Control, Header, QueueNumber, Untagged};
use feroce_wire::iwarp::fpdu::{Deframer, MAX_ULPDU, Piece};
use feroce_wire::iwarp::rdmap::{RdmaOp, ReadRequest};
use feroce_wire::iwarp::terminate::{Cause, Terminate};

use super::iwarp_peer::{
    PLAIN, Peer, Served, answered, manager, read, send, served, served_with, tagged,
};

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 13 + 5) as u8).collect()
}

/// FPDUs that no TCP segment holds, up to the longest that its length field allows.
#[test]
fn fpdus_may_be_longer_than_segments() {
    let ip = Ipv4Addr::new(127, 164, 0, 1).into();
    for crc in [false, true] {
        let (mut served, _) = served_with(ip, crc, PLAIN, 1 << 18, 32_000);
        let Served { far, open, peer } = &mut served;
        let data = bytes(65_535 - 14);
        let write = |at: usize| {
            let header = tagged(RdmaOp::WRITE, open.rkey(), open.addr() + at as u64);
            Header::Tagged(header)
        };
        peer.say(&write(0), &data[..16_000]);
        peer.say(&write(16_000), &data);
        peer.say(&Header::Untagged(send(RdmaOp::SEND, 1)), &data[..32_000]);
        assert_eq!(far.recv_cq().wait().unwrap().byte_len, 32_000);
        let (header, payload) = read(1, open.rkey(), open.addr() + 16_000, 60_000);
        peer.say(&header, &payload);
        let mut fetched = Vec::new();
        while fetched.len() < 60_000 {
            let (header, payload) = peer.hear().unwrap();
            assert_eq!(header.control().opcode, RdmaOp::READ_RESPONSE);
            assert!(header.len() + payload.len() <= MAX_ULPDU);
            fetched.extend(payload);
        }
        assert!(fetched == data[..60_000]);
        let mut received = vec![0; 32_000];
        open.read_at(1 << 17, &mut received).unwrap();
        assert!(received == data[..32_000]);
    }
}

#[test]
fn segments_of_a_message_with_others_between_them() {
    let ip = Ipv4Addr::new(127, 165, 0, 1).into();
    let (mut served, _) = served(ip, true, PLAIN);
    let Served { far, open, peer } = &mut served;
    let control = Control::new(RdmaOp::SEND, false);
    let mut all =
        peer.segment(&Header::Untagged(Untagged { control, ..send(RdmaOp::SEND, 1) }), &[1; 24]);
    let write = tagged(RdmaOp::WRITE, open.rkey(), open.addr());
    all.extend(peer.segment(&Header::Tagged(write), &[2; 16]));
    let last = Untagged { mo: 24, ..send(RdmaOp::SEND, 1) };
    all.extend(peer.segment(&Header::Untagged(last), &[3; 24]));
    // Every byte in a TCP segment of its own.
    for byte in all {
        peer.socket.write_all(&[byte]).unwrap();
    }
    assert_eq!(far.recv_cq().wait().unwrap().byte_len, 48);
    let mut found = [0; 16];
    open.read_at(0, &mut found).unwrap();
    assert_eq!(found, [2; 16]);
}

#[test]
fn empty_reads_before_and_between_others() {
    let ip = Ipv4Addr::new(127, 166, 0, 1).into();
    for lengths in [[17, 0, 5], [0, 5, 0]] {
        let (mut served, _) = served(ip, false, PLAIN);
        let Served { open, peer, .. } = &mut served;
        let mut all = Vec::new();
        for (msn, len) in (1..).zip(lengths) {
            // Nothing is checked of an empty one.
            let key = if len == 0 { Rkey(0) } else { open.rkey() };
            let (header, payload) = read(msn, key, open.addr(), len);
            all.extend(peer.segment(&header, &payload));
        }
        peer.socket.write_all(&all).unwrap();
        for len in lengths {
            let (header, payload) = peer.hear().unwrap();
            assert!(header.control().last && payload.len() == len as usize, "{lengths:?}");
        }
    }
}

/// Responses may have left before the request that is too many arrives.
#[test]
fn more_reads_than_agreed_end_the_stream() {
    let ip = Ipv4Addr::new(127, 167, 0, 1).into();
    let (mut served, _) = served(ip, false, PLAIN);
    let Served { open, peer, .. } = &mut served;
    let mut all = Vec::new();
    for msn in 1..=6 {
        let (header, payload) = read(msn, open.rkey(), open.addr(), 3000);
        all.extend(peer.segment(&header, &payload));
    }
    peer.socket.write_all(&all).unwrap();
    let (header, payload) = loop {
        let segment = peer.hear().unwrap();
        if segment.0.control().opcode != RdmaOp::READ_RESPONSE {
            break segment;
        }
    };
    assert_eq!(header.control().opcode, RdmaOp::TERMINATE);
    assert_eq!(Terminate::parse(&payload).unwrap().0.cause, Cause::UNTAGGED_NO_BUFFER);
}

/// Everything that was sent in front of the end arrives.
#[test]
fn a_peer_may_close_right_behind_its_messages() {
    let ip = Ipv4Addr::new(127, 168, 0, 1).into();
    let (served, _) = served(ip, true, PLAIN);
    let Served { far, mut peer, .. } = served;
    let mut all = Vec::new();
    for msn in 1..=4 {
        all.extend(peer.segment(&Header::Untagged(send(RdmaOp::SEND, msn)), &[7; 24]));
    }
    peer.socket.write_all(&all).unwrap();
    drop(peer);
    for _ in 0..4 {
        assert_eq!(far.recv_cq().wait().unwrap().status, WcStatus::Success);
    }
    far.wait_disconnected().unwrap();
}

/// A peer that wants markers gets them; none but the peer's own wish brings them about.
#[test]
fn a_peer_that_asks_for_markers_gets_them() {
    let ip = Ipv4Addr::new(127, 169, 0, 1).into();
    let request = b"MPA ID Req Frame\x90\x02\0\x04\0\x04\0\x04";
    let (mut served, reply) = served(ip, true, request);
    assert_eq!(reply[16], 0x50, "this end wants none");
    let Served { open, peer, .. } = &mut served;
    let data = bytes(2000);
    open.write_at(0, &data).unwrap();
    let (header, payload) = read(1, open.rkey(), open.addr(), 2000);
    peer.say(&header, &payload);
    let (mut fetched, mut position) = (Vec::<u8>::new(), 0_usize);
    let mut deframer = Deframer::new(true);
    while fetched.len() < 2000 {
        let mut byte = [0];
        peer.socket.read_exact(&mut byte).unwrap();
        position += 1;
        // The CRC covers markers, so that it is not compared here.
        if (position - 1) % 512 < 4 {
            continue;
        }
        let mut arrived = &byte[..];
        while let Ok(Some(piece)) = deframer.next(&mut arrived) {
            if let Piece::Payload(part) = piece {
                fetched.extend(part);
            }
        }
        if position > 4000 {
            break;
        }
    }
    assert!(fetched == data, "{} bytes", fetched.len());
}

fn asks(ip: IpAddr, private_data: usize) -> (Listener, TcpStream) {
    let server = manager(ip, true);
    let listener = Listener::bind(&server, (ip, 0).into()).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr()).unwrap();
    let mut request = b"MPA ID Req Frame\x50\x02\0\0\0\x04\0\x04".to_vec();
    request[18..20].copy_from_slice(&(private_data as u16 + 4).to_be_bytes());
    request.extend(bytes(private_data));
    socket.write_all(&request).unwrap();
    (listener, socket)
}

#[test]
fn private_data_up_to_the_limit_and_beyond() {
    let ip = Ipv4Addr::new(127, 163, 0, 1).into();
    let (listener, mut socket) = asks(ip, 508);
    let request = listener.accept().unwrap();
    assert_eq!(request.private_data(), bytes(508));
    request.reject(&bytes(508)).unwrap();
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply).unwrap();
    assert_eq!(&reply[..24], b"MPA ID Rep Frame\x30\x02\x02\0\0\x04\0\x04");
    assert_eq!(reply[24..], bytes(508));
    let (_listener, mut socket) = asks(ip, 509);
    // The device closes with bytes unread.
    let end = socket.read(&mut [0; 1]);
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
}

/// Replies that make no connection, and how the consumer is told.
#[test]
fn replies_that_refuse() {
    let ip = Ipv4Addr::new(127, 171, 0, 1).into();
    // The frame of a request, and no frame.
    let (near, _peer) = answered(ip, true, b"MPA ID Req Frame\x10\x02\0\x04\0\x04\0\x04");
    assert!(matches!(near, Err(Error::Cm(_))), "{near:?}");
    let (near, _peer) = answered(ip, true, b"HTTP/1.1 400 Bad Request");
    assert!(matches!(near, Err(Error::Cm(_))), "{near:?}");
}

#[test]
fn a_peer_that_closes_instead_of_a_reply_has_rejected() {
    let ip: IpAddr = Ipv4Addr::new(127, 172, 0, 1).into();
    let client = manager(ip, true);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; 24]).unwrap();
        });
        let near = Connector::new(&client).connect(to);
        let Err(Error::Cm(CmError::Rejected { .. })) = near else { panic!("{near:?}") };
    });
}

/// Memory of the peer, as far as the device knows.
const REMOTE: Remote = Remote { addr: 0x1000, rkey: Rkey(0x7700) };

/// A READ to a peer that answers by a TERMINATE is flushed.
#[test]
fn a_read_that_the_peer_refuses_is_flushed() {
    let ip = Ipv4Addr::new(127, 173, 0, 1).into();
    let reply = b"MPA ID Rep Frame\x10\x02\0\x04\0\x04\0\x04";
    let (near, mut peer) = answered(ip, false, reply);
    let mut near = near.unwrap();
    let sink = near.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    near.post_send([SendWr::new(1, SendOp::Read(REMOTE), sink.data(0..9))]).unwrap();
    let (header, _) = peer.hear().unwrap();
    assert_eq!(header.control().opcode, RdmaOp::READ_REQUEST);
    let queue = QueueNumber::TERMINATE;
    let terminate = Untagged { queue, ..send(RdmaOp::TERMINATE, 1) };
    peer.say(&Header::Untagged(terminate), &[0x01, 0, 0xe0, 0]);
    assert_eq!(near.send_cq().wait().unwrap().status, WcStatus::Flushed);
    near.wait_disconnected().unwrap();
}

/// A peer that holds one READ gets one at a time.
#[test]
fn one_read_at_a_time_to_a_peer_that_holds_one() {
    let ip = Ipv4Addr::new(127, 174, 0, 1).into();
    let reply = b"MPA ID Rep Frame\x10\x02\0\x04\0\x01\0\x01";
    let (near, mut peer) = answered(ip, false, reply);
    let mut near: Connection = near.unwrap();
    let sink = near.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let read = |id: u64, at: usize| SendWr::new(id, SendOp::Read(REMOTE), sink.data(at..at + 9));
    near.post_send([read(1, 0), read(2, 20)]).unwrap();
    for id in 1..=2 {
        let (_, payload) = peer.hear().unwrap();
        let (asked, _) = ReadRequest::parse(&payload).unwrap();
        let header = tagged(RdmaOp::READ_RESPONSE, asked.sink_stag, asked.sink_offset);
        peer.say(&Header::Tagged(header), &[id as u8; 9]);
        assert_eq!(near.send_cq().wait().unwrap().wr_id, id);
    }
}

/// Both revisions, and connections in which the end that connects sends first.
#[test]
fn settings_choose_revision_and_mode() {
    let ip: IpAddr = Ipv4Addr::new(127, 175, 0, 1).into();
    let cases =
        [("mpa_revision", "1", &b"\x40\x01\0\0"[..]), ("mpa_peer_to_peer", "0", b"\x50\x02\0\x04")];
    for (name, value, frame) in cases {
        let mut settings = Settings::default();
        for (key, value) in [("transport", "iwarp"), (name, value)] {
            settings.set(key, value).unwrap();
        }
        let open = || Device::at([ip]).open_with(settings.clone()).unwrap();
        let manager = Manager::with([open()]).unwrap();
        // To a socket, what the request says; to another device, a message each way.
        let socket = TcpListener::bind((ip, 0)).unwrap();
        let to = socket.local_addr().unwrap();
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| {
                let mut request = [0; 28];
                let (mut socket, _) = socket.accept().unwrap();
                let len = 20 + usize::from(frame[3]);
                socket.read_exact(&mut request[..len]).unwrap();
                request
            });
            assert!(Connector::new(&manager).connect(to).is_err());
            let request = heard.join().unwrap();
            assert_eq!(&request[16..20], frame, "{name}");
            assert_eq!(request[20] & 0xc0, 0, "{name}: no mode between peers");
        });
        let listener = Listener::bind(&manager, (ip, 0).into()).unwrap();
        let to = listener.local_addr();
        let cap = QpCap::new(8, 8);
        std::thread::scope(|scope| {
            let far = scope.spawn(|| listener.accept().unwrap().cap(cap).accept().unwrap());
            let mut near = Connector::new(&manager).cap(cap).connect(to).unwrap();
            let mut far = far.join().unwrap();
            let (here, there) = (
                near.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap(),
                far.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap(),
            );
            far.post_recv([there.recv(1, 0..9)]).unwrap();
            near.post_recv([here.recv(2, 20..29)]).unwrap();
            near.post_send([SendWr::new(3, SendOp::Send, here.data(0..9))]).unwrap();
            assert_eq!(far.recv_cq().wait().unwrap().status, WcStatus::Success, "{name}");
            far.post_send([SendWr::new(4, SendOp::Send, there.data(0..9))]).unwrap();
            assert_eq!(near.recv_cq().wait().unwrap().status, WcStatus::Success, "{name}");
        });
    }
}

/// The reply and the end of the stream are one: there was a connection, and it has ended.
#[test]
fn a_peer_that_accepts_and_leaves_at_once_has_not_rejected() {
    let ip = Ipv4Addr::new(127, 198, 0, 1).into();
    let mut settings = Settings::default();
    // The stream is cut somewhere in its first 1024 bytes.
    for (key, value) in [("transport", "iwarp"), ("fault", "cut=100%,seed=1")] {
        settings.set(key, value).unwrap();
    }
    let client = Manager::with([Device::at([ip]).open_with(settings).unwrap()]).unwrap();
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut socket, _) = listener.accept().unwrap();
            socket.read_exact(&mut [0; 24]).unwrap();
            let mut reply = b"MPA ID Rep Frame\x50\x02\0\x04\0\x04\0\x04".to_vec();
            // The beginning of an FPDU.
            reply.extend([0x06, 0x00]);
            reply.resize(1400, 0);
            socket.write_all(&reply).unwrap();
            let _ = socket.read(&mut [0]);
        });
        let near = Connector::new(&client).cap(QpCap::new(8, 8)).connect(to).unwrap();
        near.wait_disconnected().unwrap();
    });
}

/// A program connects a queue pair for a second time: what the second peer says is not for it.
#[test]
fn bytes_behind_a_reply_do_not_reach_a_queue_pair_with_another_stream() {
    let ip: IpAddr = Ipv4Addr::new(127, 200, 0, 1).into();
    let client = manager(ip, false);
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let accepts = |behind: &[u8]| {
        let (mut socket, _) = listener.accept().unwrap();
        socket.read_exact(&mut [0; 24]).unwrap();
        let reply = b"MPA ID Rep Frame\x10\x02\0\x04\0\x04\0\x04";
        socket.write_all(&[reply, behind].concat()).unwrap();
        Peer::new(socket, false)
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| accepts(b""));
        let mut near = Connector::new(&client).cap(QpCap::new(8, 8)).connect(to).unwrap();
        let mut first = first.join().unwrap();
        let memory = near.pd().alloc_mr(64, Access::LOCAL_WRITE).unwrap();
        near.post_recv([memory.recv(1, 0..64)]).unwrap();

        let message = first.segment(&Header::Untagged(send(RdmaOp::SEND, 1)), b"second");
        let accepts = &accepts;
        let second = scope.spawn(move || accepts(&message));
        let events = client.event_channel().unwrap();
        let id = events.create_id(PortSpace::Tcp).unwrap();
        let next = || events.wait_event(Some(60_000)).unwrap().unwrap().kind;
        id.resolve_addr(None, to, 1000).unwrap();
        assert_eq!(next(), EventKind::AddrResolved);
        id.resolve_route(1000).unwrap();
        assert_eq!(next(), EventKind::RouteResolved);
        id.connect(&ConnParam { qpn: near.qpn(), ..ConnParam::default() }).unwrap();
        assert_eq!(next(), EventKind::ConnectError);
        second.join().unwrap();

        first.say(&Header::Untagged(send(RdmaOp::SEND, 1)), b"first");
        assert_eq!(near.recv_cq().wait().unwrap().byte_len, 5);
    });
}
