//! The end that answers.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use feroce::cm::{ConnParam, Connection, Listener, Manager};
use feroce::{Buf, Cq, Cqe, Instant, Pd, Pool, Qpn, Router, SendOp, Srq, WcStatus};
use tower_service::Service;

use crate::error::{Error, Malformed, Status};
use crate::header::{Header, Kind, Place};
use crate::limits::Limits;
use crate::message::{Answer, Incoming};
use crate::sending::{Link, Sent};
use crate::tasks::{Spawner, Tasks};

/// Answers the calls of clients. All of its connections share one domain, one pool of buffers, one
/// completion queue for receives, and one shared receive queue.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    listener: Listener,
    tasks: Tasks,
}

/// How many connections a server has, and what each may do.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Limits of each connection.
    pub limits: Limits,
    /// Most connections at the same time; more are rejected.
    pub connections: usize,
    /// Long requests that can be read at the same time; more wait.
    pub long_requests: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { limits: Limits::default(), connections: 16, long_requests: 8 }
    }
}

#[derive(Debug)]
struct Shared {
    options: ServerOptions,
    pd: Pd,
    srq: Srq,
    recv_cq: Cq,
    send_cq: Cq,
    receives: Router,
    sends: Router,
    messages: Pool,
    long: Pool,
    spawner: Spawner,
    peers: Mutex<Peers>,
    /// Calls that are not answered yet.
    under_way: AtomicUsize,
    is_shutting_down: AtomicBool,
}

#[derive(Debug, Default)]
struct Peers {
    by_qpn: BTreeMap<Qpn, Arc<Peer>>,
    /// Receives that are posted, and those that connections need.
    posted: usize,
    needed: usize,
    /// Connections that are being accepted. The first messages of a client may arrive before the
    /// server hears that it is ready, and wait here.
    accepting: usize,
    early: Vec<(Cqe, Buf)>,
}

impl Peers {
    /// The client that a message is from. The message waits if its connection is still being
    /// accepted, and is dropped if it has ended.
    fn sort(&mut self, cqe: Cqe, message: Buf) -> Option<(Arc<Peer>, Buf)> {
        match self.by_qpn.get(&cqe.qpn) {
            Some(peer) => return Some((Arc::clone(peer), message)),
            None if self.accepting > 0 => self.early.push((cqe, message)),
            None => {}
        }
        None
    }

    /// A connection was accepted, or was not. Returns the messages that have waited for it.
    fn accepted(&mut self, peer: Option<&Arc<Peer>>) -> Vec<(Cqe, Buf)> {
        self.accepting -= 1;
        let mut taken = Vec::new();
        if let Some(peer) = peer {
            let qpn = peer.link.qpn();
            self.by_qpn.insert(qpn, Arc::clone(peer));
            taken.extend(self.early.extract_if(.., |(cqe, _)| cqe.qpn == qpn));
        }
        if self.accepting == 0 {
            self.early.clear();
        }
        taken
    }
}

/// A client.
#[derive(Debug)]
struct Peer {
    link: Link,
    limits: Limits,
    calls: Mutex<BTreeMap<u64, Arc<Cancel>>>,
    /// The last reply, which is to arrive before the connection ends.
    last: Mutex<Option<Sent>>,
}

/// Whether a call was cancelled.
#[derive(Debug, Default)]
struct Cancel(Mutex<(bool, Option<Waker>)>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cancel {
    fn cancel(&self) {
        let mut state = lock(&self.0);
        state.0 = true;
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// The result of `work`, unless the call is cancelled before.
    async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            let mut state = lock(&self.0);
            if state.0 {
                return Poll::Ready(None);
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Shuts a server down.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<Shared>);

impl Shutdown {
    /// From now on requests are refused with [`Status::ShuttingDown`]. [`Server::serve`] resolves
    /// when the calls that were under way are answered.
    pub fn begin(&self) {
        self.0.is_shutting_down.store(true, Ordering::Release);
        // Has the server look.
        self.0.spawner.spawn(async {});
    }
}

impl Server {
    /// Listens at an address of one device. Port 0 selects a free port.
    pub fn bind(manager: &Manager, at: SocketAddr, options: ServerOptions) -> Result<Self, Error> {
        let context = manager.context_for(at.ip())?;
        let (limits, pd) = (options.limits, context.alloc_pd()?);
        let calls = options.connections * usize::from(limits.window);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let srq = pd.create_srq(count(2 * calls), 1)?;
        let (recv_cq, send_cq) =
            (context.create_cq(count(2 * calls))?, context.create_cq(count(9 * calls + 64))?);
        // Two receives for each call, and its request and reply beside them.
        let messages = Pool::new(&pd, 4 * calls, limits.message_len())?;
        let long = Pool::new(&pd, options.long_requests.max(1), limits.longest as usize)?;
        let tasks = Tasks::default();
        let shared = Arc::new(Shared {
            receives: Router::new(&recv_cq),
            sends: Router::new(&send_cq),
            spawner: tasks.spawner(),
            peers: Mutex::default(),
            under_way: AtomicUsize::new(0),
            is_shutting_down: AtomicBool::new(false),
            options,
            pd,
            srq,
            recv_cq,
            send_cq,
            messages,
            long,
        });
        Ok(Self { shared, listener: Listener::bind(manager, at)?, tasks })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// The domain of its connections: pools for long answers are made there.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// What shuts it down.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown(Arc::clone(&self.shared))
    }

    /// Answers calls with `service` until it is [shut down](Shutdown::begin). All handlers run in
    /// this future; one that computes for long should spawn a task of the runtime.
    pub async fn serve<S>(self, service: S) -> Result<(), Error>
    where
        S: Service<Incoming, Response = Answer, Error = Status> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        let Self { shared, listener, mut tasks } = self;
        {
            let mut accept = pin!(accept(&shared, &listener, &service));
            let mut failure = None;
            poll_fn(|cx| {
                if let Poll::Ready(error) = accept.as_mut().poll(cx) {
                    failure = Some(error);
                    return Poll::Ready(());
                }
                // There may be no task now and some later.
                let _ = tasks.poll_all(cx);
                let is_over = shared.is_shutting_down.load(Ordering::Acquire)
                    && shared.under_way.load(Ordering::Acquire) == 0;
                if is_over { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            if let Some(error) = failure {
                return Err(error);
            }
        }
        let peers = std::mem::take(&mut lock(&shared.peers).by_qpn);
        for peer in peers.values() {
            let last = lock(&peer.last).take();
            if let Some(last) = last {
                last.done().await;
            }
            peer.link.end();
        }
        Ok(())
    }
}

/// Accepts connections until the listener fails.
async fn accept<S>(shared: &Arc<Shared>, listener: &Listener, service: &S) -> Error
where
    S: Service<Incoming, Response = Answer, Error = Status> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    loop {
        let request = match listener.accept_async().await {
            Ok(request) => request,
            Err(e) => return e.into(),
        };
        let agreed = shared.options.limits.agree(request.private_data());
        let is_full = lock(&shared.peers).by_qpn.len() >= shared.options.connections;
        // Dropping a request rejects it.
        let Some(limits) = agreed.filter(|_| !is_full) else { continue };
        shared.post_receives(limits, service);
        let param = ConnParam { private_data: limits.emit(), ..ConnParam::default() };
        let plan = request.param(param).pd(&shared.pd).srq(&shared.srq).cap(limits.cap(0));
        let prepared = plan.cqs(&shared.send_cq, &shared.recv_cq).prepare();
        lock(&shared.peers).accepting += 1;
        let (shared, service) = (Arc::clone(shared), service.clone());
        let spawner = shared.spawner.clone();
        spawner.spawn(async move {
            let connection = match prepared {
                Ok(prepared) => prepared.accept_async().await.ok(),
                Err(_) => None,
            };
            let peer = connection.map(|connection| shared.peer(connection, limits));
            let early = lock(&shared.peers).accepted(peer.as_ref());
            if let Some(peer) = peer {
                for (cqe, message) in early {
                    take(&shared, &peer, &cqe, message, &service).await;
                }
                peer.link.ended().await;
                shared.leave(&peer);
            }
            lock(&shared.peers).needed -= limits.receives();
        });
    }
}

impl Shared {
    /// Has as many receives posted as the connections need with another one.
    fn post_receives<S>(self: &Arc<Self>, limits: Limits, service: &S)
    where
        S: Service<Incoming, Response = Answer, Error = Status> + Clone + Send + Sync + 'static,
        S::Future: Send,
    {
        let mut peers = lock(&self.peers);
        peers.needed += limits.receives();
        let more = peers.needed.saturating_sub(peers.posted);
        peers.posted += more;
        drop(peers);
        for _ in 0..more {
            let Some(buf) = self.messages.try_take() else { return };
            let Ok(posted) = self.receives.recv_buf_shared(&self.srq, buf) else { return };
            self.spawner.spawn(receive(Arc::clone(self), posted, service.clone()));
        }
    }

    fn peer(&self, connection: Connection, limits: Limits) -> Arc<Peer> {
        let link = Link::new(connection, self.sends.clone(), self.messages.clone());
        Arc::new(Peer { link, limits, calls: Mutex::default(), last: Mutex::default() })
    }

    /// A connection has ended: cancels its calls, whose caller is gone.
    fn leave(&self, peer: &Peer) {
        lock(&self.peers).by_qpn.remove(&peer.link.qpn());
        let calls: Vec<Arc<Cancel>> = lock(&peer.calls).values().cloned().collect();
        calls.iter().for_each(|call| call.cancel());
        peer.link.end();
        // What was posted has been flushed; its buffers return to their pools.
        self.sends.reap();
    }
}

/// Keeps one receive posted.
async fn receive<S>(shared: Arc<Shared>, mut received: feroce::RoutedBuf, service: S)
where
    S: Service<Incoming, Response = Answer, Error = Status> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    loop {
        let (cqe, buf) = received.await;
        // The place of this message is taken before the message is looked at: once it is answered,
        // the client may send another.
        let next = shared.messages.take().await;
        match shared.receives.recv_buf_shared(&shared.srq, next) {
            Ok(next) => received = next,
            Err(_) => return,
        }
        let Some(message) = buf.filter(|_| cqe.status == WcStatus::Success) else { continue };
        let sorted = lock(&shared.peers).sort(cqe, message);
        if let Some((peer, message)) = sorted {
            take(&shared, &peer, &cqe, message, &service).await;
        }
    }
}

/// Handles a message of a client, and ends the connection if that breaks the protocol.
async fn take<S>(shared: &Arc<Shared>, peer: &Arc<Peer>, cqe: &Cqe, message: Buf, service: &S)
where
    S: Service<Incoming, Response = Answer, Error = Status> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    if handle(shared, peer, cqe, message, service).await.is_err() {
        shared.leave(peer);
    }
}

/// Handles a message of a client.
async fn handle<S>(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    cqe: &Cqe,
    message: Buf,
    service: &S,
) -> Result<(), Malformed>
where
    S: Service<Incoming, Response = Answer, Error = Status> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let len = cqe.byte_len as usize;
    let (header, body) = Header::parse(message.get(..len).ok_or(Malformed::Short)?)?;
    let range = len - body.len()..len;
    match header.kind {
        Kind::Cancel => {
            let call = lock(&peer.calls).get(&header.id).cloned();
            call.into_iter().for_each(|call| call.cancel());
            // A client that is gone needs no answer.
            let _ = peer.link.send(&Header::new(Kind::Cancelled, header.id), &[]).await;
        }
        Kind::Request => {
            let cancel = Arc::new(Cancel::default());
            let mut calls = lock(&peer.calls);
            let is_over = calls.len() >= usize::from(peer.limits.window);
            if is_over || calls.insert(header.id, Arc::clone(&cancel)).is_some() {
                return Err(Malformed::Unknown(header.id));
            }
            drop(calls);
            let ns = |us: u32| u64::from(us) * 1000;
            let deadline = header.remaining_us.map(|us| cqe.timestamp.plus_nanos(ns(us)));
            let incoming = Incoming { method: header.method, deadline, buf: message, range };
            let call = Call { shared: Arc::clone(shared), peer: Arc::clone(peer), header, cancel };
            shared.under_way.fetch_add(1, Ordering::AcqRel);
            shared.spawner.spawn(call.run(incoming, service.clone()));
        }
        Kind::Reply | Kind::Cancelled => return Err(Malformed::Unknown(header.id)),
    }
    Ok(())
}

/// A call that is under way.
struct Call {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    header: Header,
    cancel: Arc<Cancel>,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.shared.under_way.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Call {
    async fn run<S>(self, incoming: Incoming, service: S)
    where
        S: Service<Incoming, Response = Answer, Error = Status>,
    {
        let deadline = incoming.deadline;
        let answer = match self.fetch(incoming).await {
            ControlFlow::Continue(Ok(incoming)) => {
                let answer = self.cancel.or(self.answer(incoming, service)).await;
                answer.unwrap_or(Err(Status::Cancelled))
            }
            ControlFlow::Continue(Err(status)) => Err(status),
            ControlFlow::Break(()) => return self.shared.leave(&self.peer),
        };
        let answer = answer.and_then(|answer| self.in_time(deadline).map(|()| answer));
        self.reply(answer).await;
    }

    fn now(&self) -> Instant {
        self.shared.pd.context().now()
    }

    fn in_time(&self, deadline: Option<Instant>) -> Result<(), Status> {
        if deadline.is_some_and(|at| self.now() >= at) { Err(Status::Expired) } else { Ok(()) }
    }

    /// Reads the body, if it is not in the message. `Break`: the connection has ended.
    ///
    /// A cancellation does not end a reading that has begun: the client takes its buffer back when
    /// it has the reply, and a reading would then fail, and the connection with it.
    async fn fetch(&self, mut incoming: Incoming) -> ControlFlow<(), Result<Incoming, Status>> {
        let refuse = |status| ControlFlow::Continue(Err(status));
        if self.shared.is_shutting_down.load(Ordering::Acquire) {
            return refuse(Status::ShuttingDown);
        }
        let Place::Remote(remote) = self.header.place else {
            return ControlFlow::Continue(Ok(incoming));
        };
        if self.header.len > self.peer.limits.longest {
            return refuse(Status::RequestTooLong);
        }
        let Some(buf) = self.cancel.or(self.shared.long.take()).await else {
            return refuse(Status::Cancelled);
        };
        let len = self.header.len as usize;
        let Ok(read) = self.peer.link.transfer(SendOp::Read(remote), buf, len) else {
            return ControlFlow::Break(());
        };
        let (cqe, buf) = read.await;
        match buf.filter(|_| cqe.status == WcStatus::Success) {
            Some(buf) => (incoming.buf, incoming.range) = (buf, 0..len),
            None => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(Ok(incoming))
    }

    /// Runs the handler.
    async fn answer<S>(&self, incoming: Incoming, mut service: S) -> Result<Answer, Status>
    where
        S: Service<Incoming, Response = Answer, Error = Status>,
    {
        self.in_time(incoming.deadline)?;
        poll_fn(|cx| service.poll_ready(cx)).await?;
        service.call(incoming).await
    }

    /// Sends the reply. Nothing is sent to a client that is gone.
    async fn reply(&self, answer: Result<Answer, Status>) {
        let mut header = Header::new(Kind::Reply, self.header.id);
        let mut body = None;
        match answer {
            Ok(answer) => match self.place(&mut header, answer).await {
                ControlFlow::Continue(here) => body = here,
                ControlFlow::Break(()) => return self.shared.leave(&self.peer),
            },
            Err(status) => header.status = status,
        }
        // Before the reply: after it, the client may begin another call.
        lock(&self.peer.calls).remove(&self.header.id);
        let bytes = body.as_ref().map_or(&[][..], Answer::bytes);
        match self.peer.link.send(&header, bytes).await {
            Ok(sent) => *lock(&self.peer.last) = Some(sent),
            Err(_) => self.shared.leave(&self.peer),
        }
    }

    /// Decides where the body of a reply goes, and writes it there if that is not the reply.
    async fn place(&self, header: &mut Header, answer: Answer) -> ControlFlow<(), Option<Answer>> {
        let len = answer.bytes().len();
        let told = u32::try_from(len).unwrap_or(u32::MAX);
        if told <= self.peer.limits.eager {
            header.len = told;
            return ControlFlow::Continue(Some(answer));
        }
        let offered = self.header.reply_buffer.filter(|&(_, room)| told <= room);
        let Some((remote, _)) = offered.filter(|_| told <= self.peer.limits.longest) else {
            header.status = Status::ReplyTooLong;
            return ControlFlow::Continue(None);
        };
        let buf = match answer {
            Answer::Buf(buf, _) => buf,
            Answer::Copied(bytes) => {
                let mut buf = self.shared.long.take().await;
                buf[..len].copy_from_slice(&bytes);
                buf
            }
        };
        // The reply follows on the same queue pair, so it arrives after the bytes.
        let Ok(written) = self.peer.link.transfer(SendOp::Write(remote), buf, len) else {
            return ControlFlow::Break(());
        };
        drop(written);
        (header.len, header.place) = (told, Place::Written);
        ControlFlow::Continue(None)
    }
}
