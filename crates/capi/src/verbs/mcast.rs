//! Multicast groups.

use core::ffi::c_int;

use feroce::Gid;

use super::qp::Qp;
use crate::abi::*;
use crate::errno::{Errno, code};

/// The group that a program names. A LID means nothing on Ethernet.
///
/// # Safety
/// `gid` leads to an address.
unsafe fn group(gid: *const ibv_gid) -> Gid {
    // SAFETY: as the caller says.
    let gid = unsafe { gid.read() };
    // SAFETY: every bit pattern is sixteen bytes.
    Gid(unsafe { gid.raw })
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a queue pair of the program.
    let qp = unsafe { Qp::behind(qp) };
    // SAFETY: the program gives an address.
    let group = unsafe { group(gid) };
    code(qp.handle.attach_mcast(group).map_err(Errno::from))
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: a queue pair of the program.
    let qp = unsafe { Qp::behind(qp) };
    // SAFETY: the program gives an address.
    let group = unsafe { group(gid) };
    code(qp.handle.detach_mcast(group).map_err(Errno::from))
}
