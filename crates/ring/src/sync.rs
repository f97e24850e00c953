//! The primitives the rings are built from: those of `core` and `alloc`, or loom's stand-ins for
//! them when a model is being checked.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence},
    },
};

#[cfg(not(loom))]
pub(crate) use self::native::UnsafeCell;
#[cfg(not(loom))]
pub(crate) use alloc::sync::Arc;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// What sequentially consistent accesses order, loom orders by fences only: it takes such accesses
/// for those that acquire and release. Stands after each of the accesses that rely on it.
#[inline]
pub(crate) fn order_like_seq_cst() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// Slots per segment of ring storage. Models use short segments, to cross their borders early.
pub(crate) const SEGMENT_SLOTS: usize = if cfg!(loom) { 2 } else { 16 };

#[cfg(not(loom))]
mod native {
    /// [`core::cell::UnsafeCell`] with the closure interface of loom's.
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        #[inline]
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Lends the address for reading.
        #[inline]
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        /// Lends the address for writing.
        #[inline]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}
