//! Receives of a completion queue that one task takes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use feroce_engine::{Cqe, Notify, RecvWr};

use crate::cq::Cq;
use crate::pool::Buf;
use crate::qp::Qp;
use crate::router::Refused;
use crate::srq::Srq;
use crate::{PostError, sys};

/// Completions in a row after which the task that takes them lets others run.
const MOST: usize = 32;

/// Receives into buffers whose completions one task takes, in the order in which they come, where a
/// [`Router`](crate::Router) hands each to a future of its own. Cheap to clone; all clones are the
/// same inbox.
///
/// Every request of the queue must be a receive that was posted through the inbox, which uses the
/// `wr_id` of requests for itself. A queue has one inbox.
///
/// ```
/// # use feroce::{Access, Device, Inbox, Pool, QpCap, SendOp, SendWr, WcStatus};
/// # let context = Device::at(["127.0.0.41".parse()?]).open()?;
/// # let (pd, send_cq, recv_cq) =
/// #     (context.alloc_pd()?, context.create_cq(16)?, context.create_cq(16)?);
/// # let mut qp = pd.rc_qp(&send_cq, &recv_cq, QpCap::new(8, 8)).create()?;
/// # qp.connect(&qp.endpoint()?)?; // to itself
/// # let mr = pd.alloc_mr(64, Access::all())?;
/// let inbox = Inbox::new(&recv_cq);
/// let pool = Pool::new(&pd, 4, 64)?;
/// while let Some(buf) = pool.try_take() {
///     inbox.recv_buf(&mut qp, buf)?;
/// }
/// # mr.write_at(0, b"hello")?;
/// # qp.post_send([SendWr::new(0, SendOp::Send, mr.data(0..5))])?;
/// // In a task: `let (cqe, buf) = inbox.next().await;`
/// # let mut next = std::pin::pin!(inbox.next());
/// # let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
/// # let (cqe, buf) = loop {
/// #     if let std::task::Poll::Ready(next) = Future::poll(next.as_mut(), &mut cx) {
/// #         break next;
/// #     }
/// # };
/// assert_eq!(cqe.status, WcStatus::Success);
/// assert_eq!(&buf.unwrap()[..cqe.byte_len as usize], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Inbox {
    cq: Cq,
    posted: Arc<Mutex<Posted>>,
}

/// The receives that are posted. The number of one tells its place, which is used again, and a
/// serial number, which is not: a completion of a request that was posted by others finds none.
#[derive(Debug)]
struct Posted {
    places: Vec<Option<(u32, Buf)>>,
    free: Vec<u32>,
    serial: u32,
    /// Completions that were taken since the task last let others run.
    taken: usize,
}

impl Posted {
    fn add(&mut self, buf: Buf) -> u64 {
        let serial = self.serial;
        self.serial = serial.wrapping_add(1);
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            // There are fewer buffers than memory has bytes for them.
            (self.places.len() - 1) as u32
        });
        if let Some(place) = self.places.get_mut(at as usize) {
            *place = Some((serial, buf));
        }
        u64::from(serial) << 32 | u64::from(at)
    }

    fn remove(&mut self, number: u64) -> Option<Buf> {
        let at = number as u32;
        let place = self.places.get_mut(at as usize)?;
        let (_, buf) = place.take_if(|(serial, _)| u64::from(*serial) == number >> 32)?;
        self.free.push(at);
        Some(buf)
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        // The adapter may still access these.
        self.places.drain(..).flatten().for_each(|(_, buf)| buf.lose());
    }
}

impl Inbox {
    /// An inbox for a queue.
    pub fn new(cq: &Cq) -> Self {
        // Completions of requests that were posted by others belong to no number of this inbox.
        let serial = sys::random_u64().map_or(1, |random| random as u32);
        let posted = Posted { places: Vec::new(), free: Vec::new(), serial, taken: 0 };
        Self { cq: cq.clone(), posted: Arc::new(Mutex::new(posted)) }
    }

    fn lock(&self) -> MutexGuard<'_, Posted> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a receive into a buffer, which belongs to the request until that is complete.
    pub fn recv_buf(&self, qp: &mut Qp, buf: Buf) -> Result<(), Refused> {
        self.post(buf, |wr| qp.post_recv([wr]))
    }

    /// Posts a receive into a buffer to a shared queue, all of whose receives complete in this
    /// queue.
    pub fn recv_buf_shared(&self, srq: &Srq, buf: Buf) -> Result<(), Refused> {
        self.post(buf, |wr| srq.post_recv([wr]))
    }

    fn post(
        &self,
        buf: Buf,
        post: impl FnOnce(RecvWr) -> Result<(), PostError>,
    ) -> Result<(), Refused> {
        let sges = buf.recv(0).sges;
        let wr_id = self.lock().add(buf);
        post(RecvWr { wr_id, sges })
            .map_err(|error| Refused { error, buf: self.lock().remove(wr_id) })
    }

    /// The next completion, and the buffer of its receive. One task calls this at a time.
    pub async fn next(&self) -> (Cqe, Option<Buf>) {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`next`](Self::next), for a future of the caller's own.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<(Cqe, Option<Buf>)> {
        let taken = self.lock().taken;
        let waited = if taken < MOST { self.cq.take_waited() } else { None };
        if let Some(cqe) = waited {
            return Poll::Ready(self.take(cqe));
        }
        if taken > 0 {
            // What the messages have set off runs before this task keeps its thread again.
            self.lock().taken = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.cq.poll_briefly(cx) {
            Poll::Ready(Some(cqe)) => return Poll::Ready(self.take(cqe)),
            Poll::Ready(None) => {}
            Poll::Pending => return Poll::Pending,
        }
        loop {
            // A completion that comes from now on is an event; one that came before is taken here.
            self.cq.notify(Notify::Next);
            if let Some(cqe) = self.cq.look_one() {
                return Poll::Ready(self.take(cqe));
            }
            let event = pin!(self.cq.channel().event());
            if event.poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn take(&self, mut cqe: Cqe) -> (Cqe, Option<Buf>) {
        let mut posted = self.lock();
        posted.taken += 1;
        let buf = posted.remove(cqe.wr_id);
        cqe.wr_id = 0;
        (cqe, buf)
    }
}
