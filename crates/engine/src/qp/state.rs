//! States of a queue pair, and which attributes each transition takes.
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
//! IBTA vol1 10.3.1 and 11.2.5.2 (table of attributes).

use super::attr::AttrMask;
use crate::wr::SendOp;

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

/// Attributes that a transition must and may carry. `None`: there is no such transition.
pub(crate) fn transition(
    qp_type: QpType,
    from: QpState,
    to: QpState,
) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let (required, optional) = match (from, to) {
        (_, Reset | Err) => (AttrMask::empty(), AttrMask::empty()),
        (Reset, Init) => (to_init(qp_type), AttrMask::empty()),
        (Init, Init) => (AttrMask::empty(), to_init(qp_type)),
        (Init, Rtr) => to_rtr(qp_type),
        (Rtr, Rts) => to_rts(qp_type),
        (Rts, Rts) => (AttrMask::empty(), in_rts(qp_type)),
        (Sqe, Rts) => match qp_type {
            QpType::Uc => (AttrMask::empty(), AttrMask::ACCESS),
            QpType::Ud => (AttrMask::empty(), AttrMask::QKEY),
            _ => return None,
        },
        (Rts, Sqd) => (AttrMask::empty(), AttrMask::SQD_NOTIFY),
        (Sqd, Rts) => (AttrMask::empty(), in_rts(qp_type)),
        (Sqd, Sqd) => (AttrMask::empty(), in_sqd(qp_type)),
        _ => return None,
    };
    // The state itself and the caller's idea of the current state may always be given.
    Some((required, optional | AttrMask::STATE | AttrMask::CUR_STATE))
}

fn to_init(qp_type: QpType) -> AttrMask {
    let common = AttrMask::PKEY_INDEX | AttrMask::PORT;
    match qp_type {
        QpType::Ud => common | AttrMask::QKEY,
        _ => common | AttrMask::ACCESS,
    }
}

fn to_rtr(qp_type: QpType) -> (AttrMask, AttrMask) {
    let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let optional = AttrMask::ALT_PATH | AttrMask::ACCESS | AttrMask::PKEY_INDEX;
    match qp_type {
        QpType::Rc | QpType::XrcTgt => {
            (connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER, optional)
        }
        QpType::Uc | QpType::XrcIni => (connected, optional),
        QpType::Ud => (AttrMask::empty(), AttrMask::PKEY_INDEX | AttrMask::QKEY),
    }
}

fn to_rts(qp_type: QpType) -> (AttrMask, AttrMask) {
    let path = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
    let requester = AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_RD_ATOMIC;
    match qp_type {
        QpType::Rc => (requester, path | AttrMask::ACCESS | AttrMask::MIN_RNR_TIMER),
        QpType::XrcIni => (requester, path | AttrMask::ACCESS),
        // A target sends nothing but answers; Linux asks for these two all the same.
        QpType::XrcTgt => (
            AttrMask::TIMEOUT | AttrMask::SQ_PSN,
            path | AttrMask::ACCESS | AttrMask::MIN_RNR_TIMER,
        ),
        QpType::Uc => (AttrMask::SQ_PSN, path | AttrMask::ACCESS),
        QpType::Ud => (AttrMask::SQ_PSN, AttrMask::QKEY),
    }
}

fn in_rts(qp_type: QpType) -> AttrMask {
    let path = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
    match qp_type {
        QpType::Rc | QpType::XrcTgt => path | AttrMask::ACCESS | AttrMask::MIN_RNR_TIMER,
        QpType::Uc | QpType::XrcIni => path | AttrMask::ACCESS,
        QpType::Ud => AttrMask::QKEY,
    }
}

fn in_sqd(qp_type: QpType) -> AttrMask {
    let path = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE | AttrMask::AV | AttrMask::PKEY_INDEX;
    match qp_type {
        QpType::Rc => {
            path | AttrMask::PORT
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_RD_ATOMIC
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::ACCESS
                | AttrMask::MIN_RNR_TIMER
        }
        QpType::XrcIni => {
            path | AttrMask::PORT
                | AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_RD_ATOMIC
                | AttrMask::ACCESS
        }
        QpType::XrcTgt => {
            path | AttrMask::PORT
                | AttrMask::TIMEOUT
                | AttrMask::MAX_DEST_RD_ATOMIC
                | AttrMask::ACCESS
                | AttrMask::MIN_RNR_TIMER
        }
        QpType::Uc => path | AttrMask::ACCESS,
        QpType::Ud => AttrMask::PKEY_INDEX | AttrMask::QKEY,
    }
}
