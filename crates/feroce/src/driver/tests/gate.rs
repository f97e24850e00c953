//! A link that stops in `send`, as a system call may, and what other threads do meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use super::LIMIT;
use super::stub::replace_link;
use crate::{Access, Context, Device, Error, Mr, Qp, QpCap, ResizeError, SendOp, SendWr};

/// A device whose link has stopped in `send`, with a train that reads `mr`.
struct Stopped {
    context: Context,
    mr: Arc<Mr>,
    open: Sender<()>,
    read: Receiver<Vec<u8>>,
    sending: thread::JoinHandle<Qp>,
}

fn stopped(addresses: [&str; 2], len: usize) -> Stopped {
    let [context, other] =
        addresses.map(|address| Device::at([address.parse().unwrap()]).open().unwrap());
    let ends = [&context, &other].map(|context| {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(8).unwrap();
        (pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap(), pd)
    });
    let [(mut qp, pd), (peer, _)] = ends;
    qp.connect(&peer.endpoint().unwrap()).unwrap();
    let mr = Arc::new(pd.alloc_mr(len, Access::LOCAL_WRITE).unwrap());
    mr.write_at(0, &vec![7; len]).unwrap();
    let ((arrived, is_there), (open, opens), (reads, read)) = (channel(), channel(), channel());
    let mut is_open = false;
    // The link discards what is sent. The first train waits until the gate opens; its packets are
    // read only then.
    replace_link(&context, move |trains| {
        if !is_open {
            is_open = true;
            arrived.send(()).unwrap();
            opens.recv_timeout(LIMIT).expect("the gate opens");
            let mut bytes = vec![0; trains[0].payload_len];
            assert!(trains[0].payload.copy_out(0, &mut bytes));
            reads.send(bytes).unwrap();
        }
        Ok(trains.len())
    });
    let sending = thread::spawn({
        let mr = Arc::clone(&mr);
        move || {
            qp.post_send([SendWr::new(1, SendOp::Send, mr.data(0..len))]).unwrap();
            qp
        }
    });
    is_there.recv_timeout(LIMIT).expect("the train is sent");
    Stopped { context, mr, open, read, sending }
}

/// Runs `f` in another thread, and fails if that does not end.
fn soon<R: Send + 'static>(what: &str, f: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, is_done) = channel();
    thread::spawn(move || done.send(f()));
    is_done.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{what} waits for the link"))
}

#[test]
fn the_engine_is_free_while_the_link_sends() {
    let Stopped { context, open, sending, read, .. } =
        stopped(["127.184.0.4", "127.184.0.5"], 4096);
    let created = soon("creating objects", {
        let context = context.clone();
        move || {
            let pd = context.alloc_pd().unwrap();
            let cq = context.create_cq(8).unwrap();
            let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
            let qp = pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap();
            assert!(cq.poll_one().is_none(), "polling does not wait, either");
            (mr, qp)
        }
    });
    soon("reading counters", move || context.counters());
    open.send(()).unwrap();
    read.recv_timeout(LIMIT).unwrap();
    sending.join().unwrap();
    drop(created);
}

#[test]
fn memory_is_deregistered_when_the_link_has_read_its_trains() {
    let len = 40_000;
    let Stopped { mr, open, read, sending, .. } = stopped(["127.184.0.6", "127.184.0.7"], len);
    let (done, is_done) = channel();
    thread::spawn({
        let mr = Arc::clone(&mr);
        move || {
            mr.dereg().unwrap();
            // From now on the memory is the program's.
            mr.write_at(0, &vec![9; len]).unwrap();
            done.send(()).unwrap();
        }
    });
    for _ in 0..1000 {
        assert_eq!(is_done.try_recv(), Err(TryRecvError::Empty), "a train waits for its bytes");
        thread::yield_now();
    }
    open.send(()).unwrap();
    let bytes = read.recv_timeout(LIMIT).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7), "the bytes that were posted");
    is_done.recv_timeout(LIMIT).expect("the memory is deregistered");
    sending.join().unwrap();
}

#[test]
fn a_queue_pair_that_is_destroyed_leaves_no_train_that_reads_its_memory() {
    let contexts = ["127.184.0.14", "127.184.0.15"]
        .map(|address| Device::at([address.parse().unwrap()]).open().unwrap());
    let [(mut qp, pd), (peer, _)] = contexts.each_ref().map(|context| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
        (pd.rc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap(), pd)
    });
    qp.connect(&peer.endpoint().unwrap()).unwrap();
    let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    // The link is full, and stays so.
    replace_link(&contexts[0], |_| Ok(0));
    qp.post_send([SendWr::new(1, SendOp::Send, mr.data(0..4096))]).unwrap();
    let driver = Arc::clone(contexts[0].driver().unwrap());
    // The driver thread may own the link while the request is posted, and answer the doorbell when
    // it has released it.
    soon("the train", {
        let driver = Arc::clone(&driver);
        move || {
            while driver.link().given() == 0 {
                thread::yield_now();
            }
        }
    });
    assert_eq!(driver.link().given(), 1, "the train waits");
    soon("destroying the queue pair", move || drop(qp));
    assert_eq!(driver.link().waiting_of(1), 0);
    soon("deregistering", move || mr.dereg().unwrap());
}

#[test]
fn a_queue_is_not_made_smaller_than_what_was_posted_before_completes_with() {
    let contexts = ["127.184.0.16", "127.184.0.17"]
        .map(|address| Device::at([address.parse().unwrap()]).open().unwrap());
    let [(mut qp, cq, pd), (peer, ..)] = contexts.each_ref().map(|context| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
        (pd.uc_qp(&cq, &cq, QpCap::new(4, 4)).create().unwrap(), cq, pd)
    });
    qp.connect(&peer.endpoint().unwrap()).unwrap();
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let driver = contexts[0].driver().unwrap();
    // Another thread owns the link while the requests are posted, and leaves them to the next.
    let link = driver.link();
    qp.post_send((0..4).map(|id| SendWr::new(id, SendOp::Send, mr.data(0..64)))).unwrap();
    let resized = thread::scope(|scope| {
        let resizing = scope.spawn(|| cq.resize(2));
        while !driver.locks.is_outer_awaited() {
            thread::yield_now();
        }
        drop(link);
        resizing.join().unwrap()
    });
    let refused = ResizeError::TooSmall { waiting: 4 };
    assert!(matches!(resized, Err(Error::Resize(error)) if error == refused), "{resized:?}");
}

#[test]
fn a_thread_that_waits_for_the_link_gets_it_before_one_that_takes_it_again_and_again() {
    /// The driver thread may wait, too, and get the link first.
    const TURNS: usize = 100;
    let context = Device::at(["127.0.0.1".parse().unwrap()]).open().unwrap();
    let driver = context.driver().unwrap();
    let has_had_it = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let link = driver.link();
            has_had_it.store(true, Ordering::Relaxed);
            drop(link);
        });
        let mut turns = 0;
        while !has_had_it.load(Ordering::Relaxed) {
            // A thread that waits takes microseconds to wake up, and the link is free meanwhile.
            let Some(link) = driver.try_link() else { continue };
            turns += 1;
            while !driver.locks.is_outer_awaited() && !has_had_it.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            drop(link);
            assert!(turns <= TURNS, "a thread waits, and another takes the link {turns} times");
        }
    });
}

#[test]
fn a_thread_that_waits_for_the_engine_gets_it_before_the_next_copy() {
    let context = Device::at(["127.0.0.1".parse().unwrap()]).open().unwrap();
    let driver = context.driver().unwrap();
    let has_had_it = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let state = driver.state();
            has_had_it.store(true, Ordering::Relaxed);
            drop(state);
        });
        let mut copies = 0;
        while !has_had_it.load(Ordering::Relaxed) {
            let Some(state) = driver.try_state_to_copy() else { continue };
            copies += 1;
            while !driver.locks.is_inner_awaited() && !has_had_it.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            drop(state);
            // The driver thread may wait, too, and get it first.
            assert!(copies <= 3, "a thread waits, and another copies {copies} times");
        }
    });
}

/// A queue pair without direct access goes by packets, beside others whose requests are complete at
/// once and leave little time for packets.
#[test]
fn all_of_many_queue_pairs_get_direct_access() {
    const QPS: usize = 64;
    let contexts = ["127.0.0.1", "127.0.0.2"]
        .map(|address| Device::at([address.parse().unwrap()]).open().unwrap());
    let [here, there] = contexts.each_ref().map(|context| context.alloc_pd().unwrap());
    let [cq, other] = contexts.each_ref().map(|context| context.create_cq(64).unwrap());
    let from = here.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    let to = there.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let mut qps: Vec<(Qp, Qp)> = (0..QPS)
        .map(|_| {
            let mut qp = here.rc_qp(&cq, &cq, QpCap::new(4, 1)).create().unwrap();
            let mut peer = there.rc_qp(&other, &other, QpCap::new(1, 1)).create().unwrap();
            qp.connect(&peer.endpoint().unwrap()).unwrap();
            peer.connect(&qp.endpoint().unwrap()).unwrap();
            (qp, peer)
        })
        .collect();
    let write = |qp: &mut Qp| {
        let write = SendWr::new(0, SendOp::Write(to.remote(0)), from.data(0..4096));
        qp.post_send([write]).unwrap();
        let is_direct = cq.take_one().is_some();
        if !is_direct {
            cq.wait().unwrap();
        }
        is_direct
    };
    // The peer grants it when it has executed a WRITE.
    for (qp, _) in &mut qps {
        assert!((0..100).any(|_| write(qp)), "memory of another device can be mapped");
    }
    let lost = qps.iter_mut().filter_map(|(qp, _)| (!write(qp)).then(|| qp.qpn())).count();
    assert_eq!(lost, 0, "queue pairs that have lost it to others");
}
