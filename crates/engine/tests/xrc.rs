//! Extended reliable connections: one target, many shared receive queues.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;

use feroce_engine::{
    AsyncEvent, CqId, CqPoller, CreateError, DestroyError, QpAttr, QpInitAttr, QpState, QpType,
    RecvWr, Remote, SendOp, SendWr, Sge, SgeList, SrqId, SrqInitAttr, SrqQueue, WcFlags, WcOpcode,
    WcStatus, XrcdId,
};
use feroce_mem::{Iova, PdId};
use feroce_testkit::{ALL, Pair, TestQp, wr};
use feroce_wire::{Imm, Lkey, Rkey, Srqn};

/// A shared receive queue with a protection domain, memory and completions of its own.
struct Inbox {
    id: SrqId,
    queue: SrqQueue,
    cq: CqId,
    poller: CqPoller,
    pd: PdId,
    key: Lkey,
}

struct Xrc {
    pair: Pair,
    ini: TestQp,
    tgt: TestQp,
    domain: XrcdId,
}

impl Xrc {
    fn new() -> Self {
        let mut pair = Pair::default();
        let domain = pair.b.engine.alloc_xrcd().unwrap();
        let ia = pair.a.init_attr(QpType::XrcIni);
        let ib = QpInitAttr { xrcd: Some(domain), ..pair.b.init_attr(QpType::XrcTgt) };
        let (ini, tgt) = pair.connect_with(ia, ib, QpAttr::default());
        assert!(ini.rq.is_none() && tgt.rq.is_none());
        Self { pair, ini, tgt, domain }
    }

    fn inbox(&mut self, domain: XrcdId) -> Inbox {
        let engine = &mut self.pair.b.engine;
        let pd = engine.alloc_pd().unwrap();
        let (cq, poller) = engine.create_cq(16).unwrap();
        let region = Arc::clone(&self.pair.b.region);
        let key = engine.reg_mr(pd, region, 0, 1 << 20, Iova::ZeroBased, ALL).unwrap();
        let xrc = Some((domain, cq));
        let attr = SrqInitAttr { pd, max_wr: 16, max_sge: 4, limit: 0, xrc };
        let (id, queue) = engine.create_srq(attr).unwrap();
        Inbox { id, queue, cq, poller, pd, key }
    }

    fn post(&mut self, wr_id: u64, op: SendOp, len: u32, srqn: Srqn) {
        let request = wr(wr_id, op, self.pair.a.data(0, len));
        let dest = feroce_engine::Dest::Xrc(srqn);
        self.ini.sq.post(SendWr { dest, ..request }).unwrap();
        self.pair.run();
    }

    fn status(&mut self) -> WcStatus {
        self.pair.a.poll().unwrap().status
    }
}

impl Inbox {
    fn receive(&mut self, wr_id: u64, addr: u64, len: u32) {
        let sges = SgeList::from(Sge { addr, len, lkey: self.key });
        self.queue.post(RecvWr { wr_id, sges }).unwrap();
    }

    fn remote(&self, addr: u64) -> Remote {
        Remote { addr, rkey: Rkey(self.key.0) }
    }
}

#[test]
fn sends_reach_the_queue_they_name() {
    let mut x = Xrc::new();
    let domain = x.domain;
    let (mut one, mut two) = (x.inbox(domain), x.inbox(domain));
    one.receive(1, 10_000, 5000);
    two.receive(2, 20_000, 5000);
    let bytes = x.pair.a.fill(0, 3000, 5);
    x.post(7, SendOp::Send, 3000, two.id.number());
    x.post(8, SendOp::SendImm(Imm(4)), 10, one.id.number());
    assert_eq!((x.status(), x.status()), (WcStatus::Success, WcStatus::Success));
    let done = two.poller.poll().unwrap();
    assert_eq!((done.wr_id, done.qpn, done.byte_len), (2, x.tgt.qpn, 3000));
    let done = one.poller.poll().unwrap();
    assert_eq!((done.wr_id, done.flags, done.imm), (1, WcFlags::WITH_IMM, Imm(4)));
    assert_eq!(x.pair.b.read(20_000, 3000), bytes);
    // The completion queues named at the creation of the target stay empty.
    assert!(x.pair.b.poll().is_none());
    assert_eq!(x.pair.b.engine.drops().total(), 0);
}

#[test]
fn one_sided_operations_reach_the_memory_of_the_queue_they_name() {
    let mut x = Xrc::new();
    let domain = x.domain;
    let mut inbox = x.inbox(domain);
    let number = inbox.id.number();
    let bytes = x.pair.a.fill(0, 3000, 5);
    x.post(1, SendOp::Write(inbox.remote(100_000)), 3000, number);
    assert_eq!(x.status(), WcStatus::Success);
    assert_eq!(x.pair.b.read(100_000, 3000), bytes);
    x.pair.b.fill(200_000, 5000, 9);
    x.post(2, SendOp::Read(inbox.remote(200_000)), 5000, number);
    assert_eq!(x.status(), WcStatus::Success);
    assert_eq!(x.pair.a.read(0, 5000), x.pair.b.read(200_000, 5000));
    x.pair.b.region.store_u64(300_000, 8).unwrap();
    x.post(3, SendOp::FetchAdd { remote: inbox.remote(300_000), add: 1 }, 8, number);
    let swap = SendOp::CmpSwap { remote: inbox.remote(300_000), compare: 9, swap: 2 };
    x.post(4, swap, 8, number);
    assert_eq!((x.status(), x.status()), (WcStatus::Success, WcStatus::Success));
    assert_eq!(x.pair.b.region.load_u64(300_000).unwrap(), 2);
    assert_eq!(x.pair.a.region.load_u64(0).unwrap(), 9);
    inbox.receive(5, 0, 0);
    x.post(6, SendOp::WriteImm(inbox.remote(0), Imm(3)), 2000, number);
    assert_eq!(x.status(), WcStatus::Success);
    let done = inbox.poller.poll().unwrap();
    assert_eq!((done.wr_id, done.opcode, done.byte_len), (5, WcOpcode::RecvWriteImm, 2000));
}

#[test]
fn a_number_that_names_no_queue_of_the_domain_is_an_invalid_request() {
    let other_domain = |x: &mut Xrc| {
        let domain = x.pair.b.engine.alloc_xrcd().unwrap();
        x.inbox(domain).id.number()
    };
    let ordinary = |x: &mut Xrc| {
        let attr = SrqInitAttr { pd: x.pair.b.pd, max_wr: 1, max_sge: 1, limit: 0, xrc: None };
        x.pair.b.engine.create_srq(attr).unwrap().0.number()
    };
    let cases: [&dyn Fn(&mut Xrc) -> Srqn; 4] =
        [&|_| Srqn::new(0), &|_| Srqn::new(0x00ab_cdef), &other_domain, &ordinary];
    for number in cases {
        let mut x = Xrc::new();
        let number = number(&mut x);
        x.post(1, SendOp::Send, 10, number);
        assert_eq!(x.status(), WcStatus::RemoteInvalidRequest, "{number:?}");
        assert_eq!(x.pair.b.async_events(), [AsyncEvent::QpRequestError(x.tgt.qpn)]);
        let (attr, _) = x.pair.b.engine.query_qp(x.tgt.qpn).unwrap();
        assert_eq!(attr.state, Some(QpState::Err));
    }
}

#[test]
fn the_protection_domain_of_the_queue_decides() {
    for through_own in [true, false] {
        let mut x = Xrc::new();
        let domain = x.domain;
        let (one, two) = (x.inbox(domain), x.inbox(domain));
        assert_ne!(one.pd, two.pd);
        let number = if through_own { one.id.number() } else { two.id.number() };
        x.post(1, SendOp::Write(one.remote(0)), 10, number);
        let expected = if through_own { WcStatus::Success } else { WcStatus::RemoteAccess };
        assert_eq!(x.status(), expected);
        // The protection domain of the target itself gives no rights.
        if through_own {
            x.post(2, SendOp::Write(x.pair.b.remote(0)), 10, number);
            assert_eq!(x.status(), WcStatus::RemoteAccess);
        }
    }
}

#[test]
fn an_empty_queue_makes_the_sender_wait() {
    let mut x = Xrc::new();
    let domain = x.domain;
    let mut inbox = x.inbox(domain);
    x.post(1, SendOp::Send, 10, inbox.id.number());
    assert!(x.pair.a.poll().is_none());
    inbox.receive(3, 0, 100);
    x.pair.wait(10_000_000);
    x.pair.run();
    assert_eq!(x.status(), WcStatus::Success);
    assert_eq!(inbox.poller.poll().unwrap().wr_id, 3);
}

#[test]
fn a_receive_in_progress_is_flushed_to_the_completion_queue_of_its_queue() {
    let mut x = Xrc::new();
    let domain = x.domain;
    let mut inbox = x.inbox(domain);
    inbox.receive(3, 0, 5000);
    let request = wr(1, SendOp::Send, x.pair.a.data(0, 3000));
    let dest = feroce_engine::Dest::Xrc(inbox.id.number());
    x.ini.sq.post(SendWr { dest, ..request }).unwrap();
    let first = x.pair.a.transmit(x.pair.now).remove(0);
    x.pair.b.receive(x.pair.now, &first);
    x.pair.b.modify(x.pair.now, x.tgt.qpn, &QpAttr::to(QpState::Err));
    let done = inbox.poller.poll().unwrap();
    assert_eq!((done.wr_id, done.status), (3, WcStatus::Flushed));
}

#[test]
fn domains_and_queues_in_use_stay() {
    let mut x = Xrc::new();
    let domain = x.domain;
    let inbox = x.inbox(domain);
    let engine = &mut x.pair.b.engine;
    assert_eq!(engine.dealloc_xrcd(domain), Err(DestroyError::Busy));
    assert_eq!(engine.destroy_cq(inbox.cq), Err(DestroyError::Busy));
    engine.destroy_qp(x.tgt.qpn).unwrap();
    assert_eq!(engine.dealloc_xrcd(domain), Err(DestroyError::Busy));
    engine.destroy_srq(inbox.id).unwrap();
    assert_eq!(engine.destroy_cq(inbox.cq), Ok(()));
    assert_eq!(engine.dealloc_xrcd(domain), Ok(()));
    assert_eq!(engine.dealloc_xrcd(domain), Err(DestroyError::Unknown));
}

#[test]
fn an_overrun_of_its_completion_queue_is_an_error_of_the_shared_receive_queue() {
    let mut x = Xrc::new();
    let domain = x.domain;
    let mut inbox = x.inbox(domain);
    for id in 0..16 {
        inbox.receive(id, 0, 100);
    }
    for id in 0..16 {
        x.post(id, SendOp::Send, 10, inbox.id.number());
    }
    inbox.receive(16, 0, 100);
    x.post(16, SendOp::Send, 10, inbox.id.number());
    let expected = [AsyncEvent::CqError(inbox.cq), AsyncEvent::SrqError(inbox.id)];
    assert_eq!(x.pair.b.async_events(), expected);
    // The responder does not accept a message whose completion it could not deliver.
    x.pair.a.poll_all();
    inbox.receive(17, 0, 100);
    x.post(17, SendOp::Send, 10, inbox.id.number());
    assert_eq!(x.status(), WcStatus::RemoteInvalidRequest);
}

#[test]
fn what_cannot_be_combined() {
    let mut x = Xrc::new();
    let domain = x.domain;
    let inbox = x.inbox(domain);
    let base = x.pair.b.init_attr(QpType::Rc);
    let mut create = |init| x.pair.b.engine.create_qp(init).map(|qp| qp.qpn);
    let (xrcd, srq) = (Some(domain), Some(inbox.id));
    let invalid = CreateError::Invalid;
    assert_eq!(
        create(QpInitAttr { qp_type: QpType::XrcTgt, ..base }),
        Err(invalid("an XRC target needs a domain"))
    );
    let only_targets = Err(invalid("only XRC targets have a domain"));
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcIni] {
        assert_eq!(create(QpInitAttr { qp_type, xrcd, ..base }), only_targets);
    }
    let unfit = Err(invalid("this QP type cannot use this SRQ"));
    assert_eq!(create(QpInitAttr { srq, ..base }), unfit);
    assert_eq!(create(QpInitAttr { qp_type: QpType::XrcIni, srq, ..base }), unfit);
    let unknown = Some(XrcdId(77));
    let expected = Err(CreateError::Unknown("XRC domain"));
    assert_eq!(create(QpInitAttr { qp_type: QpType::XrcTgt, xrcd: unknown, ..base }), expected);
    let xrc = Some((XrcdId(77), inbox.cq));
    let attr = SrqInitAttr { pd: inbox.pd, max_wr: 1, max_sge: 1, limit: 0, xrc };
    let created = x.pair.b.engine.create_srq(attr).map(|(id, _)| id);
    assert_eq!(created, Err(CreateError::Unknown("XRC domain")));
    let attr = SrqInitAttr { xrc: Some((domain, CqId(77))), ..attr };
    let created = x.pair.b.engine.create_srq(attr).map(|(id, _)| id);
    assert_eq!(created, Err(CreateError::Unknown("completion queue")));
}
