//! Calls that move data.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;

use super::calls::{fill_address, read};
use super::endpoint::{End, Endpoint, Source};
use super::stream::{Core, Stream};
use super::table::{self, Socket};
use crate::errno::Errno;

/// The first piece of a long message is short, so that it leaves soon; then they grow.
const FIRST: usize = 1 << 13;
const MOST: usize = 1 << 16;

/// Bytes of a program.
///
/// # Safety
/// `buf` leads to `len` bytes, or `len` is 0.
pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> &'a [u8] {
    if buf.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { core::slice::from_raw_parts(buf.cast(), len) }
}

/// Room of a program.
///
/// # Safety
/// `buf` leads to `len` bytes that nobody else uses, or `len` is 0.
unsafe fn room<'a>(buf: *mut c_void, len: usize) -> &'a mut [u8] {
    if buf.is_null() || len == 0 {
        return &mut [];
    }
    // SAFETY: as the caller says.
    unsafe { core::slice::from_raw_parts_mut(buf.cast(), len) }
}

/// The elements of a list of the program.
///
/// # Safety
/// `iov` leads to `count` elements, or `count` is not positive.
unsafe fn elements<'a>(iov: *const libc::iovec, count: usize) -> &'a [libc::iovec] {
    if iov.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { core::slice::from_raw_parts(iov, count) }
}

/// What calls that move data return.
fn count(moved: Result<usize, Errno>) -> isize {
    moved.map_or_else(
        |errno| {
            crate::errno::set(errno.0);
            -1
        },
        // Nobody can give more than half of the memory there is.
        usize::cast_signed,
    )
}

fn blocks(core: &Core, flags: c_int) -> bool {
    !core.settings.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
}

/// Why nothing can be sent any more.
fn refusal(endpoint: &Endpoint) -> Option<Errno> {
    match endpoint.end {
        End::Broken(errno) => Some(Errno(errno)),
        _ if !endpoint.is_writable => Some(Errno(libc::ECONNRESET)),
        _ => None,
    }
}

/// Sends everything with `send`, which says how much it sent; nothing, if it never will send the
/// rest. Says how much was sent, if it was anything.
pub(crate) fn send_all(
    stream: &Stream,
    source: &mut Source<'_>,
    flags: c_int,
    mut send: impl FnMut(&mut Endpoint, &mut Source<'_>) -> Option<usize>,
) -> Result<usize, Errno> {
    let all = source.left();
    let blocks = blocks(&stream.lock(), flags);
    let sent = stream.until(blocks, |core| {
        let mut mappings = std::mem::take(&mut core.mappings);
        let result = match core.connection() {
            Err(errno) => Some(Err(errno)),
            Ok(None) => None,
            Ok(Some(endpoint)) => match refusal(endpoint) {
                Some(errno) => Some(Err(errno)),
                None if mappings.wait() && !mappings.tell(endpoint) => None,
                None => loop {
                    if source.left() == 0 {
                        break Some(Ok(()));
                    }
                    match send(endpoint, source) {
                        Some(0) => break None,
                        Some(_) => {}
                        None => break Some(Ok(())),
                    }
                },
            },
        };
        core.mappings = mappings;
        result
    });
    match (sent, all - source.left()) {
        (Err(errno), 0) => Err(errno),
        (_, sent) => Ok(sent),
    }
}

fn send_parts(
    fd: c_int,
    parts: &[&[u8]],
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize, Errno> {
    let stream = match table::get(fd)? {
        Socket::Datagram(datagram) => return datagram.send(parts, to, flags),
        // A stream goes to its peer and nowhere else.
        Socket::Stream(_) if to.is_some() => return Err(Errno(libc::EISCONN)),
        Socket::Stream(stream) => stream,
    };
    let mut most = FIRST;
    send_all(&stream, &mut Source::new(parts), flags, |endpoint, source| {
        let sent = endpoint.send(source, most);
        most = (most * 2).min(MOST);
        Some(sent)
    })
}

/// Fills the parts; says with how many bytes, and who sent them.
fn receive_parts(
    fd: c_int,
    parts: &mut [&mut [u8]],
    flags: c_int,
) -> Result<(usize, Option<SocketAddr>), Errno> {
    match table::get(fd)? {
        Socket::Datagram(datagram) => {
            datagram.receive(parts, flags).map(|(len, from)| (len, Some(from)))
        }
        Socket::Stream(stream) => {
            let received = receive_stream(&stream, parts, flags)?;
            Ok((received, stream.lock().id.peer_addr()))
        }
    }
}

fn receive_stream(stream: &Stream, parts: &mut [&mut [u8]], flags: c_int) -> Result<usize, Errno> {
    let all: usize = parts.iter().map(|part| part.len()).sum();
    let stays = flags & libc::MSG_PEEK != 0;
    let wants_all = flags & libc::MSG_WAITALL != 0 && !stays;
    let blocks = blocks(&stream.lock(), flags);
    let mut taken = 0;
    let received = stream.until(blocks, |core| {
        let endpoint = match core.connection() {
            Ok(endpoint) => endpoint?,
            Err(errno) => return Some(Err(errno)),
        };
        if endpoint.receiving.has_data() {
            let mut rest = Rest::new(parts, taken);
            taken += endpoint.receive(rest.as_mut(), stays);
        }
        if taken == all || (taken > 0 && !wants_all) {
            return Some(Ok(()));
        }
        match endpoint.end {
            End::Broken(errno) => Some(Err(Errno(errno))),
            _ if !endpoint.is_readable => Some(Ok(())),
            _ => None,
        }
    });
    match (received, taken) {
        (Err(errno), 0) => Err(errno),
        (_, taken) => Ok(taken),
    }
}

/// The parts of a list behind its first bytes.
struct Rest<'a>(Vec<&'a mut [u8]>);

impl<'a> Rest<'a> {
    fn new(parts: &'a mut [&mut [u8]], mut skip: usize) -> Self {
        let rest = parts.iter_mut().filter_map(|part| {
            let gone = skip.min(part.len());
            skip -= gone;
            let rest = &mut part[gone..];
            (!rest.is_empty()).then_some(rest)
        });
        Self(rest.collect())
    }

    fn as_mut(&mut self) -> &mut [&'a mut [u8]] {
        &mut self.0
    }
}

pub(crate) unsafe extern "C" fn rsend(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the program gives so many bytes.
    let bytes = unsafe { bytes(buf, len) };
    count(send_parts(fd, &[bytes], flags, None))
}

pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buf: *const c_void, len: usize) -> isize {
    // SAFETY: the program gives so many bytes.
    unsafe { rsend(fd, buf, len, 0) }
}

/// The address that a program gives, if it gives one.
///
/// # Safety
/// `addr` is NULL or leads to `len` bytes.
unsafe fn target(
    addr: *const libc::sockaddr,
    len: libc::socklen_t,
) -> Result<Option<SocketAddr>, Errno> {
    if addr.is_null() && len == 0 {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    unsafe { read(addr, len) }.map(Some)
}

pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const libc::sockaddr,
    addr_len: libc::socklen_t,
) -> isize {
    // SAFETY: the program gives an address of this length, or none.
    let to = unsafe { target(addr, addr_len) };
    // SAFETY: the program gives so many bytes.
    let bytes = unsafe { bytes(buf, len) };
    count(to.and_then(|to| send_parts(fd, &[bytes], flags, to)))
}

pub(crate) unsafe extern "C" fn rwritev(
    fd: c_int,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    // SAFETY: the program gives so many elements.
    let elements = unsafe { elements(iov, usize::try_from(iov_count).unwrap_or(0)) };
    // SAFETY: each of them leads to so many bytes.
    let part = |element: &libc::iovec| unsafe { bytes(element.iov_base, element.iov_len) };
    let parts: Vec<&[u8]> = elements.iter().map(part).filter(|part| !part.is_empty()).collect();
    count(send_parts(fd, &parts, 0, None))
}

pub(crate) unsafe extern "C" fn rsendmsg(
    fd: c_int,
    msg: *const libc::msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: the program gives a message.
    let msg = unsafe { msg.read() };
    if !msg.msg_control.is_null() && msg.msg_controllen != 0 {
        return count(Err(Errno::UNSUPPORTED));
    }
    // SAFETY: it has so many elements.
    let elements = unsafe { elements(msg.msg_iov, msg.msg_iovlen) };
    // SAFETY: each of them leads to so many bytes.
    let part = |element: &libc::iovec| unsafe { bytes(element.iov_base, element.iov_len) };
    let parts: Vec<&[u8]> = elements.iter().map(part).filter(|part| !part.is_empty()).collect();
    // SAFETY: the program gives an address of this length, or none.
    let to = unsafe { target(msg.msg_name.cast(), msg.msg_namelen) };
    count(to.and_then(|to| send_parts(fd, &parts, flags, to)))
}

pub(crate) unsafe extern "C" fn rrecv(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the program gives room for so many bytes.
    let room = unsafe { room(buf, len) };
    count(receive_parts(fd, &mut [room], flags).map(|(len, _)| len))
}

pub(crate) unsafe extern "C" fn rread(fd: c_int, buf: *mut c_void, len: usize) -> isize {
    // SAFETY: the program gives room for so many bytes.
    unsafe { rrecv(fd, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut libc::sockaddr,
    addr_len: *mut libc::socklen_t,
) -> isize {
    // SAFETY: the program gives room for so many bytes.
    let room = unsafe { room(buf, len) };
    let received = receive_parts(fd, &mut [room], flags);
    if let Ok((_, Some(from))) = received
        && !addr_len.is_null()
    {
        // SAFETY: the program gives room for an address, and says how much.
        unsafe { fill_address(from, addr, addr_len) };
    }
    count(received.map(|(len, _)| len))
}

pub(crate) unsafe extern "C" fn rreadv(
    fd: c_int,
    iov: *const libc::iovec,
    iov_count: c_int,
) -> isize {
    // SAFETY: the program gives so many elements.
    let elements = unsafe { elements(iov, usize::try_from(iov_count).unwrap_or(0)) };
    // SAFETY: each of them leads to room for so many bytes.
    let part = |element: &libc::iovec| unsafe { room(element.iov_base, element.iov_len) };
    let mut parts: Vec<&mut [u8]> = elements.iter().map(part).collect();
    count(receive_parts(fd, &mut parts, 0).map(|(len, _)| len))
}

pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, msg: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the program gives a message.
    let given = unsafe { msg.read() };
    if !given.msg_control.is_null() && given.msg_controllen != 0 {
        return count(Err(Errno::UNSUPPORTED));
    }
    // SAFETY: it has so many elements.
    let elements = unsafe { elements(given.msg_iov, given.msg_iovlen) };
    // SAFETY: each of them leads to room for so many bytes.
    let part = |element: &libc::iovec| unsafe { room(element.iov_base, element.iov_len) };
    let mut parts: Vec<&mut [u8]> = elements.iter().map(part).collect();
    let received = receive_parts(fd, &mut parts, flags);
    if let Ok((_, from)) = received {
        // SAFETY: the program learns that nothing is special about it.
        unsafe { (*msg).msg_flags = 0 };
        if let Some(from) = from.filter(|_| !given.msg_name.is_null()) {
            // SAFETY: a field of the message.
            let len = unsafe { &raw mut (*msg).msg_namelen };
            // SAFETY: the program gives room for an address, and says how much.
            unsafe { fill_address(from, given.msg_name.cast(), len) };
        }
    }
    count(received.map(|(len, _)| len))
}
