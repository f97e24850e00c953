//! Registered buffers that are borrowed as slices while no peer can touch them.
#![allow(unsafe_code, reason = "slices of registered memory; see the invariant of `Buf`")]

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use feroce_engine::{Data, RecvWr, Remote, Sge, SgeList};
use feroce_mem::{Access, Iova};

use crate::Error;
use crate::mr::Mr;
use crate::pd::Pd;

/// A pool of registered buffers of one length. Cheap to clone; all clones are the same pool.
///
/// An [`Mr`] never lends its bytes, because a peer may change them at any time. Only the holder of
/// a [`Buf`] can change its bytes, so those are a slice: the program writes a message where the
/// adapter reads it, and reads one where the adapter has placed it, without a copy.
///
/// ```
/// # use feroce::{Access, Device, Pool, QpCap, Router, SendOp};
/// # let context = Device::at(["127.0.0.41".parse()?]).open()?;
/// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
/// # let mut qp = pd.rc_qp(&cq, &cq, QpCap::new(8, 8)).create()?;
/// # qp.connect(&qp.endpoint()?)?; // to itself
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let (pool, router) = (Pool::new(&pd, 16, 4096)?, Router::new(&cq));
/// let received = router.recv_buf(&mut qp, pool.take().await)?;
/// let mut message = pool.take().await;
/// message[..5].copy_from_slice(b"hello");
/// let sent = router.send_buf(&mut qp, SendOp::Send, message, 0..5)?;
/// // The buffers belong to the requests, and come back with their completions.
/// let (cqe, buf) = received.await;
/// let buf = buf.expect("the queue pair is there");
/// assert_eq!(&buf[..cqe.byte_len as usize], b"hello");
/// let (_, message) = sent.await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Why a slice is sound
///
/// * The registration grants local access only, and its memory key is never told: no peer reaches a
///   buffer with it, and no window can be bound to it.
/// * A [`Router`](crate::Router) takes the buffer of a request away from the program, and gives it
///   back with the completion, after which the adapter does not touch the bytes. If the future of
///   the request is dropped, the router keeps the buffer until then. If no completion comes,
///   because the queue pair was destroyed before, the buffer does not return to the pool: it is
///   lost rather than used twice.
/// * [`Buf::expose`] takes the buffer away as well, and registers it once more under a key of its
///   own that peers may use. [`Exposed::withdraw`] gives it back after that key has ended and every
///   access with it is over.
///
/// A program that guesses keys and forges requests with them is beyond this, as is one that writes
/// to its own memory through a file of the operating system.
#[derive(Clone, Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    mr: Mr,
    len: usize,
    free: Mutex<Free>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the memory key, which must stay unknown.
        f.debug_struct("Pool").field("len", &self.len).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Free {
    slots: Vec<usize>,
    waiting: VecDeque<Waker>,
}

impl Inner {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// Registers `count` buffers of `len` bytes, rounded up to a multiple of 64.
    pub fn new(pd: &Pd, count: usize, len: usize) -> Result<Self, Error> {
        let len = len.max(1).checked_next_multiple_of(64).ok_or(Error::OutOfBounds)?;
        let bytes = len.checked_mul(count.max(1)).ok_or(Error::OutOfBounds)?;
        let mr = pd.alloc_mr(bytes, Access::LOCAL_WRITE)?;
        // The first is taken first: a program that uses few of them touches few pages.
        let free = Free { slots: (0..count).rev().collect(), waiting: VecDeque::new() };
        Ok(Self { inner: Arc::new(Inner { mr, len, free: Mutex::new(free) }) })
    }

    /// Length of each buffer.
    pub fn buf_len(&self) -> usize {
        self.inner.len
    }

    /// How many buffers can be taken now.
    pub fn available(&self) -> usize {
        self.inner.free().slots.len()
    }

    /// Takes a buffer, if there is one. Its bytes are those of its last use.
    pub fn try_take(&self) -> Option<Buf> {
        let slot = self.inner.free().slots.pop()?;
        Some(Buf { pool: Arc::clone(&self.inner), slot, lost: false })
    }

    /// Takes a buffer, as soon as there is one. Its bytes are those of its last use.
    pub async fn take(&self) -> Buf {
        poll_fn(|cx| {
            let mut free = self.inner.free();
            if let Some(slot) = free.slots.pop() {
                return Poll::Ready(Buf { pool: Arc::clone(&self.inner), slot, lost: false });
            }
            if !free.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                free.waiting.push_back(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

/// A buffer of a [`Pool`], which it returns to when dropped.
///
/// Invariant: each slot of a pool has one `Buf` at most, and while the program holds it, no work
/// request and no key that a peer can use names the bytes.
pub struct Buf {
    pool: Arc<Inner>,
    slot: usize,
    /// Does not return to the pool.
    lost: bool,
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("slot", &self.slot).field("len", &self.pool.len).finish()
    }
}

impl Buf {
    fn start(&self) -> usize {
        self.slot * self.pool.len
    }

    fn pointer(&self) -> *mut u8 {
        let addr = self.pool.mr.region().addr() as usize + self.start();
        // A region has exposed the provenance of its bytes.
        std::ptr::with_exposed_provenance_mut(addr)
    }

    /// Names bytes to a request that owns the buffer. Bytes beyond its end are another buffer's, so
    /// the range is cut there.
    fn sge(&self, range: Range<usize>) -> Sge {
        let end = range.end.min(self.pool.len);
        let begin = self.start() + range.start.min(end);
        self.pool.mr.sge(begin..self.start() + end)
    }

    /// The data of a request that owns the buffer.
    pub(crate) fn data(&self, range: Range<usize>) -> Data {
        Data::Sges(SgeList::from(self.sge(range)))
    }

    /// A receive that owns the buffer.
    pub(crate) fn recv(&self, wr_id: u64) -> RecvWr {
        RecvWr { wr_id, sges: SgeList::from(self.sge(0..self.pool.len)) }
    }

    /// Drops the buffer of a request whose completion will not come: it does not return to the
    /// pool, because the adapter may still access it. Its memory ends with the pool, whose
    /// registration ends before.
    pub(crate) fn lose(mut self) {
        self.lost = true;
    }

    /// Lets peers access the buffer, as far as `access` says, until it is withdrawn.
    ///
    /// ```
    /// # use feroce::{Access, Device, Pool};
    /// # let context = Device::at(["127.0.0.42".parse()?]).open()?;
    /// # let pool = Pool::new(&context.alloc_pd()?, 1, 4096)?;
    /// # let mut buf = pool.try_take().unwrap();
    /// buf[..5].copy_from_slice(b"hello");
    /// let exposed = buf.expose(Access::REMOTE_READ)?;
    /// let to_tell_the_peer = exposed.remote();
    /// // ... which reads it, and says so.
    /// let buf = exposed.withdraw();
    /// # assert_eq!(&buf[..5], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expose(self, access: Access) -> Result<Exposed, Error> {
        let part = self.start()..self.start() + self.pool.len;
        let region = Arc::clone(self.pool.mr.region());
        let mr = Mr::register(self.pool.mr.pd(), region, part, Iova::Natural, access)?;
        Ok(Exposed { mr, buf: self })
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot lies inside the region, whose bytes are initialised and stay allocated
        // as long as the pool, which this holds. By the invariant, nothing else accesses them
        // while the program can call this.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.pool.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; this borrow is unique, and there is no other buffer of the slot.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.pool.len) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.lost {
            return;
        }
        let mut free = self.pool.free();
        free.slots.push(self.slot);
        // A task that has been woken may have been dropped, so all of them look.
        let waiting = std::mem::take(&mut free.waiting);
        drop(free);
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A buffer that peers may access; see [`Buf::expose`]. Dropping it withdraws it.
#[derive(Debug)]
pub struct Exposed {
    // Declared first, so that the key ends before the buffer returns to its pool.
    mr: Mr,
    buf: Buf,
}

impl Exposed {
    /// What a peer needs to access the first byte.
    pub fn remote(&self) -> Remote {
        self.mr.remote(0)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.mr.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.mr.is_empty()
    }

    /// Ends the rights of peers, waits until every access that has begun is over, and gives the
    /// buffer back.
    pub fn withdraw(self) -> Buf {
        let Self { mr, buf } = self;
        drop(mr);
        buf
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;
    use crate::Device;

    fn pool(count: usize) -> Pool {
        let device = Device::at(["127.0.0.43".parse().unwrap()]);
        Pool::new(&device.open().unwrap().alloc_pd().unwrap(), count, 100).unwrap()
    }

    #[test]
    fn buffers_do_not_overlap_and_come_back() {
        let pool = pool(4);
        assert_eq!((pool.buf_len(), pool.available()), (128, 4));
        let mut all: Vec<Buf> = std::iter::from_fn(|| pool.try_take()).collect();
        assert_eq!(all.len(), 4);
        for (i, buf) in (0..).zip(&mut all) {
            buf.fill(i);
        }
        for (i, buf) in (0..).zip(&all) {
            assert!(buf.iter().all(|&byte| byte == i));
        }
        drop(all);
        assert_eq!(pool.available(), 4);
    }

    #[test]
    fn a_request_names_bytes_of_its_buffer_alone() {
        let pool = pool(2);
        let (first, second) = (pool.try_take().unwrap(), pool.try_take().unwrap());
        let base = pool.inner.mr.addr();
        let place = |sge: Sge| (sge.addr - base, sge.len);
        assert_eq!(place(first.sge(0..1000)), (0, 128));
        assert_eq!(place(second.sge(100..1000)), (228, 28));
        assert_eq!(place(second.sge(500..1000)).1, 0);
    }

    #[test]
    fn a_task_gets_the_buffer_that_comes_back() {
        let pool = pool(1);
        let held = pool.try_take().unwrap();
        let mut waits = std::pin::pin!(pool.take());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        drop(held);
        assert!(waits.as_mut().poll(&mut cx).is_ready());
    }
}
