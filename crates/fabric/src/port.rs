//! A port: its queues, what is on the link behind it, and what its peer has told it.

use alloc::collections::VecDeque;

use crate::buffer::PRIORITIES;
use crate::credits::FlowControl;
use crate::ecn::EcnConfig;
use crate::stats::PortStats;
use crate::store::{Head, NONE, Packets};
use crate::topology::NodeId;
use crate::{Quantize, Rate, Time};

/// Index of a port among all ports of the fabric.
pub(crate) type PortId = u32;

/// A queue of packets, linked through the packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    pub(crate) bytes: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, bytes: 0 }
    }
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(crate) fn push<B>(&mut self, packets: &mut Packets<B>, id: u32) {
        let packet = &mut packets[id];
        packet.next = NONE;
        packet.is_first = self.is_empty();
        self.bytes += u64::from(packet.len);
        match self.tail {
            NONE => self.head = id,
            tail => packets[tail].next = id,
        }
        self.tail = id;
    }

    pub(crate) fn pop<B>(&mut self, packets: &mut Packets<B>) -> Option<u32> {
        let id = self.head;
        if id == NONE {
            return None;
        }
        let head = &packets[id];
        debug_assert!(head.is_first, "a packet is told when it becomes the first");
        self.bytes -= u64::from(head.len);
        self.head = head.next;
        match self.head {
            NONE => self.tail = NONE,
            // The next one has waited, and is most likely not in the processor's cache any more.
            // This brings it there: unlike a load, a store does not wait for that.
            next => packets[next].is_first = true,
        }
        Some(id)
    }

    /// The numbers of the packets, first to last.
    pub(crate) fn ids<B>(&self, packets: &Packets<B>) -> impl Iterator<Item = u32> {
        let mut next = self.head;
        core::iter::from_fn(move || {
            let id = (next != NONE).then_some(next)?;
            next = packets[id].next;
            Some(id)
        })
    }

    /// The packets, first to last.
    pub(crate) fn iter<'a, B>(&self, packets: &'a Packets<B>) -> impl Iterator<Item = &'a Head> {
        self.ids(packets).map(|id| &packets[id])
    }
}

/// What travels on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frame {
    /// A packet.
    Packet(u32),
    /// A pause frame for one priority; zero time lets the sender go on.
    Pause { priority: u8, is_on: bool },
    /// A flow control packet of InfiniBand for one lane.
    FlowControl { vl: u8, flow_control: FlowControl },
}

/// What the peer has said about one priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Paused {
    /// The priority must not send before this time.
    pub(crate) until: Option<Time>,
    /// Since when it has been paused without a break.
    pub(crate) since: Time,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) node: NodeId,
    /// The index of this port at its node.
    pub(crate) local: usize,
    /// The port at the other end of the link.
    pub(crate) peer: PortId,
    pub(crate) rate: Rate,
    pub(crate) delay_ps: u64,
    pub(crate) loss: f64,
    pub(crate) is_up: bool,
    pub(crate) ecn: Option<EcnConfig>,
    /// By priority or data lane; behind them the one of VL15.
    pub(crate) queues: [Queue; PRIORITIES + 1],
    /// Queues with packets, a bit each.
    pub(crate) waiting: u16,
    /// Bytes of all queues.
    pub(crate) queued: u64,
    /// Queues that must not send, a bit each.
    pub(crate) stopped: u16,
    /// Queues whose packets the watchdog discards, a bit each.
    pub(crate) discarding: u16,
    pub(crate) paused: [Paused; PRIORITIES + 1],
    /// Priorities of the peer that this port has stopped, a bit each.
    pub(crate) pausing: u8,
    /// Pause frames to send: the priorities, and which of them are to stop.
    pub(crate) notices: u8,
    pub(crate) notices_on: u8,
    /// The port sends until this time.
    pub(crate) busy_until: Time,
    /// An event is due when the port is free.
    pub(crate) is_free_due: bool,
    /// The priority that was served last.
    pub(crate) last: u8,
    /// What is on the link, with the times of arrival.
    pub(crate) in_flight: VecDeque<(Time, Frame)>,
    pub(crate) stats: PortStats,
}

impl Port {
    pub(crate) fn new(node: NodeId, local: usize, peer: PortId, rate: Rate) -> Self {
        Self {
            node,
            local,
            peer,
            rate,
            delay_ps: 0,
            loss: 0.0,
            is_up: true,
            ecn: None,
            queues: [Queue::default(); PRIORITIES + 1],
            waiting: 0,
            queued: 0,
            stopped: 0,
            discarding: 0,
            paused: [Paused::default(); PRIORITIES + 1],
            pausing: 0,
            notices: 0,
            notices_on: 0,
            busy_until: Time::ZERO,
            is_free_due: false,
            last: 0,
            in_flight: VecDeque::new(),
            stats: PortStats::default(),
        }
    }

    /// A frame of `len` bytes begins to leave.
    #[inline]
    pub(crate) fn occupy(&mut self, now: Time, len: u32, quantize: Quantize) {
        self.busy_until = now.plus_ps(quantize.apply(self.rate.ps_of(len)));
    }

    /// Whether a frame could leave now if the port were free.
    pub(crate) fn has_work(&self) -> bool {
        self.is_up && (self.notices != 0 || self.waiting & !self.stopped != 0)
    }

    pub(crate) fn enqueue<B>(&mut self, now: Time, packets: &mut Packets<B>, id: u32) {
        let packet = &packets[id];
        let (priority, len) = (usize::from(packet.priority), u64::from(packet.len));
        self.queues[priority].push(packets, id);
        self.waiting |= 1 << priority;
        self.stats.queue_changes(now, self.queued, self.queued + len);
        self.queued += len;
    }

    /// Takes the first packet of a priority.
    pub(crate) fn dequeue<B>(
        &mut self,
        now: Time,
        packets: &mut Packets<B>,
        priority: u8,
    ) -> Option<u32> {
        let queue = &mut self.queues[usize::from(priority)];
        let id = queue.pop(packets)?;
        if queue.is_empty() {
            self.waiting &= !(1 << priority);
        }
        let len = u64::from(packets[id].len);
        self.stats.queue_changes(now, self.queued, self.queued - len);
        self.queued -= len;
        Some(id)
    }

    /// The priority whose turn it is: the highest of those in `strict`, else the others in turn.
    pub(crate) fn next_priority(&mut self, strict: u8) -> Option<u8> {
        let ready = (self.waiting & !self.stopped) as u8;
        let first = ready & strict;
        if first != 0 {
            return Some(7 - first.leading_zeros() as u8);
        }
        if ready == 0 {
            return None;
        }
        // The next one above the last, cyclically.
        let turned = ready.rotate_right(u32::from(self.last) + 1);
        self.last = (self.last + 1 + turned.trailing_zeros() as u8) % PRIORITIES as u8;
        Some(self.last)
    }
}
