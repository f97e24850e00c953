//! Wakers are foreign code: when the driver calls one, it may call or drop any object of the
//! device.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "the test needs a thread that may hang")]

use std::any::Any;
use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::{Host, connect, is_foreign};
use feroce::{CompChannel, Cq, Data, Notify, Qp, QpCap, SendOp, SendWr};

/// Long enough for a loaded machine, and short enough to see that a test hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// Drops something when woken, and says so afterwards.
struct Dropper {
    owned: Mutex<Option<Box<dyn Any + Send>>>,
    done: Mutex<Sender<()>>,
}

impl Wake for Dropper {
    fn wake(self: Arc<Self>) {
        let owned = self.owned.lock().unwrap().take();
        drop(owned);
        let _ = self.done.lock().unwrap().send(());
    }
}

/// Asks for an event of the queue; the task that waits for it owns `owned`.
fn wait_with(cq: &Cq, channel: &CompChannel, owned: impl Any + Send, done: Sender<()>) {
    let owned = Mutex::new(Some(Box::new(owned) as Box<dyn Any + Send>));
    let waker = Waker::from(Arc::new(Dropper { owned, done: Mutex::new(done) }));
    cq.notify(Notify::Next);
    let event = channel.event();
    assert!(pin!(event).poll(&mut TaskContext::from_waker(&waker)).is_pending());
}

/// A host with a connected queue pair whose only peer is `peer`.
fn target(peer: &mut Qp, host: &Host, cq: &Cq) -> Qp {
    let mut qp = host.pd.rc_qp(cq, cq, QpCap::new(8, 8)).create().unwrap();
    connect(peer, &mut qp);
    qp.post_recv([host.mr.recv(1, 0..8)]).unwrap();
    qp
}

#[test]
fn a_waker_may_drop_the_last_queue_pair() {
    let (a, b) = Host::pair(181);
    let channel_of_b = b.context.create_comp_channel().unwrap();
    let cq = b.context.create_cq_with(8, &channel_of_b).unwrap();
    let mut sender = a.rc();
    let qp = target(&mut sender, &b, &cq);
    let (done, is_done) = channel();
    wait_with(&cq, &channel_of_b, qp, done);
    sender.post_send([SendWr::new(2, SendOp::Send, Data::EMPTY)]).unwrap();
    is_done.recv_timeout(LIMIT).expect("the driver does not hold its lock");
    // The device still works.
    b.context.create_cq(8).unwrap().destroy().unwrap();
}

#[test]
fn a_waker_may_drop_the_last_context() {
    let (a, b) = Host::pair(182);
    let channel_of_b = b.context.create_comp_channel().unwrap();
    let cq = b.context.create_cq_with(8, &channel_of_b).unwrap();
    let mut sender = a.rc();
    let qp = target(&mut sender, &b, &cq);
    let (done, is_done) = channel();
    let device = b.context.downgrade();
    wait_with(&cq.clone(), &channel_of_b.clone(), (qp, cq, channel_of_b, b), done);
    sender.post_send([SendWr::new(2, SendOp::Send, Data::EMPTY)]).unwrap();
    is_done.recv_timeout(LIMIT).expect("the driver does not hold its lock");
    assert!(is_foreign() || device.reopen().unwrap().is_none());
}

#[test]
fn a_waker_of_a_polling_thread_may_poll_the_same_queue() {
    let (a, b) = Host::pair(183);
    let channel_of_b = b.context.create_comp_channel().unwrap();
    let cq = b.context.create_cq_with(8, &channel_of_b).unwrap();
    let mut sender = a.rc();
    let _qp = target(&mut sender, &b, &cq);

    /// Polls a queue when it is dropped.
    struct Poller(Cq);
    impl Drop for Poller {
        fn drop(&mut self) {
            self.0.poll_one();
        }
    }

    let (done, is_done) = channel();
    wait_with(&cq, &channel_of_b, Poller(cq.clone()), done);
    let (stop, is_stopped) = channel::<()>();
    let polling = thread::spawn(move || {
        while is_stopped.try_recv().is_err() {
            cq.poll_one();
        }
    });
    sender.post_send([SendWr::new(2, SendOp::Send, Data::EMPTY)]).unwrap();
    is_done.recv_timeout(LIMIT).expect("the polling thread does not hold the queue's lock");
    stop.send(()).unwrap();
    polling.join().unwrap();
}
