//! Completion queues: what happened to the work requests.
//!
//! The engine pushes entries into a ring; the consumer polls them without the engine. The engine
//! decides once per batch of entries whether it must wake a consumer that sleeps: it publishes the
//! entries and takes what the consumer has asked for; the consumer asks and then looks at the ring
//! ([`EventRequest`]).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use feroce_ring::{Consumer, EventRequest, Producer};
use feroce_wire::Qpn;

use crate::hca::cqe::{Cqe, WcStatus};
use crate::hca::error::ResizeError;
use crate::hca::id::CqId;

/// What the consumer wants to be woken for.
///
/// ```
/// # use feroce_engine::Notify;
/// assert!(Notify::Next > Notify::Solicited, "who asks for more gets more");
/// ```
#[doc(alias = "ibv_req_notify_cq")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Notify {
    /// The next solicited or failed completion.
    Solicited = 1,
    /// The next completion of any kind.
    Next = 2,
}

/// A bit of what is asked for, beside those of [`Notify`]: the polling thread naps.
const NAP: u8 = 4;

/// State shared by the two sides of a completion queue.
#[derive(Debug, Default)]
struct CqShared {
    /// What was asked for since the last wake-up: bits of [`Notify`], and [`NAP`].
    asked: EventRequest,
    /// Entries that the engine has pushed so far, and those that the consumer has taken.
    pushed: AtomicUsize,
    taken: AtomicUsize,
}

/// A completion queue, for people who look into the adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CqReport {
    /// Its handle.
    pub id: CqId,
    /// How many completions it holds at most.
    pub depth: usize,
    /// How many wait to be polled.
    pub waiting: usize,
    /// Work queues that complete to it.
    pub users: u32,
}

/// Consumers to wake for fresh entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CqWake {
    /// The consumer has asked for an event.
    pub(crate) event: bool,
    /// A polling thread naps.
    pub(crate) poller: bool,
}

/// Tells whether entries wait in a completion queue, without its [`CqPoller`]: threads that share
/// one need not lock it to find it empty.
#[derive(Clone, Debug)]
pub struct CqGauge {
    shared: Arc<CqShared>,
}

impl CqGauge {
    /// Whether no entry waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let taken = self.shared.taken.load(Ordering::Relaxed);
        self.shared.pushed.load(Ordering::Acquire) == taken
    }
}

/// The consumer's side of a completion queue.
#[derive(Debug)]
pub struct CqPoller {
    ring: Consumer<Cqe>,
    shared: Arc<CqShared>,
}

impl CqPoller {
    /// The consumer's side of a queue to which nothing completes; `None` without memory for it.
    pub fn unused() -> Option<Self> {
        Cq::new(1).map(|(_, poller)| poller)
    }

    /// Takes the oldest entry.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.ring.pop()?;
        // Only this side counts here, and it is not shared.
        let taken = self.shared.taken.load(Ordering::Relaxed).wrapping_add(1);
        self.shared.taken.store(taken, Ordering::Relaxed);
        Some(cqe)
    }

    /// For threads that only want to know whether entries wait.
    pub fn gauge(&self) -> CqGauge {
        CqGauge { shared: Arc::clone(&self.shared) }
    }

    /// Asks for an event at the next completion. Entries that are already there do not count:
    /// poll once more after arming.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self, notify: Notify) {
        self.shared.asked.ask(notify as u8);
    }

    /// Takes back what was asked for and has not led to an event.
    pub fn disarm(&self) {
        self.shared.asked.keep(NAP);
    }

    /// A polling thread is about to sleep briefly, and wants to be woken at the next completion
    /// (`Event::Poller`). False: an entry waits, and the thread should not sleep. The request lasts
    /// until the next completion even if the thread wakes up earlier: another thread that polls the
    /// same queue may still sleep.
    pub fn begin_nap(&self) -> bool {
        self.shared.asked.ask(NAP);
        self.is_empty()
    }

    /// Entries waiting.
    #[inline]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether no entry waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most entries that can wait.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }
}

/// The engine's side of a completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: Producer<Cqe>,
    shared: Arc<CqShared>,
    /// An entry was lost; the queue is dead and so are its queue pairs.
    pub(crate) overrun: bool,
    /// Queue pairs and shared receive queues that report here.
    pub(crate) users: u32,
    /// The strongest reason to wake the consumer among entries pushed since the last look.
    fresh: Option<Notify>,
}

impl Cq {
    /// Both sides of a queue of `depth` entries; `None` without memory for it.
    pub(crate) fn new(depth: usize) -> Option<(Self, CqPoller)> {
        let (producer, consumer) = feroce_ring::try_spsc(depth)?;
        let shared = Arc::new(CqShared::default());
        let cq = Self {
            ring: producer,
            shared: Arc::clone(&shared),
            overrun: false,
            users: 0,
            fresh: None,
        };
        Some((cq, CqPoller { ring: consumer, shared }))
    }

    /// What it is and holds.
    pub(crate) fn report(&self, id: CqId) -> CqReport {
        let (depth, waiting) = (self.ring.capacity(), self.ring.len());
        CqReport { id, depth, waiting, users: self.users }
    }

    /// Pushes an entry. False: it did not fit, or there is no memory for it.
    #[inline]
    pub(crate) fn push(&mut self, cqe: Cqe) -> bool {
        let fits = self.stage(cqe);
        self.publish();
        fits
    }

    /// Puts an entry in that the consumer sees from [`Cq::publish`] on. False: it did not fit, or
    /// there is no memory for it.
    #[inline]
    pub(crate) fn stage(&mut self, cqe: Cqe) -> bool {
        let wakes_all = cqe.solicited || cqe.status != WcStatus::Success;
        let Some(slot) = self.ring.vacant() else { return false };
        slot.stage(cqe);
        // A solicited entry satisfies both kinds of waiters, any other only `Next`.
        let reason = if wakes_all { Notify::Solicited } else { Notify::Next };
        self.fresh = Some(self.fresh.map_or(reason, |old| old.min(reason)));
        true
    }

    /// Shows the consumer the entries that were staged.
    #[inline]
    pub(crate) fn publish(&mut self) {
        let staged = self.ring.staged();
        self.ring.publish();
        let pushed = self.shared.pushed.load(Ordering::Relaxed).wrapping_add(staged);
        self.shared.pushed.store(pushed, Ordering::Release);
    }

    /// Whether entries were pushed since the last call of [`Cq::take_wake`].
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh.is_some()
    }

    /// Decides which consumers must be woken for the fresh entries.
    #[inline]
    pub(crate) fn take_wake(&mut self) -> CqWake {
        let Some(reason) = self.fresh.take() else {
            return CqWake::default();
        };
        let all = self.shared.asked.take();
        if all == 0 {
            return CqWake::default();
        }
        let asked = all & !NAP;
        // The bit of the strongest request is the greater one.
        let event = asked >= reason as u8;
        if !event && asked != 0 {
            // The consumer still waits for a completion of another kind. If it armed again
            // meanwhile, it waits for that, too.
            self.shared.asked.ask(asked);
        }
        CqWake { event, poller: all & NAP != 0 }
    }

    /// Replaces the ring by one of `depth` entries, moving what waits. `poller` must be the other
    /// side.
    pub(crate) fn resize(
        &mut self,
        poller: &mut CqPoller,
        depth: usize,
    ) -> Result<(), ResizeError> {
        debug_assert!(Arc::ptr_eq(&self.shared, &poller.shared), "not the two sides of one queue");
        let waiting = poller.ring.len();
        if waiting > depth {
            return Err(ResizeError::TooSmall { waiting });
        }
        let (mut producer, consumer) =
            feroce_ring::try_spsc(depth).ok_or(ResizeError::OutOfMemory)?;
        for cqe in (0..waiting).filter_map(|i| poller.ring.peek(i)) {
            producer.push(*cqe).map_err(|_| ResizeError::OutOfMemory)?;
        }
        self.ring = producer;
        poller.ring = consumer;
        Ok(())
    }

    /// Forgets the entries of a queue pair that wait. `poller` must be the other side.
    pub(crate) fn forget(&mut self, poller: &mut CqPoller, qpn: Qpn) {
        debug_assert!(Arc::ptr_eq(&self.shared, &poller.shared), "not the two sides of one queue");
        // Those that stay move towards the newest, in place: a reset must not fail for memory.
        let waiting = poller.ring.len();
        let mut to = waiting;
        for from in (0..waiting).rev() {
            let Some(&cqe) = poller.ring.peek(from).filter(|cqe| cqe.qpn != qpn) else { continue };
            to -= 1;
            if let Some(place) = poller.ring.peek_mut(to) {
                *place = cqe;
            }
        }
        for _ in 0..to {
            poller.poll();
        }
    }
}

#[cfg(test)]
mod tests {
    use feroce_train::Instant;

    use super::*;
    use crate::hca::cqe::WcOpcode;

    #[test]
    fn entries_are_seen_when_they_are_published() {
        let (mut cq, mut poller) = Cq::new(3).expect("a queue");
        let entry =
            |id| Cqe::new(id, Qpn::new(7), WcOpcode::Send, WcStatus::Success, Instant::ZERO);
        let gauge = poller.gauge();
        assert!(cq.stage(entry(1)) && cq.stage(entry(2)));
        assert!(gauge.is_empty() && poller.poll().is_none());
        cq.publish();
        assert_eq!((gauge.is_empty(), poller.poll().map(|cqe| cqe.wr_id)), (false, Some(1)));
        assert!(cq.stage(entry(3)) && cq.push(entry(4)) && !cq.stage(entry(5)));
        cq.publish();
        let left = core::iter::from_fn(|| poller.poll()).map(|cqe| cqe.wr_id);
        assert!(left.eq([2, 3, 4]));
        assert!(gauge.is_empty());
    }

    #[test]
    fn forgetting_a_queue_pair_keeps_the_entries_of_others_in_order() {
        let (mut cq, mut poller) = Cq::new(20).expect("a queue");
        let entry = |id: u64| {
            let qpn = Qpn::new(if id.is_multiple_of(3) { 7 } else { 8 });
            Cqe::new(id, qpn, WcOpcode::Send, WcStatus::Success, Instant::ZERO)
        };
        // Begins in the middle of the ring, so that what waits passes its end.
        assert!((0..12).all(|id| cq.push(entry(id)) && poller.poll().is_some()));
        assert!((0..18).all(|id| cq.push(entry(id))));
        cq.forget(&mut poller, Qpn::new(7));
        assert_eq!(poller.len(), 12);
        assert!(!poller.gauge().is_empty());
        assert!((18..26).all(|id| cq.push(entry(id))), "there is room again");
        let left: alloc::vec::Vec<u64> =
            core::iter::from_fn(|| poller.poll()).map(|cqe| cqe.wr_id).collect();
        let expected = (0..18).filter(|id| id % 3 != 0).chain(18..26);
        assert!(left.into_iter().eq(expected));
        assert!(poller.gauge().is_empty());
    }
}
