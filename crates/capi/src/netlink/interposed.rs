//! Calls of the C library on the sockets of [`socket`](super::socket).
//!
//! As with the calls on files, the caller may be a signal handler, or run before this library is
//! initialised; a call on any other socket costs a load.

use core::ffi::{c_int, c_long, c_void};
use core::mem::transmute;
use core::ptr::NonNull;
use core::slice;

use libc::{msghdr, sockaddr, sockaddr_nl, socklen_t};

use super::socket;
use crate::errno;
use crate::next::Next;

/// Defines how to call the next function of a name: found when the library is loaded, and made as a
/// system call before that. A system call may have more arguments than the function.
macro_rules! next {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty,
        $number:ident($($raw:expr),*);)*) => {
        /// The next functions in the search order.
        #[allow(non_upper_case_globals, reason = "the names of the functions")]
        mod known {
            use super::Next;

            $(pub(super) static $name: Next = Next::new(concat!(stringify!($name), "\0"));)*
        }

        /// Calls of the next functions.
        mod next {
            use super::*;

            $(
                pub(super) unsafe fn $name($($argument: $kind),*) -> $result {
                    type Call = unsafe extern "C-unwind" fn($($kind),*) -> $result;
                    let Some(next) = known::$name.get() else {
                        // SAFETY: the arguments are those of this system call, of which the kernel
                        // checks the pointers.
                        let result: c_long = unsafe { libc::syscall(libc::$number, $($raw),*) };
                        return result as $result;
                    };
                    // SAFETY: dlsym(3) found the function of the C library under this name, which
                    // has the type `Call`.
                    let next = unsafe { transmute::<NonNull<c_void>, Call>(next) };
                    // SAFETY: the arguments are those that the caller passed for this function.
                    unsafe { next($($argument),*) }
                }
            )*
        }

        /// Called by the dynamic linker when the library is loaded.
        extern "C" fn find_all() {
            $(known::$name.find();)*
        }
    };
}

next! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int,
        SYS_socket(domain, kind, protocol);
    send(fd: c_int, bytes: *const c_void, len: usize, flags: c_int) -> isize,
        SYS_sendto(fd, bytes, len, flags, 0, 0);
    sendto(
        fd: c_int, bytes: *const c_void, len: usize, flags: c_int,
        to: *const sockaddr, to_len: socklen_t
    ) -> isize, SYS_sendto(fd, bytes, len, flags, to, to_len);
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize,
        SYS_sendmsg(fd, message, flags);
    recv(fd: c_int, bytes: *mut c_void, len: usize, flags: c_int) -> isize,
        SYS_recvfrom(fd, bytes, len, flags, 0, 0);
    recvfrom(
        fd: c_int, bytes: *mut c_void, len: usize, flags: c_int,
        from: *mut sockaddr, from_len: *mut socklen_t
    ) -> isize, SYS_recvfrom(fd, bytes, len, flags, from, from_len);
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize,
        SYS_recvmsg(fd, message, flags);
}

#[used]
#[unsafe(link_section = ".init_array")]
static FIND_ALL: extern "C" fn() = find_all;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_ours = domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA;
    let family = if is_ours { libc::NETLINK_USERSOCK } else { protocol };
    // SAFETY: socket(2) has no preconditions.
    let fd = unsafe { next::socket(domain, kind, family) };
    if is_ours && fd >= 0 && !socket::adopt(fd) {
        // SAFETY: the descriptor was made above, and the program does not have it.
        unsafe { libc::close(fd) };
        errno::set(libc::EMFILE);
        return -1;
    }
    fd
}

/// Answers what a program sends; `None` if the socket is another one.
fn serve(fd: c_int, sent: &[u8]) -> Option<isize> {
    Some(match socket::serve(fd, sent)? {
        Ok(()) => sent.len().cast_signed(),
        Err(reason) => {
            errno::set(reason.0);
            -1
        }
    })
}

/// The bytes that a program sends.
///
/// # Safety
/// `bytes` points to `len` bytes.
unsafe fn sent<'a>(bytes: *const c_void, len: usize) -> &'a [u8] {
    if bytes.is_null() || len > socket::LONGEST {
        return &[];
    }
    // SAFETY: by this function's contract, and `bytes` is not NULL.
    unsafe { slice::from_raw_parts(bytes.cast(), len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn send(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    if socket::is_marked(fd)
        // SAFETY: send(2): `bytes` points to `len` bytes.
        && let Some(result) = serve(fd, unsafe { sent(bytes, len) })
    {
        return result;
    }
    // SAFETY: the arguments are those that the caller passed for this function.
    unsafe { next::send(fd, bytes, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> isize {
    if socket::is_marked(fd)
        // SAFETY: sendto(2): `bytes` points to `len` bytes.
        && let Some(result) = serve(fd, unsafe { sent(bytes, len) })
    {
        return result;
    }
    // SAFETY: the arguments are those that the caller passed for this function.
    unsafe { next::sendto(fd, bytes, len, flags, to, to_len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    if socket::is_marked(fd)
        // SAFETY: sendmsg(2): `message` points to a header, whose pieces are there.
        && let Some(result) = serve(fd, &unsafe { gathered(message) })
    {
        return result;
    }
    // SAFETY: the arguments are those that the caller passed for this function.
    unsafe { next::sendmsg(fd, message, flags) }
}

/// The pieces of a message, joined.
///
/// # Safety
/// `message` is NULL, or points to a header whose pieces are there.
unsafe fn gathered(message: *const msghdr) -> Vec<u8> {
    let mut bytes = Vec::new();
    // SAFETY: by this function's contract.
    let Some(message) = (unsafe { message.as_ref() }) else { return bytes };
    if message.msg_iov.is_null() {
        return bytes;
    }
    // SAFETY: by this function's contract; `msg_iov` is not NULL.
    let pieces = unsafe { slice::from_raw_parts(message.msg_iov, message.msg_iovlen) };
    for piece in pieces {
        // SAFETY: by this function's contract, the piece has this many bytes.
        let piece = unsafe { sent(piece.iov_base, piece.iov_len) };
        if bytes.len() + piece.len() > socket::LONGEST {
            break;
        }
        bytes.extend_from_slice(piece);
    }
    bytes
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, bytes: *mut c_void, len: usize, flags: c_int) -> isize {
    if socket::is_marked(fd) {
        socket::refill(fd);
    }
    // SAFETY: the arguments are those that the caller passed for this function.
    unsafe { next::recv(fd, bytes, len, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    bytes: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> isize {
    let is_ours = socket::is_marked(fd) && socket::refill(fd);
    // SAFETY: recvfrom(2): `from_len` is NULL, or points to the room behind `from`.
    let room = unsafe { from_len.as_ref() }.map_or(0, |room| *room as usize);
    // SAFETY: the arguments are those that the caller passed for this function.
    let received = unsafe { next::recvfrom(fd, bytes, len, flags, from, from_len) };
    if is_ours && received >= 0 {
        // SAFETY: recvfrom(2): there is this much room at `from`, if it is not NULL.
        unsafe { from_kernel(from.cast(), room) };
    }
    received
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
    if !(socket::is_marked(fd) && socket::refill(fd)) {
        // SAFETY: the arguments are those that the caller passed for this function.
        return unsafe { next::recvmsg(fd, message, flags) };
    }
    // SAFETY: recvmsg(2): `message` points to a header, which the call changes.
    let room = unsafe { message.as_ref() }.map_or(0, |message| message.msg_namelen as usize);
    // SAFETY: the arguments are those that the caller passed for this function.
    let received = unsafe { next::recvmsg(fd, message, flags) };
    if received >= 0 {
        // SAFETY: recvmsg(2) has succeeded, so `message` points to a header.
        let name = unsafe { (*message).msg_name };
        // SAFETY: recvmsg(2): there is this much room at the name, if it is not NULL.
        unsafe { from_kernel(name, room) };
    }
    received
}

/// Shows the kernel as the sender of what was received: its address is zero.
///
/// # Safety
/// `address` is NULL, or a received address of netlink for which there was this much room.
unsafe fn from_kernel(address: *mut c_void, room: usize) {
    if !address.is_null() && room >= size_of::<sockaddr_nl>() {
        // SAFETY: there is room for the structure, by this function's contract; the address of a
        // field is taken without a reference.
        let sender = unsafe { &raw mut (*address.cast::<sockaddr_nl>()).nl_pid };
        // SAFETY: the field is inside the structure, for which there is room.
        unsafe { sender.write_unaligned(0) };
    }
}

/// What fortified programs call for `recv`; the kernel checks nothing that the room would change.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
) -> isize {
    if len > room {
        std::process::abort();
    }
    // SAFETY: the arguments are those that the caller passed, without the room.
    unsafe { recv(fd, bytes, len, flags) }
}

/// What fortified programs call for `recvfrom`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    bytes: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> isize {
    if len > room {
        std::process::abort();
    }
    // SAFETY: the arguments are those that the caller passed, without the room.
    unsafe { recvfrom(fd, bytes, len, flags, from, from_len) }
}
