//! The link of a device and the trains that wait for it. The engine knows neither.

use std::io;
use std::ops::{Deref, DerefMut};

use feroce_local::HostCarrier;
use feroce_train::{Instant, LinkCaps, Train};

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
}

impl LinkSide {
    pub(super) fn new(link: Box<dyn HostCarrier>) -> Self {
        Self { link, waiting: Vec::new() }
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
        self.waiting.drain(..gone);
        sent.map(|sent| sent > 0)
    }

    /// When a thread must drive the link again, if nothing else happens.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let full = (!self.is_clear()).then(|| now.plus_nanos(FULL_NS));
        let own = self.link.poll_timeout();
        own.into_iter().chain(full).min()
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
