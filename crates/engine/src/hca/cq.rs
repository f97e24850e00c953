//! Completion queues: what happened to the work requests.
//!
//! The engine pushes entries into a ring; the consumer polls them without the engine. The engine
//! decides once per batch of entries whether it must wake a consumer that sleeps: it publishes the
//! entries and takes the arm state; the consumer arms and then looks at the ring. Every access to
//! the arm state is a read-modify-write with acquire and release ordering. Of any two accesses, the
//! later one therefore sees everything that happened before the earlier one: either the engine sees
//! that the consumer has armed, or the consumer sees the entries.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};

use bitflags::bitflags;
use feroce_ring::{Consumer, Producer};
use feroce_train::Instant;
use feroce_wire::{Imm, Qpn, Rkey};

/// Outcome of a work request.
///
/// ```
/// # use feroce_engine::WcStatus;
/// assert_eq!(WcStatus::RetryExceeded.to_string(), "transport retry counter exceeded");
/// ```
#[doc(alias = "ibv_wc_status")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    #[doc(alias = "IBV_WC_SUCCESS")]
    Success = 0,
    /// A local buffer is too small, or the message too long.
    #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
    LocalLength = 1,
    /// The queue pair could not execute the request.
    #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
    LocalQpOperation = 2,
    /// A local key, range or right is wrong.
    #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
    LocalProtection = 4,
    /// Not executed: the queue pair was in error.
    #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
    Flushed = 5,
    /// A memory window could not be bound, or a key not mapped or invalidated.
    #[doc(alias = "IBV_WC_MW_BIND_ERR")]
    MwBind = 6,
    /// The peer answered with something impossible.
    #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
    BadResponse = 7,
    /// A receive failed because of rights on local memory.
    #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
    LocalAccess = 8,
    /// The peer found the request malformed, or too long for its receive buffer.
    #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
    RemoteInvalidRequest = 9,
    /// The peer refused access to its memory.
    #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
    RemoteAccess = 10,
    /// The peer could not complete the operation.
    #[doc(alias = "IBV_WC_REM_OP_ERR")]
    RemoteOperation = 11,
    /// The peer did not answer.
    #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
    RetryExceeded = 12,
    /// The peer had no receive posted for too long.
    #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
    RnrRetryExceeded = 13,
}

impl core::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalQpOperation => "local QP operation error",
            Self::LocalProtection => "local protection error",
            Self::Flushed => "Work Request Flushed Error",
            Self::MwBind => "memory management operation error",
            Self::BadResponse => "bad response error",
            Self::LocalAccess => "local access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
        })
    }
}

/// Which operation completed.
///
/// ```
/// # use feroce_engine::{Cqe, WcOpcode};
/// fn is_receive(cqe: &Cqe) -> bool {
///     matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm)
/// }
/// ```
#[doc(alias = "ibv_wc_opcode")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WcOpcode {
    /// Any kind of send.
    #[doc(alias = "IBV_WC_SEND")]
    Send,
    /// RDMA write, with or without immediate.
    #[doc(alias = "IBV_WC_RDMA_WRITE")]
    Write,
    /// RDMA read.
    #[doc(alias = "IBV_WC_RDMA_READ")]
    Read,
    /// Compare and swap.
    #[doc(alias = "IBV_WC_COMP_SWAP")]
    CmpSwap,
    /// Fetch and add.
    #[doc(alias = "IBV_WC_FETCH_ADD")]
    FetchAdd,
    /// Bind a memory window.
    #[doc(alias = "IBV_WC_BIND_MW")]
    BindMw,
    /// Local invalidate.
    #[doc(alias = "IBV_WC_LOCAL_INV")]
    LocalInv,
    /// Fast registration.
    Reg,
    /// Flush.
    #[doc(alias = "IBV_WC_FLUSH")]
    Flush,
    /// Atomic write.
    #[doc(alias = "IBV_WC_ATOMIC_WRITE")]
    AtomicWrite,
    /// A receive filled by a send.
    #[doc(alias = "IBV_WC_RECV")]
    Recv,
    /// A receive consumed by a write with immediate.
    #[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
    RecvWriteImm,
}

bitflags! {
    /// What else a completion says.
    ///
    /// ```
    /// # use feroce_engine::{Cqe, WcFlags};
    /// # use feroce_wire::Imm;
    /// fn immediate(cqe: &Cqe) -> Option<Imm> {
    ///     cqe.flags.contains(WcFlags::WITH_IMM).then_some(cqe.imm)
    /// }
    /// ```
    #[doc(alias = "ibv_wc_flags")]
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u8 {
        /// The first 40 bytes of the buffer hold a global route header.
        const GRH = 1;
        /// `imm` is valid.
        const WITH_IMM = 2;
        /// `invalidated` is valid.
        const WITH_INV = 8;
    }
}

/// A completion queue entry.
///
/// ```
/// # use feroce_engine::{Cqe, WcStatus};
/// fn check(cqe: &Cqe) -> Result<u32, String> {
///     match cqe.status {
///         WcStatus::Success => Ok(cqe.byte_len),
///         status => Err(format!("request {}: {status}", cqe.wr_id)),
///     }
/// }
/// ```
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cqe {
    /// From the work request.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// Operation; not meaningful if the status is an error.
    pub opcode: WcOpcode,
    /// What else is valid.
    pub flags: WcFlags,
    /// Bytes received or fetched.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Imm,
    /// Key that a send with invalidate has invalidated.
    pub invalidated: Rkey,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender of a datagram.
    pub src_qp: Qpn,
    /// Service level; on datagrams over IPv4 the network type that Mellanox adapters put there.
    pub sl: u8,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// When the engine completed it.
    pub timestamp: Instant,
}

impl Cqe {
    /// A completion with nothing beyond the essentials.
    #[inline]
    pub fn new(wr_id: u64, qpn: Qpn, opcode: WcOpcode, status: WcStatus, now: Instant) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            flags: WcFlags::empty(),
            byte_len: 0,
            imm: Imm(0),
            invalidated: Rkey(0),
            qpn,
            src_qp: Qpn::default(),
            sl: 0,
            solicited: false,
            timestamp: now,
        }
    }
}

/// What the consumer wants to be woken for.
///
/// ```
/// # use feroce_engine::Notify;
/// assert!(Notify::Next > Notify::Solicited, "who asks for more gets more");
/// ```
#[doc(alias = "ibv_req_notify_cq")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Notify {
    /// The next solicited or failed completion.
    Solicited = 1,
    /// The next completion of any kind.
    Next = 2,
}

/// Bits of the arm state, beside those of [`Notify`]: the polling thread naps.
const NAP: u8 = 4;

/// State shared by the two sides of a completion queue.
#[derive(Debug, Default)]
struct CqShared {
    /// What was asked for since the last wake-up: bits of [`Notify`], and [`NAP`].
    arm: AtomicU8,
}

/// Consumers to wake for fresh entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CqWake {
    /// The consumer has asked for an event.
    pub(crate) event: bool,
    /// A polling thread naps.
    pub(crate) poller: bool,
}

/// The consumer's side of a completion queue.
#[derive(Debug)]
pub struct CqPoller {
    ring: Consumer<Cqe>,
    shared: Arc<CqShared>,
}

impl CqPoller {
    /// Takes the oldest entry.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        self.ring.pop()
    }

    /// Asks for an event at the next completion. Entries that are already there do not count:
    /// poll once more after arming.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self, notify: Notify) {
        self.shared.arm.fetch_or(notify as u8, Ordering::AcqRel);
    }

    /// A polling thread is about to sleep briefly, and wants to be woken at the next completion
    /// (`Event::Poller`). False: an entry waits, and the thread should not sleep. The request lasts
    /// until the next completion even if the thread wakes up earlier: another thread that polls the
    /// same queue may still sleep.
    pub fn begin_nap(&self) -> bool {
        self.shared.arm.fetch_or(NAP, Ordering::AcqRel);
        self.is_empty()
    }

    /// Entries waiting.
    #[inline]
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether no entry waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Most entries that can wait.
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }
}

/// The engine's side of a completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    ring: Producer<Cqe>,
    shared: Arc<CqShared>,
    /// An entry was lost; the queue is dead and so are its queue pairs.
    pub(crate) overrun: bool,
    /// Queue pairs and shared receive queues that report here.
    pub(crate) users: u32,
    /// The strongest reason to wake the consumer among entries pushed since the last look.
    fresh: Option<Notify>,
}

impl Cq {
    /// Both sides of a queue of `depth` entries.
    pub(crate) fn new(depth: usize) -> (Self, CqPoller) {
        let (producer, consumer) = feroce_ring::spsc(depth);
        let shared = Arc::new(CqShared::default());
        let cq = Self {
            ring: producer,
            shared: Arc::clone(&shared),
            overrun: false,
            users: 0,
            fresh: None,
        };
        (cq, CqPoller { ring: consumer, shared })
    }

    /// Pushes an entry. False: it did not fit.
    #[inline]
    pub(crate) fn push(&mut self, cqe: Cqe) -> bool {
        let wakes_all = cqe.solicited || cqe.status != WcStatus::Success;
        let Some(slot) = self.ring.vacant() else { return false };
        slot.stage(cqe);
        self.ring.publish();
        // A solicited entry satisfies both kinds of waiters, any other only `Next`.
        let reason = if wakes_all { Notify::Solicited } else { Notify::Next };
        self.fresh = Some(self.fresh.map_or(reason, |old| old.min(reason)));
        true
    }

    /// Whether entries were pushed since the last call of [`Cq::take_wake`].
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh.is_some()
    }

    /// Decides which consumers must be woken for the fresh entries.
    #[inline]
    pub(crate) fn take_wake(&mut self) -> CqWake {
        let Some(reason) = self.fresh.take() else {
            return CqWake::default();
        };
        let armed = self.shared.arm.swap(0, Ordering::AcqRel);
        if armed == 0 {
            return CqWake::default();
        }
        let asked = armed & !NAP;
        // The bit of the strongest request is the greater one.
        let event = asked >= reason as u8;
        if !event && asked != 0 {
            // The consumer still waits for a completion of another kind. If it armed again
            // meanwhile, it waits for that, too.
            self.shared.arm.fetch_or(asked, Ordering::AcqRel);
        }
        CqWake { event, poller: armed & NAP != 0 }
    }

    /// Replaces the ring by one of `depth` entries, moving what waits. `poller` must be the other
    /// side. `Err` holds the number of entries that would not fit.
    pub(crate) fn resize(&mut self, poller: &mut CqPoller, depth: usize) -> Result<(), usize> {
        debug_assert!(Arc::ptr_eq(&self.shared, &poller.shared), "not the two sides of one queue");
        let waiting = poller.ring.len();
        if waiting > depth {
            return Err(waiting);
        }
        self.move_to(poller, depth, |_| true);
        Ok(())
    }

    /// Forgets the entries of a queue pair that wait. `poller` must be the other side.
    pub(crate) fn forget(&mut self, poller: &mut CqPoller, qpn: Qpn) {
        debug_assert!(Arc::ptr_eq(&self.shared, &poller.shared), "not the two sides of one queue");
        if !poller.is_empty() {
            self.move_to(poller, poller.capacity(), |cqe| cqe.qpn != qpn);
        }
    }

    /// Replaces the ring by one of `depth` entries, moving what waits and is worth keeping.
    fn move_to(&mut self, poller: &mut CqPoller, depth: usize, keep: impl Fn(&Cqe) -> bool) {
        let (mut producer, consumer) = feroce_ring::spsc(depth);
        while let Some(cqe) = poller.ring.pop() {
            if keep(&cqe) && producer.push(cqe).is_err() {
                break;
            }
        }
        self.ring = producer;
        poller.ring = consumer;
    }
}
