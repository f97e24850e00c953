//! The other processes as one of them sees them: their addresses, and the rings to and from them.

mod direct_access;
mod fast_path;
mod reaping;
mod whereabouts;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_link::Logger;
use feroce_ring::{ByteConsumer, ByteProducer, fall_asleep, must_wake};
use feroce_train::{Instant, RxMeta, RxTrain, Train};
use feroce_wire::{Gid, Qpn};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use super::direct_access::Offer;
use super::layout::SLOTS;
use super::map::RingMap;
use super::peer_process::PeerProcess;
use super::record::{self, Content, MAX_RECORD};
use super::registry::{Contact, Departure, Registry};
use super::remote_payload::Received;
use super::shared::Maps;
pub(super) use whereabouts::{Named, Route};

/// How long a process that takes nothing from its full ring delays the sender. After that, packets
/// to it are lost, as those to a full receive buffer are, until it takes something.
const STUCK_NS: u64 = 10_000_000;

/// Records taken from one ring in a turn, unless an equal share of the budget is more.
const TURN: usize = 4;

/// The epoll data of the pipe that this process sleeps on.
const WAKE: u64 = SLOTS as u64;
/// The epoll data of the wire.
const WIRE: u64 = WAKE + 1;
/// The epoll data of the connection to portd.
const PORTD: u64 = WIRE + 1;

/// The result of putting a record into a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pushed {
    /// It is on its way.
    Done,
    /// The ring has no room now.
    Full,
    /// It is lost.
    Lost,
    /// There is no ring: the wire may lead to the process.
    NoRing,
}

/// Another process.
#[derive(Debug)]
struct Peer {
    generation: u32,
    /// Its addresses and, where it is the port owner, the socket it receives with.
    addresses: Vec<(Gid, Option<u32>)>,
    /// Packets to it must carry their ICRC.
    wants_icrc: bool,
    contact: Option<Contact>,
    out: Option<ByteProducer<RingMap>>,
    /// The metadata of the last packets without ICRC that were put into its ring.
    last: Option<RxMeta>,
    /// The last attempt to create a ring to it failed. The next change of the registry resets it.
    refused: bool,
    /// Since when its ring is full, and how much it had taken then.
    stuck: Option<(Instant, u32)>,
    /// Its ring has records that are not published yet.
    touched: bool,
}

impl Peer {
    fn new(generation: u32) -> Self {
        Self {
            generation,
            addresses: Vec::new(),
            wants_icrc: false,
            contact: None,
            out: None,
            last: None,
            refused: false,
            stuck: None,
            touched: false,
        }
    }

    fn has(&self, address: Gid) -> bool {
        self.addresses.iter().any(|(gid, _)| *gid == address)
    }
}

/// A ring to this process.
#[derive(Debug)]
struct Incoming {
    from: u8,
    generation: u32,
    ring: ByteConsumer<RingMap>,
    /// Its producer has gone: no record will follow.
    is_last: bool,
    /// The process that its remote payload is in, and the mapped files of that process.
    host_memory: PeerProcess,
    maps: RefCell<Maps>,
    /// The metadata of the last packets without ICRC.
    last: Option<RxMeta>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerCounters {
    pub(super) full: u64,
    pub(super) lost: u64,
    pub(super) malformed: u64,
    pub(super) fetched: u64,
    pub(super) mapped: u64,
    pub(super) reaped: u64,
    pub(super) kicked: u64,
}

/// The other processes.
#[derive(Debug)]
pub(super) struct Peers {
    registry: Arc<Registry>,
    pub(super) log: Logger,
    /// The epoch of the registry when this process last read it.
    epoch: u32,
    slots: Vec<Option<Box<Peer>>>,
    /// Slots that are in use.
    used: Vec<u8>,
    /// Every address of another process, sorted.
    known: Vec<Gid>,
    /// The addresses of this process.
    own: Vec<Gid>,
    /// Those where portd receives, also for processes of other users.
    leased: Vec<Gid>,
    /// The route that was looked up last.
    route: Cell<Option<(Gid, Qpn, Route)>>,
    incoming: Vec<Incoming>,
    /// The index of the ring that is served first.
    turn: usize,
    /// Processes whose ring has records that are not published yet.
    touched: Vec<u8>,
    /// Processes that seem to have gone, and are not reaped yet.
    suspects: Vec<u8>,
    /// Processes that have gone, with their generations, and are not reported yet.
    gone: Vec<(u32, Departure)>,
    epoll: Epoll,
    record: Vec<u8>,
    /// How many messages had arrived by direct access at the last check.
    passed: u64,
    /// Peers may send remote payload to this process.
    fetches: bool,
    pub(super) counters: PeerCounters,
}

impl Peers {
    /// `wire` is readable when something has arrived from other hosts.
    pub(super) fn new(registry: Arc<Registry>, wire: BorrowedFd<'_>) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(registry.wake_fd(), EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        epoll.add(wire, EpollEvent::new(EpollFlags::EPOLLIN, WIRE))?;
        let mut peers = Self {
            epoch: registry.epoch(),
            registry,
            log: Logger::default(),
            slots: (0..SLOTS).map(|_| None).collect(),
            used: Vec::new(),
            known: Vec::new(),
            own: Vec::new(),
            leased: Vec::new(),
            route: Cell::new(None),
            incoming: Vec::new(),
            turn: 0,
            touched: Vec::new(),
            suspects: Vec::new(),
            gone: Vec::new(),
            epoll,
            record: vec![0; MAX_RECORD],
            passed: 0,
            fetches: false,
            counters: PeerCounters::default(),
        };
        peers.look();
        Ok(peers)
    }

    /// Peers may send remote payload to this process.
    pub(super) fn fetch(&mut self) {
        self.fetches = true;
    }

    pub(super) fn own_slot(&self) -> u8 {
        self.registry.slot()
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Follows the registry, and returns whether it has changed.
    #[inline]
    pub(super) fn sync(&mut self) -> bool {
        let has_changed = self.registry.epoch() != self.epoch;
        if has_changed {
            self.look();
        }
        has_changed
    }

    /// Reads the registry again.
    #[cold]
    fn look(&mut self) {
        self.route.set(None);
        // Read the epoch before anything else: a change during the reading changes the epoch again.
        self.epoch = self.registry.epoch();
        let others: Vec<(u8, u32)> = self.registry.others().collect();
        self.used.clear();
        self.known.clear();
        for (slot, place) in (0..SLOTS as u8).zip(&mut self.slots) {
            let found = others.iter().find(|(other, _)| *other == slot).map(|(_, now)| *now);
            if let Some(old) = place.take_if(|peer| Some(peer.generation) != found) {
                let addresses = old.addresses.iter().map(|(gid, _)| *gid).collect();
                self.gone.push((old.generation, Departure { prefix: slot + 1, addresses }));
            }
            let Some(generation) = found else { continue };
            if place.is_none() {
                *place = Some(Box::new(Peer::new(generation)));
            }
            let Some(peer) = place else { continue };
            peer.addresses = self.registry.addresses_of(slot);
            peer.wants_icrc = self.registry.area(slot).wants_icrc.load(Ordering::Acquire) != 0;
            peer.refused = false;
            self.used.push(slot);
            self.known.extend(peer.addresses.iter().map(|(gid, _)| *gid));
        }
        self.known.sort_unstable();
        self.known.dedup();
        let slots = &self.slots;
        let is_there = |slot: u8, generation| {
            slots[usize::from(slot)].as_ref().is_some_and(|peer| peer.generation == generation)
        };
        self.registry.forget_revoked();
        self.touched.retain(|slot| slots[usize::from(*slot)].is_some());
        self.suspects.retain(|slot| slots[usize::from(*slot)].is_some());
        for ring in &mut self.incoming {
            ring.is_last = !is_there(ring.from, ring.generation);
        }
    }

    pub(super) fn set_own(&mut self, addresses: impl IntoIterator<Item = Gid>) {
        self.own = addresses.into_iter().collect();
        self.route.set(None);
    }

    /// Sets the addresses where portd receives for this process.
    pub(super) fn set_leased(&mut self, addresses: impl IntoIterator<Item = Gid>) {
        self.leased = addresses.into_iter().collect();
        self.route.set(None);
    }

    /// Whether portd receives at an address for this process.
    pub(super) fn is_leased(&self, address: Gid) -> bool {
        self.leased.contains(&address)
    }

    /// Says over which descriptor packets arrive from portd.
    pub(super) fn hear_portd(&self, fd: BorrowedFd<'_>) {
        let watched = self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, PORTD));
        if let Err(e) = watched {
            self.log.warn(format_args!("packets from portd are noticed late: {e}"));
        }
    }

    /// Whether there is neither another process nor a ring to this one.
    pub(super) fn is_empty(&self) -> bool {
        self.used.is_empty() && self.incoming.is_empty()
    }

    /// Whether another process has an address.
    #[inline]
    pub(super) fn shares(&self, address: Gid) -> bool {
        self.known.binary_search(&address).is_ok()
    }

    fn peer(&self, slot: u8) -> Option<&Peer> {
        self.slots.get(usize::from(slot))?.as_deref()
    }

    /// Watches the port owner of an address, so that the kernel reports when it has gone. False:
    /// there is none.
    pub(super) fn watch_receiver(&mut self, address: Gid) -> bool {
        self.receiver_at(address).is_some_and(|slot| self.contact(slot))
    }

    /// Whether packets to a process must carry their ICRC.
    #[inline]
    pub(super) fn wants_icrc(&self, slot: u8) -> bool {
        self.peer(slot).is_none_or(|peer| peer.wants_icrc)
    }

    /// Whether this process may send remote payload to another one.
    #[inline]
    pub(super) fn may_send_remote(&self, slot: u8) -> bool {
        let ring = self.peer(slot).and_then(|peer| peer.out.as_ref());
        ring.is_some_and(|ring| ring.memory().may_send_remote())
    }

    /// Opens the pipes of a process, unless they are open. False: that failed.
    fn contact(&mut self, slot: u8) -> bool {
        let Some(peer) = self.slots[usize::from(slot)].as_deref_mut() else { return false };
        if peer.contact.is_some() {
            return true;
        }
        let watched = self.registry.contact(slot).and_then(|contact| {
            // No event is requested: epoll always reports a hang-up.
            let event = EpollEvent::new(EpollFlags::empty(), slot.into());
            self.epoll.add(contact.life(), event)?;
            Ok(contact)
        });
        match watched {
            Ok(contact) => peer.contact = Some(contact),
            Err(e) => {
                self.log.debug(format_args!("no contact with registry {slot}: {e}"));
                self.suspect(slot);
                return false;
            }
        }
        true
    }

    /// Creates a ring to a process, unless there is one. False: that failed.
    fn reach(&mut self, slot: u8) -> bool {
        let Some(peer) = self.peer(slot) else { return false };
        if peer.out.is_some() {
            return true;
        }
        if peer.refused {
            return false;
        }
        let made = if self.contact(slot) { self.registry.new_ring(slot).ok() } else { None };
        let is_made = made.is_some();
        if !is_made {
            self.log.warn(format_args!(
                "no ring to the process in slot {slot}: packets to it take the wire (/dev/shm is \
                 full, or the process has no free descriptors)"
            ));
        }
        if let Some(peer) = self.slots[usize::from(slot)].as_deref_mut() {
            (peer.out, peer.last, peer.refused) = (made, None, !is_made);
        }
        is_made
    }

    /// Puts the record of a train without ICRC into the ring to a process.
    #[inline]
    pub(super) fn push_bare(
        &mut self,
        now: Instant,
        slot: u8,
        train: &Train,
        meta: RxMeta,
    ) -> Pushed {
        if self.peer(slot).is_some_and(|peer| peer.last == Some(meta)) {
            let write = |out: &mut [u8]| record::write_brief(train, out);
            return self.push(now, slot, record::brief_len_of(train), write);
        }
        let write = |out: &mut [u8]| record::write_train(train, meta, None, out);
        let pushed = self.push(now, slot, record::len_of(train, false), write);
        if pushed == Pushed::Done
            && let Some(peer) = self.slots[usize::from(slot)].as_deref_mut()
        {
            peer.last = Some(meta);
        }
        pushed
    }

    /// Puts a record of `len` bytes into the ring to a process.
    #[inline]
    pub(super) fn push(
        &mut self,
        now: Instant,
        slot: u8,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Pushed {
        if !self.reach(slot) {
            return Pushed::NoRing;
        }
        let Some(peer) = self.slots[usize::from(slot)].as_deref_mut() else { return Pushed::Lost };
        let Some(ring) = &mut peer.out else { return Pushed::Lost };
        match ring.stage(len, write) {
            Ok(true) => {
                peer.stuck = None;
                if !peer.touched {
                    peer.touched = true;
                    self.touched.push(slot);
                }
                return Pushed::Done;
            }
            Ok(false) => {
                let removed = ring.removed();
                let (since, at) = *peer.stuck.get_or_insert((now, removed));
                if at != removed {
                    peer.stuck = Some((now, removed));
                } else if now.nanos_since(since) > STUCK_NS {
                    self.counters.lost += 1;
                    return Pushed::Lost;
                }
                self.counters.full += 1;
                return Pushed::Full;
            }
            Err(e) => self.log.warn(format_args!("registry {slot}: {e}")),
        }
        (peer.out, peer.refused) = (None, true);
        self.counters.lost += 1;
        Pushed::Lost
    }

    /// Counts a train that is lost.
    pub(super) fn count_lost(&mut self) {
        self.counters.lost += 1;
    }

    /// Publishes the records in the rings of other processes, and wakes the processes that sleep.
    #[inline]
    pub(super) fn flush(&mut self) {
        while let Some(slot) = self.touched.pop() {
            let Some(peer) = self.slots[usize::from(slot)].as_deref_mut() else { continue };
            peer.touched = false;
            show(&self.registry, slot, peer);
        }
    }

    /// Kicks the processes that are awake but have not taken what was put into their rings.
    #[cold]
    pub(super) fn kick(&mut self) {
        for &slot in &self.used {
            let Some(peer) = self.slots[usize::from(slot)].as_deref() else { continue };
            if let (Some(contact), Some(ring)) = (&peer.contact, &peer.out)
                && !ring.is_empty()
            {
                contact.kick();
                self.counters.kicked += 1;
            }
        }
    }

    /// Whether the process that owns a queue pair lives, is not stopped, and has not taken what was
    /// put into its ring.
    #[cold]
    pub(super) fn peer_has_unread(&self, address: Gid, qpn: Qpn) -> bool {
        let Route::Slot(slot) = self.route(address, qpn) else { return false };
        let ring = self.peer(slot).and_then(|peer| peer.out.as_ref());
        ring.is_some_and(|ring| !ring.is_empty())
            && self.registry.lives(slot)
            && !self.registry.host_memory(slot).is_stopped()
    }

    /// Passes packets from the rings to `sink`, and whether they carry an ICRC to check.
    #[inline]
    pub(super) fn receive(
        &mut self,
        budget: usize,
        mut sink: impl FnMut(&RxTrain<'_>, bool),
    ) -> usize {
        if self.registry.has_new_senders() {
            self.take_rings();
        }
        let (mut taken, rings) = (0, self.incoming.len());
        if self.turn >= rings {
            self.turn = 0;
        }
        // Usually there is one ring, and a division takes as long as the rest of this function.
        let quota = if rings > 1 { (budget / rings).max(TURN) } else { budget };
        let mut is_over = false;
        let mut offers = Vec::new();
        for i in 0..rings {
            let next = self.turn + i;
            let incoming = &mut self.incoming[if next < rings { next } else { next - rings }];
            let most = (taken + quota).min(budget);
            while taken < most {
                match incoming.ring.pop(&mut self.record) {
                    Ok(Some(len)) => match record::read(&self.record[..len], &mut incoming.last) {
                        Some(Content::Packets(train, has_icrc)) => sink(&train, has_icrc),
                        Some(Content::RemotePayload(meta, bytes)) => {
                            let words = self.registry.words_of(incoming.from);
                            let fetching = self.registry.fetching_from(incoming.from);
                            let (host_memory, maps) = (incoming.host_memory, &incoming.maps);
                            match Received::read(host_memory, maps, words, fetching, bytes) {
                                Some(payload) => {
                                    sink(&payload.train(meta), false);
                                    self.counters.fetched += 1;
                                    self.counters.mapped += u64::from(payload.is_mapped());
                                    if !payload.is_good() {
                                        incoming.ring.memory().set_may_send_remote(false);
                                    }
                                }
                                None => self.counters.malformed += 1,
                            }
                        }
                        Some(Content::DirectAccess(meta, terms)) => match Offer::read(&meta, terms)
                        {
                            Some(offer) => offers.push((incoming.from, incoming.generation, offer)),
                            None => self.counters.malformed += 1,
                        },
                        None => self.counters.malformed += 1,
                    },
                    Ok(None) => {
                        is_over |= incoming.is_last;
                        break;
                    }
                    Err(e) => {
                        self.log.warn(format_args!("registry {}: {e}", incoming.from));
                        self.counters.malformed += 1;
                        (incoming.is_last, is_over) = (true, true);
                        break;
                    }
                }
                taken += 1;
            }
        }
        self.turn += 1;
        if is_over {
            self.incoming.retain(|incoming| !incoming.is_last || !incoming.ring.is_empty());
        }
        for (from, generation, offer) in offers {
            self.add_direct(from, generation, &offer);
        }
        if !self.gone.is_empty() {
            self.report_departures();
        }
        taken
    }

    #[cold]
    fn take_rings(&mut self) {
        for from in self.registry.new_senders() {
            for (generation, ring) in self.registry.rings_from(from, &self.log) {
                let is_last = self.registry.generation_of(from) != Some(generation);
                let host_memory = self.registry.host_memory(from);
                let may_send_remote = self.fetches && !is_last && host_memory.is_readable();
                if self.fetches && !is_last && !may_send_remote {
                    let why = "its memory may not be read (FEROCE_READABLE=1 there may help)";
                    self.log.info(format_args!(
                        "registry {from} sends everything through its ring: {why}"
                    ));
                }
                ring.memory().set_may_send_remote(may_send_remote);
                let (maps, last) = (RefCell::default(), None);
                self.incoming.push(Incoming {
                    from,
                    generation,
                    ring,
                    is_last,
                    host_memory,
                    maps,
                    last,
                });
            }
        }
    }

    /// Prepares this process to sleep. False: something has arrived.
    pub(super) fn arm(&mut self, looks: bool) -> bool {
        let mut ignored = [0; 64];
        while nix::unistd::read(self.registry.wake_fd(), &mut ignored) == Ok(ignored.len()) {}
        let area = self.registry.area(self.registry.slot());
        area.napping.store(looks.into(), Ordering::Relaxed);
        if !looks {
            area.polling.store(0, Ordering::Relaxed);
        }
        fall_asleep(&area.sleeping);
        let is_quiet = self.incoming.iter().all(|incoming| incoming.ring.is_empty())
            && !(looks && self.has_let_pass());
        let is_current = self.registry.epoch() == self.epoch && self.gone.is_empty();
        is_quiet && !self.registry.has_new_senders() && is_current
    }
}

/// Publishes the records in the ring to a process, and wakes the process if it sleeps.
#[inline]
fn show(registry: &Registry, slot: u8, peer: &mut Peer) {
    if let Some(ring) = &mut peer.out {
        ring.publish();
    }
    wake(registry, slot, peer);
}

/// Wakes a process if it sleeps. What it is to see was published before.
#[inline]
fn wake(registry: &Registry, slot: u8, peer: &Peer) {
    if let Some(contact) = &peer.contact
        && must_wake(&registry.area(slot).sleeping)
    {
        contact.wake().ring();
    }
}
