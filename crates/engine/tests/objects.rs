//! Objects: limits, unknown and busy ones, numbers.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

#[path = "../../wire/tests/common/uniform.rs"]
mod uniform;

use std::collections::BTreeSet;
use std::sync::Arc;

use feroce_engine::{
    AddrVec, AhId, AsyncEvent, Config, CqId, CreateError, DestroyError, Engine, Event, Limits,
    QpCap, QpInitAttr, QpType, SrqId, SrqInitAttr, XrcdId,
};
use feroce_mem::{DeregError, Iova, MwType, PdId, RegError, Region, Rereg};
use feroce_testkit::{ALL, Host, Pair};
use feroce_train::GidEntry;
use feroce_wire::{Gid, Lkey, Pkey, Qpn, Rkey};

fn limited(limits: Limits) -> Host {
    Host::with_config(1, Config { limits, ..Config::default() })
}

fn av() -> AddrVec {
    AddrVec { dgid: Gid::from_ipv4([10, 0, 0, 2]), ..AddrVec::default() }
}

fn create(host: &mut Host, init: QpInitAttr) -> Result<Qpn, CreateError> {
    host.engine.create_qp(init).map(|qp| qp.qpn)
}

#[test]
fn every_kind_of_object_has_a_limit() {
    let limits = Limits { max_qp: 2, max_mr: 3, max_pd: 2, max_ah: 2, ..Limits::default() };
    let mut host = limited(limits);
    let many = CreateError::TooMany;
    let init = host.init_attr(QpType::Rc);
    let first = create(&mut host, init).unwrap();
    create(&mut host, init).unwrap();
    assert_eq!(create(&mut host, init), Err(many));
    host.engine.destroy_qp(first).unwrap();
    assert!(create(&mut host, init).is_ok());
    // The host itself has one of each already.
    let (pd, region) = (host.pd, Arc::clone(&host.region));
    host.engine.alloc_pd().unwrap();
    assert_eq!(host.engine.alloc_pd(), Err(many));
    let reg =
        |host: &mut Host| host.engine.reg_mr(pd, Arc::clone(&region), 0, 1, Iova::ZeroBased, ALL);
    reg(&mut host).unwrap();
    let mw = host.engine.alloc_mw(pd, MwType::Two).unwrap();
    assert_eq!(reg(&mut host), Err(RegError::TableFull));
    host.engine.dealloc_mw(mw).unwrap();
    assert!(reg(&mut host).is_ok());
    let ah = host.engine.create_ah(pd, av()).unwrap();
    host.engine.create_ah(pd, av()).unwrap();
    assert_eq!(host.engine.create_ah(pd, av()), Err(many));
    host.engine.destroy_ah(ah).unwrap();
    assert!(host.engine.create_ah(pd, av()).is_ok());
    for _ in 0..2 {
        host.engine.alloc_xrcd().unwrap();
    }
    assert_eq!(host.engine.alloc_xrcd(), Err(many));
}

#[test]
fn queue_sizes_beyond_the_limits_are_refused() {
    let limits = Limits { max_qp_wr: 100, max_sge: 3, max_inline: 50, ..Limits::default() };
    let mut host = limited(limits);
    let cap = QpCap {
        max_send_wr: 100,
        max_recv_wr: 100,
        max_send_sge: 3,
        max_recv_sge: 3,
        max_inline: 50,
    };
    let base = QpInitAttr { cap, ..host.init_attr(QpType::Rc) };
    let cases = [
        ("number of work requests", QpCap { max_send_wr: 101, ..cap }),
        ("number of work requests", QpCap { max_recv_wr: u32::MAX, ..cap }),
        ("number of SGEs", QpCap { max_send_sge: 4, ..cap }),
        ("number of SGEs", QpCap { max_recv_sge: u32::MAX, ..cap }),
        ("inline data", QpCap { max_inline: 51, ..cap }),
    ];
    for (what, cap) in cases {
        let error = CreateError::BeyondLimits(what);
        assert_eq!(create(&mut host, QpInitAttr { cap, ..base }), Err(error));
        assert!(error.to_string().contains(what));
    }
    assert!(create(&mut host, base).is_ok());
    let nothing = QpCap::default();
    assert!(create(&mut host, QpInitAttr { cap: nothing, ..base }).is_ok());
}

#[test]
fn unknown_objects_are_named_in_errors() {
    let mut host = Host::new(1);
    let base = host.init_attr(QpType::Rc);
    let unknown = |what| Err(CreateError::Unknown(what));
    let pd = QpInitAttr { pd: PdId(9), ..base };
    assert_eq!(create(&mut host, pd), unknown("protection domain"));
    let send_cq = QpInitAttr { send_cq: CqId(9), ..base };
    assert_eq!(create(&mut host, send_cq), unknown("completion queue"));
    let recv_cq = QpInitAttr { recv_cq: CqId(u32::MAX), ..base };
    assert_eq!(create(&mut host, recv_cq), unknown("completion queue"));
    let srq = QpInitAttr { srq: Some(SrqId(9)), ..base };
    assert_eq!(create(&mut host, srq), unknown("shared receive queue"));
    let engine = &mut host.engine;
    assert_eq!(engine.destroy_qp(Qpn::new(0x55)), Err(DestroyError::Unknown));
    assert_eq!(engine.destroy_cq(CqId(9)), Err(DestroyError::Unknown));
    assert_eq!(engine.destroy_srq(SrqId(u32::MAX)), Err(DestroyError::Unknown));
    assert_eq!(engine.destroy_ah(AhId(9)), Err(DestroyError::Unknown));
    assert_eq!(engine.dealloc_pd(PdId(9)), Err(DestroyError::Unknown));
    assert_eq!(engine.dealloc_xrcd(XrcdId(9)), Err(DestroyError::Unknown));
    assert_eq!(engine.dealloc_mw(Rkey(9)), Err(DeregError::Unknown));
    assert_eq!(engine.dereg_mr(Lkey(9)).err(), Some(DeregError::Unknown));
    assert_eq!(engine.query_mr(Lkey(9)), None);
    let result = engine.detach_mcast(Qpn::new(3), Gid::from_ipv4([239, 0, 0, 1]));
    assert_eq!(result, Err(DestroyError::Unknown));
}

#[test]
fn memory_needs_a_protection_domain_that_exists() {
    let mut host = Host::new(1);
    let none = PdId(9);
    let region = Region::alloc(100).unwrap();
    let engine = &mut host.engine;
    let unknown = RegError::UnknownPd;
    let reg = engine.reg_mr(none, Arc::clone(&region), 0, 100, Iova::ZeroBased, ALL);
    assert_eq!(reg, Err(unknown));
    assert_eq!(engine.alloc_mr(none, region), Err(unknown));
    assert_eq!(engine.alloc_mw(none, MwType::One), Err(unknown));
    let change = Rereg { pd: Some(none), ..Rereg::default() };
    assert_eq!(engine.rereg_mr(host.lkey, change).err(), Some(unknown));
}

#[test]
fn a_protection_domain_in_use_stays() {
    let mut host = Host::new(1);
    let engine = &mut host.engine;
    let pd = engine.alloc_pd().unwrap();
    let busy = Err(DestroyError::Busy);
    let region = Region::alloc(100).unwrap();
    let mr = engine.reg_mr(pd, Arc::clone(&region), 0, 100, Iova::ZeroBased, ALL).unwrap();
    assert_eq!(engine.dealloc_pd(pd), busy);
    assert!(engine.dereg_mr(mr).unwrap().is_quiet());
    let fast = engine.alloc_mr(pd, region).unwrap();
    assert_eq!(engine.dealloc_pd(pd), busy);
    assert!(engine.dereg_mr(fast).unwrap().is_quiet());
    let mw = engine.alloc_mw(pd, MwType::One).unwrap();
    assert_eq!(engine.dealloc_pd(pd), busy);
    engine.dealloc_mw(mw).unwrap();
    let ah = engine.create_ah(pd, av()).unwrap();
    assert_eq!(engine.dealloc_pd(pd), busy);
    engine.destroy_ah(ah).unwrap();
    let attr = SrqInitAttr { pd, max_wr: 1, max_sge: 1, limit: 0, xrc: None };
    let (srq, _) = engine.create_srq(attr).unwrap();
    assert_eq!(engine.dealloc_pd(pd), busy);
    engine.destroy_srq(srq).unwrap();
    let init = QpInitAttr { pd, ..host.init_attr(QpType::Ud) };
    let qp = host.create_qp(init);
    assert_eq!(host.engine.dealloc_pd(pd), busy);
    host.engine.destroy_qp(qp.qpn).unwrap();
    assert_eq!(host.engine.dealloc_pd(pd), Ok(()));
    assert_eq!(host.engine.dealloc_pd(pd), Err(DestroyError::Unknown));
}

#[test]
fn a_completion_queue_in_use_stays() {
    let mut host = Host::new(1);
    let (send_cq, _) = host.engine.create_cq(1).unwrap();
    let (recv_cq, _) = host.engine.create_cq(1).unwrap();
    let init = QpInitAttr { send_cq, recv_cq, ..host.init_attr(QpType::Rc) };
    let qp = host.create_qp(init);
    for cq in [send_cq, recv_cq] {
        assert_eq!(host.engine.destroy_cq(cq), Err(DestroyError::Busy));
    }
    host.engine.destroy_qp(qp.qpn).unwrap();
    for cq in [send_cq, recv_cq] {
        assert_eq!(host.engine.destroy_cq(cq), Ok(()));
    }
    // A refused creation uses nothing.
    let (cq, _) = host.engine.create_cq(1).unwrap();
    let broken = QpInitAttr { send_cq: cq, srq: Some(SrqId(9)), ..host.init_attr(QpType::Rc) };
    assert!(create(&mut host, broken).is_err());
    assert_eq!(host.engine.destroy_cq(cq), Ok(()));
}

#[test]
fn queue_pair_numbers_stay_in_their_range() {
    let config = Config { qpn_first: 0x1000, qpn_count: 40, ..Config::default() };
    let mut host = Host::with_config(1, config);
    let init = host.init_attr(QpType::Uc);
    let mut numbers = BTreeSet::new();
    for _ in 0..40 {
        numbers.insert(create(&mut host, init).unwrap().get());
    }
    assert_eq!(numbers, (0x1000..0x1028).collect());
    assert_eq!(create(&mut host, init), Err(CreateError::TooMany));
    // When all are taken, one that was given back is all there is.
    host.engine.destroy_qp(Qpn::new(0x1005)).unwrap();
    assert_eq!(create(&mut host, init), Ok(Qpn::new(0x1005)));
}

#[test]
fn ten_thousand_queue_pair_numbers_are_unpredictable() {
    // The whole range, and that of one of several processes at an address.
    for (qpn_first, qpn_count, bits) in [(2, 0xff_fffd, 24), (0x7_0000, 0x1_0000, 16)] {
        let mut host = Host::with_config(1, Config { qpn_first, qpn_count, ..Config::default() });
        let init = host.init_attr(QpType::Uc);
        let mut numbers = Vec::new();
        for n in 0..10_000 {
            let qpn = create(&mut host, init).unwrap();
            numbers.push(qpn.get());
            if n % 8 != 0 {
                host.engine.destroy_qp(qpn).unwrap();
            }
        }
        uniform::assert_unpredictable("queue pair numbers", &numbers, bits);
        let found = numbers.iter().filter(|&&qpn| host.engine.query_qp(Qpn::new(qpn)).is_some());
        assert_eq!(found.count(), 1250);
    }
}

#[test]
fn absurd_ranges_of_numbers_are_made_sane() {
    for (qpn_first, qpn_count) in [(0, 0), (0, u32::MAX), (u32::MAX, u32::MAX), (0xff_ffff, 1)] {
        let mut host = Host::with_config(1, Config { qpn_first, qpn_count, ..Config::default() });
        let init = host.init_attr(QpType::Uc);
        let qpn = create(&mut host, init).unwrap();
        assert!((2..0xff_ffff).contains(&qpn.get()), "{qpn}");
        assert!(host.engine.query_qp(qpn).is_some());
    }
}

#[test]
fn a_number_is_given_out_again_after_all_others() {
    let mut host = Host::with_config(1, Config { qpn_count: 1000, ..Config::default() });
    let init = host.init_attr(QpType::Uc);
    // Numbers are not used up: there are four rounds.
    for _ in 0..4 {
        let mut seen = BTreeSet::new();
        for i in 0..1000 {
            let qpn = create(&mut host, init).unwrap();
            assert!(seen.insert(qpn), "{qpn} again after {i}");
            host.engine.destroy_qp(qpn).unwrap();
            assert_eq!(host.engine.query_qp(qpn), None);
        }
    }
}

/// The first queue pair numbers and keys of an engine.
fn numbers(seed: u64) -> (Vec<Qpn>, Vec<Lkey>) {
    let mut engine = Engine::new(Config { seed, ..Config::default() });
    engine.set_gid(0, GidEntry::roce_v2(Gid::from_ipv4([10, 0, 0, 1])));
    let pd = engine.alloc_pd().unwrap();
    let region = Region::alloc(64).unwrap();
    let keys = (0..4)
        .map(|_| engine.reg_mr(pd, Arc::clone(&region), 0, 64, Iova::ZeroBased, ALL).unwrap())
        .collect();
    let host = Host::new(1);
    let (cq, _) = engine.create_cq(1).unwrap();
    let init = QpInitAttr { pd, send_cq: cq, recv_cq: cq, ..host.init_attr(QpType::Rc) };
    ((0..4).map(|_| engine.create_qp(init).unwrap().qpn).collect(), keys)
}

#[test]
fn everything_random_follows_from_the_seed() {
    assert_eq!(numbers(7), numbers(7));
    let (qpns, keys) = numbers(7);
    let (other_qpns, other_keys) = numbers(8);
    assert_ne!(qpns, other_qpns);
    assert_ne!(keys, other_keys);
}

#[test]
fn changes_of_the_port_are_reported() {
    let mut pair = Pair::default();
    let engine = &mut pair.a.engine;
    let gid = Gid::from_ipv4([10, 9, 9, 9]);
    engine.set_gid(3, GidEntry::roce_v2(gid));
    engine.set_gid(3, GidEntry::roce_v2(gid));
    let table = [pair.a.gid, Gid::ZERO, Gid::ZERO, gid].map(GidEntry::roce_v2);
    assert_eq!(engine.gids(), table);
    engine.set_pkeys(&[Pkey::DEFAULT, Pkey(0x8001)]);
    engine.set_port_active(false);
    engine.set_port_active(true);
    let events: Vec<_> = std::iter::from_fn(|| engine.poll_event()).collect();
    let expected = [
        AsyncEvent::GidChange { index: 3, gid },
        AsyncEvent::PkeyChange,
        AsyncEvent::PortError,
        AsyncEvent::PortActive,
    ];
    assert_eq!(events, expected.map(Event::Async));
    assert_eq!(engine.config().pkeys.len(), 2);
}
