//! Completion queues of the engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_engine::{CqGauge, CqId, CqPoller, Cqe, Notify};
use feroce_train::Instant;
use feroce_wire::Qpn;

use crate::Error;
use crate::driver::{Driver, Looked, Object, State};

/// Polls between two looks at the clock.
const LOOKS: u32 = 8;

/// A completion queue of the engine.
#[derive(Debug)]
pub(crate) struct SoftCq {
    pub(super) id: CqId,
    poller: Mutex<CqPoller>,
    gauge: CqGauge,
    driver: Arc<Driver>,
}

impl SoftCq {
    pub(super) fn new(id: CqId, poller: CqPoller, driver: Arc<Driver>) -> Self {
        let gauge = poller.gauge();
        Self { id, poller: Mutex::new(poller), gauge, driver }
    }

    fn poller(&self) -> MutexGuard<'_, CqPoller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn poll_one(&self) -> Option<Cqe> {
        if let Some(cqe) = self.take_one() {
            return Some(cqe);
        }
        // This thread does not hold the queue's lock here, because `progress` may sleep, or run
        // wakers that poll the queue themselves.
        if !self.driver.progress(self.id, || self.poller().begin_nap()) {
            return None;
        }
        self.take_one()
    }

    /// Takes a completion, driving the engine if there is none; does not back off.
    pub(crate) fn look_one(&self) -> Option<Cqe> {
        if let Some(cqe) = self.take_one() {
            return Some(cqe);
        }
        match self.driver.look() {
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
        loop {
            // A poll reads the clock itself, and does not say what it shows.
            for _ in 0..LOOKS {
                if let Some(cqe) = self.take_one() {
                    return Some(cqe);
                }
                if !self.driver.progress_awake() {
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
            // As in `poll_one`.
            let may_have = self.driver.progress(self.id, || self.poller().begin_nap());
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
            return None;
        }
        self.poller().poll()
    }

    pub(crate) fn notify(&self, notify: Notify) {
        self.poller().arm(notify);
        self.driver.expect_event();
    }

    pub(crate) fn resize(&self, depth: u32) -> Result<(), Error> {
        let mut poller = self.poller();
        let resize = |s: &mut State, _| s.engine.resize_cq(self.id, &mut poller, depth);
        let (resized, wakes) = self.driver.control_then(resize);
        drop(poller);
        drop(wakes);
        Ok(resized?)
    }

    /// Removes the completions of a queue pair that is reset.
    pub(crate) fn forget(&self, qpn: Qpn) {
        let mut poller = self.poller();
        let forget = |s: &mut State, _| s.engine.forget_completions(self.id, &mut poller, qpn);
        let ((), wakes) = self.driver.control_then(forget);
        drop(poller);
        drop(wakes);
    }

    pub(crate) fn depth(&self) -> usize {
        self.poller().capacity()
    }

    pub(crate) fn destroy(&self) -> Result<(), Error> {
        self.driver.control(|s, _| {
            s.engine.destroy_cq(self.id)?;
            s.dispatch.detach(self.id);
            s.dispatch.disown(Object::Cq(self.id));
            Ok(())
        })
    }
}
