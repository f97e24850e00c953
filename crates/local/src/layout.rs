//! The layout of the registry, which all processes map and write.
//!
//! The registry begins with one page of words that every process reads; an area for each process
//! follows. Only the process itself writes its area, except for the words with which peer processes
//! reach it (such as `inbox`) and the word in which they count messages by direct access
//! (`passed`). A reader may see half of a change; every change ends with a new epoch, which makes
//! readers look again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use feroce_wire::Gid;

use super::map::Atomics;
use super::proc_mem::Aim;
use super::remote_payload::EPOCHS;

/// Processes of another version use another directory. Increase this number with every change of
/// this file, of the rings or of the records in them.
pub(super) const VERSION: u32 = 14;

/// Most processes at a time: one for each prefix of eight bits that is not zero.
pub(super) const SLOTS: usize = 255;
/// Addresses of one process.
pub(super) const MAX_ADDRESSES: usize = 32;
/// Services of one process.
pub(super) const MAX_SERVICES: usize = 1024;

/// Marks a registry that has been set up.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"feroce\0r");

/// Bytes of the words that every process reads.
pub(super) const HEADER_LEN: usize = 4096;
/// Bytes of the area of a process: whole pages, so that the kernel allocates memory for an area
/// only when it is first used.
pub(super) const SLOT_LEN: usize = size_of::<Slot>().next_multiple_of(4096);
/// Bytes of the registry.
pub(super) const FILE_LEN: usize = HEADER_LEN + SLOTS * SLOT_LEN;

/// Where the area of a process begins.
pub(super) const fn slot_start(slot: u8) -> usize {
    HEADER_LEN + slot as usize * SLOT_LEN
}

/// The words that every process reads.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    /// Counts changes of the registry.
    pub(super) epoch: AtomicU32,
    /// Counts processes that have left.
    pub(super) departures: AtomicU32,
    _apart: [AtomicU32; 12],
    /// By slot: twice the generation, plus one while the slot is in use.
    pub(super) states: [AtomicU32; SLOTS],
}

// SAFETY: atomic words, in `repr(C)`.
unsafe impl Atomics for Header {}
const _: () = assert!(size_of::<Header>() <= HEADER_LEN);

/// A word that one process writes so often that no word that other processes read may share its
/// cache lines. Processors fetch cache lines in pairs, hence 128 bytes.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Apart<T>(T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The area of a process.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Slot {
    /// The process sleeps on its pipe; a sender must wake it.
    pub(super) sleeping: AtomicU32,
    /// The process sleeps and checks its memory when it wakes, so a peer that has written there by
    /// direct access must wake it, too.
    pub(super) napping: AtomicU32,
    /// A thread of the process polls while it waits, or did until the driver thread took over.
    pub(super) polling: AtomicU32,
    /// Which process's memory this one is copying from or to, how, and how many copies it has
    /// announced; see `remote_payload::Fetching`.
    pub(super) fetching: Apart<AtomicU32>,
    /// What this process is about to write to the memory of a peer process, which may clear it to
    /// prevent the write.
    pub(super) aim: Apart<Aim>,
    /// How many messages peer processes have read or written by direct access to this process.
    pub(super) passed: Apart<AtomicU64>,
    /// These words change when remote payloads are revoked. `answers` revokes those in responses,
    /// and all direct access to this process; `epochs` revoke those to some queue pairs.
    pub(super) answers: Apart<AtomicU32>,
    pub(super) epochs: [AtomicU32; EPOCHS],
    /// One bit per slot: that process has created a ring to this one, which has not opened it yet.
    pub(super) inbox: [AtomicU64; 4],
    /// Packets to this process must carry their ICRC.
    pub(super) wants_icrc: AtomicU32,
    pub(super) address_count: AtomicU32,
    pub(super) service_count: AtomicU32,
    /// Its process id.
    pub(super) pid: AtomicU32,
    /// The address of the witness in the process, and its value.
    pub(super) witness: [AtomicU64; 2],
    pub(super) addresses: [SharedAddress; MAX_ADDRESSES],
    pub(super) services: [SharedService; MAX_SERVICES],
}

// SAFETY: atomic words, in `repr(C)`.
unsafe impl Atomics for Slot {}

/// An address of a process.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SharedAddress {
    gid: SharedGid,
    /// If the process is the port owner of this address: one more than the descriptor number of the
    /// socket it receives with. Otherwise zero.
    receives: AtomicU64,
}

impl SharedAddress {
    pub(super) fn store(&self, gid: Gid, socket: Option<u32>) {
        self.gid.store(gid);
        self.receives.store(socket.map_or(0, |fd| u64::from(fd) + 1), Ordering::Release);
    }

    pub(super) fn load(&self) -> (Gid, Option<u32>) {
        let receives = self.receives.load(Ordering::Acquire);
        let socket = receives.checked_sub(1).and_then(|fd| u32::try_from(fd).ok());
        (self.gid.load(), socket)
    }
}

/// A service that a process listens for at one of its addresses.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SharedService {
    gid: SharedGid,
    id: AtomicU64,
}

impl SharedService {
    pub(super) fn store(&self, gid: Gid, id: u64) {
        self.gid.store(gid);
        self.id.store(id, Ordering::Release);
    }

    pub(super) fn load(&self) -> (Gid, u64) {
        let id = self.id.load(Ordering::Acquire);
        (self.gid.load(), id)
    }
}

#[repr(C)]
#[derive(Debug)]
struct SharedGid([AtomicU64; 2]);

impl SharedGid {
    fn store(&self, gid: Gid) {
        let whole = u128::from_be_bytes(gid.0);
        self.0[0].store((whole >> 64) as u64, Ordering::Relaxed);
        self.0[1].store(whole as u64, Ordering::Relaxed);
    }

    fn load(&self) -> Gid {
        let [high, low] = [0, 1].map(|i| u128::from(self.0[i].load(Ordering::Relaxed)));
        Gid((high << 64 | low).to_be_bytes())
    }
}
