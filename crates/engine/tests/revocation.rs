//! A right to memory ends at once, but the engine reports that to the consumer only when no process
//! of the host copies under it any more; other queue pairs are not delayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use feroce_engine::{
    Cqe, Data, QpAttr, QpState, QpType, SendFlags, SendOp, SendWr, WcFlags, WcStatus,
};
use feroce_mem::{
    Access, Bind, DirectPath, DirectWrite, HostMemory, MwType, Reach, Revocation, RevocationEpoch,
    Source,
};
use feroce_testkit::{Pair, TestQp, wr};
use feroce_wire::{Qpn, Rkey};

/// Processes of a host, of which one is in the middle of a copy.
#[derive(Debug, Default)]
struct Processes {
    revoked: AtomicU32,
    is_copying: AtomicBool,
}

impl HostMemory for Processes {
    fn revocation_epoch(&self) -> RevocationEpoch {
        RevocationEpoch(self.revoked.load(Ordering::Relaxed))
    }

    fn revoke_from(&self, _: Qpn) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }

    fn revoke_answers(&self) {
        self.revoked.fetch_add(1, Ordering::Relaxed);
    }

    fn is_quiet(&self, _: Revocation) -> bool {
        !self.is_copying.load(Ordering::Relaxed)
    }

    fn open(&self, _: &DirectPath, _: &Reach) {}

    fn write(&self, _: &DirectPath, _: &DirectWrite<'_>) -> bool {
        false
    }

    fn read(
        &self,
        _: &DirectPath,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&dyn Source) -> bool,
    ) -> bool {
        false
    }

    fn is_wide(&self, _: &DirectPath, _: u64, _: usize, _: Access) -> bool {
        false
    }

    fn passed(&self) -> u64 {
        0
    }
}

/// Two connections between two hosts. A process of the second one copies.
struct Copying {
    pair: Pair,
    processes: Arc<Processes>,
    /// The ends of the first connection, and of the second.
    qa: TestQp,
    qb: TestQp,
    other_a: TestQp,
    other_b: TestQp,
    /// A window of the first connection.
    window: Rkey,
}

fn copying() -> Copying {
    let mut pair = Pair::default();
    let processes = Arc::new(Processes::default());
    pair.b.engine.set_host_memory(Arc::<Processes>::clone(&processes));
    let (qa, mut qb) = pair.connect(QpType::Rc);
    let (other_a, other_b) = pair.connect(QpType::Rc);
    let mw = pair.b.engine.alloc_mw(pair.b.pd, MwType::Two).expect("room");
    let window = Rkey(mw.0 & !0xff | (mw.0 + 1) & 0xff);
    let (mr, access) = (pair.b.lkey, Access::REMOTE_WRITE);
    let binding = Bind { mr, addr: 4096, len: 4096, access, zero_based: false };
    let bind = SendOp::BindMw { mw, new_rkey: window, binding };
    qb.sq.post(wr(0, bind, Data::EMPTY)).expect("room");
    pair.run();
    assert_eq!(ids(&pair.b.poll_all()), [(0, WcStatus::Success)]);
    assert!(!pair.b.engine.awaits_revocation(), "no process copies");
    processes.is_copying.store(true, Ordering::Relaxed);
    Copying { pair, processes, qa, qb, other_a, other_b, window }
}

impl Copying {
    /// Asks whether the copy has ended.
    fn poll(&mut self) -> bool {
        let processes = Arc::clone(&self.processes);
        self.pair.b.engine.poll_revocations(&mut |revocation| processes.is_quiet(revocation))
    }

    fn end_copy(&mut self) {
        assert!(!self.poll(), "it is not over");
        self.processes.is_copying.store(false, Ordering::Relaxed);
        assert!(self.poll());
        assert!(!self.pair.b.engine.awaits_revocation());
        self.pair.run();
    }

    fn receive(&mut self, wr_id: u64, by_other: bool) {
        let recv = self.pair.b.recv(wr_id, 0, 64);
        let qp = if by_other { &mut self.other_b } else { &mut self.qb };
        qp.rq.as_mut().expect("its own").post(recv).expect("room");
    }

    fn other_goes_on(&mut self, times: u64) {
        for i in 0..times {
            self.receive(1000 + i, true);
            let data = self.pair.a.data(0, 8);
            self.other_a.sq.post(wr(1000 + i, SendOp::Send, data)).expect("room");
            self.pair.run();
            assert_eq!(ids(&self.pair.a.poll_all()), [(1000 + i, WcStatus::Success)]);
            assert_eq!(ids(&self.pair.b.poll_all()), [(1000 + i, WcStatus::Success)]);
        }
    }
}

fn ids(all: &[Cqe]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect()
}

#[test]
fn a_send_with_invalidate_completes_when_the_copy_has_ended() {
    let mut c = copying();
    let key = c.window;
    (1..=3).for_each(|id| c.receive(id, false));
    for (id, op) in [(1, SendOp::SendInv(key)), (2, SendOp::Send), (3, SendOp::Send)] {
        c.qa.sq.post(wr(id, op, c.pair.a.data(0, 8))).expect("room");
    }
    c.pair.run();
    let ok = WcStatus::Success;
    assert_eq!(ids(&c.pair.a.poll_all()), [(1, ok), (2, ok), (3, ok)], "the sender need not wait");
    assert!(c.pair.b.poll().is_none(), "neither the first nor those behind it");
    c.other_goes_on(2000);
    assert!(c.pair.b.poll().is_none());
    c.end_copy();
    let done = c.pair.b.poll_all();
    assert_eq!(ids(&done), [(1, ok), (2, ok), (3, ok)]);
    assert_eq!((done[0].flags, done[0].invalidated), (WcFlags::WITH_INV, key));
}

#[test]
fn the_key_is_of_no_use_while_the_copy_goes_on() {
    let mut c = copying();
    c.receive(1, false);
    let key = c.window;
    c.qa.sq.post(wr(1, SendOp::SendInv(key), Data::EMPTY)).expect("room");
    let remote = feroce_engine::Remote { addr: 4096, rkey: key };
    c.qa.sq.post(wr(2, SendOp::Write(remote), c.pair.a.data(0, 8))).expect("room");
    c.pair.run();
    let done = c.pair.a.poll_all();
    assert_eq!(ids(&done), [(1, WcStatus::Success), (2, WcStatus::RemoteAccess)]);
}

#[test]
fn what_follows_a_local_invalidation_waits_for_it() {
    let mut c = copying();
    let (key, data) = (c.window, c.pair.b.data(512, 8));
    c.qb.sq.post(wr(1, SendOp::LocalInv(key), Data::EMPTY)).expect("room");
    c.qb.sq.post(wr(2, SendOp::Write(c.pair.a.remote(0)), data)).expect("room");
    let first = c.pair.b.fill(512, 8, 7);
    c.pair.run();
    assert!(c.pair.b.poll().is_none());
    assert_ne!(c.pair.a.read(0, 8), first, "it has not begun");
    c.other_goes_on(100);
    c.end_copy();
    let done = c.pair.b.poll_all();
    assert_eq!(ids(&done), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(c.pair.a.read(0, 8), first);
}

#[test]
fn a_queue_pair_in_error_gives_its_requests_back_when_the_copy_has_ended() {
    let mut c = copying();
    (1..=2).for_each(|id| c.receive(id, false));
    c.pair.b.modify(c.pair.now, c.qb.qpn, &QpAttr::to(QpState::Err));
    let signaled = SendWr { flags: SendFlags::SIGNALED, ..wr(3, SendOp::Send, Data::EMPTY) };
    c.qb.sq.post(signaled).expect("room");
    c.pair.run();
    assert!(c.pair.b.poll().is_none());
    c.other_goes_on(100);
    c.end_copy();
    let mut done = ids(&c.pair.b.poll_all());
    done.sort_by_key(|(id, _)| *id);
    assert_eq!(done, [1, 2, 3].map(|id| (id, WcStatus::Flushed)));
}

#[test]
fn a_queue_pair_that_is_gone_leaves_nothing_behind() {
    let mut c = copying();
    c.receive(1, false);
    c.qa.sq.post(wr(1, SendOp::SendInv(c.window), Data::EMPTY)).expect("room");
    c.pair.run();
    assert_eq!(ids(&c.pair.a.poll_all()), [(1, WcStatus::Success)]);
    c.pair.b.engine.forget_completions(c.pair.b.cq, &mut c.pair.b.poller, c.qb.qpn);
    c.pair.b.engine.destroy_qp(c.qb.qpn).expect("it is there");
    c.end_copy();
    assert!(c.pair.b.poll().is_none());
    c.other_goes_on(3);
    let revoked = c.pair.b.engine.last_revocation(None).expect("there are processes");
    assert!(c.processes.is_quiet(revoked));
    assert!(c.pair.a.engine.last_revocation(None).is_none(), "no process can reach its memory");
}
