//! What a consumer that posts does for the device.

use std::hint::cold_path;

use feroce_engine::{DirectPosted, SendWr};
use feroce_train::{Instant, Single};
use feroce_wire::Qpn;

use super::Driver;
use super::link_side::LinkSide;
use super::locks::StateGuard;
use super::turn::Turn;

impl Driver {
    /// Transmits posted work whose doorbell was rung. If another thread owns the link, it answers
    /// the doorbell instead.
    #[inline]
    pub(crate) fn kick(&self) {
        if self.is_bell_taken() {
            return;
        }
        if let Some(link) = self.try_link() {
            let now = self.now();
            self.pollers.note(now);
            if self.finish(link, now, Turn::Send) {
                // The peer may answer at once.
                self.backoff.reset();
            }
        }
    }

    /// Executes a request at once, if [`Engine::try_direct`] can and no other thread uses the
    /// engine or waits for it.
    #[inline]
    pub(crate) fn try_direct(&self, qpn: Qpn, wr: &SendWr) -> bool {
        let Some(mut state) = self.try_state_to_copy() else { return false };
        let is_done = state.engine.try_direct(|| self.now(), qpn, wr);
        state.tell();
        drop(state);
        self.wakes.run();
        is_done
    }

    /// The engine, for a thread that copies payload under its lock.
    ///
    /// A consumer that posts one long request after the other may never drive the device, because
    /// each is complete at once. Another thread does it then, for queue pairs whose requests go by
    /// packets, and needs the lock for each packet: it must not wait for many copies each time, or
    /// the requests of those queue pairs run into their timeouts.
    #[inline]
    pub(super) fn try_state_to_copy(&self) -> Option<StateGuard<'_>> {
        if self.locks.is_inner_awaited() {
            cold_path();
            return None;
        }
        self.try_state()
    }

    /// Executes posted requests at once, as far as [`Engine::try_direct_posted`] can, unless
    /// another thread uses the engine or waits for it. False: the doorbell must be rung for the
    /// others.
    pub(crate) fn try_direct_posted(&self, qpn: Qpn) -> bool {
        loop {
            let Some(mut state) = self.try_state_to_copy() else { return false };
            let done = state.engine.try_direct_posted(|| self.now(), qpn);
            state.tell();
            drop(state);
            self.wakes.run();
            match done {
                DirectPosted::All => return true,
                DirectPosted::Some => {}
                DirectPosted::UpToOne => return false,
            }
        }
    }

    /// Sends the single waiting request of a queue pair, if [`Engine::try_fast_path`] can and no
    /// other thread owns the link.
    #[inline(never)]
    pub(crate) fn fast_path(&self, qpn: Qpn) -> bool {
        let Some((mut link, state)) = self.try_both() else { return false };
        let Sent { is_sent, deadline, state } = self.send_single(&mut link, state, qpn);
        if is_sent && !link.is_clear() {
            // The packet waits for the link.
            cold_path();
            drop(state);
            self.finish(link, self.now(), Turn::Send);
            return true;
        }
        let wakes = link.unlock(state);
        if is_sent {
            self.plan(deadline);
            self.backoff.reset();
        }
        self.answer_bell();
        drop(wakes);
        is_sent
    }

    /// Sends the single waiting request of a queue pair, as [`Engine::try_fast_path`] makes it.
    #[inline]
    fn send_single<'a>(
        &self,
        link: &mut LinkSide,
        mut state: StateGuard<'a>,
        qpn: Qpn,
    ) -> Sent<'a> {
        if !link.is_clear() {
            return Sent { is_sent: false, deadline: None, state: Some(state) };
        }
        let mut is_published = false;
        let (packet, carrier) = link.single();
        // A process of this host sees the packet before the engine has recorded it, so that the
        // rest delays this thread only.
        let show = |packet: Single<'_>| is_published = carrier.publish_single(packet);
        if !state.engine.try_fast_path(qpn, packet, show, || self.now()) {
            return Sent { is_sent: false, deadline: None, state: Some(state) };
        }
        // A driver thread that is awake or idle reads the deadline before it sleeps.
        let deadline = self.sleeper.may_sleep().then(|| state.engine.poll_timeout()).flatten();
        link.note_engine(&state);
        if is_published {
            link.note_single(|| self.now());
            link.wake_receiver();
            return Sent { is_sent: true, deadline, state: Some(state) };
        }
        // The link makes a system call.
        drop(state);
        link.send_waiting_single(|| self.now());
        Sent { is_sent: true, deadline, state: None }
    }
}

/// What became of a request on the fast path.
struct Sent<'a> {
    /// Whether it was sent, or waits as a train for the link.
    is_sent: bool,
    /// When the engine must be driven again.
    deadline: Option<Instant>,
    /// The engine's lock, unless it was released for the link.
    state: Option<StateGuard<'a>>,
}
