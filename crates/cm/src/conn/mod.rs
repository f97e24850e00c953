//! The states of a connection, one type each. A transition consumes the old state.
//!
//! ```text
//!        connect                                    REQ, listener found
//!           |                                              |
//!           v                                              v
//!     +-----------+                                  +-----------+
//!     |  ReqSent  |  repeats REQ                     |  ReqRcvd  |  MRA to duplicates
//!     +-----------+                                  +-----------+
//!           | REP                             accept |     | reject, destroy
//!           v                                        v     +---------> Answered
//!     +-----------+                                  +-----------+
//!     |  RepRcvd  |  MRA to duplicates               |  RepSent  |  repeats REP
//!     +-----------+                                  +-----------+
//!           | ready: RTU                 RTU, establish |   |
//!           v                                           v   | DREQ
//!     +---------------------------------------------------+ |
//!     |                    Established                    | |
//!     +---------------------------------------------------+ |
//!           | disconnect                       | DREQ, REJ  |
//!           v                                  v            v
//!     +-----------+   DREP, DREQ, REJ,   +----------------------+
//!     |  DreqSent |--------------------->|       TimeWait       |---> gone: TimewaitExit
//!     +-----------+   no answer          +----------------------+
//!       repeats DREQ                       DREP to duplicates
//! ```
//!
//! REJ ends every state before Established (event: rejected), and so does the timeout after the
//! last retry (event: unreachable). `Answered` is a REJ or a SIDR_REP that the manager keeps for a
//! while, so that duplicates of the request get the same answer.

mod active;
mod open;
mod passive;
mod sidr;
mod teardown;

use alloc::boxed::Box;

use feroce_train::{Instant, PortAddr};
use feroce_wire::Qpn;
use feroce_wire::cm::{CmMessage, CommId, Rej, RejReason, Stage};

pub(crate) use active::{RepRcvd, ReqSent};
pub(crate) use open::Established;
pub(crate) use passive::{RepSent, ReqRcvd};
pub(crate) use sidr::{SidrRcvd, SidrSent, empty_sidr_rep};
pub(crate) use teardown::{Answered, DreqSent, TimeWait, answer_dreq};

use crate::event::Event;
use crate::half_open::{Entry, Opened};
use crate::out::Out;
use crate::params::{ConnId, Peer, QpPlan};
use crate::retry::Retry;

/// State that is common to all states of a connection.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) id: CommId,
    /// The peer's communication ID; zero until REQ or REP has told it.
    pub(crate) remote_id: CommId,
    pub(crate) peer: Peer,
    /// Transaction ID of the messages that set the connection up.
    pub(crate) transaction: u64,
    /// Transaction ID of the messages with which this side starts an exchange (DREQ).
    pub(crate) own_transaction: u64,
    pub(crate) plan: QpPlan,
    /// Our queue pair, as REQ or REP tells the peer; DREQ of the peer names it.
    pub(crate) qpn: Option<Qpn>,
    /// Messages that the manager may still send unasked to a peer that has never answered; no limit
    /// once it has.
    pub(crate) answers_left: Option<u8>,
    /// On the passive side, when the request arrived.
    pub(crate) opened: Option<Opened>,
    /// The consumer destroyed the connection, so the manager reports no more events of it.
    pub(crate) is_silent: bool,
}

impl Ends {
    pub(crate) fn conn(&self) -> ConnId {
        ConnId(self.id)
    }

    /// The peer has answered, so it is at its address.
    pub(crate) fn confirm(&mut self) {
        self.answers_left = None;
    }

    /// Whether the manager may send one more message unasked. The address of a peer that has never
    /// answered may be that of a victim.
    pub(crate) fn may_send(&mut self, out: &mut Out) -> bool {
        match &mut self.answers_left {
            None => true,
            Some(0) => {
                out.counters.answers_withheld += 1;
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Retransmits a message, if the peer has answered before or not too many were sent.
    pub(crate) fn repeat(&mut self, retry: &Retry, out: &mut Out) {
        if self.may_send(out) {
            out.repeat(self.peer, &retry.bytes);
        }
    }

    /// A REJ of this connection.
    pub(crate) fn rej(&self, stage: Stage, reason: RejReason) -> Rej {
        Rej { local_id: self.id, remote_id: self.remote_id, ..rej(stage, reason) }
    }

    /// Reports to the consumer that the peer rejected the connection.
    pub(crate) fn rejected(&self, rej: &Rej, out: &mut Out) {
        out.tell(self.is_silent, Event::Rejected { conn: self.conn(), rej: Box::new(*rej) });
    }

    /// Sends REJ.
    pub(crate) fn refuse(&mut self, stage: Stage, reason: RejReason, out: &mut Out) {
        if !self.may_send(out) {
            return;
        }
        out.send(self.peer, self.transaction, &CmMessage::Rej(self.rej(stage, reason)));
    }
}

/// A REJ without communication IDs.
pub(crate) fn rej(stage: Stage, reason: RejReason) -> Rej {
    Rej {
        local_id: CommId(0),
        remote_id: CommId(0),
        stage,
        info_len: 0,
        reason,
        info: [0; 72],
        private_data: [0; 148],
    }
}

/// A connection in any state.
#[derive(Debug)]
pub(crate) enum Conn {
    ReqSent(ReqSent),
    RepRcvd(RepRcvd),
    ReqRcvd(ReqRcvd),
    RepSent(RepSent),
    Established(Established),
    DreqSent(DreqSent),
    TimeWait(TimeWait),
    Answered(Answered),
    SidrSent(SidrSent),
    SidrRcvd(SidrRcvd),
}

/// Which limit of the table a connection counts against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// None, or those of [`crate::half_open`].
    Present,
    /// The connection is over; only its time-wait or its final answer is kept.
    Remembered,
}

impl Conn {
    pub(crate) fn id(&self) -> CommId {
        match self {
            Self::ReqSent(s) => s.ends.id,
            Self::RepRcvd(s) => s.ends.id,
            Self::ReqRcvd(s) => s.ends.id,
            Self::RepSent(s) => s.ends.id,
            Self::Established(s) => s.ends.id,
            Self::DreqSent(s) => s.ends.id,
            Self::TimeWait(s) => s.ends.id,
            Self::Answered(s) => s.id,
            Self::SidrSent(s) => s.id,
            Self::SidrRcvd(s) => s.id,
        }
    }

    pub(crate) fn peer(&self) -> Peer {
        match self {
            Self::Answered(s) => s.peer,
            Self::SidrSent(s) => s.peer,
            Self::SidrRcvd(s) => s.peer,
            _ => self.ends().map_or_else(Peer::default, |ends| ends.peer),
        }
    }

    /// The state that connections have and SIDR requests do not.
    pub(crate) fn ends(&self) -> Option<&Ends> {
        Some(match self {
            Self::ReqSent(s) => &s.ends,
            Self::RepRcvd(s) => &s.ends,
            Self::ReqRcvd(s) => &s.ends,
            Self::RepSent(s) => &s.ends,
            Self::Established(s) => &s.ends,
            Self::DreqSent(s) => &s.ends,
            Self::TimeWait(s) => &s.ends,
            Self::Answered(_) | Self::SidrSent(_) | Self::SidrRcvd(_) => return None,
        })
    }

    /// The peer's identifier of the connection, once it is known.
    pub(crate) fn remote_key(&self) -> Option<RemoteKey> {
        match self {
            Self::Answered(s) => Some(s.key),
            Self::SidrRcvd(s) => Some(s.key()),
            Self::SidrSent(_) | Self::ReqSent(_) => None,
            _ => self.ends().map(|e| (Kind::Connection, e.peer.remote, e.remote_id)),
        }
    }

    /// The queue pair of the peer that the connection uses.
    pub(crate) fn qp_key(&self) -> Option<(PortAddr, Qpn)> {
        match self {
            // The peer may use its queue pair for a new connection before our time-wait is over.
            Self::TimeWait(_) => None,
            _ => self.ends().and_then(|e| Some((e.peer.remote, e.plan.remote_qpn?))),
        }
    }

    /// When the connection needs a call of [`Conn::on_timeout`], if no message arrives before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::ReqSent(s) => Some(s.retry.deadline),
            Self::RepSent(s) => Some(s.retry.deadline),
            Self::DreqSent(s) => Some(s.retry.deadline),
            Self::TimeWait(s) => Some(s.until),
            Self::Answered(s) => Some(s.until),
            Self::SidrSent(s) => Some(s.retry.deadline),
            Self::RepRcvd(_) | Self::ReqRcvd(_) | Self::Established(_) | Self::SidrRcvd(_) => None,
        }
    }

    pub(crate) fn class(&self) -> Class {
        match self {
            Self::TimeWait(_) | Self::Answered(_) => Class::Remembered,
            _ => Class::Present,
        }
    }

    /// How it counts against the limits of half-open requests.
    pub(crate) fn half_open(&self) -> Option<Entry> {
        let (opened, is_idle) = match self {
            Self::ReqRcvd(s) => (s.ends.opened?, false),
            Self::RepSent(s) => (s.ends.opened?, s.ends.answers_left == Some(0)),
            Self::SidrRcvd(s) => (s.opened, false),
            _ => return None,
        };
        Some(Entry { id: self.id(), source: self.peer().remote, opened, is_idle })
    }

    /// Whether the peer has proved that it is at its address, and the connection lasts.
    pub(crate) fn is_confirmed(&self) -> bool {
        matches!(self, Self::RepRcvd(_) | Self::Established(_))
    }

    /// Name of the state.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::ReqSent(_) => "ReqSent",
            Self::RepRcvd(_) => "RepRcvd",
            Self::ReqRcvd(_) => "ReqRcvd",
            Self::RepSent(_) => "RepSent",
            Self::Established(_) => "Established",
            Self::DreqSent(_) => "DreqSent",
            Self::TimeWait(_) => "TimeWait",
            Self::Answered(_) => "Answered",
            Self::SidrSent(_) => "SidrSent",
            Self::SidrRcvd(_) => "SidrRcvd",
        }
    }

    /// [`Conn::deadline`] has passed.
    pub(crate) fn on_timeout(self, now: Instant, out: &mut Out) -> Option<Self> {
        match self {
            Self::ReqSent(s) => s.on_timeout(now, out).map(Self::ReqSent),
            Self::RepSent(s) => s.on_timeout(now, out).map(Self::RepSent),
            Self::DreqSent(s) => Some(s.on_timeout(now, out)),
            Self::TimeWait(s) => {
                s.end(out);
                None
            }
            Self::Answered(_) => None,
            Self::SidrSent(s) => s.on_timeout(now, out).map(Self::SidrSent),
            Self::RepRcvd(_) | Self::ReqRcvd(_) | Self::Established(_) | Self::SidrRcvd(_) => {
                Some(self)
            }
        }
    }

    /// The consumer destroys the connection. The manager sends the peer the REJ or DREQ that ends
    /// it there.
    pub(crate) fn on_destroy(self, now: Instant, times: &Times, out: &mut Out) -> Option<Self> {
        match self {
            Self::ReqSent(s) => {
                s.give_up(out);
                None
            }
            Self::RepRcvd(mut s) => {
                s.ends.refuse(Stage::Rep, RejReason::CONSUMER, out);
                None
            }
            Self::ReqRcvd(s) => {
                let rej = s.ends.rej(Stage::Req, RejReason::CONSUMER);
                Some(Self::Answered(s.reject(now, rej, times, out)))
            }
            Self::RepSent(mut s) => {
                s.ends.refuse(Stage::Other, RejReason::CONSUMER, out);
                None
            }
            Self::Established(s) => {
                let mut next = s.disconnect(now, times, out);
                next.ends.is_silent = true;
                Some(Self::DreqSent(next))
            }
            Self::DreqSent(mut s) => {
                s.ends.is_silent = true;
                Some(Self::DreqSent(s))
            }
            Self::TimeWait(mut s) => {
                s.ends.is_silent = true;
                Some(Self::TimeWait(s))
            }
            Self::SidrSent(_) => None,
            Self::SidrRcvd(s) => Some(Self::Answered(s.refuse(now, times, out))),
            Self::Answered(_) => Some(self),
        }
    }
}

/// The number space of an identifier: a peer numbers its connections and its SIDR requests
/// separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    Connection,
    Sidr,
}

/// How a peer identifies a connection or a SIDR request.
pub(crate) type RemoteKey = (Kind, PortAddr, CommId);

/// Timeouts, derived from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Retry interval of DREQ; that of REQ depends on the packet life time of its path.
    pub(crate) request_ns: u64,
    /// How long the peer may take to answer: the retry interval of SIDR_REQ, and a part of that of
    /// REQ.
    pub(crate) response_ns: u64,
    /// How long a final answer is kept for duplicates of its request.
    pub(crate) remember_ns: u64,
    pub(crate) retries: u8,
    /// Messages that the manager sends unasked to a peer that has never answered.
    pub(crate) max_answers: u8,
    /// Time before the first probe, a retransmission that does not count as a retry; zero for no
    /// probes.
    pub(crate) probe_ns: u64,
    /// The service timeout in our MRAs, as a code.
    pub(crate) mra_timeout: u8,
}

pub(crate) type BoxedEnds = Box<Ends>;
