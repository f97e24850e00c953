//! A lock that one call takes and another gives back.
//!
//! `ibv_wr_start` and `ibv_start_poll` lock a queue until `ibv_wr_complete` and `ibv_end_poll`; no
//! Rust guard can live that long in between.

use core::cell::UnsafeCell;

/// A value behind a mutex of the C library.
#[derive(Debug)]
pub(crate) struct Guarded<T> {
    /// Boxed, because it must not move.
    lock: Box<UnsafeCell<libc::pthread_mutex_t>>,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock accesses the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

// SAFETY: the mutex stays at its address on the heap, and a value that moves is not borrowed, so no
// thread holds the lock.
unsafe impl<T: Send> Send for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        let lock = Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
        Self { lock, value: UnsafeCell::new(value) }
    }

    /// Does something under the lock.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.hold();
        // SAFETY: `hold` has taken the lock for this thread, and `f` gets the only reference to the
        // value.
        let result = f(unsafe { self.held() });
        // SAFETY: `hold` has taken the lock for this thread, and the reference that `f` had is
        // gone.
        unsafe { self.release() };
        result
    }

    /// Takes the lock and keeps it.
    #[inline]
    pub(crate) fn hold(&self) {
        // SAFETY: the mutex is initialised and does not move. A thread that locks it twice waits
        // for ever, as with rdma-core.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    /// The value.
    ///
    /// # Safety
    /// This thread holds the lock, and has no other reference to the value.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: by this function's contract this thread holds the lock, so no other thread has a
        // reference, and neither has this one.
        unsafe { &mut *self.value.get() }
    }

    /// Gives the lock back.
    ///
    /// # Safety
    /// This thread holds the lock, and has no reference to the value any more.
    #[inline]
    pub(crate) unsafe fn release(&self) {
        // SAFETY: the mutex is initialised, and by this function's contract this thread has locked
        // it.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }
}
