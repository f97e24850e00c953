//! Packets of queue pairs: from a process through the switches to the processes of other hosts.
//!
//! A process that sends has *credit*: bytes that may be under way. The fabric gives it back when
//! the receiving socket has taken the packets, or when they are dropped. So a receiver that is slow
//! holds its senders back, as credits of the links do, and nothing is lost. A receiver that takes
//! nothing for longer than a packet may wait at the end of a link loses what is for it, so that a
//! process that is stopped stops no other for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use feroce_link::port::{MAX_MESSAGE, PortSocket, RECORD_LEN, Record, Sent, wire_len};
use feroce_local::Target;
use feroce_subnet::{DataRun, PortRef, Subnet};
use feroce_train::{Framing, Instant};
use feroce_umad::Attached;
use feroce_wire::mad::{Class, MadHeader};
use feroce_wire::{Bth, Deth, Grh, Lrh, Qpn};

use super::absent::Answer;
use super::conn::ConnId;
use crate::fabric::packet::Run;

/// Bytes that a process may have under way. Credit is returned by quarters, and a quarter and the
/// longest train fit the buffer of a socket.
const CREDIT: u32 = 256 << 10;
/// Bytes of a train, so that trains of several queue pairs take turns.
const TRAIN: u32 = 32 << 10;
/// Bytes of packets to groups that wait for a process, at most; they cost the sender no credit.
const MAX_GROUP: usize = 1 << 20;
/// How long packets wait for a process that does not take them, at least: processes sleep for
/// longer than adapters do.
const PATIENCE: Duration = Duration::from_millis(100);

/// Packets for a process.
#[derive(Debug)]
struct Arriving {
    run: Rc<Run>,
    at_ns: u64,
    /// Who gets credit back for them, and how much.
    payer: Option<(ConnId, u32)>,
}

impl Arriving {
    fn len(&self) -> usize {
        RECORD_LEN + self.run.bytes().len()
    }
}

/// A process that is attached to a port.
#[derive(Debug)]
struct Process {
    at: PortRef,
    /// Credit that it has not been told of.
    credit: u32,
    arriving: VecDeque<Arriving>,
    arriving_bytes: usize,
    /// Since when its socket has no room.
    full_since: Option<Instant>,
}

/// The processes that are attached to ports.
#[derive(Debug, Default)]
pub(super) struct Processes {
    by_conn: BTreeMap<ConnId, Process>,
    /// The processes of a port, by their numbers.
    slots: BTreeMap<(PortRef, u8), ConnId>,
    /// The processes that services of a port are for, and the connections that hold them.
    services: BTreeMap<(PortRef, u64), (u8, ConnId)>,
    /// Those that have something to be told.
    ready: BTreeSet<ConnId>,
    /// Those whose socket has no room.
    full: BTreeSet<ConnId>,
}

/// What became of an attempt to tell a process something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// It was told all.
    All,
    /// Its socket has no room.
    Full,
    /// It is gone.
    Gone,
}

impl Processes {
    /// Attaches a process to a port; `None` if the port has as many as it can have.
    pub(super) fn attach(&mut self, conn: ConnId, at: PortRef, rate_bps: u64) -> Option<Attached> {
        let slot = (1..=u8::MAX).find(|&slot| !self.slots.contains_key(&(at, slot)))?;
        self.slots.insert((at, slot), conn);
        let arriving = VecDeque::new();
        let process = Process { at, credit: 0, arriving, arriving_bytes: 0, full_since: None };
        self.by_conn.insert(conn, process);
        Some(Attached { slot, rate_bps, credit: CREDIT, train: TRAIN })
    }

    /// Has requests for a service at a port passed to a process, for as long as a connection lasts.
    /// Returns whether no other process has it.
    pub(super) fn claim(&mut self, conn: ConnId, at: PortRef, slot: u8, service: u64) -> bool {
        let is_free = !self.services.contains_key(&(at, service));
        if is_free {
            self.services.insert((at, service), (slot, conn));
        }
        is_free
    }

    /// A connection that held a service is gone.
    pub(super) fn release(&mut self, conn: ConnId) {
        self.services.retain(|_, (_, holder)| *holder != conn);
    }

    /// A process is gone. What it has sent goes on; what is for it has no queue pair any more.
    pub(super) fn close(&mut self, conn: ConnId) {
        let Some(process) = self.by_conn.remove(&conn) else { return };
        self.slots.retain(|_, other| *other != conn);
        self.ready.remove(&conn);
        self.full.remove(&conn);
        process.arriving.into_iter().for_each(|packets| self.refund(packets.payer));
    }

    /// The processes that are attached to a port.
    pub(super) fn of(&self, at: PortRef) -> Vec<ConnId> {
        self.slots.range((at, 0)..=(at, u8::MAX)).map(|(_, conn)| *conn).collect()
    }

    /// How many processes are attached to ports of a node.
    pub(super) fn count(&self, node: usize) -> usize {
        self.slots.keys().filter(|(at, _)| at.node == node).count()
    }

    /// The services that processes at ports of a node listen for.
    pub(super) fn services(&self, node: usize) -> impl Iterator<Item = u64> {
        let all = self.services.keys();
        all.filter(move |(at, _)| at.node == node).map(|(_, service)| *service)
    }

    /// A process sends packets. Returns what the port that they reach answers by itself.
    pub(super) fn send(
        &mut self,
        now: Instant,
        conn: ConnId,
        record: &Record<'_>,
        subnet: &mut Subnet,
    ) -> Option<(PortRef, Answer)> {
        let from = self.by_conn.get(&conn).map(|process| process.at)?;
        let packets = record.bytes.len().div_ceil(record.stride);
        let around = wire_len(&record.meta, 0) as usize;
        let cost = u32::try_from(record.bytes.len() + packets * around).unwrap_or(u32::MAX);
        self.forward(now, from, record, Some((conn, cost)), subnet)
    }

    /// A port sends an answer of its own.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        at: PortRef,
        record: &Record<'_>,
        subnet: &mut Subnet,
    ) {
        // Answers are not answered.
        self.forward(now, at, record, None, subnet);
    }

    /// Packets leave a port. Returns what the port that they reach answers by itself.
    fn forward(
        &mut self,
        now: Instant,
        from: PortRef,
        record: &Record<'_>,
        payer: Option<(ConnId, u32)>,
        subnet: &mut Subnet,
    ) -> Option<(PortRef, Answer)> {
        let packets = record.bytes.len().div_ceil(record.stride);
        let reached = match data_run(record, packets) {
            Some(run) => subnet.carry(from, &run),
            None => Vec::new(),
        };
        let mut receivers: Vec<ConnId> =
            reached.iter().flat_map(|at| self.receivers(*at, record)).collect();
        if record.meta.dst.lid.is_multicast() {
            // An adapter gives packets to a group to its own queue pairs, too; a process does that
            // by itself.
            let sender = payer.map(|(conn, _)| conn);
            let own = self.receivers(from, record).into_iter();
            receivers.extend(own.filter(|to| Some(*to) != sender));
        }
        if let ([], [at]) = (&receivers[..], &reached[..]) {
            self.refund(payer);
            return Answer::to(record).map(|answer| (*at, answer));
        }
        let run = Rc::new(Run::new(record));
        let at_ns = record.at_ns.min(now.as_nanos());
        match receivers[..] {
            [one] => {
                self.arrive(now, one, Arriving { run, at_ns, payer }, subnet);
            }
            _ => {
                self.refund(payer);
                for to in receivers {
                    let run = Rc::clone(&run);
                    self.arrive(now, to, Arriving { run, at_ns, payer: None }, subnet);
                }
            }
        }
        None
    }

    /// The processes at a port that packets are for.
    fn receivers(&self, at: PortRef, record: &Record<'_>) -> Vec<ConnId> {
        let all = self.of(at);
        if record.meta.dst.lid.is_multicast() {
            return all;
        }
        let target = feroce_local::target_of(record.bytes);
        let slot = match target {
            Target::Slot(slot) => slot.checked_add(1),
            Target::Service(service) => self.services.get(&(at, service)).map(|(slot, _)| *slot),
            Target::All => return all,
            Target::Any => None,
        };
        let found = slot.and_then(|slot| self.slots.get(&(at, slot))).copied();
        match target {
            // A process that has no listener answers that, so any will do.
            Target::Service(_) => found.or_else(|| all.first().copied()).into_iter().collect(),
            _ => found.into_iter().collect(),
        }
    }

    /// Packets are at the port of a process.
    fn arrive(&mut self, now: Instant, to: ConnId, packets: Arriving, subnet: &mut Subnet) {
        let Some(process) = self.by_conn.get_mut(&to) else {
            return self.refund(packets.payer);
        };
        let is_stalled =
            process.full_since.is_some_and(|since| has_stalled(now, since, process.at, subnet));
        let is_crowded = packets.payer.is_none() && process.arriving_bytes > MAX_GROUP;
        if is_stalled || is_crowded {
            subnet.discard(process.at, packets.run.count() as u64);
            return self.refund(packets.payer);
        }
        process.arriving_bytes += packets.len();
        process.arriving.push_back(packets);
        self.ready.insert(to);
    }

    /// Gives credit back.
    fn refund(&mut self, payer: Option<(ConnId, u32)>) {
        let Some((conn, cost)) = payer else { return };
        if let Some(process) = self.by_conn.get_mut(&conn) {
            process.credit = process.credit.saturating_add(cost);
            if process.credit >= CREDIT / 4 {
                self.ready.insert(conn);
            }
        }
    }

    /// Drops what waits for processes that take nothing.
    pub(super) fn handle_timeout(&mut self, now: Instant, subnet: &mut Subnet) {
        for conn in self.full.clone() {
            let Some(process) = self.by_conn.get_mut(&conn) else { continue };
            let Some(since) = process.full_since else { continue };
            if !process.arriving.is_empty() && has_stalled(now, since, process.at, subnet) {
                process.arriving_bytes = 0;
                let packets = std::mem::take(&mut process.arriving);
                let at = process.at;
                for packets in packets {
                    subnet.discard(at, packets.run.count() as u64);
                    self.refund(packets.payer);
                }
            }
        }
    }

    /// The processes that have something to be told, and whose socket has room.
    pub(super) fn ready(&self) -> Vec<ConnId> {
        self.ready.difference(&self.full).copied().collect()
    }

    /// The socket of a process may have room again.
    pub(super) fn has_room(&mut self, conn: ConnId) {
        self.full.remove(&conn);
    }

    /// Tells a process what has arrived for it, and its credit.
    pub(super) fn tell(
        &mut self,
        now: Instant,
        conn: ConnId,
        socket: &PortSocket,
        message: &mut Vec<u8>,
    ) -> Told {
        loop {
            let Some(process) = self.by_conn.get_mut(&conn) else { return Told::Gone };
            let count = write(process, message);
            match socket.send(message) {
                Sent::Done => {}
                Sent::Full => {
                    process.full_since.get_or_insert(now);
                    self.full.insert(conn);
                    return Told::Full;
                }
                Sent::Gone => return Told::Gone,
            }
            (process.credit, process.full_since) = (0, None);
            let taken: Vec<Arriving> = process.arriving.drain(..count).collect();
            process.arriving_bytes -= taken.iter().map(Arriving::len).sum::<usize>();
            let is_all = process.arriving.is_empty();
            if is_all {
                self.ready.remove(&conn);
            }
            taken.into_iter().for_each(|packets| self.refund(packets.payer));
            if is_all {
                return Told::All;
            }
        }
    }
}

/// Writes the next message for a process. Returns how many runs of packets are in it.
fn write(process: &Process, out: &mut Vec<u8>) -> usize {
    out.clear();
    out.extend(process.credit.to_ne_bytes());
    let mut count = 0;
    for packets in &process.arriving {
        if count > 0 && out.len() + packets.len() > MAX_MESSAGE {
            break;
        }
        let at = out.len();
        out.resize(at + RECORD_LEN, 0);
        let (run, at_ns) = (&packets.run, packets.at_ns);
        let record = Record { at_ns, meta: run.meta, stride: run.stride(), bytes: run.bytes() };
        record.emit_head(&mut out[at..]);
        out.extend_from_slice(record.bytes);
        count += 1;
    }
    count
}

/// Whether a process has taken nothing for longer than packets may wait for it.
fn has_stalled(now: Instant, since: Instant, at: PortRef, subnet: &Subnet) -> bool {
    let life = subnet.hoq_life_ns(at);
    life.is_some_and(|life| now.nanos_since(since) > life.max(PATIENCE.as_nanos() as u64))
}

/// The class of a datagram to queue pair 1, behind its BTH.
fn class_of(rest: &[u8]) -> Option<u8> {
    let (_, mad) = Deth::parse(rest).ok()?;
    MadHeader::parse(mad).ok().map(|(header, _)| header.class)
}

/// What switches see of packets; `None` if those cannot be sent.
fn data_run(record: &Record<'_>, packets: usize) -> Option<DataRun> {
    let meta = &record.meta;
    let (bth, rest) = Bth::parse(record.bytes).ok()?;
    // Datagrams of management belong to agents, which the fabric has, but for those of connection
    // management: its agents are the processes.
    let is_data = match bth.dest_qp {
        Qpn::QP0 => false,
        Qpn::QP1 => class_of(rest) == Some(Class::COMMUNICATION.0),
        _ => true,
    };
    let is_whole = record.stride.is_multiple_of(4) && record.bytes.len().is_multiple_of(4);
    if meta.framing != Framing::InfiniBand || !is_data || !is_whole {
        return None;
    }
    let headers = Lrh::LEN + if meta.has_grh() { Grh::LEN } else { 0 };
    Some(DataRun {
        slid: meta.src.lid,
        dlid: meta.dst.lid,
        sl: meta.sl,
        pkey: bth.pkey,
        packets: u32::try_from(packets).ok()?,
        words: ((record.bytes.len() + packets * headers) / 4) as u64,
        longest: record.stride.min(record.bytes.len()) + headers,
    })
}
