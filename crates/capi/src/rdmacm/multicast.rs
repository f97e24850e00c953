//! Multicast groups.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use feroce::Gid;

use super::address::{self, Address};
use super::finish::finish;
use super::group::Group;
use super::id::Id;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::Object;

/// The GID of a group; zero if the address is of no group, which the call that follows says.
fn gid_of(id: &Id, group: Address) -> Gid {
    match group {
        Address::Ip(group) => id.id.group_gid(group.ip()).unwrap_or(Gid::ZERO),
        Address::Ib(group) => group.gid,
    }
}

/// # Safety
/// `public` is a live id, and `addr` is NULL or points to an address that is as long as its family
/// says.
unsafe fn join(
    public: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    send_only: bool,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: by this function's contract, `public` is a live id, and `addr` is NULL or points to
    // an address that is as long as its family says.
    let id = unsafe { Id::of(public) };
    // SAFETY: by this function's contract, `public` is a live id, and `addr` is NULL or points to
    // an address that is as long as its family says.
    let group = unsafe { address::read_any(addr) }?;
    let gid = gid_of(id, group);
    // First, because the event may be taken at once.
    id.private().groups.push(Group { gid, context, acks: Arc::default() });
    let joined = match group {
        Address::Ip(group) => id.id.join_multicast(group.ip(), send_only),
        Address::Ib(group) => id.id.join_group(group.gid, send_only),
    };
    joined.map_err(|e| {
        forget(id, gid);
        Errno::from(e)
    })
}

/// Takes a group off the list.
fn forget(id: &Id, gid: Gid) -> Option<Group> {
    let groups = &mut id.private().groups;
    let at = groups.iter().rposition(|group| group.gid == gid)?;
    Some(groups.remove(at))
}

pub(crate) unsafe extern "C-unwind" fn rdma_join_multicast(
    public: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: rdma_join_multicast(3): `public` is a live id, and `addr` points to a socket address.
    let started = unsafe { join(public, addr, false, context) };
    // SAFETY: rdma_join_multicast(3): `public` is a live id.
    unsafe { finish(public, started) }
}

pub(crate) unsafe extern "C-unwind" fn rdma_join_multicast_ex(
    public: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    const NEEDED: u32 = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
    // SAFETY: rdma_join_multicast_ex(3): `attr` points to attributes.
    let attr = unsafe { attr.read() };
    let started = if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
        Err(Errno::UNSUPPORTED)
    } else if attr.comp_mask != NEEDED || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED {
        Err(Errno::INVALID)
    } else {
        let send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        // SAFETY: rdma_join_multicast_ex(3): `public` is a live id, and the attributes point to a
        // socket address.
        unsafe { join(public, attr.addr, send_only, context) }
    };
    // SAFETY: rdma_join_multicast_ex(3): `public` is a live id.
    unsafe { finish(public, started) }
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    public: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: rdma_leave_multicast(3): `public` is a live id.
    let id = unsafe { Id::of(public) };
    // SAFETY: rdma_leave_multicast(3): `addr` points to a socket address.
    let group = match unsafe { address::read_any(addr) } {
        Ok(addr) => addr,
        Err(errno) => return status(Err(errno)),
    };
    let Some(joined) = forget(id, gid_of(id, group)) else {
        return status(Err(Errno(libc::EADDRNOTAVAIL)));
    };
    let left = match group {
        Address::Ip(group) => id.id.leave_multicast(group.ip()),
        Address::Ib(group) => id.id.leave_group(group.gid),
    };
    joined.acks.settle("rdma_leave_multicast", "rdma_ack_cm_event");
    status(left.map_err(Errno::from))
}
