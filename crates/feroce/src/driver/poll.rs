//! What a consumer that polls does for the device.

use std::sync::atomic::Ordering;

use feroce_engine::CqId;
use feroce_train::Instant;

use super::Driver;
use super::turn::Turn;

/// A consumer that has not polled for so long has much else to do: its requests are complete at
/// once, say. Then it takes all that has arrived, so that queue pairs whose requests go by packets
/// do not wait for a poll with each of them.
const SELDOM_NS: u64 = 50_000;

/// What a thread that looked at the link found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Looked {
    /// Nothing to do, at once. There is no completion that was not there before, unless another
    /// thread drives the device.
    Quiet,
    /// Something to do, and it was done.
    Busy,
    /// Nothing to do at this time. The thread should back off, unless the time is that of a
    /// simulated world.
    Idle(Instant),
}

impl Driver {
    /// Receives what has arrived, unless another thread owns the link and does so. The thread,
    /// which polls `cq`, backs off if it has received nothing for a while. Before it naps it calls
    /// `begin_nap`: true if the queue is empty, and a completion there will be an event. Returns
    /// whether there may be a completion that was not there before.
    #[inline]
    pub(crate) fn progress(
        &self,
        cq: CqId,
        is_empty: impl Fn() -> bool,
        begin_nap: impl FnOnce() -> bool,
    ) -> bool {
        if self.is_driven_for(is_empty) {
            return true;
        }
        let now = match self.look(Turn::Poll) {
            Looked::Quiet => return false,
            Looked::Busy => return true,
            Looked::Idle(now) => now,
        };
        if self.clock.is_virtual() {
            return true;
        }
        let arm = || {
            if !begin_nap() {
                return false;
            }
            let may_sleep = self.try_link().is_none_or(|mut link| {
                link.set_looks(true);
                link.arm(now)
            });
            !self.answer_bell() && may_sleep
        };
        self.backoff.back_off(&self.clock, cq, || self.kick_peer(), arm);
        true
    }

    /// Does the same for a thread that must not nap, because it has other tasks. Returns false if
    /// it should rather wait for an event, because other threads want the processor.
    #[inline]
    pub(crate) fn progress_awake(&self) -> bool {
        match self.look(Turn::Serve) {
            _ if self.clock.is_virtual() => false,
            Looked::Quiet | Looked::Busy => true,
            Looked::Idle(_) => self.backoff.stay_awake(&self.clock, || self.kick_peer()),
        }
    }

    /// Receives what has arrived, unless another thread owns the link and does so. Unlike
    /// [`progress`](Self::progress), it takes several messages at a time: their tasks then run
    /// one after the other, and what they send leaves together.
    #[inline]
    pub(crate) fn look_for_many(&self) -> Looked {
        self.look(Turn::Serve)
    }

    /// Receives what has arrived, unless another thread owns the link and does so, in a turn that
    /// may hold acknowledgements back.
    #[inline]
    fn look(&self, turn: Turn) -> Looked {
        // The clock is read before the link is checked, which takes longer, so that a packet which
        // arrives meanwhile need not wait for the clock.
        let now = self.now();
        let before = self.polled_at.load(Ordering::Relaxed);
        self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
        self.pollers.note(now);
        let is_seldom = now.as_nanos().saturating_sub(before) > SELDOM_NS;
        let turn = if is_seldom && !self.clock.is_virtual() { Turn::Receive } else { turn };
        let link = self.try_link();
        if self.backoff.is_fresh() && link.as_ref().is_some_and(|link| link.has_no_work()) {
            drop(link);
            self.answer_bell();
            self.backoff.spin();
            return Looked::Quiet;
        }
        // They wait until the consumer answers or polls again. If the consumer does neither, the
        // idle driver thread sends them. The driver thread owns the link when it ends its idle
        // state.
        let turn = if self.sleeper.is_idle() { turn } else { Turn::Receive };
        if link.is_some_and(|link| self.finish(link, now, turn)) {
            self.backoff.reset();
            return Looked::Busy;
        }
        Looked::Idle(now)
    }

    /// Receives what has arrived, for a thread that polls several shards. If the driver thread is
    /// awake, it receives, and this thread leaves the shard to it: shards work side by side then.
    /// Returns false if other threads want the processor.
    pub(crate) fn look_beside_thread(&self) -> bool {
        if !self.sleeper.is_idle()
            && let Some(link) = self.try_link()
            && self.finish(link, self.now(), Turn::Receive)
        {
            self.backoff.reset();
            return true;
        }
        !self.clock.is_virtual() && self.backoff.stay_awake(&self.clock, || self.kick_peer())
    }

    /// If another thread owns the link, it looks at it. A thread that backs off answers the
    /// doorbells before, because backing off may take long.
    fn kick_peer(&self) {
        if let Some(mut link) = self.try_link() {
            link.kick();
        }
        self.answer_bell();
    }
}
