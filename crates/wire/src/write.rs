//! Appending to a slice.

use crate::Truncated;

/// The part of an output slice not yet written.
pub(crate) struct Writer<'a> {
    left: &'a mut [u8],
    written: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { left: out, written: 0 }
    }

    /// Lets `emit` fill the next `N` bytes.
    pub(crate) fn array<const N: usize>(
        &mut self,
        emit: impl FnOnce(&mut [u8; N]),
    ) -> Result<(), Truncated> {
        let out = self.take(N)?;
        emit(out.first_chunk_mut().ok_or(Truncated)?);
        Ok(())
    }

    /// Lets `emit` fill what it needs of the rest; it returns how much that was.
    pub(crate) fn variable(
        &mut self,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, Truncated>,
    ) -> Result<(), Truncated> {
        let len = emit(self.left)?;
        self.take(len).map(|_| ())
    }

    /// Copies `bytes`.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Truncated> {
        self.take(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes `n` zeros.
    pub(crate) fn zeros(&mut self, n: usize) -> Result<(), Truncated> {
        self.take(n)?.fill(0);
        Ok(())
    }

    /// Bytes written so far.
    pub(crate) const fn written(&self) -> usize {
        self.written
    }

    /// The next `n` bytes, to be written.
    pub(crate) fn take(&mut self, n: usize) -> Result<&'a mut [u8], Truncated> {
        let out = self.left.split_off_mut(..n).ok_or(Truncated)?;
        self.written += n;
        Ok(out)
    }
}
