//! WRITE, READ and FLUSH: the program of the target takes no part.

use feroce::{Access, Data, FlushKind, Imm, QpType, SendOp, SendWr, WcFlags, WcOpcode};

use super::Scene;
use crate::demo::code::Code;
use crate::demo::stage::{Play, bytes, pattern};
use crate::ladder::Side::{Left, Right};

/// This file, for `feroce demo --code`.
const SOURCE: &str = include_str!("one_sided.rs");

/// A message that needs three packets.
const LONG: usize = 2500;

pub(super) const WRITE: Scene = Scene {
    name: "write",
    title: "RDMA WRITE: into the memory of another machine",
    story: "B registers memory for remote writing and gives A its address and key, once and by \
            any means. From then on A writes there as it likes. This is what RDMA is named for: \
            remote direct memory access.",
    terms: &[
        ("rkey", "remote key: a peer that knows it may use the region as far as its owner allows"),
        ("RETH", "header with the remote address (va), the rkey and the length"),
    ],
    notice: "Nothing happens on B's side of the picture: no receive, no completion, no program. \
             Only the first packet says where the data goes.",
    play: write,
    code: Code { source: SOURCE, rust: &["write"], c: &["rdma_write"] },
};

fn write(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, _qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(LONG, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    source.write_at(0, &pattern(4, LONG))?;
    let wr = SendWr::new(1, SendOp::Write(target.remote(512)), source.data(0..LONG));
    play.post(Left, &mut qa, "WRITE", wr)?;
    play.done(Left)?;
    play.check("B's memory holds what A wrote", bytes(&target, 512, LONG)? == pattern(4, LONG));
    let around = [bytes(&target, 0, 512)?, bytes(&target, 512 + LONG, 4096 - 512 - LONG)?].concat();
    play.check("and nothing around it changed", around.iter().all(|&b| b == 0));
    play.check("B's program heard nothing", play.b().cq.poll_one().is_none());
    Ok(())
}

pub(super) const WRITE_IMM: Scene = Scene {
    name: "write-imm",
    title: "RDMA WRITE with immediate: write, and say so",
    story: "The data goes where the RETH says, as before. The immediate consumes a receive of B, \
            so that B's program learns that the data is there.",
    terms: &[],
    notice: "The posted receive needs no buffer: it is only there to be completed.",
    play: write_imm,
    code: Code { source: SOURCE, rust: &["write_imm"], c: &["write_imm"] },
};

fn write_imm(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(256, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(256, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    source.write_at(0, &pattern(5, 256))?;
    play.post_recv(Right, &mut qb, feroce::RecvWr::default())?;
    let op = SendOp::WriteImm(target.remote(0), Imm(7));
    play.post(Left, &mut qa, "WRITE+imm", SendWr::new(1, op, source.data(0..256)))?;
    play.done(Left)?;
    let received = play.done(Right)?;
    let is_write = received.opcode == WcOpcode::RecvWriteImm && received.byte_len == 256;
    play.check("B's completion speaks of a write of 256 bytes", is_write);
    let has_imm = received.flags.contains(WcFlags::WITH_IMM) && received.imm == Imm(7);
    play.check("with immediate 7", has_imm);
    play.check("the data is in place", bytes(&target, 0, 256)? == pattern(5, 256));
    Ok(())
}

pub(super) const READ: Scene = Scene {
    name: "read",
    title: "RDMA READ: out of the memory of another machine",
    story: "A asks for 2500 bytes at an address of B. B's adapter answers from memory, and B's \
            program does not notice.",
    terms: &[],
    notice: "One request, three response packets. Each response has a PSN of A's counter: the \
             request reserved three. The responses are the acknowledgement.",
    play: read,
    code: Code { source: SOURCE, rust: &["read"], c: &["rdma_read"] },
};

fn read(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, _qb) = play.connected(QpType::Rc)?;
    let target = play.a().pd.alloc_mr(LONG, Access::LOCAL_WRITE)?;
    let source = play.b().pd.alloc_mr(LONG, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    source.write_at(0, &pattern(6, LONG))?;
    let wr = SendWr::new(1, SendOp::Read(source.remote(0)), target.data(0..LONG));
    play.post(Left, &mut qa, "READ", wr)?;
    let done = play.done(Left)?;
    play.check("A's completion says READ", done.opcode == WcOpcode::Read);
    play.check("A has B's 2500 bytes", bytes(&target, 0, LONG)? == pattern(6, LONG));
    play.check("B's program heard nothing", play.b().cq.poll_one().is_none());
    Ok(())
}

pub(super) const FLUSH: Scene = Scene {
    name: "flush",
    title: "FLUSH: are my writes really there?",
    story: "An ACK of a WRITE says that the packets have arrived, not that everybody on B can see \
            the data, or that it would survive a loss of power. A FLUSH is answered when the \
            writes before it have got as far as it asks: here, to global visibility.",
    terms: &[],
    notice: "No data travels with a FLUSH, only a range. It is one of the memory placement \
             extensions, which came with persistent memory.",
    play: flush,
    code: Code { source: SOURCE, rust: &["flush"], c: &[] },
};

fn flush(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, _qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(512, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
    let target = play.b().pd.alloc_mr(512, access)?;
    source.write_at(0, &pattern(7, 512))?;
    let write = SendWr::new(1, SendOp::Write(target.remote(0)), source.data(0..512));
    play.post(Left, &mut qa, "WRITE", write)?;
    play.done(Left)?;
    let kind = FlushKind { global: true, ..FlushKind::default() };
    let op = SendOp::Flush { remote: target.remote(0), len: 512, kind };
    play.post(Left, &mut qa, "FLUSH", SendWr::new(2, op, Data::EMPTY))?;
    let done = play.done(Left)?;
    play.check("A's completion says FLUSH", done.opcode == WcOpcode::Flush);
    play.check("the data is in place", bytes(&target, 0, 512)? == pattern(7, 512));
    Ok(())
}
