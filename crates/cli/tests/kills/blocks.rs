//! What the blocks of the disk hold: a name that says which write they are of, and bytes that
//! follow from the name, so that a block which is a mixture of two writes is recognised.

/// Bytes in a block: what a target writes at once or not at all.
pub(super) const BLOCK: usize = 512;

/// Parts of the disk. Each has one writer at a time, which numbers its writes.
pub(super) const SLOTS: u64 = 48;

/// Blocks of a part: longer ones than fit in a capsule are among the writes.
pub(super) const SLOT_BLOCKS: u64 = 64;

/// Bytes of the disk.
pub(super) const SIZE: u64 = SLOTS * SLOT_BLOCKS * BLOCK as u64;

/// Words of a block that name it: part, block of the part, number of the write.
const NAME: usize = 3;

/// Numbers that look random, always the same for a seed.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // A state of zero would stay zero.
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// The bytes of a block. Those of write 0 are zeros, with which the disk begins.
pub(super) fn fill(into: &mut [u8], slot: u64, block: u64, seq: u64) {
    if seq == 0 {
        return into.fill(0);
    }
    let mut random = Random::new(slot << 48 ^ block << 40 ^ seq);
    let name = [slot, block, seq];
    for (i, word) in into.chunks_exact_mut(8).enumerate() {
        let value = if i < NAME { name[i] } else { random.next() };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// The bytes of blocks in a row.
pub(super) fn filled(slot: u64, first: u64, count: u64, seq: u64) -> Vec<u8> {
    let mut bytes = vec![0; count as usize * BLOCK];
    for (block, into) in (first..).zip(bytes.chunks_exact_mut(BLOCK)) {
        fill(into, slot, block, seq);
    }
    bytes
}

/// The number of the write that a block is of. None if it is not, as a whole, the block that one
/// write has put there.
pub(super) fn write_of(bytes: &[u8], slot: u64, block: u64) -> Option<u64> {
    let seq = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
    let mut expected = [0; BLOCK];
    fill(&mut expected, slot, block, seq);
    (bytes == expected).then_some(seq)
}
