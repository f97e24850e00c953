//! The order in which the process of a fabric takes what programs say.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::thread;

use feroce_link::port::{CREDIT_LEN, RECORD_LEN, Record};
use feroce_train::{Framing, PortAddr, RxMeta};
use feroce_umad::{Host, Registration, pieces};
use feroce_wire::mad::{Attribute, Class, MAD_LEN, Method};
use feroce_wire::{Bth, Gid, Lid, Op, Opcode, Psn, Qpn, Service};
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

/// Sends packets to a group; the port is not active, and counts what it does not send.
fn send_packets(socket: &OwnedFd) {
    let mut packet = [0; Bth::LEN + 12];
    let bth = Bth::new(Opcode::new(Service::Ud, Op::SendOnly), Qpn::MULTICAST, Psn::new(0));
    bth.emit(packet.first_chunk_mut().expect("room"));
    let at = |lid| PortAddr { gid: GROUP, lid: Lid(lid) };
    let framing = Framing::InfiniBand;
    let meta = RxMeta { src: at(1), dst: at(0xc001), framing, ..RxMeta::default() };
    let record = Record { at_ns: 0, meta, stride: packet.len(), bytes: &packet };
    let mut message = vec![0; CREDIT_LEN + RECORD_LEN];
    record.emit_head(&mut message[CREDIT_LEN..]);
    message.extend(packet);
    for _ in 0..SENT {
        let sent = send(socket.as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT);
        assert_eq!(sent, Ok(message.len()));
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
    let (socket, member) = answered(&mut server, move || {
        let (socket, _) = host.attach(1).expect("a port");
        (socket, host.join(1, GROUP, 1).expect("a member"))
    });
    send_packets(&socket);
    drop(member);
    while server.leaving.is_empty() {
        server.wait().expect("something to do");
    }
    assert_eq!(taken_packets(&server), 0);
    server.leave_groups().expect("it leaves");
    assert_eq!(taken_packets(&server), SENT);
}

#[test]
fn agents_answer_before_packets_pass() {
    let (mut server, host, _taken) = fabric("agents");
    let (socket, file, agent) = answered(&mut server, move || {
        let (socket, _) = host.attach(1).expect("a port");
        let (file, number) = host.open(1).expect("a port");
        let class = Class::SUBNET_DIRECTED.0;
        let registration = Registration { class, version: 1, ..Registration::default() };
        (socket, file, host.register(number, registration).expect("an agent"))
    });
    send_packets(&socket);
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
