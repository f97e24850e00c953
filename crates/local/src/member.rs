//! The registry, and its members.
//!
//! Every open device is a *member*: it owns a slot in a file that all members of one user and one
//! network namespace map. The queue pair numbers of the member follow from its slot. A slot is in
//! use exactly while its member holds the lock on the slot's byte of the file (see `lock`). The
//! kernel releases the lock however a process ends, so every member can tell at once that another
//! one is dead. The first member that finds a dead one reaps it (the code says bury): it empties
//! the slot and removes the files of the dead member. There is no coordinator and no daemon, and
//! nothing is left when the last member has gone.
//!
//! Each member has three pipes. It sleeps on the first: peers write a byte into it, but only if the
//! member says that it sleeps. Peers kick the member through the second, when it is awake and does
//! not take what they sent. The third is never written to: members that watch this one open its
//! reading end, and the kernel reports a hang-up when this member has gone.

mod contact;
mod departures;
mod lending;
mod names;
mod revocation;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use feroce_link::Logger;
use feroce_ring::{ByteConsumer, ByteProducer};
use feroce_wire::Gid;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::sys::stat::fstat;

use super::direct_access::{DirectAccessTable, Offers};
use super::directory::Directory;
use super::guard::Guard;
use super::layout::{
    FILE_LEN, HEADER_LEN, Header, MAGIC, MAX_ADDRESSES, MAX_SERVICES, SLOT_LEN, SLOTS, Slot,
    slot_start,
};
use super::lock;
use super::map::{Mapping, RingMap};
use super::shared::Files;
use crate::{room, sys};
pub(super) use contact::{Contact, Wake};
pub use departures::Departure;
use departures::Departures;
use names::{
    FIRST_SLOT, SETUP, byte_of_address, byte_of_service, byte_of_slot, life_name, nudge_name,
    parse_ring_name, ring_name, wake_name,
};
use revocation::Copies;

/// The file that all members map.
const REGISTRY: &str = "registry";

/// How often other processes may remove the registry while this one joins it.
const JOIN_TRIES: u32 = 1000;

/// Capacities of rings, the preferred one first. A ring must hold the longest record twice.
const RING_CAPACITIES: [usize; 2] = [1 << 20, 1 << 18];

/// A member of the registry: the owner of one slot.
///
/// ```
/// use feroce_local::Member;
/// use feroce_wire::Gid;
///
/// let root = std::env::temp_dir();
/// let (a, b) = (Member::join(&root, 7)?, Member::join(&root, 7)?);
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
pub struct Member {
    directory: Directory,
    file: File,
    map: Mapping,
    slot: u8,
    generation: u32,
    /// Both ends of the pipe through which peers wake this member.
    wake: OwnedFd,
    /// Both ends of the pipe through which peers kick this member.
    kick: OwnedFd,
    /// Both ends of the pipe whose hang-up tells peers that this member has gone.
    _life: OwnedFd,
    services: Mutex<Vec<(Gid, u64)>>,
    /// This member has given up its slot, which may belong to another one now. `leave` sets it
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
    /// Direct access that peers have granted to this member.
    direct_table: Mutex<DirectAccessTable>,
    departures: Departures,
}

impl Member {
    /// Joins the registry below `root` (`/dev/shm`, except in tests). The slot depends on `seed`
    /// and on which slots are taken. An error of kind [`io::ErrorKind::WouldBlock`] says that
    /// another process is joining or leaving at this moment: the caller tries again a little later.
    pub fn join(root: &Path, seed: u64) -> io::Result<Self> {
        for _ in 0..JOIN_TRIES {
            match Self::try_join(root, seed) {
                // The last member has removed the registry in the meantime; this process creates it
                // again.
                Ok(None) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) && root.is_dir() => {}
                Ok(Some(member)) => return Ok(member),
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the registry of devices comes and goes"))
    }

    fn try_join(root: &Path, seed: u64) -> io::Result<Option<Self>> {
        let directory = Directory::open(root)?;
        let file = directory.file(REGISTRY, true)?;
        if !lock::try_hold(&file, SETUP)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if fstat(&file)?.st_nlink == 0 {
            return Ok(None);
        }
        // Without room for a ring in each direction, the member would lose everything that is sent
        // to it or by it. Such a process does without the others, and uses the wire.
        room::may_have(FILE_LEN.max(RingMap::file_len(RING_CAPACITIES[1])))?;
        room::has_room(root, HEADER_LEN + SLOT_LEN + 2 * RingMap::file_len(RING_CAPACITIES[1]))?;
        file.set_len(FILE_LEN as u64)?;
        reserve(&file, 0, HEADER_LEN)?;
        let len = NonZeroUsize::new(FILE_LEN).ok_or(io::ErrorKind::InvalidInput)?;
        let map = Mapping::new(&file, len)?;
        map.view::<Header>(0).magic.store(MAGIC, Ordering::Release);
        let slot = free_slot(&file, seed)?;
        bury(&directory, &map, slot);
        reserve(&file, slot_start(slot), SLOT_LEN)?;
        empty(map.view(slot_start(slot)));
        let wake = directory.new_pipe(&wake_name(slot))?;
        let kick = directory.new_pipe(&nudge_name(slot))?;
        let life = directory.new_pipe(&life_name(slot))?;
        let header = map.view::<Header>(0);
        let generation = (header.states[usize::from(slot)].load(Ordering::Acquire) >> 1) + 1;
        // No other process had this combination of process id, slot and generation.
        let known_by = u64::from(std::process::id()) << 32 | u64::from(generation);
        let witness = Box::new(fastrand::Rng::with_seed(seed ^ known_by).u64(..));
        lending::show_witness(map.view(slot_start(slot)), &witness);
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

    /// The number that distinguishes this member from all others: the upper eight bits of its queue
    /// pair numbers and of its communication ids. It is not zero.
    pub fn prefix(&self) -> u8 {
        self.slot + 1
    }

    /// Claims the requests for a service at an address. It is an error of kind
    /// [`io::ErrorKind::AddrInUse`] if a member has claimed them already.
    pub fn claim_service(&self, address: Gid, id: u64) -> io::Result<()> {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if self.left.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        if services.contains(&(address, id)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        if services.len() == MAX_SERVICES {
            let why = format!("more than {MAX_SERVICES} services of one device");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        if !lock::try_hold(&self.file, byte_of_service(address, id))? {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        services.push((address, id));
        self.show_services(&services);
        Ok(())
    }

    /// Ends the claim to the requests for a service.
    pub fn release_service(&self, address: Gid, id: u64) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = services.iter().position(|s| *s == (address, id)) else { return };
        services.swap_remove(at);
        self.show_services(&services);
        lock::release(&self.file, byte_of_service(address, id));
    }

    fn show_services(&self, services: &[(Gid, u64)]) {
        let area = self.area(self.slot);
        for (place, &(gid, id)) in area.services.iter().zip(services) {
            place.store(gid, id);
        }
        area.service_count.store(services.len() as u32, Ordering::Release);
    }

    /// Whether a member has claimed the requests for a service at an address.
    pub(super) fn serves(&self, slot: u8, address: Gid, id: u64) -> bool {
        let area = self.area(slot);
        let count = area.service_count.load(Ordering::Acquire) as usize;
        area.services.iter().take(count).any(|place| place.load() == (address, id))
    }

    pub(super) fn slot(&self) -> u8 {
        self.slot
    }

    /// A count that changes with every change of the registry that other members keep a copy of.
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.map.view::<Header>(0).epoch.load(Ordering::Acquire)
    }

    /// The generation of a slot, if the slot is in use.
    pub(super) fn generation_of(&self, slot: u8) -> Option<u32> {
        let state = self.map.view::<Header>(0).states[usize::from(slot)].load(Ordering::Acquire);
        (state & 1 == 1).then_some(state >> 1)
    }

    /// The slots of all other members, and their generations.
    pub(super) fn others(&self) -> impl Iterator<Item = (u8, u32)> {
        let slots = (0..SLOTS as u8).filter(|slot| *slot != self.slot);
        slots.filter_map(|slot| Some((slot, self.generation_of(slot)?)))
    }

    /// The area of a slot that is in use.
    pub(super) fn area(&self, slot: u8) -> &Slot {
        self.map.view(slot_start(slot))
    }

    /// The addresses of a member and, where it is the port owner, the socket it receives with.
    pub(super) fn addresses_of(&self, slot: u8) -> Vec<(Gid, Option<u32>)> {
        let area = self.area(slot);
        let count = area.address_count.load(Ordering::Acquire) as usize;
        area.addresses.iter().take(count).map(|place| place.load()).collect()
    }

    /// Publishes the addresses of this member in the registry.
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

    /// Publishes whether packets to this member must carry their ICRC; to be called before the
    /// addresses are published.
    pub(super) fn set_wants_icrc(&self, wants: bool) {
        self.area(self.slot).wants_icrc.store(wants.into(), Ordering::Release);
    }

    fn changed(&self) {
        self.map.view::<Header>(0).epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Becomes the port owner of an address, if no member is. False: another member is.
    pub(super) fn try_receive_at(&self, address: Gid) -> io::Result<bool> {
        lock::try_hold(&self.file, byte_of_address(address))
    }

    /// Gives up the port of an address.
    pub(super) fn stop_receiving_at(&self, address: Gid) {
        lock::release(&self.file, byte_of_address(address));
    }

    /// Whether the member in a slot lives; true if the lock cannot be queried.
    pub(super) fn lives(&self, slot: u8) -> bool {
        lock::is_held(&self.file, byte_of_slot(slot), 1).unwrap_or(true)
    }

    /// Reaps the member in a slot if it is dead, and returns whether it did.
    pub(super) fn bury_if_dead(&self, slot: u8) -> bool {
        if self.lives(slot) || !lock::try_hold(&self.file, byte_of_slot(slot)).unwrap_or(false) {
            return false;
        }
        bury(&self.directory, &self.map, slot);
        lock::release(&self.file, byte_of_slot(slot));
        true
    }

    /// The pipe that this member sleeps on.
    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The pipe through which peers kick this member.
    pub(super) fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Opens the pipes of another member, if it lives.
    pub(super) fn contact(&self, slot: u8) -> io::Result<Contact> {
        let wake = self.directory.pipe(&wake_name(slot), OFlag::O_RDWR)?;
        let kick = self.directory.pipe(&nudge_name(slot), OFlag::O_RDWR)?;
        let life = self.directory.pipe(&life_name(slot), OFlag::O_RDONLY)?;
        // The kernel does not report a death that happened before the pipe was opened.
        if !self.lives(slot) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Contact::new(wake, kick, life))
    }

    /// Creates a ring to another member and announces it. The other member opens the ring when it
    /// next looks.
    pub(super) fn new_ring(&self, to: u8) -> io::Result<ByteProducer<RingMap>> {
        let name = ring_name(self.slot, self.generation, to);
        self.directory.remove(&name);
        let file = self.directory.new_file(&name)?;
        let made = RING_CAPACITIES.iter().find_map(|&capacity| {
            let len = RingMap::file_len(capacity);
            room::may_have(len).ok()?;
            reserve(&file, 0, len).ok().map(|()| capacity)
        });
        let Some(capacity) = made else {
            self.directory.remove(&name);
            return Err(io::ErrorKind::StorageFull.into());
        };
        file.set_len(RingMap::file_len(capacity) as u64)?;
        // SAFETY: the file is new and its name has our slot and generation, so this is the only
        // producer of the ring.
        let ring = unsafe { ByteProducer::new(RingMap::new(&file, capacity)?) };
        let inbox = &self.area(to).inbox[usize::from(self.slot) / 64];
        inbox.fetch_or(1 << (self.slot % 64), Ordering::AcqRel);
        Ok(ring)
    }

    /// The slots of members that have created a ring to this one since the last call.
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

    /// Whether [`Member::new_senders`] would return a slot.
    #[inline]
    pub(super) fn has_new_senders(&self) -> bool {
        self.area(self.slot).inbox.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Opens the rings from the member in a slot and from earlier members of that slot, with their
    /// generations, oldest first. Once a ring is mapped here, its file needs no name and is
    /// unlinked.
    pub(super) fn rings_from(&self, from: u8, log: &Logger) -> Vec<(u32, ByteConsumer<RingMap>)> {
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
        let file = self.directory.file(name, false)?;
        self.directory.remove(name);
        let len = usize::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let capacity = RING_CAPACITIES.into_iter().find(|&c| RingMap::file_len(c) == len);
        let memory = RingMap::new(&file, capacity.ok_or(io::ErrorKind::InvalidData)?)?;
        // SAFETY: the name had our slot, and is removed, so this is the only consumer of the ring.
        Ok(unsafe { ByteConsumer::new(memory) })
    }

    /// Gives up the slot; the kernel tells the peers at once. Later calls do nothing.
    pub(super) fn leave(&self) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if self.left.swap(true, Ordering::Relaxed) {
            return;
        }
        // A later `release_service` would otherwise change the area of the next member in this
        // slot.
        services.clear();
        drop(services);
        bury(&self.directory, &self.map, self.slot);
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

/// For the copy of a member that a child process has after a fork.
impl Member {
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

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Removes a registry without living members. If it belongs to another network namespace, possibly
/// no process enters that namespace again that would remove it.
fn remove_if_dead(directory: &Directory) {
    let Ok(file) = directory.file(REGISTRY, false) else { return };
    if lock::try_hold(&file, SETUP).unwrap_or(false)
        && !lock::is_held(&file, FIRST_SLOT, SLOTS as i64).unwrap_or(true)
    {
        directory.remove_all(|_| true);
        directory.remove_self();
    }
}

/// Locks the byte of a slot that has no living member.
fn free_slot(file: &File, seed: u64) -> io::Result<u8> {
    let start = fastrand::Rng::with_seed(seed).usize(..SLOTS);
    for i in 0..SLOTS {
        let slot = ((start + i) % SLOTS) as u8;
        if lock::try_hold(file, byte_of_slot(slot))? {
            return Ok(slot);
        }
    }
    let why = format!("{SLOTS} devices are open on this host already");
    Err(io::Error::new(io::ErrorKind::QuotaExceeded, why))
}

/// Reaps a member: empties the slot, whose byte the caller has locked, and removes the files of the
/// member.
fn bury(directory: &Directory, map: &Mapping, slot: u8) {
    let header = map.view::<Header>(0);
    let state = &header.states[usize::from(slot)];
    if state.load(Ordering::Acquire) & 1 == 0 {
        return;
    }
    state.fetch_and(!1, Ordering::AcqRel);
    header.epoch.fetch_add(1, Ordering::AcqRel);
    directory.remove(&wake_name(slot));
    directory.remove(&nudge_name(slot));
    directory.remove(&life_name(slot));
    // Peers may still read the rings from the member; no process reads the rings to it any more.
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
fn reserve(file: &File, start: usize, len: usize) -> io::Result<()> {
    let (start, len) = (start as libc::off_t, len as libc::off_t);
    Ok(fallocate(file, FallocateFlags::empty(), start, len)?)
}

#[cfg(test)]
mod tests;
