//! The announcements of direct access between a process and its peers.

use feroce_mem::HostMemory as _;
use feroce_train::Instant;

use super::{Peers, Route};
use crate::demux::{self, Target};
use crate::direct_access::Offer;

impl Peers {
    /// Announces newly granted direct access to the requesters on this host.
    #[inline]
    pub(crate) fn announce_direct(&mut self, now: Instant) {
        for offer in self.registry.take_offers() {
            let (address, qpn) = offer.path.from;
            if let Route::Slot(slot) = self.route(address, qpn)
                && self.fetches
            {
                // If the announcement is lost, the responder grants access again.
                self.push(now, slot, Offer::RECORD_LEN, |out| offer.write(out));
            }
        }
    }

    /// Handles the announcement of a process that has granted direct access to this one.
    #[cold]
    pub(super) fn add_direct(&mut self, from: u8, generation: u32, offer: &Offer) {
        let is_theirs = demux::of_qpn(offer.path.to.1) == Target::Slot(from);
        if !self.fetches || !is_theirs || !self.contact(from) {
            return;
        }
        let Some(peer) = self.peer(from).filter(|peer| peer.generation == generation) else {
            return;
        };
        if let Some(contact) = &peer.contact {
            self.registry.add_direct((from, generation), contact.wake(), offer);
        }
    }

    /// Whether peers have read or written by direct access to this process since the last call.
    #[inline]
    pub(crate) fn has_let_pass(&mut self) -> bool {
        let passed = self.registry.passed();
        passed != std::mem::replace(&mut self.passed, passed)
    }
}
