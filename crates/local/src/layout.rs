//! What processes write for each other in the registry.
//!
//! One page of words that everybody looks at, then an area for each member. Only the member
//! itself writes its area, but for the words that others use to reach it and the one where they
//! count what they did there. A reader may see half of a change; every change ends with a new
//! epoch, which makes readers look again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use feroce_wire::Gid;

use super::loan::LEASES;
use super::map::Atomics;
use super::proc_mem::Aim;

/// Processes of another version have another directory. To be increased with every change of this
/// file, of the rings or of the records in them.
pub(super) const VERSION: u32 = 13;

/// Members at a time. One more is the number of prefixes of eight bits that are not zero.
pub(super) const SLOTS: usize = 255;
/// Addresses of one member.
pub(super) const MAX_ADDRESSES: usize = 32;
/// Services of one member.
pub(super) const MAX_SERVICES: usize = 1024;

/// Says that a registry has been set up.
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"feroce\0r");

/// Bytes of the words that everybody looks at.
pub(super) const HEADER_LEN: usize = 4096;
/// Bytes of the area of a member: whole pages, so that each takes memory when it is first used.
pub(super) const SLOT_LEN: usize = size_of::<Slot>().next_multiple_of(4096);
/// Bytes of the registry.
pub(super) const FILE_LEN: usize = HEADER_LEN + SLOTS * SLOT_LEN;

/// Where the area of a member begins.
pub(super) const fn slot_start(slot: u8) -> usize {
    HEADER_LEN + slot as usize * SLOT_LEN
}

/// What everybody looks at.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    /// Counts changes.
    pub(super) epoch: AtomicU32,
    /// Counts members that left.
    pub(super) departures: AtomicU32,
    _apart: [AtomicU32; 12],
    /// By slot: twice the generation, and one more while it is in use.
    pub(super) states: [AtomicU32; SLOTS],
}

// SAFETY: atomic words, in `repr(C)`.
unsafe impl Atomics for Header {}
const _: () = assert!(size_of::<Header>() <= HEADER_LEN);

/// A word that one side writes so often that nothing others look at may share its cache lines,
/// which processors fetch in pairs.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Apart<T>(T);

impl<T> std::ops::Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// The area of a member.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Slot {
    /// It sleeps on its pipe, and must be woken.
    pub(super) sleeping: AtomicU32,
    /// It does, and looks at its memory when it is woken.
    pub(super) napping: AtomicU32,
    /// It polls while it waits for something, or did until its driver thread took over.
    pub(super) polling: AtomicU32,
    /// Whose memory it is copying from or to, how, and how often it did; see `loan::Fetching`.
    pub(super) fetching: Apart<AtomicU32>,
    /// What it is about to write to the memory of another; whoever that is may take it away.
    pub(super) aim: Apart<Aim>,
    /// How many messages of others came through its direct accesses.
    pub(super) passed: Apart<AtomicU64>,
    /// Change when loans are revoked: in answers, when direct accesses are shut as well, and to
    /// some queue pairs.
    pub(super) answers: Apart<AtomicU32>,
    pub(super) leases: [AtomicU32; LEASES],
    /// By slot: who has made a ring to this member that it has not taken yet.
    pub(super) inbox: [AtomicU64; 4],
    /// Packets to this member must have their ICRC.
    pub(super) wants_icrc: AtomicU32,
    pub(super) address_count: AtomicU32,
    pub(super) service_count: AtomicU32,
    /// The process of the member.
    pub(super) pid: AtomicU32,
    /// Where the process has its witness, and what that says.
    pub(super) witness: [AtomicU64; 2],
    pub(super) addresses: [SharedAddress; MAX_ADDRESSES],
    pub(super) services: [SharedService; MAX_SERVICES],
}

// SAFETY: atomic words, in `repr(C)`.
unsafe impl Atomics for Slot {}

/// An address of a member.
#[repr(C)]
#[derive(Debug)]
pub(super) struct SharedAddress {
    gid: SharedGid,
    /// If the member receives for everybody at this address: one more than the number of the socket
    /// it does that with.
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

/// A service that a member listens for, at one of its addresses.
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
