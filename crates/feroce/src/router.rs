//! Completions to the futures of their requests.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use feroce_engine::{Cqe, Notify, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus};
use feroce_train::Instant;
use feroce_wire::Qpn;

use crate::cq::Cq;
use crate::pool::Buf;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{PostError, sys};

/// Hands each completion of a queue to the future of its request, so that many tasks can use one
/// queue. Cheap to clone; all clones are the same router.
///
/// Every request of the queue must be posted through the router, which uses the `wr_id` of requests
/// for itself; completions have the caller's again. A queue has one router.
///
/// ```
/// # use feroce::{Access, Device, QpCap, Router, SendOp, SendWr, WcStatus};
/// # let context = Device::at(["127.0.0.40".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// # qp.connect(&qp.endpoint()?)?; // to itself
/// # let mr = pd.alloc_mr(64, Access::all())?;
/// let router = Router::new(&cq);
/// let received = router.recv(&mut qp, mr.recv(7, 32..64))?;
/// let sent = router.send(&mut qp, SendWr::new(8, SendOp::Send, mr.data(0..5)))?;
/// # let block_on = |future: feroce::Routed| {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(cqe) = future.as_mut().poll(&mut cx) {
/// #             return cqe;
/// #         }
/// #     }
/// # };
/// # use std::future::Future;
/// // In a task: `let cqe = received.await;`
/// let cqe = block_on(received);
/// assert_eq!((cqe.wr_id, cqe.byte_len, cqe.status), (7, 5, WcStatus::Success));
/// assert_eq!(block_on(sent).wr_id, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Router {
    cq: Cq,
    routes: Arc<Mutex<Routes>>,
}

/// The requests that are under way.
#[derive(Debug)]
struct Routes {
    requests: BTreeMap<u64, Route>,
    next: u64,
    /// The request whose task waits for the queue; the tasks of the others wait for their requests
    /// alone.
    leader: Option<u64>,
}

#[derive(Debug)]
struct Route {
    /// The caller's number.
    wr_id: u64,
    /// The queue pair, unless the request is in a shared receive queue.
    qpn: Option<Qpn>,
    state: RouteState,
    /// The buffer that the adapter may access until the request is complete.
    buf: Option<Buf>,
}

#[derive(Debug)]
enum RouteState {
    /// Not complete; the task to wake, if it waits already.
    Waiting(Option<Waker>),
    Complete(Cqe),
    /// Not complete, and the future was dropped.
    Abandoned,
}

impl Routes {
    fn begin(&mut self, wr_id: u64, qpn: Option<Qpn>, buf: Option<Buf>) -> u64 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let state = RouteState::Waiting(None);
        self.requests.insert(number, Route { wr_id, qpn, state, buf });
        number
    }

    /// Notes a completion. Returns the task to wake, and the buffer of a request whose future was
    /// dropped; the caller drops it without the lock.
    fn complete(&mut self, mut cqe: Cqe) -> (Option<Waker>, Option<Buf>) {
        let number = cqe.wr_id;
        let Some(route) = self.requests.get_mut(&number) else { return (None, None) };
        cqe.wr_id = route.wr_id;
        match std::mem::replace(&mut route.state, RouteState::Complete(cqe)) {
            RouteState::Waiting(waker) => (waker, None),
            RouteState::Abandoned => {
                (None, self.requests.remove(&number).and_then(|route| route.buf))
            }
            RouteState::Complete(_) => (None, None),
        }
    }

    /// The result of a request that is complete.
    fn take(&mut self, number: u64) -> Option<(Cqe, Option<Buf>)> {
        let route = self.requests.get(&number)?;
        let RouteState::Complete(cqe) = route.state else { return None };
        let buf = self.requests.remove(&number).and_then(|route| route.buf);
        Some((cqe, buf))
    }

    /// A request no longer waits. If its task was the one that waits for the queue, another takes
    /// over: the result is to be woken.
    fn resign(&mut self, number: u64) -> Option<Waker> {
        if self.leader != Some(number) {
            return None;
        }
        self.leader = None;
        self.requests.values_mut().find_map(|route| match &mut route.state {
            RouteState::Waiting(waker) => waker.take(),
            _ => None,
        })
    }
}

impl Drop for Routes {
    fn drop(&mut self) {
        let is_complete = |route: &Route| matches!(route.state, RouteState::Complete(_));
        let left = std::mem::take(&mut self.requests).into_values();
        let open = left.filter(|route| !is_complete(route));
        // The adapter may still access these.
        open.filter_map(|route| route.buf).for_each(Buf::lose);
    }
}

impl Router {
    /// A router for a queue.
    pub fn new(cq: &Cq) -> Self {
        // Completions of requests that were posted by others belong to no number of this router.
        let next = sys::random_u64().unwrap_or(1 << 32);
        let routes = Routes { requests: BTreeMap::new(), next, leader: None };
        Self { cq: cq.clone(), routes: Arc::new(Mutex::new(routes)) }
    }

    /// The queue.
    pub fn cq(&self) -> &Cq {
        &self.cq
    }

    fn lock(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a send, which completes in the queue in any case. The result resolves with the
    /// completion. Dropping it does not withdraw the request.
    pub fn send(&self, qp: &mut Qp, wr: SendWr) -> Result<Routed, PostError> {
        let number = self.lock().begin(wr.wr_id, Some(qp.qpn()), None);
        let flags = wr.flags | SendFlags::SIGNALED;
        let posted = qp.post_one(SendWr { wr_id: number, flags, ..wr });
        self.posted(number, posted).map_err(|refused| refused.error)
    }

    /// Posts a receive. The result resolves with the completion.
    pub fn recv(&self, qp: &mut Qp, wr: RecvWr) -> Result<Routed, PostError> {
        let number = self.lock().begin(wr.wr_id, Some(qp.qpn()), None);
        let posted = qp.post_recv([RecvWr { wr_id: number, ..wr }]);
        self.posted(number, posted).map_err(|refused| refused.error)
    }

    /// Posts a receive to a shared queue, all of whose receives complete in this queue.
    pub fn recv_shared(&self, srq: &Srq, wr: RecvWr) -> Result<Routed, PostError> {
        let number = self.lock().begin(wr.wr_id, None, None);
        let posted = srq.post_recv([RecvWr { wr_id: number, ..wr }]);
        self.posted(number, posted).map_err(|refused| refused.error)
    }

    /// Posts a send, a write or a read whose local bytes are the `range` of a buffer, cut at its
    /// end. The buffer belongs to the request until that is complete.
    pub fn send_buf(
        &self,
        qp: &mut Qp,
        op: SendOp,
        buf: Buf,
        range: Range<usize>,
    ) -> Result<RoutedBuf, Refused> {
        let data = buf.data(range);
        let number = self.lock().begin(0, Some(qp.qpn()), Some(buf));
        self.posted(number, qp.post_one(SendWr::new(number, op, data))).map(RoutedBuf)
    }

    /// Posts a receive into a buffer, which belongs to the request until that is complete.
    pub fn recv_buf(&self, qp: &mut Qp, buf: Buf) -> Result<RoutedBuf, Refused> {
        let sges = buf.recv(0).sges;
        let wr_id = self.lock().begin(0, Some(qp.qpn()), Some(buf));
        self.posted(wr_id, qp.post_recv([RecvWr { wr_id, sges }])).map(RoutedBuf)
    }

    /// Posts a receive into a buffer to a shared queue, all of whose receives complete in this
    /// queue.
    pub fn recv_buf_shared(&self, srq: &Srq, buf: Buf) -> Result<RoutedBuf, Refused> {
        let sges = buf.recv(0).sges;
        let wr_id = self.lock().begin(0, None, Some(buf));
        self.posted(wr_id, srq.post_recv([RecvWr { wr_id, sges }])).map(RoutedBuf)
    }

    fn posted(&self, number: u64, posted: Result<(), PostError>) -> Result<Routed, Refused> {
        if let Err(error) = posted {
            let route = self.lock().requests.remove(&number);
            return Err(Refused { error, buf: route.and_then(|route| route.buf) });
        }
        Ok(Routed { router: self.clone(), number })
    }

    /// A queue pair is destroyed or reset: its requests, of which no completion will come, end as
    /// if they had been flushed. Their buffers are lost to their pools, because nothing says that
    /// the adapter has done with them; a program that wants them back brings the queue pair into
    /// the state ERROR and takes the completions before it destroys it.
    pub fn forget(&self, qpn: Qpn) {
        let mut routes = self.lock();
        let is_gone = |route: &Route| {
            route.qpn == Some(qpn) && !matches!(route.state, RouteState::Complete(_))
        };
        let gone = routes.requests.iter_mut().filter(|(_, route)| is_gone(route));
        let gone: Vec<(u64, Option<Buf>)> =
            gone.map(|(&number, route)| (number, route.buf.take())).collect();
        let mut wakers = Vec::new();
        for (number, buf) in gone {
            buf.into_iter().for_each(Buf::lose);
            let (status, now) = (WcStatus::Flushed, Instant::ZERO);
            let cqe = Cqe::new(number, qpn, WcOpcode::Send, status, now);
            wakers.extend(routes.complete(cqe).0);
        }
        drop(routes);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Hands over the completions that the queue has now. Futures of the router do that while a
    /// task awaits one; a program that drops the futures of its sends calls this instead, so that
    /// the queue empties and buffers return to their pools.
    pub fn reap(&self) {
        while let Some(cqe) = self.cq.look_one() {
            self.hand_over(cqe);
        }
    }

    fn hand_over(&self, cqe: Cqe) {
        // The buffer is dropped without the lock: that wakes tasks, too.
        let (waker, _buf) = self.lock().complete(cqe);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Why a request was not posted, with its buffer.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: PostError,
    /// The buffer, if the request has one.
    pub buf: Option<Buf>,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// A request that was posted through a [`Router`]; resolves with its completion.
#[must_use = "the completion is what says that the request has ended"]
#[derive(Debug)]
pub struct Routed {
    router: Router,
    number: u64,
}

/// A request with a buffer that was posted through a [`Router`]; resolves with its completion and
/// the buffer. If its queue pair was destroyed before ([`Router::forget`]), there is no buffer.
#[must_use = "the completion is what says that the request has ended"]
#[derive(Debug)]
pub struct RoutedBuf(Routed);

impl Routed {
    /// The completion, if it is there; the task waits for it otherwise. The second result is
    /// whether the task also has to wait for the queue.
    fn look(&self, cx: &Context<'_>) -> Result<(Cqe, Option<Buf>), bool> {
        let mut routes = self.router.lock();
        if let Some(taken) = routes.take(self.number) {
            let next = routes.resign(self.number);
            drop(routes);
            next.into_iter().for_each(Waker::wake);
            return Ok(taken);
        }
        if let Some(route) = routes.requests.get_mut(&self.number) {
            route.state = RouteState::Waiting(Some(cx.waker().clone()));
        }
        Err(*routes.leader.get_or_insert(self.number) == self.number)
    }

    fn poll_route(&self, cx: &mut Context<'_>) -> Poll<(Cqe, Option<Buf>)> {
        loop {
            self.router.reap();
            match self.look(cx) {
                Ok(taken) => return Poll::Ready(taken),
                Err(false) => return Poll::Pending,
                Err(true) => {}
            }
            match self.router.cq.poll_briefly(cx) {
                Poll::Ready(Some(cqe)) => {
                    self.router.hand_over(cqe);
                    continue;
                }
                Poll::Ready(None) => {}
                Poll::Pending => return Poll::Pending,
            }
            // A completion that comes from now on is an event; one that came before is taken here.
            self.router.cq.notify(Notify::Next);
            self.router.reap();
            if let Ok(taken) = self.look(cx) {
                return Poll::Ready(taken);
            }
            let event = pin!(self.router.cq.channel().event());
            if event.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Future for Routed {
    type Output = Cqe;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Cqe> {
        self.poll_route(cx).map(|(cqe, _)| cqe)
    }
}

impl Future for RoutedBuf {
    type Output = (Cqe, Option<Buf>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<(Cqe, Option<Buf>)> {
        self.0.poll_route(cx)
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        let mut routes = self.router.lock();
        let mut done = None;
        if let Some(route) = routes.requests.get_mut(&self.number) {
            match route.state {
                RouteState::Complete(_) => done = routes.requests.remove(&self.number),
                _ => route.state = RouteState::Abandoned,
            }
        }
        let next = routes.resign(self.number);
        drop(routes);
        // The buffer of the request returns to its pool, and tasks are woken.
        drop(done);
        next.into_iter().for_each(Waker::wake);
    }
}
