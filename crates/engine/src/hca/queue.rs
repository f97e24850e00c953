//! The consumer's ends of send, receive and shared receive queues.
//!
//! Posting does not need the engine: the posting thread writes a work request into a ring, and a
//! doorbell tells the engine which queue pair has work. All checks that do not need the engine are
//! made here.

use alloc::sync::Arc;
use core::hint::cold_path;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering, fence};

use feroce_ring::{Doorbell, Producer};

use crate::hca::config::TransportKind;
use crate::hca::state::{QpState, QpType};
use crate::hca::wr::{Data, Dest, RecvWr, SendOp, SendWr};

/// Posting leaves as many bytes of memory to completions and answers, which cannot be refused.
const SPARE: usize = 16 * 1024;

/// Why a work request was not accepted.
///
/// ```
/// # use feroce_engine::PostError;
/// fn is_temporary(error: PostError) -> bool {
///     error == PostError::QueueFull
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostError {
    /// The queue holds as many requests as it was created for, or as there is memory for.
    QueueFull,
    /// More scatter/gather elements than the queue was created for.
    TooManySges,
    /// More inline data than the queue pair was created for.
    InlineTooLong,
    /// Inline data on an operation that brings data back, or on a local one.
    InlineNotAllowed,
    /// The service of the queue pair does not have this operation.
    OpNotSupported,
    /// The destination does not fit the service: a datagram needs one, a connection has one.
    BadDestination,
    /// The queue pair cannot take requests in its state.
    BadState(QpState),
    /// Atomic operations work on exactly eight bytes.
    BadAtomicLength,
}

impl core::fmt::Display for PostError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::QueueFull => f.write_str("queue full: poll completions before posting more"),
            Self::TooManySges => f.write_str(
                "more SGEs than the queue was created for: raise `max_send_sge` or \
                             `max_recv_sge`",
            ),
            Self::InlineTooLong => f.write_str(
                "more inline data than the queue was created for: raise `max_inline`, \
                             or use registered memory",
            ),
            Self::InlineNotAllowed => {
                f.write_str("this operation cannot take inline data: use registered memory")
            }
            Self::OpNotSupported => f.write_str("this type of queue pair lacks the operation"),
            Self::BadDestination => f.write_str(
                "the destination does not fit: datagrams name an address handle, XRC a shared \
                 receive queue, connections nothing",
            ),
            Self::BadState(s) => {
                write!(f, "nothing can be posted in {s:?}: move the queue pair on first")
            }
            Self::BadAtomicLength => f.write_str("atomic operations need exactly 8 bytes"),
        }
    }
}

impl core::error::Error for PostError {}

/// Sizes of the queues of a queue pair.
///
/// ```
/// # use feroce_engine::QpCap;
/// let cap = QpCap { max_inline: 256, ..QpCap::new(128, 512) };
/// assert_eq!(cap.max_send_sge, 4);
/// ```
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Send work requests that may be outstanding.
    pub max_send_wr: u32,
    /// Receive work requests that may be outstanding.
    pub max_recv_wr: u32,
    /// Elements in a send work request.
    pub max_send_sge: u32,
    /// Elements in a receive work request.
    pub max_recv_sge: u32,
    /// Bytes of inline data in a send work request.
    pub max_inline: u32,
}

impl QpCap {
    /// Queues of these depths, four elements per request and 64 bytes of inline data.
    pub const fn new(max_send_wr: u32, max_recv_wr: u32) -> Self {
        Self { max_send_wr, max_recv_wr, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 }
    }
}

/// What both ends of a queue pair see.
#[derive(Debug)]
pub(crate) struct QpShared {
    state: AtomicU8,
    /// An acknowledgement was requested and has not arrived.
    awaits_answer: AtomicBool,
    /// The consumer posts one request after the other.
    is_streaming: AtomicBool,
    /// The last request that could be executed at once was.
    may_go_direct: AtomicBool,
    bell: Arc<Doorbell>,
}

impl QpShared {
    pub(crate) fn new(bell: Arc<Doorbell>) -> Self {
        let no = || AtomicBool::new(false);
        let state = AtomicU8::new(QpState::Reset as u8);
        Self { state, awaits_answer: no(), is_streaming: no(), may_go_direct: no(), bell }
    }

    #[inline]
    pub(crate) fn is_streaming(&self) -> bool {
        self.is_streaming.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_awaits_answer(&self, awaits: bool) {
        self.awaits_answer.store(awaits, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set_may_go_direct(&self, may: bool) {
        self.may_go_direct.store(may, Ordering::Relaxed);
    }

    /// Makes the engine look at the queue pair again, after other queue pairs had their turn.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    pub(crate) fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::SeqCst);
        // Pairs with the fence in `RecvQueue::publish`: either the consumer sees the new state,
        // or the engine sees what was posted before.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn state(&self) -> QpState {
        QpState::from_u8(self.state.load(Ordering::Acquire))
    }
}

/// Posts send work requests to one queue pair.
#[derive(Debug)]
pub struct SendQueue {
    ring: Producer<SendWr>,
    shared: Arc<QpShared>,
    transport: TransportKind,
    /// The transport has its extensions.
    has_extensions: bool,
    qp_type: QpType,
    max_sge: u32,
    max_inline: u32,
}

impl SendQueue {
    pub(crate) fn new(
        ring: Producer<SendWr>,
        shared: Arc<QpShared>,
        (transport, has_extensions): (TransportKind, bool),
        qp_type: QpType,
        cap: &QpCap,
    ) -> Self {
        let (max_sge, max_inline) = (cap.max_send_sge, cap.max_inline);
        Self { ring, shared, transport, has_extensions, qp_type, max_sge, max_inline }
    }

    /// Posts one request and rings the doorbell.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.stage(wr)?;
        self.ring();
        Ok(())
    }

    /// Puts one request into the queue; nothing happens until [`SendQueue::ring`].
    #[inline]
    pub fn stage(&mut self, wr: SendWr) -> Result<(), PostError> {
        self.check(&wr)?;
        self.ring.vacant_sparing(SPARE).ok_or(PostError::QueueFull)?.stage(wr);
        Ok(())
    }

    /// Whether a request, one that [could be posted](SendQueue::check), might be executed at once
    /// by [`Engine::try_direct`](crate::Engine::try_direct), if it were not posted.
    #[inline]
    pub fn may_go_direct(&self) -> bool {
        self.shared.may_go_direct.load(Ordering::Relaxed) && self.ring.is_empty()
    }

    /// Publishes everything staged to the engine, but does not ring the doorbell: the caller drives
    /// the engine by [`Engine::try_fast_path`](crate::Engine::try_fast_path), or rings the doorbell
    /// afterwards.
    #[inline]
    pub fn show(&mut self) {
        self.ring.publish();
    }

    /// Hands everything staged to the engine. True: the engine has to be driven for it.
    #[inline]
    pub fn ring(&mut self) -> bool {
        self.ring.publish();
        self.shared.bell.ring()
    }

    /// Forgets everything staged and not yet handed over.
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(&mut self) {
        self.ring.unstage_all();
    }

    /// Requests that can still be posted.
    pub fn free(&mut self) -> usize {
        self.ring.free()
    }

    /// Requests that were staged and not yet handed over.
    #[inline]
    pub fn staged(&self) -> usize {
        self.ring.staged()
    }

    /// Requests that are not complete, those staged included.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.ring.len()
    }

    /// Says whether the consumer posts one request after the other, without waiting in between.
    /// Then every request requests an acknowledgement, so that one is always awaited.
    #[inline]
    pub fn set_streaming(&self, is_streaming: bool) {
        self.shared.is_streaming.store(is_streaming, Ordering::Relaxed);
    }

    /// Whether an acknowledgement was requested and has not arrived. When it arrives, the driver
    /// drives the engine.
    #[inline]
    pub fn awaits_answer(&self) -> bool {
        self.shared.awaits_answer.load(Ordering::Relaxed)
    }

    /// State of the queue pair as the engine last published it.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Whether a request could be posted, if there were room for it.
    #[inline]
    pub fn check(&self, wr: &SendWr) -> Result<(), PostError> {
        let state = self.shared.state();
        if !state.takes_sends() {
            cold_path();
            return Err(PostError::BadState(state));
        }
        let is_extended = || self.has_extensions && self.transport.extends_to(&wr.op);
        let is_spoken = self.transport.supports(&wr.op) || is_extended();
        if !self.qp_type.supports(&wr.op) || !is_spoken {
            cold_path();
            return Err(PostError::OpNotSupported);
        }
        let dest_fits = match self.qp_type {
            QpType::Ud => matches!(wr.dest, Dest::Ud { .. }),
            QpType::XrcIni => matches!(wr.dest, Dest::Xrc(_)) || wr.op.is_local(),
            _ => wr.dest == Dest::Connected,
        };
        if !dest_fits {
            cold_path();
            return Err(PostError::BadDestination);
        }
        match &wr.data {
            Data::Inline(bytes) => {
                if wr.op.is_fetch() || wr.op.is_local() {
                    cold_path();
                    return Err(PostError::InlineNotAllowed);
                }
                // The word of an atomic write is part of the request, even if `max_inline` is 0.
                let is_word = matches!(wr.op, SendOp::AtomicWrite(_));
                if !is_word && bytes.len() > self.max_inline as usize {
                    cold_path();
                    return Err(PostError::InlineTooLong);
                }
            }
            Data::Sges(sges) => {
                let most = match self.transport {
                    // The request of a READ names one key.
                    TransportKind::Iwarp if wr.op.is_fetch() => 1,
                    _ => self.max_sge as usize,
                };
                if sges.as_slice().len() > most {
                    cold_path();
                    return Err(PostError::TooManySges);
                }
            }
        }
        let is_word = matches!(
            wr.op,
            SendOp::CmpSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite(_)
        );
        if is_word && !is_word_long(&wr.data) {
            cold_path();
            return Err(PostError::BadAtomicLength);
        }
        Ok(())
    }
}

/// Whether data is as long as the word of an atomic operation. Out of line, because only atomic
/// operations need the length.
#[inline(never)]
fn is_word_long(data: &Data) -> bool {
    data.len() == 8
}

/// Posts receive work requests to one queue pair.
#[derive(Debug)]
pub struct RecvQueue {
    ring: Producer<RecvWr>,
    shared: Arc<QpShared>,
    max_sge: u32,
}

impl RecvQueue {
    pub(crate) fn new(ring: Producer<RecvWr>, shared: Arc<QpShared>, max_sge: u32) -> Self {
        Self { ring, shared, max_sge }
    }

    /// Posts one request. True: the engine has to be driven for it.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post(&mut self, wr: RecvWr) -> Result<bool, PostError> {
        self.stage(wr)?;
        Ok(self.publish())
    }

    /// Puts one request into the queue; it counts from [`RecvQueue::publish`] on.
    #[inline]
    pub fn stage(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if self.shared.state() == QpState::Reset {
            return Err(PostError::BadState(QpState::Reset));
        }
        if wr.sges.as_slice().len() > self.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        self.ring.vacant_sparing(SPARE).ok_or(PostError::QueueFull)?.stage(wr);
        Ok(())
    }

    /// Makes everything staged available. True: the engine has to be driven, because the queue
    /// pair is in error and what was posted must be flushed.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish();
        fence(Ordering::SeqCst);
        self.shared.state() == QpState::Err && self.shared.bell.ring()
    }

    /// Requests that can still be posted.
    pub fn free(&mut self) -> usize {
        self.ring.free()
    }
}

/// Posts receive work requests to a shared receive queue.
#[derive(Debug)]
pub struct SrqQueue {
    pub(crate) ring: Producer<RecvWr>,
    max_sge: u32,
}

impl SrqQueue {
    pub(crate) fn new(ring: Producer<RecvWr>, max_sge: u32) -> Self {
        Self { ring, max_sge }
    }

    /// Posts one request.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(&mut self, wr: RecvWr) -> Result<(), PostError> {
        if wr.sges.as_slice().len() > self.max_sge as usize {
            return Err(PostError::TooManySges);
        }
        self.ring.vacant_sparing(SPARE).ok_or(PostError::QueueFull)?.stage(wr);
        self.ring.publish();
        Ok(())
    }

    /// Requests that can still be posted.
    pub fn free(&mut self) -> usize {
        self.ring.free()
    }
}
