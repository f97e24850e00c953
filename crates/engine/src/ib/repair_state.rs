//! What selective repeat remembers; see `repair`.

use feroce_wire::Psn;

/// What the requester knows of the peer, and what it repairs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Repair {
    /// The peer keeps packets behind one that is missing.
    pub(super) peer_keeps: bool,
    /// The peer missed this packet, and the requester sends everything from it on again.
    went_back_to: Option<Psn>,
    /// The peer misses this packet, and the requester sends nothing else again.
    pub(super) due: Option<Psn>,
    /// The packet that the requester sent again last, alone.
    pub(super) last: Option<Psn>,
}

impl Repair {
    /// Whether a packet is to be sent again.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Whether the peer misses `una`, and has been sent it again.
    #[inline]
    pub(super) fn is_under_way(&self, una: Psn) -> bool {
        self.last == Some(una)
    }

    /// The requester sends everything from some packet on again, and forgets what it repaired.
    pub(super) fn go_back(&mut self) {
        (self.went_back_to, self.due) = (None, None);
    }

    /// The same, because the peer missed `psn`.
    pub(super) fn went_back_to(&mut self, psn: Psn) {
        self.went_back_to = Some(psn);
    }

    /// Everything before `psn` is acknowledged, while `cursor` is to be sent next.
    #[inline]
    pub(super) fn acknowledged(&mut self, psn: Psn, cursor: Psn) {
        if let Some(missed) = self.went_back_to
            && psn.is_after(cursor)
            // That one may only have been late.
            && psn.is_after(missed.next())
        {
            *self = Self { peer_keeps: true, ..Self::default() };
        }
    }
}
