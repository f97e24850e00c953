//! The packets inside a fabric.
//!
//! A switch looks at a few fields of a packet only. They are kept apart from the rest, 32 bytes for
//! each packet, so that the packets of long queues stay in the processor's cache.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use feroce_train::Ecn;

use crate::packet::{FlowKey, Packet};

/// No packet.
pub(crate) const NONE: u32 = u32::MAX;

/// What a switch looks at.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) to: u32,
    pub(crate) len: u32,
    pub(crate) key: FlowKey,
    /// The next one in its queue; of a vacant entry, the next vacant one.
    pub(crate) next: u32,
    /// The port of the switch at which it arrived, counted at the switch.
    pub(crate) ingress: u32,
    pub(crate) priority: u8,
    pub(crate) ecn: Ecn,
    /// It is the first of its queue.
    pub(crate) is_first: bool,
}

const _: () = assert!(size_of::<Head>() == 32, "two packets in a cache line");

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Packets<B> {
    heads: Vec<Head>,
    /// What the packets carry; nothing where an entry is vacant.
    bodies: Vec<Option<B>>,
    /// The entry that was vacated last.
    vacant: u32,
    /// The share of each copy of a multicast; empty before the first multicast.
    shares: Vec<u32>,
}

impl<B> Default for Packets<B> {
    fn default() -> Self {
        Self { heads: Vec::new(), bodies: Vec::new(), vacant: NONE, shares: Vec::new() }
    }
}

impl<B> Packets<B> {
    /// Takes in a packet, whose number it returns.
    pub(crate) fn insert(&mut self, packet: Packet<B>) -> u32 {
        let Packet { to, len, priority, ecn, key, body } = packet;
        let head = Head { to, len, key, next: NONE, ingress: 0, priority, ecn, is_first: false };
        let id = self.vacant;
        if id == NONE {
            self.heads.push(head);
            self.bodies.push(Some(body));
            return self.heads.len() as u32 - 1;
        }
        self.vacant = core::mem::replace(&mut self.heads[id as usize], head).next;
        self.bodies[id as usize] = Some(body);
        id
    }

    /// Takes out a packet.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn remove(&mut self, id: u32) -> Packet<B> {
        let body = self.bodies[id as usize].take().expect("a packet is inside until it is removed");
        let head = &mut self.heads[id as usize];
        head.next = core::mem::replace(&mut self.vacant, id);
        let Head { to, len, key, priority, ecn, .. } = *head;
        if let Some(share) = self.shares.get_mut(id as usize) {
            *share = NONE;
        }
        Packet { to, len, priority, ecn, key, body }
    }

    /// A packet on a link arrives soon. It is in no queue, and most likely not in the processor's
    /// cache any more. Writing that brings it there: unlike a load, a store does not wait for
    /// memory.
    #[inline]
    pub(crate) fn arrives_soon(&mut self, id: u32) {
        self.heads[id as usize].next = NONE;
    }

    /// A copy of a packet, whose body `copy` makes.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn copied(&self, id: u32, copy: fn(&B) -> B) -> Packet<B> {
        let Head { to, len, key, priority, ecn, .. } = self[id];
        let body = self.bodies[id as usize].as_ref();
        let body = copy(body.expect("a packet is inside until it is removed"));
        Packet { to, len, priority, ecn, key, body }
    }

    /// Bytes of all packets.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |(head, body): (&Head, &Option<B>)| match body {
            Some(_) => u64::from(head.len),
            None => 0,
        };
        self.heads.iter().zip(&self.bodies).map(of).sum()
    }

    /// The copies of a multicast that share a buffer with a packet; [`NONE`] if it is no copy.
    #[inline]
    pub(crate) fn share(&self, id: u32) -> u32 {
        self.shares.get(id as usize).copied().unwrap_or(NONE)
    }

    pub(crate) fn set_share(&mut self, id: u32, share: u32) {
        if self.shares.len() <= id as usize {
            self.shares.resize(id as usize + 1, NONE);
        }
        self.shares[id as usize] = share;
    }

    /// As [`Packets::share`], and the packet is no copy any more.
    #[inline]
    pub(crate) fn take_share(&mut self, id: u32) -> u32 {
        self.shares.get_mut(id as usize).map_or(NONE, |share| core::mem::replace(share, NONE))
    }
}

impl<B> Index<u32> for Packets<B> {
    type Output = Head;

    #[inline]
    fn index(&self, id: u32) -> &Head {
        &self.heads[id as usize]
    }
}

impl<B> IndexMut<u32> for Packets<B> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Head {
        &mut self.heads[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_used_again_and_copies_know_their_share() {
        let mut packets = Packets::default();
        let packet = |len, body| {
            let (ecn, key) = (Ecn::Capable, FlowKey::default());
            Packet { to: 1, len, priority: 3, ecn, key, body }
        };
        let (first, second) = (packets.insert(packet(10, 'a')), packets.insert(packet(20, 'b')));
        assert_eq!((packets.bytes(), packets.share(second)), (30, NONE));
        packets.set_share(second, 7);
        assert_eq!(packets.copied(second, char::clone), packet(20, 'b'));
        assert_eq!(packets.remove(first), packet(10, 'a'));
        assert_eq!(packets.bytes(), 20);
        assert_eq!(packets.insert(packet(30, 'c')), first);
        assert_eq!((packets.share(first), packets.take_share(second)), (NONE, 7));
        packets.set_share(second, 8);
        packets.remove(second);
        assert_eq!(packets.insert(packet(40, 'd')), second);
        assert_eq!((packets.share(second), packets.bytes()), (NONE, 70));
    }
}
