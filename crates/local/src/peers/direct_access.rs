//! What a member and its peers tell each other of direct accesses.

use feroce_train::{HostMemory as _, Instant};

use super::{Peers, Route};
use crate::demux::{self, Target};
use crate::direct_access::Offer;

impl Peers {
    /// Tells those on this host for whom direct accesses were opened.
    #[inline]
    pub(crate) fn announce_direct(&mut self, now: Instant) {
        for offer in self.member.take_offers() {
            let (address, qpn) = offer.way.from;
            if let Route::Slot(slot) = self.route(address, qpn)
                && self.fetches
            {
                // What is lost is offered again.
                self.push(now, slot, Offer::RECORD_LEN, |out| offer.write(out));
            }
        }
    }

    /// A member has opened direct access for this one.
    #[cold]
    pub(super) fn add_direct(&mut self, from: u8, generation: u32, offer: &Offer) {
        let is_theirs = demux::of_qpn(offer.way.to.1) == Target::Slot(from);
        if !self.fetches || !is_theirs || !self.contact(from) {
            return;
        }
        let Some(peer) = self.peer(from).filter(|peer| peer.generation == generation) else {
            return;
        };
        if let Some(contact) = &peer.contact {
            self.member.add_direct((from, generation), contact.wake(), offer);
        }
    }

    /// Whether others have gone through direct accesses of this member since this was last asked.
    #[inline]
    pub(crate) fn has_let_pass(&mut self) -> bool {
        let passed = self.member.passed();
        passed != std::mem::replace(&mut self.passed, passed)
    }
}
