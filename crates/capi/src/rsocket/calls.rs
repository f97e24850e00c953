//! Calls that make, connect and end sockets.

use core::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::datagram::Datagram;
use super::settings::Settings;
use super::stream::Stream;
use super::table::{self, Socket};
use super::{epoll, service};
use crate::errno::{Errno, status};
use crate::rdmacm::address;

/// For calls that return a descriptor, or -1.
fn descriptor(made: Result<c_int, Errno>) -> c_int {
    made.unwrap_or_else(|errno| {
        crate::errno::set(errno.0);
        -1
    })
}

pub(crate) extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    descriptor(make(domain, kind, protocol))
}

fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, Errno> {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let is_stream = match (kind & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
        // Sockets with flags are left to the kernel, as librdmacm did when it had them not: so
        // those of the adapter itself do not come back to us when librspreload is there.
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) if flags == 0 => false,
        _ => return Err(Errno::UNSUPPORTED),
    };
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return Err(Errno::UNSUPPORTED);
    }
    let mut settings = Settings::new();
    settings.is_v6 = domain == libc::AF_INET6;
    if flags & libc::SOCK_NONBLOCK != 0 {
        settings.status_flags |= libc::O_NONBLOCK;
    }
    if flags & libc::SOCK_CLOEXEC != 0 {
        settings.descriptor_flags |= libc::FD_CLOEXEC;
    }
    table::insert(match is_stream {
        true => Socket::Stream(Arc::new(Stream::new(settings)?)),
        false => Socket::Datagram(Arc::new(Datagram::new(settings)?)),
    })
}

/// An address of the program.
///
/// # Safety
/// `addr` is NULL or leads to `len` bytes.
pub(super) unsafe fn read(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<SocketAddr, Errno> {
    if addr.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: it is long enough to say what it is.
    let family = unsafe { (*addr).sa_family };
    let least = match c_int::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if (len as usize) < least {
        return Err(Errno::INVALID);
    }
    // SAFETY: it is as long as its family says.
    unsafe { address::read(addr) }
}

/// Gives the program an address, as much of it as there is room for, and says how long it is.
///
/// # Safety
/// `len` says how many bytes `addr` has room for.
pub(crate) unsafe fn fill_address(
    from: SocketAddr,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) {
    let storage = address::storage(from);
    let whole = match from {
        SocketAddr::V4(_) => size_of::<libc::sockaddr_in>(),
        SocketAddr::V6(_) => size_of::<libc::sockaddr_in6>(),
    };
    // SAFETY: as the caller says.
    let room = unsafe { *len } as usize;
    if !addr.is_null() {
        let bytes = (&raw const storage).cast::<u8>();
        // SAFETY: not more than there is, nor more than there is room for.
        unsafe { core::ptr::copy_nonoverlapping(bytes, addr.cast(), room.min(whole)) };
    }
    // SAFETY: as the caller says.
    unsafe { *len = whole as libc::socklen_t };
}

pub(crate) unsafe extern "C" fn rbind(
    fd: c_int,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    // SAFETY: the program gives an address of this length.
    let read = unsafe { read(addr, len) };
    status(table::get(fd).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.bind(read?),
        Socket::Datagram(datagram) => {
            read?;
            // SAFETY: an address of this length.
            if unsafe { libc::bind(datagram.number(), addr, len) } != 0 {
                return Err(Errno::last());
            }
            datagram.start()
        }
    }))
}

pub(crate) extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    let backlog = u32::try_from(backlog).unwrap_or(0);
    status(table::stream(fd).and_then(|stream| stream.listen(backlog)))
}

pub(crate) unsafe extern "C" fn raccept(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let accepted = table::stream(fd).and_then(|listener| listener.accept());
    descriptor(accepted.and_then(|stream| {
        if let Some(peer) = stream.lock().id.peer_addr().filter(|_| !len.is_null()) {
            // SAFETY: the program gives room for an address, and says how much.
            unsafe { fill_address(peer, addr, len) };
        }
        table::insert(Socket::Stream(stream))
    }))
}

pub(crate) unsafe extern "C" fn rconnect(
    fd: c_int,
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> c_int {
    // SAFETY: the program gives an address of this length.
    let addr = unsafe { read(addr, len) };
    status(table::get(fd).and_then(|socket| match socket {
        Socket::Stream(stream) => stream.connect(addr?),
        Socket::Datagram(datagram) => datagram.connect(addr?),
    }))
}

pub(crate) extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    status(table::stream(fd).and_then(|stream| stream.shut_down(how)))
}

pub(crate) extern "C" fn rclose(fd: c_int) -> c_int {
    if epoll::close(fd) {
        return 0;
    }
    let closed = table::remove(fd);
    status(closed.map(|socket| {
        match &socket {
            Socket::Stream(stream) => stream.close(),
            Socket::Datagram(datagram) => datagram.close(),
        }
        drop(socket);
        service::wake();
    }))
}

/// Answers with an address of a socket.
///
/// # Safety
/// `len` says how many bytes `addr` has room for.
unsafe fn name(
    found: Result<SocketAddr, Errno>,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    if len.is_null() {
        return status(Err(Errno(libc::EFAULT)));
    }
    status(found.map(|found| {
        // SAFETY: as the caller says.
        unsafe { fill_address(found, addr, len) };
    }))
}

pub(crate) unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let found = table::get(fd).and_then(|socket| {
        let peer = match socket {
            Socket::Stream(stream) => stream.lock().id.peer_addr(),
            Socket::Datagram(datagram) => datagram.peer(),
        };
        peer.ok_or(Errno(libc::ENOTCONN))
    });
    // SAFETY: the program gives room for an address, and says how much.
    unsafe { name(found, addr, len) }
}

pub(crate) unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut libc::sockaddr,
    len: *mut libc::socklen_t,
) -> c_int {
    let found = table::get(fd).map(|socket| {
        let local = match &socket {
            Socket::Stream(stream) => stream.lock().id.local_addr(),
            Socket::Datagram(datagram) => datagram.local(),
        };
        local.unwrap_or_else(|| match socket.settings(|settings| settings.is_v6) {
            true => (Ipv6Addr::UNSPECIFIED, 0).into(),
            false => (Ipv4Addr::UNSPECIFIED, 0).into(),
        })
    });
    // SAFETY: the program gives room for an address, and says how much.
    unsafe { name(found, addr, len) }
}
