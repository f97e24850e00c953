//! How a consumer that is about to sleep asks for an event.
//!
//! A consumer asks and then looks at the queue; a producer publishes entries and then takes what
//! was asked for. Neither waits for the other.
//!
//! # Why no entry is slept over
//!
//! Every access to an [`EventRequest`] is a read-modify-write that acquires and releases. Of any
//! two of them, the later one sees everything that happened before the earlier one: either the
//! producer takes the request, or the consumer, which looks afterwards, finds the entries.
//!
//! # Why of several queues one gives the event
//!
//! A consumer of several queues sets [`OneEvent`], then asks each queue, then looks at all. A
//! producer takes the request of its queue and then this. By the argument above, the producer whose
//! entry the consumer does not find has taken the request of its queue, and it sees that the
//! consumer waits unless another producer has seen that before. [`OneEvent`] is taken once for each
//! time that it is set, and so is the event given.

use core::fmt;

use crate::sync::{AtomicBool, AtomicU8, Ordering};

/// What the consumer of a queue wants to be woken for: a set of bits, whose meaning is the
/// caller's.
pub struct EventRequest(AtomicU8);

impl EventRequest {
    /// The consumer wants nothing.
    pub fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The consumer wants to be woken for these as well, and looks at the queue once more.
    pub fn ask(&self, bits: u8) {
        self.0.fetch_or(bits, Ordering::AcqRel);
    }

    /// The consumer takes back all but these.
    pub fn keep(&self, bits: u8) {
        self.0.fetch_and(bits, Ordering::AcqRel);
    }

    /// What was asked for since the last call. The caller has published entries before.
    #[inline]
    pub fn take(&self) -> u8 {
        self.0.swap(0, Ordering::AcqRel)
    }
}

impl Default for EventRequest {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for EventRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventRequest").field(&self.0.load(Ordering::Relaxed)).finish()
    }
}

/// Whether a consumer of several queues waits for an event, which one of them gives.
pub struct OneEvent(AtomicBool);

impl OneEvent {
    /// The consumer does not wait.
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The consumer is about to ask each queue.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the consumer waits for an event.
    pub fn is_pending(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Whether the consumer waits for an event, which it gets now. The caller has taken the request
    /// of its queue before.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

impl Default for OneEvent {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for OneEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OneEvent").field(&self.is_pending()).finish()
    }
}
