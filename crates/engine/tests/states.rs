//! States of a queue pair: every transition, with every attribute it takes and does not take.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use feroce_engine::{
    AddrVec, AsyncEvent, AttrMask, Config, Data, Dest, ModifyQpError, PostError, QpAttr, QpState,
    QpType, SendOp, WcStatus,
};
use feroce_mem::Access;
use feroce_testkit::{ALL, Host, Pair, QKEY, TestQp, psn, wr};
use feroce_train::Instant;
use feroce_wire::{Gid, Pmtu, Qkey, Qpn};

const TYPES: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcIni, QpType::XrcTgt];
const STATES: [QpState; 7] = [
    QpState::Reset,
    QpState::Init,
    QpState::Rtr,
    QpState::Rts,
    QpState::Sqd,
    QpState::Sqe,
    QpState::Err,
];
const NOW: Instant = Instant::from_nanos(1_000_000);

/// From, to, services: required attributes: optional ones (IBTA vol1 11.2.5.2). Every state also
/// goes to Reset and to Err, with nothing but the state; the current state may be given on the way
/// to Rts.
const TABLE: &str = "
Reset Init Rc Uc XrcIni XrcTgt : PKEY_INDEX PORT ACCESS :
Reset Init Ud                  : PKEY_INDEX PORT QKEY :
Init  Init Rc Uc XrcIni XrcTgt : : PKEY_INDEX PORT ACCESS
Init  Init Ud                  : : PKEY_INDEX PORT QKEY
Init  Rtr  Rc XrcTgt : AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER \
                     : ALT_PATH ACCESS PKEY_INDEX
Init  Rtr  Uc XrcIni : AV PATH_MTU DEST_QPN RQ_PSN : ALT_PATH ACCESS PKEY_INDEX
Init  Rtr  Ud        : : PKEY_INDEX QKEY
Rtr   Rts  Rc        : TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_RD_ATOMIC \
                     : ALT_PATH ACCESS MIN_RNR_TIMER
Rtr   Rts  XrcIni    : TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_RD_ATOMIC : ALT_PATH ACCESS
Rtr   Rts  XrcTgt    : TIMEOUT SQ_PSN : ALT_PATH ACCESS MIN_RNR_TIMER
Rtr   Rts  Uc        : SQ_PSN : ALT_PATH ACCESS
Rtr   Rts  Ud        : SQ_PSN : QKEY
Rts   Rts  Rc XrcTgt : : ACCESS ALT_PATH MIN_RNR_TIMER
Rts   Rts  Uc XrcIni : : ACCESS ALT_PATH
Rts   Rts  Ud        : : QKEY
Rts   Sqd  Rc Uc Ud XrcIni XrcTgt : : SQD_NOTIFY
Sqd   Rts  Rc XrcTgt : : ACCESS ALT_PATH MIN_RNR_TIMER
Sqd   Rts  Uc XrcIni : : ACCESS ALT_PATH
Sqd   Rts  Ud        : : QKEY
Sqd   Sqd  Rc     : : PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC MAX_DEST_RD_ATOMIC \
                      ALT_PATH ACCESS PKEY_INDEX MIN_RNR_TIMER
Sqd   Sqd  XrcIni : : PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_RD_ATOMIC ALT_PATH ACCESS PKEY_INDEX
Sqd   Sqd  XrcTgt : : PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS PKEY_INDEX MIN_RNR_TIMER
Sqd   Sqd  Uc     : : AV ALT_PATH ACCESS PKEY_INDEX
Sqd   Sqd  Ud     : : PKEY_INDEX QKEY
Sqe   Rts  Uc     : : ACCESS
Sqe   Rts  Ud     : : QKEY
";

/// What the table says about a transition.
fn expected(qp_type: QpType, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    if matches!(to, QpState::Reset | QpState::Err) {
        return Some((AttrMask::empty(), AttrMask::empty()));
    }
    let mask = |names: &str| {
        names
            .split_whitespace()
            .map(|name| AttrMask::from_name(name).unwrap())
            .fold(AttrMask::empty(), |all, bit| all | bit)
    };
    let current = if to == QpState::Rts { AttrMask::CUR_STATE } else { AttrMask::empty() };
    let wanted = [format!("{from:?}"), format!("{to:?}"), format!("{qp_type:?}")];
    TABLE.trim().lines().find_map(|row| {
        let [head, required, optional] = row.split(':').collect::<Vec<_>>()[..] else {
            panic!("not a row: {row}");
        };
        let words: Vec<_> = head.split_whitespace().collect();
        let fits = words[..2] == wanted[..2] && words[2..].contains(&wanted[2].as_str());
        fits.then(|| (mask(required), mask(optional) | current))
    })
}

/// A valid value for every attribute.
fn everything(to: QpState) -> QpAttr {
    let av = AddrVec { dgid: Gid::from_ipv4([10, 0, 0, 9]), ..AddrVec::default() };
    QpAttr {
        state: Some(to),
        cur_state: None,
        sqd_notify: Some(true),
        access: Some(Access::REMOTE_READ),
        pkey_index: Some(0),
        port: Some(1),
        qkey: Some(Qkey(7)),
        av: Some(av),
        path_mtu: Some(Pmtu::B512),
        timeout: Some(9),
        retry_cnt: Some(5),
        rnr_retry: Some(4),
        rq_psn: Some(psn(0x123)),
        max_rd_atomic: Some(3),
        max_dest_rd_atomic: Some(2),
        min_rnr_timer: Some(11),
        sq_psn: Some(psn(0x456)),
        dest_qpn: Some(Qpn::new(0x77)),
        alt_path: Some(av),
    }
}

/// Those attributes of `all` that are in `mask`.
fn pick(all: QpAttr, mask: AttrMask) -> QpAttr {
    fn keep<T>(mask: AttrMask, bit: AttrMask, value: Option<T>) -> Option<T> {
        value.filter(|_| mask.contains(bit))
    }
    QpAttr {
        state: all.state,
        cur_state: keep(mask, AttrMask::CUR_STATE, all.cur_state),
        sqd_notify: keep(mask, AttrMask::SQD_NOTIFY, all.sqd_notify),
        access: keep(mask, AttrMask::ACCESS, all.access),
        pkey_index: keep(mask, AttrMask::PKEY_INDEX, all.pkey_index),
        port: keep(mask, AttrMask::PORT, all.port),
        qkey: keep(mask, AttrMask::QKEY, all.qkey),
        av: keep(mask, AttrMask::AV, all.av),
        path_mtu: keep(mask, AttrMask::PATH_MTU, all.path_mtu),
        timeout: keep(mask, AttrMask::TIMEOUT, all.timeout),
        retry_cnt: keep(mask, AttrMask::RETRY_CNT, all.retry_cnt),
        rnr_retry: keep(mask, AttrMask::RNR_RETRY, all.rnr_retry),
        rq_psn: keep(mask, AttrMask::RQ_PSN, all.rq_psn),
        max_rd_atomic: keep(mask, AttrMask::MAX_RD_ATOMIC, all.max_rd_atomic),
        max_dest_rd_atomic: keep(mask, AttrMask::MAX_DEST_RD_ATOMIC, all.max_dest_rd_atomic),
        min_rnr_timer: keep(mask, AttrMask::MIN_RNR_TIMER, all.min_rnr_timer),
        sq_psn: keep(mask, AttrMask::SQ_PSN, all.sq_psn),
        dest_qpn: keep(mask, AttrMask::DEST_QPN, all.dest_qpn),
        alt_path: keep(mask, AttrMask::ALT_PATH, all.alt_path),
    }
}

/// A new queue pair, brought to `state`; `None` if the service never gets there.
fn qp_in(host: &mut Host, qp_type: QpType, state: QpState) -> Option<TestQp> {
    let mut init = host.init_attr(qp_type);
    if qp_type == QpType::XrcTgt {
        init.xrcd = Some(host.engine.alloc_xrcd().unwrap());
    }
    let mut qp = host.create_qp(init);
    let way: &[QpState] = match state {
        QpState::Reset => &[],
        QpState::Init => &[QpState::Init],
        QpState::Rtr => &[QpState::Init, QpState::Rtr],
        QpState::Rts | QpState::Sqe => &[QpState::Init, QpState::Rtr, QpState::Rts],
        QpState::Sqd => &[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd],
        QpState::Err => &[QpState::Err],
    };
    let mut from = QpState::Reset;
    for &to in way {
        let (required, _) = expected(qp_type, from, to).unwrap();
        host.modify(NOW, qp.qpn, &pick(everything(to), required));
        from = to;
    }
    if state == QpState::Sqe {
        if !matches!(qp_type, QpType::Uc | QpType::Ud) {
            return None;
        }
        fail_a_send(host, &mut qp, qp_type);
    }
    assert_eq!(qp.sq.state(), state);
    Some(qp)
}

/// Posts a send from memory that is not there.
fn fail_a_send(host: &mut Host, qp: &mut TestQp, qp_type: QpType) {
    let mut bad = wr(1, SendOp::Send, host.data(u64::MAX - 3, 4));
    if qp_type == QpType::Ud {
        let av = AddrVec { dgid: Gid::from_ipv4([10, 0, 0, 9]), ..AddrVec::default() };
        let ah = host.engine.create_ah(host.pd, av).unwrap();
        bad.dest = Dest::Ud { ah, qpn: Qpn::new(5), qkey: QKEY };
    }
    qp.sq.post(bad).unwrap();
    assert!(host.transmit(NOW).is_empty());
    assert_eq!(host.poll().unwrap().status, WcStatus::LocalProtection);
}

/// Asserts that the modification fails like this and changes nothing.
fn refused(host: &mut Host, qpn: Qpn, attr: &QpAttr, expected: ModifyQpError) {
    let before = host.engine.query_qp(qpn);
    assert_eq!(host.engine.modify_qp(NOW, qpn, attr), Err(expected), "{attr:?}");
    assert_eq!(host.engine.query_qp(qpn), before);
}

#[test]
fn every_transition_takes_exactly_its_attributes() {
    let mut host = Host::new(1);
    for qp_type in TYPES {
        for from in STATES {
            for to in STATES {
                let Some(qp) = qp_in(&mut host, qp_type, from) else {
                    continue;
                };
                check_transition(&mut host, qp.qpn, qp_type, from, to);
                host.engine.destroy_qp(qp.qpn).unwrap();
            }
        }
    }
}

fn check_transition(host: &mut Host, qpn: Qpn, qp_type: QpType, from: QpState, to: QpState) {
    let all = QpAttr { cur_state: Some(from), ..everything(to) };
    let Some((required, optional)) = expected(qp_type, from, to) else {
        let attr = pick(all, AttrMask::empty());
        return refused(host, qpn, &attr, ModifyQpError::NoTransition { from, to });
    };
    for bit in required.iter() {
        let error =
            ModifyQpError::Attributes { from, to, missing: bit, forbidden: AttrMask::empty() };
        assert!(error.to_string().ends_with(&format!(" give also {}", name(bit))), "{error}");
        refused(host, qpn, &pick(all, required - bit), error);
    }
    let none = AttrMask::empty();
    for bit in (all.mask() - AttrMask::STATE - required - optional).iter() {
        let error = ModifyQpError::Attributes { from, to, missing: none, forbidden: bit };
        assert!(error.to_string().ends_with(&format!(" leave out {}", name(bit))), "{error}");
        refused(host, qpn, &pick(all, required | bit), error);
    }
    if optional.contains(AttrMask::ALT_PATH) {
        let error =
            ModifyQpError::BadValue(AttrMask::ALT_PATH, "alternate paths are not supported");
        refused(host, qpn, &pick(all, required | AttrMask::ALT_PATH), error);
    }
    let given = (required | optional) - AttrMask::ALT_PATH;
    host.modify(NOW, qpn, &pick(all, given));
    let (now, _) = host.engine.query_qp(qpn).unwrap();
    assert_eq!((now.state, now.cur_state), (Some(to), Some(to)));
    let taken = given - AttrMask::SQD_NOTIFY - AttrMask::CUR_STATE;
    assert_eq!(pick(now, taken), pick(QpAttr { state: Some(to), ..all }, taken));
}

fn name(bit: AttrMask) -> &'static str {
    bit.iter_names().next().unwrap().0
}

#[test]
fn errors_name_everything_that_is_wrong_at_once() {
    let mut host = Host::new(1);
    let qp = qp_in(&mut host, QpType::Rc, QpState::Reset).unwrap();
    let attr = QpAttr {
        state: Some(QpState::Init),
        port: Some(1),
        qkey: Some(QKEY),
        timeout: Some(1),
        ..QpAttr::default()
    };
    let error = host.engine.modify_qp(NOW, qp.qpn, &attr).unwrap_err();
    let text = "Reset to Init: give also ACCESS | PKEY_INDEX, leave out QKEY | TIMEOUT";
    assert_eq!(error.to_string(), text);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let config = Config { port_mtu: Pmtu::B1024, ..Config::default() };
    let mut host = Host::with_config(1, config);
    let init = QpAttr::init(ALL);
    let av = AddrVec { dgid: Gid::from_ipv4([10, 0, 0, 9]), ..AddrVec::default() };
    let to = |dgid| AddrVec { dgid, ..av };
    let rtr = QpAttr::rtr(av, Qpn::new(9), psn(1), Pmtu::B1024);
    let rts = QpAttr::rts(psn(1));
    let cases = [
        (AttrMask::PORT, QpAttr { port: Some(0), ..init }),
        (AttrMask::PORT, QpAttr { port: Some(2), ..init }),
        (AttrMask::PKEY_INDEX, QpAttr { pkey_index: Some(1), ..init }),
        (AttrMask::PATH_MTU, QpAttr { path_mtu: Some(Pmtu::B2048), ..rtr }),
        (AttrMask::MIN_RNR_TIMER, QpAttr { min_rnr_timer: Some(32), ..rtr }),
        (AttrMask::MAX_DEST_RD_ATOMIC, QpAttr { max_dest_rd_atomic: Some(129), ..rtr }),
        (AttrMask::AV, QpAttr { av: Some(to(Gid::ZERO)), ..rtr }),
        (AttrMask::AV, QpAttr { av: Some(to(Gid::from_ipv4([239, 0, 0, 1]))), ..rtr }),
        (AttrMask::AV, QpAttr { av: Some(AddrVec { sgid_index: 1, ..av }), ..rtr }),
        (AttrMask::TIMEOUT, QpAttr { timeout: Some(32), ..rts }),
        (AttrMask::RETRY_CNT, QpAttr { retry_cnt: Some(8), ..rts }),
        (AttrMask::RNR_RETRY, QpAttr { rnr_retry: Some(8), ..rts }),
        (AttrMask::MAX_RD_ATOMIC, QpAttr { max_rd_atomic: Some(129), ..rts }),
    ];
    for (bit, attr) in cases {
        let from = match attr.state.unwrap() {
            QpState::Init => QpState::Reset,
            QpState::Rtr => QpState::Init,
            _ => QpState::Rtr,
        };
        let qp = qp_in(&mut host, QpType::Rc, from).unwrap();
        let before = host.engine.query_qp(qp.qpn);
        let error = host.engine.modify_qp(NOW, qp.qpn, &attr).unwrap_err();
        assert!(matches!(error, ModifyQpError::BadValue(named, _) if named == bit), "{error:?}");
        assert!(error.to_string().starts_with(name(bit)), "{error}");
        assert_eq!(host.engine.query_qp(qp.qpn), before);
    }
}

#[test]
fn the_state_that_the_caller_believes_current_must_be_it() {
    let mut host = Host::new(1);
    let qp = qp_in(&mut host, QpType::Rc, QpState::Sqd).unwrap();
    let actual = QpState::Sqd;
    let attr = QpAttr { cur_state: Some(QpState::Rtr), ..QpAttr::to(QpState::Rts) };
    refused(&mut host, qp.qpn, &attr, ModifyQpError::NotInState { actual });
    let attr = QpAttr { cur_state: Some(actual), ..QpAttr::to(QpState::Rts) };
    host.modify(NOW, qp.qpn, &attr);
    assert_eq!(qp.sq.state(), QpState::Rts);
}

#[test]
fn without_a_next_state_the_current_one_is_meant() {
    let mut host = Host::new(1);
    let qp = qp_in(&mut host, QpType::Rc, QpState::Rts).unwrap();
    let attr = QpAttr { min_rnr_timer: Some(3), ..QpAttr::default() };
    host.modify(NOW, qp.qpn, &attr);
    assert_eq!(host.engine.query_qp(qp.qpn).unwrap().0.min_rnr_timer, Some(3));
    let qp = qp_in(&mut host, QpType::Rc, QpState::Rtr).unwrap();
    let (from, to) = (QpState::Rtr, QpState::Rtr);
    refused(&mut host, qp.qpn, &attr, ModifyQpError::NoTransition { from, to });
}

#[test]
fn query_shows_live_sequence_numbers() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 5000)).unwrap();
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 5000))).unwrap();
    pair.run();
    let (a, _) = pair.a.engine.query_qp(qa.qpn).unwrap();
    let (b, _) = pair.b.engine.query_qp(qb.qpn).unwrap();
    assert_eq!(a.sq_psn, Some(qa.first_psn.wrapping_add(5)));
    assert_eq!(b.rq_psn, Some(qa.first_psn.wrapping_add(5)));
    assert_eq!(b.sq_psn, Some(qb.first_psn));
    assert_eq!((a.dest_qpn, a.path_mtu), (Some(qb.qpn), Some(Pmtu::B1024)));
}

#[test]
fn reset_forgets_attributes_and_posted_work() {
    let mut pair = Pair::default();
    let (mut qa, _qb) = pair.connect(QpType::Rc);
    qa.rq.as_mut().unwrap().post(pair.a.recv(1, 0, 100)).unwrap();
    qa.sq.post(wr(2, SendOp::Send, pair.a.data(0, 100))).unwrap();
    assert_eq!(pair.a.transmit(pair.now).len(), 1);
    qa.sq.post(wr(3, SendOp::Send, pair.a.data(0, 100))).unwrap();
    pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Reset));
    let (attr, _) = pair.a.engine.query_qp(qa.qpn).unwrap();
    let blank = QpAttr {
        cur_state: Some(QpState::Reset),
        sqd_notify: Some(false),
        ..QpAttr::to(QpState::Reset)
    };
    assert_eq!(attr, blank);
    assert!(pair.a.poll_all().is_empty() && pair.a.transmit(pair.now).is_empty());
    assert_eq!(qa.sq.free(), 256);
    let reset = PostError::BadState(QpState::Reset);
    assert_eq!(qa.sq.post(wr(4, SendOp::Send, Data::EMPTY)), Err(reset));
    assert_eq!(qa.rq.as_mut().unwrap().post(pair.a.recv(1, 0, 100)), Err(reset));
}

#[test]
fn a_queue_pair_works_again_after_reset() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = Pair::default();
        let (mut qa, mut qb) = pair.connect(qp_type);
        // Something is in flight and lost.
        qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 3000))).unwrap();
        pair.a.transmit(pair.now);
        for (host, qpn) in [(&mut pair.a, qa.qpn), (&mut pair.b, qb.qpn)] {
            host.modify(pair.now, qpn, &QpAttr::to(QpState::Err));
            host.modify(pair.now, qpn, &QpAttr::to(QpState::Reset));
            host.poll_all();
        }
        let with = QpAttr::default();
        let (ga, gb) = (pair.a.gid, pair.b.gid);
        let mtu = Pmtu::B256;
        feroce_testkit::bring_up(&mut pair.a, pair.now, &qa, (gb, qb.qpn, psn(7)), mtu, &with);
        qb.first_psn = psn(7);
        feroce_testkit::bring_up(
            &mut pair.b,
            pair.now,
            &qb,
            (ga, qa.qpn, qa.first_psn),
            mtu,
            &with,
        );
        let bytes = pair.a.fill(0, 3000, 5);
        qb.rq.as_mut().unwrap().post(pair.b.recv(9, 0, 3000)).unwrap();
        qa.sq.post(wr(8, SendOp::Send, pair.a.data(0, 3000))).unwrap();
        pair.run();
        assert_eq!(pair.a.poll_all().iter().map(|c| c.wr_id).collect::<Vec<_>>(), [8]);
        assert_eq!(pair.b.poll().unwrap().status, WcStatus::Success);
        assert_eq!(pair.b.read(0, 3000), bytes);
    }
}

#[test]
fn the_first_packet_in_rtr_tells_that_the_connection_is_established() {
    let mut pair = Pair::default();
    let (mut qa, qb) = pair.connect(QpType::Rc);
    let init = pair.b.init_attr(QpType::Rc);
    let mut late = pair.b.create_qp(init);
    let av = AddrVec { dgid: pair.a.gid, ..AddrVec::default() };
    pair.b.modify(NOW, late.qpn, &QpAttr::init(ALL));
    late.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 10)).unwrap();
    pair.b.modify(NOW, late.qpn, &QpAttr::rtr(av, qa.qpn, qa.first_psn, Pmtu::B1024));
    for i in 0..2 {
        qa.sq.post(wr(i, SendOp::Send, pair.a.data(0, 4))).unwrap();
        for mut packet in pair.a.transmit(pair.now) {
            // Addressed to the other one.
            packet.bytes[5..8].copy_from_slice(&late.qpn.to_be_bytes());
            pair.b.receive(pair.now, &packet);
        }
    }
    assert_eq!(pair.b.async_events(), [AsyncEvent::CommEstablished(late.qpn)]);
    assert_eq!(pair.b.poll().unwrap().qpn, late.qpn);
    assert_ne!(qb.qpn, late.qpn);
}

#[test]
fn draining_reports_once_when_everything_started_is_done() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    for i in 0..3 {
        qb.rq.as_mut().unwrap().post(pair.b.recv(i, 0, 2000)).unwrap();
    }
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 2000))).unwrap();
    let packets = pair.a.transmit(pair.now);
    let drain = QpAttr { sqd_notify: Some(true), ..QpAttr::to(QpState::Sqd) };
    pair.a.modify(pair.now, qa.qpn, &drain);
    qa.sq.post(wr(2, SendOp::Send, pair.a.data(0, 10))).unwrap();
    assert!(pair.a.transmit(pair.now).is_empty() && pair.a.async_events().is_empty());
    packets.iter().for_each(|p| pair.b.receive(pair.now, p));
    pair.run();
    assert_eq!(pair.a.async_events(), [AsyncEvent::SqDrained(qa.qpn)]);
    assert_eq!(pair.a.poll_all().iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1]);
    // Nothing was in flight the second time: drained at once.
    pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Rts));
    pair.run();
    assert_eq!(pair.a.poll_all().iter().map(|c| c.wr_id).collect::<Vec<_>>(), [2]);
    pair.a.modify(pair.now, qa.qpn, &drain);
    assert_eq!(pair.a.async_events(), [AsyncEvent::SqDrained(qa.qpn)]);
}

#[test]
fn the_path_may_change_while_the_send_queue_drains() {
    let mut pair = Pair::default();
    let (mut qa, mut qb) = pair.connect(QpType::Rc);
    qb.rq.as_mut().unwrap().post(pair.b.recv(1, 0, 5000)).unwrap();
    qa.sq.post(wr(1, SendOp::Send, pair.a.data(0, 5000))).unwrap();
    let packets = pair.a.transmit(pair.now);
    pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Sqd));
    let av = AddrVec { dgid: pair.b.gid, traffic_class: 0x68, ..AddrVec::default() };
    let change = QpAttr { av: Some(av), ..QpAttr::to(QpState::Sqd) };
    pair.a.modify(pair.now, qa.qpn, &change);
    packets.iter().for_each(|p| pair.b.receive(pair.now, p));
    pair.run();
    assert_eq!(pair.a.poll().unwrap().status, WcStatus::Success);
    pair.a.modify(pair.now, qa.qpn, &QpAttr::to(QpState::Rts));
    qa.sq.post(wr(2, SendOp::Send, pair.a.data(0, 5))).unwrap();
    assert_eq!(pair.a.transmit(pair.now)[0].meta.traffic_class, 0x68);
}

#[test]
fn an_unknown_queue_pair_cannot_be_modified() {
    let mut host = Host::new(1);
    let unknown = Qpn::new(0x0012_3456);
    let to = QpAttr::to(QpState::Err);
    assert_eq!(host.engine.modify_qp(NOW, unknown, &to), Err(ModifyQpError::Unknown));
    assert_eq!(host.engine.query_qp(unknown), None);
}
