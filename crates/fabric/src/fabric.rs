//! The fabric: events, and what becomes of packets.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_train::Ecn as EcnBits;

use crate::agenda::Agenda;
use crate::buffer::{Buffer, BufferConfig, PortBuffer};
use crate::ecn::Ecn;
use crate::infiniband::{Infiniband, InfinibandConfig, MANAGEMENT_LANE, priority_outside};
use crate::multicast::{MULTICAST, Multicast};
use crate::packet::Packet;
use crate::pfc::{FRAME_BYTES, PauseEvent, PfcConfig};
use crate::port::{Frame, Port, PortId};
use crate::priorities::PriorityMap;
use crate::routes::{Routes, Spread};
use crate::stats::{DropReason, PortStats, Totals};
use crate::store::{Head, NONE, Packets};
use crate::tap::Taps;
use crate::telemetry::{Telemetry, TelemetryConfig};
use crate::topology::{Node, NodeId, Topology, TopologyError};
use crate::{Quantize, Rate, Time};

/// Packets that the port of a host holds back while their priority is paused, before the host may
/// not send any more. Other priorities need not wait behind them.
const HOST_BACKLOG: usize = 4;

/// Bytes that a flow control packet of InfiniBand takes on the link: 6, and a symbol at each end.
const FLOW_CONTROL_BYTES: u32 = 8;

/// How the fabric behaves; the defaults are a lossless network without marking.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Everything random follows from it.
    pub seed: u64,
    /// InfiniBand instead of Ethernet: buffers, pauses and spreading have no meaning then.
    pub infiniband: Option<InfinibandConfig>,
    /// Buffers of switches.
    pub buffer: BufferConfig,
    /// Priority flow control; none if absent.
    pub pfc: Option<PfcConfig>,
    /// Priorities of packets, for drivers whose packets have a DSCP or PCP.
    pub priorities: PriorityMap,
    /// Marking.
    pub ecn: Ecn,
    /// How paths of equal length are used.
    pub spread: Spread,
    /// Priorities that go before all others, a bit each; the others take turns.
    pub strict: u8,
    /// Switches write the state of the port into every packet that leaves; not if absent.
    pub telemetry: Option<TelemetryConfig>,
    /// How exact times are.
    pub quantize: Quantize,
    /// Keep a record of pauses for [`Fabric::take_pauses`].
    pub log_pauses: bool,
    /// Hand out packets when the last link begins to carry them, by [`Fabric::take_arriving`], and
    /// not when they have arrived. So a driver in real time can be late by the delay of that link
    /// without delivering packets late. Not on InfiniBand, where arrival returns credits.
    pub announce: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            infiniband: None,
            buffer: BufferConfig::default(),
            pfc: Some(PfcConfig::default()),
            priorities: PriorityMap::default(),
            ecn: Ecn::Off,
            spread: Spread::Flows,
            strict: 0b1100_0000,
            telemetry: None,
            quantize: Quantize::Picoseconds,
            log_pauses: false,
            announce: false,
        }
    }
}

/// What [`Fabric::poll`] reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output<B> {
    /// A packet reaches its host.
    Delivered(Packet<B>),
    /// The port of this host has begun to send its last packet: it can take another.
    Ready(u32),
}

/// What happens at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// The oldest frame behind the port arrives at its peer.
    Arrival(PortId),
    /// The port has sent a frame and has another.
    Free(PortId),
    /// A pause of the port may have run out, or the watchdog must look.
    PauseEnd(PortId),
    /// The port must repeat its pause frames.
    Refresh(PortId),
}

/// See the documentation of the crate.
#[derive(Debug)]
pub struct Fabric<B> {
    pub(crate) now: Time,
    pub(crate) config: Config,
    pub(crate) topology: Topology,
    pub(crate) ports: Vec<Port>,
    /// The ports of each node, in the order of its links.
    pub(crate) ports_of: Vec<Vec<PortId>>,
    /// The number of each host, by node.
    pub(crate) host_number: Vec<Option<u32>>,
    /// The port of each host, by its number.
    pub(crate) host_port: Vec<PortId>,
    /// The buffer of each switch, by node.
    pub(crate) buffers: Vec<Option<Buffer>>,
    pub(crate) routes: Routes,
    pub(crate) infiniband: Infiniband,
    pub(crate) multicast: Multicast<B>,
    pub(crate) packets: Packets<B>,
    pub(crate) telemetry: Telemetry,
    pub(crate) agenda: Agenda<Time, Event>,
    pub(crate) rng: fastrand::Rng,
    /// For spreading by packet: packets that each node has forwarded.
    turns: Vec<u32>,
    pub(crate) pauses: Vec<PauseEvent>,
    pub(crate) totals: Totals,
    /// Packets that are announced.
    pub(crate) arriving: VecDeque<(Time, Packet<B>)>,
    pub(crate) taps: Taps<B>,
}

impl<B> Fabric<B> {
    /// A fabric in which nothing moves yet, at the origin of time.
    pub fn new(topology: Topology, config: Config) -> Result<Self, TopologyError> {
        topology.check()?;
        let nodes = topology.nodes().len();
        let mut ports_of: Vec<Vec<PortId>> = alloc::vec![Vec::new(); nodes];
        let mut ports = Vec::new();
        for link in topology.links() {
            let first = ports.len() as PortId;
            for (end, node) in link.ends.into_iter().enumerate() {
                let local = ports_of[node].len();
                let peer = first + 1 - end as PortId;
                ports_of[node].push(first + end as PortId);
                let port = Port::new(node, local, peer, link.rate);
                ports.push(Port { delay_ps: link.delay_ps, loss: link.loss, ..port });
            }
        }
        let (mut host_number, mut host_port) = (alloc::vec![None; nodes], Vec::new());
        for host in topology.hosts() {
            host_number[host] = Some(host_port.len() as u32);
            host_port.push(ports_of[host][0]);
        }
        let routes = find_routes(&topology, &ports, &ports_of);
        routes.check(&topology, |port| ports[ports[port as usize].peer as usize].node)?;
        let host_rate = host_port.iter().map(|&port| ports[port as usize].rate).min();
        let buffers = (0..nodes).map(|node| match topology.nodes()[node] {
            Node::Host => None,
            Node::Switch => {
                let of = |&port: &PortId| port_buffer(&config, &ports[port as usize], host_rate);
                Some(Buffer::new(config.buffer, ports_of[node].iter().map(of).collect()))
            }
        });
        let buffers = buffers.collect();
        for port in &mut ports {
            if topology.nodes()[port.node] == Node::Switch {
                port.ecn = config.ecn.of(port.rate);
            }
        }
        let mut fabric = Self {
            now: Time::ZERO,
            rng: fastrand::Rng::with_seed(config.seed),
            config,
            topology,
            ports,
            ports_of,
            host_number,
            host_port,
            buffers,
            routes,
            infiniband: Infiniband::default(),
            multicast: Multicast::default(),
            packets: Packets::default(),
            telemetry: Telemetry::default(),
            agenda: Agenda::default(),
            turns: alloc::vec![0; nodes],
            pauses: Vec::new(),
            totals: Totals::default(),
            arriving: VecDeque::new(),
            taps: Taps::default(),
        };
        fabric.start_infiniband();
        Ok(fabric)
    }

    /// The time of the last event.
    pub fn now(&self) -> Time {
        self.now
    }

    /// When the next event is due; `None` if nothing moves.
    #[inline]
    pub fn next_at(&self) -> Option<Time> {
        self.agenda.next_at()
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.host_port.len()
    }

    /// The rate of a host's link.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn host_rate(&self, host: u32) -> Rate {
        self.ports[self.host_port[host as usize] as usize].rate
    }

    /// What happened to all packets.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What happened at every port: the node, the index of the port there, and the counts.
    pub fn port_stats(&self) -> impl Iterator<Item = (NodeId, usize, &PortStats)> {
        self.ports.iter().map(|port| (port.node, port.local, &port.stats))
    }

    /// Bytes that wait at a port.
    pub fn queued(&self, node: NodeId, port: usize) -> Option<u64> {
        let id = *self.ports_of.get(node)?.get(port)?;
        Some(self.ports[id as usize].queued)
    }

    /// Bytes that are in the fabric: in queues and on links.
    pub fn bytes_inside(&self) -> u64 {
        self.packets.bytes()
    }

    /// Bytes in the buffer of a switch.
    pub fn buffer_used(&self, node: NodeId) -> Option<u64> {
        self.buffers.get(node)?.as_ref().map(|buffer| buffer.used)
    }

    /// Whether the port of a host can take a packet now.
    ///
    /// # Panics
    /// If there is no such host.
    #[inline]
    pub fn has_room(&self, host: u32) -> bool {
        let port = &self.ports[self.host_port[host as usize] as usize];
        port.is_up
            && port.waiting & !port.stopped == 0
            && (port.waiting == 0 || self.held_back(port) < HOST_BACKLOG)
    }

    fn held_back(&self, port: &Port) -> usize {
        let queues = port.queues.iter();
        queues.map(|queue| queue.iter(&self.packets).take(HOST_BACKLOG).count()).sum()
    }

    /// A host sends a packet. Time must not run backwards.
    ///
    /// # Panics
    /// If there is no such host, or the priority is none.
    pub fn inject(&mut self, now: Time, host: u32, packet: Packet<B>) {
        let id = self.take_in(now, packet);
        self.start_records(id);
        self.enqueue(self.host_port[host as usize], id);
    }

    /// Stores a packet that a host sends.
    pub(crate) fn take_in(&mut self, now: Time, mut packet: Packet<B>) -> u32 {
        if let Some(infiniband) = &self.config.infiniband {
            packet.priority = infiniband.lane(packet.priority);
        }
        debug_assert!(now >= self.now, "time runs backwards");
        self.now = now.max(self.now);
        self.totals.injected.add(packet.len);
        self.packets.insert(packet)
    }

    /// Handles the events that are due at `now` until one has a result. The time of the result is
    /// [`Fabric::now`].
    pub fn poll(&mut self, now: Time) -> Option<Output<B>> {
        while self.agenda.next_at().is_some_and(|at| at <= now) {
            let (at, event) = self.agenda.pop()?;
            self.now = at;
            self.totals.events += 1;
            let output = match event {
                Event::Arrival(port) => self.on_arrival(port),
                Event::Free(port) => {
                    self.ports[port as usize].is_free_due = false;
                    self.send_next(port)
                }
                Event::PauseEnd(port) => self.on_pause_end(port),
                Event::Refresh(port) => {
                    self.refresh(port);
                    None
                }
            };
            if output.is_some() {
                return output;
            }
        }
        None
    }

    /// Puts a packet into the queue of a port.
    pub(crate) fn enqueue(&mut self, id: PortId, packet: u32) {
        let port = &mut self.ports[id as usize];
        let Head { priority, ingress, .. } = self.packets[packet];
        let reason = if !port.is_up {
            Some(DropReason::LinkDown)
        } else if port.discarding & (1 << priority) != 0 {
            Some(DropReason::Watchdog)
        } else {
            None
        };
        if let Some(reason) = reason {
            let (node, share) = (port.node, self.packets.share(packet));
            let len = self.drop_packet(id, packet, reason);
            return self.release(node, ingress, priority, len, share);
        }
        let is_first = port.waiting & (1u16 << priority) == 0;
        port.enqueue(self.now, &mut self.packets, packet);
        if is_first {
            self.update_lane(id, priority, true);
        }
        self.wake(id);
    }

    /// Sends the next frame of a port, if it is free and may send; else sees to it that it will.
    pub(crate) fn wake(&mut self, id: PortId) {
        let port = &mut self.ports[id as usize];
        if port.is_free_due || !port.has_work() {
            return;
        }
        if port.busy_until > self.now {
            port.is_free_due = true;
            return self.agenda.push(port.busy_until, Event::Free(id));
        }
        // The host knows that its port is free: it is the one that sends.
        let _ = self.send_next(id);
    }

    /// Begins to send the next frame of a port, if it has one; when it is free, if it is not.
    pub(crate) fn send_next(&mut self, id: PortId) -> Option<Output<B>> {
        let port = &mut self.ports[id as usize];
        if port.busy_until > self.now {
            if !port.is_free_due {
                port.is_free_due = true;
                self.agenda.push(port.busy_until, Event::Free(id));
            }
            return None;
        }
        if self.ports[id as usize].has_work() {
            self.begin_frame(id)?;
        }
        let host = self.host_number[self.ports[id as usize].node]?;
        self.has_room(host).then_some(Output::Ready(host))
    }

    fn begin_frame(&mut self, id: PortId) -> Option<()> {
        let port = &mut self.ports[id as usize];
        let frame = if port.notices != 0 {
            let priority = port.notices.trailing_zeros() as u8;
            port.notices &= !(1 << priority);
            let is_on = port.notices_on & (1 << priority) != 0;
            let (frame, len) = match self.config.infiniband {
                None => (Frame::Pause { priority, is_on }, FRAME_BYTES),
                Some(_) => {
                    let flow_control = self.flow_control(id, priority);
                    (Frame::FlowControl { vl: priority, flow_control }, FLOW_CONTROL_BYTES)
                }
            };
            self.ports[id as usize].occupy(self.now, len, self.config.quantize);
            frame
        } else {
            let priority = match self.config.infiniband {
                None => port.next_priority(self.config.strict)?,
                Some(_) => self.next_lane(id)?,
            };
            let port = &mut self.ports[id as usize];
            let packet = port.dequeue(self.now, &mut self.packets, priority)?;
            let Head { ingress, len, .. } = self.packets[packet];
            let share = self.packets.take_share(packet);
            port.stats.sent.add(len);
            // A packet may leave by the port at which it came. What is said there about the room
            // that it leaves must wait for its end.
            port.occupy(self.now, len, self.config.quantize);
            let node = port.node;
            self.spend_credits(id, priority, len);
            self.release(node, ingress, priority, len, share);
            self.mark(id, packet, priority);
            self.stamp(id, packet);
            self.tap(self.now, id, true, packet);
            Frame::Packet(packet)
        };
        let port = &self.ports[id as usize];
        let arrives_at = port.busy_until.plus_ps(port.delay_ps);
        self.carry(id, frame, arrives_at);
        let port = &mut self.ports[id as usize];
        if port.has_work() && !port.is_free_due {
            port.is_free_due = true;
            self.agenda.push(port.busy_until, Event::Free(id));
        }
        Some(())
    }

    /// Marks a packet that leaves, by the length of the queue behind it.
    fn mark(&mut self, id: PortId, packet: u32, priority: u8) {
        let port = &mut self.ports[id as usize];
        let Some(ecn) = port.ecn else { return };
        let probability = ecn.probability(port.queues[usize::from(priority)].bytes);
        if probability == 0.0 || (probability < 1.0 && self.rng.f64() >= probability) {
            return;
        }
        let packet = &mut self.packets[packet];
        if packet.ecn == EcnBits::Capable {
            packet.ecn = EcnBits::Congested;
            port.stats.marked += 1;
        }
    }

    /// A packet leaves the buffer of a switch.
    pub(crate) fn release(
        &mut self,
        node: NodeId,
        ingress: u32,
        priority: u8,
        len: u32,
        share: u32,
    ) {
        let ingress = ingress as usize;
        if self.config.infiniband.is_some() && !self.is_host(node) {
            return self.return_credits(self.ports_of[node][ingress], priority, len, share);
        }
        let Some(buffer) = &mut self.buffers[node] else { return };
        if !self.multicast.is_last(share) {
            return;
        }
        buffer.release(ingress, usize::from(priority), u64::from(len));
        self.resume_if_possible(node, ingress, priority);
    }

    fn on_arrival(&mut self, from: PortId) -> Option<Output<B>> {
        let port = &mut self.ports[from as usize];
        // The frame that the event was for may have been lost with its link.
        let (_, frame) = port.in_flight.pop_front_if(|(at, _)| *at <= self.now)?;
        if let Some(&(at, next)) = port.in_flight.front() {
            self.agenda.push(at, Event::Arrival(from));
            if let Frame::Packet(next) = next {
                self.packets.arrives_soon(next);
            }
        }
        let (to, is_up, loss) = (port.peer, port.is_up, port.loss);
        let id = match frame {
            Frame::Packet(id) => id,
            Frame::Pause { priority, is_on } => {
                return if is_up { self.on_pause(to, priority, is_on) } else { None };
            }
            Frame::FlowControl { .. } if !is_up => return None,
            Frame::FlowControl { .. } if loss > 0.0 && self.rng.f64() < loss => {
                self.tell_again(from);
                return None;
            }
            Frame::FlowControl { vl, flow_control } => {
                return self.on_flow_control(to, vl, flow_control);
            }
        };
        self.totals.hops += 1;
        if !is_up || self.is_lost(loss) {
            let reason = if is_up { DropReason::Loss } else { DropReason::LinkDown };
            self.drop_packet(from, id, reason);
            self.tell_again(from);
            return None;
        }
        let is_infiniband = self.config.infiniband.is_some();
        if is_infiniband && !self.take_credits(to, id) {
            return None;
        }
        self.tap(self.now, to, false, id);
        let port = &self.ports[to as usize];
        let (node, ingress) = (port.node, port.local);
        if let Some(host) = self.host_number[node] {
            self.note_delivered(id);
            let mut packet = self.packets.remove(id);
            self.totals.delivered.add(packet.len);
            packet.to = host;
            if is_infiniband {
                self.return_credits(to, packet.priority, packet.len, NONE);
                packet.priority = priority_outside(packet.priority);
            }
            return Some(Output::Delivered(packet));
        }
        self.packets[id].ingress = ingress as u32;
        match is_infiniband {
            true => self.forward_by_table(node, id),
            false => self.forward(node, id),
        }
        None
    }

    /// Counts a packet that is lost at a port, and returns its length.
    pub(crate) fn drop_packet(&mut self, at: PortId, id: u32, reason: DropReason) -> u32 {
        let len = self.packets.remove(id).len;
        self.totals.drop(reason, len);
        self.ports[at as usize].stats.drop(reason, len);
        len
    }

    /// Counts a copy of a multicast.
    pub(crate) fn count_copy(&mut self, len: u32) {
        self.totals.copied.add(len);
    }

    /// A packet has arrived at a switch.
    fn forward(&mut self, node: NodeId, id: u32) {
        let Head { to, len, priority, key, ingress, .. } = self.packets[id];
        if to >= MULTICAST {
            return self.forward_to_group(node, id);
        }
        let ingress = ingress as usize;
        let choices = self.routes.choices(node, to);
        let egress = match (choices, self.config.spread) {
            ([], _) => {
                self.drop_packet(self.ports_of[node][ingress], id, DropReason::NoRoute);
                return;
            }
            ([only], _) => *only,
            (some, Spread::Flows) => some[key.hash(node as u32) as usize % some.len()],
            (some, Spread::Packets) => {
                self.turns[node] = self.turns[node].wrapping_add(1);
                some[self.turns[node] as usize % some.len()]
            }
        };
        let Some(buffer) = &mut self.buffers[node] else { return };
        if !buffer.admit(ingress, usize::from(priority), u64::from(len)) {
            self.drop_packet(egress, id, DropReason::Buffer);
            return;
        }
        self.enqueue(egress, id);
        self.pause_if_needed(node, ingress, priority);
    }

    /// What is connected to what, as it was built.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Discards what waits at a port in some priorities.
    pub(crate) fn discard(&mut self, id: PortId, priorities: u16, reason: DropReason) {
        for priority in (0..=MANAGEMENT_LANE).filter(|p| priorities & (1 << p) != 0) {
            while let Some(packet) =
                self.ports[id as usize].dequeue(self.now, &mut self.packets, priority)
            {
                let (ingress, share) = (self.packets[packet].ingress, self.packets.share(packet));
                let len = self.drop_packet(id, packet, reason);
                let node = self.ports[id as usize].node;
                self.release(node, ingress, priority, len, share);
            }
            self.update_lane(id, priority, true);
        }
    }

    pub(crate) fn is_host(&self, node: NodeId) -> bool {
        self.host_number[node].is_some()
    }

    pub(crate) fn port_of_host(&self, host: u32) -> PortId {
        self.host_port[host as usize]
    }
}

pub(crate) fn find_routes(topology: &Topology, ports: &[Port], ports_of: &[Vec<PortId>]) -> Routes {
    Routes::new(topology, ports_of, |id| {
        let port = &ports[id as usize];
        port.is_up.then(|| ports[port.peer as usize].node)
    })
}

/// What the port of a switch gets of the buffer.
fn port_buffer(config: &Config, port: &Port, host_rate: Option<Rate>) -> PortBuffer {
    let doublings = match host_rate {
        Some(rate) => (port.rate.bps() / rate.bps()).max(1).ilog2(),
        None => 0,
    };
    PortBuffer {
        headroom: match config.pfc {
            Some(_) => config.buffer.headroom.bytes(port.rate, port.delay_ps),
            None => 0,
        },
        threshold_shift: config.buffer.threshold_shift.saturating_sub(doublings),
    }
}
