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

// SAFETY: the value is only reached by the thread that holds the lock.
unsafe impl<T: Send> Sync for Guarded<T> {}

// SAFETY: the mutex is in its place on the heap, and nobody holds it while it can be moved.
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
        // SAFETY: this thread has just taken the lock.
        let result = f(unsafe { self.held() });
        // SAFETY: as above; the reference is gone.
        unsafe { self.release() };
        result
    }

    /// Takes the lock and keeps it.
    #[inline]
    pub(crate) fn hold(&self) {
        // SAFETY: an initialised mutex that does not move. Locking it twice hangs, as verbs do.
        unsafe { libc::pthread_mutex_lock(self.lock.get()) };
    }

    /// The value.
    ///
    /// # Safety
    /// This thread holds the lock, and has no other reference to the value.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(crate) unsafe fn held(&self) -> &mut T {
        // SAFETY: exclusive, as the caller says.
        unsafe { &mut *self.value.get() }
    }

    /// Gives the lock back.
    ///
    /// # Safety
    /// This thread holds it, and has no reference to the value any more.
    #[inline]
    pub(crate) unsafe fn release(&self) {
        // SAFETY: an initialised mutex, locked by this thread.
        unsafe { libc::pthread_mutex_unlock(self.lock.get()) };
    }
}
