//! Conversion of addresses and parameters between our types and those of C.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use feroce_abi::*;
use feroce_cm::rdma::ConnParam;
use nix::sys::socket::{SockaddrLike, SockaddrStorage};

/// An address as C takes it.
pub(super) struct Address(SockaddrStorage);

impl Address {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self(address.into())
    }

    /// The library does not write to it, although the C signature has no `const`.
    pub(super) fn as_ptr(&self) -> *mut libc::sockaddr {
        self.0.as_ptr().cast_mut()
    }
}

/// An address of an id, if it has one.
pub(super) fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let start = ptr::from_ref(storage).cast();
    // SAFETY: the storage has room for every address that its family may say.
    let found = unsafe { SockaddrStorage::from_raw(start, None) }?;
    let v4 = found.as_sockaddr_in().map(|a| SocketAddrV4::from(*a).into());
    v4.or_else(|| found.as_sockaddr_in6().map(|a| SocketAddrV6::from(*a).into()))
}

/// Connection parameters to pass to the library, within what the device and the protocol have room
/// for. The private data must outlive them.
pub(super) fn conn_param(param: &ConnParam, most: u8) -> rdma_conn_param {
    rdma_conn_param {
        private_data: param.private_data.as_ptr().cast(),
        private_data_len: u8::try_from(param.private_data.len()).unwrap_or(u8::MAX),
        responder_resources: param.responder_resources.min(most),
        initiator_depth: param.initiator_depth.min(most),
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        ..convert::conn_param(param)
    }
}
