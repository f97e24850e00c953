//! Completion queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_backend_rdma_core as rdma_core;
use feroce_engine::{CqId, CqPoller, Cqe, CreateError, Notify};
use feroce_wire::Qpn;

use crate::Error;
use crate::channel::{self, CompChannel};
use crate::context::{Adapter, Context};
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
    side: Side,
    channel: CompChannel,
    context: Context,
    life: Life,
}

#[derive(Debug)]
enum Side {
    Soft(Soft),
    Hard(rdma_core::Cq),
}

/// A queue of our engine.
#[derive(Debug)]
struct Soft {
    poller: Mutex<CqPoller>,
    driver: Arc<Driver>,
}

impl Soft {
    fn poller(&self) -> MutexGuard<'_, CqPoller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn poll_one(&self) -> Option<Cqe> {
        if let Some(cqe) = self.poller().poll() {
            return Some(cqe);
        }
        // Without the queue's lock: this may sleep, or run wakers that poll the queue themselves.
        self.driver.progress();
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
                    self.driver.progress();
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

impl CqInner {
    fn destroy(&self) -> Result<(), Error> {
        let id = self.id;
        self.life.end(|| match &self.side {
            Side::Soft(soft) => soft.driver.control(|s, _| {
                s.engine.destroy_cq(id)?;
                s.dispatch.detach(id);
                s.dispatch.disown(Object::Cq(id));
                Ok::<_, Error>(())
            }),
            Side::Hard(hard) => {
                hard.destroy()?;
                self.context.disown(Object::Cq(id));
                Ok(())
            }
        })
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // Queue pairs hold their queues, so nothing uses it any more.
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
            None => CompChannel::new(context)?,
        };
        let (id, side) = match (context.adapter(), &channel.side) {
            (Adapter::Soft(soft), channel::Side::Soft(queue)) => {
                let driver = Arc::clone(&soft.driver);
                let (id, poller) = driver.control(|s, _| {
                    let created = s.engine.create_cq(depth)?;
                    s.dispatch.attach(created.0, Arc::clone(queue));
                    s.dispatch.own(Object::Cq(created.0), context.events());
                    Ok::<_, Error>(created)
                })?;
                (id, Side::Soft(Soft { poller: Mutex::new(poller), driver }))
            }
            (Adapter::Hard(hard), channel::Side::Hard(queue)) => {
                let (cq, id) = rdma_core::Cq::create(&hard.adapter, depth, queue)?;
                context.own(Object::Cq(id));
                (id, Side::Hard(cq))
            }
            _ => return Err(CreateError::Invalid("the channel is of another backend").into()),
        };
        let (context, life) = (context.clone(), Life::new());
        Ok(Self { inner: Arc::new(CqInner { id, side, channel, context, life }) })
    }

    /// Destroys it now, or says that a queue pair still uses it. Dropping the last handle destroys
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
        match &self.inner.side {
            Side::Soft(soft) => soft.poll_one(),
            Side::Hard(hard) => hard.poll_one(|| self.inner.context.now()),
        }
    }

    /// Takes one completion if one waits; drives nothing.
    #[inline]
    pub fn take_one(&self) -> Option<Cqe> {
        match &self.inner.side {
            Side::Soft(soft) => soft.poller().poll(),
            Side::Hard(hard) => hard.poll_one(|| self.inner.context.now()),
        }
    }

    /// Takes completions until `into` is full or there are none; returns how many.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self, into: &mut Vec<Cqe>) -> usize {
        self.poll_each(into.capacity() - into.len(), |cqe| into.push(cqe))
    }

    /// Gives completions to `take`, at most `most` of them, driving the adapter if there are none;
    /// returns how many.
    #[inline]
    pub fn poll_each(&self, most: usize, take: impl FnMut(Cqe)) -> usize {
        match &self.inner.side {
            Side::Soft(soft) => soft.poll_each(most, take),
            Side::Hard(hard) => hard.poll_each(most, || self.inner.context.now(), take),
        }
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
    /// completions that are already there do not count.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn notify(&self, notify: Notify) {
        match &self.inner.side {
            Side::Soft(soft) => {
                soft.poller().arm(notify);
                soft.driver.expect_event();
            }
            Side::Hard(hard) => hard.notify(notify),
        }
    }

    /// The channel that events go to.
    pub fn channel(&self) -> &CompChannel {
        &self.inner.channel
    }

    /// Changes its depth.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        let id = self.inner.id;
        match &self.inner.side {
            Side::Soft(soft) => {
                let mut poller = soft.poller();
                let resize = |s: &mut State, _| s.engine.resize_cq(id, &mut poller, depth);
                let (resized, wakes) = soft.driver.control_then(resize);
                drop(poller);
                drop(wakes);
                Ok(resized?)
            }
            Side::Hard(hard) => Ok(hard.resize(depth)?),
        }
    }

    /// Forgets the completions of a queue pair that wait. Drivers of the kernel do so themselves.
    pub(crate) fn forget(&self, qpn: Qpn) {
        if let Side::Soft(soft) = &self.inner.side {
            let mut poller = soft.poller();
            let id = self.inner.id;
            let forget = |s: &mut State, _| s.engine.forget_completions(id, &mut poller, qpn);
            let ((), wakes) = soft.driver.control_then(forget);
            drop(poller);
            drop(wakes);
        }
    }

    /// The queue, if it is one of the kernel's drivers.
    pub(crate) fn hard(&self) -> Option<&rdma_core::Cq> {
        match &self.inner.side {
            Side::Soft(_) => None,
            Side::Hard(hard) => Some(hard),
        }
    }

    /// Most completions that can wait.
    pub fn depth(&self) -> usize {
        match &self.inner.side {
            Side::Soft(soft) => soft.poller().capacity(),
            Side::Hard(hard) => hard.depth(),
        }
    }
}
