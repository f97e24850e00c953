//! Completion queues.

use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use feroce_engine::{CqId, Cqe, Notify};
use feroce_wire::Qpn;

use crate::Error;
use crate::backend::{CqSide, either, map_either};
use crate::busy_poll::{BusyPoll, Step};
use crate::channel::CompChannel;
use crate::context::Context;
use crate::deadline::Deadline;
use crate::life::Life;

/// How often an empty queue is polled before a waiting thread goes to sleep.
const SPINS: u32 = 200;

/// Room that a full vector gets for completions.
const ROOM: usize = 16;

/// A completion queue. Cheap to clone; all clones are the same queue.
///
/// ```
/// # let context = feroce::Device::at(["127.0.0.23".parse()?]).open()?;
/// let cq = context.create_cq(64)?;
/// assert!(cq.poll_one().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "ibv_cq")]
#[derive(Clone, Debug)]
pub struct Cq {
    inner: Arc<CqInner>,
}

#[derive(Debug)]
struct CqInner {
    id: CqId,
    side: CqSide,
    channel: CompChannel,
    busy_poll: BusyPoll,
    /// Keeps the device open.
    _context: Context,
    life: Life,
}

impl CqInner {
    fn destroy(&self) -> Result<(), Error> {
        self.life.end(|| either!(&self.side, cq => cq.destroy()))
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // Queue pairs hold references to their queues, so none uses this one any more.
        let _ = self.destroy();
    }
}

impl Context {
    /// Makes a completion queue of `depth` entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, depth: u32) -> Result<Cq, Error> {
        Cq::create(self, depth, None)
    }

    /// Makes a completion queue whose events go to `channel`.
    pub fn create_cq_with(&self, depth: u32, channel: &CompChannel) -> Result<Cq, Error> {
        Cq::create(self, depth, Some(channel))
    }
}

impl Cq {
    pub(crate) fn create(
        context: &Context,
        depth: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Self, Error> {
        let channel = match channel {
            Some(channel) => channel.clone(),
            None => CompChannel::implicit(context)?,
        };
        let id;
        let side = map_either!(context.adapter(), adapter => {
            let (name, cq) = adapter.create_cq(depth, channel.side(), context.events())?;
            id = name;
            cq
        });
        let (_context, life) = (context.clone(), Life::new());
        let busy_poll = BusyPoll::default();
        Ok(Self { inner: Arc::new(CqInner { id, side, channel, busy_poll, _context, life }) })
    }

    pub(crate) fn side(&self) -> &CqSide {
        &self.inner.side
    }

    /// Destroys it now, or fails if a queue pair still uses it. Dropping the last handle destroys
    /// it as well.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy(&self) -> Result<(), Error> {
        self.inner.destroy()
    }

    /// Its handle, as events name it.
    pub fn id(&self) -> CqId {
        self.inner.id
    }

    /// Takes one completion, driving the adapter if there is none.
    #[inline]
    pub fn poll_one(&self) -> Option<Cqe> {
        either!(self.side(), cq => cq.poll_one())
    }

    /// Takes one completion if one waits; does not drive the adapter.
    #[inline]
    pub fn take_one(&self) -> Option<Cqe> {
        either!(self.side(), cq => cq.take_one())
    }

    /// Takes completions until `into` is full or there are none; returns how many. A vector that
    /// has no room gets room for 16.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, into: &mut Vec<Cqe>) -> usize {
        if into.len() == into.capacity() {
            into.reserve_exact(ROOM);
        }
        self.poll_each(into.capacity() - into.len(), |cqe| into.push(cqe))
    }

    /// Passes at most `most` completions to `take`, driving the adapter if there are none; returns
    /// how many there were.
    #[inline]
    pub fn poll_each(&self, most: usize, take: impl FnMut(Cqe)) -> usize {
        either!(self.side(), cq => cq.poll_each(most, take))
    }

    /// Waits for a completion: polls briefly, then sleeps until there is one. Threads that wait on
    /// queues which share a channel should wait on the channel instead.
    pub fn wait(&self) -> Result<Cqe, Error> {
        loop {
            if let Some(cqe) = self.wait_until(Deadline::NONE)? {
                return Ok(cqe);
            }
        }
    }

    /// Waits for a completion as [`Cq::wait`] does, and at most for `time`; `None` if there was
    /// none.
    ///
    /// ```
    /// # let context = feroce::Device::at(["127.0.0.38".parse()?]).open()?;
    /// let cq = context.create_cq(16)?;
    /// let none = cq.wait_timeout(std::time::Duration::from_millis(1))?; // nothing was posted
    /// assert!(none.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_timeout(&self, time: Duration) -> Result<Option<Cqe>, Error> {
        self.wait_until(Deadline::after(time))
    }

    fn wait_until(&self, deadline: Deadline) -> Result<Option<Cqe>, Error> {
        loop {
            for _ in 0..SPINS {
                if let Some(cqe) = self.poll_one() {
                    return Ok(Some(cqe));
                }
                std::hint::spin_loop();
            }
            self.notify(Notify::Next);
            if let Some(cqe) = self.poll_one() {
                return Ok(Some(cqe));
            }
            if deadline.is_over() {
                return Ok(None);
            }
            self.inner.channel.wait(deadline.wait_ms())?;
        }
    }

    /// Resolves with the next completion. Runtime-agnostic.
    ///
    /// If there is none, the task may look for up to 250 us before it lets its thread go, because
    /// being woken takes several times as long as an answer. It does so while that mostly succeeds,
    /// and regularly lets the other tasks of its thread run in between.
    pub async fn next(&self) -> Cqe {
        loop {
            if let Some(cqe) = std::future::poll_fn(|cx| self.poll_briefly(cx)).await {
                return cqe;
            }
            self.notify(Notify::Next);
            if let Some(cqe) = self.look_one() {
                return cqe;
            }
            self.inner.channel.event().await;
        }
    }

    /// Takes a completion, driving the adapter if there is none; the thread does not sleep.
    pub(crate) fn look_one(&self) -> Option<Cqe> {
        either!(self.side(), cq => cq.look_one()).inspect(|_| self.came())
    }

    /// Takes a completion for which a task may have waited, if there is one; does not drive the
    /// adapter.
    #[inline]
    pub(crate) fn take_waited(&self) -> Option<Cqe> {
        self.take_one().inspect(|_| self.came())
    }

    fn came(&self) {
        self.inner.busy_poll.came(|| either!(self.side(), cq => cq.now()));
    }

    /// Takes a completion, after looking for one for a while if that is worth it. `None`: the task
    /// should ask for an event and wait for it. Pending: other tasks run first, and this one is
    /// woken.
    pub(crate) fn poll_briefly(&self, cx: &task::Context<'_>) -> Poll<Option<Cqe>> {
        if let Some(cqe) = self.look_one() {
            return Poll::Ready(Some(cqe));
        }
        let busy_poll = &self.inner.busy_poll;
        match busy_poll.next_step(either!(self.side(), cq => cq.now())) {
            Step::Wait => return Poll::Ready(None),
            Step::GiveWay => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Step::Look => {}
        }
        let cqe = either!(self.side(), cq => cq.linger(busy_poll.look_ns()));
        if cqe.is_some() {
            busy_poll.found();
        } else {
            busy_poll.missed(either!(self.side(), cq => cq.now()));
        }
        Poll::Ready(cqe)
    }

    /// Asks for an event on the channel at the next completion. Poll once more afterwards:
    /// completions that are already in the queue raise no event.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn notify(&self, notify: Notify) {
        either!(self.side(), cq => cq.notify(notify));
    }

    /// The channel that events go to.
    pub fn channel(&self) -> &CompChannel {
        &self.inner.channel
    }

    /// Changes its depth.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        either!(self.side(), cq => cq.resize(depth))
    }

    /// Removes the completions of a queue pair that is reset.
    pub(crate) fn forget(&self, qpn: Qpn) {
        either!(self.side(), cq => cq.forget(qpn));
    }

    /// Most completions that can wait.
    pub fn depth(&self) -> usize {
        either!(self.side(), cq => cq.depth())
    }
}
