//! The fast path through a ring: sending one packet, and checking whether one has arrived.

use feroce_mem::HostMemory as _;
use feroce_train::{RxMeta, Single};

use super::{Peers, wake};
use crate::record;

impl Peers {
    /// Puts the record of one packet without ICRC into the ring to a process and publishes it, if
    /// there is room and its metadata is that of the last packets. The caller then calls
    /// [`Peers::wake`]: the process may sleep.
    #[inline]
    pub(crate) fn publish_single(&mut self, slot: u8, packet: Single<'_>, meta: RxMeta) -> bool {
        let Some(peer) = self.slots[usize::from(slot)].as_deref_mut() else { return false };
        let Some(ring) = peer.out.as_mut().filter(|_| peer.last == Some(meta)) else {
            return false;
        };
        let write = |out: &mut [u8]| record::write_single(packet.bytes, out);
        if ring.stage(record::BRIEF + packet.bytes.len(), write) != Ok(true) {
            // The caller sends the packet in a train instead, which handles a full or broken ring.
            return false;
        }
        peer.stuck = None;
        ring.publish();
        true
    }

    /// Wakes a process that sleeps, after records were published in the ring to it.
    #[inline]
    pub(crate) fn wake(&self, slot: u8) {
        if let Some(peer) = self.slots[usize::from(slot)].as_deref() {
            wake(&self.registry, slot, peer);
        }
    }

    /// Whether nothing has arrived through the rings or by direct access, and the registry is
    /// unchanged.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.incoming.iter().all(|incoming| incoming.ring.is_still_empty())
            && self.registry.passed() == self.passed
            && !self.registry.has_new_senders()
            && self.registry.epoch() == self.epoch
    }
}
