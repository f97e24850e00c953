//! Access flags of memory regions and windows, and rights as types.

use core::fmt;

use bitflags::bitflags;

use crate::InvalidAccess;

/// Protection domain: keys work only for queue pairs of the same domain (IBTA vol1 10.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
#[doc(alias = "ibv_pd")]
pub struct PdId(pub u32);

impl fmt::Display for PdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pd {}", self.0)
    }
}

bitflags! {
    /// What a memory region or window permits. The bits are those of `ibv_access_flags`.
    ///
    /// Local reads need no flag: the consumer that registers memory may always read it.
    ///
    /// ```
    /// # use feroce_mem::Access;
    /// let target = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    /// assert!(target.validate().is_ok());
    /// assert!(Access::REMOTE_WRITE.validate().is_err(), "a peer cannot have more than we");
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    #[doc(alias = "ibv_access_flags")]
    pub struct Access: u32 {
        /// The local adapter may write: receive buffers, targets of READ and atomic results.
        const LOCAL_WRITE = 1;
        /// A peer may write with RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read with RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// A peer may use atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from zero at the first byte.
        const ZERO_BASED = 1 << 5;
        /// Pages are faulted in on use; all software memory behaves like this.
        const ON_DEMAND = 1 << 6;
        /// A hint: the memory is made of huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may FLUSH to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// A hint: writes may be reordered.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// What a memory window may carry.
    pub(crate) const WINDOW: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::ZERO_BASED)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);

    /// Rights of a peer to change memory.
    pub(crate) const REMOTE_CHANGE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC);

    /// Checks the combination: a peer may not be given a right to change memory that the owner
    /// did not give to the local adapter (IBTA vol1 10.6.3.2).
    pub const fn validate(self) -> Result<(), InvalidAccess> {
        if self.intersects(Self::REMOTE_CHANGE) && !self.contains(Self::LOCAL_WRITE) {
            return Err(InvalidAccess);
        }
        Ok(())
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "so that other crates cannot implement it")]
    pub trait Sealed {}
}

/// A right that a [`Grant`](crate::Grant) carries: [`Read`], [`Write`] or [`Atomic`].
pub trait Right: sealed::Sealed + fmt::Debug {
    /// What a region must permit for the local adapter to have this right.
    const LOCAL: Access;
    /// What a region or window must permit for a peer to have this right.
    const REMOTE: Access;
    /// Whether the right is to one aligned 64-bit word rather than to any range of bytes.
    const WORD: bool;
}

/// A right to a range of bytes that may be divided: [`Read`] or [`Write`].
pub trait Bytewise: Right {}

/// The right to copy bytes out.
#[derive(Clone, Copy, Debug)]
pub enum Read {}

/// The right to copy bytes in.
#[derive(Clone, Copy, Debug)]
pub enum Write {}

/// The right to operate atomically on one aligned 64-bit word.
#[derive(Clone, Copy, Debug)]
pub enum Atomic {}

impl sealed::Sealed for Read {}
impl sealed::Sealed for Write {}
impl sealed::Sealed for Atomic {}

impl Right for Read {
    const LOCAL: Access = Access::empty();
    const REMOTE: Access = Access::REMOTE_READ;
    const WORD: bool = false;
}

impl Right for Write {
    const LOCAL: Access = Access::LOCAL_WRITE;
    const REMOTE: Access = Access::REMOTE_WRITE;
    const WORD: bool = false;
}

impl Right for Atomic {
    const LOCAL: Access = Access::LOCAL_WRITE;
    const REMOTE: Access = Access::REMOTE_ATOMIC;
    const WORD: bool = true;
}

impl Bytewise for Read {}
impl Bytewise for Write {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_change_needs_local_write() {
        for remote in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            assert_eq!(remote.validate(), Err(InvalidAccess));
            assert_eq!((remote | Access::REMOTE_READ).validate(), Err(InvalidAccess));
            assert_eq!((remote | Access::LOCAL_WRITE).validate(), Ok(()));
        }
        assert_eq!(Access::empty().validate(), Ok(()));
        assert_eq!((Access::REMOTE_READ | Access::MW_BIND).validate(), Ok(()));
        assert_eq!(Access::all().validate(), Ok(()));
    }
}
