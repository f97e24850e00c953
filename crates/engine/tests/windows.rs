//! Memory windows and fast registration through queue pairs.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;

use feroce_engine::{
    Data, QpAttr, QpState, QpType, Remote, SendOp, Sge, WcFlags, WcOpcode, WcStatus,
};
use feroce_mem::{Access, Bind, DeregError, Iova, MrKind, MwType, RegError, Rereg};
use feroce_testkit::{Pair, TestQp, wr};
use feroce_wire::{Lkey, Rkey};

const RIGHTS: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// `pair.a` reaches memory of `pair.b`, whose queue pair binds windows.
struct Windows {
    pair: Pair,
    qa: TestQp,
    qb: TestQp,
}

/// The same key with another tag.
fn retag(key: u32, by: u8) -> u32 {
    (key & !0xff) | u32::from((key as u8).wrapping_add(by))
}

impl Windows {
    fn new() -> Self {
        let mut pair = Pair::default();
        let (qa, qb) = pair.connect(QpType::Rc);
        Self { pair, qa, qb }
    }

    /// A window that covers bytes 1000 to 1999.
    fn binding(&self) -> Bind {
        let mr = self.pair.b.lkey;
        Bind { mr, addr: 1000, len: 1000, access: RIGHTS, zero_based: false }
    }

    /// Executes a local operation of `pair.b`.
    fn local(&mut self, op: SendOp) -> WcStatus {
        self.qb.sq.post(wr(1, op, Data::EMPTY)).unwrap();
        self.pair.run();
        self.pair.b.poll().unwrap().status
    }

    fn bind(&mut self, kind: MwType, binding: Bind) -> Rkey {
        let mw = self.pair.b.engine.alloc_mw(self.pair.b.pd, kind).unwrap();
        let new_rkey = Rkey(retag(mw.0, 1));
        assert_eq!(self.local(SendOp::BindMw { mw, new_rkey, binding }), WcStatus::Success);
        new_rkey
    }

    /// How a write of `len` bytes through `rkey` ends.
    fn write(&mut self, rkey: Rkey, addr: u64, len: u32) -> WcStatus {
        write(&mut self.pair, &mut self.qa, rkey, addr, len)
    }
}

fn write(pair: &mut Pair, qa: &mut TestQp, rkey: Rkey, addr: u64, len: u32) -> WcStatus {
    let op = SendOp::Write(Remote { addr, rkey });
    qa.sq.post(wr(2, op, pair.a.data(0, len))).unwrap();
    pair.run();
    pair.a.poll().unwrap().status
}

#[test]
fn access_through_a_window_stays_within_its_bounds() {
    for kind in [MwType::One, MwType::Two] {
        let cases = [(1000, 1000, true), (1999, 1, true), (999, 1, false), (1500, 501, false)];
        for (addr, len, allowed) in cases {
            let mut w = Windows::new();
            let (bytes, binding) = (w.pair.a.fill(0, 1000, 3), w.binding());
            let rkey = w.bind(kind, binding);
            let expected = if allowed { WcStatus::Success } else { WcStatus::RemoteAccess };
            assert_eq!(w.write(rkey, addr, len), expected, "{kind:?} {addr} {len}");
            let len = len as usize;
            assert_eq!(w.pair.b.read(addr as usize, len) == bytes[..len], allowed);
        }
    }
}

#[test]
fn access_through_a_window_needs_its_rights() {
    for (access, op, allowed) in [
        (Access::REMOTE_READ, 'r', true),
        (Access::REMOTE_READ, 'w', false),
        (Access::REMOTE_WRITE, 'r', false),
        (Access::REMOTE_READ, 'a', false),
        (Access::REMOTE_ATOMIC, 'a', true),
    ] {
        let mut w = Windows::new();
        let binding = Bind { access, ..w.binding() };
        let rkey = w.bind(MwType::Two, binding);
        let remote = Remote { addr: 1000, rkey };
        let op = match op {
            'r' => SendOp::Read(remote),
            'w' => SendOp::Write(remote),
            _ => SendOp::FetchAdd { remote, add: 1 },
        };
        w.qa.sq.post(wr(2, op, w.pair.a.data(0, 8))).unwrap();
        w.pair.run();
        let expected = if allowed { WcStatus::Success } else { WcStatus::RemoteAccess };
        assert_eq!(w.pair.a.poll().unwrap().status, expected, "{access:?} {op:?}");
    }
}

#[test]
fn a_window_of_type_two_belongs_to_the_queue_pair_that_bound_it() {
    for (kind, expected) in
        [(MwType::One, WcStatus::Success), (MwType::Two, WcStatus::RemoteAccess)]
    {
        let mut w = Windows::new();
        let binding = w.binding();
        let rkey = w.bind(kind, binding);
        let (mut other, _) = w.pair.connect(QpType::Rc);
        assert_eq!(write(&mut w.pair, &mut other, rkey, 1000, 10), expected, "{kind:?}");
        assert_eq!(w.write(rkey, 1000, 10), WcStatus::Success);
    }
}

#[test]
fn addresses_of_a_zero_based_window_count_from_its_first_byte() {
    let mut w = Windows::new();
    let bytes = w.pair.a.fill(0, 1000, 3);
    let binding = Bind { zero_based: true, ..w.binding() };
    let rkey = w.bind(MwType::Two, binding);
    assert_eq!(w.write(rkey, 0, 1000), WcStatus::Success);
    assert_eq!(w.pair.b.read(1000, 1000), bytes);
    assert_eq!(w.write(rkey, 1, 1000), WcStatus::RemoteAccess);
}

#[test]
fn the_key_before_binding_names_nothing_afterwards() {
    for kind in [MwType::One, MwType::Two] {
        let mut w = Windows::new();
        let binding = w.binding();
        let rkey = w.bind(kind, binding);
        let before = Rkey(retag(rkey.0, 255));
        assert_eq!(w.write(before, 1000, 10), WcStatus::RemoteAccess, "{kind:?}");
    }
}

#[test]
fn a_window_of_type_one_moves_with_every_bind() {
    let mut w = Windows::new();
    let binding = w.binding();
    let first = w.bind(MwType::One, binding);
    let second = Rkey(retag(first.0, 1));
    let elsewhere = Bind { addr: 5000, ..binding };
    let bind = SendOp::BindMw { mw: first, new_rkey: second, binding: elsewhere };
    assert_eq!(w.local(bind), WcStatus::Success);
    assert_eq!(w.write(second, 5000, 10), WcStatus::Success);
    let third = Rkey(retag(second.0, 1));
    let nothing = Bind { len: 0, ..binding };
    let unbind = SendOp::BindMw { mw: second, new_rkey: third, binding: nothing };
    assert_eq!(w.local(unbind), WcStatus::Success);
    assert!(w.pair.b.engine.dereg_mr(w.pair.b.lkey).is_ok());
    assert_eq!(w.write(third, 5000, 10), WcStatus::RemoteAccess);
}

#[test]
fn a_local_invalidation_ends_a_window_of_type_two() {
    let mut w = Windows::new();
    let binding = w.binding();
    let rkey = w.bind(MwType::Two, binding);
    assert_eq!(w.write(rkey, 1000, 10), WcStatus::Success);
    assert_eq!(w.local(SendOp::LocalInv(rkey)), WcStatus::Success);
    assert_eq!(w.write(rkey, 1000, 10), WcStatus::RemoteAccess);
}

#[test]
fn a_send_with_invalidate_ends_a_window_and_tells_its_owner() {
    let mut w = Windows::new();
    let binding = w.binding();
    let rkey = w.bind(MwType::Two, binding);
    w.qb.rq.as_mut().unwrap().post(w.pair.b.recv(5, 0, 100)).unwrap();
    w.qa.sq.post(wr(1, SendOp::SendInv(rkey), w.pair.a.data(0, 3))).unwrap();
    w.pair.run();
    assert_eq!(w.pair.a.poll().unwrap().status, WcStatus::Success);
    let done = w.pair.b.poll().unwrap();
    assert_eq!((done.flags, done.invalidated), (WcFlags::WITH_INV, rkey));
    assert_eq!(w.write(rkey, 1000, 10), WcStatus::RemoteAccess);
}

#[test]
fn what_a_send_cannot_invalidate() {
    for case in 0..3 {
        let mut w = Windows::new();
        let binding = w.binding();
        let (mut other, mut end) = w.pair.connect(QpType::Rc);
        let rkey = match case {
            0 => w.bind(MwType::One, binding),
            1 => Rkey(w.pair.b.lkey.0),
            // Bound to another queue pair.
            _ => w.bind(MwType::Two, binding),
        };
        end.rq.as_mut().unwrap().post(w.pair.b.recv(5, 0, 100)).unwrap();
        other.sq.post(wr(1, SendOp::SendInv(rkey), Data::EMPTY)).unwrap();
        w.pair.run();
        assert_eq!(w.pair.a.poll().unwrap().status, WcStatus::RemoteAccess);
        assert_ne!(w.pair.b.poll().unwrap().status, WcStatus::Success);
        assert_eq!(w.write(rkey, 1000, 10), WcStatus::Success);
    }
}

#[test]
fn bindings_that_are_refused() {
    let read_only = Access::REMOTE_READ;
    let mut cases: Vec<(&str, Access, Bind)> = Vec::new();
    let base = Bind { mr: Lkey(0), addr: 1000, len: 1000, access: RIGHTS, zero_based: false };
    cases.push(("no right to bind", Access::LOCAL_WRITE, base));
    cases.push(("remote write needs local write", Access::MW_BIND, base));
    cases.push(("beyond the region", feroce_testkit::ALL, Bind { addr: 4000, ..base }));
    cases.push(("absurd", feroce_testkit::ALL, Bind { addr: u64::MAX, len: u64::MAX, ..base }));
    let local = Bind { access: Access::LOCAL_WRITE, ..base };
    cases.push(("not a right of a window", feroce_testkit::ALL, local));
    cases.push(("empty", feroce_testkit::ALL, Bind { len: 0, access: read_only, ..base }));
    for (why, access, bind) in cases {
        let mut w = Windows::new();
        let host = &mut w.pair.b;
        let region = Arc::clone(&host.region);
        let mr = host.engine.reg_mr(host.pd, region, 0, 4096, Iova::ZeroBased, access).unwrap();
        let mw = host.engine.alloc_mw(host.pd, MwType::Two).unwrap();
        let new_rkey = Rkey(retag(mw.0, 1));
        let bind = SendOp::BindMw { mw, new_rkey, binding: Bind { mr, ..bind } };
        assert_eq!(w.local(bind), WcStatus::MwBind, "{why}");
        assert_eq!(w.qb.sq.state(), QpState::Err);
        assert!(w.pair.b.engine.dereg_mr(mr).is_ok(), "{why}");
    }
}

#[test]
fn windows_and_regions_of_another_domain_cannot_be_bound() {
    let mut w = Windows::new();
    let other = w.pair.b.engine.alloc_pd().unwrap();
    let mw = w.pair.b.engine.alloc_mw(other, MwType::Two).unwrap();
    let binding = w.binding();
    let bind = SendOp::BindMw { mw, new_rkey: Rkey(retag(mw.0, 1)), binding };
    assert_eq!(w.local(bind), WcStatus::MwBind);
}

#[test]
fn a_region_with_windows_cannot_go() {
    let mut w = Windows::new();
    let binding = w.binding();
    let rkey = w.bind(MwType::Two, binding);
    let engine = &mut w.pair.b.engine;
    let mr = w.pair.b.lkey;
    assert_eq!(engine.dereg_mr(mr).err(), Some(DeregError::WindowsBound));
    assert_eq!(engine.rereg_mr(mr, Rereg::default()).err(), Some(RegError::Busy));
    assert_eq!(engine.dealloc_mw(rkey), Ok(()));
    assert_eq!(engine.dealloc_mw(rkey), Err(DeregError::Unknown));
    assert!(engine.dereg_mr(mr).is_ok());
}

#[test]
fn windows_of_type_two_die_with_their_queue_pair() {
    for destroy in [true, false] {
        let mut w = Windows::new();
        let binding = w.binding();
        let rkey = w.bind(MwType::Two, binding);
        let host = &mut w.pair.b;
        assert_eq!(host.engine.query_mr(Lkey(rkey.0)).unwrap().len, 1000);
        if destroy {
            host.engine.destroy_qp(w.qb.qpn).unwrap();
        } else {
            host.modify(w.pair.now, w.qb.qpn, &QpAttr::to(QpState::Reset));
        }
        let left = host.engine.query_mr(Lkey(rkey.0)).unwrap();
        assert_eq!((left.len, left.kind), (0, MrKind::Window(MwType::Two)));
        assert!(host.engine.dereg_mr(host.lkey).is_ok());
    }
}

#[test]
fn fast_registration_maps_and_unmaps_in_the_order_of_requests() {
    let mut w = Windows::new();
    let host = &mut w.pair.b;
    let raw = host.engine.alloc_mr(host.pd, Arc::clone(&host.region)).unwrap();
    let key = Lkey(retag(raw.0, 7));
    let access = RIGHTS | Access::LOCAL_WRITE;
    let reg = SendOp::Reg { key, offset: 4096, len: 8192, iova: 0x10_0000, access };
    assert_eq!(w.local(reg), WcStatus::Success);
    let bytes = w.pair.a.fill(0, 100, 4);
    let rkey = Rkey(key.0);
    assert_eq!(w.write(rkey, 0x10_0000, 100), WcStatus::Success);
    assert_eq!(w.pair.b.read(4096, 100), bytes);
    // Unmapping and mapping again elsewhere in one go.
    let next = Lkey(retag(key.0, 1));
    let again = SendOp::Reg { key: next, offset: 0, len: 4096, iova: 0, access };
    w.qb.sq.post(wr(1, SendOp::LocalInv(rkey), Data::EMPTY)).unwrap();
    w.qb.sq.post(wr(2, again, Data::EMPTY)).unwrap();
    w.pair.run();
    let done: Vec<_> = w.pair.b.poll_all().iter().map(|c| (c.opcode, c.status)).collect();
    let expected = [(WcOpcode::LocalInv, WcStatus::Success), (WcOpcode::Reg, WcStatus::Success)];
    assert_eq!(done, expected);
    assert_eq!(w.write(Rkey(next.0), 0, 100), WcStatus::Success);
    assert_eq!(w.write(rkey, 0x10_0000, 100), WcStatus::RemoteAccess);
}

#[test]
fn a_send_with_invalidate_unmaps_a_fast_registration() {
    let mut w = Windows::new();
    let host = &mut w.pair.b;
    let key = host.engine.alloc_mr(host.pd, Arc::clone(&host.region)).unwrap();
    let access = RIGHTS | Access::LOCAL_WRITE;
    let reg = SendOp::Reg { key, offset: 0, len: 8192, iova: 0, access };
    assert_eq!(w.local(reg), WcStatus::Success);
    w.qb.rq.as_mut().unwrap().post(w.pair.b.recv(5, 0, 100)).unwrap();
    w.qa.sq.post(wr(1, SendOp::SendInv(Rkey(key.0)), Data::EMPTY)).unwrap();
    w.pair.run();
    assert_eq!(w.pair.a.poll().unwrap().status, WcStatus::Success);
    assert_eq!(w.pair.b.engine.query_mr(key).unwrap().len, 0);
    assert_eq!(w.write(Rkey(key.0), 0, 10), WcStatus::RemoteAccess);
}

#[test]
fn registrations_that_are_refused() {
    let absurd = |offset, len, iova, access| {
        let mut w = Windows::new();
        let host = &mut w.pair.b;
        let key = host.engine.alloc_mr(host.pd, Arc::clone(&host.region)).unwrap();
        let status = w.local(SendOp::Reg { key, offset, len, iova, access });
        let mapped = w.pair.b.engine.query_mr(key).unwrap().len != 0;
        assert_eq!(mapped, status == WcStatus::Success);
        status
    };
    let read = Access::REMOTE_READ;
    assert_eq!(absurd(0, 4096, 0, read), WcStatus::Success);
    assert_eq!(absurd(u64::MAX, 1, 0, read), WcStatus::MwBind);
    assert_eq!(absurd(0, u64::MAX, 0, read), WcStatus::MwBind);
    assert_eq!(absurd(1, feroce_testkit::MEMORY as u64, 0, read), WcStatus::MwBind);
    assert_eq!(absurd(0, 4096, u64::MAX, read), WcStatus::MwBind);
    assert_eq!(absurd(0, 4096, 0, Access::REMOTE_WRITE), WcStatus::MwBind);
    let mut w = Windows::new();
    let ordinary = SendOp::LocalInv(Rkey(w.pair.b.lkey.0));
    assert_eq!(w.local(ordinary), WcStatus::MwBind);
}

/// An invalidation waits for every request before it: one of them may have to be sent again from
/// memory that the key names (IBTA vol1 10.6.5.1).
#[test]
fn a_local_invalidation_waits_for_what_was_posted_before_it() {
    let mut w = Windows::new();
    let key = w.pair.b.engine.alloc_mr(w.pair.b.pd, Arc::clone(&w.pair.b.region)).unwrap();
    let access = Access::LOCAL_WRITE;
    assert_eq!(
        w.local(SendOp::Reg { key, offset: 0, len: 4096, iova: 0, access }),
        WcStatus::Success
    );
    let data = Data::Sges(Sge { addr: 0, len: 64, lkey: key }.into());
    w.qb.sq.post(wr(1, SendOp::Write(w.pair.a.remote(0)), data)).unwrap();
    w.qb.sq.post(wr(2, SendOp::LocalInv(Rkey(key.0)), Data::EMPTY)).unwrap();
    // The first copy is lost.
    assert_eq!(w.pair.b.transmit(w.pair.now).len(), 1);
    w.pair.wait(200_000_000);
    w.pair.run();
    let done: Vec<_> = w.pair.b.poll_all().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(w.pair.b.engine.query_mr(key).map(|info| info.len), Some(0));
}
