//! The attributes that bring a queue pair up, for programs that do it themselves.

use core::ffi::c_int;

use feroce::QpState;

use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::Object;

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
    let found = match convert::qp_state_of(wanted) {
        Some(state @ (QpState::Init | QpState::Rtr | QpState::Rts)) => {
            id.id.qp_attr(state).map_err(Errno::from)
        }
        _ => Err(Errno::INVALID),
    };
    status(found.map(|found| {
        let (found, bits) = convert::qp_attr(&found);
        // SAFETY: rdma_init_qp_attr(3): `attr` points to room for the attributes.
        unsafe { attr.write(found) };
        // SAFETY: rdma_init_qp_attr(3): `mask` points to room for the mask.
        unsafe { *mask = bits.cast_signed() };
    }))
}
