//! The registry of the processes of a host.
//!
//! Every open device owns a *slot* in a file that all processes of one user and one network
//! namespace map. A process with several open devices has a slot for each and counts as several
//! processes. The queue pair numbers of the process follow from its slot. A slot is in use exactly
//! while its process holds the lock on the slot's byte of the file (see `lock`). The kernel
//! releases the lock however a process ends, so every process can tell at once that another one is
//! dead. The first process that finds a dead one reaps it: it empties the slot and removes the
//! files of the dead process. There is no coordinator and no daemon, and nothing is left when the
//! last process has gone.
//!
//! Each process has three pipes. It sleeps on the first: peers write a byte into it, but only if
//! the process says that it sleeps. Peers kick the process through the second, when it is awake and
//! does not take what they sent. The third is never written to: processes that watch this one open
//! its reading end, and the kernel reports a hang-up when this process has gone.

mod contact;
mod departures;
mod host_memory;
mod names;
mod places;
mod revocation;
mod rings;
mod services;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use feroce_wire::Gid;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::stat::fstat;

use super::direct_access::{DirectAccessTable, Offers};
use super::directory::Directory;
use super::guard::Guard;
use super::layout::{
    FILE_LEN, HEADER_LEN, Header, MAGIC, MAX_ADDRESSES, SLOT_LEN, SLOTS, Slot, slot_start,
};
use super::lock;
use super::map::{Mapping, RingMap};
use super::portd::{Claims, Prefixes};
use super::shared::Files;
use crate::{room, sys};
pub(super) use contact::{Contact, Wake};
pub use departures::Departure;
use departures::Departures;
use names::{
    FIRST_SLOT, SETUP, byte_of_address, byte_of_slot, kick_name, life_name, parse_ring_name,
    wake_name,
};
use places::{find_or_create, is_beside_others, remove_if_dead};
use revocation::Copies;
use services::{LostServices, Service};

/// The file that all processes map.
const REGISTRY: &str = "registry";

/// How often other processes may remove the registry while this one joins it.
const JOIN_TRIES: u32 = 1000;

/// The registry as one process sees it, which owns a slot in it.
///
/// ```
/// use feroce_local::Registry;
/// use feroce_wire::Gid;
///
/// let root = std::env::temp_dir();
/// let (a, b) = (Registry::join(&root, 7)?, Registry::join(&root, 7)?);
/// assert_ne!(a.prefix(), b.prefix());
///
/// let here = Gid::from_ipv4([192, 0, 2, 1]);
/// a.claim_service(here, 0x0106_1234)?;
/// assert!(b.claim_service(here, 0x0106_1234).is_err());
/// drop(a);
/// b.claim_service(here, 0x0106_1234)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Registry {
    directory: Directory,
    file: File,
    map: Mapping,
    slot: u8,
    generation: u32,
    /// Both ends of the pipe through which peers wake this process.
    wake: OwnedFd,
    /// Both ends of the pipe through which peers kick this process.
    kick: OwnedFd,
    /// Both ends of the pipe whose hang-up tells peers that this process has gone.
    _life: OwnedFd,
    services: Mutex<Vec<Service>>,
    /// How this process claims services where portd receives.
    claims: OnceLock<Claims>,
    lost: LostServices,
    /// This process has given up its slot, which may belong to another one now. `leave` sets it
    /// while it holds the lock of `services`.
    left: AtomicBool,
    /// A word by which peers verify that the memory they read belongs to this process.
    _witness: Box<u64>,
    /// The number of revocations so far.
    revoked: AtomicU32,
    /// Copies that peers may still be making although the right was revoked.
    copies: Copies,
    /// Memory of this process that peers can map.
    files: Files,
    /// Keeps this process alive if a peer truncates a file that is mapped here.
    guard: OnceLock<&'static dyn Guard>,
    /// Granted direct access that was not announced to its peer yet, and whether there is any.
    offers: Mutex<Offers>,
    has_offers: AtomicBool,
    /// Direct access that peers have granted to this process.
    direct_table: Mutex<DirectAccessTable>,
    departures: Departures,
}

impl Registry {
    /// Joins the registry below `root` (`/dev/shm`, except in tests). The slot depends on `seed`
    /// and on which slots are taken. An error of kind [`io::ErrorKind::WouldBlock`] says that
    /// another process is joining or leaving at this moment: the caller tries again a little later.
    pub fn join(root: &Path, seed: u64) -> io::Result<Self> {
        Self::join_avoiding(root, seed, &Prefixes::default())
    }

    /// Joins the registry as [`Registry::join`] does, with a prefix that is not among `taken`.
    pub(crate) fn join_avoiding(root: &Path, seed: u64, taken: &Prefixes) -> io::Result<Self> {
        for _ in 0..JOIN_TRIES {
            match Self::try_join(root, seed, taken) {
                // The last process has removed the registry in the meantime, or a stranger has
                // taken its name; this process creates it again.
                Ok(None) => {}
                // By kind: an error that names its path has no number of its own.
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) && root.is_dir() => {}
                Ok(Some(registry)) => return Ok(registry),
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the registry of devices comes and goes"))
    }

    fn try_join(root: &Path, seed: u64, taken: &Prefixes) -> io::Result<Option<Self>> {
        let directory = find_or_create(root)?;
        let file = directory.file(REGISTRY, true)?;
        if !lock::try_hold(&file, SETUP)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if fstat(&file)?.st_nlink == 0 || is_beside_others(root, &directory, &file)? {
            return Ok(None);
        }
        // Without room for a ring in each direction, the process would lose everything that is sent
        // to it or by it. Such a process does without the others, and uses the wire.
        room::may_have(FILE_LEN.max(RingMap::file_len(rings::CAPACITIES[1])))?;
        room::has_room(root, HEADER_LEN + SLOT_LEN + 2 * RingMap::file_len(rings::CAPACITIES[1]))?;
        file.set_len(FILE_LEN as u64)?;
        reserve(&file, 0, HEADER_LEN)?;
        let len = NonZeroUsize::new(FILE_LEN).ok_or(io::ErrorKind::InvalidInput)?;
        let map = Mapping::new(&file, len)?;
        map.view::<Header>(0).magic.store(MAGIC, Ordering::Release);
        let slot = free_slot(&file, seed, taken)?;
        reap(&directory, &map, slot);
        reserve(&file, slot_start(slot), SLOT_LEN)?;
        empty(map.view(slot_start(slot)));
        let wake = directory.new_pipe(&wake_name(slot))?;
        let kick = directory.new_pipe(&kick_name(slot))?;
        let life = directory.new_pipe(&life_name(slot))?;
        let header = map.view::<Header>(0);
        let generation = (header.states[usize::from(slot)].load(Ordering::Acquire) >> 1) + 1;
        // No other process had this combination of process id, slot and generation.
        let known_by = u64::from(std::process::id()) << 32 | u64::from(generation);
        let witness = Box::new(fastrand::Rng::with_seed(seed ^ known_by).u64(..));
        host_memory::show_witness(map.view(slot_start(slot)), &witness);
        header.states[usize::from(slot)].store(generation << 1 | 1, Ordering::Release);
        header.epoch.fetch_add(1, Ordering::AcqRel);
        lock::release(&file, SETUP);
        directory.others().iter().for_each(remove_if_dead);
        Ok(Some(Self {
            directory,
            file,
            map,
            slot,
            generation,
            wake,
            kick,
            _life: life,
            services: Mutex::default(),
            claims: OnceLock::new(),
            lost: LostServices::default(),
            left: AtomicBool::new(false),
            _witness: witness,
            revoked: AtomicU32::new(0),
            copies: Copies::default(),
            files: Files::default(),
            guard: OnceLock::new(),
            offers: Mutex::default(),
            has_offers: AtomicBool::new(false),
            direct_table: Mutex::default(),
            departures: Departures::default(),
        }))
    }

    /// The number that distinguishes this process from all others: the upper eight bits of its
    /// queue pair numbers and of its communication ids. It is not zero.
    pub fn prefix(&self) -> u8 {
        self.slot + 1
    }

    /// Whether a process has claimed the requests for a service at an address.
    pub(super) fn serves(&self, slot: u8, address: Gid, id: u64) -> bool {
        let area = self.area(slot);
        let count = area.service_count.load(Ordering::Acquire) as usize;
        area.services.iter().take(count).any(|place| place.load() == (address, id))
    }

    pub(super) fn slot(&self) -> u8 {
        self.slot
    }

    /// A count that changes with every change of the registry that other processes keep a copy of.
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.map.view::<Header>(0).epoch.load(Ordering::Acquire)
    }

    /// The generation of a slot, if the slot is in use.
    pub(super) fn generation_of(&self, slot: u8) -> Option<u32> {
        let state = self.map.view::<Header>(0).states[usize::from(slot)].load(Ordering::Acquire);
        (state & 1 == 1).then_some(state >> 1)
    }

    /// The slots of all other processes, and their generations.
    pub(super) fn others(&self) -> impl Iterator<Item = (u8, u32)> {
        let slots = (0..SLOTS as u8).filter(|slot| *slot != self.slot);
        slots.filter_map(|slot| Some((slot, self.generation_of(slot)?)))
    }

    /// The area of a slot that is in use.
    #[inline]
    pub(super) fn area(&self, slot: u8) -> &Slot {
        self.map.view(slot_start(slot))
    }

    /// The addresses of a process and, where it is the port owner, the socket it receives with.
    pub(super) fn addresses_of(&self, slot: u8) -> Vec<(Gid, Option<u32>)> {
        let area = self.area(slot);
        let count = area.address_count.load(Ordering::Acquire) as usize;
        area.addresses.iter().take(count).map(|place| place.load()).collect()
    }

    /// Publishes the addresses of this process in the registry.
    pub(super) fn show_addresses(&self, addresses: &[(Gid, Option<u32>)]) -> io::Result<()> {
        if addresses.len() > MAX_ADDRESSES {
            let why = format!("more than {MAX_ADDRESSES} addresses of one device");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        let area = self.area(self.slot);
        for (place, &(gid, socket)) in area.addresses.iter().zip(addresses) {
            place.store(gid, socket);
        }
        area.address_count.store(addresses.len() as u32, Ordering::Release);
        self.changed();
        Ok(())
    }

    /// Publishes whether packets to this process must carry their ICRC; to be called before the
    /// addresses are published.
    pub(super) fn set_wants_icrc(&self, wants: bool) {
        self.area(self.slot).wants_icrc.store(wants.into(), Ordering::Release);
    }

    fn changed(&self) {
        self.map.view::<Header>(0).epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Becomes the port owner of an address, if no process is. False: another process is.
    pub(super) fn try_receive_at(&self, address: Gid) -> io::Result<bool> {
        lock::try_hold(&self.file, byte_of_address(address))
    }

    /// Gives up the port of an address.
    pub(super) fn stop_receiving_at(&self, address: Gid) {
        lock::release(&self.file, byte_of_address(address));
    }

    /// Whether the process in a slot lives; true if the lock cannot be queried.
    pub(super) fn lives(&self, slot: u8) -> bool {
        lock::is_held(&self.file, byte_of_slot(slot), 1).unwrap_or(true)
    }

    /// Reaps the process in a slot if it is dead, and returns whether it did.
    pub(super) fn reap_if_dead(&self, slot: u8) -> bool {
        if self.lives(slot) || !lock::try_hold(&self.file, byte_of_slot(slot)).unwrap_or(false) {
            return false;
        }
        reap(&self.directory, &self.map, slot);
        lock::release(&self.file, byte_of_slot(slot));
        true
    }

    /// The pipe that this process sleeps on.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The pipe through which peers kick this process.
    pub(super) fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Opens the pipes of another process, if it lives.
    pub(super) fn contact(&self, slot: u8) -> io::Result<Contact> {
        let wake = self.directory.pipe(&wake_name(slot), OFlag::O_RDWR)?;
        let kick = self.directory.pipe(&kick_name(slot), OFlag::O_RDWR)?;
        let life = self.directory.pipe(&life_name(slot), OFlag::O_RDONLY)?;
        // The kernel does not report a death that happened before the pipe was opened.
        if !self.lives(slot) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Contact::new(wake, kick, life))
    }

    /// The slots of processes that have created a ring to this one since the last call.
    pub(super) fn new_senders(&self) -> Vec<u8> {
        let mut slots = Vec::new();
        for (i, word) in self.area(self.slot).inbox.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let slot = i * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                slots.extend(u8::try_from(slot).ok().filter(|&s| usize::from(s) < SLOTS));
            }
        }
        slots
    }

    /// Whether [`Registry::new_senders`] would return a slot.
    #[inline]
    pub(super) fn has_new_senders(&self) -> bool {
        self.area(self.slot).inbox.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Gives up the slot; the kernel tells the peers at once. Later calls do nothing.
    pub(super) fn leave(&self) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        // A later `release_service` would otherwise change the area of the next process in this
        // slot.
        services.clear();
        drop(services);
        reap(&self.directory, &self.map, self.slot);
        lock::release(&self.file, byte_of_slot(self.slot));
        let departures = &self.map.view::<Header>(0).departures;
        departures.fetch_add(1, Ordering::SeqCst);
        let mut seen = departures.load(Ordering::SeqCst);
        // If another process holds this byte, this one can stop: the other joins and stays, or it
        // leaves and looks again because `departures` has changed.
        while lock::try_hold(&self.file, SETUP).unwrap_or(false) {
            if !lock::is_held(&self.file, FIRST_SLOT, SLOTS as i64).unwrap_or(true) {
                self.directory.remove_all(|_| true);
                self.directory.remove_self();
                break;
            }
            lock::release(&self.file, SETUP);
            let now = departures.load(Ordering::SeqCst);
            if std::mem::replace(&mut seen, now) == now {
                break;
            }
        }
        lock::release_all(&self.file);
    }
}

/// For the copy of a registry that a child process has after a fork.
impl Registry {
    /// Releases everything without giving up the slot, which belongs to the parent. The kernel
    /// keeps the locks of the parent as long as any process has the file open, so the child closes
    /// its copy.
    pub(super) fn abandon(&self) {
        // A thread of the parent may have held a lock at the fork. The child has no copy of that
        // thread, so it does not wait for the lock.
        if let Ok(mut services) = self.services.try_lock() {
            services.clear();
        }
        if let Ok(mut direct_table) = self.direct_table.try_lock() {
            direct_table.retain(|_| false);
        }
        self.left.store(true, Ordering::Relaxed);
        let pipes = [self.wake.as_fd(), self.kick.as_fd(), self._life.as_fd()];
        for fd in [self.file.as_fd()].into_iter().chain(pipes) {
            // If the process has no free descriptors, the child keeps this one open a while longer.
            let _ = sys::let_go(fd);
        }
    }

    /// Whether the slot was given up or abandoned.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Locks the byte of a slot that has no living process and whose prefix is not among `taken`.
fn free_slot(file: &File, seed: u64, taken: &Prefixes) -> io::Result<u8> {
    let start = fastrand::Rng::with_seed(seed).usize(..SLOTS);
    for i in 0..SLOTS {
        let slot = ((start + i) % SLOTS) as u8;
        let is_taken = taken[usize::from((slot + 1) / 8)] >> ((slot + 1) % 8) & 1 == 1;
        if !is_taken && lock::try_hold(file, byte_of_slot(slot))? {
            return Ok(slot);
        }
    }
    let why = format!("{SLOTS} devices are open on this host already");
    Err(io::Error::new(io::ErrorKind::QuotaExceeded, why))
}

/// Reaps a process: empties the slot, whose byte the caller has locked, and removes the files of
/// the process.
fn reap(directory: &Directory, map: &Mapping, slot: u8) {
    let header = map.view::<Header>(0);
    let state = &header.states[usize::from(slot)];
    if state.load(Ordering::Acquire) & 1 == 0 {
        return;
    }
    state.fetch_and(!1, Ordering::AcqRel);
    header.epoch.fetch_add(1, Ordering::AcqRel);
    directory.remove(&wake_name(slot));
    directory.remove(&kick_name(slot));
    directory.remove(&life_name(slot));
    // Peers may still read the rings from the process; no process reads the rings to it any more.
    directory.remove_all(|name| parse_ring_name(name).is_some_and(|(_, _, to)| to == slot));
}

/// Empties the area of a slot, whose byte the caller has locked.
fn empty(area: &Slot) {
    area.sleeping.store(0, Ordering::Relaxed);
    area.napping.store(0, Ordering::Relaxed);
    area.polling.store(0, Ordering::Relaxed);
    area.fetching.store(0, Ordering::Relaxed);
    area.passed.store(0, Ordering::Relaxed);
    area.wants_icrc.store(0, Ordering::Relaxed);
    area.address_count.store(0, Ordering::Relaxed);
    area.service_count.store(0, Ordering::Relaxed);
    for word in &area.inbox {
        word.store(0, Ordering::Relaxed);
    }
}

/// Allocates the memory of a part of a file. Without it, access to the mapping would raise `SIGBUS`
/// and end the process when memory runs out.
pub(super) fn reserve(file: &File, start: usize, len: usize) -> io::Result<()> {
    let (start, len) = (start as libc::off_t, len as libc::off_t);
    Ok(fallocate(file, FallocateFlags::empty(), start, len)?)
}

#[cfg(test)]
mod tests;
