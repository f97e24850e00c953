//! What a stream says next.

use alloc::vec::Vec;

use feroce_mem::{Grant, Read};

/// Bytes for a stream, and between them registered memory that is sent from where it is.
///
/// ```
/// # use feroce_train::{Burst, BurstPiece};
/// let mut burst = Burst::default();
/// burst.append(5).copy_from_slice(b"hello");
/// assert!(matches!(burst.pieces().next(), Some(BurstPiece::Bytes(b"hello"))));
/// assert_eq!(burst.copied(3), b"lo");
/// ```
#[derive(Debug, Default)]
pub struct Burst {
    /// The first `end` of them count. What is behind them is left of earlier bursts: to fill it
    /// with zeros each time, before the bytes of the next are written there, costs a tenth of the
    /// time that a sender takes for them.
    bytes: Vec<u8>,
    end: usize,
    /// Memory, and how many of the bytes stand before it.
    memory: Vec<(usize, Grant<Read>)>,
    memory_len: usize,
}

/// A piece of a [`Burst`]; never empty.
#[derive(Clone, Copy, Debug)]
pub enum BurstPiece<'a> {
    /// Bytes.
    Bytes(&'a [u8]),
    /// Registered memory.
    Memory(&'a Grant<Read>),
}

impl BurstPiece<'_> {
    /// How many bytes it stands for.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(grant) => grant.len(),
        }
    }

    /// Whether it stands for none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Burst {
    /// How many bytes it stands for.
    pub fn len(&self) -> usize {
        self.end + self.memory_len
    }

    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything, and gives the rights to memory back.
    pub fn clear(&mut self) {
        self.end = 0;
        self.memory.clear();
        self.memory_len = 0;
    }

    /// Appends `len` bytes of any value: the caller overwrites all of them.
    pub fn append(&mut self, len: usize) -> &mut [u8] {
        let start = self.end;
        self.end += len;
        if self.bytes.len() < self.end {
            self.bytes.resize(self.end, 0);
        }
        self.bytes.get_mut(start..self.end).unwrap_or_default()
    }

    /// Appends registered memory.
    pub fn append_memory(&mut self, grant: Grant<Read>) {
        if !grant.is_empty() {
            self.memory_len += grant.len();
            self.memory.push((self.end, grant));
        }
    }

    /// All bytes, if none of them is in registered memory.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        let bytes = self.bytes.get(..self.end).unwrap_or_default();
        self.memory.is_empty().then_some(bytes)
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = BurstPiece<'_>> {
        let starts = core::iter::once(0).chain(self.memory.iter().map(|(at, _)| *at));
        let ends = self.memory.iter().map(|(at, grant)| (*at, Some(grant)));
        let ends = ends.chain(core::iter::once((self.end, None)));
        let both = starts.zip(ends).flat_map(|(start, (end, grant))| {
            let bytes = self.bytes.get(start..end).unwrap_or_default();
            [Some(BurstPiece::Bytes(bytes)), grant.map(BurstPiece::Memory)]
        });
        both.flatten().filter(|piece| !piece.is_empty())
    }

    /// A copy of the bytes from `offset` on, as they are now.
    pub fn copied(&self, offset: usize) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len().saturating_sub(offset));
        let mut skip = offset;
        for piece in self.pieces() {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            match piece {
                BurstPiece::Bytes(bytes) => {
                    copy.extend_from_slice(bytes.get(skipped..).unwrap_or_default());
                }
                BurstPiece::Memory(grant) => {
                    let start = copy.len();
                    copy.resize(start + grant.len() - skipped, 0);
                    let copied = grant.copy_out(skipped, copy.get_mut(start..).unwrap_or_default());
                    debug_assert!(copied.is_ok(), "these are the last bytes of the grant");
                }
            }
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use feroce_mem::{Access, Iova, MrLimits, MrTable, PdId, Region};

    use super::*;

    fn memory(bytes: &[u8]) -> Grant<Read> {
        let region = Region::alloc(bytes.len()).unwrap();
        region.write_at(0, bytes).unwrap();
        let mut table = MrTable::new(1, MrLimits::default());
        let len = bytes.len();
        let key = table.reg(PdId(1), region, 0, len, Iova::ZeroBased, Access::empty()).unwrap();
        table.grant_local(PdId(1), key, 0, len as u32).unwrap()
    }

    fn burst() -> Burst {
        let mut burst = Burst::default();
        burst.append_memory(memory(b"ab"));
        burst.append(2).copy_from_slice(b"cd");
        burst.append(1).copy_from_slice(b"e");
        burst.append_memory(memory(b"fgh"));
        burst.append_memory(Grant::empty());
        burst.append_memory(memory(b"i"));
        burst.append(1).copy_from_slice(b"j");
        burst
    }

    #[test]
    fn pieces_are_in_order() {
        let burst = burst();
        let lens: Vec<(bool, usize)> = burst
            .pieces()
            .map(|piece| (matches!(piece, BurstPiece::Memory(_)), piece.len()))
            .collect();
        assert_eq!(lens, [(true, 2), (false, 3), (true, 3), (true, 1), (false, 1)]);
        assert_eq!(burst.len(), 10);
        assert_eq!(burst.as_bytes(), None);
    }

    #[test]
    fn a_copy_begins_anywhere() {
        for offset in 0..12 {
            let expected = b"abcdefghij".get(offset..).unwrap_or_default();
            assert_eq!(burst().copied(offset), expected, "from {offset}");
        }
    }

    #[test]
    fn what_is_cleared_is_empty() {
        let mut burst = burst();
        burst.clear();
        assert!(burst.is_empty() && burst.pieces().next().is_none());
        burst.append(3).copy_from_slice(b"new");
        assert_eq!(burst.as_bytes(), Some(&b"new"[..]));
    }
}
