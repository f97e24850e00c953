//! Many processes, one address.
//!
//! The processes of one host share its addresses; the upper eight bits of a queue pair number name
//! the process that owns it. Each process has its own engine. The processes of one user find each
//! other in a registry (`registry`) and pass trains to each other through rings in shared memory
//! (`peers`), two for each pair that communicates, made at the first contact. There is no daemon.
//!
//! Packets from other hosts arrive at one UDP port, which only one process can own. The port owner
//! passes packets for other processes on to them (`demux` finds the process). When it ends, the
//! kernel tells the other processes, and one of them takes over the port. Every process sends from
//! its own sockets.
//!
//! This crate does not make delivery reliable: a ring that stays full, a process that dies and a
//! port that changes its owner lose packets, as networks do.

mod ancillary;
mod areas;
mod carrier;
mod demux;
mod direct_access;
mod directory;
mod distribute;
mod guard;
mod host_carrier;
mod layout;
mod lock;
mod map;
mod map_shared;
mod peer_process;
mod peers;
mod port_owner;
mod port_rings;
mod portd;
mod proc_mem;
mod record;
mod registry;
mod remap_shared;
mod remote_payload;
mod room;
mod run;
mod shared;
mod sys;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_link::{
    Carrier, Checker, Control, IcrcPolicy, LinkCounters, Logger, Sealer, SharedPort,
};
use feroce_mem::HostMemory as _;
use feroce_train::{Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};

pub use ancillary::Ancillary;
pub use carrier::{HostCarrier, RemoteCarrier};
pub use demux::{Target, of_packet as target_of};
pub use directory::own_directory;
use distribute::distribute;
pub use guard::{Guard, Watch};
use peers::{Named, Peers, Pushed, Route};
use port_owner::PortOwner;
pub use port_rings::{Offered, PortRings, RingChannel};
use portd::News;
pub use portd::{Lease, Opening, Portd, portd_users};
use record::Content;
pub use registry::{Departure, Registry};
use remote_payload::PayloadRecord;
pub use run::PacketRun;

/// While packets arrive through the rings, the link polls the wire at most once per interval:
/// a poll takes a system call, which takes as long as the delivery of a message inside the host.
const WIRE_NS: u64 = 5_000;
/// The longest such interval. It doubles up to here while the polls find nothing.
const WIRE_MOST_NS: u64 = 40_000;
/// After this many consecutive calls that found the rings empty, every call polls the wire.
const QUIET: u32 = 64;

/// How often to check for changes without notification, while a thread calls the link anyway.
const LOOK_NS: u64 = 10_000_000;
/// The same, while a change is expected: a dead process to reap, a port to take over.
const HURRY_NS: u64 = 1_000_000;
/// How often to check all processes for dead ones, also those that this process does not watch.
const REAP_NS: u64 = 500_000_000;

/// Most records from this process to itself that wait to be received.
const MAX_LOCAL: usize = 1024;

/// The result of sending a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// The link has taken the train. It is on its way, or was lost as on any network.
    Done,
    /// The ring is full and the link has not taken the train.
    Full,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    tx_trains: u64,
    /// Trains to queue pairs that no process owns.
    tx_nobody: u64,
    /// Trains that were sent as remote payload.
    remote: u64,
    rx_trains: u64,
    forwarded: u64,
    forward_lost: u64,
}

/// A link to other hosts and to the other processes of this one.
#[derive(Debug)]
pub struct HostLink<C: SharedPort> {
    /// To other hosts.
    wire: C,
    peers: Peers,
    port_owner: PortOwner,
    registry: Arc<Registry>,
    /// The connection to portd, if there was one when the device was opened.
    lease: Option<Lease>,
    sealer: Sealer,
    /// Checks the ICRC of packets that carry one, if no layer above does.
    checker: Option<Checker>,
    /// The path inside this host that was used last, and the receive metadata of its packets.
    near: Option<(Path, RxMeta)>,
    /// Records from this process to itself.
    local: VecDeque<Vec<u8>>,
    /// How many consecutive calls found nothing in the rings.
    quiet: u32,
    /// The last message arrived past the rings: by direct access, or inside the device.
    is_past_rings: bool,
    /// When the link polls the wire next, even if packets arrive through the rings.
    next_wire: Instant,
    /// The interval from that poll to the following one.
    wire_pause: u64,
    next_look: Instant,
    next_reap: Instant,
    in_hurry: bool,
    /// The thread that sleeps next checks its memory when it wakes: see [`HostCarrier::set_looks`].
    looks: bool,
    /// The process that a packet was published to, until [`HostCarrier::wake_receiver`].
    published_to: Option<u8>,
    counters: Counters,
}

impl<C: SharedPort> HostLink<C> {
    /// Creates a link without addresses for the owner of a slot in a registry. `wire` has none
    /// either, leads to other hosts, and receives only where it is told to (a
    /// [`UdpLink`](feroce_link::UdpLink) without `listen`).
    ///
    /// With `icrc`, the link itself checks the ICRC of packets from the wire, packets inside the
    /// host carry no ICRC, and no [`Verified`](feroce_link::Verified) belongs above it. Without,
    /// every packet carries an ICRC, because layers that inspect or damage packets need one.
    pub fn new(wire: C, registry: Arc<Registry>, icrc: Option<IcrcPolicy>) -> io::Result<Self> {
        registry.set_wants_icrc(icrc.is_none());
        let peers = Peers::new(Arc::clone(&registry), wire.wait_fd())?;
        Ok(Self {
            wire,
            peers,
            port_owner: PortOwner::default(),
            registry,
            lease: None,
            sealer: Sealer::default(),
            checker: icrc.map(Checker::new),
            near: None,
            local: VecDeque::new(),
            quiet: QUIET,
            is_past_rings: false,
            next_wire: Instant::ZERO,
            wire_pause: WIRE_NS,
            next_look: Instant::ZERO,
            next_reap: Instant::ZERO,
            in_hurry: false,
            looks: false,
            published_to: None,
            counters: Counters::default(),
        })
    }

    /// Peer processes may send trains with [remote payload](feroce_train::RemotePayload): no layer
    /// between this link and the engine needs to see the payload.
    #[must_use]
    pub fn fetching(mut self) -> Self {
        self.peers.fetch();
        self
    }

    /// Says where messages go.
    #[must_use]
    pub fn with_log(mut self, log: &Logger) -> Self {
        self.peers.log = log.clone();
        self.port_owner.set_log(log.clone());
        if let Some(lease) = &mut self.lease {
            lease.set_log(log);
        }
        self
    }

    /// Receives through portd where it receives for this process.
    #[must_use]
    pub fn with_lease(mut self, lease: Option<Lease>) -> Self {
        if let Some(fd) = lease.as_ref().and_then(Lease::fd) {
            self.peers.hear_portd(fd);
        }
        self.lease = lease;
        self
    }

    /// The metadata that a receiver on this host gets with packets on a path.
    #[inline]
    fn meta_of(&mut self, path: &Path) -> RxMeta {
        match &self.near {
            Some((near, meta)) if near == path => *meta,
            _ => {
                let meta = self.wire.headers(path);
                self.near = Some((*path, meta));
                meta
            }
        }
    }

    fn send_to_slot(&mut self, now: Instant, slot: u8, train: &Train) -> Sent {
        let meta = self.meta_of(&train.path);
        let pushed = if self.peers.wants_icrc(slot) {
            let sealer = Some(&mut self.sealer);
            let write = |out: &mut [u8]| record::write_train(train, meta, sealer, out);
            self.peers.push(now, slot, record::len_of(train, true), write)
        } else {
            self.peers.push_bare(now, slot, train, meta)
        };
        match pushed {
            Pushed::Full => return Sent::Full,
            Pushed::Done => self.counters.tx_trains += 1,
            Pushed::Lost => {}
            // The port owner of its address receives it, and forwards it if that is another one.
            Pushed::NoRing => return self.send_by_wire(now, train),
        }
        Sent::Done
    }

    /// Sends a train to an address of this host by the wire.
    fn send_by_wire(&mut self, now: Instant, train: &Train) -> Sent {
        match self.wire.send(now, std::slice::from_ref(train)) {
            Ok(0) => return Sent::Full,
            Ok(_) => {}
            Err(_) => self.peers.count_lost(),
        }
        Sent::Done
    }

    /// Sends the first of several trains to a process as one remote payload, if that is possible
    /// and worth it. Returns how many trains the link took; `None`: they go through the ring.
    fn send_remote_to_slot(&mut self, now: Instant, slot: u8, trains: &[Train]) -> Option<usize> {
        let first = trains.first()?;
        if first.revocation_epoch.is_none() || !self.peers.may_send_remote(slot) {
            return None;
        }
        let (record, taken) = PayloadRecord::new(trains, self.registry.files())?;
        let meta = self.meta_of(&first.path);
        let (epochs, answers) = self.registry.words_of(self.registry.slot());
        let terms = [&epochs[record.word()], answers].map(|word| word.load(Ordering::Acquire));
        // The words come first. A revocation begins an epoch before it changes a word, so a thread
        // that sees the changed word sees the epoch as well, and does not offer the payload.
        if first.revocation_epoch != Some(self.registry.revocation_epoch()) {
            return None;
        }
        let write = |out: &mut [u8]| record.write(meta, terms.into(), out);
        match self.peers.push(now, slot, record.record_len(), write) {
            Pushed::Full => return Some(0),
            Pushed::Done => {
                self.counters.tx_trains += taken as u64;
                self.counters.remote += taken as u64;
            }
            Pushed::Lost => {}
            Pushed::NoRing => return None,
        }
        Some(taken)
    }

    /// Sends the record of a train from this process to itself.
    fn send_to_self(&mut self, record: Vec<u8>) {
        if self.local.len() < MAX_LOCAL {
            self.local.push_back(record);
            self.counters.tx_trains += 1;
        }
    }

    fn record_of(&mut self, train: &Train) -> Vec<u8> {
        let (meta, has_icrc) = (self.meta_of(&train.path), self.checker.is_none());
        let mut record = vec![0; record::len_of(train, has_icrc)];
        let sealer = has_icrc.then_some(&mut self.sealer);
        record::write_train(train, meta, sealer, &mut record);
        record
    }

    /// Sends a management datagram to the process that it is addressed to.
    fn send_management(&mut self, now: Instant, train: &Train) -> Sent {
        let record = self.record_of(train);
        let (dst, packet) = (train.path.dst.gid, &record[record::META..]);
        let to = match self.peers.named_by(dst, packet) {
            Named::Slot(slot) => Some(slot),
            // It may be for a process of another user.
            Named::Unnamed | Named::All if self.peers.is_leased(dst) => {
                return self.send_by_wire(now, train);
            }
            Named::Unnamed => self.peers.handler_at(dst),
            Named::All => {
                // A process whose ring is full loses it, so that the others do not wait.
                for slot in self.peers.others_at(dst) {
                    self.send_to_slot(now, slot, train);
                }
                self.peers.has(dst).then(|| self.registry.slot())
            }
        };
        match to {
            Some(slot) if slot == self.registry.slot() => self.send_to_self(record),
            Some(slot) => return self.send_to_slot(now, slot, train),
            None => self.counters.tx_nobody += 1,
        }
        Sent::Done
    }

    /// Sends the first of several trains: as many as take the same route.
    fn send_some(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        let route_of = |train: &Train| self.peers.route(train.path.dst.gid, train.bth.dest_qp);
        let Some(first) = trains.first() else { return Ok(0) };
        let sent = match route_of(first) {
            Route::Wire => {
                let others = trains[1..].iter().take_while(|train| route_of(train) == Route::Wire);
                let together = 1 + others.count();
                return self.wire.send(now, &trains[..together]);
            }
            Route::Slot(slot) => match self.send_remote_to_slot(now, slot, trains) {
                Some(taken) => return Ok(taken),
                None => self.send_to_slot(now, slot, first),
            },
            Route::Management => self.send_management(now, first),
            Route::Own => {
                let record = self.record_of(first);
                self.send_to_self(record);
                Sent::Done
            }
            Route::Unowned => {
                self.counters.tx_nobody += 1;
                Sent::Done
            }
        };
        Ok(usize::from(sent == Sent::Done))
    }

    /// Receives what portd has passed on.
    fn receive_leased(&mut self, budget: usize, sink: &mut dyn FnMut(&RxTrain<'_>)) -> usize {
        let Some(lease) = &mut self.lease else { return 0 };
        // A layer above that checks the ICRC itself expects it in the packets.
        let is_checked = self.checker.is_some();
        let (taken, news) = lease.receive(budget, |train, _| {
            sink(&RxTrain { trailer: if is_checked { train.trailer } else { 0 }, ..*train });
        });
        // A process without connections wants no departures, and keeps none.
        let departures = lease.take_departures();
        if self.registry.wants_departures() {
            departures.into_iter().for_each(|departure| self.registry.add_departure(departure));
        }
        if news != News::Nothing {
            self.port_owner.follow(lease, &mut self.peers);
            self.registry.claim_again(news == News::Again);
            // The answers are due soon.
            self.next_look = Instant::ZERO;
            self.in_hurry = true;
        }
        taken
    }

    /// Follows the registry. A process that has left may have been a port owner, so `look` is due.
    #[inline]
    fn sync(&mut self) {
        if self.peers.sync() {
            self.next_look = Instant::ZERO;
        }
    }

    /// Checks for changes without notification: dead processes, and addresses without a port owner.
    #[cold]
    fn look(&mut self, now: Instant) {
        self.peers.hear();
        self.peers.reap_suspects();
        if now >= self.next_reap {
            self.next_reap = now.plus_nanos(REAP_NS);
            self.peers.reap_all_dead();
            self.port_owner.stand_in(&mut self.wire, &self.peers);
        }
        if let Some(lease) = &mut self.lease
            && lease.look(now)
            && let Some(fd) = lease.fd()
        {
            self.peers.hear_portd(fd);
        }
        let all_taken = self.port_owner.take(&mut self.wire, &self.registry, &mut self.peers);
        let is_claiming = self.lease.is_some() && self.registry.hear_claims();
        self.in_hurry = self.peers.reap_suspects() || !all_taken || is_claiming;
        self.next_look = now.plus_nanos(if self.in_hurry { HURRY_NS } else { LOOK_NS });
    }

    /// Whether this call polls the wire.
    fn is_turn_of_wire(&mut self, now: Instant) -> bool {
        let is_turn = self.quiet >= QUIET || now >= self.next_wire;
        if is_turn {
            self.next_wire = now.plus_nanos(self.wire_pause);
        }
        is_turn && (self.wire.is_watching() || self.lease.is_some())
    }
}

impl<C: SharedPort> Carrier for HostLink<C> {
    fn caps(&self) -> LinkCaps {
        self.wire.caps()
    }

    fn send(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        self.sync();
        self.peers.announce_direct(now);
        let mut taken = 0;
        let outcome = loop {
            match self.send_some(now, &trains[taken..]) {
                Ok(0) => break Ok(taken),
                Ok(some) => taken += some,
                Err(e) => break Err(e),
            }
        };
        self.peers.flush();
        outcome
    }

    #[inline]
    fn send_single(&mut self, packet: Single<'_>) -> bool {
        self.sync();
        match self.peers.route(packet.path.dst.gid, packet.dest) {
            Route::Wire => self.wire.send_single(packet),
            Route::Slot(slot) => {
                let is_sent = self.publish_to(slot, packet);
                self.wake_receiver();
                is_sent
            }
            _ => false,
        }
    }

    fn receive(
        &mut self,
        now: Instant,
        budget: usize,
        sink: &mut dyn FnMut(&RxTrain<'_>),
    ) -> io::Result<usize> {
        self.sync();
        if now >= self.next_look {
            self.look(now);
        }
        let is_turn_of_wire = self.is_turn_of_wire(now);
        let checker = &mut self.checker;
        let mut pass = |train: &RxTrain<'_>, has_icrc: bool| match checker {
            Some(checker) if has_icrc => checker.pass(train, sink),
            Some(_) => sink(train),
            // A layer above checks the ICRC itself, and expects one in every packet.
            None if has_icrc || train.trailer > 0 => sink(&RxTrain { trailer: 0, ..*train }),
            None => {}
        };
        let mut taken = 0;
        while taken < budget
            && let Some(record) = self.local.pop_front()
        {
            if let Some(Content::Packets(train, has_icrc)) = record::read(&record, &mut None) {
                pass(&train, has_icrc);
            }
            taken += 1;
        }
        let for_wire = if is_turn_of_wire { budget / 2 } else { 0 };
        taken += self.peers.receive(budget.saturating_sub(taken + for_wire), pass);
        self.counters.rx_trains += taken as u64;
        let has_let_pass = self.peers.has_let_pass();
        if taken > 0 || has_let_pass {
            self.is_past_rings = has_let_pass;
        }
        let is_quiet = taken == 0 && !has_let_pass;
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        if is_turn_of_wire && taken < budget {
            let (peers, counters) = (&mut self.peers, &mut self.counters);
            let mut pass = |train: &RxTrain<'_>| distribute(now, train, peers, counters, sink);
            let received = match &mut self.checker {
                Some(checker) => self.wire.receive(now, budget - taken, &mut |train| {
                    checker.pass(train, &mut pass);
                }),
                None => self.wire.receive(now, budget - taken, &mut pass),
            };
            self.peers.flush();
            let received = received? + self.receive_leased(budget - taken, sink);
            let longer = (2 * self.wire_pause).min(WIRE_MOST_NS);
            self.wire_pause = if received > 0 { WIRE_NS } else { longer };
            taken += received;
        }
        // Beyond the budget: a process to which its peers write all the time must receive as well.
        Ok(taken + usize::from(has_let_pass))
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.peers.wait_fd()
    }

    fn arm(&mut self, now: Instant) -> bool {
        // A thread that wakes polls the wire first.
        self.quiet = QUIET;
        self.sync();
        if self.peers.hear() || now >= self.next_look {
            self.look(now);
        }
        let is_watched = self.wire.arm(now);
        self.peers.arm(self.looks) && is_watched && self.local.is_empty()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.local.is_empty() {
            return Some(Instant::ZERO);
        }
        if self.in_hurry {
            return Some(self.next_look);
        }
        let next_reap = (!self.peers.is_empty()).then_some(self.next_reap);
        let next_try = self.lease.as_ref().and_then(Lease::poll_timeout);
        next_reap.into_iter().chain(next_try.map(|at| at.max(self.next_look))).min()
    }

    fn headers(&self, path: &Path) -> RxMeta {
        self.wire.headers(path)
    }

    fn control(&mut self, control: Control<'_>) -> io::Result<()> {
        match control {
            Control::Addresses(addresses) => {
                self.sync();
                self.near = None;
                self.port_owner.set(
                    addresses,
                    &mut self.wire,
                    &self.registry,
                    &mut self.peers,
                    self.lease.as_mut(),
                )
            }
            Control::Fork => {
                self.registry.abandon();
                self.lease.iter().for_each(Lease::abandon);
                self.wire.control(control)
            }
            Control::Join(_) | Control::Leave(_) | Control::Exit => self.wire.control(control),
        }
    }

    fn counters(&self) -> LinkCounters {
        let (c, p) = (&self.counters, &self.peers.counters);
        let mut counters = self.wire.counters();
        counters.extend(self.checker.iter().flat_map(Checker::counters));
        counters.extend([
            ("shm_tx_trains", c.tx_trains),
            ("shm_tx_remote_payload", c.remote),
            ("shm_tx_full", p.full),
            ("shm_tx_lost", p.lost),
            ("shm_tx_nobody", c.tx_nobody),
            ("shm_rx_trains", c.rx_trains),
            ("shm_rx_fetched", p.fetched),
            ("shm_rx_mapped", p.mapped),
            ("shm_rx_malformed", p.malformed),
            ("shm_forwarded", c.forwarded),
            ("shm_forward_lost", c.forward_lost),
            ("shm_taken_over", self.port_owner.taken_over()),
            ("shm_reaped", p.reaped),
            ("shm_kicked", p.kicked),
            ("shm_direct", self.registry.passed()),
        ]);
        counters.extend(self.lease.iter().flat_map(Lease::counters));
        counters.extend(
            self.lease.iter().map(|_| ("portd_services_lost", self.registry.services_lost())),
        );
        counters
    }
}

impl<C: SharedPort> Drop for HostLink<C> {
    fn drop(&mut self) {
        if self.registry.has_left() {
            return;
        }
        // The port is free before the peer processes learn that they may take it over.
        let _ = self.wire.control(Control::Addresses(&[]));
        self.registry.leave();
    }
}
