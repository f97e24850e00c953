//! The rings of a completion queue to which several shards complete.
//!
//! Each shard has a ring, so that a shard completes without the others. The completions of a queue
//! pair are in one ring, and so in order. A polling thread takes from the rings in turn, and looks
//! only at those of shards whose queue pairs complete to the queue. If these are all in one shard,
//! the thread drives that shard itself, as it drives a device that has no other.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::{CqGauge, CqId, CqPoller, Cqe, CreateError, DestroyError, Notify, ResizeError};
use feroce_ring::{Arming, OneEvent};
use feroce_wire::Qpn;

use crate::Error;
use crate::driver::{AsyncQueue, ChannelQueue, Driver, Looked, Object, Shards, State};

/// The rings of a completion queue.
#[derive(Debug)]
pub(super) struct Rings {
    all: Box<[Ring]>,
    /// A bit for each shard that has or had a queue pair, or shared receive queue, which completes
    /// to this queue.
    homes: AtomicU32,
    /// The ring that a thread looks at first, and the shard that it drives if all rings are empty.
    next: AtomicUsize,
    /// Whether the consumer waits for an event.
    asked: Arc<OneEvent>,
    /// Held by a thread that asks: another that asks at the same time must not take back what this
    /// one has asked for.
    asking: Mutex<()>,
    shards: Arc<Shards>,
}

/// What one shard completes to.
#[derive(Debug)]
struct Ring {
    poller: Mutex<CqPoller>,
    gauge: CqGauge,
    driver: Arc<Driver>,
    /// What the shard has been told of the consumer's sleep.
    arming: Arming,
}

impl Ring {
    fn poller(&self) -> MutexGuard<'_, CqPoller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resize(&self, id: CqId, depth: u32) -> Result<(), ResizeError> {
        let mut poller = self.poller();
        let resize = |s: &mut State, _| s.engine.resize_cq(id, &mut poller, depth);
        let (resized, wakes) = self.driver.control_then(resize);
        drop(poller);
        drop(wakes);
        resized
    }

    /// Takes a completion if one waits.
    fn take_one(&self) -> Option<Cqe> {
        if self.gauge.is_empty() {
            return None;
        }
        self.poller().poll()
    }
}

impl Rings {
    /// Makes a completion queue in all shards.
    pub(super) fn create(
        shards: &Arc<Shards>,
        depth: u32,
        queue: &Arc<ChannelQueue>,
        events: &Arc<AsyncQueue>,
    ) -> Result<(CqId, Self), Error> {
        let asked = Arc::<OneEvent>::default();
        let attach = |state: &mut State, id| {
            state.dispatch.attach_shared(id, Arc::clone(queue), Arc::clone(&asked));
            state.dispatch.own(Object::Cq(id), events);
        };
        let (id, pollers) = shards.create(|s, others| {
            let (id, first) = s.engine.create_cq(depth)?;
            let copies = others.iter_mut().map(|o| Ok(o.engine.create_cq_as(Some(id), depth)?.1));
            let copies = copies.collect::<Result<Vec<CqPoller>, CreateError>>();
            let all = std::iter::once(s).chain(others.iter_mut().map(|other| &mut **other));
            match copies {
                Ok(copies) => {
                    all.for_each(|state| attach(state, id));
                    Ok((id, std::iter::once(first).chain(copies).collect::<Vec<_>>()))
                }
                Err(e) => {
                    for state in all {
                        let _ = state.engine.destroy_cq(id);
                    }
                    Err(e)
                }
            }
        })?;
        let ring = |(poller, driver): (CqPoller, &Arc<Driver>)| {
            let gauge = poller.gauge();
            let (poller, arming) = (Mutex::new(poller), Arming::new());
            Ring { poller, gauge, driver: Arc::clone(driver), arming }
        };
        let all = pollers.into_iter().zip(shards.iter()).map(ring).collect();
        let shards = Arc::clone(shards);
        let (homes, next) = (AtomicU32::new(0), AtomicUsize::new(0));
        let asking = Mutex::new(());
        Ok((id, Self { all, homes, next, asked, asking, shards }))
    }

    /// A queue pair of this shard is about to complete to the queue.
    pub(super) fn add_home(&self, shard: usize) {
        self.homes.fetch_or(1 << shard, Ordering::Relaxed);
    }

    /// The ring of the only shard whose queue pairs complete here.
    #[inline]
    fn only(&self) -> Option<&Ring> {
        let homes = self.homes.load(Ordering::Relaxed);
        let at = homes.is_power_of_two().then(|| homes.trailing_zeros());
        at.and_then(|at| self.all.get(at as usize))
    }

    /// The rings of shards whose queue pairs complete here, from that on whose turn it is.
    fn in_turn(&self) -> impl Iterator<Item = &Ring> {
        // Threads that poll at the same time may see the same turn; the order need not be exact.
        let turn = self.next.load(Ordering::Relaxed);
        self.next.store(turn.wrapping_add(1), Ordering::Relaxed);
        let homes = self.homes.load(Ordering::Relaxed);
        let start = turn % self.all.len().max(1);
        let shards = (start..self.all.len()).chain(0..start);
        shards.filter(move |shard| homes & 1 << shard != 0).map(|shard| &self.all[shard])
    }

    /// Takes a completion if one waits.
    pub(super) fn take_one(&self) -> Option<Cqe> {
        match self.only() {
            Some(ring) => ring.take_one(),
            None => self.in_turn().find_map(Ring::take_one),
        }
    }

    /// Takes a completion, after driving a shard if there is none. Backs off as
    /// [`Driver::progress`] does.
    pub(super) fn poll_one(&self, id: CqId) -> Option<Cqe> {
        self.take_one().or_else(|| {
            self.progress(id);
            self.take_one()
        })
    }

    /// Takes a completion, after driving a shard if there is none; does not back off.
    pub(super) fn look_one(&self) -> Option<Cqe> {
        self.take_one().or_else(|| {
            match self.only() {
                Some(ring) if ring.driver.look_for_many() == Looked::Quiet => return None,
                Some(_) => {}
                None => {
                    self.drive_next();
                }
            }
            self.take_one()
        })
    }

    /// Passes at most `most` completions to `take`, after driving a shard if there are none.
    pub(super) fn poll_each(&self, id: CqId, most: usize, mut take: impl FnMut(Cqe)) -> usize {
        let taken = self.take_each(most, &mut take);
        if taken > 0 {
            return taken;
        }
        self.progress(id);
        self.take_each(most, &mut take)
    }

    fn take_each(&self, most: usize, take: &mut impl FnMut(Cqe)) -> usize {
        let mut taken = 0;
        for ring in self.in_turn().filter(|ring| !ring.gauge.is_empty()) {
            let mut poller = ring.poller();
            while taken < most
                && let Some(cqe) = poller.poll()
            {
                take(cqe);
                taken += 1;
            }
        }
        taken
    }

    /// Drives a shard. If there is only one to drive, the thread backs off like one that polls a
    /// device with one shard.
    fn progress(&self, id: CqId) {
        match self.only() {
            Some(ring) => {
                ring.driver.progress(id, || ring.gauge.is_empty(), || ring.poller().begin_nap());
            }
            None => {
                self.drive_next();
            }
        }
    }

    /// Drives a shard, for a thread that must not nap. Returns false if other threads want the
    /// processor.
    pub(super) fn progress_awake(&self) -> bool {
        match self.only() {
            Some(ring) => ring.driver.progress_awake(),
            None => self.drive_next(),
        }
    }

    /// Drives the shard whose turn it is, unless its driver thread is awake and does so. Returns
    /// false if other threads want the processor.
    fn drive_next(&self) -> bool {
        self.in_turn().next().is_none_or(|ring| ring.driver.look_beside_thread())
    }

    /// Asks for an event: of the first shard that has a completion.
    pub(super) fn notify(&self, notify: Notify) {
        let asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.asked.is_pending() {
            // Rings that did not give the last event still have the request for it, which may have
            // been for more completions than this one.
            self.all.iter().for_each(|ring| ring.poller().disarm());
        }
        self.asked.ask();
        self.all.iter().for_each(|ring| ring.poller().arm(notify));
        drop(asking);
        self.all.iter().for_each(|ring| ring.driver.expect_event(&ring.arming));
    }

    /// The consumer polls from now on, or is no more.
    pub(super) fn expect_poll(&self) {
        self.all.iter().for_each(|ring| ring.driver.expect_poll(&ring.arming));
    }

    /// Changes the depth of every ring, or of none if what waits in one would not fit, or memory is
    /// short.
    pub(super) fn resize(&self, id: CqId, depth: u32) -> Result<(), Error> {
        self.all.iter().for_each(|ring| ring.driver.catch_up());
        let before: Vec<usize> = self.all.iter().map(|ring| ring.poller().capacity()).collect();
        let refused = self.all.iter().enumerate().find_map(|(changed, ring)| {
            let refused = ring.resize(id, depth).err()?;
            Some((changed, refused))
        });
        let Some((changed, refused)) = refused else { return Ok(()) };
        for (ring, depth) in self.all.iter().zip(before).take(changed) {
            // A ring that cannot be as it was for lack of memory holds what was asked for.
            let _ = ring.resize(id, u32::try_from(depth).unwrap_or(u32::MAX));
        }
        Err(refused.into())
    }

    /// Removes the completions of a queue pair that is reset.
    pub(super) fn forget(&self, id: CqId, qpn: Qpn) {
        for ring in &self.all {
            let mut poller = ring.poller();
            let forget = |s: &mut State, _| s.engine.forget_completions(id, &mut poller, qpn);
            let ((), wakes) = ring.driver.control_then(forget);
            drop(poller);
            drop(wakes);
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.all.iter().map(|ring| ring.poller().capacity()).min().unwrap_or(0)
    }

    pub(super) fn destroy(&self, id: CqId) -> Result<(), Error> {
        self.shards.control(|s, others| {
            others.iter().try_for_each(|other| other.engine.may_destroy_cq(id))?;
            s.engine.may_destroy_cq(id)?;
            let all = std::iter::once(s).chain(others.iter_mut().map(|other| &mut **other));
            all.into_iter().try_for_each(|state| {
                state.engine.destroy_cq(id)?;
                state.dispatch.detach(id);
                state.dispatch.disown(Object::Cq(id));
                Ok::<_, DestroyError>(())
            })
        })?;
        Ok(())
    }
}
