//! Atomic operations on the memory of the peer.

use feroce::{Access, Mr, QpType, SendOp, SendWr};

use super::Scene;
use crate::demo::code::Code;
use crate::demo::stage::{Play, bytes};
use crate::ladder::Side::Left;

/// This file, for `feroce demo --code`.
const SOURCE: &str = include_str!("atomics.rs");

/// The access rights of B's counter.
const COUNTER: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

fn number(mr: &Mr) -> anyhow::Result<u64> {
    let bytes = bytes(mr, 0, 8)?;
    Ok(bytes.first_chunk().map_or(0, |b| u64::from_ne_bytes(*b)))
}

pub(super) const CAS: Scene = Scene {
    name: "cas",
    title: "COMPARE & SWAP: a lock on another machine",
    story: "B's memory holds 0: free. A says: if it is 0, make it 1. That is how a lock is taken. \
            Then A tries again, and fails, because the value no longer is 0.",
    terms: &[],
    notice: "Either way the answer brings back the old value, which tells A whether it won: 0 the \
             first time, 1 the second.",
    play: cas,
    code: Code { source: SOURCE, rust: &["cas"], c: &["compare_swap"] },
};

fn cas(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, _qb) = play.connected(QpType::Rc)?;
    let old = play.a().pd.alloc_mr(8, Access::LOCAL_WRITE)?;
    let lock = play.b().pd.alloc_mr(8, COUNTER)?;
    for (swap, was, now) in [(1, 0, 1), (2, 1, 1)] {
        let op = SendOp::CmpSwap { remote: lock.remote(0), compare: 0, swap };
        play.post(Left, &mut qa, "CAS", SendWr::new(1, op, old.data(0..8)))?;
        play.done(Left)?;
        let is_right = number(&old)? == was && number(&lock)? == now;
        play.check(&format!("0 → {swap}: the value was {was} and is {now}"), is_right);
    }
    Ok(())
}

pub(super) const FAA: Scene = Scene {
    name: "faa",
    title: "FETCH & ADD: a counter for everybody",
    story: "A adds 5 to a number in B's memory and gets the number as it was before: a ticket \
            that no other peer gets.",
    terms: &[],
    notice: "If the answer is lost, A asks again, and B must not add twice: it remembers its last \
             answers by PSN.",
    play: faa,
    code: Code { source: SOURCE, rust: &["faa"], c: &["fetch_add"] },
};

fn faa(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, _qb) = play.connected(QpType::Rc)?;
    let old = play.a().pd.alloc_mr(8, Access::LOCAL_WRITE)?;
    let counter = play.b().pd.alloc_mr(8, COUNTER)?;
    counter.write_at(0, &37_u64.to_ne_bytes())?;
    let op = SendOp::FetchAdd { remote: counter.remote(0), add: 5 };
    play.post(Left, &mut qa, "FAA", SendWr::new(1, op, old.data(0..8)))?;
    play.done(Left)?;
    play.check("A got 37", number(&old)? == 37);
    play.check("B holds 42", number(&counter)? == 42);
    Ok(())
}

pub(super) const ATOMIC_WRITE: Scene = Scene {
    name: "atomic-write",
    title: "ATOMIC WRITE: eight bytes, all or nothing",
    story: "A plain WRITE may become visible in any order, even within a word. An ATOMIC WRITE \
            puts eight bytes in place so that no reader sees half of them: good for a pointer or a \
            flag that says that data is ready.",
    terms: &[],
    notice: "The answer comes when the eight bytes are in place, not when the packet has arrived.",
    play: atomic_write,
    code: Code { source: SOURCE, rust: &["atomic_write"], c: &["atomic_write"] },
};

fn atomic_write(play: &mut Play<'_>) -> anyhow::Result<()> {
    let (mut qa, _qb) = play.connected(QpType::Rc)?;
    let source = play.a().pd.alloc_mr(8, Access::LOCAL_WRITE)?;
    let flag = play.b().pd.alloc_mr(8, COUNTER)?;
    source.write_at(0, &0x1234_5678_9abc_def0_u64.to_ne_bytes())?;
    let wr = SendWr::new(1, SendOp::AtomicWrite(flag.remote(0)), source.data(0..8));
    play.post(Left, &mut qa, "ATOMIC WRITE", wr)?;
    play.done(Left)?;
    play.check("B holds the eight bytes", number(&flag)? == 0x1234_5678_9abc_def0);
    Ok(())
}
