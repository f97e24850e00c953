//! Bytes of an input as choices. An input that ends early chooses zero from there on.

/// What is left of an input.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        first
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(core::array::from_fn(|_| self.u8()))
    }

    /// True one time in two, by the lowest bit.
    pub(crate) fn flag(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// A number below `n`, which must not be zero.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        let number = if n <= 256 { usize::from(self.u8()) } else { usize::from(self.u16()) };
        number % n
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// The next `n` bytes, or as many as there are.
    pub(crate) fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(n.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }
}
