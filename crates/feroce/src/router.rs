//! Completions to the futures of their requests.

mod routes;

use std::future::Future;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use feroce_engine::{Cqe, Notify, RecvWr, SendFlags, SendOp, SendWr};
use feroce_wire::Qpn;

use crate::cq::Cq;
use crate::pool::Buf;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::{PostError, sys};
use routes::{Due, Routes, UNROUTED};

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

/// Completions that the task which waits for the queue takes before the other tasks run.
const MOST: usize = 32;

impl Router {
    /// A router for a queue.
    pub fn new(cq: &Cq) -> Self {
        // Completions of requests that were posted by others belong to no number of this router.
        let serial = sys::random_u64().map_or(1, |random| random as u32);
        Self { cq: cq.clone(), routes: Arc::new(Mutex::new(Routes::new(serial))) }
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

    /// Posts a send without the flag "signaled": it has no completion unless it fails, and that one
    /// is dropped. A signaled request behind it on the same queue pair completes after it; until
    /// one does, its place in the send queue may stay taken. Its bytes are inline, or in memory
    /// that stays as it is until then.
    pub fn send_unsignaled(&self, qp: &mut Qp, wr: SendWr) -> Result<(), PostError> {
        let flags = wr.flags - SendFlags::SIGNALED;
        qp.post_one(SendWr { wr_id: UNROUTED, flags, ..wr })
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

    /// Posts a send, a write or a read as [`send_buf`](Self::send_buf) does, and the send `then`
    /// behind it, both at once. Only that one has a completion, which says that both are done: the
    /// result resolves with it and the buffer.
    ///
    /// So data goes to the peer's memory, and a message that says so to its program:
    ///
    /// ```
    /// # use feroce::{Access, Data, Device, InlineBytes, Pool, QpCap, Router, SendOp, SendWr};
    /// # let context = Device::at(["127.0.0.40".parse()?]).open()?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    /// # let cap = QpCap { max_inline: 64, ..QpCap::new(8, 8) };
    /// # let mut qp = pd.rc_qp(&cq, &context.create_cq(16)?, cap).create()?;
    /// # qp.connect(&qp.endpoint()?)?; // to itself
    /// # let mr = pd.alloc_mr(64, Access::all())?;
    /// # qp.post_recv([mr.recv(7, 32..64)])?;
    /// # let (pool, router) = (Pool::new(&pd, 1, 4096)?, Router::new(&cq));
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let mut data = pool.take().await;
    /// data[..4].copy_from_slice(b"data");
    /// let message = Data::Inline(InlineBytes::new(b"is there"));
    /// let then = SendWr::new(1, SendOp::Send, message);
    /// let sent = router.send_buf_then(&mut qp, SendOp::Write(mr.remote(0)), data, 0..4, then)?;
    /// let (cqe, data) = sent.await;
    /// # assert_eq!((cqe.wr_id, data.is_some()), (1, true));
    /// # let mut bytes = [0; 4];
    /// # mr.read_at(0, &mut bytes)?;
    /// # assert_eq!(&bytes, b"data");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_buf_then(
        &self,
        qp: &mut Qp,
        op: SendOp,
        buf: Buf,
        range: Range<usize>,
        then: SendWr,
    ) -> Result<RoutedBuf, Refused> {
        let data = buf.data(range);
        let number = self.lock().begin(then.wr_id, Some(qp.qpn()), Some(buf));
        let first = SendWr { flags: SendFlags::empty(), ..SendWr::new(UNROUTED, op, data) };
        let then = SendWr { wr_id: number, flags: then.flags | SendFlags::SIGNALED, ..then };
        let mut count = 0;
        let posted = qp.post_send([first, then].into_iter().inspect(|_| count += 1));
        let mut refused = match self.posted(number, posted) {
            Ok(routed) => return Ok(RoutedBuf(routed)),
            Err(refused) => refused,
        };
        if count == 2 {
            // The first was posted: the adapter may access the buffer, and nothing will tell when
            // it has done with it.
            refused.buf.take().into_iter().for_each(Buf::lose);
        }
        Err(refused)
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
            let buf = self.lock().remove(number);
            return Err(Refused { error, buf });
        }
        Ok(Routed { router: self.clone(), number })
    }

    /// A queue pair is destroyed or reset: its requests, of which no completion will come, end as
    /// if they had been flushed. Their buffers are lost to their pools, because nothing says that
    /// the adapter has done with them; a program that wants them back brings the queue pair into
    /// the state ERROR and takes the completions before it destroys it.
    pub fn forget(&self, qpn: Qpn) {
        let due = self.lock().flush(qpn);
        due.run();
    }

    /// Hands over the completions that the queue has now. Futures of the router do that while a
    /// task awaits one; a program that drops the futures of its sends calls this instead, so that
    /// the queue empties and buffers return to their pools.
    pub fn reap(&self) {
        while self.hand_over(|| self.cq.take_waited()) {}
    }

    /// Hands completions over, as many as there are but not too many. Returns whether there were
    /// any.
    fn hand_over(&self, mut next: impl FnMut() -> Option<Cqe>) -> bool {
        let mut due = Due::default();
        let mut count = 0;
        while count < MOST
            && let Some(cqe) = next()
        {
            let (waker, buf) = self.lock().complete(cqe);
            due.add(waker, buf);
            count += 1;
        }
        // Without the lock: tasks are woken.
        due.run();
        count > 0
    }
}

/// Why a request was not posted, with its buffer.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub error: PostError,
    /// The buffer, if the request has one and the adapter does not use it.
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
        if let Some(taken) = routes.take_or_wait(self.number, cx.waker()) {
            // This task goes on now, and may wake others, which run before the task that waits for
            // the queue keeps its thread again.
            routes.has_news = true;
            let next = routes.resign(self.number);
            drop(routes);
            next.into_iter().for_each(Waker::wake);
            return Ok(taken);
        }
        Err(*routes.leader.get_or_insert(self.number) == self.number)
    }

    fn poll_route(&self, cx: &mut Context<'_>) -> Poll<(Cqe, Option<Buf>)> {
        let router = &self.router;
        loop {
            let leads = match self.look(cx) {
                Ok(taken) => return Poll::Ready(taken),
                Err(leads) => leads,
            };
            if router.hand_over(|| router.cq.take_waited()) {
                continue;
            }
            if !leads {
                return Poll::Pending;
            }
            if std::mem::take(&mut router.lock().has_news) {
                // What the completions have set off runs before this task keeps its thread again.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let first = match router.cq.poll_briefly(cx) {
                Poll::Ready(first) => first,
                Poll::Pending => return Poll::Pending,
            };
            if let Some(first) = first {
                // Those behind it are handed over with it, so that their tasks answer together.
                let mut first = Some(first);
                router.hand_over(|| first.take().or_else(|| router.cq.take_waited()));
                continue;
            }
            // A completion that comes from now on is an event; one that came before is taken here.
            router.cq.notify(Notify::Next);
            while router.hand_over(|| router.cq.look_one()) {}
            if let Ok(taken) = self.look(cx) {
                return Poll::Ready(taken);
            }
            let event = pin!(router.cq.channel().event());
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
        let done = routes.abandon(self.number);
        let next = routes.resign(self.number);
        drop(routes);
        // The buffer of the request returns to its pool, and tasks are woken.
        drop(done);
        next.into_iter().for_each(Waker::wake);
    }
}
