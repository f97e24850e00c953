//! The order in which the process of a fabric takes what programs say.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::thread;

use feroce_link::Logger;
use feroce_link::port::{CREDIT_LEN, PortChannel, PortSocket, RECORD_LEN, Record};
use feroce_local::RingChannel;
use feroce_subnet::MadPacket;
use feroce_train::{Framing, PortAddr, RxMeta};
use feroce_umad::{Host, Registration, pieces};
use feroce_wire::mad::{Attribute, Class, MAD_LEN, Method, PortInfo, PortState, Smp};
use feroce_wire::{Bth, Gid, Lid, Op, Opcode, Pkey, Psn, Qkey, Qpn, Service};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{MsgFlags, recv, send};

use super::*;
use crate::fabric::place::Taken;

const NET: &str = "Switch 4 \"Switch\"\n[1] \"Host1\"[1]\nHca 1 \"Host1\"\n";
const PREFIX: [u8; 2] = [127, 77];
const GROUP: Gid = Gid([0xff; 16]);
/// Messages with a packet each: many more than one turn takes.
const SENT: u64 = 100;

/// A fabric of this thread, which makes its turns when the test says so.
fn fabric(name: &str) -> (Server, Host, Taken) {
    let place = Place::new(&format!("test-{name}-{}", std::process::id())).expect("a place");
    let taken = place.take().expect("a place of its own");
    let net = Net::parse(NET).expect("a topology");
    let server = Server::new(&place, &net, PREFIX, None).expect("sockets");
    (server, Host { socket: place.subnet_socket(), name: "Host1".to_owned() }, taken)
}

/// Has a program say something that the fabric answers, while the fabric makes turns.
#[expect(clippy::disallowed_methods, reason = "the program waits for the fabric in its own thread")]
fn answered<T: Send + 'static>(server: &mut Server, ask: impl FnOnce() -> T + Send + 'static) -> T {
    let asking = thread::spawn(ask);
    while !asking.is_finished() {
        server.turn().expect("a turn");
    }
    asking.join().expect("an answer")
}

/// A program that is attached to the port of a host.
fn attach(host: &Host) -> Box<dyn PortChannel> {
    let (socket, _) = host.attach(1).expect("a port");
    let socket = PortSocket::of(socket).expect("a socket");
    RingChannel::offer(socket, &Logger::default()).expect("rings")
}

/// A message with packets, which have so many bytes behind the BTH of the first.
fn message(from: Lid, to: Lid, len: usize) -> Vec<u8> {
    let mut packet = vec![0; Bth::LEN + len];
    let bth = Bth::new(Opcode::new(Service::Ud, Op::SendOnly), Qpn::MULTICAST, Psn::new(0));
    bth.emit(packet.first_chunk_mut().expect("room"));
    let at = |lid| PortAddr { gid: GROUP, lid };
    let framing = Framing::InfiniBand;
    let meta = RxMeta { src: at(from), dst: at(to), framing, ..RxMeta::default() };
    let record = Record { at_ns: 0, meta, stride: packet.len().min(240), bytes: &packet };
    let mut message = vec![0; CREDIT_LEN + RECORD_LEN];
    record.emit_head(&mut message[CREDIT_LEN..]);
    message.extend(&packet);
    message
}

/// Sends packets to a group; the port is not active, and counts what it does not send.
fn send_packets(program: &mut dyn PortChannel) {
    let message = message(Lid(1), Lid(0xc001), 12);
    for _ in 0..SENT {
        assert_eq!(program.send(&message), Sent::Done);
    }
}

/// Packets that the fabric has taken from the port of the host.
fn taken_packets(server: &Server) -> u64 {
    let node = Net::parse(NET).expect("a topology").find("Host1").expect("the host");
    let port = server.subnet.port(PortRef { node, port: 1 }).expect("its port");
    port.counters().xmit_discards
}

#[test]
fn what_a_port_has_sent_goes_before_it_leaves_a_group() {
    let (mut server, host, _taken) = fabric("leave");
    let (mut program, member) =
        answered(&mut server, move || (attach(&host), host.join(1, GROUP, 1).expect("a member")));
    send_packets(&mut *program);
    drop(member);
    while server.leaving.is_empty() {
        server.wait().expect("something to do");
    }
    assert_eq!(taken_packets(&server), 0);
    server.leave_groups().expect("it leaves");
    assert_eq!(taken_packets(&server), SENT);
}

#[test]
fn packets_to_a_group_wait_for_a_program_that_has_yet_to_offer_rings() {
    let (mut server, host, _taken) = fabric("offer");
    let (mut program, late) = answered(&mut server, move || {
        (attach(&host), PortSocket::of(host.attach(1).expect("a port").0).expect("a socket"))
    });
    // More than a socket holds. A process at the same port has them, although that is not active.
    for round in 1..=40 {
        send_packets(&mut *program);
        while taken_packets(&server) < round * SENT {
            server.turn().expect("a turn");
        }
    }
    let mut late = answered(&mut server, || {
        RingChannel::offer(late, &Logger::default()).expect("the fabric answers")
    });
    send_packets(&mut *late);
    for _ in 0..=SENT / MAX_PACKET_MESSAGES as u64 {
        server.turn().expect("a turn");
    }
    assert_eq!(taken_packets(&server), 41 * SENT, "both use the rings");
    // What waited may have been dropped meanwhile, as for any process that takes nothing.
    send_packets(&mut *program);
    let mut buffer = vec![0; MAX_MESSAGE];
    let has_packets = (0..=SENT).any(|_| {
        server.turn().expect("a turn");
        let received = late.receive(Instant::ZERO, &mut buffer);
        matches!(received, Received::Message(len) if len > CREDIT_LEN)
    });
    assert!(has_packets, "packets reach it now");
}

/// Brings the port of the host up with LID 1, as a subnet manager does.
fn bring_up(server: &mut Server, at: PortRef) {
    for state in [PortState::NO_CHANGE, PortState::ARMED, PortState::ACTIVE] {
        let info = *server.subnet.port(at).expect("the port").info();
        let (lid, sm_lid, physical_state) = (Lid(1), Lid(1), Default::default());
        let info = PortInfo { lid, sm_lid, state, physical_state, ..info };
        let (set, about) = (Method::SET, Attribute::PORT_INFO);
        let header = MadHeader::request(Class::SUBNET_DIRECTED, set, about);
        let mut smp = Smp::by_path(MadHeader { modifier: 1, ..header }, &[]).expect("no hops");
        let data = info.to_bytes();
        smp.data[..data.len()].copy_from_slice(&data);
        let packet = MadPacket {
            slid: Lid::PERMISSIVE,
            dlid: Lid::PERMISSIVE,
            sl: 0,
            pkey: Pkey::DEFAULT,
            src_qpn: Qpn::QP0,
            dst_qpn: Qpn::QP0,
            qkey: Qkey(0),
            gids: None,
            mad: smp.to_bytes(),
        };
        server.subnet.send(now(), at, packet);
        while server.subnet.poll_output().is_some() {}
    }
}

#[test]
fn a_program_that_keeps_to_no_credit_is_cut_off() {
    let (mut server, host, _taken) = fabric("credit");
    let mut program = answered(&mut server, move || attach(&host));
    let node = Net::parse(NET).expect("a topology").find("Host1").expect("the host");
    let at = PortRef { node, port: 1 };
    bring_up(&mut server, at);
    // The packets wait for a link that is very slow.
    server.processes.set_rate(now(), at, 1_000, &mut server.subnet);
    let message = message(Lid(1), Lid(7), 30_000);
    let mut buffer = vec![0; MAX_MESSAGE];
    let is_cut_off = (0..100).any(|second| {
        program.send(&message);
        server.turn().expect("a turn");
        let later = Instant::from_nanos(second * 1_000_000_000);
        program.receive(later, &mut buffer) == Received::Gone
    });
    assert!(is_cut_off && taken_packets(&server) == 0, "the fabric keeps 3 MB for it");
}

#[test]
fn a_program_joins_when_another_has_left_a_descriptor() {
    let (mut server, host, _taken) = fabric("admission");
    let path = host.socket.clone();
    let program = answered(&mut server, move || attach(&host));
    let second = PortSocket::connect(&path).expect("a connection that waits");
    let (limit, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    let next = File::open("/dev/null").expect("a file").as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, next as u64, most).expect("a lower limit");
    for _ in 0..3 {
        server.turn().expect("a turn");
        assert_eq!(server.conns.len(), 1);
    }
    drop(program);
    let mut turns = 0..10;
    let has_joined = turns.any(|_| {
        server.turn().expect("a turn");
        server.conns.values().any(|conn| matches!(conn.role, Role::New))
    });
    setrlimit(Resource::RLIMIT_NOFILE, limit, most).expect("the limit");
    assert!(has_joined, "{second:?} is accepted");
}

#[test]
fn agents_answer_before_packets_pass() {
    let (mut server, host, _taken) = fabric("agents");
    let (mut program, file, agent) = answered(&mut server, move || {
        let program = attach(&host);
        let (file, number) = host.open(1).expect("a port");
        let class = Class::SUBNET_DIRECTED.0;
        let registration = Registration { class, version: 1, ..Registration::default() };
        (program, file, host.register(number, registration).expect("an agent"))
    });
    send_packets(&mut *program);
    // NodeInfo, by a directed route of no hops: as `ib_user_mad` has it, and then the datagram.
    const LEN: usize = 64 + MAD_LEN;
    let mut mad = [0; LEN];
    mad[..4].copy_from_slice(&agent.to_ne_bytes());
    mad[8..12].copy_from_slice(&1000_u32.to_ne_bytes());
    mad[16..20].copy_from_slice(&(LEN as u32).to_ne_bytes());
    mad[28..30].copy_from_slice(&Lid::PERMISSIVE.0.to_be_bytes());
    mad[64..68].copy_from_slice(&[1, Class::SUBNET_DIRECTED.0, 1, Method::GET.0]);
    mad[80..82].copy_from_slice(&Attribute::NODE_INFO.0.to_be_bytes());
    mad[96..100].copy_from_slice(&[0xff; 4]);
    for piece in pieces(&mad) {
        let sent = send(file.as_raw_fd(), &piece, MsgFlags::MSG_DONTWAIT);
        assert_eq!(sent, Ok(piece.len()));
    }
    server.turn().expect("a turn");
    let mut answer = [0; 1024];
    let len = recv(file.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT).expect("an answer");
    assert!(len > mad.len(), "{len}");
    // The turn has taken few packets of the many that wait.
    assert_eq!(taken_packets(&server), MAX_PACKET_MESSAGES as u64);
}
