//! Packets that arrived before the one that the responder expects.
//!
//! A responder that misses a packet sends a NAK, and may discard what follows until the requester
//! has gone back. Here what follows is kept, and executed in order when the missing packet has
//! come: neither the peer nor the consumer can tell that from a network that delayed the packets.
//! The requester then need not send them again; see `repair`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use feroce_wire::{Op, Psn};

use super::rx_payload::RxPacket;

/// Most packets that one queue pair keeps, and how far in front of the expected one they may be.
/// What is longer than that is more than a path with losses ever holds; and the fewer numbers are
/// taken, the harder it is to guess one for who wants to insert packets.
const MOST_PACKETS: usize = 1024;

/// Most bytes that the queue pairs of an engine keep together: a peer must not make it take memory
/// without bound.
const MOST_BYTES: usize = 16 << 20;

/// Empty buffers that are kept for the next packets.
const MOST_SPARE: usize = 64;

/// The memory of the reorder queues of an engine.
#[derive(Debug, Default)]
pub(crate) struct ReorderMemory {
    /// Bytes in all queues.
    used: usize,
    spare: Vec<Vec<u8>>,
}

impl ReorderMemory {
    /// A copy of `bytes`, unless that is too much.
    fn copy(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.used + bytes.len() > MOST_BYTES {
            return None;
        }
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.try_reserve(bytes.len()).ok()?;
        copy.extend_from_slice(bytes);
        self.used += bytes.len();
        Some(copy)
    }

    fn give_back(&mut self, mut copy: Vec<u8>) {
        self.used -= copy.len();
        if self.spare.len() < MOST_SPARE {
            copy.clear();
            self.spare.push(copy);
        }
    }
}

/// A packet that is kept.
#[derive(Debug)]
pub(super) struct Early {
    op: Op,
    psn: Psn,
    ack_req: bool,
    solicited: bool,
    bytes: Vec<u8>,
}

impl Early {
    /// The packet as it arrived.
    pub(super) fn packet(&self) -> RxPacket<'_> {
        let Self { op, psn, ack_req, solicited, ref bytes } = *self;
        RxPacket { op, psn, ack_req, solicited, bytes, remote: None }
    }

    /// It has been executed.
    pub(super) fn discard(self, memory: &mut ReorderMemory) {
        memory.give_back(self.bytes);
    }
}

/// The packets that a queue pair keeps, by PSN.
#[derive(Debug, Default)]
pub(super) struct ReorderQueue {
    packets: VecDeque<Early>,
}

impl ReorderQueue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Keeps a packet that is `ahead` of the expected one. False: there is no room for it.
    pub(super) fn keep(
        &mut self,
        memory: &mut ReorderMemory,
        packet: &RxPacket<'_>,
        ahead: i32,
    ) -> bool {
        let is_near = usize::try_from(ahead).is_ok_and(|ahead| ahead <= MOST_PACKETS);
        // Payload in the memory of the sender is not copied here: nothing is lost on that way.
        if !is_near || packet.remote.is_some() {
            return false;
        }
        // Most arrive in order behind the gap.
        let before = self.packets.iter().rposition(|early| !early.psn.is_after(packet.psn));
        if before.is_some_and(|i| self.packets.get(i).is_some_and(|e| e.psn == packet.psn)) {
            return true;
        }
        if self.packets.len() >= MOST_PACKETS || self.packets.try_reserve(1).is_err() {
            return false;
        }
        let Some(bytes) = memory.copy(packet.bytes) else { return false };
        let RxPacket { op, psn, ack_req, solicited, .. } = *packet;
        let early = Early { op, psn, ack_req, solicited, bytes };
        self.packets.insert(before.map_or(0, |i| i + 1), early);
        true
    }

    /// Takes the packet that is `expected` now, if it is here. Those before it have come again.
    pub(super) fn take(&mut self, memory: &mut ReorderMemory, expected: Psn) -> Option<Early> {
        while let Some(early) = self.packets.pop_front_if(|early| !early.psn.is_after(expected)) {
            if early.psn == expected {
                return Some(early);
            }
            early.discard(memory);
        }
        if self.packets.is_empty() {
            self.packets.shrink_to(MOST_SPARE);
        }
        None
    }

    /// Forgets all packets.
    pub(super) fn clear(&mut self, memory: &mut ReorderMemory) {
        self.packets.drain(..).for_each(|early| early.discard(memory));
        self.packets.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(psn: u32, bytes: &[u8]) -> RxPacket<'_> {
        let (op, psn) = (Op::SendOnly, Psn::new(psn));
        RxPacket { op, psn, ack_req: true, solicited: false, bytes, remote: None }
    }

    fn psns(queue: &mut ReorderQueue, memory: &mut ReorderMemory, mut expected: Psn) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some(early) = queue.take(memory, expected) {
            taken.extend_from_slice(early.packet().bytes);
            early.discard(memory);
            expected = expected.next();
        }
        taken
    }

    #[test]
    fn packets_come_out_in_order_across_the_end_of_the_numbers() {
        let (mut queue, mut memory) = (ReorderQueue::default(), ReorderMemory::default());
        for psn in [2, 0xff_ffff, 1, 0, 1] {
            let ahead = Psn::new(psn).diff(Psn::new(0xff_fffe));
            assert!(queue.keep(&mut memory, &packet(psn, &[psn as u8; 10]), ahead));
        }
        assert_eq!(memory.used, 40, "one came twice");
        assert!(queue.take(&mut memory, Psn::new(0xff_fffe)).is_none());
        let bytes = psns(&mut queue, &mut memory, Psn::new(0xff_ffff));
        assert_eq!(bytes, [[255; 10], [0; 10], [1; 10], [2; 10]].concat());
        assert_eq!((memory.used, queue.is_empty()), (0, true));
    }

    #[test]
    fn what_came_again_meanwhile_is_forgotten() {
        let (mut queue, mut memory) = (ReorderQueue::default(), ReorderMemory::default());
        for psn in [5, 6, 8] {
            assert!(queue.keep(&mut memory, &packet(psn, &[psn as u8; 4]), 1));
        }
        assert_eq!(psns(&mut queue, &mut memory, Psn::new(8)), [8; 4]);
        assert_eq!(memory.used, 0);
    }

    #[test]
    fn neither_a_queue_pair_nor_all_of_them_take_memory_without_bound() {
        let mut memory = ReorderMemory::default();
        let mut queue = ReorderQueue::default();
        assert!(!queue.keep(&mut memory, &packet(2000, &[0]), MOST_PACKETS as i32 + 1));
        let full = (1..).find(|i| !queue.keep(&mut memory, &packet(*i, &[0]), 1));
        assert_eq!(full, Some(MOST_PACKETS as u32 + 1));
        let long = [0; 4096];
        let mut queues: Vec<ReorderQueue> = Vec::new();
        while queues.len() < 10_000 {
            let mut queue = ReorderQueue::default();
            (1..100).for_each(|i| _ = queue.keep(&mut memory, &packet(i, &long), 1));
            queues.push(queue);
            if memory.used + long.len() > MOST_BYTES {
                break;
            }
        }
        assert!(queues.len() < 100, "{}", queues.len());
        queues.iter_mut().for_each(|queue| queue.clear(&mut memory));
        queue.clear(&mut memory);
        assert_eq!((memory.used, memory.spare.len()), (0, MOST_SPARE));
    }
}
