//! Error cases: a receiver that is not ready, and access that is refused.

use anyhow::Context as _;
use feroce::wire::Syndrome;
use feroce::{Access, QpState, QpType, SendOp, SendWr, WcStatus};

use super::Scene;
use crate::demo::code::Code;
use crate::demo::stage::{Play, bytes, patiently, pattern};
use crate::ladder::Side::{Left, Right};

/// This file, for `feroce demo --code`.
const SOURCE: &str = include_str!("trouble.rs");

pub(super) const RNR: Scene = Scene {
    name: "rnr",
    title: "Receiver not ready: wait a little",
    story: "A sends before B has posted a receive. A reliable connection does not lose the \
            message: B's adapter answers that it is not ready and for how long to wait. Meanwhile \
            B posts the receive, and A's adapter tries again by itself.",
    terms: &[("RNR", "receiver not ready: there is no receive for the message; try again later")],
    notice: "The same PSN twice. The waiting time is in the RNR NAK; A's program sees nothing of \
             all this but a late completion.",
    play: rnr,
    code: Code { source: SOURCE, rust: &["rnr"], c: &["receiver_not_ready"] },
};

fn rnr(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    source.write_at(0, &pattern(13, 64))?;
    let wr = SendWr::new(1, SendOp::Send, source.data(0..64));
    play.post(Left, &mut qa, "SEND", wr)?;
    let is_rnr = |packet: &feroce::wire::Packet<'_>| {
        packet.exts.aeth.is_some_and(|aeth| matches!(aeth.syndrome, Syndrome::RnrNak { .. }))
    };
    let seen = patiently(|| play.stage.recorder.has_sent(Right, is_rnr).then_some(()));
    seen.context("B never said that it is not ready")?;
    play.post_recv(Right, &mut qb, target.recv(1, 0..64))?;
    play.done(Left)?;
    play.done(Right)?;
    play.check("B said that it was not ready", true);
    play.check("the message arrived in the end", bytes(&target, 0, 64)? == pattern(13, 64));
    Ok(())
}

pub(super) const REFUSED: Scene = Scene {
    name: "refused",
    title: "Refused: what protects memory",
    story: "B's region may be read by peers, not written. A writes anyway. B's adapter checks key, \
            bounds and rights of every request, and refuses. That ends the connection: A's QP goes \
            to the error state, and what was posted behind is flushed.",
    terms: &[],
    notice: "The NAK says why; A's completion says the same as a status. Nothing of the data \
             reached B's memory.",
    play: refused,
    code: Code { source: SOURCE, rust: &["refused"], c: &["refused"] },
};

fn refused(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, _qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(128, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(128, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    source.write_at(0, &pattern(14, 128))?;
    let write = |id| SendWr::new(id, SendOp::Write(target.remote(0)), source.data(0..128));
    play.post(Left, &mut qa, "WRITE", write(1))?;
    let first = play.wait(Left)?;
    play.check("status: remote access error", first.status == WcStatus::RemoteAccess);
    play.check("A's QP is in error", qa.state() == QpState::Err);
    play.post(Left, &mut qa, "another WRITE", write(2))?;
    let second = play.wait(Left)?;
    play.check("the next request is flushed", second.status == WcStatus::Flushed);
    let untouched = bytes(&target, 0, 128)?.iter().all(|&b| b == 0);
    play.check("no byte of B's memory changed", untouched);
    Ok(())
}
