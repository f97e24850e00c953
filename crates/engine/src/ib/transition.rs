//! Which attributes each transition between states takes (IBTA vol1 11.2.5.2, table of attributes).

use crate::hca::attr::AttrMask;
use crate::hca::state::{QpState, QpType};

/// Attributes that a transition must and may carry. `None`: there is no such transition.
pub(super) fn transition(
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
    // The state itself may always be given. The caller's idea of the current state is for the
    // transitions to RTS, the only state that the adapter leaves and enters by itself.
    let current = if to == Rts { AttrMask::CUR_STATE } else { AttrMask::empty() };
    Some((required, optional | AttrMask::STATE | current))
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
