//! Completions as futures. The executor has ten lines, which shows that no runtime is needed.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use common::{Host, connect};
use feroce::{SendOp, SendWr, WcStatus};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn await_a_completion() {
    let (a, b) = Host::pair(108);
    let (mut qa, mut qb) = (a.rc(), b.rc());
    connect(&mut qa, &mut qb);
    block_on(async {
        for i in 0..100 {
            qb.post_recv([b.mr.recv(i, 0..64)]).unwrap();
            qa.post_send([SendWr::new(i, SendOp::Send, a.mr.data(0..64))]).unwrap();
            let (sent, received) = (a.cq.next().await, b.cq.next().await);
            assert_eq!((sent.wr_id, sent.status), (i, WcStatus::Success));
            assert_eq!((received.wr_id, received.status), (i, WcStatus::Success));
        }
    });
}
