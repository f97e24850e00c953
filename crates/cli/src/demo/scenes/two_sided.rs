//! SEND and its variants: both programs take part.

use feroce::{Access, Imm, QpType, SendOp, SendWr, WcFlags};

use super::Scene;
use crate::demo::code::Code;
use crate::demo::stage::{Play, bytes, pattern};
use crate::ladder::Side::{Left, Right};

/// This file, for `feroce demo --code`.
const SOURCE: &str = include_str!("two_sided.rs");

/// A message that needs three packets.
const LONG: usize = 2500;

pub(super) const SEND: Scene = Scene {
    name: "send",
    title: "SEND: a message into a buffer that the receiver chose",
    story: "B posts a receive, which is a buffer for a message to come. A posts a SEND of 2500 \
            bytes. The adapters do the rest: A's cuts the message into packets of 1024 bytes, B's \
            puts them into the buffer and acknowledges. A completion tells each program that its \
            work is done.",
    terms: &[
        ("MR", "memory region: memory that the adapter may use, named by keys"),
        ("QP", "queue pair: a send queue and a receive queue, where programs post work"),
        ("CQ", "completion queue: where the adapter reports what has become of posted work"),
        ("RC", "reliable connection: two QPs; packets are numbered, acknowledged, sent again"),
        ("PSN", "packet sequence number: counts the packets of one direction of a connection"),
    ],
    notice: "Three packets, one ACK: it covers everything up to its PSN. Its MSN counts the \
             messages that B has completed; its credits are the receives that B still has posted.",
    play: send,
    code: Code { source: SOURCE, rust: &["send"], c: &["send_message"] },
};

fn send(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(LONG, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
    source.write_at(0, &pattern(1, LONG))?;
    play.post_recv(Right, &mut qb, target.recv(1, 0..4096))?;
    let wr = SendWr::new(1, SendOp::Send, source.data(0..LONG));
    play.post(Left, &mut qa, "SEND", wr)?;
    play.done(Left)?;
    let received = play.done(Right)?;
    play.check("B's completion says 2500 bytes", received.byte_len as usize == LONG);
    play.check("they are those that A sent", bytes(&target, 0, LONG)? == pattern(1, LONG));
    Ok(())
}

pub(super) const SEND_IMM: Scene = Scene {
    name: "send-imm",
    title: "SEND with immediate: four bytes for the receiver's completion",
    story: "A message may carry 32 bits that do not go to memory but into the completion of the \
            receiver: a tag, a length, a request number.",
    terms: &[],
    notice: "The immediate travels in the last packet of a message, in a header of its own.",
    play: send_imm,
    code: Code { source: SOURCE, rust: &["send_imm"], c: &["send_imm"] },
};

fn send_imm(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    source.write_at(0, &pattern(2, 64))?;
    play.post_recv(Right, &mut qb, target.recv(1, 0..64))?;
    let wr = SendWr::new(1, SendOp::SendImm(Imm(0xcafe)), source.data(0..64));
    play.post(Left, &mut qa, "SEND+imm", wr)?;
    play.done(Left)?;
    let received = play.done(Right)?;
    let has_imm = received.flags.contains(WcFlags::WITH_IMM) && received.imm == Imm(0xcafe);
    play.check("B's completion holds 0xcafe", has_imm);
    play.check("the data is right, too", bytes(&target, 0, 64)? == pattern(2, 64));
    Ok(())
}

pub(super) const SRQ: Scene = Scene {
    name: "srq",
    title: "Shared receive queue: one pool of buffers for many connections",
    story: "A server with a thousand clients cannot keep buffers posted for each. Queue pairs can \
            take their receives from one shared queue instead. Here two connections of A end in \
            two QPs of B that share one.",
    terms: &[("SRQ", "shared receive queue: a QP that gets a message takes the next buffer")],
    notice: "Each connection counts its own PSNs, so both begin at 100. The completion says which \
             QP and which buffer a message is for.",
    play: srq,
    code: Code { source: SOURCE, rust: &["srq"], c: &["shared_receives"] },
};

fn srq(play: &mut Play<'_>) -> anyhow::Result<()> {
    play.many_qps = true;
    let srq = play.b().pd.create_srq(8, 1)?;
    let (mut qa1, qb1) = play.connected_with(QpType::Rc, Some(&srq))?;
    let (mut qa2, qb2) = play.connected_with(QpType::Rc, Some(&srq))?;
    play.names = ["2 QPs".to_owned(), "2 QPs, 1 SRQ".to_owned()];
    let source = play.a().pd.alloc_mr(128, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(128, Access::LOCAL_WRITE)?;
    source.write_at(0, &pattern(3, 128))?;
    play.stage.recorder.note(Right, "post 2 receives to the SRQ");
    srq.post_recv([target.recv(0, 0..64), target.recv(1, 64..128)])?;
    let mut owners = Vec::new();
    for (i, qp) in [&mut qa1, &mut qa2].into_iter().enumerate() {
        let wr = SendWr::new(1, SendOp::Send, source.data(i * 64..(i + 1) * 64));
        play.post(Left, qp, "SEND", wr)?;
        play.done(Left)?;
        let received = play.done(Right)?;
        play.check(&format!("message {} took buffer {}", i + 1, i + 1), received.wr_id == i as u64);
        owners.push(received.qpn);
    }
    play.check("each came through its own QP", owners == [qb1.qpn(), qb2.qpn()]);
    play.check("the data is right", bytes(&target, 0, 128)? == pattern(3, 128));
    Ok(())
}
