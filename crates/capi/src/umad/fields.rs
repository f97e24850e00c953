//! Fields of a datagram in the hands of a program.

use core::ffi::{c_int, c_void};

use crate::abi::*;

/// Bytes in front of a datagram.
pub(super) const HEADER_LEN: usize = size_of::<ib_user_mad>();

/// # Safety
/// `umad` points to a datagram with its header.
unsafe fn header<'a>(umad: *mut c_void) -> &'a mut ib_user_mad {
    // SAFETY: by this function's contract; the caller's threads do not share a datagram.
    unsafe { &mut *umad.cast::<ib_user_mad>() }
}

pub(crate) extern "C" fn umad_init() -> c_int {
    0
}

pub(crate) extern "C" fn umad_done() -> c_int {
    0
}

pub(crate) extern "C" fn umad_size() -> usize {
    HEADER_LEN
}

pub(crate) extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    umad.wrapping_byte_add(HEADER_LEN)
}

pub(crate) unsafe extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut ib_mad_addr {
    // SAFETY: the caller passes a datagram.
    unsafe { &raw mut header(umad).addr }
}

pub(crate) unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    // SAFETY: the caller passes a datagram.
    unsafe { header(umad) }.status.cast_signed()
}

pub(crate) unsafe extern "C" fn umad_set_grh(umad: *mut c_void, from: *const c_void) -> c_int {
    // SAFETY: the caller passes a datagram.
    let to = unsafe { &mut header(umad).addr };
    to.grh_present = 0;
    // SAFETY: NULL, or an address.
    if let Some(from) = unsafe { from.cast::<ib_mad_addr>().as_ref() } {
        to.grh_present = 1;
        to.gid = from.gid;
        to.flow_label = from.flow_label.to_be();
        to.hop_limit = from.hop_limit;
        to.traffic_class = from.traffic_class;
    }
    0
}

pub(crate) unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, index: c_int) -> c_int {
    // SAFETY: the caller passes a datagram.
    unsafe { header(umad) }.addr.pkey_index = index as u16;
    0
}

pub(crate) unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: the caller passes a datagram.
    unsafe { header(umad) }.addr.pkey_index.into()
}

pub(crate) unsafe extern "C" fn umad_set_addr(
    umad: *mut c_void,
    lid: c_int,
    qpn: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let (lid, qpn, qkey) = (lid as u16, qpn.cast_unsigned(), qkey.cast_unsigned());
    // SAFETY: the caller passes a datagram.
    unsafe { umad_set_addr_net(umad, lid.to_be(), qpn.to_be(), sl, qkey.to_be()) }
}

/// The same with numbers in network byte order.
pub(crate) unsafe extern "C" fn umad_set_addr_net(
    umad: *mut c_void,
    lid: be16,
    qpn: be32,
    sl: c_int,
    qkey: be32,
) -> c_int {
    // SAFETY: the caller passes a datagram.
    let to = unsafe { &mut header(umad).addr };
    (to.qpn, to.qkey, to.lid, to.sl) = (qpn, qkey, lid, sl as u8);
    0
}
