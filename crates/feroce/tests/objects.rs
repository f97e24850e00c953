//! Objects: their owners, the references that keep them alive, and the attributes that can be
//! changed after creation.
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::os::fd::AsFd;
use std::sync::Barrier;

use common::{Host, connect, every_access, is_foreign};
use feroce::{
    Access, AsyncEvent, Data, DeregError, Dest, DestroyError, Error, Iova, Notify, QpAttr, QpCap,
    QpState, RecvWr, Region, Rereg, SendOp, SendWr, WcStatus,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn readable(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

fn busy(result: Result<(), Error>) -> bool {
    matches!(result, Err(Error::Destroy(DestroyError::Busy)))
}

#[test]
fn one_target_delivers_to_many_shared_queues() {
    let (a, b) = Host::pair(111);
    let xrcd = b.context.open_xrcd().unwrap();
    let srqs = [0, 1].map(|_| b.pd.create_xrc_srq(&xrcd, &b.cq, 8, 1).unwrap());
    assert_ne!(srqs[0].number(), srqs[1].number());
    let mut target = xrcd.target_qp().create().unwrap();
    let mut initiator = a.pd.xrc_qp(&a.cq, QpCap::new(8, 0)).create().unwrap();
    connect(&mut initiator, &mut target);
    for (i, srq) in (0..).zip(&srqs) {
        let bytes = a.fill(0, 5000, i as u8);
        srq.post_recv([b.mr.recv(i, 0..5000)]).unwrap();
        let send = SendWr::new(7, SendOp::Send, a.mr.data(0..5000));
        initiator.post_send([SendWr { dest: Dest::Xrc(srq.number()), ..send }]).unwrap();
        assert_eq!(a.wait().status, WcStatus::Success);
        assert_eq!((b.wait().wr_id, b.read(0, 5000)), (i, bytes));
    }
    assert!(target.post_send([SendWr::new(1, SendOp::Send, Data::EMPTY)]).is_err());
    assert!(busy(xrcd.close()));
    drop((target, srqs));
    xrcd.close().unwrap();
}

#[test]
fn what_is_in_use_stays_and_what_is_not_goes_once() {
    let host = Host::new(112, 1);
    let (pd, cq) = (host.context.alloc_pd().unwrap(), host.context.create_cq(8).unwrap());
    let srq = pd.create_srq(8, 1).unwrap();
    let qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).srq(&srq).create().unwrap();
    assert!(busy(pd.dealloc()) && busy(cq.destroy()) && busy(srq.destroy()));
    let (handle, sender, receiver) = qp.split();
    assert!(receiver.is_none());
    handle.destroy().unwrap();
    assert_eq!(handle.query(), None);
    cq.destroy().unwrap();
    // The adapter gives its id to the next object, which dropping the first must not destroy.
    let next = host.context.create_cq(8).unwrap();
    assert!(is_foreign() || next.id() == cq.id());
    drop((cq, handle, sender));
    srq.destroy().unwrap();
    pd.dealloc().unwrap();
    next.resize(16).unwrap();
}

#[test]
fn a_shared_queue_grows_shrinks_and_tells_when_it_runs_low() {
    let host = Host::new(113, 1);
    let srq = host.pd.create_srq(2, 0).unwrap();
    let receives = |n: u32| (0..n.into()).map(|wr_id| RecvWr { wr_id, ..RecvWr::default() });
    let room = || srq.query().map(|attr| attr.max_wr).unwrap();
    // The queue may have more room than requested.
    let first = room();
    assert!(srq.post_recv(receives(first + 1)).is_err());
    srq.resize(first + 1).unwrap();
    assert!(room() > first);
    srq.post_recv(receives(1)).unwrap();
    assert!(srq.resize(first).is_err());
    let mut qp = host.pd.rc_qp(&host.cq, &host.cq, QpCap::new(8, 0)).srq(&srq).create().unwrap();
    qp.connect(&qp.endpoint().unwrap()).unwrap();
    srq.set_limit(first + 1).unwrap();
    assert_eq!(srq.query().map(|attr| attr.limit), Some(first + 1));
    assert!(!readable(&host.context.async_fd().unwrap()));
    qp.post_send([SendWr::new(9, SendOp::Send, Data::EMPTY)]).unwrap();
    let event = host.context.wait_async_event(None).unwrap();
    assert_eq!(event, Some(AsyncEvent::SrqLimitReached(srq.id())));
    assert_eq!(srq.query().map(|attr| attr.limit), Some(0));
}

#[test]
fn events_go_to_the_opening_that_made_the_object() {
    let host = Host::new(114, 1);
    let other = host.context.reopen().unwrap();
    let (pd, cq) = (other.alloc_pd().unwrap(), other.create_cq(8).unwrap());
    let srq = pd.create_srq(8, 1).unwrap();
    let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 0)).srq(&srq).create().unwrap();
    let (qpn, mut peer) = (qp.qpn(), host.rc());
    connect(&mut qp, &mut peer);
    qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    assert!(readable(&other.async_fd().unwrap()));
    assert_eq!(other.try_async_event(), Some(AsyncEvent::LastWqeReached(qpn)));
    assert_eq!((other.try_async_event(), host.context.try_async_event()), (None, None));
    assert!(!readable(&other.async_fd().unwrap()));

    // Events that the consumer has not taken are discarded with the object.
    qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    qp.modify(&QpAttr::init(Access::empty())).unwrap();
    qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    assert!(readable(&other.async_fd().unwrap()));
    drop(qp);
    assert!(!readable(&other.async_fd().unwrap()));
    assert_eq!(other.try_async_event(), None);
}

#[test]
fn completion_events_go_with_their_queue() {
    let host = Host::new(115, 1);
    let channel = host.context.create_comp_channel().unwrap();
    let cq = host.context.create_cq_with(8, &channel).unwrap();
    let mut qp = host.pd.rc_qp(&cq, &host.cq, QpCap::new(8, 8)).create().unwrap();
    qp.connect(&qp.endpoint().unwrap()).unwrap();
    cq.notify(Notify::Next);
    qp.post_recv([host.mr.recv(1, 0..8)]).unwrap();
    qp.post_send([SendWr::new(2, SendOp::Send, host.mr.data(0..8))]).unwrap();
    assert_eq!(cq.wait().unwrap().wr_id, 2);
    cq.notify(Notify::Next);
    qp.post_recv([host.mr.recv(1, 0..8)]).unwrap();
    qp.post_send([SendWr::new(3, SendOp::Send, host.mr.data(0..8))]).unwrap();
    while !readable(&channel) {
        host.cq.poll_one();
    }
    drop(qp);
    cq.destroy().unwrap();
    assert!(!readable(&channel));
    assert_eq!(channel.try_event(), None);
}

#[test]
fn a_queue_pair_that_is_reset_leaves_no_completions() {
    let host = Host::new(119, 1);
    let (mut one, mut two) = (host.rc(), host.rc());
    for qp in [&mut one, &mut two] {
        qp.connect(&qp.endpoint().unwrap()).unwrap();
        qp.post_recv([host.mr.recv(1, 0..8), host.mr.recv(2, 0..8)]).unwrap();
        qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    }
    one.modify(&QpAttr::to(QpState::Reset)).unwrap();
    let mut left = Vec::with_capacity(8);
    host.cq.poll(&mut left);
    assert_eq!(left.iter().map(|cqe| cqe.qpn).collect::<Vec<_>>(), [two.qpn(); 2]);
}

#[test]
fn a_registration_changes_its_memory_its_rights_and_its_domain() {
    let (a, b) = Host::pair(116);
    let (mut qa, mut qb) = (a.rc(), b.rc());
    connect(&mut qa, &mut qb);
    let mut mr = b.pd.alloc_mr(64, every_access()).unwrap();
    let (key, remote) = (mr.rkey(), mr.remote(0));
    let mut write = |remote, bytes: &[u8]| {
        a.mr.write_at(0, bytes).unwrap();
        let data = a.mr.data(0..bytes.len());
        qa.post_send([SendWr::new(1, SendOp::Write(remote), data)]).unwrap();
        a.wait().status
    };
    assert_eq!(write(remote, b"first"), WcStatus::Success);

    let region = Region::alloc(128).unwrap();
    let memory = Some((region.clone(), Iova::At(1 << 40)));
    mr.rereg(Rereg { memory, ..Rereg::default() }).unwrap();
    assert_eq!((mr.rkey(), mr.addr(), mr.len()), (key, 1 << 40, 128));
    assert_eq!(write(mr.remote(100), b"second"), WcStatus::Success);
    let mut bytes = [0; 6];
    region.read_at(100, &mut bytes).unwrap();
    assert_eq!(&bytes, b"second");

    let access = Some(Access::LOCAL_WRITE);
    mr.rereg(Rereg { access, ..Rereg::default() }).unwrap();
    assert_eq!(write(mr.remote(0), b"third"), WcStatus::RemoteAccess);

    let pd = b.context.alloc_pd().unwrap();
    mr.rereg(Rereg { pd: Some(pd.clone()), ..Rereg::default() }).unwrap();
    assert!(busy(pd.dealloc()));
    mr.dereg().unwrap();
    pd.dealloc().unwrap();
}

#[test]
fn parts_of_memory_and_no_memory_at_all() {
    let host = Host::new(117, 1);
    let region = Region::alloc(256).unwrap();
    let part =
        host.pd.register_part(region.clone(), 64..128, Iova::ZeroBased, every_access()).unwrap();
    assert_eq!((part.addr(), part.len()), (0, 64));
    part.write_at(0, b"part").unwrap();
    assert!(part.write_at(61, b"part").is_err());
    let mut bytes = [0; 4];
    region.read_at(64, &mut bytes).unwrap();
    assert_eq!(&bytes, b"part");

    let null = host.pd.register(Region::null(), Iova::Natural, Access::LOCAL_WRITE).unwrap();
    let mut qp = host.rc();
    qp.connect(&qp.endpoint().unwrap()).unwrap();
    // The adapter discards bytes that are received into it, and sends zeros from it.
    qp.post_recv([null.recv(1, 1000..1004), part.recv(2, 0..4)]).unwrap();
    qp.post_send([
        SendWr::new(3, SendOp::Send, part.data(0..4)),
        SendWr::new(4, SendOp::Send, null.data(5..9)),
    ])
    .unwrap();
    let done = [0; 4].map(|_| host.wait().status);
    assert_eq!(done, [WcStatus::Success; 4]);
    region.read_at(64, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
}

#[test]
fn memory_with_a_window_cannot_be_deregistered() {
    let host = Host::new(118, 1);
    let mut qp = host.rc();
    qp.connect(&qp.endpoint().unwrap()).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND;
    let mr = host.pd.alloc_mr(64, access).unwrap();
    let mw = host.pd.alloc_mw(feroce::MwType::Two).unwrap();
    let binding = feroce::Bind {
        mr: mr.lkey(),
        addr: mr.addr(),
        len: 64,
        access: Access::REMOTE_READ,
        zero_based: false,
    };
    let new_rkey = mw.next_rkey();
    let bind = SendOp::BindMw { mw: mw.rkey(), new_rkey, binding };
    qp.post_send([SendWr::new(1, bind, Data::EMPTY)]).unwrap();
    assert_eq!(host.wait().status, WcStatus::Success);
    assert!(matches!(mr.dereg(), Err(Error::Deregister(DeregError::WindowsBound))));
    drop(mw);
    mr.dereg().unwrap();
}

#[test]
fn two_threads_that_destroy_clones_leave_a_newcomer_with_the_same_id_alone() {
    let host = Host::new(229, 1);
    for _ in 0..if is_foreign() { 10 } else { 5_000 } {
        let cq = host.context.create_cq(8).unwrap();
        let start = Barrier::new(2);
        let destroy = &|cq: feroce::Cq| {
            start.wait();
            let result = cq.destroy();
            assert!(result.is_ok() || busy(result));
            // The id goes to the next queue at once.
            host.context.create_cq(8).unwrap()
        };
        let next = std::thread::scope(|scope| {
            let clone = cq.clone();
            let other = scope.spawn(move || destroy(clone));
            [destroy(cq), other.join().unwrap()]
        });
        for cq in next {
            cq.resize(16).expect("the queue is still there");
        }
    }
}
