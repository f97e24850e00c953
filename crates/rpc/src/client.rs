//! The end that calls.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feroce::cm::{ConnParam, Connector, Manager};
use feroce::{Access, Buf, Exposed, Pd, Pool, Router, WcStatus};

use crate::error::{Error, Malformed, Status};
use crate::header::{Header, Kind, Place};
use crate::limits::Limits;
use crate::message::{Reply, Request, RequestBody};
use crate::sending::Link;
use crate::tasks::Tasks;

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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<u64, Call>,
    next_id: u64,
    /// Tasks that wait until a call may begin.
    waiting: VecDeque<Waker>,
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
#[derive(Debug, Default)]
struct Call {
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
    Message(Buf, std::ops::Range<usize>),
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
        let param = ConnParam { private_data: limits.emit(), ..ConnParam::default() };
        let connector = Connector::new(manager).param(param).cap(limits.cap(limits.receives()));
        let mut connection = connector.connect_async(to).await?;
        let agreed = limits.agree(connection.private_data()).ok_or(Error::NotAServer)?;
        let pd = connection.pd().clone();
        let pool = Pool::new(&pd, 2 * limits.receives(), limits.message_len())?;
        let router = Router::new(connection.recv_cq());
        // The server does not speak first, so nothing arrives before these are posted.
        let bufs = std::iter::from_fn(|| pool.try_take()).take(agreed.receives());
        let mut receives = Vec::new();
        for buf in bufs {
            let posted = router.recv_buf(&mut connection, buf);
            // A queue pair that has just ended refuses it.
            receives.push(posted.map_err(|_| Error::Disconnected)?);
        }
        let sends = Router::new(connection.send_cq());
        let link = Link::new(connection, sends, pool.clone());
        let shared = Shared { link, limits: agreed, pd, state: Mutex::default() };
        let shared = Arc::new(shared);
        let tasks = Tasks::default();
        for received in receives {
            tasks.spawner().spawn(receive(Arc::clone(&shared), router.clone(), received));
        }
        Ok((Self { shared: Arc::clone(&shared) }, Connection { shared, tasks }))
    }

    /// The domain of the connection: pools for long bodies are made there.
    pub fn pd(&self) -> &Pd {
        &self.shared.pd
    }

    /// What both ends have agreed on.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Calls that may begin now without waiting for others.
    pub fn credits(&self) -> usize {
        let under_way = self.shared.state().calls.len();
        usize::from(self.shared.limits.window).saturating_sub(under_way)
    }

    /// Calls the server. Dropping the future cancels the call: the server drops its handler, and
    /// buffers of the call return to their pools when the server has done with them.
    pub async fn call(&self, request: Request) -> Result<Reply, Error> {
        let id = poll_fn(|cx| self.shared.poll_begin(cx)).await?;
        let mut under_way = UnderWay { shared: &self.shared, id, is_sent: false };
        under_way.send(request).await?;
        let reply = poll_fn(|cx| self.shared.poll_reply(id, cx)).await;
        std::mem::forget(under_way);
        reply
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
    async fn send(&mut self, request: Request) -> Result<(), Error> {
        let limits = self.shared.limits;
        let mut header = Header::new(Kind::Request, self.id);
        header.method = request.method;
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
                return self.post(&header, &[]).await;
            }
        };
        self.post(&header, body).await
    }

    async fn post(&mut self, header: &Header, body: &[u8]) -> Result<(), Error> {
        let sent = self.shared.link.send(header, body).await;
        sent.map_err(|_| Error::Disconnected)?;
        self.is_sent = true;
        Ok(())
    }
}

impl Drop for UnderWay<'_> {
    /// The future of the call was dropped, or its request could not be sent.
    fn drop(&mut self) {
        if !self.is_sent {
            self.shared.finish(self.id);
            return;
        }
        let is_open = self.shared.with(self.id, |call| {
            call.is_dropped = true;
            call.is_cancelling = call.reply.is_none();
            call.is_cancelling
        });
        if is_open != Some(true) {
            self.shared.finish(self.id);
            return;
        }
        // The header fits into an inline message, so the future is ready at once.
        let cancel = Header::new(Kind::Cancel, self.id);
        let mut sent = std::pin::pin!(self.shared.link.send(&cancel, &[]));
        let _ = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
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

    fn with<T>(&self, id: u64, f: impl FnOnce(&mut Call) -> T) -> Option<T> {
        self.state().calls.get_mut(&id).map(f)
    }

    /// Begins a call, if there is room for one.
    fn poll_begin(&self, cx: &Context<'_>) -> Poll<Result<u64, Error>> {
        let mut state = self.state();
        if let Some(end) = state.ended {
            return Poll::Ready(Err(end.error()));
        }
        if state.calls.len() >= usize::from(self.limits.window) {
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push_back(cx.waker().clone());
            }
            return Poll::Pending;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.calls.insert(id, Call::default());
        Poll::Ready(Ok(id))
    }

    fn poll_reply(&self, id: u64, cx: &Context<'_>) -> Poll<Result<Reply, Error>> {
        let mut state = self.state();
        let ended = state.ended;
        let Some(call) = state.calls.get_mut(&id) else {
            return Poll::Ready(Err(Error::Disconnected));
        };
        if call.reply.is_none() && ended.is_none() {
            call.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        let Some(call) = self.finish(id) else {
            return Poll::Ready(Err(Error::Disconnected));
        };
        // The server has done with the buffers, or its queue pair has ended; their keys end here.
        let (body, into) = (call.body.map(Exposed::withdraw), call.into.map(Exposed::withdraw));
        let Some((status, reply)) = call.reply else {
            return Poll::Ready(Err(ended.unwrap_or(End::Disconnected).error()));
        };
        if status != Status::Ok {
            return Poll::Ready(Err(Error::Refused(status)));
        }
        let (buf, range) = match (reply, into) {
            (ReplyBody::Message(buf, range), into) => {
                return Poll::Ready(Ok(Reply::new(buf, range, body, into)));
            }
            (ReplyBody::Written(len), Some(into)) => (into, 0..len),
            (ReplyBody::Written(_), None) => return Poll::Ready(Err(Error::Disconnected)),
        };
        Poll::Ready(Ok(Reply::new(buf, range, body, None)))
    }

    /// The call is over; another may begin.
    fn finish(&self, id: u64) -> Option<Call> {
        let mut state = self.state();
        let call = state.calls.remove(&id);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        call
    }

    /// Handles a message of the server.
    fn handle(&self, message: Buf, len: usize) -> Result<(), Malformed> {
        let (header, body) = Header::parse(message.get(..len).ok_or(Malformed::Short)?)?;
        let range = len - body.len()..len;
        let id = header.id;
        let mut state = self.state();
        let call = state.calls.get_mut(&id).ok_or(Malformed::Unknown(id))?;
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
                    _ => ReplyBody::Message(message, range),
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
            drop(self.finish(id));
        }
        waker.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The connection has ended: every call fails.
    fn end(&self, end: End) {
        let mut state = self.state();
        state.ended.get_or_insert(end);
        let mut wakers: Vec<Waker> = state.waiting.drain(..).collect();
        wakers.extend(state.calls.values_mut().filter_map(|call| call.waker.take()));
        let is_left = |call: &mut Call| call.is_dropped;
        let left: Vec<Call> =
            state.calls.extract_if(.., |_, call| is_left(call)).map(|c| c.1).collect();
        drop(state);
        drop(left);
        wakers.into_iter().for_each(Waker::wake);
        self.link.end();
    }
}

/// Keeps one receive posted, until the connection ends.
async fn receive(shared: Arc<Shared>, router: Router, mut received: feroce::RoutedBuf) {
    loop {
        let (cqe, buf) = received.await;
        let Some(buf) = buf.filter(|_| cqe.status == WcStatus::Success) else {
            return shared.end(End::Disconnected);
        };
        // The place of this message is taken before the message is looked at: the call that it
        // ends may be followed by another at once.
        let next = shared.link.pool().take().await;
        let posted = router.recv_buf(&mut shared.link.connection(), next);
        if let Err(malformed) = shared.handle(buf, cqe.byte_len as usize) {
            return shared.end(End::Malformed(malformed));
        }
        match posted {
            Ok(next) => received = next,
            Err(_) => return shared.end(End::Disconnected),
        }
    }
}

/// Runs a connection of a [`Client`]; resolves when it has ended.
#[derive(Debug)]
#[must_use = "the connection runs only while this is polled"]
pub struct Connection {
    shared: Arc<Shared>,
    tasks: Tasks,
}

impl Future for Connection {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.tasks.poll_all(cx)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end(End::Disconnected);
    }
}

impl tower_service::Service<Request> for Client {
    type Response = Reply;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        // A call waits for its turn itself.
        Poll::Ready(self.shared.state().ended.map_or(Ok(()), |end| Err(end.error())))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let client = self.clone();
        Box::pin(async move { Self::call(&client, request).await })
    }
}
