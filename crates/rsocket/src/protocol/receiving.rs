//! The ring that the peer writes to.

use std::collections::VecDeque;
use std::ops::Range;

use super::{Message, Violation};

/// The state of the ring: what is written, what is free and what is announced to the peer. The
/// ring has two halves, and each announcement covers one.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// Bytes in the ring.
    size: u32,
    /// Most messages that the peer may have sent and the program has not read.
    most: u16,
    /// Lengths of messages with unread bytes, the oldest first.
    unread: VecDeque<u32>,
    /// The first unread byte.
    at: u32,
    /// The next half to be given out begins here.
    next: u32,
    /// Bytes read and not given out again.
    free: u32,
    /// Bytes given out that no message has filled yet.
    open: u32,
    /// Messages read.
    read: u16,
    /// Credits are due when so many messages are read.
    due: u16,
}

/// An announcement to the peer: credits, and half of the ring if it is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) message: Message,
    /// Offset and length.
    pub(crate) half: Option<(u32, u32)>,
}

impl Receiving {
    /// A ring of `size` bytes, which is even, and a receive queue for `most` messages. The peer
    /// knows of the first half.
    pub(crate) fn new(size: u32, most: u16) -> Self {
        let half = size / 2;
        let unread = VecDeque::new();
        Self {
            size,
            most,
            unread,
            at: 0,
            next: half,
            free: half,
            open: half,
            read: 0,
            due: most / 2,
        }
    }

    /// The peer has written data.
    pub(crate) fn on_data(&mut self, len: u32) -> Result<(), Violation> {
        if len == 0 || len > self.open || self.unread.len() >= usize::from(self.most) {
            return Err(Violation);
        }
        self.open -= len;
        self.unread.push_back(len);
        Ok(())
    }

    /// The peer has used a credit for a message without data.
    pub(crate) fn on_other(&mut self) {
        self.read = self.read.wrapping_add(1);
    }

    /// Whether there is something to read.
    pub(crate) fn has_data(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Bytes that can be read.
    pub(crate) fn available(&self) -> u32 {
        self.unread.iter().sum()
    }

    /// Where the next unread bytes are: at most `most`, `skip` bytes behind the first.
    pub(crate) fn peek(&self, skip: u32, most: usize) -> Range<usize> {
        let left = self.available().saturating_sub(skip);
        // The ring has less than 2^31 bytes.
        let start = (self.at + skip) % self.size;
        let len = left.min(self.size - start).min(u32::try_from(most).unwrap_or(u32::MAX));
        start as usize..(start + len) as usize
    }

    /// `len` bytes have been read, all of them contiguous and available.
    pub(crate) fn consume(&mut self, mut len: u32) {
        self.at = (self.at + len) % self.size;
        self.free += len;
        while let Some(first) = self.unread.front_mut() {
            if len < *first {
                *first -= len;
                return;
            }
            len -= *first;
            self.unread.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }

    /// The credits and memory to be announced to the peer now, if any. The caller must send them.
    pub(crate) fn grant(&mut self) -> Option<Grant> {
        let half = self.size / 2;
        let is_due = self.read.wrapping_sub(self.due).cast_signed() >= 0;
        if self.free < half && !is_due {
            return None;
        }
        self.due = self.read.wrapping_add(self.most / 2);
        let message = Message::Credits(self.read.wrapping_add(self.most));
        if self.free < half {
            return Some(Grant { message, half: None });
        }
        let offset = self.next;
        self.free -= half;
        self.open += half;
        self.next = (self.next + half) % self.size;
        Some(Grant { message, half: Some((offset, half)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_is_given_out_at_once() {
        let mut ring = Receiving::new(100, 16);
        let grant = ring.grant().expect("half of it is free");
        assert_eq!(grant, Grant { message: Message::Credits(16), half: Some((50, 50)) });
        assert_eq!(ring.grant(), None);
    }

    #[test]
    fn bytes_are_read_in_order_across_messages_and_the_end_of_the_ring() {
        let mut ring = Receiving::new(100, 16);
        ring.grant();
        ring.on_data(50).expect("fits");
        ring.on_data(30).expect("fits");
        assert_eq!(ring.peek(0, 1000), 0..80);
        assert_eq!(ring.peek(10, 20), 10..30);
        ring.consume(70);
        assert_eq!(ring.peek(0, 1000), 70..80);
        // The first half is free again, and the peer knows.
        assert_eq!(ring.grant().and_then(|grant| grant.half), Some((0, 50)));
        ring.on_data(20).expect("the rest of the second half");
        ring.on_data(5).expect("fits");
        assert_eq!(ring.peek(0, 1000), 70..100);
        assert_eq!(ring.peek(30, 1000), 0..5);
        ring.consume(30);
        assert_eq!(ring.peek(0, 1000), 0..5);
        ring.consume(5);
        assert!(!ring.has_data());
        assert_eq!(ring.peek(0, 1000), 5..5);
    }

    #[test]
    fn credits_come_when_half_of_the_messages_are_read() {
        let mut ring = Receiving::new(1000, 16);
        ring.grant();
        for read in 1..=8_u16 {
            assert_eq!(ring.grant(), None);
            ring.on_data(1).expect("fits");
            ring.consume(1);
            assert_eq!(ring.read, read);
        }
        assert_eq!(ring.grant(), Some(Grant { message: Message::Credits(24), half: None }));
        assert_eq!(ring.grant(), None);
    }

    #[test]
    fn sequence_numbers_go_round() {
        let mut ring = Receiving::new(1000, 16);
        let mut last = 16_u16;
        ring.grant();
        for _ in 0..70_000 {
            ring.on_data(1).expect("fits");
            ring.consume(1);
            if let Some(Grant { message: Message::Credits(upto), .. }) = ring.grant() {
                assert!((1..=16).contains(&upto.wrapping_sub(last)), "{last} {upto}");
                last = upto;
            }
        }
        assert!((1..=16).contains(&last.wrapping_sub(ring.read)), "{last} {}", ring.read);
    }

    #[test]
    fn a_peer_that_says_too_much_is_found_out() {
        let mut ring = Receiving::new(100, 2);
        assert_eq!(ring.on_data(51), Err(Violation), "more than it was given");
        assert_eq!(ring.on_data(0), Err(Violation), "nothing");
        ring.on_data(1).expect("fits");
        ring.on_data(1).expect("fits");
        assert_eq!(ring.on_data(1), Err(Violation), "more messages than it has credits for");
    }
}
