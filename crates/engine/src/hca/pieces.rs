//! Parts of lists of scatter/gather elements.

use crate::hca::wr::Sge;

/// A part of one scatter/gather element.
pub(crate) struct Piece<'a> {
    pub(crate) sge: &'a Sge,
    /// Where it starts; `None` if that is beyond the end of the address space.
    pub(crate) addr: Option<u64>,
    pub(crate) len: u32,
}

/// The parts of a list of elements that hold `len` bytes from `offset` on.
pub(crate) struct Pieces<'a> {
    sges: core::slice::Iter<'a, Sge>,
    offset: u64,
    left: usize,
}

impl<'a> Pieces<'a> {
    #[inline]
    pub(crate) fn new(sges: &'a [Sge], offset: u64, len: usize) -> Self {
        Self { sges: sges.iter(), offset, left: len }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a>> {
        while self.left > 0 {
            let sge = self.sges.next()?;
            let available = u64::from(sge.len).saturating_sub(self.offset);
            if available == 0 {
                self.offset -= u64::from(sge.len);
                continue;
            }
            let len = available.min(self.left as u64) as u32;
            let addr = sge.addr.checked_add(self.offset);
            self.offset = 0;
            self.left -= len as usize;
            return Some(Piece { sge, addr, len });
        }
        None
    }
}
