//! One turn of the driver: receive, answer, transmit, tell.
//!
//! A turn owns the link throughout. It takes the engine's lock to hand over what has arrived and to
//! take trains, and releases it before the link sends them: packets are sent and received while
//! other threads use the engine.

use std::hint::cold_path;
use std::io;

use feroce_train::Instant;

use super::link_side::LinkSide;
use super::locks::StateGuard;
use super::{Driver, Wakes};

/// Trains that one turn takes from the link before it answers them: at most 1 MB, so that the
/// answer to the first does not wait long, and a consumer gets its completions meanwhile.
const RX_BUDGET: usize = 16;

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

/// What a turn has done.
#[derive(Debug)]
pub(super) struct Driven<'a> {
    /// Whether there was anything to do; `None` if there was not, and therefore no deadline has
    /// changed.
    pub(super) busy: Option<bool>,
    /// When a thread must drive the engine again, if nothing else happens.
    pub(super) deadline: Option<Instant>,
    /// The engine's lock, if the turn ended with it: the caller releases it with the link's.
    pub(super) state: Option<StateGuard<'a>>,
}

impl Driver {
    /// Receives what has arrived, answers, transmits what is due, and delivers events to consumers.
    /// Errors of the link are logged, and what it cannot send counts as lost: the turn goes on, for
    /// the consumers of what has arrived and of what was sent.
    pub(super) fn turn(&self, link: &mut LinkSide, now: Instant, turn: Turn) -> Driven<'_> {
        if let Some(mut streams) = link.streams.take() {
            cold_path();
            let driven = self.stream_turn(link, &mut streams, now, turn);
            link.streams = Some(streams);
            return driven;
        }
        let (mut state, mut busy) = self.receive(link, now, turn);
        let may_wait = matches!(turn, Turn::Serve | Turn::Poll) && state.may_acks_wait(now);
        state.engine.hold_acks(may_wait);
        busy |= state.look_at_revocations(now);
        if state.engine.poll_timeout().is_some_and(|at| at <= now) {
            state = self.handle_timeout(state, link, now);
        } else if turn != Turn::Send && link.is_clear() && !state.is_agent_due(now) {
            // The common case of a polling thread: nothing arrived, or what arrived needs no
            // immediate answer.
            if !busy {
                return self.end_turn(state, link, None);
            }
            if state.agent.is_none() && !state.engine.has_events() {
                return self.end_turn(state, link, Some(true));
            }
        }
        loop {
            let more = state.drive_agent(now);
            let engine = &mut state.engine;
            link.fill(|caps, trains| engine.transmit_into(now, caps, trains));
            if link.is_clear() {
                state.engine.trains_read();
            }
            let told = state.tell();
            if link.is_clear() {
                if !told && !more {
                    return self.end_turn(state, link, Some(busy));
                }
                continue;
            }
            let is_last = !told && !more && !state.engine.has_more();
            let mut driven = self.end_turn(state, link, Some(true));
            driven.state = None;
            // A thread that finds the link full again has made no progress, and should back off.
            busy |= link.flush(now).unwrap_or_else(|e| warn_of_link(&self.wakes, &e));
            // Trains that the link has no room for wait, and so does the work after them.
            if is_last || !link.is_clear() {
                return Driven { busy: Some(busy), ..driven };
            }
            state = self.state();
        }
    }

    /// Receives what has arrived, for the turns that do. Returns whether anything has.
    #[inline]
    fn receive<'a>(
        &'a self,
        link: &mut LinkSide,
        now: Instant,
        turn: Turn,
    ) -> (StateGuard<'a>, bool) {
        let budget = match turn {
            Turn::Send => return (self.state(), false),
            Turn::Receive | Turn::Serve => RX_BUDGET,
            // With a budget of one, the link does not look for a second train, which saves a system
            // call.
            Turn::Poll => 1,
        };
        let mut state = None;
        let mut has_some = false;
        let (carrier, mut log) = link.parts();
        let received = carrier.receive(now, budget, &mut |train| {
            has_some = true;
            if let Some(log) = &mut log {
                cold_path();
                log.received(now, train);
            }
            state.get_or_insert_with(|| self.state()).engine.handle_rx(now, train);
            if budget > 1 {
                // The link may make a system call for the next train.
                state = None;
            }
        });
        let is_busy = match received {
            Ok(taken) => taken > 0,
            Err(e) => {
                warn_of_link(&self.wakes, &e);
                has_some
            }
        };
        (state.unwrap_or_else(|| self.state()), is_busy)
    }

    /// Does what is due. Whether a silent peer is a process of this host that has not read its
    /// packets yet, only the link knows.
    #[cold]
    fn handle_timeout<'a>(
        &'a self,
        mut state: StateGuard<'a>,
        link: &LinkSide,
        now: Instant,
    ) -> StateGuard<'a> {
        let mut silent = Vec::new();
        state.engine.handle_timeout_asking(now, &mut silent);
        if silent.is_empty() {
            return state;
        }
        drop(state);
        let has_unread: Vec<bool> =
            silent.iter().map(|peer| link.peer_has_unread(&peer.path, peer.dest)).collect();
        state = self.state();
        for (peer, has_unread) in silent.iter().zip(has_unread) {
            state.engine.handle_silence(now, peer, has_unread);
        }
        state
    }

    /// Notes in the link, for the threads that look at it next, what the engine waits for.
    #[inline]
    pub(super) fn end_turn<'a>(
        &self,
        state: StateGuard<'a>,
        link: &mut LinkSide,
        busy: Option<bool>,
    ) -> Driven<'a> {
        // What was delivered inside the device is progress as what has arrived is.
        let busy = if link.note_engine(&state) { Some(true) } else { busy };
        // If nothing was driven, no deadline has changed. A driver thread that is awake or idle
        // reads the deadline before it sleeps.
        let is_read = busy.is_some() && self.sleeper.may_sleep();
        let deadline = if is_read { state.deadline() } else { None };
        Driven { busy, deadline, state: Some(state) }
    }
}

/// Logs an error of the link. Returns false: nothing has happened.
#[cold]
pub(super) fn warn_of_link(wakes: &Wakes, e: &io::Error) -> bool {
    wakes.warn(format_args!("link: {e}"));
    false
}
