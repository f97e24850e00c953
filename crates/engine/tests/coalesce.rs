//! Short messages that the requester coalesces into one train.

use feroce_engine::{
    Config, Data, QpAttr, QpType, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus,
    WindowConfig,
};
use feroce_testkit::script::{nak, no_credits, psns, seen};
use feroce_testkit::{OUR_PSN, Packet, Scripted, wr};
use feroce_train::{InlineBytes, LinkCaps, Payload, Train};
use feroce_wire::{Imm, Lkey, NakCode, Op, Rkey};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };
const CAPS: LinkCaps = LinkCaps { max_packets: 64, max_bytes: 65_000 };

fn rc() -> Scripted {
    Scripted::with_config(QpType::Rc, QpAttr::default(), no_credits())
}

fn inline(byte: u8, len: usize) -> Data {
    Data::Inline(InlineBytes::new(&[byte; 32][..len]))
}

/// Posts everything and returns the trains.
fn trains(script: &mut Scripted, wrs: impl IntoIterator<Item = SendWr>) -> Vec<Train> {
    for wr in wrs {
        script.qp.sq.stage(wr).expect("room");
    }
    script.qp.sq.ring();
    let engine = &mut script.host.engine;
    let mut trains = Vec::new();
    while let Some(train) = engine.poll_transmit(script.now, &CAPS) {
        trains.push(train);
    }
    engine.trains_read();
    trains
}

/// Opcode, PSN and length of each packet.
fn packets(train: &Train) -> Vec<(Op, u32, usize)> {
    let packet = |i| {
        let bth = train.bth(i);
        assert!(bth.ack_req, "who wants a completion asks");
        (bth.opcode.decode().expect("known").1, bth.psn.get(), train.packet_len(i))
    };
    (0..train.count).map(packet).collect()
}

#[test]
fn messages_of_one_length_are_one_train() {
    let mut script = rc();
    let sent = script.host.fill(0, 8, 3);
    let ours = script.host.data(0, 8);
    let write = SendOp::Write(REMOTE);
    let signaled = SendFlags::SIGNALED;
    let trains = trains(
        &mut script,
        [
            wr(1, write, ours),
            SendWr { flags: signaled | SendFlags::SOLICITED, ..wr(2, write, inline(7, 8)) },
            // As long on the wire, with another opcode and padding.
            wr(3, SendOp::WriteImm(REMOTE, Imm(0x0102_0304)), inline(8, 3)),
            // Longer.
            wr(4, write, inline(9, 12)),
        ],
    );
    let [run, alone] = &trains[..] else { panic!("{trains:?}") };
    let (only, imm) = (Op::WriteOnly, Op::WriteOnlyImm);
    let expected = [(only, OUR_PSN, 36), (only, OUR_PSN + 1, 36), (imm, OUR_PSN + 2, 36)];
    assert_eq!(packets(run), expected);
    assert_eq!(packets(alone), [(only, OUR_PSN + 3, 40)]);
    let mut out = [0xee; 36];
    assert_eq!(run.total_len(), 3 * out.len());
    assert_eq!(run.emit(0, &mut out), 36);
    assert_eq!(out[28..], sent);
    run.emit(1, &mut out);
    assert_eq!((run.bth(0).solicited, run.bth(1).solicited), (false, true));
    assert_eq!(out[28..], [7; 8]);
    run.emit(2, &mut out);
    assert_eq!((run.bth(2).pad, &out[28..]), (1, &[1, 2, 3, 4, 8, 8, 8, 0][..]));
}

#[test]
fn a_run_ends_where_something_must_wait_or_fail() {
    let fenced = SendWr {
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        ..wr(3, SendOp::Send, inline(3, 4))
    };
    let read = |script: &Scripted| wr(2, SendOp::Read(REMOTE), script.host.data(0, 8));
    let mut script = rc();
    let read = read(&script);
    let sent = trains(&mut script, [wr(1, SendOp::Send, inline(1, 4)), read, fenced]);
    let ops: Vec<_> = sent.iter().flat_map(packets).map(|(op, ..)| op).collect();
    assert_eq!(ops, [Op::SendOnly, Op::ReadRequest]);

    // A key that is not registered: the messages before it are sent; it fails when its turn comes.
    let mut script = rc();
    let bad = Sge { addr: 0, len: 4, lkey: Lkey(0xdead) };
    let bad = Data::Sges(SgeList::new(&[bad]));
    let send = |id, data| wr(id, SendOp::Send, data);
    let wrs = [send(1, inline(1, 4)), send(2, inline(2, 4)), send(3, bad), send(4, inline(4, 4))];
    let sent = trains(&mut script, wrs);
    assert_eq!(sent.iter().map(|train| train.count).collect::<Vec<_>>(), [2]);
    assert_eq!(script.done(), []);
    script.answer(OUR_PSN + 1, feroce_testkit::script::ACK);
    let done = script.done();
    let failed = (3, WcStatus::LocalProtection);
    let rest = (4, WcStatus::Flushed);
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success), failed, rest]);
}

#[test]
fn a_run_keeps_to_the_window_and_to_the_link() {
    // Three packets of four bytes.
    let window = 3 * (4 + 512);
    let config = Config {
        window: WindowConfig { initial: window, min: window, max: window },
        tail_probe: false,
        ..no_credits()
    };
    let mut script = Scripted::with_config(QpType::Rc, QpAttr::default(), config);
    let five = || (0..5).map(|id| wr(id, SendOp::Send, inline(id as u8, 4)));
    let sent = trains(&mut script, five());
    assert_eq!(sent.iter().map(|train| train.count).collect::<Vec<_>>(), [3]);
    let next = script.answer(OUR_PSN + 2, feroce_testkit::script::ACK);
    assert_eq!(psns(&next), [OUR_PSN + 3, OUR_PSN + 4]);

    let mut script = rc();
    let many = (0..100).map(|id| wr(id, SendOp::Send, inline(id as u8, 4)));
    let sent = trains(&mut script, many);
    assert_eq!(sent.iter().map(|train| train.count).collect::<Vec<_>>(), [64, 36]);
    assert!(matches!(sent[0].payload, Payload::Packets { len: 16, .. }));
}

#[test]
fn what_is_sent_again_may_be_split_anywhere() {
    let mut script = rc();
    let sends = (0..4).map(|id| wr(id, SendOp::Send, inline(id as u8, 4)));
    assert_eq!(script.post_all(sends).len(), 4);
    let again = script.answer(OUR_PSN + 2, nak(NakCode::PsnSequence));
    let bytes: Vec<_> = again.iter().map(Packet::payload).collect();
    assert_eq!(seen(&again), [(Op::SendOnly, OUR_PSN + 2), (Op::SendOnly, OUR_PSN + 3)]);
    assert_eq!(bytes, [[2; 4], [3; 4]]);
}
