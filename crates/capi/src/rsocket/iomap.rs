//! Memory of a program that its peer writes to directly.

use core::ffi::{c_int, c_void};

use feroce::{Access, Iova, Mr};

use super::endpoint::{Endpoint, Source};
use super::protocol::{Buffer, Iomap};
use super::{table, transfer};
use crate::errno::{Errno, status};

/// Longest piece that is written with one request.
const MOST: usize = 1 << 16;

/// Memory that the program has mapped.
#[derive(Debug)]
struct Mapping {
    mr: Mr,
    /// The place in the peer's list; only memory that it may write to has one.
    index: Option<u16>,
    offset: u64,
    /// The peer knows of it.
    is_told: bool,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    all: Vec<Mapping>,
}

impl Mappings {
    /// Whether the peer has not been told of everything.
    pub(crate) fn wait(&self) -> bool {
        self.all.iter().any(|mapping| !mapping.is_told)
    }

    /// Tells the peer of what it does not know. False if it could not be told everything.
    pub(crate) fn tell(&mut self, endpoint: &mut Endpoint) -> bool {
        self.all.iter_mut().filter(|mapping| !mapping.is_told).all(|mapping| {
            let (remote, len) = (mapping.mr.remote(0), mapping.mr.len());
            let buffer = Buffer {
                addr: remote.addr,
                key: remote.rkey.0,
                len: u32::try_from(len).unwrap_or(u32::MAX),
            };
            let map = Iomap { offset: mapping.offset, buffer };
            mapping.is_told = mapping.index.is_none_or(|index| endpoint.send_iomap(index, &map));
            mapping.is_told
        })
    }

    /// A place in the peer's list that nothing is in.
    fn place(&self, most: u16) -> Option<u16> {
        (0..most).find(|place| !self.all.iter().any(|mapping| mapping.index == Some(*place)))
    }
}

pub(crate) unsafe extern "C" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: libc::off_t,
) -> libc::off_t {
    // SAFETY: the program gives memory, which stays until it is unmapped.
    let mapped = unsafe { map(fd, buf, len, prot, offset) };
    mapped.unwrap_or_else(|errno| {
        crate::errno::set(errno.0);
        -1
    })
}

/// # Safety
/// `buf` leads to `len` bytes, which stay until they are unmapped or the socket is closed.
unsafe fn map(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    offset: libc::off_t,
) -> Result<libc::off_t, Errno> {
    let stream = table::stream(fd)?;
    if prot & !libc::PROT_WRITE != 0 {
        return Err(Errno::INVALID);
    }
    stream.look(|core| {
        let endpoint = core.endpoint().ok_or(Errno::INVALID)?;
        let (pd, most) = (endpoint.pd.clone(), endpoint.peer_iomaps());
        let is_shared = prot & libc::PROT_WRITE != 0;
        let place = if is_shared { core.mappings.place(most) } else { None };
        if is_shared && place.is_none() {
            return Err(Errno::NO_MEMORY);
        }
        let access = if is_shared { Access::REMOTE_WRITE } else { Access::empty() };
        let access = Access::LOCAL_WRITE | access;
        // SAFETY: as the caller says.
        let mr = unsafe { pd.register_raw(buf.cast(), len, Iova::Natural, access) }?;
        let offset = if offset == -1 { buf as libc::off_t } else { offset };
        let at = offset.cast_unsigned();
        core.mappings.all.push(Mapping { mr, index: place, offset: at, is_told: !is_shared });
        Ok(offset)
    })
}

pub(crate) unsafe extern "C" fn riounmap(fd: c_int, buf: *mut c_void, len: usize) -> c_int {
    let unmapped = table::stream(fd).and_then(|stream| {
        stream.look(|core| {
            let start = buf as u64;
            let is_it = |mapping: &Mapping| mapping.mr.addr() == start && mapping.mr.len() == len;
            let all = &mut core.mappings.all;
            let at = all.iter().position(is_it).ok_or(Errno::INVALID)?;
            all.remove(at);
            Ok(())
        })
    });
    status(unmapped)
}

pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    count: usize,
    offset: libc::off_t,
    flags: c_int,
) -> usize {
    // SAFETY: the program gives so many bytes.
    let bytes = unsafe { transfer::bytes(buf, count) };
    let written = table::stream(fd).and_then(|stream| {
        let mut source = Source::new(core::slice::from_ref(&bytes));
        let mut at = offset.cast_unsigned();
        transfer::send_all(&stream, &mut source, flags, |endpoint, source| {
            let found = endpoint.mapped.iter().find_map(|map| {
                let len = map.bytes_from(at).filter(|len| *len > 0)?;
                let addr = map.buffer.addr.wrapping_add(at.wrapping_sub(map.offset));
                Some(Buffer { addr, len, ..map.buffer })
            })?;
            let sent = endpoint.send_direct(found, source, MOST);
            at = at.wrapping_add(sent as u64);
            Some(sent)
        })
    });
    written.unwrap_or_else(|errno| {
        crate::errno::set(errno.0);
        usize::MAX
    })
}
