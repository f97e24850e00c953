//! What a port has counted.

/// Counters of a port since it exists. They never go back; resets are the affair of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Words of four bytes sent.
    pub xmit_words: u64,
    /// Words of four bytes received.
    pub rcv_words: u64,
    /// Packets to one port sent.
    pub unicast_xmit: u64,
    /// Packets to one port received.
    pub unicast_rcv: u64,
    /// Packets to groups sent.
    pub multicast_xmit: u64,
    /// Packets to groups received.
    pub multicast_rcv: u64,
    /// Times that the link went down.
    pub link_downed: u64,
    /// Packets received that the switch could not forward.
    pub relay_errors: u64,
    /// Packets dropped before they were sent.
    pub xmit_discards: u64,
    /// Packets not sent because of their partition.
    pub xmit_constraint_errors: u64,
    /// Packets received and dropped because of their partition.
    pub rcv_constraint_errors: u64,
    /// Malformed packets received.
    pub rcv_errors: u64,
    /// Ticks of four nanoseconds during which packets waited and none was sent.
    pub xmit_wait: u64,
}

impl Counters {
    /// The counts since others, field by field.
    #[must_use]
    pub(crate) fn since(&self, start: &Self) -> Self {
        self.combine(start, u64::wrapping_sub)
    }

    /// The sum with others, field by field.
    #[must_use]
    pub(crate) fn plus(&self, other: &Self) -> Self {
        self.combine(other, u64::wrapping_add)
    }

    fn combine(&self, other: &Self, by: fn(u64, u64) -> u64) -> Self {
        Self {
            xmit_words: by(self.xmit_words, other.xmit_words),
            rcv_words: by(self.rcv_words, other.rcv_words),
            unicast_xmit: by(self.unicast_xmit, other.unicast_xmit),
            unicast_rcv: by(self.unicast_rcv, other.unicast_rcv),
            multicast_xmit: by(self.multicast_xmit, other.multicast_xmit),
            multicast_rcv: by(self.multicast_rcv, other.multicast_rcv),
            link_downed: by(self.link_downed, other.link_downed),
            relay_errors: by(self.relay_errors, other.relay_errors),
            xmit_discards: by(self.xmit_discards, other.xmit_discards),
            xmit_constraint_errors: by(self.xmit_constraint_errors, other.xmit_constraint_errors),
            rcv_constraint_errors: by(self.rcv_constraint_errors, other.rcv_constraint_errors),
            rcv_errors: by(self.rcv_errors, other.rcv_errors),
            xmit_wait: by(self.xmit_wait, other.xmit_wait),
        }
    }

    /// Packets leave that have so many words together.
    pub(crate) fn sent(&mut self, packets: u64, words: u64, is_multicast: bool) {
        self.xmit_words += words;
        let count = if is_multicast { &mut self.multicast_xmit } else { &mut self.unicast_xmit };
        *count += packets;
    }

    /// Packets arrive that have so many words together.
    pub(crate) fn received(&mut self, packets: u64, words: u64, is_multicast: bool) {
        self.rcv_words += words;
        let count = if is_multicast { &mut self.multicast_rcv } else { &mut self.unicast_rcv };
        *count += packets;
    }
}

/// The counts at the last resets by the performance management agent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Baselines {
    /// Of counters of 32 bits and fewer.
    pub(crate) short: Counters,
    /// Of counters of 64 bits.
    pub(crate) long: Counters,
}
