//! Rings between two processes, and how the receiver of one finds it.
//!
//! A ring is a file of the directory, which the receiver removes as soon as it has mapped it. Where
//! the file system has no room (any more), it is a file without a name, which is limited by memory
//! only: then the directory has a link to the descriptor of the sender in its place.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use feroce_link::Logger;
use feroce_ring::{ByteConsumer, ByteProducer};
use nix::sys::stat::fstat;

use super::names::{parse_ring_name, ring_name};
use super::{Ordering, Registry, reserve};
use crate::map::RingMap;
use crate::{room, shared};

/// Capacities of rings, the preferred one first. A ring must hold the longest record twice.
pub(super) const CAPACITIES: [usize; 2] = [1 << 20, 1 << 18];

impl Registry {
    /// Creates a ring to another process and announces it. The other process opens the ring when it
    /// next looks.
    pub(crate) fn new_ring(&self, to: u8) -> io::Result<ByteProducer<RingMap>> {
        let name = ring_name(self.slot, self.generation, to);
        self.directory.remove(&name);
        let memory = self.named_ring(&name).or_else(|_| self.unnamed_ring(&name))?;
        // SAFETY: the file is new and its name has our slot and generation, so this is the only
        // producer of the ring.
        let ring = unsafe { ByteProducer::new(memory) };
        let inbox = &self.area(to).inbox[usize::from(self.slot) / 64];
        inbox.fetch_or(1 << (self.slot % 64), Ordering::AcqRel);
        Ok(ring)
    }

    /// A ring in a file of the directory.
    fn named_ring(&self, name: &str) -> io::Result<RingMap> {
        let file = self.directory.new_file(name)?;
        let made = CAPACITIES.iter().find_map(|&capacity| {
            let len = RingMap::file_len(capacity);
            room::may_have(len).ok()?;
            reserve(&file, 0, len).ok().map(|()| capacity)
        });
        let map = made.ok_or_else(|| io::ErrorKind::StorageFull.into()).and_then(|capacity| {
            file.set_len(RingMap::file_len(capacity) as u64)?;
            RingMap::new(&file, capacity)
        });
        map.inspect_err(|_| self.directory.remove(name))
    }

    /// A ring in a file without a name, and a link to it.
    fn unnamed_ring(&self, name: &str) -> io::Result<RingMap> {
        let capacity = CAPACITIES[1];
        let file = shared::new_file(name, RingMap::file_len(capacity))?;
        reserve(&file, 0, RingMap::file_len(capacity))?;
        let at = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        self.directory.link(name, &at)?;
        // The descriptor stays as long as the ring, because the sender does not see when the
        // receiver opens it.
        Ok(RingMap::new(&file, capacity)?.keeping(file))
    }

    /// Opens the rings from the process in a slot and from earlier processes of that slot, with
    /// their generations, oldest first. Once a ring is mapped here, its file needs no name and is
    /// unlinked.
    pub(crate) fn rings_from(&self, from: u8, log: &Logger) -> Vec<(u32, ByteConsumer<RingMap>)> {
        let mut rings = Vec::new();
        for (name, generation) in self.directory.names().iter().filter_map(|name| {
            let (sender, generation, receiver) = parse_ring_name(name)?;
            ((sender, receiver) == (from, self.slot)).then_some((name, generation))
        }) {
            match self.open_ring(name) {
                Ok(ring) => rings.push((generation, ring)),
                Err(e) => log.debug(format_args!("{name}: {e}")),
            }
        }
        rings.sort_by_key(|(generation, _)| *generation);
        rings
    }

    fn open_ring(&self, name: &str) -> io::Result<ByteConsumer<RingMap>> {
        let file = match self.directory.linked(name) {
            Some(at) => self.open_unnamed(name, &at),
            None => self.directory.file(name, false),
        };
        self.directory.remove(name);
        let file = file?;
        let len = usize::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let capacity = CAPACITIES.into_iter().find(|&c| RingMap::file_len(c) == len);
        let memory = RingMap::new(&file, capacity.ok_or(io::ErrorKind::InvalidData)?)?;
        // SAFETY: the name had our slot, and is removed, so this is the only consumer of the ring.
        Ok(unsafe { ByteConsumer::new(memory) })
    }

    /// Opens a ring at a descriptor of its sender. The sender may have died, and another process
    /// may have its number: the file tells by its name which ring it is.
    fn open_unnamed(&self, name: &str, at: &str) -> io::Result<File> {
        let found = std::fs::read_link(at)?;
        if found.to_str() != Some(&format!("/memfd:{name} (deleted)")) {
            return Err(io::ErrorKind::NotFound.into());
        }
        File::options().read(true).write(true).open(at)
    }
}
