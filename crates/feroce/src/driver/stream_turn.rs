//! One turn of a device that speaks iWARP: receive, answer, transmit, tell.
//!
//! As with packets, the engine's lock is not held during system calls.

use std::hint::cold_path;
use std::io;
use std::ops::DerefMut;

use feroce_engine::Engine;
use feroce_link::tcp::{StreamId, TcpEvent};
use feroce_train::Instant;
use feroce_wire::Qpn;

use super::link_side::LinkSide;
use super::stream_order::StreamOrder;
use super::streams::Streams;
use super::turn::{Driven, Turn, warn_of_link};
use super::{Driver, State};

/// Bytes that one burst of a stream has, about: one system call sends them. Other streams wait
/// that long.
const BURST: usize = 128 << 10;

/// Bursts that one turn sends, so that what has arrived meanwhile does not wait long.
const MAX_BURSTS: usize = 32;

/// Rounds of receiving that one turn makes.
const MAX_ROUNDS: usize = 8;

/// What a turn does next.
enum Step {
    Orders(Vec<StreamOrder>),
    /// The bytes in `out` are to be sent; the stream may end behind them.
    Send(Qpn, StreamId, bool),
    Nothing,
}

impl Streams {
    /// Receives what has arrived. `lock` locks the engine for each event, and not in between. A
    /// glance looks where something most probably is.
    fn receive<S: DerefMut<Target = State>>(
        &mut self,
        now: Instant,
        is_glance: bool,
        lock: impl Fn() -> S,
    ) -> io::Result<usize> {
        let Self { tcp, records, faults, qps, of_qp, resumed, landing, .. } = self;
        // Records and faults are given the bytes themselves.
        let may_land = records.is_idle() && faults.is_none();
        let mut sink = |event: TcpEvent<'_>| {
            let mut state = lock();
            let stream = stream_of(&event);
            let Some(&qpn) = stream.and_then(|stream| qps.get(&stream)) else {
                let State { agent, engine, .. } = &mut *state;
                if let Some(agent) = agent {
                    agent.on_stream(engine, now, event);
                }
                return;
            };
            if on_attached(&mut state.engine, now, qpn, event) && may_land {
                landing.extend(stream);
            }
            let held = of_qp.get_mut(&qpn).is_some_and(|at| std::mem::take(&mut at.is_held));
            if held {
                // Whether there is room now, `next` finds out.
                resumed.push(qpn);
            }
        };
        let released = faults.as_mut().map_or(0, |faults| faults.release(now, &mut sink));
        let mut arrive = |event: TcpEvent<'_>| {
            records.event(now, &event);
            match faults {
                Some(faults) => faults.arrive(now, event, &mut sink),
                None => sink(event),
            }
        };
        let received = match is_glance {
            true => tcp.glance(now, &mut arrive),
            false => tcp.receive(now, &mut arrive),
        };
        self.landing.drain(..).for_each(|stream| self.tcp.ask_where(stream));
        self.obey_faults(now);
        self.records.handle_timeout(now);
        Ok(released + received?)
    }

    /// What to do next; called with the engine's lock.
    fn next(&mut self, state: &mut State, now: Instant) -> Step {
        state.drive_agent(now);
        while let Some(event) = state.engine.poll_stream_event() {
            if let Some(agent) = &mut state.agent {
                agent.on_stream_end(now, event);
            }
            // The engine may have forgotten the queue pair: ends the stream.
            self.resumed.push_ended(event.qpn);
        }
        let orders = state.agent.as_mut().map(|agent| agent.take_stream_orders());
        if let Some(orders) = orders.filter(|orders| !orders.is_empty()) {
            return Step::Orders(orders);
        }
        loop {
            let ready = || state.engine.poll_stream_ready(now);
            let Some(qpn) = self.resumed.next(ready) else { return Step::Nothing };
            let Some(attached) = self.of_qp.get_mut(&qpn) else { continue };
            // A stream that has ended does not wait for its peer, which may never read on: it is
            // finished behind the bytes that wait, and given up with them if they do not leave.
            if self.tcp.is_waiting(attached.stream) && !state.engine.has_stream_ended(qpn) {
                attached.is_held = true;
                continue;
            }
            self.out.clear();
            let is_over = state.engine.poll_stream(now, qpn, BURST, &mut self.out);
            if is_over || !self.out.is_empty() {
                return Step::Send(qpn, attached.stream, is_over);
            }
        }
    }
}

/// Something has happened to the stream of a queue pair. True: the engine would give its next bytes
/// a place in memory.
fn on_attached(engine: &mut Engine, now: Instant, qpn: Qpn, event: TcpEvent<'_>) -> bool {
    match event {
        TcpEvent::Data { bytes, .. } => return engine.handle_stream(now, qpn, bytes),
        TcpEvent::Where { scatter, .. } => engine.lend_scatter(now, qpn, scatter),
        TcpEvent::Landed { len, .. } => engine.handle_stream_landed(now, qpn, len),
        TcpEvent::Sent { bytes, .. } => engine.handle_stream_sent(now, qpn, bytes),
        TcpEvent::Ended { error, .. } => engine.handle_stream_end(now, qpn, error.is_some()),
        TcpEvent::Accepted { .. } | TcpEvent::Connected { .. } | TcpEvent::Failed { .. } => {}
    }
    false
}

fn stream_of(event: &TcpEvent<'_>) -> Option<StreamId> {
    match event {
        TcpEvent::Data { stream, .. }
        | TcpEvent::Where { stream, .. }
        | TcpEvent::Landed { stream, .. }
        | TcpEvent::Sent { stream, .. }
        | TcpEvent::Ended { stream, .. } => Some(*stream),
        TcpEvent::Accepted { .. } | TcpEvent::Connected { .. } | TcpEvent::Failed { .. } => None,
    }
}

impl Driver {
    /// Gives the device streams, before it has any queue pair.
    pub(crate) fn set_streams(&self, streams: Option<Streams>) {
        self.link().streams = streams.map(Box::new);
    }

    /// A turn of a device with streams: receives what has arrived, answers, sends what is due, and
    /// delivers events to consumers.
    pub(super) fn stream_turn(
        &self,
        link: &mut LinkSide,
        streams: &mut Streams,
        now: Instant,
        turn: Turn,
    ) -> Driven<'_> {
        let rounds = match turn {
            Turn::Send => 0,
            Turn::Poll => 1,
            Turn::Receive | Turn::Serve => MAX_ROUNDS,
        };
        let mut busy = self.transmit(streams, now, turn == Turn::Send);
        for _ in 0..rounds {
            let is_glance = turn == Turn::Poll;
            let received = streams.receive(now, is_glance, || self.state()).unwrap_or_else(|e| {
                warn_of_link(&self.wakes, &e);
                0
            });
            if received == 0 {
                break;
            }
            self.transmit(streams, now, true);
            busy = true;
            if !streams.tcp.has_more() || streams.has_more {
                break;
            }
        }
        let mut state = self.state();
        let mut is_due = state.look_at_revocations(now) || state.is_agent_due(now);
        if state.engine.poll_timeout().is_some_and(|at| at <= now) {
            state.engine.handle_timeout_asking(now, &mut Vec::new());
            is_due = true;
        }
        if is_due {
            cold_path();
            state.tell();
            drop(state);
            busy |= self.transmit(streams, now, true);
            state = self.state();
        } else if !busy && turn == Turn::Poll {
            // The common case of a polling thread: nothing has happened.
            return self.end_turn(state, link, None);
        }
        state.tell();
        self.end_turn(state, link, Some(busy))
    }

    /// Sends what queue pairs and the agent have to say, in turn. Returns whether anything was
    /// done.
    fn transmit(&self, streams: &mut Streams, now: Instant, is_due: bool) -> bool {
        if !is_due && !streams.has_more {
            return false;
        }
        streams.has_more = false;
        let mut busy = false;
        let mut sent: Option<(Qpn, usize)> = None;
        for _ in 0..MAX_BURSTS {
            let mut state = self.state();
            if let Some((qpn, bytes)) = sent.take() {
                state.engine.handle_stream_sent(now, qpn, bytes);
            }
            let step = streams.next(&mut state, now);
            state.tell();
            drop(state);
            match step {
                Step::Nothing => return busy,
                Step::Orders(orders) => {
                    orders.into_iter().for_each(|order| streams.execute(now, order));
                }
                Step::Send(qpn, stream, is_over) => {
                    let taken = streams.send(now, stream);
                    sent = (taken > 0).then_some((qpn, taken));
                    if is_over {
                        streams.finish(now, stream);
                    }
                }
            }
            busy = true;
        }
        if let Some((qpn, bytes)) = sent {
            self.state().engine.handle_stream_sent(now, qpn, bytes);
        }
        streams.has_more = true;
        true
    }
}
