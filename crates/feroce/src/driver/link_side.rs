//! The link of a device and the trains that wait for it, with a lock of their own. The engine knows
//! neither.
//!
//! A thread that owns the link may take the engine's lock; a thread that has the engine's lock
//! never waits for the link. So system calls run while other threads use the engine.

use std::fmt;
use std::hint::cold_path;
use std::io;
use std::ops::{Deref, DerefMut};

use feroce_link::Control;
use feroce_local::HostCarrier;
use feroce_train::{Instant, LinkCaps, SingleBuf, Train};

use super::locks::{LinkGuard, StateGuard};
use super::streams::Streams;
use super::{State, WakeOnDrop, Wakes};
use crate::stack::Faults;
use crate::watch::PacketLog;

/// Most trains that the driver passes to the link together: a batch for fewer system calls, not a
/// queue.
const TX_BATCH: usize = 64;

/// When the driver tries a full link again: the link drains within microseconds, and no event
/// reports that.
const FULL_NS: u64 = 50_000;

/// A link with the trains that wait for it.
pub(crate) struct LinkSide {
    link: Box<dyn HostCarrier>,
    /// Trains of the next batch, or trains that the link had no room for.
    waiting: Vec<Train>,
    /// The packet that the engine gave out last on its fast path.
    single: SingleBuf,
    /// Trains that no longer wait: they were sent or discarded.
    gone: u64,
    /// Acknowledgements or completions wait in the engine for the next turn.
    engine_waits: bool,
    /// Packets that the engine has delivered inside the device.
    inside: u64,
    /// The streams of a device that speaks iWARP, which has no packets.
    pub(super) streams: Option<Box<Streams>>,
    /// The faults that the link injects.
    pub(super) faults: Faults,
    /// Packets of the queue pairs that a process watches, if there are any.
    log: Option<Box<PacketLog>>,
}

impl LinkSide {
    pub(super) fn new(link: Box<dyn HostCarrier>) -> Self {
        Self {
            link,
            waiting: Vec::new(),
            single: SingleBuf::default(),
            gone: 0,
            engine_waits: false,
            inside: 0,
            streams: None,
            faults: Faults::default(),
            log: None,
        }
    }

    /// The carrier, and where to record what it receives.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut dyn HostCarrier, Option<&mut PacketLog>) {
        (&mut *self.link, self.log.as_deref_mut())
    }

    /// Records packets for a process that watches, as `f` asks for.
    pub(super) fn record<R>(&mut self, now: Instant, f: impl FnOnce(&mut PacketLog) -> R) -> R {
        let result = f(self.log.get_or_insert_default());
        self.expire_log(now);
        result
    }

    /// Records nothing any more when no process watches any more.
    fn expire_log(&mut self, now: Instant) {
        self.log.iter_mut().for_each(|log| log.expire(now));
        self.log.take_if(|log| log.is_empty());
    }

    /// The carrier has taken the packet of the fast path, at the time that `now` tells.
    #[inline]
    pub(super) fn note_single(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(log) = &mut self.log
            && !log.is_full()
        {
            cold_path();
            log.sent_single(now(), self.single.get());
        }
    }

    /// The streams of the device, if it speaks iWARP.
    pub(crate) fn streams(&mut self) -> Option<&mut Streams> {
        self.streams.as_deref_mut()
    }

    /// The process is about to end: layers write what they buffer.
    pub(super) fn prepare_exit(&mut self) {
        let _ = self.link.control(Control::Exit);
        self.streams().into_iter().for_each(Streams::prepare_exit);
    }

    /// Replaces the link and returns the old one. Waiting trains stay.
    pub(super) fn replace(&mut self, link: Box<dyn HostCarrier>) -> Box<dyn HostCarrier> {
        std::mem::replace(&mut self.link, link)
    }

    /// Whether no train waits.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Notes, for the threads that look at the link next, whether the engine waits for a turn.
    /// Returns whether it has delivered anything inside the device since the last call.
    #[inline]
    pub(super) fn note_engine(&mut self, state: &State) -> bool {
        self.engine_waits = state.engine.has_held_acks() || state.engine.awaits_revocation();
        let inside = state.engine.loopback_pkts();
        let has_delivered = inside != self.inside;
        if has_delivered {
            self.inside = inside;
            self.link.note_inside();
        }
        has_delivered
    }

    /// Whether there is no immediate work, as far as that is known without reading the clock.
    #[inline]
    pub(super) fn has_no_work(&self) -> bool {
        self.is_clear() && !self.engine_waits && self.link.is_quiet()
    }

    /// Where the engine puts a packet of its fast path, and the link to show it to.
    #[inline]
    pub(super) fn single(&mut self) -> (&mut SingleBuf, &mut dyn HostCarrier) {
        (&mut self.single, &mut *self.link)
    }

    /// Sends the packet of the fast path. If the link does not take it by itself, it waits as a
    /// train, in front of all that follow.
    #[inline]
    pub(super) fn send_waiting_single(&mut self, now: impl FnOnce() -> Instant) {
        if self.link.send_single(self.single.get()) {
            self.note_single(now);
        } else {
            cold_path();
            self.waiting.push(self.single.get().to_train());
        }
    }

    /// Lets `next` append trains, as long as it has some and the link wants them together.
    pub(super) fn fill(&mut self, mut next: impl FnMut(&LinkCaps, &mut Vec<Train>) -> bool) {
        let caps = self.link.caps();
        while self.waiting.len() < TX_BATCH
            && (self.waiting.is_empty() || self.link.wants_more(&self.waiting))
            && next(&caps, &mut self.waiting)
        {}
    }

    /// Sends the waiting trains. Returns whether at least one left: if not, the link is full. On an
    /// error, all waiting trains count as lost.
    pub(super) fn flush(&mut self, now: Instant) -> io::Result<bool> {
        let all = self.waiting.len();
        let sent = self.link.send(now, &self.waiting);
        let gone = *sent.as_ref().unwrap_or(&all);
        if let Some(log) = &mut self.log {
            cold_path();
            self.waiting.iter().take(gone).for_each(|train| log.sent(now, train));
            self.expire_log(now);
        }
        self.waiting.drain(..gone);
        self.gone += gone as u64;
        sent.map(|sent| sent > 0)
    }

    /// How many trains the engine has given out so far.
    pub(super) fn given(&self) -> u64 {
        self.gone + self.waiting.len() as u64
    }

    /// How many of the first `given` trains still wait.
    pub(super) fn waiting_of(&self, given: u64) -> usize {
        given.saturating_sub(self.gone).min(self.waiting.len() as u64) as usize
    }

    /// Discards those of the first `given` trains that still wait and would read memory.
    pub(super) fn discard_reads(&mut self, given: u64) {
        let (mut left, before) = (self.waiting_of(given), self.waiting.len());
        self.waiting.retain(|train| {
            let is_old = left > 0;
            left = left.saturating_sub(1);
            !is_old || !train.payload.is_memory()
        });
        self.gone += (before - self.waiting.len()) as u64;
    }

    /// When a thread must drive the link again, if nothing else happens.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let full = (!self.is_clear()).then(|| now.plus_nanos(FULL_NS));
        let own = self.link.poll_timeout();
        let of_streams = self.streams.as_ref().and_then(|streams| streams.deadline(now));
        own.into_iter().chain(full).chain(of_streams).min()
    }
}

impl Deref for LinkSide {
    type Target = dyn HostCarrier;

    fn deref(&self) -> &Self::Target {
        &*self.link
    }
}

impl DerefMut for LinkSide {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.link
    }
}

impl fmt::Debug for LinkSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSide").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// The lock of a link. Dropping it releases the lock, and then wakes consumers.
#[derive(Debug)]
pub(super) struct OwnedLink<'a> {
    // The order matters: fields are dropped from the first to the last.
    link: LinkGuard<'a>,
    wakes: WakeOnDrop<'a>,
}

impl<'a> OwnedLink<'a> {
    pub(super) fn new(link: LinkGuard<'a>, wakes: &'a Wakes) -> Self {
        Self { link, wakes: WakeOnDrop::new(wakes) }
    }

    /// Releases the lock, and the engine's if the caller has it. Consumers are woken when the
    /// result is dropped.
    #[inline]
    pub(super) fn unlock(self, state: Option<StateGuard<'a>>) -> WakeOnDrop<'a> {
        match state {
            Some(state) => self.link.unlock_both(state),
            None => drop(self.link),
        }
        self.wakes
    }
}

impl Deref for OwnedLink<'_> {
    type Target = LinkSide;

    fn deref(&self) -> &LinkSide {
        &self.link
    }
}

impl DerefMut for OwnedLink<'_> {
    fn deref_mut(&mut self) -> &mut LinkSide {
        &mut self.link
    }
}
