//! Completion queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::{CqId, CqPoller, Cqe, Notify};
use feroce_wire::Qpn;

use crate::Error;
use crate::backend::kernel::KernelCq;
use crate::backend::{Either, either, map_either};
use crate::channel::CompChannel;
use crate::context::Context;
use crate::driver::{Driver, Object, State};
use crate::life::Life;

/// How often an empty queue is polled before a waiting thread goes to sleep.
const SPINS: u32 = 200;

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
    /// Keeps the device open.
    _context: Context,
    life: Life,
}

/// The queue of either backend.
pub(crate) type CqSide = Either<SoftCq, KernelCq>;

/// A completion queue of the engine.
#[derive(Debug)]
pub(crate) struct SoftCq {
    pub(crate) id: CqId,
    pub(crate) poller: Mutex<CqPoller>,
    pub(crate) driver: Arc<Driver>,
}

impl SoftCq {
    fn poller(&self) -> MutexGuard<'_, CqPoller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn poll_one(&self) -> Option<Cqe> {
        if let Some(cqe) = self.poller().poll() {
            return Some(cqe);
        }
        // This thread does not hold the queue's lock here, because `progress` may sleep, or run
        // wakers that poll the queue themselves.
        self.driver.progress(self.id, || self.poller().begin_nap());
        self.poller().poll()
    }

    #[inline]
    fn poll_each(&self, most: usize, mut take: impl FnMut(Cqe)) -> usize {
        let mut poller = self.poller();
        let mut taken = 0;
        let mut driven = false;
        while taken < most {
            match poller.poll() {
                Some(cqe) => take(cqe),
                None if !driven && taken == 0 => {
                    driven = true;
                    // As in `poll_one`.
                    drop(poller);
                    self.driver.progress(self.id, || self.poller().begin_nap());
                    poller = self.poller();
                    continue;
                }
                None => break,
            }
            taken += 1;
        }
        taken
    }
}

impl SoftCq {
    #[inline]
    fn take_one(&self) -> Option<Cqe> {
        self.poller().poll()
    }

    fn notify(&self, notify: Notify) {
        self.poller().arm(notify);
        self.driver.expect_event();
    }

    fn resize(&self, depth: u32) -> Result<(), Error> {
        let mut poller = self.poller();
        let resize = |s: &mut State, _| s.engine.resize_cq(self.id, &mut poller, depth);
        let (resized, wakes) = self.driver.control_then(resize);
        drop(poller);
        drop(wakes);
        Ok(resized?)
    }

    /// Removes the completions of a queue pair that is reset.
    fn forget(&self, qpn: Qpn) {
        let mut poller = self.poller();
        let forget = |s: &mut State, _| s.engine.forget_completions(self.id, &mut poller, qpn);
        let ((), wakes) = self.driver.control_then(forget);
        drop(poller);
        drop(wakes);
    }

    fn depth(&self) -> usize {
        self.poller().capacity()
    }

    fn destroy(&self) -> Result<(), Error> {
        self.driver.control(|s, _| {
            s.engine.destroy_cq(self.id)?;
            s.dispatch.detach(self.id);
            s.dispatch.disown(Object::Cq(self.id));
            Ok(())
        })
    }
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
        let (context, life) = (context.clone(), Life::new());
        Ok(Self { inner: Arc::new(CqInner { id, side, channel, _context: context, life }) })
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

    /// Takes completions until `into` is full or there are none; returns how many.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, into: &mut Vec<Cqe>) -> usize {
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
            for _ in 0..SPINS {
                if let Some(cqe) = self.poll_one() {
                    return Ok(cqe);
                }
                std::hint::spin_loop();
            }
            self.notify(Notify::Next);
            if let Some(cqe) = self.poll_one() {
                return Ok(cqe);
            }
            self.inner.channel.wait(None)?;
        }
    }

    /// Resolves with the next completion. Runtime-agnostic.
    pub async fn next(&self) -> Cqe {
        loop {
            if let Some(cqe) = self.poll_one() {
                return cqe;
            }
            self.notify(Notify::Next);
            if let Some(cqe) = self.poll_one() {
                return cqe;
            }
            self.inner.channel.event().await;
        }
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
