//! The memory of a program that its peer writes to directly.

use feroce::{Errno, Mr};

use crate::endpoint::Endpoint;
use crate::protocol::{Buffer, Iomap};

/// Memory that the program has mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    mr: Mr,
    /// The slot in the peer's list; memory that the peer may not write to has none.
    slot: Option<u16>,
    offset: u64,
    /// The peer knows the mapping, or need not.
    is_announced: bool,
}

impl Mapping {
    pub(crate) fn new(mr: Mr, slot: Option<u16>, offset: u64) -> Self {
        Self { mr, slot, offset, is_announced: slot.is_none() }
    }
}

/// All mappings of a socket.
#[derive(Debug, Default)]
pub(crate) struct Mappings {
    all: Vec<Mapping>,
}

impl Mappings {
    pub(crate) fn add(&mut self, mapping: Mapping) {
        self.all.push(mapping);
    }

    /// Ends the mapping of this memory.
    pub(crate) fn remove(&mut self, addr: u64, len: usize) -> Result<(), Errno> {
        let is_it = |mapping: &Mapping| mapping.mr.addr() == addr && mapping.mr.len() == len;
        let at = self.all.iter().position(is_it).ok_or(Errno::INVALID)?;
        self.all.remove(at);
        Ok(())
    }

    /// Whether the peer does not know all mappings yet.
    pub(crate) fn are_pending(&self) -> bool {
        self.all.iter().any(|mapping| !mapping.is_announced)
    }

    /// Tells the peer of the mappings that it does not know; false if some must wait.
    pub(crate) fn announce(&mut self, endpoint: &mut Endpoint) -> bool {
        self.all.iter_mut().filter(|mapping| !mapping.is_announced).all(|mapping| {
            let (remote, len) = (mapping.mr.remote(0), mapping.mr.len());
            let buffer = Buffer {
                addr: remote.addr,
                key: remote.rkey.0,
                len: u32::try_from(len).unwrap_or(u32::MAX),
            };
            let map = Iomap { offset: mapping.offset, buffer };
            mapping.is_announced = mapping.slot.is_none_or(|slot| endpoint.send_iomap(slot, &map));
            mapping.is_announced
        })
    }

    /// A free slot in the peer's list of `slots`.
    pub(crate) fn free_slot(&self, slots: u16) -> Option<u16> {
        (0..slots).find(|slot| !self.all.iter().any(|mapping| mapping.slot == Some(*slot)))
    }
}
