//! What the lock of a device protects, and one turn of the driver over it.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use feroce_engine::{AsyncEvent, Engine, Event};
use feroce_train::{Instant, Path, Single};
use feroce_wire::Qpn;

use super::link_side::LinkSide;
use super::revocation::Looks;
use super::{Dispatch, WakeOnDrop};
use crate::cm::Service;

/// Trains that one turn of the driver takes from the link before it answers them.
const RX_BUDGET: usize = 16;

/// How long acknowledgements wait for the answer of a consumer.
const ANSWER_NS: u64 = 3_000;

/// Why the driver is driven.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// There may be something to send.
    Send,
    /// Something may have arrived.
    Receive,
    /// Something may have arrived, for a consumer that looks at its memory between polls. It may
    /// answer in a moment, so that acknowledgements may wait for that.
    Serve,
    /// Something may have arrived, for a consumer that polls all the time. It will answer or poll
    /// again in a moment, so that acknowledgements may wait for that.
    Poll,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) link: LinkSide,
    pub(crate) dispatch: Dispatch,
    /// Connection management, once a consumer wants it.
    pub(crate) cm: Option<Box<Service>>,
    /// Whether the interface can carry packets.
    pub(crate) is_up: bool,
    /// When to look at the revocations that the engine waits for.
    pub(super) revocations: Looks,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl State {
    /// Takes what has arrived, answers, sends what is due, and tells consumers. Says whether
    /// there was anything to do; `None` if that is certain without a closer look.
    pub(super) fn drive(&mut self, now: Instant, turn: Turn) -> io::Result<Option<bool>> {
        let mut busy = false;
        let (budget, may_wait) = match turn {
            Turn::Send => (0, false),
            Turn::Receive => (RX_BUDGET, false),
            Turn::Serve => (RX_BUDGET, self.may_acks_wait(now)),
            // Not to look whether there is a second train saves a system call.
            Turn::Poll => (1, self.may_acks_wait(now)),
        };
        self.engine.hold_acks(may_wait);
        if budget > 0 {
            let (engine, link) = (&mut self.engine, &mut self.link);
            busy = link.receive(now, budget, &mut |train| engine.handle_rx(now, train))? > 0;
        }
        busy |= self.revocations.look(&mut self.engine, now);
        if self.engine.poll_timeout().is_some_and(|at| at <= now) {
            let link = &self.link;
            let mut peer_has_unread = |path: &Path, qpn: Qpn| link.peer_has_unread(path, qpn);
            self.engine.handle_timeout_unless(now, &mut peer_has_unread);
        } else if turn != Turn::Send && self.link.is_clear() && !self.is_cm_due(now) {
            // A polling thread mostly finds this, or what needs no answer at once.
            if !busy {
                return Ok(None);
            }
            if self.cm.is_none() && !self.engine.has_events() {
                return Ok(Some(true));
            }
        }
        loop {
            let more = self.cm.as_mut().is_some_and(|cm| cm.drive(&mut self.engine, now));
            busy |= self.transmit(now)?;
            let told = self.tell();
            // What the link is too full for waits, and so does what would come after it.
            if !told && (!more || !self.link.is_clear()) {
                return Ok(Some(busy));
            }
        }
    }

    /// Sends the one request of a queue pair that waits, as [`Engine::try_fast_path`] does. Says
    /// when the engine must be driven again.
    #[inline]
    pub(super) fn fast_path(
        &mut self,
        now: impl FnOnce() -> Instant,
        qpn: Qpn,
    ) -> (bool, Option<Instant>) {
        if !self.link.is_clear() {
            return (false, None);
        }
        let link = &mut self.link;
        let mut send = |packet: Single<'_>| link.send_single(packet);
        let is_sent = self.engine.try_fast_path(now, qpn, &mut send);
        (is_sent, self.engine.poll_timeout())
    }

    /// Whether there is nothing to do at once, as far as can be told without the time.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        let may_wait = !self.engine.has_held_acks() && !self.engine.awaits_revocation();
        self.link.is_clear() && may_wait && self.link.is_quiet()
    }

    /// Whether acknowledgements may wait, or wait on, for the answer of a consumer.
    #[inline]
    fn may_acks_wait(&self, now: Instant) -> bool {
        self.engine.acks_held_since().is_none_or(|since| now.nanos_since(since) < ANSWER_NS)
    }

    /// Whether it is time for connection management to do something by itself.
    #[inline]
    fn is_cm_due(&self, now: Instant) -> bool {
        let due = self.cm.as_ref().and_then(|cm| cm.poll_timeout());
        due.is_some_and(|at| at <= now)
    }

    /// Passes on what the engine tells. True if connection management has something to do now.
    pub(super) fn tell(&mut self) -> bool {
        let mut told = false;
        while let Some(event) = self.engine.poll_event() {
            told |= self.tell_cm(event);
            self.dispatch.deliver(event);
        }
        told
    }

    /// What connection management must know of the adapter. True if it has something to do now.
    fn tell_cm(&mut self, event: Event) -> bool {
        let Some(cm) = &mut self.cm else { return false };
        match event {
            Event::Async(AsyncEvent::CommEstablished(qpn)) => cm.on_established(qpn),
            Event::Async(AsyncEvent::GidChange { .. }) => cm.on_addresses(self.engine.gids()),
            _ => return false,
        }
        true
    }

    /// Sends until the engine has nothing left or the link is full.
    fn transmit(&mut self, now: Instant) -> io::Result<bool> {
        let mut busy = false;
        loop {
            let engine = &mut self.engine;
            self.link.fill(|caps, trains| engine.transmit_into(now, caps, trains));
            if self.link.is_clear() {
                self.engine.trains_read();
                return Ok(busy);
            }
            // A thread that finds the link full again has made no progress, and should back off.
            busy |= self.link.flush(now)?;
            if !self.link.is_clear() {
                return Ok(busy);
            }
        }
    }

    /// When this must be driven again, if nothing else happens.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let cm = self.cm.as_ref().and_then(|cm| cm.poll_timeout());
        let revocations = self.revocations.deadline(&self.engine);
        let timers = [self.engine.poll_timeout(), self.link.deadline(now), cm, revocations];
        timers.into_iter().flatten().min()
    }
}

/// The lock of a device. Dropping it releases the lock, and then wakes consumers.
#[derive(Debug)]
pub(super) struct Owned<'a> {
    // The order matters: fields are dropped from the first to the last.
    pub(super) state: MutexGuard<'a, State>,
    pub(super) wakes: WakeOnDrop<'a>,
}

impl<'a> Owned<'a> {
    /// Releases the lock. Consumers are woken when the result is dropped.
    pub(super) fn unlock(self) -> WakeOnDrop<'a> {
        drop(self.state);
        self.wakes
    }
}

impl Deref for Owned<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Owned<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
