//! Which parts of a pool are free.

/// Units of memory in the pool. A block is `1 << size` of them, at a multiple of that.
pub(crate) const UNITS: usize = 4096;
/// How many sizes of blocks there are.
pub(crate) const SIZES: usize = 8;

/// Which blocks of the pool are free. The units of a block that was never in use follow `fresh`;
/// those of others are in a list for each size. Blocks are not joined or divided: the pool is there
/// for a moment of need, and its users free their memory soon.
pub(crate) struct Blocks {
    fresh: usize,
    /// The first free block of each size, as its unit plus one; 0 is none.
    first: [u16; SIZES],
    /// For the first unit of a free block: the next one in its list.
    next: [u16; UNITS],
}

impl Blocks {
    pub(crate) const NEW: Self = Self { fresh: 0, first: [0; SIZES], next: [0; UNITS] };

    /// Allocates a block of a size, and returns its unit.
    pub(crate) fn take(&mut self, size: usize) -> Option<usize> {
        let first = self.first.get_mut(size)?;
        if let Some(unit) = usize::from(*first).checked_sub(1) {
            *first = *self.next.get(unit)?;
            return Some(unit);
        }
        let units = 1 << size;
        let unit = self.fresh.next_multiple_of(units);
        let end = unit + units;
        if end > UNITS {
            return None;
        }
        self.fresh = end;
        Some(unit)
    }

    /// Frees a block of a size.
    pub(crate) fn give(&mut self, size: usize, unit: usize) {
        if let (Some(first), Some(next)) = (self.first.get_mut(size), self.next.get_mut(unit)) {
            *next = *first;
            *first = (unit + 1) as u16;
        }
    }
}
