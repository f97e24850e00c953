//! The end that calls.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feroce::cm::{Connector, Manager};
use feroce::{Access, Buf, Exposed, Inbox, Pd, Pool, Remote, Router, SendOp, WcStatus};

use crate::calls::ByNumber;
use crate::error::{Error, Malformed, Status};
use crate::header::{Header, Kind, Place};
use crate::limits::{Limits, connect_error};
use crate::message::{Body, Reply, Request, RequestBody};
use crate::sending::{Link, each_message, take_message};
use crate::tasks::{Spawner, Tasks};
use crate::turns::{Turn, Turns};

/// Calls a server. Cheap to clone; all clones use the same connection.
///
/// It is a [`tower_service::Service`] as well, so that the layers of `tower` fit around it.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Link,
    limits: Limits,
    pd: Pd,
    /// As many as the window has room for calls.
    turns: Turns,
    state: Mutex<State>,
    /// What receives replies. [`Connection`] runs it, and so does the caller of the only call that
    /// is under way: a reply that another task received would wait until the runtime has changed
    /// tasks.
    tasks: Mutex<Tasks>,
    spawner: Spawner,
    /// [`Connection`] may have left tasks that can go on to the caller that has its reply.
    has_left: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    calls: ByNumber<Call>,
    /// The connection has ended.
    ended: Option<End>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Disconnected,
    Malformed(Malformed),
}

impl End {
    fn error(self) -> Error {
        match self {
            Self::Disconnected => Error::Disconnected,
            Self::Malformed(malformed) => Error::Peer(malformed),
        }
    }
}

/// A call that the server has not answered, or whose answer was not taken.
#[derive(Debug)]
struct Call {
    _turn: Turn,
    waker: Option<Waker>,
    reply: Option<(Status, ReplyBody)>,
    /// What the server may read or write until it has replied.
    body: Option<Exposed>,
    into: Option<Exposed>,
    /// The caller does not wait any more.
    is_dropped: bool,
    /// The server has not answered the cancellation.
    is_cancelling: bool,
}

#[derive(Debug)]
enum ReplyBody {
    Message(Body),
    Written(usize),
}

impl Client {
    /// Connects to a server. The second result runs the connection: spawn it. It resolves when the
    /// connection has ended.
    pub async fn connect(
        manager: &Manager,
        to: SocketAddr,
        limits: Limits,
    ) -> Result<(Self, Connection), Error> {
        let connector = Connector::new(manager).param(limits.param());
        let connector = connector.cap(limits.cap(limits.receives()));
        let mut connection = connector.connect_async(to).await.map_err(connect_error)?;
        let agreed = limits.agree(connection.private_data()).ok_or(Error::NotAServer)?;
        let pd = connection.pd().clone();
        let pool = Pool::new(&pd, 2 * limits.receives(), limits.message_len())?;
        let inbox = Inbox::new(connection.recv_cq());
        // The server does not speak first, so nothing arrives before these are posted.
        let bufs = std::iter::from_fn(|| pool.try_take()).take(agreed.receives());
        for buf in bufs {
            // A queue pair that has just ended refuses it.
            inbox.recv_buf(&mut connection, buf).map_err(|_| Error::Disconnected)?;
        }
        let sends = Router::new(connection.send_cq());
        let link = Link::new(connection, sends, pool.clone(), agreed);
        let turns = Turns::new(agreed.window.into());
        let (limits, state, tasks) = (agreed, Mutex::default(), Tasks::default());
        let (spawner, tasks) = (tasks.spawner(), Mutex::new(tasks));
        let has_left = AtomicBool::new(false);
        let shared = Shared { link, limits, pd, turns, state, tasks, spawner, has_left };
        let shared = Arc::new(shared);
        shared.spawner.spawn(receive(Arc::clone(&shared), inbox));
        Ok((Self { shared: Arc::clone(&shared) }, Connection { shared }))
    }

    /// The domain of the connection: pools for long bodies are made there.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// What both ends have agreed on.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Why no call can be made, if that is so.
    pub(crate) fn ended(&self) -> Option<Error> {
        self.shared.state().ended.map(End::error)
    }

    /// Calls that may begin now without waiting for others.
    pub fn credits(&self) -> usize {
        self.shared.turns.free()
    }

    /// A request whose body is copied. The client copies a body that is too long for a message into
    /// a buffer that it registers for this call, and the server reads it from there. Programs that
    /// send long bodies often keep a [`Pool`] for them ([`Request::from_buf`]).
    pub fn request(&self, method: u32, body: &[u8]) -> Result<Request, Error> {
        if body.len() <= self.shared.limits.eager as usize {
            return Ok(Request::new(method, body));
        }
        let pool = Pool::new(&self.shared.pd, 1, body.len())?;
        let mut buf = pool.try_take().ok_or(Error::TooLong)?;
        buf[..body.len()].copy_from_slice(body);
        Ok(Request::from_buf(method, buf, body.len()))
    }

    /// Calls the server. Dropping the future cancels the call: the server drops its handler, and
    /// buffers of the call return to their pools when the server has done with them.
    pub async fn call(&self, request: Request) -> Result<Reply, Error> {
        let turn = self.shared.turns.take(request.priority).await;
        let id = self.shared.begin(turn)?;
        let mut under_way = UnderWay { shared: &self.shared, id, is_sent: false };
        under_way.send(request)?;
        let reply = poll_fn(|cx| self.shared.await_reply(id, cx)).await;
        std::mem::forget(under_way);
        reply
    }

    /// Reads memory of the server's host that its program has registered for this ([`Access`] with
    /// `REMOTE_READ`, in [`Server::pd`](crate::Server::pd)) and has told the place of: the
    /// beginning of `into` is filled, up to `len`. The server's program takes no part. It may
    /// write there meanwhile, so what is read needs a mark by which the reader knows that it is
    /// whole. A read takes a place in the window, as a call does.
    ///
    /// A place that may not be read ends the connection, and the read fails with
    /// [`Error::Disconnected`].
    pub async fn read(&self, from: Remote, into: Buf, len: usize) -> Result<Buf, Error> {
        let len = len.min(into.len());
        let turn = self.shared.turns.take(0).await;
        let ended = || self.ended().unwrap_or(Error::Disconnected);
        let _turn = turn.ok_or_else(ended)?;
        let read = self.shared.link.transfer(SendOp::Read(from), into, len);
        let (cqe, buf) = read.map_err(|_| ended())?.await;
        buf.filter(|_| cqe.status == WcStatus::Success).ok_or_else(ended)
    }

    /// Resolves when the server's adapter has answered, and fails when the connection has ended.
    ///
    /// A call whose request has arrived waits for a reply, and nothing tells the caller that the
    /// server's host has lost its power meanwhile. A program that wants to know calls this now and
    /// then; if there is no answer, the queue pair gives up, and all calls fail with
    /// [`Error::Disconnected`]. The server's program takes no notice:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn keep_alive(client: feroce_rpc::Client) {
    /// while client.probe().await.is_ok() {
    ///     tokio::time::sleep(Duration::from_secs(5)).await;
    /// }
    /// # }
    /// ```
    pub async fn probe(&self) -> Result<(), Error> {
        let probe = self.shared.link.probe().map_err(|_| Error::Disconnected)?;
        let is_alive = probe.await.status == WcStatus::Success;
        if is_alive { Ok(()) } else { Err(Error::Disconnected) }
    }

    /// Ends the connection. Calls that are under way fail.
    pub fn close(&self) {
        self.shared.link.end();
    }
}

/// A call whose future was not dropped yet.
struct UnderWay<'a> {
    shared: &'a Arc<Shared>,
    id: u64,
    is_sent: bool,
}

impl UnderWay<'_> {
    fn send(&mut self, request: Request) -> Result<(), Error> {
        let limits = self.shared.limits;
        let mut header = Header::new(Kind::Request, self.id);
        (header.method, header.priority) = (request.method, request.priority);
        header.remaining_us = request.timeout.map(remaining_us);
        if let Some(into) = request.into {
            let exposed = into.expose(Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
            let len = u32::try_from(exposed.len()).unwrap_or(u32::MAX);
            header.reply_buffer = Some((exposed.remote(), len));
            self.shared.with(self.id, |call| call.into = Some(exposed));
        }
        let len = u32::try_from(request.body.len()).map_err(|_| Error::TooLong)?;
        header.len = len;
        let body: &[u8] = match request.body {
            _ if len > limits.longest => return Err(Error::TooLong),
            RequestBody::Copied(ref bytes) if len <= limits.eager => bytes,
            RequestBody::Copied(_) => return Err(Error::TooLong),
            RequestBody::Buf(ref buf, _) if len <= limits.eager => &buf[..len as usize],
            RequestBody::Buf(buf, _) => {
                let exposed = buf.expose(Access::REMOTE_READ)?;
                header.place = Place::Remote(exposed.remote());
                self.shared.with(self.id, |call| call.body = Some(exposed));
                return self.post(&header, &[]);
            }
        };
        self.post(&header, body)
    }

    fn post(&mut self, header: &Header, body: &[u8]) -> Result<(), Error> {
        let sent = self.shared.link.send(header, body);
        sent.map_err(|_| Error::Disconnected)?;
        self.is_sent = true;
        Ok(())
    }
}

impl Drop for UnderWay<'_> {
    /// The future of the call was dropped, or its request could not be sent.
    fn drop(&mut self) {
        if !self.is_sent {
            self.shared.finish(self.shared.state(), self.id);
            return;
        }
        let is_open = self.shared.with(self.id, |call| {
            call.is_dropped = true;
            call.is_cancelling = call.reply.is_none();
            call.is_cancelling
        });
        if is_open != Some(true) {
            self.shared.finish(self.shared.state(), self.id);
            return;
        }
        let cancel = Header::new(Kind::Cancel, self.id);
        if self.shared.link.send(&cancel, &[]).is_err() {
            // The connection has ended; so do the rights of the server to buffers of the call.
            self.shared.end(End::Disconnected);
            self.shared.finish(self.shared.state(), self.id);
        }
    }
}

fn remaining_us(timeout: Duration) -> u32 {
    // Zero means that there is no deadline.
    u32::try_from(timeout.as_micros()).unwrap_or(u32::MAX).max(1)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the connection leaves its tasks to a caller.
    fn leaves(&self) -> bool {
        // Before the look: a caller that takes its reply after that sees this.
        self.has_left.store(true, Ordering::Release);
        self.is_reply_awaited()
    }

    /// The connection goes on with what it has left.
    fn go_on(&self) {
        if self.has_left.load(Ordering::Acquire) {
            self.has_left.store(false, Ordering::Release);
            self.spawner.go_on();
        }
    }

    /// Whether the only call that is under way has its reply, which its caller will take. The
    /// caller then goes on with the tasks, or lets the connection do so.
    fn is_reply_awaited(&self) -> bool {
        let mut state = self.state();
        state.calls.len() == 1
            && state.calls.values_mut().all(|call| call.reply.is_some() && !call.is_dropped)
    }

    fn with<T>(&self, id: u64, f: impl FnOnce(&mut Call) -> T) -> Option<T> {
        self.state().calls.get_mut(id).map(f)
    }

    /// Begins a call; there is no turn if the connection has ended.
    fn begin(&self, turn: Option<Turn>) -> Result<u64, Error> {
        let mut state = self.state();
        let end = state.ended.unwrap_or(End::Disconnected);
        let Some(turn) = turn.filter(|_| state.ended.is_none()) else { return Err(end.error()) };
        let (waker, reply, body, into) = (None, None, None, None);
        let (is_dropped, is_cancelling) = (false, false);
        let call = Call { _turn: turn, waker, reply, body, into, is_dropped, is_cancelling };
        Ok(state.calls.insert(call))
    }

    /// Waits for the reply of a call. If it is the only one that is under way, the caller receives
    /// the reply itself.
    fn await_reply(&self, id: u64, cx: &Context<'_>) -> Poll<Result<Reply, Error>> {
        let is_only = match self.poll_reply(id, cx) {
            Ok(reply) => return Poll::Ready(reply),
            Err(calls) => calls == 1,
        };
        if !is_only {
            self.go_on();
            return Poll::Pending;
        }
        // No other call is about to be made, with which its request could leave.
        self.flush();
        let Ok(mut tasks) = self.tasks.try_lock() else {
            self.go_on();
            return Poll::Pending;
        };
        // This task need not be woken for what it does itself.
        self.with(id, |call| call.waker = None);
        tasks.poll_ready(|| self.is_reply_awaited());
        drop(tasks);
        let reply = self.poll_reply(id, cx);
        // What remains to be received is for the task of the connection, which runs after this one.
        self.spawner.go_on();
        reply.map_or(Poll::Pending, Poll::Ready)
    }

    /// The reply of a call; how many calls are under way if it is not here.
    fn poll_reply(&self, id: u64, cx: &Context<'_>) -> Result<Result<Reply, Error>, usize> {
        let mut state = self.state();
        let (ended, calls) = (state.ended, state.calls.len());
        let Some(call) = state.calls.get_mut(id) else { return Ok(Err(Error::Disconnected)) };
        if call.reply.is_none() && ended.is_none() {
            call.waker = Some(cx.waker().clone());
            return Err(calls);
        }
        let call = self.finish(state, id);
        Ok(call.map_or(Err(Error::Disconnected), |call| reply_of(call, ended)))
    }

    /// The call is over; another may begin.
    fn finish(&self, mut state: MutexGuard<'_, State>, id: u64) -> Option<Call> {
        let call = state.calls.remove(id);
        drop(state);
        self.go_on();
        call
    }

    /// Sends requests that wait for others.
    fn flush(&self) {
        if self.link.flush().is_err() {
            self.end(End::Disconnected);
        }
    }

    /// Handles a message of the server.
    fn handle(&self, header: &Header, body: Body) -> Result<(), Malformed> {
        let id = header.id;
        let mut state = self.state();
        let call = state.calls.get_mut(id).ok_or(Malformed::Unknown(id))?;
        match header.kind {
            Kind::Reply if call.reply.is_none() => {
                let reply = match header.place {
                    Place::Written => {
                        let room = call.into.as_ref().map_or(0, Exposed::len);
                        if header.len as usize > room {
                            return Err(Malformed::Length { told: header.len, behind: room });
                        }
                        ReplyBody::Written(header.len as usize)
                    }
                    _ => ReplyBody::Message(body),
                };
                call.reply = Some((header.status, reply));
            }
            Kind::Cancelled if call.is_cancelling => call.is_cancelling = false,
            _ => return Err(Malformed::Unknown(id)),
        }
        let waker = call.waker.take();
        let is_over = call.is_dropped && call.reply.is_some() && !call.is_cancelling;
        drop(state);
        if is_over {
            drop(self.finish(self.state(), id));
        }
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The connection has ended: every call fails.
    fn end(&self, end: End) {
        let mut state = self.state();
        state.ended.get_or_insert(end);
        let wakers: Vec<Waker> =
            state.calls.values_mut().filter_map(|call| call.waker.take()).collect();
        let left = state.calls.extract(|call| call.is_dropped);
        drop(state);
        drop(left);
        self.turns.close();
        wakers.into_iter().for_each(Waker::wake);
        self.link.end();
    }
}

/// What a call comes to that has its reply, or whose connection has ended.
fn reply_of(call: Call, ended: Option<End>) -> Result<Reply, Error> {
    // The server has done with the buffers, or its queue pair has ended; their keys end here.
    let (body, into) = (call.body.map(Exposed::withdraw), call.into.map(Exposed::withdraw));
    let Some((status, reply)) = call.reply else {
        return Err(ended.unwrap_or(End::Disconnected).error());
    };
    if status != Status::Ok {
        return Err(Error::Refused(status));
    }
    let (body_bytes, unused) = match (reply, into) {
        (ReplyBody::Message(bytes), into) => (bytes, into),
        (ReplyBody::Written(len), Some(into)) => (Body::Buf(into, 0..len), None),
        (ReplyBody::Written(_), None) => return Err(Error::Disconnected),
    };
    Ok(Reply { body: body_bytes, request: body, unused })
}

/// Takes messages, and keeps as many receives posted, until the connection has ended and all of
/// them have come back.
async fn receive(shared: Arc<Shared>, inbox: Inbox) {
    let mut posted = shared.limits.receives();
    while posted > 0 {
        let (cqe, buf) = inbox.next().await;
        let Some(buf) = buf.filter(|_| cqe.status == WcStatus::Success) else {
            posted -= 1;
            shared.end(End::Disconnected);
            continue;
        };
        // The place of this message is taken before the message is looked at: the call that it
        // ends may be followed by another at once.
        let (message, next) = take_message(shared.link.pool(), buf, cqe.byte_len as usize);
        if inbox.recv_buf(&mut shared.link.connection(), next).is_err() {
            posted -= 1;
        }
        if let Err(malformed) = each_message(message, |header, body| shared.handle(&header, body)) {
            shared.end(End::Malformed(malformed));
        }
    }
    shared.end(End::Disconnected);
}

/// Runs a connection of a [`Client`]; resolves when it has ended.
#[derive(Debug)]
#[must_use = "the connection runs only while this is polled"]
pub struct Connection {
    shared: Arc<Shared>,
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shared = &self.shared;
        if shared.link.uncork().is_err() {
            shared.end(End::Disconnected);
        }
        let tasks = shared.tasks.try_lock().or_else(|_| {
            // A caller runs them. It wakes this task afterwards, if it sees that this one waits.
            shared.spawner.wait(cx);
            shared.tasks.try_lock()
        });
        let Ok(mut tasks) = tasks else { return Poll::Pending };
        let polled = tasks.poll_all(cx, || shared.leaves());
        if tasks.goes_on() {
            // Callers that have their replies run before this task does, and what they call next
            // leaves together.
            shared.link.cork();
        }
        polled
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end(End::Disconnected);
        // The tasks hold what holds them.
        let tasks = std::mem::take(&mut *self.shared.tasks());
        drop(tasks);
    }
}
