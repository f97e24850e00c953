//! C structures of which every byte is zero, to be filled in.

use crate::abi::*;

/// A type of which zero bytes are a value.
///
/// # Safety
/// Every field is a number, a pointer that may be NULL, an optional function, an array of these, or
/// a union or structure of these.
pub(crate) unsafe trait Zeroed: Sized {
    /// The value.
    fn zeroed() -> Self {
        // SAFETY: the implementation promises that zero bytes are a value of the type.
        unsafe { core::mem::zeroed() }
    }
}

macro_rules! zeroed {
    ($($name:ty),* $(,)?) => {
        // SAFETY: a structure of a C header, which has numbers, pointers and functions only. The
        // functions are `Option`s here.
        $(unsafe impl Zeroed for $name {})*
    };
}

zeroed! {
    ibv_ah_attr, ibv_cq_ex, ibv_device_attr, ibv_device_attr_ex, ibv_port_attr, ibv_qp_attr,
    ibv_qp_ex, ibv_qp_init_attr_ex, ibv_sa_path_rec, ibv_srq, ibv_srq_init_attr_ex,
    libc::addrinfo, libc::sockaddr_storage, rdma_addrinfo, rdma_cm_event__param, rdma_cm_id,
    rdma_conn_param, rdma_ud_param, umad_ca, umad_port, verbs_context, verbs_device,
}
