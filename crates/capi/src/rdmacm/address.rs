//! Addresses of sockets, as C has them.

use core::ffi::c_int;
use core::ptr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use feroce::cm::IbAddr;
use feroce::wire::cm::ServiceId;
use feroce::wire::{Gid, Pkey};

use crate::abi::*;
use crate::errno::Errno;
use crate::zeroed::Zeroed;

/// Reads an address; only those of IP are known.
///
/// # Safety
/// `addr` is NULL or points to an address that is as long as its family says.
pub(crate) unsafe fn read(addr: *const libc::sockaddr) -> Result<SocketAddr, Errno> {
    if addr.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: `addr` is not NULL, and every address begins with its family.
    let family = unsafe { (*addr).sa_family };
    match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: by this function's contract the address is as long as its family says.
            let sin: libc::sockaddr_in =
                unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: by this function's contract the address is as long as its family says.
            let sin = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(sin.sin6_addr.s6_addr), u16::from_be(sin.sin6_port));
            Ok(SocketAddrV6::new(ip, port, sin.sin6_flowinfo, sin.sin6_scope_id).into())
        }
        _ => Err(Errno::INVALID),
    }
}

/// An address of either kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Address {
    Ip(SocketAddr),
    Ib(IbAddr),
}

/// Reads an address, of IP or of InfiniBand itself.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_any(addr: *const libc::sockaddr) -> Result<Address, Errno> {
    // SAFETY: `addr` is not NULL, and every address begins with its family.
    if !addr.is_null() && unsafe { (*addr).sa_family } == AF_IB {
        // SAFETY: by this function's contract the address is as long as its family says.
        let sib = unsafe { addr.cast::<sockaddr_ib>().read_unaligned() };
        return Ok(Address::Ib(IbAddr {
            gid: Gid(sib.sib_addr),
            service: ServiceId(u64::from_be(sib.sib_sid)),
            mask: u64::from_be(sib.sib_sid_mask),
            pkey: Pkey(u16::from_be(sib.sib_pkey)),
            flow_info: u32::from_be(sib.sib_flowinfo),
            scope_id: sib.sib_scope_id,
        }));
    }
    // SAFETY: this function has the contract of `read`.
    unsafe { read(addr) }.map(Address::Ip)
}

/// An address of InfiniBand as C has it.
pub(crate) fn of_ib(addr: IbAddr) -> sockaddr_ib {
    sockaddr_ib {
        sib_family: AF_IB,
        sib_pkey: addr.pkey.0.to_be(),
        sib_flowinfo: addr.flow_info.to_be(),
        sib_addr: addr.gid.0,
        sib_sid: addr.service.0.to_be(),
        sib_sid_mask: addr.mask.to_be(),
        sib_scope_id: addr.scope_id,
    }
}

/// The same, with room for any address.
pub(crate) fn storage_ib(addr: IbAddr) -> libc::sockaddr_storage {
    let mut storage = libc::sockaddr_storage::zeroed();
    let place = &raw mut storage;
    // SAFETY: `place` points to a `sockaddr_storage`, which is long enough and aligned for every
    // kind of address.
    unsafe { place.cast::<sockaddr_ib>().write(of_ib(addr)) };
    storage
}

/// Reads an address that need not be given.
///
/// # Safety
/// As for [`read`].
pub(crate) unsafe fn read_optional(addr: *const libc::sockaddr) -> Result<Option<Address>, Errno> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: this function has the contract of `read`.
    unsafe { read_any(addr) }.map(Some)
}

/// An address as C has it, with room for any.
pub(crate) fn storage(addr: SocketAddr) -> libc::sockaddr_storage {
    let mut storage = libc::sockaddr_storage::zeroed();
    let place = &raw mut storage;
    match addr {
        SocketAddr::V4(addr) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*addr.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: `place` points to a `sockaddr_storage`, which is long enough and aligned for
            // every kind of address.
            unsafe { place.cast::<libc::sockaddr_in>().write(sin) };
        }
        SocketAddr::V6(addr) => {
            let sin = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: `place` points to a `sockaddr_storage`, which is long enough and aligned for
            // every kind of address.
            unsafe { place.cast::<libc::sockaddr_in6>().write(sin) };
        }
    }
    storage
}

pub(crate) unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> be16 {
    // SAFETY: rdma_get_src_port(3): `id` is live; the address of a field is taken without a
    // reference.
    let addr = unsafe { &raw const (*id).route.addr.src };
    // SAFETY: the field is a union of all kinds of addresses, so it is as long as any family says.
    unsafe { port(addr.cast()) }
}

pub(crate) unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> be16 {
    // SAFETY: rdma_get_dst_port(3): `id` is live; the address of a field is taken without a
    // reference.
    let addr = unsafe { &raw const (*id).route.addr.dst };
    // SAFETY: the field is a union of all kinds of addresses, so it is as long as any family says.
    unsafe { port(addr.cast()) }
}

/// The port of an address as it is on the wire, or 0.
///
/// # Safety
/// As for [`read`].
unsafe fn port(addr: *const libc::sockaddr) -> be16 {
    // SAFETY: this function has the contract of `read`.
    match unsafe { read_any(addr) } {
        Ok(Address::Ip(addr)) => addr.port().to_be(),
        Ok(Address::Ib(addr)) => (addr.service.0 as u16).to_be(),
        Err(_) => 0,
    }
}

/// Copies bytes into memory that `free` frees; NULL if there are none.
pub(crate) fn duplicate(bytes: &[u8]) -> Result<*mut u8, Errno> {
    if bytes.is_empty() {
        return Ok(ptr::null_mut());
    }
    // SAFETY: malloc(3) has no preconditions.
    let copy: *mut u8 = unsafe { libc::malloc(bytes.len()) }.cast();
    if copy.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    // SAFETY: malloc(3) has just allocated `bytes.len()` bytes.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    Ok(copy)
}
