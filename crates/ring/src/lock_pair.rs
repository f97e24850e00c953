//! Two values with a lock each, in one word: a thread that needs both takes and releases them at
//! the price of one.
//!
//! The outer lock comes before the inner one: a thread that has the inner lock never waits for the
//! outer one. Threads on the data path only try the outer lock. A thread that waits does so in the
//! [`Park`] of the caller: this module neither sleeps nor wakes a thread.
//!
//! # Why a lock has one owner
//!
//! `word` has a bit for each lock. A bit is set only by a compare-and-exchange that found it clear,
//! and cleared only by the guard of the thread that set it. Taking acquires and releasing releases,
//! so the next owner sees what the last one wrote. All changes of `word` are read-modify-writes:
//! nothing ends what a release began.
//!
//! # Why every waiting thread is woken
//!
//! A thread adds itself to the count in `word` before it tries again and parks. The release of the
//! lock is a read-modify-write of the same word, so one comes first:
//!
//! * Count, then release: the releasing thread finds the count and unparks. [`Park::park_until`]
//!   lets no [`Park::unpark_all`] pass between a failed attempt and the sleep.
//! * Release, then count: the attempt that follows finds the lock free, or a new owner, which
//!   releases after the count.
//!
//! # Why every waiting thread gets its lock
//!
//! A thread that releases a lock and takes it again at once does so before those that it unparked
//! are awake. A thread that has lost [`PATIENCE`] attempts therefore makes itself the next owner,
//! unless another is: until it has the lock, no other thread takes it. Since it tries whenever the
//! lock is released, it waits for one owner more, and then another thread can be the next.
//!
//! # Claims
//!
//! A thread that takes the outer lock again and again may claim it: other threads that try it then
//! leave their work to that thread, between its turns as well, and those that wait still get it.
//! The claiming thread ends its claim before it looks at the doorbells for the last time, so it is
//! to those that ring them like an owner that releases the lock.
//!
//! # Why the owner of the outer lock sees the doorbells
//!
//! Taking and releasing are sequentially consistent, for the sake of
//! [`DoorbellSet::is_rung_meanwhile`](crate::DoorbellSet::is_rung_meanwhile); see `doorbell`.

use core::fmt;
use core::hint::cold_path;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr;

use crate::sync::{AtomicU64, Ordering, UnsafeCell, order_like_seq_cst};

/// The outer lock is taken.
const OUTER: u64 = 1;
/// The inner lock is taken.
const INNER: u64 = 2;
/// A thread claims the outer lock.
const CLAIMED: u64 = 4;
/// A thread that waits is the next owner of the outer lock.
const OUTER_NEXT: u64 = 8;
/// A thread that waits is the next owner of the inner lock.
const INNER_NEXT: u64 = 16;
/// One thread that waits for the outer lock. The count has 27 bits; Linux has at most 2^22 threads.
const OUTER_WAITER: u64 = 1 << 5;
/// One thread that waits for the inner lock.
const INNER_WAITER: u64 = 1 << 32;
/// All threads that wait for the outer lock.
const OUTER_WAITERS: u64 = INNER_WAITER - OUTER_WAITER;
/// All threads that wait for the inner lock.
const INNER_WAITERS: u64 = !(INNER_WAITER - 1);

/// How many attempts a waiting thread loses to others before it is the next owner. One that spins
/// before it sleeps mostly gets the lock by that: waiting for a thread that sleeps costs the others
/// more than that thread gains.
const PATIENCE: u32 = if cfg!(loom) { 1 } else { 128 };

/// How threads wait for a lock of a [`LockPair`].
pub trait Park {
    /// Calls `take` until it returns true, and sleeps in between until
    /// [`unpark_all`](Self::unpark_all) is called. A call of that after `take` has returned false
    /// ends the sleep that follows.
    fn park_until(&self, take: &mut dyn FnMut() -> bool);

    /// Makes every thread in [`park_until`](Self::park_until) call `take` again.
    fn unpark_all(&self);
}

/// Two values, each behind a lock; see the module documentation.
pub struct LockPair<A, B, P: Park> {
    word: AtomicU64,
    outer: UnsafeCell<A>,
    inner: UnsafeCell<B>,
    park: P,
}

// SAFETY: only the thread that has the lock of a value gets a reference to it, so sharing the pair
// moves the values between threads, and shares nothing but the word and `park`.
unsafe impl<A: Send, B: Send, P: Park + Sync> Sync for LockPair<A, B, P> {}

impl<A, B, P: Park> LockPair<A, B, P> {
    /// Both locks are free.
    pub fn new(outer: A, inner: B, park: P) -> Self {
        let (outer, inner) = (UnsafeCell::new(outer), UnsafeCell::new(inner));
        Self { word: AtomicU64::new(0), outer, inner, park }
    }

    /// How threads wait for this pair.
    pub fn park(&self) -> &P {
        &self.park
    }

    /// Takes the outer lock, if no other thread has it, claims it or waits for it: a thread that
    /// tries in a loop would take it again before the waiting thread is awake.
    #[inline]
    pub fn try_outer(&self) -> Option<OuterGuard<'_, A, B, P>> {
        self.try_take(0, OUTER, OUTER | CLAIMED | OUTER_WAITERS).then(|| OuterGuard::new(self))
    }

    /// Takes both locks, on the same terms as [`try_outer`](Self::try_outer) and
    /// [`try_inner`](Self::try_inner).
    #[inline]
    pub fn try_both(&self) -> Option<BothGuards<'_, A, B, P>> {
        let barred = OUTER | INNER | INNER_NEXT | CLAIMED | OUTER_WAITERS;
        self.try_take(0, OUTER | INNER, barred)
            .then(|| (OuterGuard::new(self), InnerGuard::new(self)))
    }

    /// Takes the inner lock, if no other thread has it or is the next owner.
    #[inline]
    pub fn try_inner(&self) -> Option<InnerGuard<'_, A, B, P>> {
        // The thread mostly has the outer lock, and so the cache line.
        let word = self.word.load(Ordering::Relaxed);
        let barred = INNER | INNER_NEXT;
        (word & barred == 0 && self.try_take(word, INNER, barred)).then(|| InnerGuard::new(self))
    }

    /// Waits for the outer lock. The caller has neither.
    pub fn lock_outer(&self) -> OuterGuard<'_, A, B, P> {
        self.try_outer().unwrap_or_else(|| {
            self.wait(OUTER, OUTER_NEXT, OUTER_WAITER);
            OuterGuard::new(self)
        })
    }

    /// Waits for the inner lock. The caller does not have it.
    #[inline]
    pub fn lock_inner(&self) -> InnerGuard<'_, A, B, P> {
        self.try_inner().unwrap_or_else(|| {
            self.wait(INNER, INNER_NEXT, INNER_WAITER);
            InnerGuard::new(self)
        })
    }

    /// The calling thread claims the outer lock; one thread at a time may do so.
    pub fn claim_outer(&self) {
        self.word.fetch_or(CLAIMED, Ordering::SeqCst);
    }

    /// Takes the outer lock for the thread that claims it, if no other has it or waits for it.
    #[inline]
    pub fn try_claimed_outer(&self) -> Option<OuterGuard<'_, A, B, P>> {
        let barred = OUTER | OUTER_WAITERS;
        self.try_take(CLAIMED, OUTER, barred).then(|| OuterGuard::new(self))
    }

    /// The calling thread no longer claims the outer lock.
    pub fn end_claim(&self) {
        self.word.fetch_and(!CLAIMED, Ordering::SeqCst);
        order_like_seq_cst();
    }

    /// Whether a thread waits for the outer lock.
    pub fn is_outer_awaited(&self) -> bool {
        self.word.load(Ordering::Relaxed) & OUTER_WAITERS != 0
    }

    /// Whether a thread waits for the inner lock. A thread that has it for long, again and again,
    /// should not try it then: one that waits loses many attempts before it is the next owner.
    #[inline]
    pub fn is_inner_awaited(&self) -> bool {
        self.word.load(Ordering::Relaxed) & INNER_WAITERS != 0
    }

    /// No thread waits: those that did are in the parent of this process.
    pub fn forget_waiters(&self) {
        self.word.fetch_and(OUTER | INNER, Ordering::Relaxed);
    }

    /// Sets `bits`, unless one of `barred` is set. `word` is what the word may be.
    #[inline]
    fn try_take(&self, mut word: u64, bits: u64, barred: u64) -> bool {
        loop {
            let (won, lost) = (Ordering::SeqCst, Ordering::SeqCst);
            match self.word.compare_exchange(word, word | bits, won, lost) {
                Ok(_) => return true,
                Err(now) if now & barred != 0 => {
                    cold_path();
                    return false;
                }
                Err(now) => word = now,
            }
        }
    }

    /// Takes the lock of `bit`, as one of those that `waiter` counts. `next` says that one of them
    /// is the next owner.
    #[cold]
    fn wait(&self, bit: u64, next: u64, waiter: u64) {
        self.word.fetch_add(waiter, Ordering::Relaxed);
        let (won, lost) = (Ordering::SeqCst, Ordering::Relaxed);
        let (mut attempts, mut is_next) = (0, false);
        self.park.park_until(&mut || {
            let barred = if is_next { bit } else { bit | next };
            let owned = if is_next { next + waiter } else { waiter };
            let take = |word| (word & barred == 0).then(|| (word | bit) - owned);
            if self.word.fetch_update(won, lost, take).is_ok() {
                return true;
            }
            attempts += 1;
            if attempts >= PATIENCE && !is_next {
                is_next = self.word.fetch_or(next, Ordering::Relaxed) & next == 0;
            }
            false
        });
    }

    /// Clears `bits` and wakes those that `waiters` counts.
    #[inline]
    fn release(&self, bits: u64, waiters: u64) {
        let word = self.word.fetch_sub(bits, Ordering::SeqCst);
        order_like_seq_cst();
        if word & waiters != 0 {
            cold_path();
            self.park.unpark_all();
        }
    }
}

impl<A, B, P: Park> fmt::Debug for LockPair<A, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.word.load(Ordering::Relaxed);
        f.debug_struct("LockPair")
            .field("outer", &(word & OUTER != 0))
            .field("inner", &(word & INNER != 0))
            .finish_non_exhaustive()
    }
}

/// The outer lock of a [`LockPair`]. Dropping it releases the lock.
pub struct OuterGuard<'a, A, B, P: Park> {
    pair: &'a LockPair<A, B, P>,
    /// What the guard stands for: it may go to another thread, or be shared, as this may.
    _value: PhantomData<&'a mut A>,
}

impl<'a, A, B, P: Park> OuterGuard<'a, A, B, P> {
    /// The caller has set [`OUTER`].
    #[inline]
    fn new(pair: &'a LockPair<A, B, P>) -> Self {
        Self { pair, _value: PhantomData }
    }

    /// Releases this lock and the inner one together.
    #[inline]
    pub fn unlock_both(self, inner: InnerGuard<'a, A, B, P>) {
        if !ptr::eq(self.pair, inner.pair) {
            // Guards of two pairs: each has its own word.
            cold_path();
            return;
        }
        let (outer, _inner) = (ManuallyDrop::new(self), ManuallyDrop::new(inner));
        outer.pair.release(OUTER | INNER, OUTER_WAITERS | INNER_WAITERS);
    }
}

impl<A, B, P: Park> Drop for OuterGuard<'_, A, B, P> {
    #[inline]
    fn drop(&mut self) {
        self.pair.release(OUTER, OUTER_WAITERS);
    }
}

impl<A, B, P: Park> Deref for OuterGuard<'_, A, B, P> {
    type Target = A;

    #[inline]
    fn deref(&self) -> &A {
        // SAFETY: this guard has the lock, and is borrowed for as long as the reference lives, so
        // that no reference for writing exists.
        self.pair.outer.with(|value| unsafe { &*value })
    }
}

impl<A, B, P: Park> DerefMut for OuterGuard<'_, A, B, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut A {
        // SAFETY: this guard has the lock, and is borrowed for writing for as long as the reference
        // lives, so that no other reference exists.
        self.pair.outer.with_mut(|value| unsafe { &mut *value })
    }
}

impl<A: fmt::Debug, B, P: Park> fmt::Debug for OuterGuard<'_, A, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Both locks of a [`LockPair`].
pub type BothGuards<'a, A, B, P> = (OuterGuard<'a, A, B, P>, InnerGuard<'a, A, B, P>);

/// The inner lock of a [`LockPair`]. Dropping it releases the lock.
pub struct InnerGuard<'a, A, B, P: Park> {
    pair: &'a LockPair<A, B, P>,
    /// What the guard stands for: it may go to another thread, or be shared, as this may.
    _value: PhantomData<&'a mut B>,
}

impl<'a, A, B, P: Park> InnerGuard<'a, A, B, P> {
    /// The caller has set [`INNER`].
    #[inline]
    fn new(pair: &'a LockPair<A, B, P>) -> Self {
        Self { pair, _value: PhantomData }
    }
}

impl<A, B, P: Park> Drop for InnerGuard<'_, A, B, P> {
    #[inline]
    fn drop(&mut self) {
        self.pair.release(INNER, INNER_WAITERS);
    }
}

impl<A, B, P: Park> Deref for InnerGuard<'_, A, B, P> {
    type Target = B;

    #[inline]
    fn deref(&self) -> &B {
        // SAFETY: this guard has the lock, and is borrowed for as long as the reference lives, so
        // that no reference for writing exists.
        self.pair.inner.with(|value| unsafe { &*value })
    }
}

impl<A, B, P: Park> DerefMut for InnerGuard<'_, A, B, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut B {
        // SAFETY: this guard has the lock, and is borrowed for writing for as long as the reference
        // lives, so that no other reference exists.
        self.pair.inner.with_mut(|value| unsafe { &mut *value })
    }
}

impl<A, B: fmt::Debug, P: Park> fmt::Debug for InnerGuard<'_, A, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    /// A thread that would have to wait finds an owner that counts how often it is woken.
    #[derive(Default)]
    struct Never {
        unparked: Cell<u32>,
    }

    impl Park for Never {
        fn park_until(&self, take: &mut dyn FnMut() -> bool) {
            assert!(take(), "the test waits for itself");
        }

        fn unpark_all(&self) {
            self.unparked.set(self.unparked.get() + 1);
        }
    }

    fn pair() -> LockPair<u32, u32, Never> {
        LockPair::new(1, 2, Never::default())
    }

    #[test]
    fn each_lock_has_one_owner() {
        let pair = pair();
        let outer = pair.try_outer().unwrap();
        assert!(pair.try_outer().is_none());
        assert!(pair.try_both().is_none());
        let inner = pair.try_inner().unwrap();
        assert!(pair.try_inner().is_none());
        drop(outer);
        assert!(pair.try_both().is_none(), "the inner lock is taken");
        drop(pair.try_outer().unwrap());
        drop(inner);
        let (mut outer, mut inner) = pair.try_both().unwrap();
        (*outer, *inner) = (3, 4);
        outer.unlock_both(inner);
        assert_eq!((*pair.lock_outer(), *pair.lock_inner()), (3, 4));
        assert_eq!(pair.park.unparked.get(), 0);
    }

    #[test]
    fn guards_of_two_pairs_release_their_own() {
        let (one, other) = (pair(), pair());
        one.try_outer().unwrap().unlock_both(other.try_inner().unwrap());
        assert!(one.try_both().is_some());
        assert!(other.try_both().is_some());
    }

    #[test]
    fn a_claim_keeps_others_from_trying_and_not_from_waiting() {
        let pair = pair();
        pair.claim_outer();
        assert!(pair.try_outer().is_none() && pair.try_both().is_none());
        let outer = pair.try_claimed_outer().unwrap();
        assert!(pair.try_claimed_outer().is_none());
        drop(outer);
        drop(pair.lock_outer());
        assert!(pair.try_inner().is_some());
        pair.word.fetch_add(OUTER_WAITER, Ordering::Relaxed);
        assert!(pair.try_claimed_outer().is_none(), "a thread waits");
        pair.word.fetch_sub(OUTER_WAITER, Ordering::Relaxed);
        assert_eq!(pair.park.unparked.get(), 0);
        pair.end_claim();
        assert!(pair.try_both().is_some());
    }

    #[test]
    fn a_waiting_thread_goes_first_and_is_woken() {
        let pair = pair();
        let outer = pair.lock_outer();
        pair.word.fetch_add(OUTER_WAITER, Ordering::Relaxed);
        assert!(pair.is_outer_awaited());
        drop(outer);
        assert_eq!(pair.park.unparked.get(), 1);
        assert!(pair.try_outer().is_none());
        assert!(pair.try_both().is_none());
        assert!(pair.try_inner().is_some(), "no thread waits for the inner lock");
        pair.forget_waiters();
        assert!(pair.try_both().is_some());
    }

    /// Waits like a thread that is slow to wake up: between two attempts, another thread takes the
    /// lock and releases it, if it can.
    struct Slow<'a> {
        attempts: Cell<u32>,
        pair: Cell<Option<&'a LockPair<(), (), Self>>>,
    }

    impl Park for Slow<'_> {
        fn park_until(&self, take: &mut dyn FnMut() -> bool) {
            let pair = self.pair.get().expect("the test has set it");
            loop {
                let other = pair.try_inner();
                self.attempts.set(self.attempts.get() + 1);
                if take() {
                    assert!(other.is_none());
                    return;
                }
            }
        }

        fn unpark_all(&self) {}
    }

    #[test]
    fn a_thread_that_has_lost_often_is_the_next_owner() {
        let park = Slow { attempts: Cell::new(0), pair: Cell::new(None) };
        let pair = LockPair::new((), (), park);
        pair.park.pair.set(Some(&pair));
        pair.wait(INNER, INNER_NEXT, INNER_WAITER);
        assert_eq!(pair.park.attempts.get(), PATIENCE + 1);
        assert!(pair.try_inner().is_none() && pair.try_both().is_none());
        pair.release(INNER, INNER_WAITERS);
        assert_eq!(pair.word.load(Ordering::Relaxed), 0);
    }
}
