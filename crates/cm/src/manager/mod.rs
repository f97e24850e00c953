//! The manager: connections, listeners, and the queues of datagrams and events to take.

mod calls;
mod departure;
mod receive;
mod stale;

use alloc::collections::VecDeque;
use core::fmt;

use feroce_train::{Instant, PortAddr};
use feroce_wire::Prf;
use feroce_wire::cm::CommId;

use crate::config::Config;
use crate::conn::{Conn, Times};
use crate::counters::Counters;
use crate::early::EarlyOnes;
use crate::event::Event;
use crate::half_open::{Group, Opened};
use crate::listen::{ListenId, Listeners};
use crate::out::{Bucket, Out, Transmit};
use crate::params::{ConnId, Peer, QpPlan};
use crate::question::Questions;
use crate::retry::code_ns;
use crate::table::Table;

/// Why a call of the consumer is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallError {
    /// The connection does not exist any more.
    Unknown,
    /// The state of the connection does not permit the call.
    WrongState,
    /// The connection is established already.
    Established,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the connection does not exist any more",
            Self::WrongState => "not in the present state of the connection",
            Self::Established => "the connection is established already",
        })
    }
}

impl core::error::Error for CallError {}

/// The communication manager of one port.
///
/// Four kinds of methods: `handle_…` takes received datagrams and timeouts, `poll_…` returns
/// datagrams, events and the next deadline, and the rest are calls of the consumer and getters. See
/// the [crate](crate) for the order.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    times: Times,
    /// Source of communication IDs and first PSNs.
    random: Prf,
    /// How many numbers it has given.
    drawn: u64,
    /// How many requests of peers there have been.
    requests: u64,
    /// Upper half of our transaction IDs.
    agent: u32,
    table: Table,
    listeners: Listeners,
    early: EarlyOnes,
    questions: Questions,
    strangers: Bucket,
    out: Out,
}

impl Manager {
    /// A manager without connections.
    pub fn new(config: Config) -> Self {
        let response_ns = code_ns(config.response_timeout);
        let request_ns = 2 * code_ns(config.packet_life_time) + response_ns;
        let times = Times {
            request_ns,
            response_ns,
            // As long as a peer with the same configuration may retransmit its request.
            remember_ns: request_ns * (u64::from(config.max_retries) + 1),
            retries: config.max_retries,
            max_answers: config.max_answers,
            probe_ns: config.probe_ns,
            mra_timeout: config.mra_timeout & 31,
        };
        let out = Out {
            mads: VecDeque::new(),
            events: VecDeque::new(),
            silent: VecDeque::new(),
            counters: Counters::default(),
            max_queued: config.max_queued,
        };
        let strangers = Bucket::new(config.answers_per_second);
        let random = Prf::new(config.seed, u64::from_be_bytes(*b"cm   ids"));
        let mut manager = Self {
            config,
            times,
            random,
            drawn: 0,
            requests: 0,
            agent: 0,
            table: Table::default(),
            listeners: Listeners::default(),
            early: EarlyOnes::default(),
            questions: Questions::default(),
            strangers,
            out,
        };
        manager.agent = manager.random();
        manager
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// Number of connections, including those in time-wait and final answers that are kept.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Name of the state that a connection is in.
    pub fn state(&self, conn: ConnId) -> Option<&'static str> {
        self.table.get(conn.0).map(Conn::name)
    }

    /// The attributes that the queue pair of a connection must get.
    pub fn plan(&self, conn: ConnId) -> Option<&QpPlan> {
        self.table.get(conn.0)?.ends().map(|ends| &ends.plan)
    }

    /// Whether the manager has told a peer that a connection ends, and the peer has not confirmed
    /// it yet.
    pub fn awaits_confirmation(&self) -> bool {
        self.table.any(|conn| matches!(conn, Conn::DreqSent(_)))
    }

    /// The next datagram to send.
    pub fn poll_mad(&mut self) -> Option<Transmit> {
        self.out.mads.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The next peer that has not answered a connection request for three seconds, once for each
    /// request. The request goes on; this is for a person who wonders why nothing happens.
    pub fn poll_silence(&mut self) -> Option<Peer> {
        self.out.silent.pop_front()
    }

    /// When the owner must call [`Manager::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let conn = self.table.first_deadline().map(|(at, _)| at);
        let others = [self.early.deadline(), self.questions.deadline()];
        conn.into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Handles all deadlines up to `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout_asking(now, |_, _| false);
    }

    /// Handles all deadlines up to `now`. Before the manager repeats the reply of a connection
    /// whose RTU has not come, it asks `has_data` whether data has arrived on its queue pair: then
    /// the peer is ready, and its RTU was lost.
    pub fn handle_timeout_asking(
        &mut self,
        now: Instant,
        mut has_data: impl FnMut(ConnId, &QpPlan) -> bool,
    ) {
        while let Some((at, id)) = self.table.first_deadline()
            && at <= now
        {
            let waits_for_rtu = |conn: &&Conn| matches!(conn, Conn::RepSent(_));
            let ends = self.table.get(id).filter(waits_for_rtu).and_then(Conn::ends);
            if ends.is_some_and(|ends| has_data(ConnId(id), &ends.plan)) {
                // The connection waits for the RTU, so this succeeds.
                let _ = self.establish(ConnId(id));
                continue;
            }
            self.change(id, |conn, _, out| conn.on_timeout(now, out));
        }
        while let Some(early) = self.early.pop_due(now) {
            self.refuse_early(now, &early);
        }
        while let Some(id) = self.questions.due(now) {
            self.on_question_due(now, id);
        }
    }

    /// Takes a connection out of the table, applies a transition, and puts the new state back.
    fn change(&mut self, id: CommId, f: impl FnOnce(Conn, &Times, &mut Out) -> Option<Conn>) {
        let Some(conn) = self.table.take(id) else { return };
        if let Some(next) = f(conn, &self.times, &mut self.out) {
            self.put(next);
        }
    }

    /// Puts a connection into the table, and drops the oldest of those in time-wait or answered if
    /// there are more than `max_remembered`.
    fn put(&mut self, conn: Conn) {
        self.table.put(conn);
        while let Some(id) = self.table.surplus(self.config.max_remembered) {
            self.out.counters.forgotten_early += 1;
            if let Some(Conn::TimeWait(oldest)) = self.table.take(id) {
                oldest.end(&mut self.out);
            }
        }
    }

    /// A number that neither peers nor other consumers can predict.
    fn random(&mut self) -> u32 {
        self.drawn += 1;
        self.random.at(self.drawn) as u32
    }

    /// An unused communication ID for a new connection.
    fn new_id(&mut self) -> CommId {
        loop {
            let mut id = self.random();
            if let Some(prefix) = self.config.id_prefix {
                id = u32::from(prefix) << 24 | id & 0x00ff_ffff;
            }
            if id != 0 && !self.table.contains(CommId(id)) {
                return CommId(id);
            }
        }
    }

    /// Admits a request, and makes room for it if there are too many; `None` if there is no room.
    fn open(&mut self, source: PortAddr, listener: ListenId) -> Option<Opened> {
        let per_source = match self.table.is_confirmed(source) {
            true => usize::MAX,
            false => self.config.max_half_open_per_source,
        };
        for (group, most) in [
            (Group::From(source), per_source),
            (Group::Of(listener), self.config.max_half_open_per_listener),
            (Group::All, self.config.max_half_open),
        ] {
            if self.table.half_open().len(group) < most {
                continue;
            }
            let Some(oldest) = self.table.half_open().oldest_idle(group) else {
                self.out.counters.drop_half_open_full += 1;
                return None;
            };
            if let Some(Conn::RepSent(oldest)) = self.table.take(oldest) {
                oldest.evict(&mut self.out);
            }
        }
        self.requests += 1;
        Some(Opened { order: self.requests, listener })
    }

    /// The transaction ID of exchanges that this side of a connection starts.
    fn transaction(&self, id: CommId) -> u64 {
        u64::from(self.agent) << 32 | u64::from(id.0)
    }

    /// Whether the rate limit permits an answer to a message that belongs to no connection.
    fn may_answer(&mut self, now: Instant) -> bool {
        let may = self.strangers.take(now);
        self.out.counters.drop_answer_rate += u64::from(!may);
        may
    }

    /// The connection that a message names, if it comes from the peer of that connection.
    fn find(&mut self, id: CommId, from: Peer) -> Option<CommId> {
        match self.table.get(id) {
            Some(conn) if conn.peer() == from => Some(id),
            Some(_) => {
                self.out.counters.drop_wrong_peer += 1;
                None
            }
            None => None,
        }
    }
}
