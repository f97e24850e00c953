//! Packets that are dropped, each for its reason and counted once.

use feroce_engine::{Config, Data, QpAttr, QpState, QpType, SendOp};
use feroce_testkit::script::{ACK, MTU, aeth, no_credits, reth};
use feroce_testkit::{OUR_PSN, PEER_PSN, Packet, QKEY, Scripted, header, wr};
use feroce_wire::{Bth, Deth, Gid, Op, Opcode, Pkey, Qkey, Qpn, Rkey, Service};

const P: u32 = PEER_PSN;

/// Delivers `packet`: exactly one drop is counted, under `name`, and nothing is answered.
fn dropped(script: &mut Scripted, packet: &Packet, name: &str) {
    let before: Vec<_> = script.host.engine.drops().iter().collect();
    let answers = script.deliver(packet);
    assert!(answers.is_empty(), "{name}: {answers:?}");
    for ((counter, was), (_, is)) in before.into_iter().zip(script.host.engine.drops().iter()) {
        assert_eq!(is - was, u64::from(counter == name), "{counter} after {name}");
    }
}

/// A good packet with its header changed.
fn altered(script: &Scripted, change: impl FnOnce(&mut Bth)) -> Packet {
    let mut packet = script.packet(Op::SendOnly, P, true, &[0; 8]);
    let mut bth = packet.bth();
    change(&mut bth);
    let head = header(|out| bth.emit(out));
    packet.bytes[..Bth::LEN].copy_from_slice(&head);
    packet
}

fn with_receive() -> Scripted {
    let mut script = Scripted::rc();
    script.recv(1, 0, 64);
    script
}

#[test]
fn a_packet_shorter_than_its_headers() {
    let mut script = with_receive();
    let mut packet = script.packet(Op::SendOnly, P, true, &[]);
    packet.bytes.truncate(Bth::LEN - 4);
    dropped(&mut script, &packet, "drop_truncated");
    let cases = [
        (Op::WriteOnly, 12),
        (Op::ReadRequest, 12),
        (Op::FetchAdd, 24),
        (Op::SendOnlyImm, 0),
        (Op::SendOnlyInv, 0),
        (Op::Flush, 16),
        (Op::AtomicWrite, 12),
    ];
    for (op, len) in cases {
        let packet = script.packet(op, P, true, &vec![0; len]);
        dropped(&mut script, &packet, "drop_truncated");
    }
    script.post(wr(1, SendOp::Send, Data::EMPTY));
    let packet = script.packet(Op::Acknowledge, OUR_PSN, false, &[]);
    dropped(&mut script, &packet, "drop_truncated");
    let packet = script.packet(Op::AtomicAcknowledge, OUR_PSN, false, &[0; 8]);
    dropped(&mut script, &packet, "drop_truncated");
    assert_eq!(script.state(), QpState::Rts);
}

#[test]
fn an_opcode_that_is_reserved_or_of_another_service() {
    let mut script = with_receive();
    let opcodes = [
        Opcode(0x1f),
        Opcode(0x15),
        Opcode(0x40),
        Opcode::new(Service::Uc, Op::SendOnly),
        Opcode::new(Service::Xrc, Op::SendOnly),
    ];
    for opcode in opcodes {
        let packet = altered(&script, |bth| bth.opcode = opcode);
        dropped(&mut script, &packet, "drop_bad_opcode");
    }
    // Where nothing was lost, the next packet is taken.
    let packet = altered(&script, |_| ());
    assert_eq!(script.deliver(&packet)[0].syndrome(), ACK);
}

#[test]
fn a_transport_version_from_the_future() {
    let mut script = with_receive();
    let packet = altered(&script, |bth| bth.tver = 1);
    dropped(&mut script, &packet, "drop_bad_version");
}

#[test]
fn padding_that_cannot_be() {
    let mut script = with_receive();
    let mut packet = script.packet(Op::SendOnly, P, true, &[]);
    packet.bytes[1] |= 3 << 4;
    assert_eq!(packet.bth().pad, 3);
    dropped(&mut script, &packet, "drop_bad_padding");
    let mut packet = script.packet(Op::SendOnly, P, true, &[0; 8]);
    packet.bytes.pop();
    dropped(&mut script, &packet, "drop_bad_padding");
}

#[test]
fn a_queue_pair_that_is_not_there() {
    let mut script = with_receive();
    let own = script.qp.qpn.get();
    for qpn in [0, 1, 2, own ^ 1, 0x00ff_fffe] {
        let packet = altered(&script, |bth| bth.dest_qp = Qpn::new(qpn));
        dropped(&mut script, &packet, "drop_unknown_qp");
    }
}

#[test]
fn a_queue_pair_that_does_not_receive() {
    let mut script = with_receive();
    let packet = altered(&script, |_| ());
    script.host.modify(script.now, script.qp.qpn, &QpAttr::to(QpState::Err));
    dropped(&mut script, &packet, "drop_bad_state");
    script.host.modify(script.now, script.qp.qpn, &QpAttr::to(QpState::Reset));
    dropped(&mut script, &packet, "drop_bad_state");
    script.host.modify(script.now, script.qp.qpn, &QpAttr::init(feroce_testkit::ALL));
    dropped(&mut script, &packet, "drop_bad_state");
}

#[test]
fn an_address_that_the_queue_pair_is_not_connected_with() {
    let mut script = with_receive();
    let mut packet = altered(&script, |_| ());
    packet.meta.src = Gid::from_ipv4([10, 0, 0, 98]).into();
    dropped(&mut script, &packet, "drop_bad_address");
    let mut packet = altered(&script, |_| ());
    packet.meta.dst = Gid::from_ipv4([10, 0, 0, 2]).into();
    dropped(&mut script, &packet, "drop_bad_address");
}

#[test]
fn a_partition_key_that_does_not_match() {
    let mut script = with_receive();
    let packet = altered(&script, |bth| bth.pkey = Pkey(0x1234));
    dropped(&mut script, &packet, "drop_bad_pkey");
    // A limited member may talk to a full one.
    let packet = altered(&script, |bth| bth.pkey = Pkey(0x7fff));
    assert_eq!(script.deliver(&packet)[0].syndrome(), ACK);
}

#[test]
fn packets_after_a_gap_that_was_reported() {
    let config = Config { selective_repeat: false, ..no_credits() };
    let mut script = Scripted::with_config(QpType::Rc, QpAttr::default(), config);
    assert_eq!(script.send(Op::SendOnly, P + 1, true, &[]).len(), 1);
    let packet = script.packet(Op::SendOnly, P + 2, true, &[]);
    dropped(&mut script, &packet, "drop_after_gap");
}

#[test]
fn duplicates_that_nobody_remembers() {
    let mut script = with_receive();
    script.send(Op::SendOnly, P, true, &[]);
    let rest = reth(0, script.rkey(), 8);
    let packet = script.packet(Op::ReadRequest, P, true, &rest);
    dropped(&mut script, &packet, "drop_stale_duplicate");
    let rest = feroce_testkit::script::atomic(0, script.rkey(), 1, 0);
    let packet = script.packet(Op::FetchAdd, P - 100, true, &rest);
    dropped(&mut script, &packet, "drop_stale_duplicate");
}

#[test]
fn answers_to_nothing() {
    let mut script = with_receive();
    let packet = script.packet(Op::Acknowledge, OUR_PSN, false, &aeth(ACK, 0));
    dropped(&mut script, &packet, "drop_ghost_response");
}

#[test]
fn answers_after_a_missing_one() {
    let mut script = with_receive();
    let data = script.host.data(0, 3 * MTU as u32);
    let remote = feroce_engine::Remote { addr: 0, rkey: Rkey(1) };
    script.post(wr(1, SendOp::Read(remote), data));
    script.respond(Op::ReadResponseMiddle, OUR_PSN + 1, &[0; MTU]);
    let rest = feroce_testkit::script::with(aeth(ACK, 0), &[0; MTU]);
    let packet = script.packet(Op::ReadResponseLast, OUR_PSN + 2, false, &rest);
    dropped(&mut script, &packet, "drop_response_gap");
}

fn uc() -> Scripted {
    Scripted::with_config(QpType::Uc, QpAttr::default(), no_credits())
}

#[test]
fn unreliable_messages_that_lost_a_part() {
    let mut script = uc();
    script.recv(1, 0, 4000);
    let packet = script.packet(Op::SendMiddle, P, false, &[0; MTU]);
    dropped(&mut script, &packet, "drop_bad_sequence");
    script.send(Op::SendFirst, P + 1, false, &[0; MTU]);
    let packet = script.packet(Op::SendLast, P + 3, false, &[0; 8]);
    dropped(&mut script, &packet, "drop_bad_sequence");
    // The receive that it had taken is there for the next message.
    script.send(Op::SendOnly, P + 4, false, &[5; 8]);
    let done = script.host.poll_all();
    assert_eq!((done.len(), done[0].byte_len), (1, 8));
    assert_eq!(script.host.read(0, 8), [5; 8]);
}

#[test]
fn an_unreliable_message_without_a_receive() {
    let mut script = uc();
    let packet = script.packet(Op::SendOnly, P, false, &[0; 8]);
    dropped(&mut script, &packet, "drop_no_receive");
}

#[test]
fn an_unreliable_message_too_long_for_its_receive() {
    let mut script = uc();
    script.recv(1, 0, 4);
    let packet = script.packet(Op::SendOnly, P, false, &[0; 8]);
    dropped(&mut script, &packet, "drop_too_long");
}

#[test]
fn an_unreliable_write_without_a_right() {
    let mut script = uc();
    let rest = feroce_testkit::script::with(reth(0, Rkey(0x1234_5678), 8), &[0; 8]);
    let packet = script.packet(Op::WriteOnly, P, false, &rest);
    dropped(&mut script, &packet, "drop_access_denied");
    assert_eq!(script.state(), QpState::Rts);
}

/// A datagram queue pair in a script.
fn ud() -> Scripted {
    let mut script = Scripted::rc();
    script.qp = feroce_testkit::datagram_qp(&mut script.host, script.now);
    script.service = Service::Ud;
    script
}

fn datagram(script: &Scripted, qkey: Qkey, payload: &[u8]) -> Packet {
    let deth = header(|out| Deth { qkey, src_qp: Qpn::new(5) }.emit(out));
    script.packet(Op::SendOnly, 0, false, &feroce_testkit::script::with(deth, payload))
}

#[test]
fn a_datagram_with_the_wrong_queue_key() {
    let mut script = ud();
    script.recv(1, 0, 4096);
    let packet = datagram(&script, Qkey(QKEY.0 ^ 1), &[0; 8]);
    dropped(&mut script, &packet, "drop_bad_qkey");
    let packet = datagram(&script, QKEY, &[0; 8]);
    script.deliver(&packet);
    assert_eq!(script.done().len(), 1, "the receive was not used up");
}

#[test]
fn a_datagram_without_a_receive() {
    let mut script = ud();
    let packet = datagram(&script, QKEY, &[0; 8]);
    dropped(&mut script, &packet, "drop_no_receive");
    assert_eq!(script.host.engine.counters().ud_out_of_buffer, 1);
}

#[test]
fn a_datagram_too_long_for_its_receive() {
    let mut script = ud();
    script.recv(1, 0, 47);
    let packet = datagram(&script, QKEY, &[0; 8]);
    dropped(&mut script, &packet, "drop_too_long");
}

#[test]
fn a_multicast_that_nobody_here_has_joined() {
    let mut script = ud();
    let mut packet = datagram(&script, QKEY, &[0; 8]);
    packet.meta.dst = Gid::from_ipv4([239, 1, 1, 1]).into();
    let bth = Bth { dest_qp: Qpn::MULTICAST, ..packet.bth() };
    packet.bytes[..Bth::LEN].copy_from_slice(&header(|out| bth.emit(out)));
    dropped(&mut script, &packet, "drop_no_member");
    // The multicast number on a unicast address is no address at all.
    packet.meta.dst = script.host.gid.into();
    dropped(&mut script, &packet, "drop_bad_address");
}

#[test]
fn notifications_beyond_what_the_link_takes() {
    let config = Config { cnp_interval_ns: 0, ..no_credits() };
    let mut script = Scripted::with_config(QpType::Rc, QpAttr::default(), config);
    // The driver does not poll for output: the number of queued answers is bounded.
    let mut packet = script.packet(Op::WriteOnly, P, false, &reth(0, Rkey(0), 0));
    packet.meta.ecn = feroce_train::Ecn::Congested;
    for _ in 0..1025 {
        script.host.receive(script.now, &packet);
    }
    assert_eq!(script.host.engine.drops().drop_rate_limited, 1);
    assert_eq!(script.host.engine.counters().np_cnp_sent, 1024);
}
