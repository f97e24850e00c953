//! The buffers of a pingpong and their contents.
//!
//! The server has one buffer: it receives every message into it and sends the echo from it. The
//! client sends from one buffer and receives into others, so that with `--chk` it can compare every
//! echo with the message that it sent.

use std::collections::VecDeque;

use feroce::{Access, Data, Error, Mr, Pd, RecvWr};

use crate::size::filled;

/// The value of bytes that no other rule sets.
const FILL: u8 = 0x7b;

/// The first byte of every page is zero; rdma-core's programs check that and nothing else.
const PAGE: usize = 4096;

/// Bytes of the global routing header that precede a received datagram.
pub(super) const GRH: usize = 40;

/// The layout of the buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    /// Bytes of a message.
    pub(super) size: usize,
    /// Bytes before the message in a receive buffer.
    pub(super) headroom: usize,
    /// Receive buffers.
    pub(super) slots: usize,
    /// A receive buffer belongs to one receive at a time, because receives may complete in any
    /// order; otherwise they are used in turn.
    pub(super) exclusive: bool,
    /// Receive into the buffer that is sent from.
    pub(super) echo: bool,
    /// Every message differs from the one before.
    pub(super) vary: bool,
}

/// The buffers.
#[derive(Debug)]
pub(super) struct Memory {
    mr: Mr,
    layout: Layout,
    /// The message that was sent last.
    sent: Vec<u8>,
    /// Scratch space to compare a received message.
    seen: Vec<u8>,
    /// Messages filled so far.
    messages: u64,
    /// Receive buffers in the order in which receives use them.
    slots: VecDeque<u64>,
}

impl Memory {
    pub(super) fn new(pd: &Pd, layout: Layout) -> anyhow::Result<Self> {
        let stride = layout.headroom + layout.size;
        // Buffer 0 is the send buffer.
        let slots: VecDeque<u64> =
            if layout.echo { [0].into() } else { (1..=layout.slots as u64).collect() };
        let total = stride * (slots.len() + usize::from(!layout.echo));
        let mr = pd.alloc_mr(total.max(1), Access::LOCAL_WRITE)?;
        let (sent, seen) = (filled(FILL, layout.size)?, filled(0, layout.size)?);
        mr.write_at(layout.headroom, &sent)?;
        Ok(Self { mr, layout, sent, seen, messages: 0, slots })
    }

    fn slot_at(&self, slot: u64) -> usize {
        (self.layout.headroom + self.layout.size) * slot as usize
    }

    /// The data of a send.
    pub(super) fn outgoing(&self) -> Data {
        self.mr.data(self.layout.headroom..self.layout.headroom + self.layout.size)
    }

    /// The next receive. Its number is `tag` and, in the low half, its buffer.
    pub(super) fn receive(&mut self, tag: u64) -> RecvWr {
        let slot = self.slots.pop_front().unwrap_or_default();
        if !self.layout.exclusive {
            self.slots.push_back(slot);
        }
        let at = self.slot_at(slot);
        self.mr.recv(tag | slot, at..at + self.layout.headroom + self.layout.size)
    }

    /// A receive into the buffer `slot` has completed.
    pub(super) fn release(&mut self, slot: u64) {
        if self.layout.exclusive {
            self.slots.push_back(slot);
        }
    }

    /// Writes the next message: each byte depends on its position and, if messages vary, on the
    /// number of the message.
    pub(super) fn fill(&mut self) -> Result<(), Error> {
        if self.messages > 0 && !self.layout.vary {
            return Ok(());
        }
        let seed = self.messages;
        self.messages += 1;
        for (i, byte) in self.sent.iter_mut().enumerate() {
            let mixed = (i as u64 ^ seed << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *byte = if i % PAGE == 0 { 0 } else { (mixed >> 56) as u8 };
        }
        self.mr.write_at(self.layout.headroom, &self.sent)
    }

    /// Whether the receive buffer `slot` holds the message that was sent last; clears the buffer.
    pub(super) fn is_echo(&mut self, slot: u64) -> Result<bool, Error> {
        let at = self.slot_at(slot) + self.layout.headroom;
        self.mr.read_at(at, &mut self.seen)?;
        let is_echo = self.seen == self.sent;
        self.seen.fill(FILL);
        self.mr.write_at(at, &self.seen)?;
        Ok(is_echo)
    }

    /// The pages of the buffer whose first byte is not zero.
    pub(super) fn invalid_pages(&mut self) -> Result<Vec<usize>, Error> {
        self.mr.read_at(self.layout.headroom, &mut self.seen)?;
        let starts = self.seen.iter().step_by(PAGE).enumerate();
        Ok(starts.filter(|(_, byte)| **byte != 0).map(|(page, _)| page).collect())
    }
}
