//! The direction from this end to the peer: the send ring, credits and buffers of the peer.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Buffer, Posted, Violation};

/// Work requests that are kept for credits and other control messages.
const CONTROLS: u16 = 4;

/// Data is sent only if this many bytes of the ring are free, so that it does not leave in small
/// pieces.
const LOW_WATER: u32 = 2048;

/// Most buffers that the peer has announced and that are not full: it has two slots.
const BUFFERS: usize = 2;

/// The state of the send ring and the send queue, and what the peer accepts.
#[derive(Debug)]
pub(crate) struct Sending {
    /// Bytes in our ring.
    size: u32,
    /// Where the next bytes go.
    at: u32,
    /// Bytes not in flight.
    free: u32,
    /// Work requests that may still be posted for data.
    requests: u16,
    /// The same, when nothing is in flight.
    all_requests: u16,
    /// Control messages in flight.
    controls: u16,
    /// Messages that used a credit.
    sent: u16,
    /// Messages up to this one have a credit.
    upto: u16,
    /// Buffers of the peer with room, in the order in which they are filled.
    buffers: VecDeque<Buffer>,
}

/// Bytes to be sent by one work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    pub(crate) len: u32,
    /// Where they go in the peer's memory.
    pub(crate) addr: u64,
    pub(crate) key: u32,
    /// Where they go in our ring; nowhere if they are short enough to be posted with the request.
    pub(crate) places: Option<[Range<usize>; 2]>,
}

impl Sending {
    /// A ring of `size` bytes and a send queue of `depth` requests. Nothing can be sent yet.
    pub(crate) fn new(size: u32, depth: u16) -> Self {
        let requests = depth.saturating_sub(CONTROLS);
        Self {
            size,
            at: 0,
            free: size,
            requests,
            all_requests: requests,
            controls: 0,
            sent: 0,
            upto: 0,
            buffers: VecDeque::with_capacity(BUFFERS),
        }
    }

    /// The peer has said what it takes.
    pub(crate) fn start(&mut self, credits: u16, first: Buffer) {
        self.upto = credits;
        self.buffers.push_back(first);
        self.skip_full();
    }

    /// The peer gives credits: messages up to this one may be sent.
    pub(crate) fn on_credits(&mut self, upto: u16) {
        self.upto = upto;
    }

    /// The peer gives a buffer.
    pub(crate) fn on_buffer(&mut self, buffer: Buffer) -> Result<(), Violation> {
        if self.buffers.len() >= BUFFERS {
            return Err(Violation);
        }
        self.buffers.push_back(buffer);
        self.skip_full();
        Ok(())
    }

    fn skip_full(&mut self) {
        while self.buffers.front().is_some_and(|buffer| buffer.len == 0) {
            self.buffers.pop_front();
        }
    }

    /// Whether there is room on this side.
    fn has_room(&self) -> bool {
        self.requests > 0 && self.free >= LOW_WATER.min(self.size)
    }

    /// Whether data can be sent.
    pub(crate) fn is_ready(&self) -> bool {
        self.has_room() && self.sent != self.upto && !self.buffers.is_empty()
    }

    /// Takes what is needed to send at most `most` bytes into the peer's ring. Up to `inline`
    /// bytes need no place in ours.
    pub(crate) fn begin(&mut self, most: usize, inline: u32) -> Option<Chunk> {
        if !self.is_ready() || most == 0 {
            return None;
        }
        let buffer = self.buffers.front_mut()?;
        let len = u32::try_from(most).unwrap_or(u32::MAX).min(self.free).min(buffer.len);
        let (addr, key) = (buffer.addr, buffer.key);
        buffer.addr = addr.wrapping_add(len.into());
        buffer.len -= len;
        self.skip_full();
        self.sent = self.sent.wrapping_add(1);
        let places = self.place(len, inline);
        Some(Chunk { len, addr, key, places })
    }

    /// Takes what is needed to send at most `most` bytes into mapped memory of the peer.
    pub(crate) fn begin_direct(&mut self, to: Buffer, most: usize, inline: u32) -> Option<Chunk> {
        if !self.has_room() || most == 0 || to.len == 0 {
            return None;
        }
        let len = u32::try_from(most).unwrap_or(u32::MAX).min(self.free).min(to.len);
        let places = self.place(len, inline);
        Some(Chunk { len, addr: to.addr, key: to.key, places })
    }

    /// Takes what is needed to send a mapping; false if that is not there.
    pub(crate) fn begin_iomap(&mut self) -> bool {
        let can = self.requests > 0 && self.sent != self.upto;
        if can {
            self.requests -= 1;
            self.sent = self.sent.wrapping_add(1);
        }
        can
    }

    fn place(&mut self, len: u32, inline: u32) -> Option<[Range<usize>; 2]> {
        self.requests -= 1;
        self.free -= len;
        if len <= inline {
            return None;
        }
        let first = len.min(self.size - self.at);
        let start = self.at as usize;
        let rest = (len - first) as usize;
        self.at = (self.at + len) % self.size;
        Some([start..start + first as usize, 0..rest])
    }

    /// Whether a control message can be sent.
    pub(crate) fn has_control(&self) -> bool {
        self.controls < CONTROLS
    }

    /// Takes what is needed to send one; only if [`Sending::has_control`].
    pub(crate) fn begin_control(&mut self) {
        self.controls += 1;
    }

    /// A request of ours has completed.
    pub(crate) fn on_done(&mut self, posted: Posted) {
        match posted {
            Posted::Receive | Posted::Ahead => {}
            Posted::Data(len) => {
                self.requests += 1;
                self.free += len;
            }
            Posted::Iomap => self.requests += 1,
            Posted::Control | Posted::Disconnect => self.controls -= 1,
        }
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_done(&self) -> bool {
        self.controls == 0 && self.requests == self.all_requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Buffer = Buffer { addr: 1000, key: 7, len: 3000 };

    fn started(size: u32, depth: u16, credits: u16) -> Sending {
        let mut sending = Sending::new(size, depth);
        assert!(!sending.is_ready(), "the peer has said nothing");
        sending.start(credits, FIRST);
        sending
    }

    #[test]
    fn data_fills_one_buffer_after_the_other() {
        let mut sending = started(10_000, 16, 16);
        let second = Buffer { addr: 9000, key: 8, len: 3000 };
        sending.on_buffer(second).expect("the second");
        assert_eq!(sending.on_buffer(second), Err(Violation), "it has two places only");
        let whole = |at: usize, len: usize| Some([at..at + len, 0..0]);
        let chunk = |len, addr, key, places| Some(Chunk { len, addr, key, places });
        assert_eq!(sending.begin(2000, 64), chunk(2000, 1000, 7, whole(0, 2000)));
        assert_eq!(sending.begin(2000, 64), chunk(1000, 3000, 7, whole(2000, 1000)));
        assert_eq!(sending.begin(2000, 64), chunk(2000, 9000, 8, whole(3000, 2000)));
        assert_eq!(sending.begin(64, 64), chunk(64, 11_000, 8, None), "short");
    }

    #[test]
    fn the_ring_goes_round() {
        let mut sending = started(3000, 16, 16);
        sending.on_buffer(Buffer { addr: 0, key: 0, len: 10_000 }).expect("the second");
        sending.begin(900, 0).expect("room");
        assert!(sending.begin(900, 0).is_some(), "2100 bytes are free");
        assert_eq!(sending.begin(900, 0), None, "1200 bytes are not enough to begin with");
        sending.on_done(Posted::Data(900));
        sending.on_done(Posted::Data(900));
        let chunk = sending.begin(2000, 0).expect("all is free");
        assert_eq!((chunk.len, chunk.places), (1200, Some([1800..3000, 0..0])), "the buffer ends");
        sending.on_done(Posted::Data(1200));
        sending.begin(2900, 0).expect("all is free");
        sending.on_done(Posted::Data(2900));
        let chunk = sending.begin(500, 0).expect("all is free");
        assert_eq!(chunk.places, Some([2900..3000, 0..400]));
        assert!(!sending.is_done());
        sending.on_done(Posted::Data(500));
        assert!(sending.is_done());
    }

    #[test]
    fn without_credits_requests_or_buffers_nothing_is_sent() {
        let mut sending = started(10_000, 16, 2);
        assert!(sending.begin(1, 0).is_some() && sending.begin(1, 0).is_some());
        assert_eq!(sending.begin(1, 0), None, "no credits");
        assert!(!sending.begin_iomap(), "no credits");
        assert!(sending.begin_direct(FIRST, 1, 0).is_some(), "these need none");
        sending.on_credits(100);
        assert!(sending.begin_iomap());
        assert_eq!(sending.begin(5000, 0).map(|chunk| chunk.len), Some(2998));
        assert_eq!(sending.begin(1, 0), None, "no buffer");
        sending.on_buffer(FIRST).expect("room for it");
        for _ in 0..7 {
            assert!(sending.begin(1, 0).is_some());
        }
        assert_eq!(sending.begin(1, 0), None, "no requests: four of 16 are kept");
        for _ in 0..4 {
            assert!(sending.has_control());
            sending.begin_control();
        }
        assert!(!sending.has_control());
        sending.on_done(Posted::Control);
        assert!(sending.has_control());
    }

    #[test]
    fn empty_buffers_of_a_peer_are_skipped() {
        let mut sending = Sending::new(10_000, 16);
        sending.start(5, Buffer::default());
        assert!(!sending.is_ready());
        sending.on_buffer(FIRST).expect("room for it");
        assert!(sending.is_ready());
    }
}
