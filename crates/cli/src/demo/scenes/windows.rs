//! Memory windows: access rights that are granted and revoked quickly.

use feroce::{
    Access, Bind, Data, Mr, Mw, MwType, Qp, QpType, Remote, SendOp, SendWr, WcFlags, WcStatus,
};

use super::Scene;
use crate::demo::code::Code;
use crate::demo::stage::{Play, bytes, pattern};
use crate::ladder::Side::{Left, Right};

/// This file, for `feroce demo --code`.
const SOURCE: &str = include_str!("windows.rs");

/// The window covers these bytes of the region.
const WINDOW_AT: usize = 1024;
const WINDOW_LEN: usize = 256;

/// B binds a window to part of a region that peers may otherwise not touch.
fn bind(play: &Play<'_>, qb: &mut Qp, region: &Mr) -> anyhow::Result<(Mw, Remote)> {
    let mut window = play.b().pd.alloc_mw(MwType::Two)?;
    let key = window.next_rkey();
    let binding = Bind {
        mr: region.lkey(),
        addr: region.addr() + WINDOW_AT as u64,
        len: WINDOW_LEN as u64,
        access: Access::REMOTE_WRITE,
        zero_based: false,
    };
    let op = SendOp::BindMw { mw: window.rkey(), new_rkey: key, binding };
    play.post(Right, qb, "BIND", SendWr::new(9, op, Data::EMPTY))?;
    play.done(Right)?;
    window.set_rkey(key);
    Ok((window, Remote { addr: binding.addr, rkey: key }))
}

pub(super) const WINDOW: Scene = Scene {
    name: "window",
    title: "Memory window: a key for a part, for a while",
    story: "B has a region of 4096 bytes that no peer may touch. It binds a window to 256 of them \
            and gives A the key of the window. A writes through it.",
    terms: &[("MW", "memory window: an rkey for part of a region, bound and unbound at will")],
    notice: "Binding is work like any other, posted to a QP, but no packet: it happens in B's \
             adapter. The rkey on the wire is that of the window.",
    play: window,
    code: Code { source: SOURCE, rust: &["bind", "window"], c: &["bind_window", "window"] },
};

fn window(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(WINDOW_LEN, Access::LOCAL_WRITE)?;
    let region = play.b().pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    source.write_at(0, &pattern(8, WINDOW_LEN))?;
    let (_window, remote) = bind(play, &mut qb, &region)?;
    let wr = SendWr::new(1, SendOp::Write(remote), source.data(0..WINDOW_LEN));
    play.post(Left, &mut qa, "WRITE", wr)?;
    play.done(Left)?;
    let inside = bytes(&region, WINDOW_AT, WINDOW_LEN)? == pattern(8, WINDOW_LEN);
    play.check("the 256 bytes are those that A wrote", inside);
    let outside = bytes(&region, 0, WINDOW_AT)?.iter().all(|&b| b == 0);
    play.check("the others are untouched", outside);
    Ok(())
}

pub(super) const SEND_INV: Scene = Scene {
    name: "send-inv",
    title: "SEND with invalidate: done, and here is your key back",
    story: "A has written through a window of B. With its last message it returns the key: B's \
            adapter unbinds the window before it completes the receive. A tries the key once \
            more, and is refused.",
    terms: &[("NAK", "negative acknowledgement: the responder will not do it, and says why")],
    notice: "B needs no work request of its own to close the window. File servers work like this: \
             one key for each request, dead when the answer has been sent.",
    play: send_inv,
    code: Code { source: SOURCE, rust: &["send_inv"], c: &["send_inv"] },
};

fn send_inv(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, mut qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    let target = play.b().pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    let region = play.b().pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
    source.write_at(0, &pattern(9, 64))?;
    let (_window, remote) = bind(play, &mut qb, &region)?;
    play.post_recv(Right, &mut qb, target.recv(1, 0..64))?;
    let wr = SendWr::new(1, SendOp::SendInv(remote.rkey), source.data(0..64));
    play.post(Left, &mut qa, "SEND+inv", wr)?;
    play.done(Left)?;
    let received = play.done(Right)?;
    let is_gone = received.flags.contains(WcFlags::WITH_INV) && received.invalidated == remote.rkey;
    play.check("B's completion names the key that died", is_gone);
    play.check("the message is right", bytes(&target, 0, 64)? == pattern(9, 64));
    let again = SendWr::new(2, SendOp::Write(remote), source.data(0..64));
    play.post(Left, &mut qa, "WRITE", again)?;
    let refused = play.wait(Left)?;
    play.check("the dead key opens nothing", refused.status == WcStatus::RemoteAccess);
    let untouched = bytes(&region, WINDOW_AT, 64)?.iter().all(|&b| b == 0);
    play.check("no byte was written", untouched);
    Ok(())
}
