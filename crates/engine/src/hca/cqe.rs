//! Completions: what happened to a work request.

use bitflags::bitflags;
use feroce_train::Instant;
use feroce_wire::{Imm, Lid, Qpn, Rkey};

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
    /// The LID of the port that sent a datagram, on InfiniBand.
    pub slid: Lid,
    /// Service level; on datagrams over IPv4 the network type that Mellanox adapters put there.
    pub sl: u8,
    /// To which of the LIDs of this port a datagram was sent, on InfiniBand.
    pub dlid_path_bits: u8,
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
            slid: Lid(0),
            sl: 0,
            dlid_path_bits: 0,
            solicited: false,
            timestamp: now,
        }
    }
}
