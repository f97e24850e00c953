//! Enhanced connection establishment: options that adapters of one vendor agree on. Ours has none,
//! so there is nothing to offer, and nothing of a peer that it could know.

use core::ffi::c_int;

use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::Object;

/// Refused for want of options; a program gets here only with those of another adapter.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    public: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    if public.is_null() || ece.is_null() {
        return status(Err(Errno::INVALID));
    }
    status(Err(Errno::UNSUPPORTED))
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    public: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    if public.is_null() || ece.is_null() {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: rdma_get_remote_ece(3): `public` is a live id.
    if !unsafe { Id::of(public) }.seen().qp.is_null() {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: rdma_get_remote_ece(3): `ece` points to room for the answer.
    unsafe { ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }) };
    0
}
