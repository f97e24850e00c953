//! Rules on ledgers of their own, with warnings collected instead of printed.

use std::cell::RefCell;

use feroce::{Data, SendFlags, SendOp, SendWr};

use crate::ledger::{CqFacts, Ledger, Name, Queues, Request};
use crate::{depth, unsignalled};

thread_local! {
    static PRINTED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn collect(line: &str) {
    PRINTED.with_borrow_mut(|lines| lines.push(line.to_owned()));
}

/// The warnings since the last call.
fn printed() -> Vec<String> {
    PRINTED.take()
}

const CQ: CqFacts = CqFacts { addr: 0x10, depth: 3 };

fn ledger(qps: u32) -> Ledger {
    let mut ledger = Ledger::new(collect);
    for qpn in 0..qps {
        let queues = Queues {
            send_cq: Some(CQ),
            recv_cq: Some(CQ),
            max_send: 4,
            max_recv: 4,
            srq: None,
            signal_all: false,
        };
        ledger.qps.insert(name(qpn), crate::ledger::Posts::new(queues));
    }
    ledger
}

fn name(qpn: u32) -> Name {
    Name { context: 1, qpn }
}

fn request(flags: SendFlags) -> Request {
    let mut wr = SendWr::new(1, SendOp::Send, Data::EMPTY);
    wr.flags = flags;
    Request::send(&wr)
}

#[test]
fn a_completion_queue_is_too_shallow_for_signalled_requests_only() {
    let mut ledger = ledger(1);
    let mut post = |flags| {
        let cq = ledger.post_send(name(0), request(flags)).expect("a known queue pair");
        depth::check(&mut ledger, cq);
        printed()
    };
    for _ in 0..3 {
        assert_eq!(post(SendFlags::SIGNALED), [""; 0]);
    }
    assert_eq!(post(SendFlags::empty()), [""; 0], "it does not complete");
    let lines = ledger_with_four_signalled();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("CQ 0x10 has a depth of 3, but 4 requests"), "{lines:?}");
}

fn ledger_with_four_signalled() -> Vec<String> {
    let mut ledger = ledger(1);
    for _ in 0..4 {
        let cq = ledger.post_send(name(0), request(SendFlags::SIGNALED)).expect("known");
        depth::check(&mut ledger, cq);
    }
    printed()
}

#[test]
fn a_rule_reports_each_object_once_and_eight_objects_at_most() {
    let mut ledger = ledger(12);
    for qpn in 0..12 {
        for _ in 0..4 {
            ledger.post_send(name(qpn), request(SendFlags::empty()));
        }
        unsignalled::check(&mut ledger, name(qpn));
        unsignalled::check(&mut ledger, name(qpn));
    }
    let lines = printed();
    assert_eq!(lines.len(), 9);
    assert!(lines[7].starts_with("QP 0x7: a send is posted to a queue that is full"), "{lines:?}");
    assert!(lines[8].starts_with("the same again"), "{lines:?}");
}
