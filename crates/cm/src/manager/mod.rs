//! The manager: connections, listeners, and the queues in and out.

mod calls;
mod receive;

use alloc::collections::VecDeque;
use core::fmt;

use feroce_train::Instant;
use feroce_wire::cm::CommId;

use crate::config::Config;
use crate::conn::{Conn, Times};
use crate::counters::Counters;
use crate::early::EarlyOnes;
use crate::event::Event;
use crate::listen::Listeners;
use crate::out::{Bucket, Out, Transmit};
use crate::params::{ConnId, Peer, QpPlan};
use crate::retry::code_ns;
use crate::table::Table;

/// Why a call of the consumer is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallError {
    /// There is no such connection any more.
    Unknown,
    /// Not in the state that the connection is in.
    WrongState,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the connection does not exist any more",
            Self::WrongState => "not in the present state of the connection",
        })
    }
}

impl core::error::Error for CallError {}

/// Communication management of one port.
///
/// Four kinds of methods: `handle_…` takes what happened, `poll_…` gives what is to be done, and
/// the rest are calls of the consumer and questions. See the [crate](crate) for the order.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    times: Times,
    rng: fastrand::Rng,
    /// Upper half of our transactions.
    agent: u32,
    table: Table,
    listeners: Listeners,
    early: EarlyOnes,
    strangers: Bucket,
    out: Out,
}

impl Manager {
    /// A manager without connections.
    pub fn new(config: Config) -> Self {
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let response_ns = code_ns(config.response_timeout);
        let request_ns = 2 * code_ns(config.packet_life_time) + response_ns;
        let times = Times {
            request_ns,
            response_ns,
            // As long as a peer like us may go on repeating itself.
            remember_ns: request_ns * (u64::from(config.max_retries) + 1),
            retries: config.max_retries,
            probe_ns: config.probe_ns,
            mra_timeout: config.mra_timeout & 31,
        };
        let out = Out {
            mads: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            max_queued: config.max_queued,
        };
        let strangers = Bucket::new(config.answers_per_second);
        let agent = rng.u32(..);
        Self {
            config,
            times,
            rng,
            agent,
            table: Table::default(),
            listeners: Listeners::default(),
            early: EarlyOnes::default(),
            strangers,
            out,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it did so far.
    pub fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// Connections that it knows, those that are only remembered included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether it knows no connection.
    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Name of the state that a connection is in.
    pub fn state(&self, conn: ConnId) -> Option<&'static str> {
        self.table.get(conn.0).map(Conn::name)
    }

    /// What the queue pair of a connection must be set to.
    pub fn plan(&self, conn: ConnId) -> Option<&QpPlan> {
        self.table.get(conn.0)?.ends().map(|ends| &ends.plan)
    }

    /// The next datagram to send.
    pub fn poll_mad(&mut self) -> Option<Transmit> {
        self.out.mads.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// When [`Manager::handle_timeout`] wants to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let conn = self.table.first_deadline().map(|(at, _)| at);
        conn.into_iter().chain(self.early.deadline()).min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.table.first_deadline()
            && at <= now
        {
            self.change(id, |conn, _, out| conn.on_timeout(now, out));
        }
        while let Some(early) = self.early.pop_due(now) {
            self.refuse_early(now, &early);
        }
    }

    /// Takes a connection out, lets it become another, and puts that back.
    fn change(&mut self, id: CommId, f: impl FnOnce(Conn, &Times, &mut Out) -> Option<Conn>) {
        let Some(conn) = self.table.take(id) else { return };
        if let Some(next) = f(conn, &self.times, &mut self.out) {
            self.put(next);
        }
    }

    /// Puts a connection back, and forgets the oldest if too many are only remembered.
    fn put(&mut self, conn: Conn) {
        self.table.put(conn);
        while let Some(id) = self.table.surplus(self.config.max_remembered) {
            self.out.counters.forgotten_early += 1;
            if let Some(Conn::TimeWait(oldest)) = self.table.take(id) {
                oldest.end(&mut self.out);
            }
        }
    }

    /// A number for a new connection.
    fn new_id(&mut self) -> CommId {
        loop {
            let mut id = self.rng.u32(..);
            if let Some(prefix) = self.config.id_prefix {
                id = u32::from(prefix) << 24 | id & 0x00ff_ffff;
            }
            if id != 0 && !self.table.contains(CommId(id)) {
                return CommId(id);
            }
        }
    }

    /// The transaction of messages that a connection starts.
    fn transaction(&self, id: CommId) -> u64 {
        u64::from(self.agent) << 32 | u64::from(id.0)
    }

    /// Whether a stranger may be answered.
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
