//! What a thread holds while the driver runs foreign code or sleeps for it.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![allow(clippy::disallowed_methods, reason = "the test needs threads that may hang")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use super::{Signal, Wakes};
use crate::{Access, Device, Notify, Qp, QpCap, SendOp, SendWr, WcOpcode, WcStatus};

mod gate;
mod stub;

/// Long enough for a loaded machine, and short enough to see that a test hangs.
const LIMIT: Duration = Duration::from_secs(30);

/// Stops the thread that signals it until it is told to go on, if that is the right thread.
#[derive(Debug)]
struct Stop {
    whom: ThreadId,
    wakes: Arc<Wakes>,
    stopped: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    is_over: AtomicBool,
}

/// What is signalled: the stop, again and again until the right thread does it.
#[derive(Debug)]
struct Stopper(Arc<Stop>);

impl Signal for Stopper {
    fn signal(&self) {
        let stop = &self.0;
        if thread::current().id() == stop.whom {
            stop.stopped.lock().unwrap().send(()).unwrap();
            let _ = stop.go_on.lock().unwrap().recv_timeout(LIMIT);
            stop.is_over.store(true, Ordering::Release);
        } else {
            thread::yield_now();
            stop.wakes.add(Arc::new(Self(Arc::clone(stop))));
        }
    }
}

#[test]
fn a_thread_that_is_stopped_while_it_polls_does_not_keep_others_from_polling() {
    let context = Device::at(["127.184.0.1".parse().unwrap()]).open().unwrap();
    let cq = context.create_cq(8).unwrap();
    let ((stopped, is_stopped), (go_on, may_go_on)) = (channel(), channel());
    let wakes = Arc::clone(&context.driver().unwrap().wakes);
    let polling = thread::spawn({
        let cq = cq.clone();
        move || {
            let whom = thread::current().id();
            let (stopped, go_on) = (Mutex::new(stopped), Mutex::new(may_go_on));
            let (wakes_too, is_over) = (Arc::clone(&wakes), AtomicBool::new(false));
            let stop = Arc::new(Stop { whom, wakes: wakes_too, stopped, go_on, is_over });
            wakes.add(Arc::new(Stopper(Arc::clone(&stop))));
            // The driver's thread may have taken the signal, and returns it.
            while !stop.is_over.load(Ordering::Acquire) {
                assert!(cq.poll_one().is_none());
            }
        }
    });
    is_stopped.recv_timeout(LIMIT).unwrap();
    let (polled, is_polled) = channel();
    thread::spawn(move || {
        assert!(cq.take_one().is_none() && cq.poll_one().is_none());
        // Neither the queue nor the device is locked.
        cq.resize(16).unwrap();
        polled.send(()).unwrap();
    });
    is_polled.recv_timeout(LIMIT).expect("the polling thread holds no lock");
    go_on.send(()).unwrap();
    polling.join().unwrap();
}

#[test]
fn a_completion_that_another_thread_causes_ends_the_nap_of_a_polling_thread() {
    let context = Device::at(["127.184.0.2".parse().unwrap()]).open().unwrap();
    let driver = context.driver().unwrap();
    // From now on, threads that poll in vain sleep at once, and for a day.
    driver.backoff.nap_always();
    let pd = context.alloc_pd().unwrap();
    let ends = [(); 2].map(|()| {
        let cq = context.create_cq(8).unwrap();
        let qp = pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap();
        (qp, cq)
    });
    let [(mut ping, ping_cq), (mut pong, pong_cq)] = ends;
    let (there, back) = (ping.endpoint().unwrap(), pong.endpoint().unwrap());
    ping.connect(&back).unwrap();
    pong.connect(&there).unwrap();
    let (done, is_done) = channel();
    for (mut qp, cq, begins) in [(ping, ping_cq, true), (pong, pong_cq, false)] {
        let (mr, done) = (pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap(), done.clone());
        qp.post_recv([mr.recv(0, 0..8)]).unwrap();
        thread::spawn(move || {
            let send = |qp: &mut Qp| {
                let wr = SendWr::new(1, SendOp::Send, mr.data(8..16));
                qp.post_send([wr]).unwrap();
            };
            if begins {
                send(&mut qp);
            }
            for _ in 0..1000 {
                while cq.poll_one().is_none_or(|cqe| cqe.opcode != WcOpcode::Recv) {}
                qp.post_recv([mr.recv(0, 0..8)]).unwrap();
                send(&mut qp);
            }
            done.send(()).unwrap();
            // Its queue pair has to answer the last message.
            (qp, thread::park())
        });
    }
    for _ in 0..2 {
        is_done.recv_timeout(LIMIT).expect("a polling thread is not woken");
    }
}

/// Uses the device whenever a message is emitted.
struct Curious(crate::Context, Sender<usize>);

impl tracing::Subscriber for Curious {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.1.send(self.0.link_counters().len()).unwrap();
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A subscriber that takes the device's lock would wait for itself if it ran under it.
#[test]
fn messages_of_the_link_are_emitted_when_the_lock_is_released() {
    let context = Device::at(["127.184.0.3".parse().unwrap()]).open().unwrap();
    let (seen, is_seen) = channel();
    let working = context.clone();
    thread::spawn(move || {
        tracing::subscriber::with_default(Curious(working.clone(), seen), || {
            let driver = working.driver().unwrap();
            let log = feroce_link::Logger::new(Arc::<Wakes>::clone(&driver.wakes));
            driver.control(|_, _| log.warn(format_args!("something is wrong")));
        });
    });
    assert!(is_seen.recv_timeout(LIMIT).unwrap() > 0);
}

/// A send of an unreliable service completes when the link has read it, and also when the link has
/// failed to send it: then it is lost, as on any network.
#[test]
fn what_the_link_fails_to_send_completes() {
    let [context, other] =
        ["127.184.0.8", "127.184.0.9"].map(|at| Device::at([at.parse().unwrap()]).open().unwrap());
    let [(mut qp, cq, pd), (peer, ..)] = [&context, &other].map(|context| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
        (pd.uc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap(), cq, pd)
    });
    qp.connect(&peer.endpoint().unwrap()).unwrap();
    stub::replace_link(&context, |_| Err(std::io::ErrorKind::StorageFull.into()));
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    cq.notify(Notify::Next);
    qp.post_send([SendWr::new(1, SendOp::Send, mr.data(0..64))]).unwrap();
    let event = cq.channel().wait(Some(LIMIT.as_millis() as u16)).unwrap();
    assert_eq!(event, Some(cq.id()), "the consumer is woken");
    assert_eq!(cq.take_one().unwrap().status, WcStatus::Success);
}
