//! A connection of a program: pieces of datagrams in both directions.

use std::collections::VecDeque;

use feroce_link::port::{PortSocket, Sent};
use feroce_subnet::{FileId, UserMad};
use feroce_umad::{Joiner, pieces};

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) socket: PortSocket,
    /// The port that it has open, once its request was answered.
    pub(super) file: Option<FileId>,
    pub(super) joiner: Joiner,
    /// Pieces that the socket has no room for yet, and whether they are the last of a datagram.
    outgoing: VecDeque<(Vec<u8>, bool)>,
    /// The fabric waits until the socket has room.
    pub(super) is_full: bool,
}

impl Conn {
    pub(super) fn new(socket: PortSocket) -> Self {
        let (outgoing, joiner) = (VecDeque::new(), Joiner::default());
        Self { socket, file: None, joiner, outgoing, is_full: false }
    }

    pub(super) fn queue(&mut self, mad: &UserMad) {
        let bytes = mad.to_bytes();
        let mut rest = pieces(&bytes).peekable();
        while let Some(piece) = rest.next() {
            self.outgoing.push_back((piece, rest.peek().is_none()));
        }
    }

    /// Sends what the socket has room for. Returns how many datagrams have left whole, or `None` if
    /// the program is gone.
    pub(super) fn flush(&mut self) -> Option<usize> {
        let mut whole = 0;
        while let Some((piece, is_last)) = self.outgoing.front() {
            match self.socket.send(piece) {
                Sent::Done => {
                    whole += usize::from(*is_last);
                    self.outgoing.pop_front();
                }
                Sent::Full => break,
                Sent::Gone => return None,
            }
        }
        Some(whole)
    }

    pub(super) fn has_more(&self) -> bool {
        !self.outgoing.is_empty()
    }
}
