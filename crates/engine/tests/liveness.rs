//! Whatever a queue pair waits for comes, without the help of a timer.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use common::{Pair, wr};
use feroce_engine::{Config, QpAttr, QpType, SendOp, WindowConfig};

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
