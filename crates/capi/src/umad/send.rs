//! Sending datagrams.

use core::ffi::{c_int, c_void};
use core::slice;
use std::sync::{Mutex, PoisonError};

use feroce_umad::{MAX_LEN, pieces};

use super::fields::HEADER_LEN;
use super::receive::Uncancelled;
use crate::abi::*;
use crate::errno;

/// Pieces of one datagram follow each other.
static SENDING: Mutex<()> = Mutex::new(());

pub(crate) unsafe extern "C" fn umad_send(
    fd: c_int,
    agent: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let len = usize::try_from(length).ok().map(|len| len + HEADER_LEN);
    let Some(len) = len.filter(|len| *len <= MAX_LEN) else {
        errno::set(libc::EINVAL);
        return -libc::EIO;
    };
    {
        // SAFETY: the caller passes a datagram.
        let header = unsafe { &mut *umad.cast::<ib_user_mad>() };
        header.agent_id = agent.cast_unsigned();
        header.timeout_ms = timeout_ms.cast_unsigned();
        header.retries = retries.cast_unsigned();
    }
    // SAFETY: the caller passes a datagram of `length` bytes behind its header.
    let whole = unsafe { slice::from_raw_parts(umad.cast::<u8>(), len) };
    let _uncancelled = Uncancelled::new();
    let _sending = SENDING.lock().unwrap_or_else(PoisonError::into_inner);
    for piece in pieces(whole) {
        loop {
            // SAFETY: send(2) reads the bytes of the piece.
            let sent =
                unsafe { libc::send(fd, piece.as_ptr().cast(), piece.len(), libc::MSG_NOSIGNAL) };
            match (sent >= 0, errno::get()) {
                (true, _) => break,
                (false, libc::EINTR) => {}
                (false, libc::EAGAIN) => super::receive::until_writable(fd),
                (false, _) => return -libc::EIO,
            }
        }
    }
    0
}
