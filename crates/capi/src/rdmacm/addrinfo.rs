//! From names to addresses.
//!
//! What is given out is allocated with `malloc`, piece by piece: programs put addresses of their
//! own in the place of ours and let us free them.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use super::address::duplicate;
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::verbs::object::zeroed;

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    place: *mut *mut rdma_addrinfo,
) -> c_int {
    if node.is_null() && service.is_null() && hints.is_null() {
        return status(Err(Errno::INVALID));
    }
    // SAFETY: numbers and pointers.
    let no_hints: rdma_addrinfo = unsafe { zeroed() };
    // SAFETY: the program gives hints, or NULL.
    let hints = if hints.is_null() { no_hints } else { unsafe { hints.read() } };
    if hints.ai_flags & RAI_SA != 0 {
        return status(Err(Errno::UNSUPPORTED));
    }
    let mut info = no_hints;
    let found = if node.is_null() && service.is_null() {
        // SAFETY: the hints of the program.
        unsafe { as_hinted(&hints, &mut info) }
    } else {
        // SAFETY: names and hints of the program.
        match unsafe { look_up(node, service, &hints, &mut info) } {
            Ok(found) => found,
            // Not an error number, but one of its own kind.
            Err(code) => return code,
        }
    };
    // SAFETY: the hints of the program.
    let made = found.and_then(|()| unsafe { finish(&hints, info) });
    status(made.map(|made| {
        // SAFETY: the program gives a place for the answer.
        unsafe { *place = made };
    }))
}

/// Copies an address.
///
/// # Safety
/// `addr` leads to `len` bytes, or `len` is 0.
unsafe fn copy(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<(*mut libc::sockaddr, libc::socklen_t), Errno> {
    if len == 0 || addr.is_null() {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: as the caller says.
    let bytes = unsafe { core::slice::from_raw_parts(addr.cast::<u8>(), len as usize) };
    Ok((duplicate(bytes)?.cast(), len))
}

/// Without a name, what the hints say.
///
/// # Safety
/// The hints are of the program.
unsafe fn as_hinted(hints: &rdma_addrinfo, info: &mut rdma_addrinfo) -> Result<(), Errno> {
    info.ai_flags = hints.ai_flags;
    info.ai_family = hints.ai_family;
    info.ai_qp_type = hints.ai_qp_type;
    info.ai_port_space = hints.ai_port_space;
    // SAFETY: as the caller says.
    (info.ai_dst_addr, info.ai_dst_len) = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }?;
    Ok(())
}

/// Asks the C library. What it says is wrong comes back as it is.
///
/// # Safety
/// Names and hints are of the program; names may be NULL.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> Result<Result<(), Errno>, c_int> {
    let asked = question(hints);
    let mut found = ptr::null_mut();
    // SAFETY: as the caller says, and there is a place for the answer.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const asked, &raw mut found) };
    if code != 0 {
        return Err(code);
    }
    // SAFETY: the call succeeded, so there is an answer.
    let first = unsafe { found.read() };
    // SAFETY: the answer, which is still there.
    let taken = unsafe { take(&first, hints, info) };
    // SAFETY: the answer, which nobody uses any more.
    unsafe { libc::freeaddrinfo(found) };
    Ok(taken)
}

/// Hints as the C library wants them.
fn question(hints: &rdma_addrinfo) -> libc::addrinfo {
    // SAFETY: numbers and pointers.
    let mut asked: libc::addrinfo = unsafe { zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        asked.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        asked.ai_flags |= libc::AI_NUMERICHOST;
    }
    asked.ai_family = hints.ai_family;
    asked.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    asked.ai_protocol = match hints.ai_port_space.cast_unsigned() {
        RDMA_PS_TCP => libc::IPPROTO_TCP,
        RDMA_PS_UDP | RDMA_PS_IPOIB => libc::IPPROTO_UDP,
        _ => 0,
    };
    asked
}

/// Takes over what the C library found.
///
/// # Safety
/// `found` is its answer.
unsafe fn take(
    found: &libc::addrinfo,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> Result<(), Errno> {
    let is_stream = found.ai_socktype == libc::SOCK_STREAM;
    let or = |hint: c_int, otherwise: u32| match hint {
        0 => otherwise.cast_signed(),
        hint => hint,
    };
    info.ai_family = found.ai_family;
    info.ai_qp_type = or(hints.ai_qp_type, if is_stream { IBV_QPT_RC } else { IBV_QPT_UD });
    info.ai_port_space = or(hints.ai_port_space, if is_stream { RDMA_PS_TCP } else { RDMA_PS_UDP });
    let name = if found.ai_canonname.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: the library gives a name that ends with a zero.
        let name = unsafe { CStr::from_ptr(found.ai_canonname) };
        duplicate(name.to_bytes_with_nul())?.cast()
    };
    // SAFETY: the library gives an address of that length.
    let (addr, len) = unsafe { copy(found.ai_addr, found.ai_addrlen) }?;
    if hints.ai_flags & RAI_PASSIVE != 0 {
        info.ai_flags = RAI_PASSIVE;
        (info.ai_src_addr, info.ai_src_len, info.ai_src_canonname) = (addr, len, name);
    } else {
        (info.ai_dst_addr, info.ai_dst_len, info.ai_dst_canonname) = (addr, len, name);
    }
    Ok(())
}

/// Gives the answer to the program.
///
/// # Safety
/// The hints are of the program.
unsafe fn finish(
    hints: &rdma_addrinfo,
    mut info: rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, Errno> {
    if info.ai_src_len == 0 {
        // SAFETY: as the caller says.
        (info.ai_src_addr, info.ai_src_len) = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }?;
    }
    // SAFETY: no preconditions.
    let made: *mut rdma_addrinfo = unsafe { libc::malloc(size_of::<rdma_addrinfo>()) }.cast();
    if made.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    // SAFETY: just allocated, with room for one.
    unsafe { made.write(info) };
    Ok(made)
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: the program returns what it got, and uses it no more.
        let info = unsafe { next.read() };
        let names = [info.ai_src_canonname.cast(), info.ai_dst_canonname.cast()];
        let addresses = [info.ai_src_addr.cast(), info.ai_dst_addr.cast()];
        for piece in [names, addresses, [info.ai_connect, info.ai_route]].concat() {
            // SAFETY: allocated with `malloc`, or NULL.
            unsafe { libc::free(piece) };
        }
        // SAFETY: allocated with `malloc`.
        unsafe { libc::free(next.cast()) };
        next = info.ai_next;
    }
}
