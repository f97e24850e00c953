//! Multicast groups.

use core::ffi::c_int;

use feroce::Gid;

use super::qp::Qp;
use crate::abi::*;
use crate::errno::{Errno, code};
use crate::memory;

/// The group that a program names. A LID means nothing on Ethernet.
///
/// # Safety
/// `gid` points to a GID.
unsafe fn group(gid: *const ibv_gid) -> Gid {
    // SAFETY: by this function's contract `gid` points to a GID.
    let gid = unsafe { gid.read() };
    // SAFETY: both members of the union are sixteen bytes, for which every bit pattern is valid.
    Gid(unsafe { gid.raw })
}

pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: ibv_attach_mcast(3): `qp` is a live queue pair.
    let qp = unsafe { Qp::behind(qp) };
    // SAFETY: ibv_attach_mcast(3), ibv_detach_mcast(3): `gid` points to a GID.
    let group = unsafe { group(gid) };
    code(memory::admit().and_then(|()| Ok(qp.handle.attach_mcast(group)?)))
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: ibv_detach_mcast(3): `qp` is a live queue pair.
    let qp = unsafe { Qp::behind(qp) };
    // SAFETY: ibv_attach_mcast(3), ibv_detach_mcast(3): `gid` points to a GID.
    let group = unsafe { group(gid) };
    code(qp.handle.detach_mcast(group).map_err(Errno::from))
}
