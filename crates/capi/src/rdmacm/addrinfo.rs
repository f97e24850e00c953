//! From names to addresses.
//!
//! What is given out is allocated with `malloc`, piece by piece: programs put addresses of their
//! own in the place of ours and let us free them.

use core::ffi::{CStr, c_char, c_int};
use core::ptr;

use feroce::cm::{IbAddr, PortSpace};

use super::address::{duplicate, of_ib, read};
use crate::abi::*;
use crate::errno::{Errno, status};
use crate::zeroed::Zeroed;

pub(crate) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    place: *mut *mut rdma_addrinfo,
) -> c_int {
    if node.is_null() && service.is_null() && hints.is_null() {
        return status(Err(Errno::INVALID));
    }
    let no_hints = rdma_addrinfo::zeroed();
    // SAFETY: rdma_getaddrinfo(3): `hints`, which is not NULL here, points to hints.
    let hints = if hints.is_null() { no_hints } else { unsafe { hints.read() } };
    if hints.ai_flags & RAI_SA != 0 {
        return status(Err(Errno::UNSUPPORTED));
    }
    let mut info = no_hints;
    let found = if node.is_null() && service.is_null() {
        // SAFETY: rdma_getaddrinfo(3): the address pointers of the hints are NULL or as long as the
        // hints say.
        unsafe { as_hinted(&hints, &mut info) }
    } else {
        // SAFETY: rdma_getaddrinfo(3): `node` and `service` are NULL or strings that end with a
        // zero.
        match unsafe { look_up(node, service, &hints, &mut info) } {
            Ok(found) => found,
            // Not an error number, but one of its own kind.
            Err(code) => return code,
        }
    };
    // SAFETY: rdma_getaddrinfo(3): the address pointers of the hints are NULL or as long as the
    // hints say.
    let made = found.and_then(|()| unsafe { finish(&hints, info) });
    status(made.map(|made| {
        // SAFETY: rdma_getaddrinfo(3): `place` points to room for the answer.
        unsafe { *place = made };
    }))
}

/// Copies an address.
///
/// # Safety
/// `addr` points to `len` bytes, or `len` is 0.
unsafe fn copy(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<(*mut libc::sockaddr, libc::socklen_t), Errno> {
    if len == 0 || addr.is_null() {
        return Ok((ptr::null_mut(), 0));
    }
    // SAFETY: by this function's contract, `addr` points to `len` bytes, or `len` is 0.
    let bytes = unsafe { core::slice::from_raw_parts(addr.cast::<u8>(), len as usize) };
    Ok((duplicate(bytes)?.cast(), len))
}

/// Without a name, what the hints say.
///
/// # Safety
/// The address pointers of `hints` are NULL or point to as many bytes as `hints` says.
unsafe fn as_hinted(hints: &rdma_addrinfo, info: &mut rdma_addrinfo) -> Result<(), Errno> {
    info.ai_flags = hints.ai_flags;
    info.ai_family = hints.ai_family;
    info.ai_qp_type = hints.ai_qp_type;
    info.ai_port_space = hints.ai_port_space;
    // SAFETY: by this function's contract, the address pointers of `hints` are NULL or point to as
    // many bytes as `hints` says.
    (info.ai_dst_addr, info.ai_dst_len) = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }?;
    Ok(())
}

/// Calls getaddrinfo(3), and returns its error code unchanged.
///
/// # Safety
/// `node` and `service` are NULL or point to strings that end with a zero.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> Result<Result<(), Errno>, c_int> {
    let asked = question(hints);
    let mut found = ptr::null_mut();
    // SAFETY: by this function's contract, `node` and `service` are NULL or point to strings that
    // end with a zero; there is a place for the answer.
    let code = unsafe { libc::getaddrinfo(node, service, &raw const asked, &raw mut found) };
    if code != 0 {
        return Err(code);
    }
    // SAFETY: getaddrinfo(3) succeeded, so `found` points to at least one answer.
    let first = unsafe { found.read() };
    // SAFETY: `first` is an answer of getaddrinfo(3), which is freed below.
    let taken = unsafe { take(&first, hints, info) };
    // SAFETY: `found` is the answer of getaddrinfo(3), and everything of it that is needed has been
    // copied.
    unsafe { libc::freeaddrinfo(found) };
    Ok(taken)
}

/// The hints for getaddrinfo(3).
fn question(hints: &rdma_addrinfo) -> libc::addrinfo {
    let mut asked = libc::addrinfo::zeroed();
    if hints.ai_flags & RAI_PASSIVE != 0 {
        asked.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        asked.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_family != c_int::from(AF_IB) {
        asked.ai_family = hints.ai_family;
    }
    asked.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => libc::SOCK_STREAM,
        IBV_QPT_UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    asked.ai_protocol = match hints.ai_port_space.cast_unsigned() {
        RDMA_PS_TCP => libc::IPPROTO_TCP,
        RDMA_PS_UDP | RDMA_PS_IPOIB => libc::IPPROTO_UDP,
        RDMA_PS_IB if asked.ai_socktype == libc::SOCK_STREAM => libc::IPPROTO_TCP,
        RDMA_PS_IB if asked.ai_socktype == libc::SOCK_DGRAM => libc::IPPROTO_UDP,
        _ => 0,
    };
    asked
}

/// Whether addresses are to be those of InfiniBand, which a program writes as IPv6 addresses.
fn is_native(hints: &rdma_addrinfo) -> bool {
    let flags = RAI_FAMILY | RAI_NUMERICHOST;
    hints.ai_flags & flags == flags && hints.ai_family == c_int::from(AF_IB)
}

/// The address of InfiniBand that an IPv6 address stands for.
///
/// # Safety
/// `found` is an answer of getaddrinfo(3) that has not been freed.
unsafe fn native(
    found: &libc::addrinfo,
    port_space: c_int,
) -> Result<(*mut libc::sockaddr, libc::socklen_t), Errno> {
    // SAFETY: getaddrinfo(3) returns an address as long as its family says.
    let addr = unsafe { read(found.ai_addr) }?;
    let space = u64::try_from(port_space).ok().and_then(PortSpace::from_number);
    let made = of_ib(IbAddr::of_ip(space.ok_or(Errno::INVALID)?, addr));
    let (size, place) = (size_of::<sockaddr_ib>(), &raw const made);
    // SAFETY: `made` is a local variable of that size, without padding.
    let bytes = unsafe { core::slice::from_raw_parts(place.cast::<u8>(), size) };
    Ok((duplicate(bytes)?.cast(), size as libc::socklen_t))
}

/// Takes over what the C library found.
///
/// # Safety
/// `found` is an answer of getaddrinfo(3) that has not been freed.
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
        // SAFETY: getaddrinfo(3) returns a string that ends with a zero; it is not NULL here.
        let name = unsafe { CStr::from_ptr(found.ai_canonname) };
        duplicate(name.to_bytes_with_nul())?.cast()
    };
    let (addr, len) = if is_native(hints) {
        info.ai_family = c_int::from(AF_IB);
        // SAFETY: getaddrinfo(3) returns an address of `ai_addrlen` bytes.
        unsafe { native(found, info.ai_port_space) }?
    } else {
        // SAFETY: getaddrinfo(3) returns an address of `ai_addrlen` bytes.
        unsafe { copy(found.ai_addr, found.ai_addrlen) }?
    };
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
/// The address pointers of `hints` are NULL or point to as many bytes as `hints` says.
unsafe fn finish(
    hints: &rdma_addrinfo,
    mut info: rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, Errno> {
    if info.ai_src_len == 0 {
        // SAFETY: by this function's contract, the address pointers of `hints` are NULL or point to
        // as many bytes as `hints` says.
        (info.ai_src_addr, info.ai_src_len) = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }?;
    }
    // SAFETY: malloc(3) has no preconditions.
    let made: *mut rdma_addrinfo = unsafe { libc::malloc(size_of::<rdma_addrinfo>()) }.cast();
    if made.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    // SAFETY: malloc(3) has just allocated room for one, aligned for every type.
    unsafe { made.write(info) };
    Ok(made)
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    while !next.is_null() {
        // SAFETY: rdma_freeaddrinfo(3): the list is one that rdma_getaddrinfo(3) made and the
        // program does not use any more.
        let info = unsafe { next.read() };
        let names = [info.ai_src_canonname.cast(), info.ai_dst_canonname.cast()];
        let addresses = [info.ai_src_addr.cast(), info.ai_dst_addr.cast()];
        for piece in [names, addresses, [info.ai_connect, info.ai_route]].concat() {
            // SAFETY: `piece` is NULL, or rdma_getaddrinfo(3) has allocated it with malloc(3).
            unsafe { libc::free(piece) };
        }
        // SAFETY: rdma_getaddrinfo(3) has allocated it with malloc(3).
        unsafe { libc::free(next.cast()) };
        next = info.ai_next;
    }
}

/// A list that the program has not taken yet.
#[derive(Debug)]
pub(crate) struct Resolved(pub(super) *mut rdma_addrinfo);

// SAFETY: the value owns the list, which any thread may free.
unsafe impl Send for Resolved {}

impl Drop for Resolved {
    fn drop(&mut self) {
        // SAFETY: rdma_getaddrinfo(3) made the list, and the program has not taken it.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}
