//! Packets of data between the ports of adapters: virtual lanes, credits and head-of-queue lifetime
//! (IBTA vol1 7.6 and 7.9).
//!
//! Credits and arbitration are those of `feroce-fabric`, so the simulator and the fabric in real
//! time agree on them. Links have no delay, and no rate unless an operator gives them one
//! ([`Traffic::set_rate`]): a packet moves on as long as it finds credits, and waits in a switch
//! when it finds none, which holds back the packets behind it on its lane, and those of other
//! lanes not. What ends such a wait is a receiver that takes packets, or the lifetime of the first
//! packet.
//!
//! What this module never does: keep bytes of packets. A run of packets has a body of the driver's.

mod border;
mod circle;
mod flight;
mod lane;

use alloc::collections::{BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;

use feroce_fabric::{FlowControl, credit_blocks};
use feroce_train::Instant;

use crate::data::DataRun;
use crate::packet::PortRef;
use crate::subnet::Subnet;
use crate::switch::Forward;
use crate::tap::Way;
use flight::{Flight, Held};
use lane::{LANES, Lanes, arbitration};

/// Blocks of a receive buffer that packets occupy. The driver gives it back with
/// [`Traffic::taken`] when the program has taken the packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    at: PortRef,
    lane: u8,
    blocks: u16,
}

/// Packets of a run: the body of the run, and which of its packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part<B> {
    /// What the driver gave [`Traffic::send`].
    pub body: B,
    /// The first packet.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

/// What [`Traffic::poll_event`] reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TrafficEvent<B> {
    /// Packets have left the port of the adapter that sends them, or were dropped there: the
    /// program may send as much again.
    Left(Part<B>),
    /// Packets pass a port that is watched.
    Passed(PortRef, Way, Part<B>),
    /// Packets have reached a port of an adapter. They occupy its receive buffer until the receipt
    /// is given back; there is none for packets that the adapter sends to itself.
    Arrived(PortRef, Part<B>, Option<Receipt>),
    /// Packets leave for a port of another part of the fabric; see [`Traffic::arrive`].
    Leaves(Landing, Part<B>),
    /// The port of another part at the end of a link has this to hear; see [`Traffic::hear`].
    Credit(PortRef, u8, FlowControl),
}

/// Where packets arrive: a port, its lane, and how many hops are behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landing {
    /// The port.
    pub at: PortRef,
    /// The lane.
    pub lane: u8,
    /// The hops.
    pub hops: u32,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Traffic<B> {
    /// By node, then by port.
    ports: Vec<Vec<Lanes<B>>>,
    /// The shortest lifetime of a packet at the head of a queue.
    least_life_ns: u64,
    /// Ports that may have something to send.
    work: VecDeque<PortRef>,
    /// Ports at which packets wait.
    waiting: BTreeSet<PortRef>,
    events: VecDeque<TrafficEvent<B>>,
    /// Lanes of links to other parts whose receive buffers have changed.
    untold: BTreeSet<(PortRef, u8)>,
}

impl<B: Clone> Traffic<B> {
    /// No packet moves yet. A packet may wait for `least_life_ns` even if the subnet manager has
    /// set a shorter life: programs take longer to read packets than adapters do.
    pub fn new(subnet: &Subnet, least_life_ns: u64) -> Self {
        let lanes = |node: &crate::Node| node.ports.iter().map(|_| Lanes::new()).collect();
        Self {
            ports: subnet.nodes().iter().map(lanes).collect(),
            least_life_ns,
            work: VecDeque::new(),
            waiting: BTreeSet::new(),
            events: VecDeque::new(),
            untold: BTreeSet::new(),
        }
    }

    /// A program behind a port sends packets.
    pub fn send(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        from: PortRef,
        run: &DataRun,
        body: B,
    ) {
        let whole = Part { body, first: 0, count: run.packets };
        let Some(port) = subnet.port_mut(from) else {
            return self.events.push_back(TrafficEvent::Left(whole));
        };
        // An adapter writes a LID of the port into every packet.
        if !port.is_active() || !port.has_lid(run.slid) {
            port.counters.xmit_discards += u64::from(run.packets);
            return self.events.push_back(TrafficEvent::Left(whole));
        }
        if port.has_lid(run.dlid) {
            // The adapter returns it by itself.
            self.events.push_back(TrafficEvent::Left(whole.clone()));
            return self.events.push_back(TrafficEvent::Arrived(from, whole, None));
        }
        let (body, count, held) = (whole.body, run.packets, Held::Nothing);
        let flight = Flight { run: *run, body, first: 0, count, arrived_by: 0, hops: 0, held };
        self.enqueue(now, subnet, from, flight);
        self.run(now, subnet);
    }

    /// A program has taken packets from a receive buffer, or they were dropped there.
    pub fn taken(&mut self, now: Instant, subnet: &mut Subnet, receipt: Receipt) {
        self.release(subnet, receipt);
        self.run(now, subnet);
    }

    /// The next thing that has happened.
    pub fn poll_event(&mut self, subnet: &Subnet) -> Option<TrafficEvent<B>> {
        // What is said of credits counts the packets that have left before.
        self.events.pop_front().or_else(|| self.poll_credit(subnet))
    }

    /// When [`Traffic::handle_timeout`] must be called.
    pub fn poll_timeout(&self, subnet: &Subnet) -> Option<Instant> {
        if !self.work.is_empty() {
            return Some(Instant::ZERO);
        }
        let due = |at: &PortRef| {
            let lanes = self.lanes(*at)?;
            let life = self.life_ns(subnet, *at);
            let blocked = lanes.queues.iter().filter_map(|queue| queue.blocked_since);
            let dead = blocked.min().and_then(|since| Some(since.plus_nanos(life?)));
            let free = lanes.rate_bps.map(|_| lanes.busy_until);
            dead.into_iter().chain(free).min()
        };
        self.waiting.iter().filter_map(due).min()
    }

    /// Drops packets whose lifetime is over, and lets links send that are free again.
    pub fn handle_timeout(&mut self, now: Instant, subnet: &mut Subnet) {
        let waiting: Vec<PortRef> = self.waiting.iter().copied().collect();
        for at in waiting {
            self.expire(now, subnet, at);
            self.work.push_back(at);
        }
        self.run(now, subnet);
    }

    /// Gives the link behind a port a rate in bits in a second, in this direction; `None`: packets
    /// take no time.
    pub fn set_rate(&mut self, now: Instant, subnet: &mut Subnet, at: PortRef, bps: Option<u64>) {
        let Some(lanes) = self.lanes_mut(at) else { return };
        (lanes.rate_bps, lanes.busy_until) = (bps, now);
        self.work.push_back(at);
        self.run(now, subnet);
    }

    /// The rate that an operator has given the link behind a port.
    pub fn rate_bps(&self, at: PortRef) -> Option<u64> {
        self.lanes(at)?.rate_bps
    }

    fn lanes(&self, at: PortRef) -> Option<&Lanes<B>> {
        self.ports.get(at.node)?.get(usize::from(at.port))
    }

    fn lanes_mut(&mut self, at: PortRef) -> Option<&mut Lanes<B>> {
        self.ports.get_mut(at.node)?.get_mut(usize::from(at.port))
    }

    /// How long a packet may be the first of a lane; `None`: for ever, as at adapters.
    fn life_ns(&self, subnet: &Subnet, at: PortRef) -> Option<u64> {
        subnet.nodes().get(at.node)?.switch.as_ref()?;
        Some(subnet.port(at)?.hoq_life_ns()?.max(self.least_life_ns))
    }

    /// Puts packets into the queue of a port, if they may leave by it.
    fn enqueue(&mut self, now: Instant, subnet: &mut Subnet, at: PortRef, flight: Flight<B>) {
        let came = (flight.arrived_by, flight.hops);
        let lane = subnet.admit(at, came, &flight.run, flight.count);
        let queue = lane.and_then(|lane| self.lanes_mut(at)?.queues.get_mut(usize::from(lane)));
        let Some(queue) = queue else {
            return self.finish(subnet, flight);
        };
        queue.stalled_until = queue.stalled_until.filter(|until| *until > now);
        if queue.stalled_until.is_some() {
            return self.discard(subnet, at, flight);
        }
        queue.flights.push_back(flight);
        self.waiting.insert(at);
        self.work.push_back(at);
    }

    /// Moves packets until none moves, or for long enough: the rest waits for the next call.
    fn run(&mut self, now: Instant, subnet: &mut Subnet) {
        let mut steps = 0;
        while steps < MAX_STEPS
            && let Some(at) = self.work.pop_front()
        {
            while self.send_next(now, subnet, at) {
                steps += 1;
            }
            let Some(lanes) = self.lanes_mut(at) else { continue };
            if let Some(port) = subnet.port_mut(at) {
                lanes.count_wait(now, port);
            }
            if lanes.is_empty() {
                self.waiting.remove(&at);
            }
        }
    }

    /// Sends packets of the lane whose turn it is. Returns whether there may be more to send.
    fn send_next(&mut self, now: Instant, subnet: &mut Subnet, at: PortRef) -> bool {
        let Some(port) = subnet.port(at) else { return false };
        let Some(lanes) = self.lanes_mut(at).filter(|lanes| !lanes.is_empty()) else {
            return false;
        };
        let Some(peer) = port.peer.filter(|_| port.is_active()) else {
            self.clear(subnet, at);
            return false;
        };
        if lanes.is_busy(now) {
            return false;
        }
        let Some((lane, is_alone)) = choose(now, lanes, port) else { return false };
        let was_waiting = lanes.rate_bps.is_some() && now.nanos_since(lanes.busy_until) < LATE_NS;
        // Lanes take turns packet by packet.
        let most = if is_alone && lanes.rate_bps.is_none() { u32::MAX } else { 1 };
        let Lanes { queues, credits, .. } = lanes;
        let (queue, credits) = (&mut queues[lane], &mut credits[lane]);
        let Some(first) = queue.flights.front_mut() else { return false };
        let (count, blocks) = first.fitting(|blocks| credits.may_send(blocks), most);
        let flight = first.take(count);
        if first.count == 0 {
            queue.flights.pop_front();
        }
        (queue.blocked_since, queue.dropped) = (None, 0);
        credits.send(blocks);
        let words = flight.run.words_of(flight.first, flight.count);
        lanes.occupy(now, words * 4, was_waiting);
        subnet.count_sent(at, &flight.run, flight.count, words);
        self.passes(subnet, at, Way::Sent, &flight);
        self.cross(now, subnet, (at, peer, lane as u8), blocks, flight, words);
        true
    }

    /// Packets arrive at the other end of a link.
    fn cross(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        (from, at, lane): (PortRef, PortRef, u8),
        blocks: u16,
        flight: Flight<B>,
        words: u64,
    ) {
        let Flight { run, ref body, first, count, hops, .. } = flight;
        let part = Part { body: body.clone(), first, count };
        if subnet.nodes()[from.node].switch.is_none() {
            self.events.push_back(TrafficEvent::Left(part.clone()));
        }
        let landing = Landing { at, lane, hops: hops + 1 };
        if !subnet.is_here(at) {
            self.events.push_back(TrafficEvent::Leaves(landing, part));
            return self.finish_held(subnet, flight.held);
        }
        let buffer = self.lanes_mut(at).and_then(|lanes| lanes.credits.get_mut(usize::from(lane)));
        // A sender with credits finds room.
        let has_room = buffer.is_some_and(|buffer| buffer.accept(blocks));
        debug_assert!(has_room, "credits promise a buffer");
        // They have left the buffer in which they waited.
        self.finish_held(subnet, flight.held);
        if has_room {
            self.land(now, subnet, landing, blocks, (run, part), words);
        }
    }

    /// Packets are in a receive buffer.
    fn land(
        &mut self,
        now: Instant,
        subnet: &mut Subnet,
        Landing { at, lane, hops }: Landing,
        blocks: u16,
        (run, part): (DataRun, Part<B>),
        words: u64,
    ) {
        let Part { first, count, .. } = part;
        let receipt = Receipt { at, lane, blocks };
        let is_taken = subnet.enter(at, &run, count, words);
        if subnet.is_watched(at) {
            self.events.push_back(TrafficEvent::Passed(at, Way::Received, part.clone()));
        }
        if !is_taken {
            return self.release(subnet, receipt);
        }
        let Some(switch) = &subnet.nodes()[at.node].switch else {
            return self.events.push_back(TrafficEvent::Arrived(at, part, Some(receipt)));
        };
        let next = |held| Flight {
            run,
            body: part.body.clone(),
            first,
            count,
            arrived_by: at.port,
            hops,
            held,
        };
        match switch.forward(run.dlid, at.port) {
            // A switch has no queue pairs but those of its agents.
            Ok(Forward::One(0)) | Err(_) => {
                subnet.count_relay_error(at, count);
                self.release(subnet, receipt);
            }
            Ok(Forward::One(port)) => {
                self.enqueue(now, subnet, PortRef { port, ..at }, next(Held::Buffer(receipt)));
            }
            Ok(Forward::Many(ports)) => {
                let shared = Rc::new(receipt);
                for port in ports.into_iter().filter(|&port| port != 0) {
                    let copy = next(Held::Shared(Rc::clone(&shared)));
                    self.enqueue(now, subnet, PortRef { port, ..at }, copy);
                }
                self.finish_held(subnet, Held::Shared(shared));
            }
        }
    }

    /// Packets have left a buffer.
    fn finish_held(&mut self, subnet: &Subnet, held: Held) {
        match held {
            Held::Nothing => {}
            Held::Buffer(receipt) => self.release(subnet, receipt),
            Held::Shared(shared) => {
                if let Ok(receipt) = Rc::try_unwrap(shared) {
                    self.release(subnet, receipt);
                }
            }
        }
    }

    /// Packets go no further.
    fn finish(&mut self, subnet: &Subnet, flight: Flight<B>) {
        if matches!(flight.held, Held::Nothing) {
            let Flight { body, first, count, .. } = flight;
            return self.events.push_back(TrafficEvent::Left(Part { body, first, count }));
        }
        self.finish_held(subnet, flight.held);
    }

    /// A port drops packets that it should have sent.
    fn discard(&mut self, subnet: &mut Subnet, at: PortRef, flight: Flight<B>) {
        if let Some(port) = subnet.port_mut(at) {
            port.counters.xmit_discards += u64::from(flight.count);
        }
        self.finish(subnet, flight);
    }

    /// Gives the sender at the other end of the link credits for room in a receive buffer.
    fn release(&mut self, subnet: &Subnet, Receipt { at, lane, blocks }: Receipt) {
        let lane = usize::from(lane);
        let buffer = self.lanes_mut(at).and_then(|lanes| lanes.credits.get_mut(lane));
        let Some(buffer) = buffer else { return };
        buffer.release(blocks);
        let flow_control = buffer.flow_control();
        let Some(peer) = subnet.port(at).and_then(|port| port.peer) else { return };
        if !subnet.is_here(peer) {
            self.untold.insert((at, lane as u8));
            return;
        }
        if let Some(sender) = self.lanes_mut(peer).and_then(|lanes| lanes.credits.get_mut(lane)) {
            sender.hear(flow_control);
        }
        self.work.push_back(peer);
    }

    /// A link is down: the port drops what waits for it.
    fn clear(&mut self, subnet: &mut Subnet, at: PortRef) {
        for lane in 0..LANES {
            self.clear_lane(subnet, at, lane);
        }
    }

    fn clear_lane(&mut self, subnet: &mut Subnet, at: PortRef, lane: usize) {
        let Some(lanes) = self.lanes_mut(at) else { return };
        let queue = &mut lanes.queues[lane];
        queue.blocked_since = None;
        for flight in core::mem::take(&mut queue.flights) {
            self.discard(subnet, at, flight);
        }
    }

    /// Drops the first packets of lanes that have waited for longer than their lifetime.
    fn expire(&mut self, now: Instant, subnet: &mut Subnet, at: PortRef) {
        let Some(life) = self.life_ns(subnet, at) else { return };
        let stall_count = subnet.port(at).map_or(0, |port| port.info.vl_stall_count);
        for lane in 0..LANES {
            let Some(lanes) = self.lanes_mut(at) else { return };
            let queue = &mut lanes.queues[lane];
            let is_over = queue.blocked_since.is_some_and(|since| now.nanos_since(since) >= life);
            let Some(first) = queue.flights.front_mut().filter(|_| is_over) else { continue };
            let dropped = first.take(1);
            if first.count == 0 {
                queue.flights.pop_front();
            }
            let has_stalled = queue.expire(now, life, stall_count);
            self.discard(subnet, at, dropped);
            if has_stalled {
                self.clear_lane(subnet, at, lane);
            }
        }
    }

    fn passes(&mut self, subnet: &Subnet, at: PortRef, way: Way, flight: &Flight<B>) {
        if subnet.is_watched(at) {
            let Flight { body, first, count, .. } = flight.clone();
            self.events.push_back(TrafficEvent::Passed(at, way, Part { body, first, count }));
        }
    }
}

/// Steps of packets that one call makes. Tables that lead a group in circles multiply its packets
/// at every switch.
const MAX_STEPS: usize = 1 << 16;
/// A link that is slowed down and that the driver looks at later than this was idle.
const LATE_NS: u64 = 20_000_000;

/// The lane that sends next, and whether no other could. Notes which lanes wait for credits.
fn choose<B: Clone>(
    now: Instant,
    lanes: &mut Lanes<B>,
    port: &crate::Port,
) -> Option<(usize, bool)> {
    let mut ready = 0_u8;
    for (lane, queue) in lanes.queues.iter_mut().enumerate() {
        let Some(first) = queue.flights.front() else { continue };
        if lanes.credits[lane].may_send(first.head_blocks()) {
            ready |= 1 << lane;
        } else {
            queue.blocked_since.get_or_insert(now);
        }
    }
    let alone = ready.trailing_zeros() as usize;
    if ready.count_ones() <= 1 {
        return (ready != 0).then_some((alone, true));
    }
    let len = |lane: u8| {
        let first = lanes.queues[usize::from(lane)].flights.front();
        first.map_or(0, |first| first.run.len_of(first.first))
    };
    // A lane that the tables do not name sends when no other does.
    let chosen = lanes.arbiter.next(&arbitration(port), ready, len);
    Some((chosen.map_or(alone, usize::from), false))
}

impl DataRun {
    /// Bytes of a packet, from the local route header to the ICRC. All but the last are of one
    /// length.
    pub(crate) fn len_of(&self, packet: u32) -> u32 {
        let longest = u32::try_from(self.longest).unwrap_or(u32::MAX);
        if packet + 1 < self.packets {
            return longest;
        }
        let before = u64::from(self.packets.saturating_sub(1)) * u64::from(longest);
        u32::try_from((self.words * 4).saturating_sub(before)).unwrap_or(longest).min(longest)
    }

    /// Words of some packets.
    pub(crate) fn words_of(&self, first: u32, count: u32) -> u64 {
        let end = first + count;
        let whole = u64::from(count) * self.longest as u64;
        let short = self.longest as u64 - u64::from(self.len_of(self.packets.saturating_sub(1)));
        (if end == self.packets { whole - short } else { whole }) / 4
    }

    /// Blocks of credit that some packets take.
    pub(crate) fn blocks(&self, first: u32, count: u32) -> u16 {
        let each = (first..first + count).map(|packet| credit_blocks(self.len_of(packet)));
        each.fold(0, u16::saturating_add)
    }
}
