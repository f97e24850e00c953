//! The state that the lock of a device protects, and one turn of the driver over it.

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

/// Why a thread drives the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// There may be work to transmit.
    Send,
    /// Packets may have arrived.
    Receive,
    /// Packets may have arrived, for a consumer that reads its memory between polls. It may answer
    /// in a moment, so acknowledgements may wait to travel with the answer.
    Serve,
    /// Packets may have arrived, for a consumer that polls all the time. It will answer or poll
    /// again in a moment, so acknowledgements may wait to travel with the answer.
    Poll,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) link: LinkSide,
    pub(crate) dispatch: Dispatch,
    /// Connection management, once a consumer uses it.
    pub(crate) cm: Option<Box<Service>>,
    /// Whether the interface can carry packets.
    pub(crate) is_up: bool,
    /// When to check the revocations that the engine waits for.
    pub(super) revocations: Looks,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("engine", &self.engine).finish_non_exhaustive()
    }
}

impl State {
    /// Receives what has arrived, answers, transmits what is due, and delivers events to consumers.
    /// Returns whether there was anything to do; `None` if there was not, and therefore no deadline
    /// has changed.
    pub(super) fn drive(&mut self, now: Instant, turn: Turn) -> io::Result<Option<bool>> {
        let mut busy = false;
        let (budget, may_wait) = match turn {
            Turn::Send => (0, false),
            Turn::Receive => (RX_BUDGET, false),
            Turn::Serve => (RX_BUDGET, self.may_acks_wait(now)),
            // With a budget of one, the link does not look for a second train, which saves a system
            // call.
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
            // The common case of a polling thread: nothing arrived, or what arrived needs no
            // immediate answer.
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
            // Trains that the link has no room for wait, and so does the work after them.
            if !told && (!more || !self.link.is_clear()) {
                return Ok(Some(busy));
            }
        }
    }

    /// Sends the single waiting request of a queue pair, as [`Engine::try_fast_path`] does. Returns
    /// whether it was sent, and when the engine must be driven again.
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

    /// Whether there is no immediate work, as far as that is known without reading the clock.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        let may_wait = !self.engine.has_held_acks() && !self.engine.awaits_revocation();
        self.link.is_clear() && may_wait && self.link.is_quiet()
    }

    /// Whether acknowledgements may wait, or keep waiting, for the answer of a consumer.
    #[inline]
    fn may_acks_wait(&self, now: Instant) -> bool {
        self.engine.acks_held_since().is_none_or(|since| now.nanos_since(since) < ANSWER_NS)
    }

    /// Whether a timer of connection management has expired.
    #[inline]
    fn is_cm_due(&self, now: Instant) -> bool {
        let due = self.cm.as_ref().and_then(|cm| cm.poll_timeout());
        due.is_some_and(|at| at <= now)
    }

    /// Delivers the events of the engine. Returns whether connection management has work now.
    pub(super) fn tell(&mut self) -> bool {
        let mut told = false;
        while let Some(event) = self.engine.poll_event() {
            told |= self.tell_cm(event);
            self.dispatch.deliver(event);
        }
        told
    }

    /// Passes an event to connection management, if it concerns it. Returns whether connection
    /// management has work now.
    fn tell_cm(&mut self, event: Event) -> bool {
        let Some(cm) = &mut self.cm else { return false };
        match event {
            Event::Async(AsyncEvent::CommEstablished(qpn)) => cm.on_established(qpn),
            Event::Async(AsyncEvent::GidChange { .. }) => cm.on_addresses(self.engine.gids()),
            _ => return false,
        }
        true
    }

    /// Transmits until the engine has nothing left or the link is full. Returns whether a train
    /// left.
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

    /// When a thread must drive the engine again, if nothing else happens.
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
