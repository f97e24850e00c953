//! Completion queues of the engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::{CqGauge, CqId, CqPoller, Cqe, CreateError, Notify};
use feroce_ring::Arming;
use feroce_train::Instant;
use feroce_wire::Qpn;

use super::rings::Rings;
use crate::Error;
use crate::driver::{AsyncQueue, ChannelQueue, Driver, Looked, Object, Shards, State};

/// Polls between two looks at the clock.
const LOOKS: u32 = 8;

/// A completion queue of the engine.
#[derive(Debug)]
pub(crate) struct SoftCq {
    pub(super) id: CqId,
    poller: Mutex<CqPoller>,
    gauge: CqGauge,
    driver: Arc<Driver>,
    /// Where the shards complete to, if there are several. The queue itself stays empty then.
    rings: Option<Box<Rings>>,
    /// Whether the consumer has asked for an event and may sleep, so that the driver thread stays
    /// awake.
    arming: Arming,
}

impl SoftCq {
    /// A queue to which several shards complete.
    pub(super) fn create_in_all(
        shards: &Arc<Shards>,
        depth: u32,
        queue: &Arc<ChannelQueue>,
        events: &Arc<AsyncQueue>,
    ) -> Result<(CqId, Self), Error> {
        let (id, rings) = Rings::create(shards, depth, queue, events)?;
        let poller = CqPoller::unused().ok_or(CreateError::OutOfMemory)?;
        let mut cq = Self::new(id, poller, Arc::clone(shards.first()));
        cq.rings = Some(Box::new(rings));
        Ok((id, cq))
    }

    pub(super) fn new(id: CqId, poller: CqPoller, driver: Arc<Driver>) -> Self {
        let (gauge, arming) = (poller.gauge(), Arming::new());
        Self { id, poller: Mutex::new(poller), gauge, driver, rings: None, arming }
    }

    /// A queue pair of this shard is about to complete to the queue.
    pub(super) fn add_home(&self, shard: usize) {
        if let Some(rings) = &self.rings {
            rings.add_home(shard);
        }
    }

    /// A shared receive queue is about to complete to the queue: the first shard has them all.
    pub(crate) fn add_first_home(&self) {
        self.add_home(0);
    }

    fn poller(&self) -> MutexGuard<'_, CqPoller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn poll_one(&self) -> Option<Cqe> {
        if let Some(cqe) = self.take_one() {
            return Some(cqe);
        }
        if let Some(rings) = &self.rings {
            return rings.poll_one(self.id);
        }
        // This thread does not hold the queue's lock here, because `progress` may sleep, or run
        // wakers that poll the queue themselves.
        if !self.driver.progress(self.id, || self.gauge.is_empty(), || self.poller().begin_nap()) {
            return None;
        }
        self.take_one()
    }

    /// Takes a completion, driving the engine if there is none; does not back off.
    pub(crate) fn look_one(&self) -> Option<Cqe> {
        if let Some(cqe) = self.take_one() {
            return Some(cqe);
        }
        if let Some(rings) = &self.rings {
            return rings.look_one();
        }
        match self.driver.look_for_many() {
            Looked::Quiet => None,
            Looked::Busy | Looked::Idle(_) => self.take_one(),
        }
    }

    /// The time of the device.
    pub(crate) fn now(&self) -> Instant {
        self.driver.now()
    }

    /// Polls for about `longest_ns` and never sleeps, for a thread that has other tasks. Ends early
    /// if other threads want the processor.
    pub(crate) fn linger(&self, longest_ns: u64) -> Option<Cqe> {
        let until = self.driver.now().plus_nanos(longest_ns);
        self.expect_poll();
        loop {
            // A poll reads the clock itself, and does not say what it shows.
            for _ in 0..LOOKS {
                if let Some(cqe) = self.take_one() {
                    return Some(cqe);
                }
                let stays = match &self.rings {
                    Some(rings) => rings.progress_awake(),
                    None => self.driver.progress_awake(),
                };
                if !stays {
                    return self.take_one();
                }
            }
            if self.driver.now() >= until {
                return None;
            }
        }
    }

    #[inline]
    pub(crate) fn poll_each(&self, most: usize, mut take: impl FnMut(Cqe)) -> usize {
        if most > 0 && self.gauge.is_empty() {
            if let Some(rings) = &self.rings {
                return rings.poll_each(self.id, most, take);
            }
            // As in `poll_one`.
            let may_have = self.driver.progress(
                self.id,
                || self.gauge.is_empty(),
                || self.poller().begin_nap(),
            );
            if !may_have || self.gauge.is_empty() {
                return 0;
            }
        }
        let mut poller = self.poller();
        let mut taken = 0;
        while taken < most
            && let Some(cqe) = poller.poll()
        {
            take(cqe);
            taken += 1;
        }
        taken
    }

    /// Takes a completion if one waits.
    #[inline]
    pub(crate) fn take_one(&self) -> Option<Cqe> {
        if self.gauge.is_empty() {
            return self.rings.as_ref().and_then(|rings| rings.take_one());
        }
        self.poller().poll()
    }

    pub(crate) fn notify(&self, notify: Notify) {
        if let Some(rings) = &self.rings {
            return rings.notify(notify);
        }
        self.poller().arm(notify);
        self.driver.expect_event(&self.arming);
    }

    /// The consumer polls from now on, or is no more.
    fn expect_poll(&self) {
        match &self.rings {
            Some(rings) => rings.expect_poll(),
            None => self.driver.expect_poll(&self.arming),
        }
    }

    pub(crate) fn resize(&self, depth: u32) -> Result<(), Error> {
        if let Some(rings) = &self.rings {
            return rings.resize(self.id, depth);
        }
        self.driver.catch_up();
        let mut poller = self.poller();
        let resize = |s: &mut State, _| s.engine.resize_cq(self.id, &mut poller, depth);
        let (resized, wakes) = self.driver.control_then(resize);
        drop(poller);
        drop(wakes);
        Ok(resized?)
    }

    /// Removes the completions of a queue pair that is reset.
    pub(crate) fn forget(&self, qpn: Qpn) {
        if let Some(rings) = &self.rings {
            return rings.forget(self.id, qpn);
        }
        let mut poller = self.poller();
        let forget = |s: &mut State, _| s.engine.forget_completions(self.id, &mut poller, qpn);
        let ((), wakes) = self.driver.control_then(forget);
        drop(poller);
        drop(wakes);
    }

    pub(crate) fn depth(&self) -> usize {
        self.rings.as_ref().map_or_else(|| self.poller().capacity(), |rings| rings.depth())
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        if let Some(rings) = &self.rings {
            return rings.destroy(self.id);
        }
        self.driver.control(|s, _| {
            s.engine.destroy_cq(self.id)?;
            s.dispatch.detach(self.id);
            s.dispatch.disown(Object::Cq(self.id));
            Ok(())
        })
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        self.expect_poll();
    }
}
