//! Packets of queue pairs: from a process through the switches to the processes of other hosts.
//!
//! A process that sends has *credit*: bytes that may wait for the link of its port. The fabric
//! gives it back when the packets have left the port, for which the link must have credits of its
//! own ([`Traffic`]). Packets for a process occupy the receive buffer of its port until its socket
//! has taken them. So a receiver that is slow holds its senders back, lane by lane, and nothing is
//! lost. A receiver that takes nothing for longer than a packet may wait at the end of a link loses
//! what is for it, so that a process that is stopped stops no other for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use feroce_fabric::FlowControl;
use feroce_link::port::{CREDIT_LEN, MAX_MESSAGE, RECORD_LEN, Record, Sent, wire_len};
use feroce_local::Target;
use feroce_subnet::{
    DataRun, Landing, Part, PortRef, Receipt, Subnet, Traffic, TrafficEvent, TrunkMessage, Way,
};
use feroce_train::{Framing, Instant};
use feroce_umad::Attached;
use feroce_wire::mad::{Class, MadHeader};
use feroce_wire::{Bth, Deth, Grh, Lrh, Qpn};

use super::absent::Answer;
use super::conn::{Conn, ConnId};
use crate::fabric::packet::Run;

/// Bytes that a process may have under way. Credit is returned by quarters, and a quarter and the
/// longest train fit the buffer of a socket.
const CREDIT: u32 = 256 << 10;
/// What a process owes at most for packets under way; one that sends more keeps to no credit.
const MOST_OWED: u32 = 2 * CREDIT;
/// Bytes of a train, so that trains of several queue pairs take turns.
const TRAIN: u32 = 32 << 10;
/// Bytes of packets to groups that wait for a process, at most; they cost the sender no credit.
const MAX_GROUP: usize = 1 << 20;
/// How long packets wait for a process that does not take them, at least: processes sleep for
/// longer than adapters do.
const PATIENCE: Duration = Duration::from_millis(100);

/// Packets that a process has sent together.
#[derive(Debug)]
pub(super) struct Sending {
    run: Run,
    at_ns: u64,
    /// Who gets credit back when they have left.
    payer: Option<ConnId>,
}

impl Sending {
    /// Some of the packets.
    fn packets(&self, first: u32, count: u32) -> Record<'_> {
        let bytes = self.run.packets(first as usize, count as usize);
        Record { at_ns: self.at_ns, meta: self.run.meta, stride: self.run.stride(), bytes }
    }

    /// What a process pays for some of the packets.
    fn cost(&self, first: u32, count: u32) -> u32 {
        let around = count.saturating_mul(wire_len(&self.run.meta, 0));
        let bytes = self.run.packets(first as usize, count as usize).len();
        u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(around)
    }
}

/// Packets for a process.
#[derive(Debug)]
struct Arriving {
    part: Part<Rc<Sending>>,
    /// The room in the receive buffer of the port that they occupy.
    receipt: Option<Receipt>,
}

impl Arriving {
    fn record(&self) -> Record<'_> {
        self.part.body.packets(self.part.first, self.part.count)
    }

    fn len(&self) -> usize {
        RECORD_LEN + self.record().bytes.len()
    }
}

/// Packets that have passed a port that is watched.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) at: PortRef,
    pub(super) way: Way,
    part: Part<Rc<Sending>>,
}

impl Passed {
    pub(super) fn record(&self) -> Record<'_> {
        self.part.body.packets(self.part.first, self.part.count)
    }
}

/// A process that is attached to a port.
#[derive(Debug)]
struct Process {
    at: PortRef,
    /// Credit that it has not been told of.
    credit: u32,
    /// What it has paid for packets that have not left.
    owed: u32,
    arriving: VecDeque<Arriving>,
    arriving_bytes: usize,
    /// Since when its socket has no room.
    full_since: Option<Instant>,
}

/// The processes that are attached to ports.
#[derive(Debug)]
pub(super) struct Processes {
    /// Their packets in the subnet.
    pub(super) traffic: Traffic<Rc<Sending>>,
    by_conn: BTreeMap<ConnId, Process>,
    /// The processes of a port, by their numbers.
    slots: BTreeMap<(PortRef, u8), ConnId>,
    /// The processes that services of a port are for, and the connections that hold them.
    services: BTreeMap<(PortRef, u64), (u8, ConnId)>,
    /// Those that have something to be told.
    ready: BTreeSet<ConnId>,
    /// Those whose socket has no room.
    full: BTreeSet<ConnId>,
    /// What captures are to see.
    passed: Vec<Passed>,
    /// Messages for other parts, each with the port there that it is about.
    leaving: Vec<(PortRef, Vec<u8>)>,
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
    pub(super) fn new(subnet: &Subnet) -> Self {
        Self {
            traffic: Traffic::new(subnet, PATIENCE.as_nanos() as u64),
            by_conn: BTreeMap::new(),
            slots: BTreeMap::new(),
            services: BTreeMap::new(),
            ready: BTreeSet::new(),
            full: BTreeSet::new(),
            passed: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Attaches a process to a port; `None` if the port has as many as it can have.
    pub(super) fn attach(&mut self, conn: ConnId, at: PortRef, rate_bps: u64) -> Option<Attached> {
        let slot = (1..=u8::MAX).find(|&slot| !self.slots.contains_key(&(at, slot)))?;
        self.slots.insert((at, slot), conn);
        let arriving = VecDeque::new();
        let (credit, owed) = (0, 0);
        let process = Process { at, credit, owed, arriving, arriving_bytes: 0, full_since: None };
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
    pub(super) fn close(&mut self, now: Instant, conn: ConnId, subnet: &mut Subnet) {
        let Some(process) = self.by_conn.remove(&conn) else { return };
        self.slots.retain(|_, other| *other != conn);
        self.ready.remove(&conn);
        self.full.remove(&conn);
        for packets in process.arriving {
            self.took(now, packets.receipt, subnet);
        }
        self.settle(now, subnet);
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

    /// A process sends packets. False: it has far more under way than its credit.
    pub(super) fn send(
        &mut self,
        now: Instant,
        conn: ConnId,
        record: &Record<'_>,
        subnet: &mut Subnet,
    ) -> bool {
        let Some(process) = self.by_conn.get(&conn) else { return true };
        if process.owed > MOST_OWED {
            return false;
        }
        self.leave(now, process.at, record, Some(conn), subnet);
        self.settle(now, subnet);
        true
    }

    /// Packets leave a port.
    fn leave(
        &mut self,
        now: Instant,
        from: PortRef,
        record: &Record<'_>,
        payer: Option<ConnId>,
        subnet: &mut Subnet,
    ) {
        let packets = record.bytes.len().div_ceil(record.stride);
        let at_ns = record.at_ns.min(now.as_nanos());
        let body = Rc::new(Sending { run: Run::new(record), at_ns, payer });
        let count = u32::try_from(packets).unwrap_or(u32::MAX);
        if let Some(process) = payer.and_then(|payer| self.by_conn.get_mut(&payer)) {
            process.owed = process.owed.saturating_add(body.cost(0, count));
        }
        let Some(run) = data_run(record, packets) else {
            return self.refund(&Part { body, first: 0, count });
        };
        if record.meta.dst.lid.is_multicast() {
            // An adapter gives packets to a group to its own queue pairs, too; a process does that
            // by itself.
            let own = self.receivers(from, record).into_iter();
            for to in own.filter(|to| Some(*to) != payer) {
                let part = Part { body: Rc::clone(&body), first: 0, count };
                self.arrive(now, to, Arriving { part, receipt: None }, subnet);
            }
        }
        self.traffic.send(now, subnet, from, &run, body);
    }

    /// Does what follows from packets that have moved.
    fn settle(&mut self, now: Instant, subnet: &mut Subnet) {
        while let Some(event) = self.traffic.poll_event(subnet) {
            match event {
                TrafficEvent::Left(part) => self.refund(&part),
                TrafficEvent::Passed(at, way, part) => self.passed.push(Passed { at, way, part }),
                TrafficEvent::Arrived(at, part, receipt) => {
                    self.reach(now, at, part, receipt, subnet);
                }
                TrafficEvent::Leaves(landing, part) => {
                    let Record { meta, stride, bytes, .. } =
                        part.body.packets(part.first, part.count);
                    let stride = u16::try_from(stride).unwrap_or(u16::MAX);
                    let message = TrunkMessage::Packets(landing, meta, stride, bytes);
                    self.leave_part(landing.at, &message);
                }
                TrafficEvent::Credit(at, lane, credit) => {
                    self.leave_part(at, &TrunkMessage::Credit(at, lane, credit));
                }
            }
        }
    }

    /// Packets have reached a port of a host.
    fn reach(
        &mut self,
        now: Instant,
        at: PortRef,
        part: Part<Rc<Sending>>,
        receipt: Option<Receipt>,
        subnet: &mut Subnet,
    ) {
        let record = part.body.packets(part.first, part.count);
        match self.receivers(at, &record)[..] {
            [one] => self.arrive(now, one, Arriving { part, receipt }, subnet),
            [] => {
                self.took(now, receipt, subnet);
                // Answers are not answered in turn.
                if let Some(answer) = Answer::to(&record) {
                    self.leave(now, at, &answer.record(now.as_nanos()), None, subnet);
                }
            }
            ref many => {
                self.took(now, receipt, subnet);
                for &to in many {
                    let part = part.clone();
                    self.arrive(now, to, Arriving { part, receipt: None }, subnet);
                }
            }
        }
    }

    /// A message for another part.
    fn leave_part(&mut self, at: PortRef, message: &TrunkMessage<'_>) {
        let mut frame = Vec::new();
        message.emit(&mut frame);
        self.leaving.push((at, frame));
    }

    /// What other parts are to hear.
    pub(super) fn take_leaving(&mut self) -> Vec<(PortRef, Vec<u8>)> {
        std::mem::take(&mut self.leaving)
    }

    /// Packets arrive from another part. Returns whether they were right.
    pub(super) fn land(
        &mut self,
        now: Instant,
        landing: Landing,
        record: &Record<'_>,
        subnet: &mut Subnet,
    ) -> bool {
        // A process takes no longer message.
        let fits = CREDIT_LEN + RECORD_LEN + record.bytes.len() <= MAX_MESSAGE;
        let run = data_run(record, record.bytes.len().div_ceil(record.stride));
        let Some(run) = run.filter(|_| fits) else { return false };
        let body = Rc::new(Sending { run: Run::new(record), at_ns: record.at_ns, payer: None });
        let is_right = self.traffic.arrive(now, subnet, landing, &run, body);
        self.settle(now, subnet);
        is_right
    }

    /// Another part tells what a port may send. Returns whether there is such a port.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        at: (PortRef, u8),
        credit: FlowControl,
        subnet: &mut Subnet,
    ) -> bool {
        let is_right = self.traffic.hear(now, subnet, at, credit);
        self.settle(now, subnet);
        is_right
    }

    /// A link to another part begins anew, or has ended.
    pub(super) fn restart(&mut self, now: Instant, at: PortRef, subnet: &mut Subnet) {
        self.traffic.restart(subnet, at);
        self.settle(now, subnet);
    }

    /// Packets that have passed ports that are watched.
    pub(super) fn take_passed(&mut self) -> Vec<Passed> {
        std::mem::take(&mut self.passed)
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
            return self.took(now, packets.receipt, subnet);
        };
        let is_stalled =
            process.full_since.is_some_and(|since| has_stalled(now, since, process.at, subnet));
        let is_crowded = packets.receipt.is_none() && process.arriving_bytes > MAX_GROUP;
        if is_stalled || is_crowded {
            subnet.discard(process.at, packets.part.count.into());
            return self.took(now, packets.receipt, subnet);
        }
        process.arriving_bytes += packets.len();
        process.arriving.push_back(packets);
        self.ready.insert(to);
    }

    /// Packets are in the receive buffer of a port no more.
    fn took(&mut self, now: Instant, receipt: Option<Receipt>, subnet: &mut Subnet) {
        if let Some(receipt) = receipt {
            self.traffic.taken(now, subnet, receipt);
        }
    }

    /// Gives credit back for packets that have left.
    fn refund(&mut self, part: &Part<Rc<Sending>>) {
        let Some(conn) = part.body.payer else { return };
        let cost = part.body.cost(part.first, part.count);
        if let Some(process) = self.by_conn.get_mut(&conn) {
            process.credit = process.credit.saturating_add(cost);
            process.owed = process.owed.saturating_sub(cost);
            if process.credit >= CREDIT / 4 {
                self.ready.insert(conn);
            }
        }
    }

    /// Gives a link a rate, in both directions.
    pub(super) fn set_rate(&mut self, now: Instant, at: PortRef, bps: u64, subnet: &mut Subnet) {
        let peer = subnet.port(at).and_then(|port| port.peer());
        for end in [Some(at), peer].into_iter().flatten() {
            self.traffic.set_rate(now, subnet, end, Some(bps));
        }
        self.settle(now, subnet);
    }

    /// Drops what waits for processes that take nothing, and what has waited in switches for too
    /// long.
    pub(super) fn handle_timeout(&mut self, now: Instant, subnet: &mut Subnet) {
        self.traffic.handle_timeout(now, subnet);
        for conn in self.full.clone() {
            let Some(process) = self.by_conn.get_mut(&conn) else { continue };
            let Some(since) = process.full_since else { continue };
            if !process.arriving.is_empty() && has_stalled(now, since, process.at, subnet) {
                process.arriving_bytes = 0;
                let packets = std::mem::take(&mut process.arriving);
                let at = process.at;
                for packets in packets {
                    subnet.discard(at, packets.part.count.into());
                    self.took(now, packets.receipt, subnet);
                }
            }
        }
        self.settle(now, subnet);
    }

    /// The processes that have something to be told, and whose socket has room.
    pub(super) fn ready(&self) -> Vec<ConnId> {
        self.ready.difference(&self.full).copied().collect()
    }

    /// There may be room for messages to a process again.
    pub(super) fn has_room(&mut self, conn: ConnId) {
        self.full.remove(&conn);
    }

    /// Tells a process what has arrived for it, and its credit.
    pub(super) fn tell(
        &mut self,
        now: Instant,
        conn: ConnId,
        (to, message): (&mut Conn, &mut Vec<u8>),
        subnet: &mut Subnet,
    ) -> Told {
        loop {
            let Some(process) = self.by_conn.get_mut(&conn) else { return Told::Gone };
            let (len, count) = next_message(process);
            match to.send_with(len, message, |out| write(process, count, out)) {
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
            if process.arriving.is_empty() {
                self.ready.remove(&conn);
            }
            // Packets that waited for the room that these leave may arrive now.
            taken.into_iter().for_each(|packets| self.took(now, packets.receipt, subnet));
            self.settle(now, subnet);
            if !self.ready.contains(&conn) {
                return Told::All;
            }
        }
    }
}

/// How long the next message for a process is, and how many runs of packets are in it.
fn next_message(process: &Process) -> (usize, usize) {
    let (mut len, mut count) = (CREDIT_LEN, 0);
    for packets in &process.arriving {
        if count > 0 && len + packets.len() > MAX_MESSAGE {
            break;
        }
        len += packets.len();
        count += 1;
    }
    (len, count)
}

/// Writes a message for a process with so many runs of packets.
fn write(process: &Process, count: usize, mut out: &mut [u8]) {
    let mut next = |len| out.split_off_mut(..len).unwrap_or_default();
    next(CREDIT_LEN).copy_from_slice(&process.credit.to_ne_bytes());
    for packets in process.arriving.iter().take(count) {
        let record = packets.record();
        record.emit_head(next(RECORD_LEN));
        next(record.bytes.len()).copy_from_slice(record.bytes);
    }
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
