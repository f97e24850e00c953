//! What the packets of a capture say together: what was sent again and why, what is missing, what
//! was refused, and how long answers took.

mod findings;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use feroce::wire::cm::CmMessage;
use feroce::wire::{Op, Packet, Service, Syndrome};
use feroce::{Psn, Qpn};
use serde_json::Value;

use super::dissect::Port;
use stream::Stream;

/// Most streams that are told apart. The packets of further ones are counted only.
const MAX_STREAMS: usize = 4096;

/// What the analysis has to know of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fact {
    /// Its number in the file.
    pub(super) number: u64,
    /// Nanoseconds since the first record.
    pub(super) time_ns: Option<u64>,
    pub(super) from: Port,
    pub(super) to: Port,
    /// Queue pair that it goes to.
    pub(super) qp: Qpn,
    pub(super) psn: Psn,
    pub(super) service: Service,
    pub(super) op: Op,
    pub(super) payload_len: usize,
    /// Its sender wants an answer.
    pub(super) is_awaited: bool,
    /// Bytes that it asks for, if it is a READ.
    pub(super) reads: Option<u32>,
    pub(super) syndrome: Option<Syndrome>,
    /// It was marked by congestion on its way.
    pub(super) is_marked: bool,
    /// What it opens, if it is a message of the connection manager.
    pub(super) opens: Option<Opening>,
}

/// One end of a connection, as the message of the connection manager says that asks for it or
/// accepts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Opening {
    /// The sender's queue pair.
    qp: Qpn,
    /// The number that the peer begins with.
    psn: Psn,
    /// Tells a message from those of other connections, and not from itself when it is sent again.
    transaction: u64,
}

impl Opening {
    fn parse(payload: &[u8]) -> Option<Self> {
        let (transaction, message) = CmMessage::parse(payload).ok()?;
        let (qp, psn) = match message {
            CmMessage::Req(req) => (req.qpn, req.psn),
            CmMessage::Rep(rep) => (rep.qpn, rep.psn),
            _ => return None,
        };
        Some(Self { qp, psn, transaction })
    }
}

impl Fact {
    /// `None` for opcodes without a meaning.
    pub(super) fn new(
        packet: &Packet<'_>,
        (from, to): (Port, Port),
        payload_len: usize,
        (number, time_ns): (u64, Option<u64>),
    ) -> Option<Self> {
        let bth = &packet.bth;
        let (service, op) = bth.opcode.decode()?;
        let is_read = op == Op::ReadRequest;
        let is_cm = bth.dest_qp == Qpn::QP1;
        Some(Self {
            number,
            time_ns,
            from,
            to,
            qp: bth.dest_qp,
            psn: bth.psn,
            service,
            op,
            payload_len,
            is_awaited: bth.ack_req || (op.is_request() && !op.is_send() && !op.is_write()),
            reads: packet.exts.reth.filter(|_| is_read).map(|reth| reth.len),
            syndrome: packet.exts.aeth.map(|aeth| aeth.syndrome),
            is_marked: false,
            opens: if is_cm { Opening::parse(packet.payload) } else { None },
        })
    }
}

/// Where packets go: the sender's address, the receiver's, and the receiver's queue pair.
type Route = (Port, Port, Qpn);

/// Follows the packets of a capture in their order.
#[derive(Debug, Default)]
pub(super) struct Analysis {
    /// Requests, by where they go, in the order of their first packets.
    streams: Vec<Stream>,
    by_route: HashMap<Route, usize>,
    /// The stream that the answers on a route belong to. No header says so: the numbers do.
    by_answers: HashMap<Route, usize>,
    /// How the connection manager opened the way to a queue pair, the last time.
    openings: HashMap<Route, Opening>,
    /// Packets of streams beyond the limit.
    beyond: u64,
}

impl Analysis {
    /// Takes a packet; the result is what is special about it, in words.
    pub(super) fn note(&mut self, fact: &Fact) -> Option<String> {
        // Datagrams of management have numbers that mean nothing.
        if fact.qp == Qpn::QP1 {
            self.open(fact);
            return None;
        }
        if fact.service == Service::Cnp || fact.op.is_response() {
            return self.answers(fact).and_then(|stream| stream.answer(fact));
        }
        self.requests(fact).and_then(|stream| stream.request(fact))
    }

    /// A message of the connection manager: what its receiver sends to the queue pair that it names
    /// begins anew, with numbers that may have been used before.
    fn open(&mut self, fact: &Fact) {
        let Some(opening) = fact.opens else { return };
        let route = (fact.to, fact.from, opening.qp);
        let is_known = self.openings.contains_key(&route);
        if !is_known && self.openings.len() >= MAX_STREAMS {
            return;
        }
        if self.openings.insert(route, opening) != Some(opening) {
            self.forget(route);
        }
    }

    /// Ends a stream: what comes on its route is of another connection.
    fn forget(&mut self, route: Route) {
        if let Some(ended) = self.by_route.remove(&route) {
            self.by_answers.retain(|_, at| *at != ended);
        }
    }

    fn requests(&mut self, fact: &Fact) -> Option<&mut Stream> {
        let next = self.streams.len();
        let route = (fact.from, fact.to, fact.qp);
        let known = self.by_route.get(&route).and_then(|&at| self.streams.get(at));
        if known.is_some_and(|stream| stream.is_over(fact)) {
            self.forget(route);
        }
        let at = match self.by_route.get(&route) {
            Some(&at) => at,
            None if next == MAX_STREAMS => {
                self.beyond += 1;
                return None;
            }
            None => {
                self.by_route.insert(route, next);
                let is_before = |stream: &&Stream| (stream.from, stream.to, stream.qp) == route;
                let before = self.streams.iter().filter(is_before).count();
                self.streams.push(Stream::new(fact, before + 1));
                next
            }
        };
        self.streams.get_mut(at)
    }

    /// The stream that a packet answers: of those between these ends that no answers are known of,
    /// the only one that awaits this number, or the only one.
    fn answers(&mut self, fact: &Fact) -> Option<&mut Stream> {
        let route = (fact.from, fact.to, fact.qp);
        if let Some(&at) = self.by_answers.get(&route) {
            return self.streams.get_mut(at);
        }
        let is_between = |stream: &Stream| {
            (stream.from, stream.to) == (fact.to, fact.from) && !stream.is_answered
        };
        let streams = self.streams.iter().enumerate();
        let candidates: Vec<_> = streams.filter(|(_, stream)| is_between(stream)).collect();
        let awaiting = candidates.iter().filter(|(_, stream)| stream.awaits(fact.psn));
        let awaiting: Vec<_> = awaiting.copied().collect();
        let only = [awaiting, candidates].into_iter().find(|streams| streams.len() == 1)?;
        let &(at, _) = only.first()?;
        self.by_answers.insert(route, at);
        let stream = self.streams.get_mut(at)?;
        stream.is_answered = true;
        Some(stream)
    }

    /// What went wrong, in words.
    pub(super) fn findings(&self) -> Vec<String> {
        self.streams.iter().flat_map(findings::of).collect()
    }

    /// The streams: titles, and a row for each.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let mut rows = vec![findings::TITLES.map(str::to_owned).to_vec()];
        rows.extend(self.streams.iter().map(|stream| findings::row(stream).to_vec()));
        rows
    }

    /// Packets of streams beyond those in the table.
    pub(super) fn beyond(&self) -> u64 {
        self.beyond
    }

    /// The streams as JSON.
    pub(super) fn json(&self) -> Vec<Value> {
        self.streams.iter().map(findings::json).collect()
    }
}
