//! Consumers to wake, and messages to emit, after the device's locks are released.
//!
//! A waker is foreign code: it may run a task or drop one, and with it the last queue pair or
//! context of the device, whose destruction takes the locks. The engine's events therefore
//! only enter their queues under a lock, and the queues are noted here. The thread that releases
//! the lock then signals them: it writes to their descriptors and calls their wakers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feroce_link::LogSink;
use tracing::Level;

/// What waits for the lock to be released: a queue of events whose consumers can be woken, or a
/// message.
pub(crate) trait Signal: Send + Sync + fmt::Debug {
    /// Wakes the consumers, if an event waits; emits the message. Called without a lock of the
    /// device.
    fn signal(&self);
}

/// Queues to signal, in the order of their events; one entry for each event. The buffer is reused.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    /// How many there are, so that a thread that releases the lock mostly pays for one load.
    len: AtomicUsize,
    queues: Mutex<VecDeque<Arc<dyn Signal>>>,
}

/// The lock of the list.
pub(super) type HeldWakes<'a> = MutexGuard<'a, VecDeque<Arc<dyn Signal>>>;

impl Wakes {
    pub(super) fn hold(&self) -> HeldWakes<'_> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards the list in a forked child: the queues belong to the parent, which signals them.
    pub(super) fn leave_to_parent(&self, mut held: HeldWakes<'_>) {
        std::mem::forget(std::mem::take(&mut *held));
        self.len.store(0, Ordering::Relaxed);
    }

    /// Notes a queue. It is also kept until the lock is released: dropping the last handle of a
    /// queue drops its wakers.
    pub(crate) fn add(&self, queue: Arc<dyn Signal>) {
        let mut queues = self.hold();
        queues.push_back(queue);
        self.len.store(queues.len(), Ordering::Relaxed);
    }

    /// Emits a warning when the lock is released.
    pub(crate) fn warn(&self, text: fmt::Arguments<'_>) {
        self.log(Level::WARN, text.to_string());
    }

    /// Whether every queue that this thread has noted was taken from the list since.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }

    /// Signals every queue. The caller holds no lock of the device.
    #[inline]
    pub(crate) fn run(&self) {
        if !self.is_empty() {
            self.run_all();
        }
    }

    #[cold]
    fn run_all(&self) {
        while let Some(queue) = self.take() {
            queue.signal();
        }
    }

    fn take(&self) -> Option<Arc<dyn Signal>> {
        let mut queues = self.hold();
        let queue = queues.pop_front();
        self.len.store(queues.len(), Ordering::Relaxed);
        queue
    }
}

/// Messages of carriers are emitted after the lock is released, too: a `tracing` subscriber is
/// foreign code.
impl LogSink for Wakes {
    fn log(&self, level: Level, text: String) {
        self.add(Arc::new(Message { level, text }));
    }
}

/// A message for the user, which waits to be emitted.
#[derive(Debug)]
struct Message {
    level: Level,
    text: String,
}

impl Signal for Message {
    fn signal(&self) {
        feroce_link::emit(self.level, &self.text);
    }
}

/// Wakes consumers when dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct WakeOnDrop<'a> {
    wakes: &'a Wakes,
}

impl<'a> WakeOnDrop<'a> {
    pub(super) fn new(wakes: &'a Wakes) -> Self {
        Self { wakes }
    }
}

impl Drop for WakeOnDrop<'_> {
    #[inline]
    fn drop(&mut self) {
        self.wakes.run();
    }
}
