//! States and services of queue pairs.
//!
//! ```text
//!            +-------+ init  +------+  rtr  +-----+  rts  +-----+ sqd  +-----+
//!   create ->| RESET |------>| INIT |------>| RTR |------>| RTS |<---->| SQD |
//!            +-------+       +------+       +-----+       +-----+      +-----+
//!                ^              ^ init         |             ^ rts        |
//!                |              +--+           |             |            |
//!   any state ---+ reset                       |          +-----+         |
//!   any state --------------------> ERR <------+          | SQE |  (UC, UD: a send failed)
//!                                                         +-----+
//! ```
//!
//! IBTA vol1 10.3.1.

use crate::hca::wr::SendOp;

/// State of a queue pair.
///
/// ```
/// # use feroce_engine::QpState;
/// assert!(QpState::Rts.takes_sends());
/// assert!(!QpState::Rtr.takes_sends() && QpState::Rtr.receives());
/// ```
#[doc(alias = "ibv_qp_state")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum QpState {
    /// Just created; nothing can be posted.
    #[default]
    #[doc(alias = "IBV_QPS_RESET")]
    Reset = 0,
    /// Receives can be posted.
    #[doc(alias = "IBV_QPS_INIT")]
    Init = 1,
    /// Ready to receive.
    #[doc(alias = "IBV_QPS_RTR")]
    Rtr = 2,
    /// Ready to send.
    #[doc(alias = "IBV_QPS_RTS")]
    Rts = 3,
    /// The send queue drains.
    #[doc(alias = "IBV_QPS_SQD")]
    Sqd = 4,
    /// A send failed on an unreliable service; receives go on.
    #[doc(alias = "IBV_QPS_SQE")]
    Sqe = 5,
    /// Nothing works any more; everything posted is flushed.
    #[doc(alias = "IBV_QPS_ERR")]
    Err = 6,
}

impl QpState {
    /// From its code; unknown codes are `Err`.
    pub const fn from_u8(code: u8) -> Self {
        match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            _ => Self::Err,
        }
    }

    /// Whether send work requests may be posted.
    pub const fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether packets are received.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

/// Service of a queue pair.
///
/// ```
/// # use feroce_engine::QpType;
/// assert!(QpType::Rc.is_reliable() && QpType::Rc.is_connected());
/// assert!(!QpType::Ud.is_connected());
/// ```
#[doc(alias = "ibv_qp_type")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Initiator of an extended reliable connection: sends only.
    XrcIni,
    /// Target of an extended reliable connection: receives only, into shared receive queues.
    XrcTgt,
}

impl QpType {
    /// Whether the service retransmits.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcIni | Self::XrcTgt)
    }

    /// Whether it is connected to one peer.
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud)
    }

    /// Whether there is a send queue.
    pub const fn has_sq(self) -> bool {
        !matches!(self, Self::XrcTgt)
    }

    /// Whether there is a receive queue of its own or a shared one.
    pub const fn has_rq(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::Ud)
    }

    /// Whether the service has the operation (IBTA vol1 9.4 and annex A14).
    pub const fn supports(self, op: &SendOp) -> bool {
        match self {
            Self::Rc | Self::XrcIni => true,
            Self::Uc => matches!(
                op,
                SendOp::Send
                    | SendOp::SendImm(_)
                    | SendOp::Write(_)
                    | SendOp::WriteImm(..)
                    | SendOp::BindMw { .. }
                    | SendOp::LocalInv(_)
                    | SendOp::Reg { .. }
            ),
            Self::Ud => matches!(op, SendOp::Send | SendOp::SendImm(_)),
            Self::XrcTgt => false,
        }
    }
}
