//! Shared receive queues.

use feroce_mem::PdId;
use feroce_ring::Consumer;

use crate::hca::error::ResizeError;
use crate::hca::id::{CqId, XrcdId};
use crate::hca::queue::SrqQueue;
use crate::hca::wr::RecvWr;

/// How a shared receive queue is made.
#[doc(alias = "ibv_srq_init_attr_ex")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInitAttr {
    /// Protection domain.
    pub pd: PdId,
    /// Receives that may be posted.
    pub max_wr: u32,
    /// Elements in a receive.
    pub max_sge: u32,
    /// Fewer receives than this raise an event, once; 0 means never.
    pub limit: u32,
    /// For XRC: the domain, and where its receives complete.
    pub xrc: Option<(XrcdId, CqId)>,
}

/// What a query of a shared receive queue shows.
///
/// ```
/// # use feroce_engine::SrqAttr;
/// fn is_armed(attr: &SrqAttr) -> bool {
///     attr.limit > 0
/// }
/// ```
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqAttr {
    /// Receives that may be posted.
    pub max_wr: u32,
    /// Elements in a receive.
    pub max_sge: u32,
    /// The limit that is armed; 0 if none.
    pub limit: u32,
}

/// The engine's side of a shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    ring: Consumer<RecvWr>,
    pub(crate) attr: SrqInitAttr,
    /// Queue pairs that take from it.
    pub(crate) users: u32,
}

impl Srq {
    /// Both sides of a queue; `None` without memory for it.
    pub(crate) fn new(attr: SrqInitAttr) -> Option<(Self, SrqQueue)> {
        let (producer, consumer) = feroce_ring::try_spsc(attr.max_wr as usize)?;
        Some((Self { ring: consumer, attr, users: 0 }, SrqQueue::new(producer, attr.max_sge)))
    }

    /// Takes the oldest receive. The flag is true if the queue has just fallen below its limit.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<(RecvWr, bool)> {
        let wr = self.ring.pop()?;
        let hit = self.attr.limit != 0 && self.ring.len() < self.attr.limit as usize;
        if hit {
            self.attr.limit = 0;
        }
        Some((wr, hit))
    }

    /// Replaces the ring, moving what waits.
    pub(crate) fn resize(&mut self, queue: &mut SrqQueue, max_wr: u32) -> Result<(), ResizeError> {
        let waiting = self.ring.len();
        if waiting > max_wr as usize {
            return Err(ResizeError::TooSmall { waiting });
        }
        let made = feroce_ring::try_spsc(max_wr as usize);
        let (mut producer, consumer) = made.ok_or(ResizeError::OutOfMemory)?;
        if !producer.reserve(waiting) {
            return Err(ResizeError::OutOfMemory);
        }
        while let Some(wr) = self.ring.pop() {
            if producer.push(wr).is_err() {
                break;
            }
        }
        self.ring = consumer;
        queue.ring = producer;
        self.attr.max_wr = max_wr;
        Ok(())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.ring.len()
    }
}
