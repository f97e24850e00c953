//! Receiving datagrams.
//!
//! Programs end threads that wait for datagrams with `pthread_cancel`, which unwinds their stack.
//! So a thread waits in calls that may unwind, without a lock or a value that needs dropping; what
//! follows does not wait, and is not cancelled.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::sync::{Mutex, Once, PoisonError};

use feroce_umad::{HEAD_LEN, Piece};

use super::fields::HEADER_LEN;
use crate::abi::*;
use crate::errno;

unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
    fn pause() -> c_int;
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The thread is not cancelled (`PTHREAD_CANCEL_DISABLE`) as long as this lives.
pub(super) struct Uncancelled(c_int);

impl Uncancelled {
    pub(super) fn new() -> Self {
        let mut before = 0;
        // SAFETY: the pointer leads to a place for the state before.
        unsafe { pthread_setcancelstate(1, &raw mut before) };
        Self(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state is the one before; the call may be told no place for the old one.
        unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
    }
}

/// One thread at a time takes a datagram, so that another does not get its second piece.
static RECEIVING: Mutex<()> = Mutex::new(());

/// Waits until a descriptor is ready. Returns what poll(2) returns.
fn wait(fd: c_int, events: i16, timeout_ms: c_int) -> c_int {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: poll(2) reads and writes the one entry.
    unsafe { poll(&raw mut entry, 1, timeout_ms) }
}

/// Waits until a descriptor that the program has made non-blocking takes more.
pub(super) fn until_writable(fd: c_int) {
    wait(fd, libc::POLLOUT, -1);
}

pub(crate) extern "C-unwind" fn umad_poll(fd: c_int, timeout_ms: c_int) -> c_int {
    match wait(fd, libc::POLLIN, timeout_ms) {
        1 => 0,
        0 => {
            errno::set(libc::ETIMEDOUT);
            -libc::ETIMEDOUT
        }
        _ => -libc::EIO,
    }
}

/// What there is to take.
enum Taken {
    /// A datagram was taken: its length.
    Whole(usize),
    /// The next datagram has this length, and does not fit.
    TooLong(usize),
    /// Another thread was faster.
    Nothing,
    /// The fabric has ended.
    Gone,
}

pub(crate) unsafe extern "C-unwind" fn umad_recv(
    fd: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller passes a place with the length that it has room for.
    let room = usize::try_from(unsafe { *length }).unwrap_or(0) + HEADER_LEN;
    loop {
        // Without a timeout a call waits like read(2), unless the descriptor is non-blocking.
        let timeout = if timeout_ms == 0 && !is_nonblocking(fd) { -1 } else { timeout_ms };
        let waited = umad_poll(fd, timeout);
        if waited != 0 {
            if timeout_ms == 0 && waited == -libc::ETIMEDOUT {
                errno::set(libc::EWOULDBLOCK);
                return -libc::EWOULDBLOCK;
            }
            return waited;
        }
        // SAFETY: the caller passes a buffer of so many bytes, header included.
        match unsafe { take(fd, umad.cast(), room) } {
            Taken::Whole(len) => {
                // SAFETY: the caller passes a place for the length.
                unsafe { *length = (len - HEADER_LEN.min(len)) as c_int };
                // SAFETY: a datagram was written to the caller's buffer.
                return unsafe { (*umad.cast::<ib_user_mad>()).agent_id }.cast_signed();
            }
            Taken::TooLong(len) => {
                // SAFETY: the caller passes a place for the length.
                unsafe { *length = (len - HEADER_LEN.min(len)) as c_int };
                errno::set(libc::ENOSPC);
                return -libc::ENOSPC;
            }
            Taken::Nothing => {}
            Taken::Gone => {
                gone();
                if timeout > 0 {
                    errno::set(libc::ENODEV);
                    return -libc::ENODEV;
                }
                // Programs that wait for ever begin anew at once after an error, without end.
                // SAFETY: the call has no preconditions.
                unsafe { pause() };
            }
        }
    }
}

/// Says once that there is no fabric any more.
fn gone() {
    static SAID: Once = Once::new();
    SAID.call_once(|| tracing::error!("the fabric has ended: nothing arrives any more"));
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: fcntl(2) takes any number as a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Takes a datagram whole.
///
/// # Safety
/// `umad` points to `room` bytes, at least those of a header.
unsafe fn take(fd: c_int, umad: *mut u8, room: usize) -> Taken {
    let _uncancelled = Uncancelled::new();
    let _receiving = RECEIVING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut head = [0; HEAD_LEN + HEADER_LEN];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: recv(2) writes at most as many bytes as `head` has.
    let seen = unsafe { libc::recv(fd, head.as_mut_ptr().cast(), head.len(), flags) };
    let Ok(seen) = usize::try_from(seen) else {
        return match errno::get() {
            libc::EAGAIN | libc::EINTR => Taken::Nothing,
            _ => Taken::Gone,
        };
    };
    let Some(Piece { total, .. }) = head.get(..seen).and_then(Piece::parse) else {
        return Taken::Gone;
    };
    if total > room {
        let header = &head[HEAD_LEN..];
        // SAFETY: by this function's contract the buffer has room for a header.
        unsafe { ptr::copy_nonoverlapping(header.as_ptr(), umad, header.len()) };
        return Taken::TooLong(total);
    }
    let mut done = 0;
    while done < total {
        // SAFETY: `done` bytes of `total` were received, which is no more than the buffer has.
        let to = unsafe { umad.add(done) };
        // SAFETY: the rest of the buffer is behind `to`.
        match unsafe { receive_piece(fd, to, total - done) } {
            0 => return Taken::Gone,
            len => done += len,
        }
    }
    Taken::Whole(total)
}

/// Receives a piece without its head. Its length; 0 if the fabric has ended.
///
/// # Safety
/// `to` points to `room` bytes.
unsafe fn receive_piece(fd: c_int, to: *mut u8, room: usize) -> usize {
    let mut head = [0_u8; HEAD_LEN];
    let mut parts = [
        libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEAD_LEN },
        libc::iovec { iov_base: to.cast(), iov_len: room },
    ];
    // SAFETY: a message header of which all is zero is one without anything.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    loop {
        // SAFETY: recvmsg(2) writes to the two parts, which have room for as much.
        let received = unsafe { libc::recvmsg(fd, &raw mut message, 0) };
        match usize::try_from(received) {
            Ok(len) => return len.saturating_sub(HEAD_LEN),
            Err(_) if errno::get() == libc::EINTR => {}
            Err(_) if errno::get() == libc::EAGAIN => {
                wait(fd, libc::POLLIN, -1);
            }
            Err(_) => return 0,
        }
    }
}
