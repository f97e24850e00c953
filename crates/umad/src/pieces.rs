//! Long datagrams in pieces that a socket takes.
//!
//! Messages of subnet administration can be longer than what a socket takes at once. Each piece
//! begins with the length of the whole and its own place in it. Pieces of one datagram follow each
//! other without anything in between.

use crate::bytes::Bytes;

/// Bytes in front of a piece.
pub const HEAD_LEN: usize = 8;
/// Bytes of a piece at most.
pub const MAX_PIECE: usize = 48 << 10;
/// Bytes of a datagram at most: a message of 65536 segments.
pub const MAX_LEN: usize = 16 << 20;

/// What a piece says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Bytes of the whole.
    pub total: usize,
    /// Bytes in front of this piece.
    pub offset: usize,
}

impl Piece {
    /// Reads the head of a piece; `None` if there is none.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let (total, offset) = (bytes.word()? as usize, bytes.word()? as usize);
        (total <= MAX_LEN && offset <= total).then_some(Self { total, offset })
    }
}

/// The pieces of a datagram, which has at most [`MAX_LEN`] bytes.
pub fn pieces(whole: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    whole.chunks(MAX_PIECE).enumerate().map(|(index, part)| {
        let offset = index * MAX_PIECE;
        let head = [whole.len() as u32, offset as u32].map(u32::to_ne_bytes);
        [head.as_flattened(), part].concat()
    })
}

/// Joins pieces that arrive one by one.
#[derive(Debug, Default)]
pub struct Joiner(Vec<u8>);

impl Joiner {
    /// Takes a piece. The last one returns the whole; a piece that does not follow the one before
    /// begins anew.
    pub fn take(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        let head = Piece::parse(piece)?;
        if head.offset == 0 {
            self.0.clear();
        }
        if head.offset != self.0.len() {
            self.0.clear();
            return None;
        }
        self.0.extend_from_slice(&piece[HEAD_LEN..]);
        match self.0.len() {
            len if len > head.total => {
                self.0.clear();
                None
            }
            len => (len == head.total).then(|| std::mem::take(&mut self.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_datagram_arrives_whole() {
        let long: Vec<u8> = (0..MAX_PIECE * 2 + 5).map(|i| i as u8).collect();
        for whole in [&long[..], &long[..MAX_PIECE], &long[..64]] {
            let mut joiner = Joiner::default();
            let joined: Vec<Vec<u8>> =
                pieces(whole).filter_map(|piece| joiner.take(&piece)).collect();
            assert_eq!(joined, [whole]);
        }
    }

    #[test]
    fn pieces_that_do_not_fit_are_dropped() {
        let long = vec![1; MAX_PIECE + 5];
        let [first, second] = [0, 1].map(|n| pieces(&long).nth(n).unwrap());
        let mut joiner = Joiner::default();
        assert_eq!(joiner.take(&second), None);
        assert_eq!(joiner.take(&first), None);
        assert_eq!(joiner.take(&first), None);
        assert_eq!(joiner.take(&second), Some(long));
        assert_eq!(joiner.take(&[1, 2, 3]), None);
        assert_eq!(joiner.take(&[[0xff; 4], [0; 4]].concat()), None);
        let wrong = [&5_u32.to_ne_bytes()[..], &[0; 4], &[7; 6]].concat();
        assert_eq!(joiner.take(&wrong), None);
    }
}
