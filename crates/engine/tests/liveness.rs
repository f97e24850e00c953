//! Whatever a queue pair waits for comes, without the help of a timer.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use common::script::{ACK, seen};
use common::{OUR_PSN, Pair, Scripted, wr};
use feroce_engine::{
    Config, Data, QpAttr, QpState, QpType, Remote, SendOp, WcStatus, WindowConfig,
};
use feroce_wire::{Op, Rkey};

const REMOTE: Remote = Remote { addr: 0x10_0000, rkey: Rkey(0x7777) };

/// The first packet of a long write goes alone. When those of several queue pairs fill the window,
/// one of them must ask for an acknowledgement, or nobody would ever say that there is room.
#[test]
fn a_window_that_several_queue_pairs_fill_opens_again() {
    let window = WindowConfig { initial: 16 << 10, min: 16 << 10, max: 16 << 10 };
    let mut pair = Pair::new(Config { window, tail_probe: false, ..Config::default() });
    let forever = QpAttr { timeout: Some(0), ..QpAttr::default() };
    let mut qps: Vec<_> = (0..12)
        .map(|_| {
            let (ia, ib) = (pair.a.init_attr(QpType::Rc), pair.b.init_attr(QpType::Rc));
            pair.connect_with(ia, ib, forever)
        })
        .collect();
    for (i, (qa, _)) in qps.iter_mut().enumerate() {
        let write = SendOp::Write(pair.b.remote(0));
        qa.sq.post(wr(i as u64, write, pair.a.data(0, 8 << 10))).unwrap();
    }
    pair.run();
    assert_eq!(pair.a.poll_all().len(), 12);
}

/// With a limit of zero there will never be a responder resource.
#[test]
fn a_read_that_can_never_be_sent_fails() {
    let none = QpAttr { max_rd_atomic: Some(0), ..QpAttr::default() };
    let add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    for op in [SendOp::Read(REMOTE), add, SendOp::AtomicWrite(REMOTE)] {
        let mut script = Scripted::rc_with(none);
        let data = script.host.data(0, 8);
        let sent = script.post_all([wr(1, SendOp::Send, Data::EMPTY), wr(2, op, data)]);
        assert_eq!(seen(&sent), [(Op::SendOnly, OUR_PSN)]);
        script.answer(OUR_PSN, ACK);
        assert_eq!(script.done(), [(1, WcStatus::Success), (2, WcStatus::LocalQpOperation)]);
        assert_eq!(script.state(), QpState::Err);
    }
}
