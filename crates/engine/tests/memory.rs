//! Memory regions through queue pairs: which keys give access to which memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;

use feroce_engine::{
    AsyncEvent, Data, QpAttr, QpState, QpType, RecvWr, Remote, SendOp, Sge, SgeList, WcStatus,
};
use feroce_mem::{Access, Iova, PdId, RegError, Region, Rereg};
use feroce_testkit::{ALL, Pair, TestQp, wr};
use feroce_wire::{Lkey, Rkey};

struct Memory {
    pair: Pair,
    qa: TestQp,
    qb: TestQp,
}

impl Memory {
    fn new() -> Self {
        let mut pair = Pair::default();
        let (qa, qb) = pair.connect(QpType::Rc);
        Self { pair, qa, qb }
    }

    /// A registration of 4096 bytes of `pair.b` in `pd`.
    fn register(&mut self, pd: PdId, iova: Iova, access: Access) -> Lkey {
        let region = Arc::clone(&self.pair.b.region);
        self.pair.b.engine.reg_mr(pd, region, 8192, 4096, iova, access).unwrap()
    }

    /// How an operation of `pair.a` on eight bytes ends.
    fn access(&mut self, op: SendOp) -> WcStatus {
        self.qa.sq.post(wr(1, op, self.pair.a.data(0, 8))).unwrap();
        self.pair.run();
        self.pair.a.poll().unwrap().status
    }

    fn write(&mut self, key: Lkey, addr: u64) -> WcStatus {
        self.access(SendOp::Write(Remote { addr, rkey: Rkey(key.0) }))
    }
}

#[test]
fn the_right_of_the_region_decides() {
    type Make = fn(Remote) -> SendOp;
    let ops: [(Access, Make); 3] = [
        (Access::REMOTE_WRITE, SendOp::Write),
        (Access::REMOTE_READ, SendOp::Read),
        (Access::REMOTE_ATOMIC, |remote| SendOp::FetchAdd { remote, add: 1 }),
    ];
    for (i, (access, _)) in ops.iter().enumerate() {
        for (j, (_, op)) in ops.iter().enumerate() {
            let mut m = Memory::new();
            let pd = m.pair.b.pd;
            let key = m.register(pd, Iova::ZeroBased, *access | Access::LOCAL_WRITE);
            let status = m.access(op(Remote { addr: 0, rkey: Rkey(key.0) }));
            let expected = if i == j { WcStatus::Success } else { WcStatus::RemoteAccess };
            assert_eq!(status, expected, "{access:?}");
            if i != j {
                assert_eq!(m.pair.b.async_events(), [AsyncEvent::QpAccessError(m.qb.qpn)]);
                assert_eq!(m.qb.sq.state(), QpState::Err);
            }
        }
    }
}

#[test]
fn the_right_of_the_queue_pair_comes_before_that_of_the_region() {
    for (allowed, expected) in [
        (Access::REMOTE_WRITE, WcStatus::Success),
        (Access::REMOTE_READ | Access::REMOTE_ATOMIC, WcStatus::RemoteInvalidRequest),
    ] {
        let mut pair = Pair::default();
        let (ia, ib) = (pair.a.init_attr(QpType::Rc), pair.b.init_attr(QpType::Rc));
        let with = QpAttr { access: Some(allowed), ..QpAttr::default() };
        let (qa, qb) = pair.connect_with(ia, ib, with);
        let mut m = Memory { pair, qa, qb };
        let key = m.pair.b.lkey;
        assert_eq!(m.write(key, 0), expected);
    }
}

#[test]
fn addresses_count_as_registered() {
    let base = 0x7000_0000_0000;
    for (iova, first) in [
        (Iova::ZeroBased, Some(0)),
        (Iova::At(base), Some(base)),
        (Iova::At(u64::MAX - 4095), Some(u64::MAX - 4095)),
        (Iova::Natural, None),
    ] {
        let mut m = Memory::new();
        let pd = m.pair.b.pd;
        let key = m.register(pd, iova, ALL);
        let first = first.unwrap_or_else(|| m.pair.b.region.addr() + 8192);
        let bytes = m.pair.a.fill(0, 8, 5);
        assert_eq!(m.write(key, first), WcStatus::Success, "{iova:?}");
        assert_eq!(m.write(key, first + 4088), WcStatus::Success);
        assert_eq!(m.pair.b.read(8192, 8), bytes);
        assert_eq!(m.pair.b.read(8192 + 4088, 8), bytes);
        assert_eq!(m.write(key, first.wrapping_add(4089)), WcStatus::RemoteAccess);
        let mut m = Memory::new();
        let pd = m.pair.b.pd;
        let key = m.register(pd, iova, ALL);
        assert_eq!(m.write(key, first.wrapping_sub(1)), WcStatus::RemoteAccess);
    }
}

#[test]
fn memory_of_another_protection_domain_is_out_of_reach() {
    let mut m = Memory::new();
    let other = m.pair.b.engine.alloc_pd().unwrap();
    let key = m.register(other, Iova::ZeroBased, ALL);
    assert_eq!(m.write(key, 0), WcStatus::RemoteAccess);
    // Of our own, too.
    let mut m = Memory::new();
    let other = m.pair.a.engine.alloc_pd().unwrap();
    let region = Arc::clone(&m.pair.a.region);
    let lkey = m.pair.a.engine.reg_mr(other, region, 0, 64, Iova::ZeroBased, ALL).unwrap();
    let data = Data::Sges(SgeList::from(Sge { addr: 0, len: 8, lkey }));
    m.qa.sq.post(wr(1, SendOp::Write(m.pair.b.remote(0)), data)).unwrap();
    m.pair.run();
    assert_eq!(m.pair.a.poll().unwrap().status, WcStatus::LocalProtection);
}

#[test]
fn local_buffers_need_local_write_only_to_be_written() {
    let mut m = Memory::new();
    let region = Region::alloc(64).unwrap();
    let read_only = Access::empty();
    let host = &mut m.pair.a;
    let lkey = host.engine.reg_mr(host.pd, region, 0, 64, Iova::ZeroBased, read_only).unwrap();
    let data = || Data::Sges(SgeList::from(Sge { addr: 0, len: 8, lkey }));
    m.qa.sq.post(wr(1, SendOp::Write(m.pair.b.remote(0)), data())).unwrap();
    m.qa.sq.post(wr(2, SendOp::Read(m.pair.b.remote(0)), data())).unwrap();
    m.pair.run();
    let done: Vec<_> = m.pair.a.poll_all().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::LocalProtection)]);
}

#[test]
fn a_receive_needs_local_write() {
    let mut m = Memory::new();
    let pd = m.pair.b.pd;
    let lkey = m.register(pd, Iova::ZeroBased, Access::REMOTE_READ);
    let sges = SgeList::from(Sge { addr: 0, len: 100, lkey });
    m.qb.rq.as_mut().unwrap().post(RecvWr { wr_id: 1, sges }).unwrap();
    assert_eq!(m.access(SendOp::Send), WcStatus::RemoteOperation);
    assert_eq!(m.pair.b.poll().unwrap().status, WcStatus::LocalProtection);
}

#[test]
fn deregistration_ends_access_at_once() {
    let mut m = Memory::new();
    let pd = m.pair.b.pd;
    let key = m.register(pd, Iova::ZeroBased, ALL);
    assert_eq!(m.write(key, 0), WcStatus::Success);
    assert!(m.pair.b.engine.dereg_mr(key).unwrap().is_quiet());
    assert_eq!(m.write(key, 0), WcStatus::RemoteAccess);
    // Under a request that is posted but not sent.
    let mut m = Memory::new();
    m.qa.sq.post(wr(1, SendOp::Write(m.pair.b.remote(0)), m.pair.a.data(0, 8))).unwrap();
    let key = m.pair.a.lkey;
    assert!(m.pair.a.engine.dereg_mr(key).unwrap().is_quiet());
    m.pair.run();
    assert_eq!(m.pair.a.poll().unwrap().status, WcStatus::LocalProtection);
}

#[test]
fn deregistration_waits_for_a_train_that_the_link_still_holds() {
    let mut m = Memory::new();
    m.qa.sq.post(wr(1, SendOp::Write(m.pair.b.remote(0)), m.pair.a.data(0, 8))).unwrap();
    let train = m.pair.a.engine.poll_transmit(m.pair.now, &feroce_testkit::CAPS).unwrap();
    let ending = m.pair.a.engine.dereg_mr(m.pair.a.lkey).unwrap();
    assert!(!ending.is_quiet());
    drop(train);
    assert!(ending.is_quiet());
}

#[test]
fn memory_that_goes_under_a_read_in_progress_is_an_access_error() {
    let mut m = Memory::new();
    let read = SendOp::Read(m.pair.b.remote(0));
    m.qa.sq.post(wr(1, read, m.pair.a.data(0, 500_000))).unwrap();
    for packet in m.pair.a.transmit(m.pair.now) {
        m.pair.b.receive(m.pair.now, &packet);
    }
    let first = m.pair.b.engine.poll_transmit(m.pair.now, &feroce_testkit::CAPS);
    assert!(first.is_some());
    drop(first);
    assert!(m.pair.b.engine.dereg_mr(m.pair.b.lkey).unwrap().is_quiet());
    let rest = m.pair.b.transmit(m.pair.now);
    assert_eq!(rest.len(), 1);
    assert_eq!(m.pair.b.async_events(), [AsyncEvent::QpAccessError(m.qb.qpn)]);
    assert_eq!(m.qb.sq.state(), QpState::Err);
}

#[test]
fn a_registration_can_be_changed() {
    let mut m = Memory::new();
    let pd = m.pair.b.pd;
    let key = m.register(pd, Iova::ZeroBased, ALL);
    let change = Rereg { access: Some(Access::REMOTE_READ), ..Rereg::default() };
    assert!(m.pair.b.engine.rereg_mr(key, change).unwrap().is_quiet());
    assert_eq!(m.write(key, 0), WcStatus::RemoteAccess);

    let mut m = Memory::new();
    let pd = m.pair.b.pd;
    let key = m.register(pd, Iova::ZeroBased, ALL);
    let region = Arc::clone(&m.pair.b.region);
    let range = Some((region, 100_000, 16, Iova::At(0x5000)));
    assert!(m.pair.b.engine.rereg_mr(key, Rereg { range, ..Rereg::default() }).unwrap().is_quiet());
    let bytes = m.pair.a.fill(0, 8, 1);
    assert_eq!(m.write(key, 0x5008), WcStatus::Success);
    assert_eq!(m.pair.b.read(100_008, 8), bytes);
    let other = m.pair.b.engine.alloc_pd().unwrap();
    assert!(
        m.pair
            .b
            .engine
            .rereg_mr(key, Rereg { pd: Some(other), ..Rereg::default() })
            .unwrap()
            .is_quiet()
    );
    assert_eq!(m.pair.b.engine.query_mr(key).unwrap().pd, other);
    assert_eq!(m.write(key, 0x5008), WcStatus::RemoteAccess);
}

#[test]
fn registrations_that_are_refused() {
    let mut m = Memory::new();
    let (pd, region) = (m.pair.b.pd, Arc::clone(&m.pair.b.region));
    let mut reg = |offset, len, iova, access| {
        m.pair.b.engine.reg_mr(pd, Arc::clone(&region), offset, len, iova, access)
    };
    let size = feroce_testkit::MEMORY;
    assert_eq!(reg(1, size, Iova::ZeroBased, ALL), Err(RegError::OutOfBounds));
    assert_eq!(reg(usize::MAX, 2, Iova::ZeroBased, ALL), Err(RegError::OutOfBounds));
    assert_eq!(reg(0, usize::MAX, Iova::ZeroBased, ALL), Err(RegError::OutOfBounds));
    assert_eq!(reg(0, size, Iova::At(u64::MAX), ALL), Err(RegError::IovaOverflow));
    let unsafe_right = Access::REMOTE_WRITE;
    assert_eq!(reg(0, size, Iova::ZeroBased, unsafe_right), Err(RegError::InvalidAccess));
    assert!(reg(size, 0, Iova::ZeroBased, ALL).is_ok());
}

#[test]
fn an_access_of_no_bytes_needs_no_key() {
    for op in [SendOp::Write(Remote::default()), SendOp::Read(Remote::default())] {
        let mut m = Memory::new();
        m.qa.sq.post(wr(1, op, Data::EMPTY)).unwrap();
        m.pair.run();
        assert_eq!(m.pair.a.poll().unwrap().status, WcStatus::Success);
    }
}
