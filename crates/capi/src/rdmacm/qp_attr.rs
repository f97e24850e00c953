//! The attributes that bring a queue pair up, for programs that do it themselves.

use core::ffi::{c_int, c_uint};

use feroce::{QpAttr, QpState};

use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::ah::ah_attr;
use crate::verbs::object::Object;
use crate::verbs::query::mtu;
use crate::zeroed::Zeroed;

/// The attributes of the caller contain the target state.
pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    public: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: rdma_init_qp_attr(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_init_qp_attr(3): `attr` points to attributes, of which the caller has set the
    // state.
    let wanted = unsafe { (*attr).qp_state };
    let found = match wanted {
        IBV_QPS_INIT => id.id.qp_attr(QpState::Init).map_err(Errno::from),
        IBV_QPS_RTR => id.id.qp_attr(QpState::Rtr).map_err(Errno::from),
        IBV_QPS_RTS => id.id.qp_attr(QpState::Rts).map_err(Errno::from),
        _ => Err(Errno::INVALID),
    };
    status(found.map(|found| {
        let (found, bits) = masked(&found);
        // SAFETY: rdma_init_qp_attr(3): `attr` points to room for the attributes.
        unsafe { attr.write(found) };
        // SAFETY: rdma_init_qp_attr(3): `mask` points to room for the mask.
        unsafe { *mask = bits.cast_signed() };
    }))
}

/// Attributes as the header has them, and which of them are there.
fn masked(from: &QpAttr) -> (ibv_qp_attr, c_uint) {
    let mut to = ibv_qp_attr::zeroed();
    let mut mask = 0;
    // One line per attribute: bit, source, destination.
    macro_rules! copy {
        ($($bit:ident: $from:ident, |$value:ident| $shown:expr => $to:ident;)*) => {
            $(if let Some($value) = from.$from {
                to.$to = $shown;
                mask |= $bit;
            })*
        };
    }
    copy! {
        IBV_QP_STATE: state, |state| state as c_uint => qp_state;
        IBV_QP_ACCESS_FLAGS: access, |access| access.bits() => qp_access_flags;
        IBV_QP_PKEY_INDEX: pkey_index, |index| index => pkey_index;
        IBV_QP_PORT: port, |port| port => port_num;
        IBV_QP_QKEY: qkey, |qkey| qkey.0 => qkey;
        IBV_QP_AV: av, |av| ah_attr(&av) => ah_attr;
        IBV_QP_PATH_MTU: path_mtu, |pmtu| mtu(pmtu) => path_mtu;
        IBV_QP_TIMEOUT: timeout, |timeout| timeout => timeout;
        IBV_QP_RETRY_CNT: retry_cnt, |count| count => retry_cnt;
        IBV_QP_RNR_RETRY: rnr_retry, |count| count => rnr_retry;
        IBV_QP_RQ_PSN: rq_psn, |psn| psn.get() => rq_psn;
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic, |most| most => max_rd_atomic;
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer, |timer| timer => min_rnr_timer;
        IBV_QP_SQ_PSN: sq_psn, |psn| psn.get() => sq_psn;
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic, |most| most => max_dest_rd_atomic;
        IBV_QP_DEST_QPN: dest_qpn, |qpn| qpn.get() => dest_qp_num;
    }
    (to, mask)
}
