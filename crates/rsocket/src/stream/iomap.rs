//! Memory of the program that the peer writes to directly.

use core::ffi::{c_int, c_void};

use feroce::{Access, Errno, Iova};

use super::Stream;
use crate::endpoint::Source;
use crate::mappings::Mapping;
use crate::protocol::Buffer;

/// Most bytes that one request writes.
const MAX_WRITE: usize = 1 << 16;

impl Stream {
    /// Maps memory: with `PROT_WRITE` the peer may write to it, under `offset` or, if that is -1,
    /// under its address. Returns the offset.
    ///
    /// # Safety
    /// `buf` points to `len` bytes that stay mapped, and that the program accesses only as shared
    /// memory, until it unmaps them or closes the socket.
    pub(crate) unsafe fn map(
        &self,
        buf: *mut c_void,
        len: usize,
        prot: c_int,
        offset: i64,
    ) -> Result<i64, Errno> {
        if prot & !libc::PROT_WRITE != 0 {
            return Err(Errno::INVALID);
        }
        self.update(|core| {
            let endpoint = core.endpoint().ok_or(Errno::INVALID)?;
            let (pd, slots) = (endpoint.pd.clone(), endpoint.peer_iomaps());
            let is_shared = prot & libc::PROT_WRITE != 0;
            let slot = if is_shared { core.mappings.free_slot(slots) } else { None };
            if is_shared && slot.is_none() {
                return Err(Errno::NO_MEMORY);
            }
            let access = if is_shared { Access::REMOTE_WRITE } else { Access::empty() };
            let access = Access::LOCAL_WRITE | access;
            // SAFETY: this function's contract: `buf` and `len` describe memory that outlives the
            // registration, which `mappings` owns until `unmap` or the end of the socket.
            let mr = unsafe { pd.register_raw(buf.cast(), len, Iova::Natural, access) }?;
            let offset = if offset == -1 { buf as i64 } else { offset };
            core.mappings.add(Mapping::new(mr, slot, offset.cast_unsigned()));
            Ok(offset)
        })
    }

    /// Ends a mapping.
    pub(crate) fn unmap(&self, addr: u64, len: usize) -> Result<(), Errno> {
        self.update(|core| core.mappings.remove(addr, len))
    }

    /// Writes into memory that the peer has mapped; returns how many bytes were written.
    pub(crate) fn write_mapped(
        &self,
        bytes: &[u8],
        offset: u64,
        flags: c_int,
    ) -> Result<usize, Errno> {
        let mut source = Source::new(core::slice::from_ref(&bytes));
        let mut at = offset;
        self.send_all(&mut source, flags, |endpoint, source| {
            let found = endpoint.mapped.iter().find_map(|map| {
                let len = map.bytes_from(at).filter(|len| *len > 0)?;
                let addr = map.buffer.addr.wrapping_add(at.wrapping_sub(map.offset));
                Some(Buffer { addr, len, ..map.buffer })
            })?;
            let sent = endpoint.send_direct(found, source, MAX_WRITE);
            at = at.wrapping_add(sent as u64);
            Some(sent)
        })
    }
}
