//! Connections that share what they are made of, and the futures of requests, in a simulated world.
#![cfg(feature = "sim")]

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use feroce::cm::{Activity, Connecting, Connector, Listener, Request};
use feroce::sim::{Fault, Host, World};
use feroce::{
    Access, Data, Inbox, InlineBytes, Pool, QpCap, Remote, Rkey, Router, SendOp, SendWr, WcStatus,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PORT: u16 = 4000;
const CLIENTS: usize = 4;
const CALLS: usize = 25;

fn listen(host: &Host) -> Result<Listener> {
    Ok(Listener::bind(&host.manager()?, (host.addr_of("server"), PORT).into())?)
}

async fn prepare(host: &Host, cap: QpCap) -> Result<Connecting> {
    let to = (host.addr_of("server"), PORT).into();
    Ok(Connector::new(&host.manager()?).cap(cap).prepare_async(to).await?)
}

/// One domain, one queue and one shared receive queue serve all clients.
async fn serve_all(host: Host) -> Result<()> {
    let context = host.context();
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(1024)?);
    let srq = pd.create_srq(64, 1)?;
    let router = Router::new(&cq);
    let memory = pd.alloc_mr(64, Access::LOCAL_WRITE)?;
    let mut receives = Vec::new();
    for i in 0..64 {
        receives.push(router.recv_shared(&srq, memory.recv(i, 0..8))?);
    }
    let listener = listen(&host)?;
    let mut peers = Vec::new();
    for _ in 0..CLIENTS {
        let request: Request = listener.accept_async().await?;
        assert!(request.context().is_some());
        let cap = QpCap::new(64, 0);
        let connection = request.pd(&pd).cqs(&cq, &cq).srq(&srq).cap(cap).accept_async().await?;
        peers.push(connection);
    }
    // Answers every call. Each has a future of its own.
    let mut answers = Vec::new();
    let mut receives = std::collections::VecDeque::from(receives);
    for _ in 0..CLIENTS * CALLS {
        let cqe = receives.pop_front().expect("a receive").await;
        assert_eq!(cqe.status, WcStatus::Success);
        receives.push_back(router.recv_shared(&srq, memory.recv(cqe.wr_id, 0..8))?);
        let peer = peers.iter_mut().find(|peer| peer.qpn() == cqe.qpn).expect("a client");
        answers.push(router.send(peer, SendWr::new(cqe.wr_id, SendOp::Send, Data::EMPTY))?);
    }
    for answer in answers {
        assert_eq!(answer.await.status, WcStatus::Success);
    }
    for peer in &peers {
        peer.wait_disconnected_async().await?;
    }
    Ok(())
}

/// Calls the server from several tasks at once, over one connection and one router.
async fn call(host: Host) -> Result<()> {
    let mut prepared = prepare(&host, QpCap::new(32, 32)).await?;
    let memory = prepared.pd().alloc_mr(64, Access::LOCAL_WRITE)?;
    // Before there is a connection: the first answer finds a receive.
    prepared.post_recv([])?;
    let mut peer = prepared.connect_async().await?;
    let (sends, receives) = (Router::new(peer.send_cq()), Router::new(peer.recv_cq()));
    let done = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for i in 0..CALLS {
        while peer.free_sends() == Some(0) {
            host.sleep(Duration::from_micros(10)).await;
        }
        let answer = receives.recv(&mut peer, memory.recv(i as u64, 0..0))?;
        let sent = sends.send(&mut peer, SendWr::new(i as u64, SendOp::Send, memory.data(0..8)))?;
        let done = Rc::clone(&done);
        tasks.push(host.spawn(async move {
            assert_eq!(sent.await.status, WcStatus::Success);
            let cqe = answer.await;
            assert_eq!((cqe.wr_id, cqe.status), (i as u64, WcStatus::Success));
            done.set(done.get() + 1);
        }));
        host.sleep(Duration::from_micros(3)).await;
    }
    for task in tasks {
        task.await;
    }
    assert_eq!(done.get(), CALLS);
    // If the acknowledgement of an answer was lost, the server repeats the answer.
    host.sleep(Duration::from_secs(1)).await;
    peer.disconnect_async().await?;
    Ok(())
}

#[test]
fn many_connections_share_domain_queues_and_a_router() {
    for seed in 0..10 {
        let mut world = World::new(seed).expect("a world");
        world.host("server", serve_all);
        for i in 0..CLIENTS {
            world.host(&format!("client{i}"), call);
        }
        world.at(Duration::ZERO, Fault::Loss(0.01 * (seed % 3) as f64));
        world.run().unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn one_wait_is_for_completions_and_for_the_end() {
    let mut world = World::new(1).expect("a world");
    world.host("server", |host| async move {
        let mut prepared = listen(&host)?.accept_async().await?.prepare()?;
        let memory = prepared.pd().alloc_mr(64, Access::LOCAL_WRITE)?;
        prepared.post_recv([memory.recv(1, 0..8), memory.recv(2, 0..8)])?;
        let peer = prepared.accept_async().await?;
        let mut seen = Vec::new();
        loop {
            match peer.next().await? {
                Activity::Completion(cqe) if cqe.status == WcStatus::Success => {
                    seen.push(cqe.wr_id);
                }
                Activity::Completion(cqe) => assert_eq!(cqe.status, WcStatus::Flushed),
                Activity::Disconnected => break,
            }
        }
        assert_eq!(seen, [1]);
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.host("client", |host| async move {
        let mut peer = prepare(&host, QpCap::new(4, 4)).await?.connect_async().await?;
        let memory = peer.pd().alloc_mr(8, Access::LOCAL_WRITE)?;
        peer.post_send([SendWr::new(1, SendOp::Send, memory.data(0..8))])?;
        let Activity::Completion(cqe) = peer.next().await? else { panic!("it has ended") };
        assert_eq!(cqe.status, WcStatus::Success);
        peer.disconnect_async().await?;
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn futures_may_be_dropped_and_queue_pairs_destroyed() {
    let mut world = World::new(1).expect("a world");
    world.host("alone", |host| async move {
        let (pd, cq) = (host.context().alloc_pd()?, host.context().create_cq(64)?);
        let router = Router::new(&cq);
        let memory = pd.alloc_mr(64, Access::LOCAL_WRITE)?;
        let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
        qp.connect(&qp.endpoint()?)?;
        let waits = router.recv(&mut qp, memory.recv(1, 0..8))?;
        let later = router.recv(&mut qp, memory.recv(2, 0..8))?;
        // The first waits for the queue when it is dropped: the second takes over.
        let (first, second) = (host.spawn(waits), host.spawn(later));
        host.sleep(Duration::from_micros(1)).await;
        drop(router.send(&mut qp, SendWr::new(3, SendOp::Send, Data::EMPTY))?);
        assert_eq!(first.await.wr_id, 1);
        let sent = router.send(&mut qp, SendWr::new(4, SendOp::Send, Data::EMPTY))?;
        assert_eq!((second.await.wr_id, sent.await.wr_id), (2, 4));
        // Requests of a queue pair that is destroyed never complete by themselves.
        let never = router.recv(&mut qp, memory.recv(5, 0..8))?;
        let qpn = qp.qpn();
        drop(qp);
        router.forget(qpn);
        let cqe = never.await;
        assert_eq!((cqe.wr_id, cqe.status), (5, WcStatus::Flushed));
        // A queue that takes nothing keeps no future.
        let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(1, 1)).create()?;
        assert!(router.send(&mut qp, SendWr::new(1, SendOp::Send, Data::EMPTY)).is_err());
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn buffers_belong_to_their_requests_until_those_are_complete() {
    let mut world = World::new(1).expect("a world");
    world.host("alone", |host| async move {
        let (pd, cq) = (host.context().alloc_pd()?, host.context().create_cq(64)?);
        let (router, pool) = (Router::new(&cq), Pool::new(&pd, 4, 64)?);
        let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
        qp.connect(&qp.endpoint()?)?;
        let received = router.recv_buf(&mut qp, pool.take().await)?;
        let mut message = pool.take().await;
        message[..5].copy_from_slice(b"hello");
        // The buffer of a send whose future is dropped returns with the completion.
        drop(router.send_buf(&mut qp, SendOp::Send, message, 0..5)?);
        assert_eq!(pool.available(), 2);
        let (cqe, buf) = received.await;
        assert_eq!(&buf.expect("a buffer")[..cqe.byte_len as usize], b"hello");
        let received = router.recv_buf(&mut qp, pool.take().await)?;
        let (cqe, sent) = router.send_buf(&mut qp, SendOp::Send, pool.take().await, 0..1)?.await;
        assert_eq!((cqe.status, sent.is_some()), (WcStatus::Success, true));
        drop((received.await, sent));
        assert_eq!(pool.available(), 4);

        // A receive that is still posted when its queue pair goes keeps its buffer for ever.
        let posted = router.recv_buf(&mut qp, pool.take().await)?;
        let qpn = qp.qpn();
        router.forget(qpn);
        let (cqe, buf) = posted.await;
        assert_eq!((cqe.status, buf.is_none()), (WcStatus::Flushed, true));
        drop((qp, router));
        assert_eq!(pool.available(), 3);
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

/// Two tasks of one host: one takes messages, the other sends them and sees them counted.
#[test]
fn an_inbox_gives_messages_in_order_and_lets_other_tasks_run() {
    const COUNT: usize = 100;
    let mut world = World::new(1).expect("a world");
    world.host("alone", |host| async move {
        let context = host.context();
        let (pd, sends) = (context.alloc_pd()?, Router::new(&context.create_cq(COUNT as u32)?));
        let cq = context.create_cq(COUNT as u32)?;
        let (inbox, pool) = (Inbox::new(&cq), Pool::new(&pd, COUNT, 64)?);
        let srq = pd.create_srq(COUNT as u32, 1)?;
        let cap = QpCap::new(COUNT as u32, 0);
        let mut qp = pd.rc_qp(sends.cq(), &cq, cap).srq(&srq).create()?;
        qp.connect(&qp.endpoint()?)?;
        while let Some(buf) = pool.try_take() {
            inbox.recv_buf_shared(&srq, buf)?;
        }
        for id in 0..COUNT as u8 {
            let data = Data::Inline(InlineBytes::new(&[id; 8]));
            match id as usize == COUNT - 1 {
                true => drop(sends.send(&mut qp, SendWr::new(0, SendOp::Send, data))?),
                false => sends.send_unsignaled(&mut qp, SendWr::new(0, SendOp::Send, data))?,
            }
        }
        let (mut taken, mut pauses) = (0, 0);
        poll_fn(|cx| {
            while taken < COUNT {
                let Poll::Ready((cqe, buf)) = pin!(inbox.next()).poll(cx) else {
                    pauses += 1;
                    return Poll::Pending;
                };
                let buf = buf.expect("a buffer");
                assert_eq!(
                    (&buf[..cqe.byte_len as usize], cqe.qpn),
                    (&[taken as u8; 8][..], qp.qpn())
                );
                taken += 1;
            }
            Poll::Ready(())
        })
        .await;
        assert!(pauses >= COUNT / 32, "{pauses}");
        assert_eq!(pool.available(), COUNT);

        // A receive that is still posted when its queue pair goes keeps its buffer for ever.
        inbox.recv_buf_shared(&srq, pool.take().await)?;
        drop((qp, inbox));
        assert_eq!(pool.available(), COUNT - 1);
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_buffer_that_was_withdrawn_is_out_of_reach() {
    let mut world = World::new(1).expect("a world");
    world.host("alone", |host| async move {
        let (pd, cq) = (host.context().alloc_pd()?, host.context().create_cq(64)?);
        let (router, pool) = (Router::new(&cq), Pool::new(&pd, 2, 64)?);
        let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
        let mut peer = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
        qp.connect(&peer.endpoint()?)?;
        peer.connect(&qp.endpoint()?)?;
        let exposed = pool.take().await.expose(Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let write = SendOp::Write(exposed.remote());
        let mut source = pool.take().await;
        source[..3].copy_from_slice(b"abc");
        let (cqe, source) = router.send_buf(&mut qp, write, source, 0..3)?.await;
        assert_eq!(cqe.status, WcStatus::Success);
        let target = exposed.withdraw();
        assert_eq!(&target[..3], b"abc");
        let source = source.expect("a buffer");
        let (cqe, source) = router.send_buf(&mut qp, write, source, 0..3)?.await;
        assert_eq!(cqe.status, WcStatus::RemoteAccess);
        // The request has failed, and the buffer is back.
        drop((source, target));
        assert_eq!(pool.available(), 2);
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}

/// The second request is posted while the packets of the first wait for room in the link.
#[test]
fn a_post_behind_a_full_link_leaves_when_there_is_room() {
    let mut world = World::new(1).expect("a world");
    world.host("server", |host| async move {
        let mut prepared = listen(&host)?.accept_async().await?.prepare()?;
        let memory = prepared.pd().alloc_mr(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        prepared.post_recv([memory.recv(1, 0..16)])?;
        let mut peer = prepared.accept_async().await?;
        let Remote { addr, rkey } = memory.remote(0);
        let place = [addr.to_be_bytes().as_slice(), &rkey.0.to_be_bytes()].concat();
        let place = Data::Inline(InlineBytes::new(&place));
        peer.post_send([SendWr::new(1, SendOp::Send, place)])?;
        assert_eq!(peer.recv_cq().next().await.status, WcStatus::Success);
        peer.wait_disconnected_async().await?;
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.host("client", |host| async move {
        let mut prepared = prepare(&host, QpCap::new(4, 4)).await?;
        let memory = prepared.pd().alloc_mr(1 << 20, Access::LOCAL_WRITE)?;
        prepared.post_recv([memory.recv(1, 0..16)])?;
        let mut peer = prepared.connect_async().await?;
        peer.recv_cq().next().await;
        let mut place = [0; 12];
        memory.read_at(0, &mut place)?;
        let (addr, rkey) = place.split_at(8);
        let addr = u64::from_be_bytes(addr.try_into()?);
        let remote = Remote { addr, rkey: Rkey(u32::from_be_bytes(rkey.try_into()?)) };
        peer.post_one(SendWr::new(2, SendOp::Write(remote), memory.data(0..1 << 20)))?;
        peer.post_one(SendWr::new(3, SendOp::Send, memory.data(0..16)))?;
        for wr_id in [2, 3] {
            let cqe = peer.send_cq().next().await;
            assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success));
        }
        peer.disconnect_async().await?;
        Ok::<_, Box<dyn std::error::Error>>(())
    });
    world.run().unwrap_or_else(|e| panic!("{e}"));
}
