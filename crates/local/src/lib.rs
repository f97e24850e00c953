//! Many processes, one address.
//!
//! Processes on one host share its addresses; the number of a queue pair says whose it is. Each
//! process has an engine of its own. Those of one user find each other in a registry (`member`)
//! and pass each other trains through rings in shared memory (`peers`), two for each pair that has
//! to do with each other, made at the first contact. There is no daemon.
//!
//! What comes from other hosts comes to one UDP port, which one process can have. It hands packets
//! for the others on (`demux` says whose they are). When it goes, the others hear of it from the
//! kernel, and one of them takes its place. Everybody sends from sockets of their own.
//!
//! Nothing here makes anything reliable: a ring that stays full, a process that dies and a port
//! that changes hands lose packets, as networks do.

mod areas;
mod carrier;
mod demux;
mod direct_access;
mod directory;
mod guard;
mod layout;
mod loan;
mod lock;
mod map;
mod map_shared;
mod member;
mod peers;
mod port_owner;
mod proc_mem;
mod record;
mod remap_shared;
mod run;
mod shared;
mod sys;

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use feroce_link::{Carrier, Checker, Close, IcrcPolicy, LinkCounters, Sealer, UdpConfig, UdpLink};
use feroce_train::{HostMemory as _, Instant, LinkCaps, Path, RxMeta, RxTrain, Single, Train};
use feroce_wire::{Gid, Qpn};

pub use carrier::HostCarrier;
pub use guard::{Guard, Watch};
use loan::Loan;
pub use member::Member;
use peers::{Peers, Pushed, Route};
use port_owner::PortOwner;
use record::Content;
pub use run::PacketRun;

/// While something comes through the rings, the wire is asked no more often than this: to ask
/// takes a system call, which is as long as a message inside the host is on its way.
const WIRE_NS: u64 = 5_000;
/// Nor less often than this, however long it has had nothing.
const WIRE_MOST_NS: u64 = 40_000;
/// The wire is asked each time again when so many calls in a row found nothing in the rings.
const QUIET: u32 = 64;

/// How often whoever polls looks at the rings before it is told of nothing.
const LOOKS: u32 = 12;

/// How often to look for what nobody tells us, while somebody calls anyway.
const LOOK_NS: u64 = 10_000_000;
/// The same, if something is about to happen.
const HURRY_NS: u64 = 1_000_000;
/// How often to look for dead members that nobody has heard of.
const BURY_NS: u64 = 500_000_000;

/// Most trains whose payload is lent together.
const GATHERED: usize = 8;

/// Most records to this member itself that wait.
const MAX_LOCAL: usize = 1024;

/// What became of a train.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// It is on its way, or was lost as on any network.
    Done,
    /// The ring is full and has taken nothing.
    Full,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    tx_trains: u64,
    /// Trains to queue pairs that nobody has.
    tx_nobody: u64,
    /// Trains whose payload was lent.
    lent: u64,
    rx_trains: u64,
    forwarded: u64,
    forward_lost: u64,
}

/// A link to other hosts and to the other processes of this one.
#[derive(Debug)]
pub struct HostLink {
    udp: UdpLink,
    peers: Peers,
    port_owner: PortOwner,
    member: Arc<Member>,
    sealer: Sealer,
    /// Checks what has an ICRC, if no layer above does.
    checker: Option<Checker>,
    /// The path inside this host that was taken last, and what is seen of packets that take it.
    near: Option<(Path, RxMeta)>,
    /// Records to this member itself.
    local: VecDeque<Vec<u8>>,
    /// How many calls in a row found nothing in the rings.
    quiet: u32,
    /// What came last came by direct access.
    is_written_to: bool,
    /// When the wire is asked again, whatever comes through the rings.
    next_wire: Instant,
    /// How long not to ask it after that.
    wire_pause: u64,
    next_look: Instant,
    next_burial: Instant,
    in_hurry: bool,
    /// The thread that sleeps next looks at its memory when it wakes.
    looks: bool,
    counters: Counters,
}

impl HostLink {
    /// A link without addresses, of a member of the registry.
    ///
    /// With `icrc`, it checks the ICRC of what comes from the wire itself, packets inside the host
    /// have none, and no [`Verified`](feroce_link::Verified) belongs above it. Without, every
    /// packet has one, as layers want it that look at packets or damage them.
    pub fn new(
        config: UdpConfig,
        member: Arc<Member>,
        icrc: Option<IcrcPolicy>,
    ) -> io::Result<Self> {
        member.set_wants_icrc(icrc.is_none());
        let udp = UdpLink::new(UdpConfig { listen: false, ..config }, &[])?;
        let peers = Peers::new(Arc::clone(&member), udp.wait_fd())?;
        Ok(Self {
            udp,
            peers,
            port_owner: PortOwner::default(),
            member,
            sealer: Sealer::default(),
            checker: icrc.map(Checker::new),
            near: None,
            local: VecDeque::new(),
            quiet: QUIET,
            is_written_to: false,
            next_wire: Instant::ZERO,
            wire_pause: WIRE_NS,
            next_look: Instant::ZERO,
            next_burial: Instant::ZERO,
            in_hurry: false,
            looks: false,
            counters: Counters::default(),
        })
    }

    /// Others of this host may send trains whose payload is [lent](feroce_train::RemotePayload):
    /// nothing stands between this link and an engine that would have to see it.
    #[must_use]
    pub fn fetching(mut self) -> Self {
        self.peers.fetch();
        self
    }

    /// What a receiver on this host sees of packets on a path.
    #[inline]
    fn meta_of(&mut self, path: &Path) -> RxMeta {
        match &self.near {
            Some((near, meta)) if near == path => *meta,
            _ => {
                let meta = RxMeta::from(&self.udp.actual_path(path));
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
        }
        Sent::Done
    }

    /// Lends the payload of the first trains of several to a member, if that can be done and is
    /// worth it. Returns how many trains the link took, if it dealt with them.
    fn lend_to_slot(&mut self, now: Instant, slot: u8, trains: &[Train]) -> Option<usize> {
        let first = trains.first()?;
        if first.revocation_epoch != Some(self.member.revocation_epoch())
            || !self.peers.may_lend(slot)
        {
            return None;
        }
        let (loan, taken) = Loan::new(trains, self.member.files())?;
        let meta = self.meta_of(&first.path);
        let (leases, answers) = self.member.words_of(self.member.slot());
        let terms = [&leases[loan.word()], answers].map(|word| word.load(Ordering::Relaxed));
        let write = |out: &mut [u8]| loan.write(meta, terms.into(), out);
        match self.peers.push(now, slot, loan.record_len(), write) {
            Pushed::Full => return Some(0),
            Pushed::Done => {
                self.counters.tx_trains += taken as u64;
                self.counters.lent += taken as u64;
            }
            Pushed::Lost => {}
        }
        Some(taken)
    }

    /// Sends a train back to this member.
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

    /// Sends a management datagram to whom it is for.
    fn send_management(&mut self, now: Instant, train: &Train) -> Sent {
        let record = self.record_of(train);
        let (dst, packet) = (train.path.dst.gid, &record[record::META..]);
        let named = self.peers.named_by(dst, packet).or_else(|| self.peers.anybody_at(dst));
        match named {
            Some(slot) if slot == self.member.slot() => self.send_to_self(record),
            Some(slot) => return self.send_to_slot(now, slot, train),
            None => self.counters.tx_nobody += 1,
        }
        Sent::Done
    }

    /// Sends the first trains of several, as many as go the same way.
    fn send_some(&mut self, now: Instant, trains: &[Train]) -> io::Result<usize> {
        let way = |train: &Train| self.peers.route(train.path.dst.gid, train.bth.dest_qp);
        let Some(first) = trains.first() else { return Ok(0) };
        let sent = match way(first) {
            Route::Wire => {
                let others = trains[1..].iter().take_while(|train| way(train) == Route::Wire);
                let together = 1 + others.count();
                return self.udp.send(now, &trains[..together]);
            }
            Route::Slot(slot) => match self.lend_to_slot(now, slot, trains) {
                Some(taken) => return Ok(taken),
                None => self.send_to_slot(now, slot, first),
            },
            Route::Management => self.send_management(now, first),
            Route::Own => {
                let record = self.record_of(first);
                self.send_to_self(record);
                Sent::Done
            }
            Route::Nobody => {
                self.counters.tx_nobody += 1;
                Sent::Done
            }
        };
        Ok(usize::from(sent == Sent::Done))
    }

    /// Follows the registry. Who has gone from it may have left a place.
    #[inline]
    fn sync(&mut self) {
        if self.peers.sync() {
            self.next_look = Instant::ZERO;
        }
    }

    /// What nobody tells us: who has gone, and whether there is a place to take.
    #[cold]
    fn look(&mut self, now: Instant) {
        self.peers.hear();
        self.peers.bury_suspects();
        if now >= self.next_burial {
            self.next_burial = now.plus_nanos(BURY_NS);
            self.peers.bury_all_dead();
            self.port_owner.stand_in(&mut self.udp, &self.peers);
        }
        let all_taken = self.port_owner.take(&mut self.udp, &self.member, &mut self.peers);
        self.in_hurry = self.peers.bury_suspects() || !all_taken;
        self.next_look = now.plus_nanos(if self.in_hurry { HURRY_NS } else { LOOK_NS });
    }

    /// Whether to ask the wire this time.
    fn is_turn_of_wire(&mut self, now: Instant) -> bool {
        let is_turn = self.quiet >= QUIET || now >= self.next_wire;
        if is_turn {
            self.next_wire = now.plus_nanos(self.wire_pause);
        }
        is_turn && self.udp.is_watching()
    }
}

/// Whether the last packet of a train is the last of its message.
fn ends_message(train: &Train) -> bool {
    let last = if train.count > 1 { train.ops.last } else { train.ops.first };
    last.decode().is_some_and(|(_, op)| op.ends())
}

/// Passes on what came from the wire: to other members what is theirs, to `sink` the rest. Packets
/// that came together may be for several.
fn distribute(
    now: Instant,
    train: &RxTrain<'_>,
    peers: &mut Peers,
    counters: &mut Counters,
    sink: &mut dyn FnMut(&RxTrain<'_>),
) {
    let dst = train.meta.dst.gid;
    if !peers.shares(dst) {
        return sink(train);
    }
    let mut run = 0..0;
    let mut run_is_for = None;
    let mut pass = |bytes: std::ops::Range<usize>, slot, peers: &mut Peers| {
        let part = feroce_link::part(train, bytes);
        match slot {
            _ if part.bytes.is_empty() => {}
            None => sink(&part),
            Some(slot) => {
                let len = record::META + part.bytes.len();
                let write = |out: &mut [u8]| record::write_received(&part, out);
                match peers.push(now, slot, len, write) {
                    Pushed::Done => counters.forwarded += 1,
                    Pushed::Full | Pushed::Lost => counters.forward_lost += 1,
                }
            }
        }
    };
    let me = peers.own_slot();
    for packet in train.bytes.chunks(train.stride.max(1)) {
        let slot = peers.named_by(dst, packet).filter(|slot| *slot != me);
        if slot != run_is_for {
            pass(run.clone(), run_is_for, peers);
            (run, run_is_for) = (run.end..run.end, slot);
        }
        run.end += packet.len();
    }
    pass(run, run_is_for, peers);
}

impl Carrier for HostLink {
    fn caps(&self) -> LinkCaps {
        self.udp.caps()
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
        let slot = match self.peers.route(packet.path.dst.gid, packet.dest) {
            Route::Wire => return self.udp.send_single(packet),
            Route::Slot(slot) => slot,
            _ => return false,
        };
        // Peers hear of direct access first.
        if self.peers.wants_icrc(slot) || self.member.has_offers() {
            return false;
        }
        let meta = self.meta_of(packet.path);
        let is_sent = self.peers.push_single(slot, packet, meta);
        self.counters.tx_trains += u64::from(is_sent);
        is_sent
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
            // A layer above wants to look for itself, and would miss what is not there.
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
            self.is_written_to = has_let_pass;
        }
        let is_quiet = taken == 0 && !has_let_pass;
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        if is_turn_of_wire && taken < budget {
            let (peers, counters) = (&mut self.peers, &mut self.counters);
            let mut pass = |train: &RxTrain<'_>| distribute(now, train, peers, counters, sink);
            let received = match &mut self.checker {
                Some(checker) => self.udp.receive(now, budget - taken, &mut |train| {
                    checker.pass(train, &mut pass);
                }),
                None => self.udp.receive(now, budget - taken, &mut pass),
            };
            self.peers.flush();
            let received = received?;
            let longer = (2 * self.wire_pause).min(WIRE_MOST_NS);
            self.wire_pause = if received > 0 { WIRE_NS } else { longer };
            taken += received;
        }
        // Beyond the budget: whoever is written to all the time must receive as well.
        Ok(taken + usize::from(has_let_pass))
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.peers.wait_fd()
    }

    fn arm(&mut self, now: Instant) -> bool {
        // Whoever sleeps asks the wire first when it wakes.
        self.quiet = QUIET;
        self.sync();
        if self.peers.hear() || now >= self.next_look {
            self.look(now);
        }
        let is_watched = self.udp.arm(now);
        self.peers.arm(self.looks) && is_watched && self.local.is_empty()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if !self.local.is_empty() {
            return Some(Instant::ZERO);
        }
        if self.in_hurry {
            return Some(self.next_look);
        }
        (!self.peers.is_empty()).then_some(self.next_burial)
    }

    fn actual_path(&self, path: &Path) -> Path {
        self.udp.actual_path(path)
    }

    fn set_addresses(&mut self, addresses: &[Gid]) -> io::Result<()> {
        self.sync();
        self.near = None;
        self.port_owner.set(addresses, &mut self.udp, &self.member, &mut self.peers)
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.udp.join(group)
    }

    fn leave(&mut self, group: Gid) -> io::Result<()> {
        self.udp.leave(group)
    }

    fn counters(&self) -> LinkCounters {
        let (c, p) = (&self.counters, &self.peers.counters);
        let mut counters = self.udp.counters();
        counters.extend(self.checker.iter().flat_map(Checker::counters));
        counters.extend([
            ("shm_tx_trains", c.tx_trains),
            ("shm_tx_lent", c.lent),
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
            ("shm_buried", p.buried),
            ("shm_kicked", p.kicked),
            ("shm_direct", self.member.passed()),
        ]);
        counters
    }

    fn close(&mut self, why: Close) {
        if why == Close::Fork {
            self.member.abandon();
        }
    }
}

impl HostCarrier for HostLink {
    #[inline]
    fn wants_more(&self, trains: &[Train]) -> bool {
        let Some(last) = trains.last() else { return true };
        let is_short = last.payload_len < last.stride || last.payload_len == 0;
        if last.count == 1 && !is_short {
            // It may be the first of many, wherever they go.
            return true;
        }
        match self.peers.route(last.path.dst.gid, last.bth.dest_qp) {
            // To fetch takes a system call of the receiver, so what is lent of one message is
            // gathered; but an answer that is asked for should not wait.
            Route::Slot(slot) if !is_short && self.peers.may_lend(slot) => {
                let is_over = last.bth.ack_req || ends_message(last);
                last.revocation_epoch.is_some() && !is_over && trains.len() < GATHERED
            }
            // To send it by itself costs next to nothing.
            Route::Slot(_) => false,
            _ => last.count == 1,
        }
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        // To come back takes as long as a few looks; but whoever is written to looks elsewhere.
        let looks = if self.is_written_to { 1 } else { LOOKS };
        let is_quiet = self.quiet < QUIET
            && self.local.is_empty()
            && (0..looks).all(|_| self.peers.is_quiet());
        if is_quiet {
            self.member.show_polling();
        }
        is_quiet
    }

    fn set_looks(&mut self, looks: bool) {
        self.looks = looks;
    }

    fn kick(&mut self) {
        self.peers.kick();
    }

    fn peer_has_unread(&self, path: &Path, qpn: Qpn) -> bool {
        self.peers.peer_has_unread(path.dst.gid, qpn)
    }

    fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.member.kick_fd())
    }
}

impl Drop for HostLink {
    fn drop(&mut self) {
        if self.member.has_left() {
            return;
        }
        // The port is free before others hear that they may have it.
        let _ = self.udp.set_addresses(&[]);
        self.member.leave();
    }
}
